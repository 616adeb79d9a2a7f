"""FastLoader: DataLoader's batches, in DataLoader's order, exactly torchvision's pixels."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import threading
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    Subset,
    TensorDataset,
    default_collate,
    random_split,
)
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import fastload
import leaks
from batches import EVAL, MEAN, STD, TRAIN
from fastload import FastLoader, PackedDataset, UsageError, _loader, pack
from fastload._run.config import ARGUMENTS
from fastload._sources.collate import collate
from sides import assert_same

SMALLER = v1.Compose([v1.Resize(40), v1.CenterCrop(32), v1.ToTensor()])

# --- the same as DataLoader ---------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_folder_gives_dataloaders_batches_bit_for_bit(photos, engine, drop_last):
    folder = ImageFolder(photos, EVAL)
    arguments = {"batch_size": 5, "drop_last": drop_last, "shuffle": True}
    theirs = DataLoader(folder, generator=torch.Generator().manual_seed(2), **arguments)
    ours = FastLoader(
        folder, generator=torch.Generator().manual_seed(2), engine=engine, **arguments
    )
    assert len(ours) == len(theirs)
    for _ in range(2):
        assert_same(list(ours), list(theirs))


@pytest.mark.native
def test_a_packed_store_gives_the_folders_batches_bit_for_bit(photos, store):
    theirs = list(DataLoader(ImageFolder(photos, EVAL), batch_size=4))
    assert_same(list(FastLoader(store, batch_size=4, transform=EVAL)), theirs)


@pytest.mark.parametrize(
    "transform",
    [
        v2.Compose(
            [
                v2.Resize((50, 70)),
                v2.ToImage(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(MEAN, STD),
            ]
        ),
        v1.Compose([v1.Resize(40, max_size=60), v1.CenterCrop(80), v1.ToTensor()]),
        v1.Compose([v1.CenterCrop(48), v1.PILToTensor()]),
        v1.Compose(
            [v1.Resize((33, 65), interpolation=v1.InterpolationMode.BICUBIC), v1.ToTensor()]
        ),
    ],
    ids=["v2", "max_size and padding", "uint8", "bicubic"],
)
def test_other_chains_are_exact_too(photos, store, transform):
    theirs = list(DataLoader(ImageFolder(photos, transform), batch_size=7))
    loader = FastLoader(store, batch_size=7, transform=transform)
    assert "engine: native" in loader.explain()
    assert_same(list(loader), theirs)


def test_it_is_a_dataloader_with_its_arguments_by_name_default_and_meaning():
    theirs = inspect.signature(DataLoader.__init__).parameters
    ours = inspect.signature(FastLoader.__init__).parameters
    for name, parameter in theirs.items():
        assert ours[name].kind == parameter.kind, name
        if name != "num_workers":  # unset is not 0 here: native threads follow the CPU quota
            assert ours[name].default == parameter.default, name
    assert (
        list(ours)[: list(ours).index("generator") + 1]
        == list(theirs)[: list(theirs).index("generator") + 1]
    )
    own = [name for name in ours if name not in theirs]
    assert all(ours[name].kind is inspect.Parameter.KEYWORD_ONLY for name in own)
    assert issubclass(FastLoader, DataLoader)


def test_every_argument_is_an_attribute_of_its_name(store):
    loader = FastLoader(store, transform=EVAL, seed=3, dtype=torch.float16)
    for name in inspect.signature(FastLoader.__init__).parameters:
        if name not in ("self", "shuffle"):  # torch keeps shuffle as the sampler
            assert hasattr(loader, name), name
    assert isinstance(loader.num_workers, int)
    assert isinstance(loader.pin_memory, bool)


class Own(TensorDataset):
    """A dataset of the user's, which runs through torch's machinery."""


def test_a_dataset_of_the_users_goes_through_torchs_machinery():
    dataset = Own(torch.arange(10), torch.arange(10) * 2)
    loader = FastLoader(dataset, batch_size=3, shuffle=True, generator=torch.Generator())
    reference = DataLoader(dataset, batch_size=3, shuffle=True, generator=torch.Generator())
    assert_same(list(loader), list(reference))
    assert "engine: torch" in loader.explain()
    assert "Own" in loader.explain()
    assert loader.num_workers == 0
    assert loader.stats()["images"] == 10


@pytest.mark.native
def test_explain_says_that_the_loop_makes_each_batch_itself_and_what_to_do(photos, store):
    for dataset, transform in ((store, EVAL), (ImageFolder(photos, EVAL), None)):
        loader = FastLoader(dataset, transform=transform, num_workers=0)
        assert "slower: num_workers=0, which trainers pass by default" in loader.explain()
        assert "leave it unset, or give a number" in loader.explain()
        for workers in (None, 1, "auto"):
            loader = FastLoader(dataset, transform=transform, num_workers=workers)
            assert "num_workers=0" not in loader.explain()


def test_an_unrecognised_transform_still_loads_and_explain_says_why(photos, store):
    def darken(image):
        return image.point(lambda level: level // 2)

    chain = v1.Compose([v1.Resize((32, 32)), darken, v1.ToTensor()])
    theirs = list(DataLoader(ImageFolder(photos, chain), batch_size=6))
    for loader in (
        FastLoader(store, batch_size=6, transform=chain),
        FastLoader(ImageFolder(photos, chain), batch_size=6),
    ):
        assert "darken" in loader.explain()
        assert_same(list(loader), theirs)


# --- subsets, splits, samplers ------------------------------------------------------------------


def test_subsets_splits_and_concatenations_stay_on_the_fast_path(photos, store):
    folder, packed = ImageFolder(photos, EVAL), PackedDataset(store, EVAL)

    def split(dataset):
        return random_split(dataset, [0.5, 0.5], torch.Generator().manual_seed(0))[1]

    for make in (
        lambda d: Subset(d, [5, 0, 3, 3, -1]),
        lambda d: Subset(Subset(d, [5, 0, 3, 2]), [3, 1]),
        split,
        lambda d: ConcatDataset([d, Subset(d, [1, 2])]),
        lambda d: Subset(ConcatDataset([d, d]), [len(d) + 1, 0]),
    ):
        theirs = list(DataLoader(make(folder), batch_size=2))
        for dataset in (packed, folder):
            loader = FastLoader(make(dataset), batch_size=2)
            assert "engine: native" in loader.explain()
            assert_same(list(loader), theirs)


class Drawn(Dataset):
    """Draws its images."""

    def __init__(self, keys):
        self.keys = list(keys)

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, index):
        return {"key": self.keys[index], "image": torch.rand(3)}


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("how", ["more than there are", "a subset", "its own code"])
def test_what_comes_again_in_an_epoch_is_augmented_anew(store, how, seed):
    crop = v1.Compose([v1.RandomResizedCrop(16), v1.ToTensor()])
    packed = PackedDataset(store, crop, fields=("key",))
    dataset, n = packed, len(packed)
    if how == "a subset":
        dataset = Subset(packed, [*range(n), *range(n)])
    elif how == "its own code":
        dataset = Drawn(packed.store.keys(np.arange(n)))
    sampler = RandomSampler(dataset, num_samples=None if how == "a subset" else 2 * n)
    made = {}
    for batch in FastLoader(dataset, batch_size=4, sampler=sampler, seed=seed):
        for key, image in zip(batch["key"], batch["image"], strict=True):
            made.setdefault(key, []).append(image.clone())
    assert {len(images) for images in made.values()} == {2}
    assert not any(torch.equal(*images) for images in made.values())


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_a_batch_sampler_of_torchs_goes_on_in_the_midst_of_an_epoch(store, engine):
    def loader():
        data = PackedDataset(store, EVAL)
        sampler = RandomSampler(data, generator=torch.Generator().manual_seed(1))
        return FastLoader(
            data, batch_sampler=BatchSampler(sampler, 4, drop_last=False), engine=engine
        )

    whole, stopped, again = loader(), loader(), loader()
    expected = list(whole)
    iterator = iter(stopped)
    next(iterator)
    again.load_state_dict(stopped.state_dict())
    assert_same(list(again), expected[1:])
    assert_same(list(again), list(whole))


def test_a_collate_fn_gets_the_samples(store):
    def pairs(samples):
        return [(image.shape, label) for image, label in samples]

    loader = FastLoader(store, batch_size=3, transform=EVAL, collate_fn=pairs)
    assert next(iter(loader))[0] == (torch.Size([3, 64, 64]), 0)
    assert "engine: native" in loader.explain()


@pytest.mark.parametrize("packed", [False, True])
def test_a_collate_fn_gets_images_of_several_sizes_as_with_dataloader(photos, store, packed):
    folder = ImageFolder(photos, transform=v1.ToTensor())
    wanted = list(DataLoader(folder, batch_size=4, collate_fn=list))
    assert len({image.shape for batch in wanted for image, _ in batch}) > 1
    dataset = PackedDataset(store, transform=v1.ToTensor()) if packed else folder
    loader = FastLoader(dataset, batch_size=4, collate_fn=list)
    assert "several sizes" in loader.explain()
    for got, batch in zip(loader, wanted, strict=True):
        assert [label for _, label in got] == [label for _, label in batch]
        for (image, _), (expected, _) in zip(got, batch, strict=True):
            assert torch.equal(image, expected)


def test_a_collate_fn_of_images_of_one_size_leaves_them_to_the_engine(tmp_path):
    (tmp_path / "a").mkdir()
    for i in range(3):
        Image.new("RGB", (20, 10), (i, 0, 0)).save(tmp_path / "a" / f"{i}.png")
    (tmp_path / "a" / "3.png").write_bytes(b"no image")
    folder = ImageFolder(tmp_path, transform=v1.ToTensor())
    loader = FastLoader(folder, batch_size=2, collate_fn=list, on_error="skip", max_errors=1)
    assert "engine: torch" not in loader.explain()
    assert [len(batch) for batch in loader] == [2, 1]


def test_a_target_transform_is_applied_to_each_label(photos, store):
    def shift(label):
        return label + 10

    theirs = list(DataLoader(ImageFolder(photos, EVAL, target_transform=shift), batch_size=4))
    assert_same(
        list(FastLoader(store, batch_size=4, transform=EVAL, target_transform=shift)), theirs
    )
    assert_same(list(FastLoader(ImageFolder(photos, EVAL, shift), batch_size=4)), theirs)


def test_batch_size_none_gives_single_samples(store):
    loader = FastLoader(store, batch_size=None, transform=EVAL)
    image, label = next(iter(loader))
    assert image.shape == (3, 64, 64)
    assert label == 0


def test_images_of_different_sizes_do_not_make_a_batch(store):
    loader = FastLoader(store, batch_size=4)
    with pytest.raises(Exception, match="size"):
        list(loader)


# --- determinism --------------------------------------------------------------------------------


def epochs(dataset, n=2, **arguments):
    loader = FastLoader(dataset, batch_size=4, shuffle=True, **arguments)
    return [batch for _ in range(n) for batch in loader]


def test_one_seed_gives_the_same_batches_for_any_threads(photos, store):
    expected = epochs(store, transform=TRAIN, seed=11, num_workers=1)
    for variation in (
        {"num_workers": 0},
        {"num_workers": 2},
        {"num_workers": 4, "prefetch_factor": 5},
    ):
        assert_same(epochs(store, transform=TRAIN, seed=11, **variation), expected)
    assert_same(epochs(ImageFolder(photos, TRAIN), seed=11), expected)


def test_epochs_differ_in_order_and_augmentation_and_can_be_chosen(store):
    loader = FastLoader(store, batch_size=100, shuffle=True, transform=TRAIN, seed=1)
    first, second = next(iter(loader)), next(iter(loader))
    assert not torch.equal(first[0], second[0])
    loader.set_epoch(0)
    assert_same([next(iter(loader))], [first])
    loader.sampler.set_epoch(1)  # as Lightning does
    assert_same([next(iter(loader))], [second])


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_without_a_shuffle_augmentation_still_follows_the_epoch(store, engine):
    loader = FastLoader(store, batch_size=100, transform=TRAIN, seed=1, engine=engine)
    first, second = next(iter(loader)), next(iter(loader))
    assert not torch.equal(first[0], second[0])
    reference = FastLoader(store, batch_size=100, transform=TRAIN, seed=1)
    reference.set_epoch(1)
    assert_same([next(iter(reference))], [second])


def test_augmentation_does_not_depend_on_the_batch(store):
    one = list(FastLoader(store, batch_size=1, transform=TRAIN, seed=4))
    many = next(iter(FastLoader(store, batch_size=100, transform=TRAIN, seed=4)))
    assert torch.equal(torch.cat([images for images, _ in one]), many[0])


def test_without_a_seed_torchs_generator_decides(store):
    def run(seed):
        torch.manual_seed(seed)
        return epochs(store, transform=TRAIN)

    expected = run(5)
    assert_same(run(5), expected)
    assert not torch.equal(run(6)[0][0], expected[0][0])


# --- output -------------------------------------------------------------------------------------


@pytest.mark.native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_dtype_and_memory_format(store, dtype, memory_format):
    plain = list(FastLoader(store, batch_size=4, transform=EVAL))
    loader = FastLoader(
        store,
        batch_size=4,
        transform=EVAL,
        dtype=dtype,
        memory_format=memory_format,
    )
    for (images, _), (reference, _) in zip(loader, plain, strict=True):
        assert images.is_contiguous(memory_format=memory_format)
        assert torch.equal(images, reference.to(dtype))


def test_batches_are_the_callers_to_keep(store):
    loader = FastLoader(store, batch_size=2, shuffle=True, transform=TRAIN, seed=0)
    kept = [images for images, _ in loader]
    copies = [images.clone() for images in kept]
    list(loader)
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))


def test_a_long_loop_allocates_a_bounded_number_of_slabs(store):
    loader = FastLoader(store, batch_size=2, transform=TRAIN, seed=0)
    most = 0
    for _ in range(20):
        for _images, _labels in loader:
            # Not how often one was allocated: what is not needed for a while is given back.
            most = max(most, len(loader.inspect().engine.rings[0]._slabs))
    assert most <= 6


# --- endings ------------------------------------------------------------------------------------


def test_leaving_early_leaves_no_thread(store):
    loader = FastLoader(store, batch_size=1, transform=TRAIN)
    next(iter(loader))
    gc.collect()
    before = threading.active_count()
    for _ in range(100):
        for _batch in loader:
            break
    assert leaks.threads_end(before)


def test_an_iterator_that_was_forgotten_ends_with_its_loader(store):
    before = set(threading.enumerate())  # some of which may be ending
    iterator = iter(FastLoader(store, batch_size=1, transform=TRAIN))
    next(iterator)
    begun = set(threading.enumerate()) - before
    assert begun
    del iterator
    gc.collect()
    for thread in begun:
        thread.join(30)
    assert not any(thread.is_alive() for thread in begun)


def test_a_broken_image_raises_at_its_batch_and_names_the_file(photos, tmp_path):
    import shutil

    root = tmp_path / "imgs"
    shutil.copytree(photos, root)
    victim = sorted(root.rglob("*.jp*g"))[3]
    victim.write_bytes(victim.read_bytes()[:500])
    loader = FastLoader(ImageFolder(root, EVAL), batch_size=2)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(fastload.DataError) as caught:
        next(iterator)
    assert str(victim) in str(caught.value)
    images, _ = next(iterator)  # the batches after it are still there
    assert images.shape == (2, 3, 64, 64)


def test_a_file_that_vanished_is_named(photos, tmp_path):
    import shutil

    root = tmp_path / "imgs"
    shutil.copytree(photos, root)
    folder = ImageFolder(root, EVAL)
    victim = folder.samples[0][0]
    list(FastLoader(folder, batch_size=2))  # its size is known now
    import os

    os.unlink(victim)
    with pytest.raises(FileNotFoundError, match="file"):
        list(FastLoader(folder, batch_size=2))


def test_png_and_gray_and_odd_files_arrive_in_the_same_batch(tmp_path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (50, 60, 3), dtype=np.uint8)
    folder = tmp_path / "class0"
    folder.mkdir()
    image = Image.fromarray(pixels)
    image.save(folder / "a.jpg")
    image.save(folder / "b.png")
    image.convert("L").save(folder / "c.jpg")
    image.convert("CMYK").save(folder / "d.jpg")
    image.convert("P").save(folder / "e.png")
    image.convert("RGBA").save(folder / "f.png")
    image.save(folder / "g.webp")
    image.save(folder / "h.bmp")
    Image.fromarray(rng.integers(0, 65535, (50, 60), dtype=np.uint16)).save(folder / "i.png")
    image.save(folder / "j.jpg", progressive=True)
    turned = Image.Exif()
    turned[0x0112] = 6
    image.save(folder / "k.jpg", exif=turned)
    theirs = list(DataLoader(ImageFolder(tmp_path, EVAL), batch_size=11))
    assert_same(
        list(FastLoader(ImageFolder(tmp_path, EVAL), batch_size=11, engine="native")), theirs
    )
    pack(tmp_path, tmp_path.with_suffix(".lmdb"))
    assert_same(
        list(FastLoader(tmp_path.with_suffix(".lmdb"), batch_size=11, transform=EVAL)), theirs
    )


@pytest.mark.parametrize("python", [False, True])
def test_parts_of_one_dataset_have_the_transforms_of_their_loaders(store, python):
    """One for training and one for validation, as most users need it."""

    def first(image):
        return v1.functional.to_tensor(image.resize((40, 30)))

    one, two = (first, lambda image: first(image) * 2) if python else (EVAL, SMALLER)

    def parts(transform=None):
        dataset = PackedDataset(store, transform)
        train, val = random_split(dataset, [17, 7], torch.Generator().manual_seed(1))
        return train, Subset(val, [5, 1, 1]), ConcatDataset([val, train])

    for part, with_one, with_two in zip(parts(), parts(one), parts(two)):
        loaders = [FastLoader(part, 4, transform=transform) for transform in (one, two)]
        assert all(("engine: native" in loader.explain()) != python for loader in loaders)
        assert_same(list(loaders[0]), list(DataLoader(with_one, 4)))
        assert_same(list(loaders[1]), list(DataLoader(with_two, 4)))
        # as a trainer rebuilds it
        again = FastLoader(loaders[1].dataset, 4, transform=loaders[1].transform)
        assert_same(list(again), list(loaders[1]))


def test_a_target_transform_reaches_the_store_inside_too(store):
    part = Subset(PackedDataset(store, EVAL), range(3, 9))
    loader = FastLoader(part, 4, target_transform=lambda label: label + 10)
    expected = PackedDataset(store, EVAL, lambda label: label + 10)
    assert_same(list(loader), list(FastLoader(Subset(expected, range(3, 9)), 4)))
    assert part.dataset.target_transform is None  # the user's own dataset is as it was


# --- misuse -------------------------------------------------------------------------------------


def test_misuse_is_told_at_once(photos, store):
    with pytest.raises(UsageError, match="engine: expected one of"):
        FastLoader(store, engine="turbo")
    with pytest.raises(UsageError, match="check_crc"):
        FastLoader(PackedDataset(store, check_crc="sometimes"))
    with pytest.raises(UsageError, match="memory_format"):
        FastLoader(store, memory_format=torch.preserve_format)
    with pytest.raises(UsageError, match="cannot read this dataset"):
        FastLoader(Own(torch.arange(3)), engine="native")
    with pytest.raises(UsageError, match="already has another transform: leave it out"):
        FastLoader(PackedDataset(store, EVAL), transform=TRAIN)
    with pytest.raises(UsageError, match=r"applies its own: ImageFolder\(..., transform=...\)"):
        FastLoader(ImageFolder(photos, EVAL), transform=EVAL)
    with pytest.raises(UsageError, match=rf"or pass PackedDataset\('{photos}'\), which takes"):
        FastLoader(Subset(ImageFolder(photos), [1]), transform=EVAL)
    FastLoader(Subset(PackedDataset(photos), [1]), transform=EVAL)  # as it says
    with pytest.raises(UsageError, match="Own is none of them: do it in its own code"):
        FastLoader(Own(torch.arange(3)), transform=EVAL)
    with pytest.raises(UsageError, match="already has another transform"):
        FastLoader(Subset(PackedDataset(store, EVAL), [1]), transform=TRAIN)
    with pytest.raises(UsageError, match="uint8"):
        FastLoader(store, transform=EVAL, dtype=torch.uint8)
    for arguments in ({"dtype": torch.float16}, {"memory_format": torch.channels_last}):
        with pytest.raises(UsageError, match="need one of fastload's engines"):
            FastLoader(Own(torch.arange(3)), **arguments)
    with pytest.raises(FileNotFoundError):
        FastLoader("nothing/here.lmdb")
    with pytest.raises(ValueError, match="mutually exclusive"):
        FastLoader(store, shuffle=True, sampler=[1])


# --- trainers rebuild loaders -------------------------------------------------------------------


def test_a_rebuilt_loader_keeps_everything(store):
    loader = FastLoader(store, batch_size=4, transform=EVAL, seed=1)
    names = [n for n in inspect.signature(FastLoader.__init__).parameters if n != "self"]
    # as Lightning rebuilds: from public attributes; the sampler decides, so no shuffle
    kwargs = {n: getattr(loader, n) for n in names if n not in ("shuffle", "batch_sampler")}
    assert_same(list(type(loader)(**kwargs)), list(loader))


def test_a_plain_dataloader_around_the_dataset_gives_the_same_batches(store):
    loader = FastLoader(store, batch_size=4, transform=EVAL)
    rebuilt = DataLoader(loader.dataset, batch_size=4, collate_fn=loader.collate_fn)
    assert_same(list(rebuilt), list(loader))


def test_images_that_are_one_tensor_already_are_not_copied_into_a_batch(store):
    samples = FastLoader(store, transform=EVAL).dataset.__getitems__([0, 1])
    assert collate(samples)[0].data_ptr() == samples[0][0].data_ptr()
    assert_same([default_collate(samples)], [collate(samples)])


def test_a_loader_can_be_pickled_and_copied(store):
    loader = FastLoader(store, batch_size=4, transform=EVAL)
    expected = list(loader)
    assert_same(list(pickle.loads(pickle.dumps(loader))), expected)
    assert_same(list(copy.deepcopy(loader)), expected)


@pytest.mark.parametrize(
    "order",
    [
        {"shuffle": True, "seed": 3},
        {"shuffle": False, "seed": 3},
        {"shuffle": True, "seed": 3, "batch_by": "aspect"},
        {"shuffle": True, "seed": 3, "num_workers": "auto"},
    ],
    ids=str,
)
def test_a_copy_counts_its_own_epochs(store, order):
    def make():
        return FastLoader(store, batch_size=4, transform=EVAL, **order)

    other = make()
    expected = [list(other) for _ in range(4)]
    loader = make()
    assert_same(list(loader), expected[0])
    clone = copy.copy(loader)
    running = iter(loader)
    begun = [next(running)]
    saved = copy.deepcopy(loader.state_dict())
    assert_same(list(clone), expected[1])
    assert str(loader.state_dict()) == str(saved)
    clone.set_epoch(0)
    assert_same(list(clone), expected[0])
    clone.set_epoch(3)
    assert_same(begun + list(running), expected[1])
    assert_same(list(loader), expected[2])
    assert_same(list(clone), expected[3])
    assert clone.sampler is not loader.sampler or clone.batch_sampler is not loader.batch_sampler


def test_a_copy_shares_the_samplers_of_the_user_as_torch_does(photos):
    folder = ImageFolder(photos, EVAL)
    for kind in (DataLoader, FastLoader):
        loader = kind(folder, batch_size=4, sampler=RandomSampler(folder))
        clone = copy.copy(loader)
        assert clone.sampler is loader.sampler and clone.dataset is loader.dataset
        assert len(list(clone)) == len(list(loader)) == 6


def test_a_loader_is_copied_in_the_middle_of_an_epoch_without_what_runs(photos):
    loader = FastLoader(ImageFolder(photos, EVAL), batch_size=4, persistent_workers=True)
    expected = list(loader)
    iterator = iter(loader)
    next(iterator)
    for clone in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader), copy.copy(loader)):
        assert "engine: native" in clone.explain()
        assert clone.stats()["engine"] == "native"
        assert_same(list(clone), expected)
    assert len(list(iterator)) == len(loader) - 1


def test_pin_memory_without_an_accelerator_warns_as_torch_does(photos, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if hasattr(torch, "accelerator"):  # torch 2.6
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    folder = ImageFolder(photos, EVAL)
    said = []
    for kind in (DataLoader, FastLoader):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            images, _labels = next(iter(kind(folder, batch_size=4, pin_memory=True)))
        assert not images.is_pinned()
        said.append([str(warning.message) for warning in heard])
    assert any("no accelerator is found" in message for message in said[1])
    assert __file__ in [warning.filename for warning in heard]  # the line that iterates
    assert said[0] == said[1] or not hasattr(torch, "accelerator")  # torch 2.4 says nothing


@pytest.mark.gpu
def test_pin_memory_pins_images_labels_and_what_collate_fn_makes(photos):
    folder = ImageFolder(photos, EVAL)
    for collate_fn in (None, lambda samples: default_collate(samples)):
        loader = FastLoader(folder, batch_size=4, pin_memory=True, collate_fn=collate_fn)
        assert "engine: native" in loader.explain()
        for images, labels in loader:
            assert images.is_pinned()
            assert labels.is_pinned()


def test_stats_count_what_was_handed_over(store):
    loader = FastLoader(store, batch_size=4, transform=EVAL)
    n = len(PackedDataset(store))
    list(loader)
    stats = loader.stats()
    assert stats["images"] == n
    assert stats["batches"] == len(loader)
    assert 0 <= stats["wait_share"] <= 1
    assert stats["stages_s"]["decode"] > 0
    assert stats["images_per_s"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": "1"}, "seed: expected an integer or None, got '1'"),
        ({"seed": 1.5}, "seed: expected an integer"),
        ({"transform": 5}, "transform: expected a callable that takes an image.* got 5"),
        ({"transform": [EVAL, "x"]}, "transform: expected a callable.* got 'x'"),
        ({"transform": []}, "transform: expected a transform for each view"),
        ({"transform": v1.RandomCrop}, r"transform: .* such as T\.RandomCrop\(\.\.\.\), got"),
        ({"transform": [EVAL, v2.ToImage]}, r"transform: .* such as T\.ToImage\(\.\.\.\), got"),
        ({"target_transform": {}}, "target_transform: expected a callable that takes a label"),
        ({"num_workers": "4"}, "num_workers: expected an integer of at least 0 or 'auto', got '4'"),
        ({"num_workers": 1.5}, "num_workers: expected an integer of at least 0 or 'auto'"),
        (
            {"dtype": "float31"},
            "dtype: expected a torch dtype or its name, such as 'float16', got 'float31'",
        ),
        ({"dtype": "float64"}, "dtype: expected one of .*float16.*got torch.float64"),
    ],
)
def test_arguments_of_a_wrong_type_are_refused_at_once(store, arguments, message):
    with pytest.raises(UsageError, match=message):
        FastLoader(store, **arguments)
    own = {name: arguments[name] for name in arguments if name not in ("num_workers", "dtype")}
    if own:
        with pytest.raises(UsageError, match=message):
            PackedDataset(store, **own)


def test_a_dtype_may_be_given_by_its_name(store):
    for name in ("float16", "torch.float16"):
        loader = FastLoader(store, transform=EVAL, dtype=name)
        assert loader.dtype is torch.float16
        assert next(iter(loader))[0].dtype is torch.float16


def test_every_argument_reaches_the_config(store, monkeypatch):
    class Given(Exception):
        """Raised with what LoaderConfig was given."""

    def config(**given):
        raise Given(given)

    monkeypatch.setattr(_loader, "LoaderConfig", config)
    with pytest.raises(Given) as raised:
        FastLoader(store)
    assert set(ARGUMENTS) <= raised.value.args[0].keys()


def _fails(worker_id):
    raise ValueError(f"worker {worker_id} cannot begin")


def test_a_worker_init_fn_of_a_folder_is_called_in_workers(photos, tmp_path):
    folder = ImageFolder(photos, TRAIN)
    loader = FastLoader(folder, 5, num_workers=1, worker_init_fn=_fails)
    assert "worker_init_fn" in loader.explain()
    for count in (1, np.int64(1)):
        with pytest.raises(ValueError, match="worker 0 cannot begin"):
            list(FastLoader(folder, 5, num_workers=count, worker_init_fn=_fails))
    for arguments in (
        {},
        {"num_workers": 0},
        {"num_workers": "auto"},
        {"num_workers": 1, "seed": 3},
    ):
        loader = FastLoader(folder, 5, worker_init_fn=_fails, **arguments)
        list(loader)
        assert loader.stats()["engine"] == "native"
    pack(photos, tmp_path / "a.lmdb")
    store = PackedDataset(tmp_path / "a.lmdb", transform=TRAIN)
    for packed in (store, Subset(store, range(5))):
        loader = FastLoader(packed, 5, num_workers=1, worker_init_fn=_fails)
        list(loader)
        assert loader.stats()["engine"] == "native"


def _seeds(worker_id):
    torch.manual_seed(5)


def test_a_folder_with_a_worker_init_fn_draws_what_dataloader_draws(photos):
    drawn = []
    for kind in (DataLoader, FastLoader):
        torch.manual_seed(0)
        loader = kind(
            ImageFolder(photos, TRAIN), 5, shuffle=True, num_workers=2, worker_init_fn=_seeds
        )
        drawn.append([list(loader) for _ in range(2)])
    assert_same(drawn[1], drawn[0])
