"""Transforms that Python runs over the images of a store: the samples that torchvision gives."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import torchvision_oracle
from combinations import combinations
from fastload import FastLoader, PackedDataset, UsageError
from fastload._base.randomness import sample_seeds, seed_all
from fastload.errors import ChecksumError, DecodeError
from fastload.storage import open_store
from sides import assert_same, outcome, side_by_side

BEGIN = [v1.RandomResizedCrop(24), v1.RandomHorizontalFlip()]


def negative(image: Image.Image) -> Image.Image:
    assert isinstance(image, Image.Image) and image.mode == "RGB"
    return ImageOps.invert(image)


def noisy(image: Any) -> Any:
    """Draws from all three generators."""
    shift = random.random() + np.random.random()
    return image + torch.rand(1) + shift


class MyFlip(v1.RandomHorizontalFlip):
    """Does what it likes."""

    def forward(self, image: Any) -> Any:
        return image.rotate(180)


class TwoViews:
    """Calls the chain twice, as for contrastive learning."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, image: Any) -> list[Any]:
        return [self.transform(image), self.transform(image)]


class Crops:
    """A large view and several small ones, of other sizes."""

    def __call__(self, image: Any) -> list[Any]:
        large = v1.Compose([*BEGIN, v1.ToTensor()])
        small = v1.Compose([v1.RandomResizedCrop(10), v1.ColorJitter(0.4), v1.ToTensor()])
        return [large(image), *(small(image) for _ in range(3))]


def as_arrays(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(image)[:, ::-1].copy()).permute(2, 0, 1)


CHAINS = {
    "a PIL image": [*BEGIN, negative, v1.PILToTensor()],
    "a tensor": [*BEGIN, v1.ToTensor(), noisy],
    "an Image": [v2.Resize((20, 30)), v2.ToImage(), lambda image: image.float() / 2],
    "a subclass": [*BEGIN, MyFlip(), v1.ToTensor()],
    "colours": [*BEGIN, v1.ColorJitter(0.4, 0.4), negative, v1.PILToTensor(), noisy],
    "a Lambda": [*BEGIN, v1.Lambda(negative), v1.ToTensor()],
    "arrays": [*BEGIN, as_arrays],
    "two views": [TwoViews(v1.Compose([*BEGIN, v1.ToTensor()]))],
    "many views": [Crops()],
    "several sizes": [v1.RandomHorizontalFlip(), negative, v1.Resize((9, 9)), v1.ToTensor()],
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_folder_gives_what_torchs_loader_gives(photos: Path, name: str) -> None:
    dataset = ImageFolder(photos, v1.Compose(CHAINS[name]))
    side_by_side(dataset, batch_size=5, shuffle=True)


@pytest.mark.parametrize(
    ("name", "workers"),
    combinations(["a PIL image", "two views", "many views", "arrays"], [0, 2]),
)
def test_a_store_gives_what_torchs_loader_gives_of_its_folder(
    store: Path, photos: Path, name: str, workers: int
) -> None:
    transform = v1.Compose(CHAINS[name])
    arguments: Any = {"batch_size": 5, "shuffle": True, "num_workers": workers}
    theirs = outcome(DataLoader, ImageFolder(photos, transform), 2, **arguments)
    packed = PackedDataset(store, transform)
    assert_same(outcome(FastLoader, packed, 2, **arguments), theirs)
    assert_same(outcome(DataLoader, packed, 2, **arguments), theirs)
    half = Subset(packed, range(1, 24, 2))
    assert_same(
        outcome(FastLoader, half, 1, **arguments), outcome(DataLoader, half, 1, **arguments)
    )


def packed_as(tmp_path: Path, photos: Path, encode: str, suffix: str = ".lmdb") -> Path:
    from fastload import pack

    path = tmp_path / f"photos{suffix}"
    pack(photos, path, encode=encode)
    return path


@pytest.mark.parametrize("encode", ["raw", "dct"])
@pytest.mark.parametrize("workers", [0, 1])
def test_every_kind_of_record_stays_deferred(
    tmp_path: Path, photos: Path, encode: str, workers: int
) -> None:
    transform = v1.Compose([v1.Resize((20, 24)), negative, v1.PILToTensor()])
    dataset = PackedDataset(packed_as(tmp_path, photos, encode), transform)
    loader = FastLoader(dataset, batch_size=6, num_workers=workers)
    images = torch.cat([images for images, _ in loader])
    expected = [transform(plain(dataset, i)) for i in range(24)]
    assert torch.equal(images, torch.stack(expected))
    stats = loader.stats()
    assert (stats["images_opened"], stats["images_deferred"]) == (24, 24)


def plain(dataset: PackedDataset, index: int) -> Image.Image:
    """The image of a record, through the engine."""
    whole = PackedDataset(dataset.store)[index]
    return Image.fromarray(whole[0].permute(1, 2, 0).numpy())


@pytest.mark.parametrize(
    ("name", "workers"), combinations(["a tensor", "colours", "two views"], [0, 2])
)
def test_with_a_seed_a_sample_depends_on_seed_epoch_and_index_only(
    photos: Path, store: Path, name: str, workers: int
) -> None:
    transform = v1.Compose(CHAINS[name])
    folder = ImageFolder(photos, transform)

    def expected(index: int, epoch: int) -> Any:
        seed_all(sample_seeds(3, epoch, [index], None)[0])
        return transform(folder.loader(folder.samples[index][0]))

    for dataset in (folder, PackedDataset(store, transform)):
        for size in (5, 8):
            loader = FastLoader(dataset, size, shuffle=True, seed=3, num_workers=workers)
            loader.set_epoch(1)
            order = list(loader.sampler)
            loader.set_epoch(1)
            for number, (images, labels) in enumerate(loader):
                indices = order[size * number : size * (number + 1)]
                assert labels.tolist() == [folder.targets[i] for i in indices]
                for at, index in enumerate(indices):
                    views = images if name == "two views" else [images]
                    whole = expected(index, 1)
                    for view, other in zip(views, whole if name == "two views" else [whole]):
                        assert torch.equal(view[at], other)


def test_a_dataset_with_a_seed_keeps_it_in_torchs_loader(store: Path) -> None:
    dataset = PackedDataset(store, v1.Compose(CHAINS["a tensor"]), seed=7)
    dataset.set_epoch(2)
    torch.manual_seed(1)
    before = torch.default_generator.get_state()
    whole = next(iter(DataLoader(dataset, batch_size=24)))[0]
    assert torch.equal(torch.stack([dataset[i][0] for i in range(24)]), whole)
    torch.manual_seed(1)
    dataset[0]
    assert torch.equal(torch.default_generator.get_state(), before)
    dataset.set_epoch(3)
    assert not torch.equal(dataset[0][0], whole[0])


def test_switched_off_a_store_is_decoded_by_pillow(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def look(image: Any) -> torch.Tensor:
        seen.append(type(image) is Image.Image)
        return torch.zeros(1)

    list(FastLoader(store, batch_size=24, transform=look))
    list(DataLoader(PackedDataset(store, look), batch_size=24))
    assert not any(seen)
    seen.clear()
    list(FastLoader(store, batch_size=24, transform=look, engine="torch"))
    list(FastLoader(store, batch_size=24, transform=look, engine="torch"))
    monkeypatch.setenv("FASTLOAD_DEFER", "0")
    list(FastLoader(store, batch_size=24, transform=look))
    PackedDataset(store, look)[0]
    assert len(seen) == 73
    assert all(seen)


def test_explain_says_why_and_what_became_of_the_images(store: Path) -> None:
    loader = FastLoader(
        store, batch_size=8, transform=v1.Compose([*BEGIN, negative, v1.ToTensor()])
    )
    assert "because: negative is not a transform fastload knows" in loader.explain()
    list(loader)
    assert "24 tensors stayed deferred" in loader.explain()
    with pytest.raises(UsageError, match="engine='native' cannot read this dataset: negative"):
        FastLoader(store, transform=v1.Compose([*BEGIN, negative]), engine="native")


def test_samples_may_be_pil_images_for_a_collate_fn(store: Path) -> None:
    loader = FastLoader(
        store, batch_size=4, transform=v1.RandomCrop(24), collate_fn=lambda samples: samples
    )
    (image, label), *_ = next(iter(loader))
    assert type(image) is Image.Image and image.size == (24, 24) and type(label) is int
    image, _ = PackedDataset(store, v1.RandomCrop(24))[0]
    assert type(image) is Image.Image and image.size == (24, 24)


def test_what_pillow_remembers_of_a_file_is_there(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    picture = torchvision_oracle.picture(40, 30)
    picture.save(tmp_path / "a" / "0.jpg", exif=exif, dpi=(72, 72))
    picture.save(tmp_path / "a" / "1.png", dpi=(90, 90))
    picture.quantize(16).save(tmp_path / "a" / "2.png", transparency=3)
    chain = v1.Compose(
        [v1.Resize((20, 30)), ImageOps.exif_transpose, v1.Resize((16, 16)), v1.ToTensor()]
    )
    folder = ImageFolder(tmp_path, chain)
    packed = PackedDataset(packed_as(tmp_path, tmp_path, "keep"), chain)
    theirs = next(iter(DataLoader(folder, batch_size=3)))
    for dataset in (folder, packed):
        assert_same(next(iter(FastLoader(dataset, batch_size=3))), theirs)
    seen: list[Any] = []
    packed.transform = lambda image: seen.append(dict(v1.CenterCrop(9)(image).info))
    list(FastLoader(packed, batch_size=3, collate_fn=len))
    assert seen == [dict(folder.loader(path).info) for path, _ in folder.samples]


def test_an_index_that_is_no_int_is_refused_as_by_a_list(store: Path) -> None:
    chain = v1.Compose([*BEGIN, negative, v1.ToTensor()])
    for kind in (FastLoader, DataLoader):
        with pytest.raises(TypeError):
            list(kind(PackedDataset(store, chain), sampler=[0.0, 1.7]))


def test_concatenations_of_different_chains_are_read(store: Path) -> None:
    one = PackedDataset(store, v1.Compose([v1.Resize((21, 20)), negative, v1.ToTensor()]))
    other = PackedDataset(store, v1.Compose([v1.Resize((21, 20)), MyFlip(), v1.ToTensor()]))
    both = ConcatDataset([Subset(one, [4, 2]), other])
    images, _ = next(iter(FastLoader(both, batch_size=4)))
    assert torch.equal(images, torch.stack([one[4][0], one[2][0], other[0][0], other[1][0]]))


def test_views_that_an_engine_cannot_make_are_made_in_python(store: Path) -> None:
    known = v1.Compose([v1.Resize((12, 10)), v1.ToTensor()])
    own = v1.Compose([v1.Resize((8, 9)), negative, v1.ToTensor()])
    (first, second), labels = next(iter(FastLoader(store, batch_size=5, transform=[known, own])))
    packed = PackedDataset(store)
    assert len(labels) == 5
    for i in range(5):
        assert torch.equal(first[i], known(plain(packed, i)))
        assert torch.equal(second[i], own(plain(packed, i)))


def test_random_parts_differ_between_samples_and_epochs_without_a_seed(store: Path) -> None:
    chain = v1.Compose([v1.RandomResizedCrop(8), negative, v1.ToTensor()])
    loader = FastLoader(Subset(PackedDataset(store, chain), [0] * 6), batch_size=6)
    (first, _), (second, _) = next(iter(loader)), next(iter(loader))
    assert len(torch.unique(torch.cat([first, second]), dim=0)) == 12


def test_a_sample_that_python_cannot_end_is_skipped(store: Path) -> None:
    def picky(image: Image.Image) -> Image.Image:
        if sum(image.getpixel((0, 0))) % 3 == 0:
            raise ValueError("not this one")
        return image

    chain = v1.Compose([v1.Resize((9, 9)), picky, v1.PILToTensor()])
    loader = FastLoader(store, batch_size=8, transform=chain, on_error="skip", max_errors=24)
    whole = PackedDataset(store, v1.Compose([v1.Resize((9, 9)), v1.PILToTensor()]))
    kept = [image for image, _ in whole if int(image[:, 0, 0].sum()) % 3]
    assert 0 < len(kept) < 24
    assert torch.equal(torch.cat([images for images, _ in loader]), torch.stack(kept))
    assert len(loader.stats()["errors"]) == 24 - len(kept)


def with_a_damaged_record(tmp_path: Path, photos: Path) -> Path:
    """A store whose record 7 has other bytes in its middle."""
    path = packed_as(tmp_path, photos, "keep", ".tar")
    with open_store(path) as store:
        spans = store.spans(np.array([7]))
        name, offset = store.files[0], int(spans.offset[0])
        nbytes = int(spans.nbytes[0])
    with open(name, "r+b") as file:
        file.seek(offset + nbytes // 2)
        file.write(b"\xff\xd9" * 40)
    return path


def unused(image: Image.Image) -> torch.Tensor:
    """A transform that gives nothing of the image."""
    return torch.zeros(3)


@pytest.mark.parametrize("kind", [DataLoader, FastLoader])
def test_a_damaged_record_is_found_if_the_transform_does_not_use_it(
    tmp_path: Path, photos: Path, kind: type
) -> None:
    path = with_a_damaged_record(tmp_path, photos)
    with pytest.raises(ChecksumError, match="record 7"):
        list(kind(PackedDataset(path, unused), 6))


@pytest.mark.usefixtures("short_farewell")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_record_is_named_and_may_be_skipped(
    tmp_path: Path, photos: Path, workers: int
) -> None:
    path = with_a_damaged_record(tmp_path, photos)
    transform = TwoViews(v1.Compose([*BEGIN, v1.ToTensor()]))
    with pytest.raises(ChecksumError, match="record 7"):
        list(FastLoader(path, 6, transform=transform, num_workers=workers))
    with pytest.raises(ChecksumError):
        PackedDataset(path, transform)[7]
    loader = FastLoader(
        path, 6, transform=transform, num_workers=workers, on_error="skip", max_errors=2
    )
    assert sum(len(labels) for _, labels in loader) == 23
    assert [entry["index"] for entry in loader.stats()["errors"]] == [7]
    unchecked = FastLoader(
        PackedDataset(path, check_crc="never"), 6, transform=transform, num_workers=workers
    )
    try:
        assert sum(len(labels) for _, labels in unchecked) == 24
    except DecodeError as error:
        assert "record 7" in str(error)


FORKED = """
import sys
import torch
from torchvision import transforms as v1
from fastload import FastLoader

torch.multiprocessing.set_start_method("fork")
modules = set()

def note(worker):
    modules.update(sys.modules)

def last(image):
    later = [name for name in set(sys.modules) - modules if name.startswith(("fastload", "numpy"))]
    assert modules and not later, later
    return torch.zeros(1)

chain = v1.Compose([v1.RandomResizedCrop(8), last])
loader = FastLoader(sys.argv[1], transform=chain, batch_size=4, num_workers=1, worker_init_fn=note)
print(len(list(loader)))
"""


def test_worker_processes_import_nothing_that_their_parent_could(store: Path) -> None:
    command = [sys.executable, "-c", FORKED, str(store)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 1
