"""batch_by=: batches of one size from images of many, as a DataLoader makes of the same lists."""

from __future__ import annotations

import io
import itertools
import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fastload import (
    Buckets,
    DataError,
    FastLoader,
    Mix,
    PackedDataset,
    UsageError,
    open_writer,
    pack,
)
from fastload.storage import Record
from fastload.storage.remote.store import RemoteStore
from object_server import ObjectServer
from sides import assert_same
from torchrun import torchrun

BUCKETS = Buckets([(24, 24), (16, 32), (32, 16), (20, 28)])
CROP = v1.Compose([BUCKETS.crop(), v1.ToTensor()])
SMALL = v1.Compose([v1.Resize((8, 8)), v1.ToTensor()])
SIZES = [(40, 40), (41, 40), (64, 30), (30, 64), (50, 37), (33, 61), (90, 31), (25, 40), (16, 16)]
COUNT = 45


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images of nine sizes (width, height)."""
    folder = tmp_path_factory.mktemp("buckets") / "imgs"
    pixels = np.random.default_rng(1)
    for name in range(COUNT):
        path = folder / f"class{name % 3}" / f"{name:02}.{'png' if name % 7 == 0 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(pixels.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        coarse.resize(SIZES[name % len(SIZES)]).save(path)
    return folder


@pytest.fixture(scope="module")
def packed(folder):
    pack(folder, folder.parent / "imgs.lmdb")
    return folder.parent / "imgs.lmdb"


class Own(Dataset):
    """A user's Dataset, which says how large its images are."""

    def __init__(self, folder):
        self.files = ImageFolder(folder).samples

    def __len__(self):
        return len(self.files)

    def get_height_and_width(self, index):
        with Image.open(self.files[index][0]) as image:
            return image.height, image.width

    def __getitem__(self, index):
        path, label = self.files[index]
        with Image.open(path) as image:
            return CROP(image.convert("RGB")), label


def of_kind(kind, folder, packed, **arguments):
    arguments = {"batch_size": 4, "shuffle": True, "seed": 3, "batch_by": BUCKETS, **arguments}
    if kind == "packed":
        return FastLoader(packed, transform=CROP, **arguments)
    return FastLoader(ImageFolder(folder, CROP) if kind == "folder" else Own(folder), **arguments)


def lists(loader):
    """The index lists of the next epoch."""
    return list(loader.batch_sampler)


def epoch(loader):
    return [batch.tolist() for batch in loader]


# --- the transform --------------------------------------------------------------------------------


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", v1.InterpolationMode.NEAREST])
@pytest.mark.native
def test_the_crop_gives_the_pixels_that_it_gives_on_pil_images(folder, interpolation):
    chain = v1.Compose([BUCKETS.crop(interpolation=interpolation), v1.ToTensor()])
    dataset = ImageFolder(folder, chain)
    loader = FastLoader(dataset, 1, batch_by="aspect")
    order = [index for (index,) in lists(loader)]
    for index, (images, _) in zip(order, loader, strict=True):
        assert torch.equal(images[0], dataset[index][0])
        assert tuple(images.shape[2:]) in BUCKETS.sizes


def test_a_random_crop_is_some_crop_of_the_resized_image_and_not_always_the_same(tmp_path):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 90, 3), dtype=np.uint8))
    (tmp_path / "imgs" / "a").mkdir(parents=True)
    image.save(tmp_path / "imgs" / "a" / "0.png")
    chain = v1.Compose([BUCKETS.crop(random=True), v1.PILToTensor()])
    loader = FastLoader(ImageFolder(tmp_path / "imgs", chain), 1, seed=1, batch_by="aspect")
    resized = v1.functional.pil_to_tensor(image.resize((48, 16), Image.Resampling.BILINEAR))
    crops = {resized[:, :, x : x + 32].numpy().tobytes(): x for x in range(17)}
    natively = {crops[images.numpy().tobytes()] for _ in range(150) for images, _ in loader}
    torch.manual_seed(0)
    in_python = {crops[chain(image).numpy().tobytes()] for _ in range(150)}
    assert natively == in_python == set(range(17))


@given(
    width=st.integers(1, 5000),
    height=st.integers(1, 5000),
    sizes=st.lists(st.tuples(st.integers(1, 900), st.integers(1, 900)), min_size=1, max_size=9,
                   unique_by=lambda size: size[0] / size[1]),
)  # fmt: skip
def test_an_image_belongs_to_the_bucket_of_the_nearest_aspect_ratio(width, height, sizes):
    buckets = Buckets(sizes)
    away = {size: abs(np.log(width / height * size[0] / size[1])) for size in sizes}
    assert away[buckets.nearest(height, width)] <= min(away.values()) + 1e-9


@given(
    pixels=st.integers(64 * 64, 2048 * 2048),
    step=st.sampled_from([8, 32, 64]),
    ratio=st.floats(1, 4),
)
def test_buckets_around_a_number_of_pixels_have_at_most_as_many(pixels, step, ratio):
    sizes = Buckets.around(pixels, step=step, ratio=ratio).sizes
    for h, w in sizes:
        assert h * w <= pixels
        assert h % step == w % step == 0
        assert (w, h) in sizes
    assert any(h == w for h, w in sizes) or pixels < 4 * step * step


def test_the_buckets_of_the_docstring():
    expected = ((704, 320), (640, 384), (576, 448), (512, 512), (448, 576), (384, 640), (320, 704))
    assert Buckets.around(512 * 512).sizes == expected


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([], "at least one size"),
        ([(0, 3)], "pairs"),
        ([(2, 3, 4)], "pairs"),
        ([(2.5, 3)], "pairs"),
        ([(10, 20), (20, 40)], "different aspect ratios"),
    ],
)
def test_sizes_that_cannot_be_buckets_are_refused(sizes, message):
    with pytest.raises(UsageError, match=message):
        Buckets(sizes)


def test_an_unknown_interpolation_is_refused():
    with pytest.raises(UsageError, match="bilinear"):
        BUCKETS.crop(interpolation="linear")


def test_several_things_without_an_image_are_refused():
    with pytest.raises(UsageError, match="expected an image among the arguments"):
        BUCKETS.crop()((torch.zeros(3, 40, 40), torch.zeros(1, 40, 40)))


JOINT = {"mask": "mask", "boxes": "xyxy", "points": "points"}
FOLLOWING = v2.Compose([BUCKETS.crop(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


def annotated(index):
    """The image of a record, and what follows it."""
    width, height = SIZES[index % len(SIZES)]
    rng = np.random.default_rng(index)
    corners = np.sort(rng.uniform(0, 1, (index % 4, 2, 2)), axis=1) * (width, height)
    return {
        "image": Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)),
        "mask": rng.integers(0, 256, (height, width), dtype=np.uint8),
        "boxes": corners.reshape(-1, 4).tolist(),
        "points": (rng.uniform(0, 1, (3, 2)) * (width, height)).tolist(),
    }


def encoded(image):
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """A store of images with masks, boxes and points."""
    path = tmp_path_factory.mktemp("masked") / "a.lmdb"
    records = []
    for index in range(COUNT):
        fields = annotated(index)
        image, fields["mask"] = fields.pop("image"), encoded(Image.fromarray(fields["mask"]))
        size = {"width": image.width, "height": image.height}
        records.append(
            Record(data=encoded(image), label=index, key=f"{index}.png", fields=fields, **size)
        )
    with open_writer(path, classes=[]) as writer:
        writer.append(records)
    return path


def by_torchvision(index):
    """Record ``index`` as torchvision's own transforms make it."""
    given = annotated(index)
    width, height = given["image"].size
    canvas = height, width
    boxes = torch.tensor(given["boxes"], dtype=torch.float32).reshape(-1, 4)
    given["mask"] = tv_tensors.Mask(torch.from_numpy(given["mask"]))
    given["boxes"] = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=canvas)
    given["points"] = tv_tensors.KeyPoints(torch.tensor(given["points"]), canvas_size=canvas)
    h, w = BUCKETS.nearest(height, width)
    scale = max(Fraction(h, height), Fraction(w, width))
    steps = [v2.Resize([int(height * scale), int(width * scale)]), v2.CenterCrop((h, w))]
    return given, v2.Compose([*steps, *FOLLOWING.transforms[1:]])(dict(given))


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_masks_boxes_and_points_follow_as_in_torchvision(masked, engine):
    loader = FastLoader(
        PackedDataset(masked, joint=JOINT), 4, transform=FOLLOWING, batch_by=BUCKETS, engine=engine
    )
    order = [index for batch in lists(loader) for index in batch]
    at = 0
    for batch in loader:
        assert tuple(batch["mask"].shape[1:]) == tuple(batch["image"].shape[2:])
        for number, label in enumerate(batch["label"].tolist()):
            assert label == order[at]
            given, expected = by_torchvision(label)
            in_python = FOLLOWING(given)
            for name in ("image", "mask"):
                assert torch.equal(batch[name][number], expected[name].as_subclass(torch.Tensor))
                assert torch.equal(in_python[name], expected[name])
            for name in ("boxes", "points"):
                wanted = expected[name].as_subclass(torch.Tensor)
                torch.testing.assert_close(batch[name][number], wanted, rtol=1e-5, atol=1e-4)
                assert torch.equal(in_python[name], expected[name])
            at += 1
    assert at == COUNT
    assert loader.stats()["engine"] == engine


@pytest.mark.parametrize("natively", [True, False])
def test_a_random_crop_takes_the_mask_from_where_it_takes_the_image(tmp_path, natively):
    # 48 x 16 pixels cover the bucket of 32 x 16 without a resize, so the mask shows the position.
    pixels = np.random.default_rng(0).integers(0, 256, (16, 48, 3), dtype=np.uint8)
    image, mask = Image.fromarray(pixels), Image.fromarray(pixels[:, :, 0])
    tf = v2.Compose([BUCKETS.crop(random=True), v2.ToImage()])
    if natively:
        with open_writer(tmp_path / "a.lmdb", classes=[]) as writer:
            fields, size = {"mask": encoded(mask)}, {"width": 48, "height": 16}
            record = Record(data=encoded(image), label=0, key="0", fields=fields, **size)
            writer.append([record])
        joint = {"mask": "mask"}
        loader = FastLoader(
            PackedDataset(tmp_path / "a.lmdb", joint=joint),
            1,
            transform=tf,
            seed=1,
            batch_by=BUCKETS,
        )
        made = [(b["image"][0], b["mask"][0]) for _ in range(20) for b in loader]
        assert loader.stats()["engine"] == "native"
    else:
        torch.manual_seed(0)
        given = image, tv_tensors.Mask(torch.from_numpy(pixels[:, :, 0].copy()))
        made = [tf(given) for _ in range(10)] + [tf(*given) for _ in range(10)]
    for one, other in made:
        assert tuple(other.shape) == (16, 32)
        assert torch.equal(one[0].as_subclass(torch.Tensor), other.as_subclass(torch.Tensor))
    assert len({one.numpy().tobytes() for one, _ in made}) > 3


# --- the batches ----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["packed", "folder", "own"])
def test_batches_are_those_of_a_dataloader_with_the_same_lists(kind, workers, folder, packed):
    loader = of_kind(kind, folder, packed, num_workers=workers)
    reference = Own(folder)
    for _ in range(2):
        made = list(loader)
        assert_same(made, list(DataLoader(reference, batch_sampler=lists(loader))))
        assert len(loader) == len(made)
        for images, _ in made:
            assert tuple(images.shape[2:]) in BUCKETS.sizes
    assert (loader.stats()["engine"] == "native") == (kind != "own")
    if kind == "own" and not workers:
        assert loader.stats()["images_deferred"] == COUNT


def test_dataloader_decodes_the_batches_of_a_packed_dataset_whole(packed, monkeypatch):
    from fastload._engine.base import BatchEngine

    submitted, real = [], BatchEngine.submit
    monkeypatch.setattr(
        BatchEngine,
        "submit",
        lambda self, records, **named: (
            submitted.append(len(records)) or real(self, records, **named)
        ),
    )
    loader = FastLoader(packed, 4, transform=CROP, batch_by="aspect")
    made = list(DataLoader(PackedDataset(packed, CROP), batch_sampler=lists(loader)))
    assert submitted == [len(labels) for _, labels in made]
    monkeypatch.undo()
    assert_same(list(loader), made)


def test_aspect_means_the_size_that_comes_out_of_the_transform(packed):
    chain = v1.Compose([v1.Resize(20), v1.PILToTensor()])
    loader = FastLoader(packed, 8, transform=chain, batch_by="aspect")
    assert sum(len(images) for images, _ in loader) == COUNT
    found = {tuple(images.shape[2:]) for images, _ in loader}
    expected = {(20 * h // min(w, h), 20 * w // min(w, h)) for w, h in SIZES}
    assert found == expected
    views = FastLoader(packed, 8, transform=[chain, CROP], batch_by="aspect")
    assert sum(len(labels) for _, labels in views) == COUNT


def test_the_order_is_a_function_of_seed_and_epoch_and_shuffled_within_and_between_groups(packed):
    def orders(seed):
        loader = FastLoader(packed, 4, shuffle=True, seed=seed, transform=CROP, batch_by="aspect")
        made = []
        for number in range(2):
            loader.set_epoch(number)
            made.append(lists(loader))
        return made

    first, second = orders(3)
    assert [first, second] == orders(3)
    assert orders(4)[0] != first != second
    number = FastLoader(packed, 4, transform=CROP, batch_by="aspect").batch_sampler.groups().number
    groups = [int(number[batch[0]]) for batch in first]
    assert groups != sorted(groups)
    assert [sorted(batch) for batch in first] != sorted(sorted(batch) for batch in second)
    straight = lists(FastLoader(packed, 4, transform=CROP, batch_by="aspect"))
    assert straight == sorted(straight)
    assert all(batch == sorted(batch) for batch in straight)


@given(
    keys=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    size=st.integers(1, 9),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    world=st.integers(1, 5),
)
def test_every_sample_comes_once_and_batches_are_full_but_the_last_of_a_group(
    keys, size, shuffle, drop_last, world
):
    def loader(**arguments):
        return FastLoader(
            range(len(keys)), size, shuffle=shuffle, drop_last=drop_last, seed=1,
            batch_by=lambda index: keys[index], **arguments,
        )  # fmt: skip

    whole = epoch(loader())
    assert len(loader()) == len(whole)
    for batch in whole:
        assert len({keys[index] for index in batch}) == 1
    seen = sorted(itertools.chain(*whole))
    full = {key: keys.count(key) // size for key in set(keys)}
    if drop_last:
        assert all(len(batch) == size for batch in whole)
        assert len(whole) == sum(full.values())
        assert len(seen) == len(set(seen))
    else:
        assert seen == list(range(len(keys)))
        assert len(whole) == sum(-(-keys.count(key) // size) for key in set(keys))
    ranks = [loader(shard=(rank, world)) for rank in range(world)]
    parts = [epoch(rank) for rank in ranks]
    assert {len(part) for part in parts} == {len(ranks[0])}
    together = list(itertools.chain(*zip(*parts)))
    n = len(whole)
    expected = whole[: n - n % world] if drop_last else (whole * world)[: n + -n % world]
    assert together == expected
    repeated = sum(map(len, expected[n:]))
    assert sum(rank.stats()["padding"] for rank in ranks) == repeated


def test_a_budget_of_pixels_bounds_every_batch_and_is_used(packed):
    loader = FastLoader(packed, transform=CROP, batch_by=("aspect", 3000))
    most = {}
    for images, _ in loader:
        n, _, h, w = images.shape
        assert n * h * w <= 3000
        most[h, w] = max(n, most.get((h, w), 0))
    assert most[24, 24] == 3000 // (24 * 24)
    few = FastLoader(packed, 2, transform=CROP, batch_by=Buckets(BUCKETS.sizes, batch_pixels=3000))
    assert max(len(images) for images, _ in few) == 2
    tiny = FastLoader(packed, transform=CROP, batch_by=("aspect", 1))
    assert {len(images) for images, _ in tiny} == {1}


def test_keys_can_be_sizes_numbers_or_names(packed):
    sizes = [SIZES[i % len(SIZES)][::-1] for i in range(COUNT)]
    expected = sorted(map(sorted, epoch(FastLoader(range(COUNT), 7, batch_by=sizes))))
    for same_keys in (np.array(sizes), torch.tensor(sizes), [f"{h}x{w}" for h, w in sizes]):
        assert (
            sorted(map(sorted, epoch(FastLoader(range(COUNT), 7, batch_by=same_keys)))) == expected
        )
    assert len(FastLoader(range(2), 2, batch_by=("aspect", "other"))) == 2  # two keys


def test_subsets_and_concatenations_know_their_sizes_too(folder, packed):
    part = Subset(ImageFolder(folder, CROP), range(3, 40))
    both = ConcatDataset([part, PackedDataset(packed, CROP)])
    for batch_by in ("aspect", BUCKETS):
        loader = FastLoader(both, 5, batch_by=batch_by, shuffle=True, seed=1)
        assert sorted(itertools.chain(*lists(loader))) == list(range(37 + COUNT))
        assert {tuple(images.shape[2:]) for images, _ in loader} <= set(BUCKETS.sizes)
    own = FastLoader(Subset(Own(folder), range(9)), 3, batch_by=BUCKETS)
    assert sum(len(labels) for _, labels in own) == 9


def test_a_collate_fn_gets_images_that_the_engine_made(packed):
    def collated(samples):
        return torch.stack([image for image, _ in samples])

    loader = FastLoader(packed, 4, transform=CROP, batch_by="aspect", collate_fn=collated)
    made = [batch.shape[2:] for batch in loader]
    assert loader.stats()["engine"] == "native"
    assert {tuple(shape) for shape in made} <= set(BUCKETS.sizes)


def test_a_cache_of_decoded_images_gives_the_same_batches(packed):
    whole = list(of_kind("packed", None, packed))
    cached = of_kind("packed", None, packed, cache="decoded")
    list(cached)
    cached.set_epoch(0)
    assert_same(list(cached), whole)
    assert cached.stats()["cache_hits"] == COUNT


def test_what_is_no_image_is_skipped_and_counted_like_any_bad_sample(folder, tmp_path):
    (tmp_path / "imgs" / "a").mkdir(parents=True)
    for path in list(folder.rglob("*.jpg"))[:12]:
        (tmp_path / "imgs" / "a" / path.name).write_bytes(path.read_bytes())
    sorted((tmp_path / "imgs" / "a").iterdir())[5].write_bytes(b"no image")
    dataset = ImageFolder(tmp_path / "imgs", CROP)
    loader = FastLoader(dataset, 3, batch_by=BUCKETS, on_error="skip", max_errors=2)
    assert sum(len(labels) for _, labels in loader) == 11
    assert [entry["index"] for entry in loader.stats()["errors"]] == [5]
    with pytest.raises(DataError):
        list(FastLoader(dataset, 3, batch_by=BUCKETS))


# --- resuming -------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["packed", "own"])
def test_resumes_at_the_next_batch(kind, workers, folder, packed):
    whole = list(of_kind(kind, folder, packed))
    for stop in (0, 1, 5, len(whole)):
        loader = of_kind(kind, folder, packed, num_workers=workers)
        iterator = iter(loader)
        before = list(itertools.islice(iterator, stop))
        state = json.loads(json.dumps(loader.state_dict()))
        del iterator
        again = of_kind(kind, folder, packed, num_workers=workers)
        again.load_state_dict(state)
        rest = list(again)
        assert_same(before + rest, whole)


@pytest.mark.parametrize("kind", ["packed", "folder", "own"])
def test_saved_by_8_ranks_and_resumed_by_others_every_batch_comes_once(kind, folder, packed):
    def ranks(world):
        return [
            of_kind(kind, folder, packed, batch_size=2, shard=(rank, world))
            for rank in range(world)
        ]

    whole = list(of_kind(kind, folder, packed, batch_size=2))
    assert 20 < len(whole) < 30
    before, states = [], []
    for loader in ranks(8):
        before.append(list(itertools.islice(loader, 1)))
        states.append(loader.state_dict())
    assert_same(list(itertools.chain(*zip(*before))), whole[:8])
    for world in (5, 3, 12):
        rest = []
        for rank, loader in enumerate(ranks(world)):
            loader.load_state_dict(states[rank % 8])
            rest.append(list(loader))
        together = list(itertools.chain(*zip(*rest, strict=True)))
        assert_same(together[: len(whole) - 8], whole[8:])


def test_a_state_of_other_batches_is_refused(packed, folder):
    loader = of_kind("packed", folder, packed)
    next(iter(loader))
    state = loader.state_dict()
    others = [
        of_kind("packed", folder, packed, batch_size=3),
        of_kind("packed", folder, packed, batch_by=("aspect", 900)),
        of_kind("packed", folder, packed, batch_by=lambda index: index % 5),
        of_kind("packed", folder, packed, batch_by=None),
    ]  # fmt: skip
    for other in others:
        other.load_state_dict(state)
        with pytest.raises(UsageError, match="batch_by, batch_size or set of images"):
            next(iter(other))


# --- what is said of it ---------------------------------------------------------------------------


def test_explain_names_groups_crops_and_padding(packed, folder):
    text = of_kind("packed", folder, packed).explain()
    line = next(line for line in text.splitlines() if line.startswith("batch_by: "))
    assert line.startswith("batch_by: 4 groups (")
    assert "24 x 24: " in line
    cut, whole = 0, 0
    for index in range(COUNT):
        width, height = SIZES[index % len(SIZES)]
        h, w = BUCKETS.nearest(height, width)
        scale = max(h / height, w / width)
        resized = max(w, int(width * scale + 1e-9)) * max(h, int(height * scale + 1e-9))
        cut, whole = cut + resized - h * w, whole + resized
    assert (
        f"pixels: crops cut off {cut / whole:.1%} of the resized images; 0 bytes of padding" in text
    )
    chain = v1.Compose([v1.ToTensor()])
    alone = FastLoader(packed, 8, transform=chain, batch_by=range(COUNT)).explain()
    assert "most batches have one sample" in alone


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_by": "size"}, "batch_by: expected 'aspect'"),
        ({"batch_by": 3}, "batch_by: expected 'aspect'"),
        ({"batch_by": ("aspect", 0)}, "positive number of pixels"),
        ({"batch_by": "aspect", "sampler": range(3)}, "neither sampler"),
        ({"batch_by": "aspect", "batch_sampler": [[0]]}, "neither sampler"),
        ({"batch_by": "aspect", "batch_size": None}, "a batch_size"),
        ({"batch_by": "aspect", "on_error": "refill"}, "refill"),
        ({"batch_by": "aspect", "shuffle": True, "seed": 1, "shuffle_window": 2}, "shuffle_window"),
        ({"batch_by": "aspect", "dataset": Stream()}, "map-style"),
        ({"batch_by": "aspect", "dataset": Mix([(range(3), 1)])}, "map-style"),
    ],
)
def test_what_cannot_be_combined_is_refused(arguments, message, packed):
    arguments = {"dataset": packed, "transform": CROP, **arguments}
    if arguments["dataset"] is not packed:
        del arguments["transform"]
    with pytest.raises(UsageError, match=message):
        FastLoader(**arguments)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_store_at_a_url_is_told_the_order_of_this_epoch_and_of_the_next(
    packed, tmp_path, monkeypatch, shuffle, world
):
    told = []

    def expect(store, indices, positions, *, length, blocks):
        told.append((indices[:length].tolist(), indices[length:].tolist()))

    monkeypatch.setattr(RemoteStore, "expect", expect)
    keys = [i % 3 for i in range(COUNT)]
    server = ObjectServer(packed.parent)
    try:
        loader = FastLoader(
            PackedDataset(f"{server.url}/imgs.lmdb", cache_dir=tmp_path),
            4, shuffle=shuffle, seed=3, transform=SMALL, batch_by=keys,
            shard=(world - 1, world))  # fmt: skip
        for epoch_ in range(3):
            loader.set_epoch(epoch_)
            all_ranks = lists(loader)
            padded = all_ranks + all_ranks[: -len(all_ranks) % world]
            for _ in loader:
                pass
            assert told[-1][0] == list(itertools.chain(*padded[world - 1 :: world]))
    finally:
        server.close()
    assert len(told) == 3
    assert [after for _, after in told[:2]] == [now for now, _ in told[1:]]


def test_sizes_that_nobody_knows_are_asked_for(packed):
    with pytest.raises(UsageError, match="get_height_and_width"):
        len(FastLoader(range(4), 2, batch_by=BUCKETS))
    with pytest.raises(UsageError, match="a key for each of 4 samples, got 3"):
        len(FastLoader(range(4), 2, batch_by=[1, 2, 3]))
    with pytest.raises(UsageError, match="Buckets"):
        len(FastLoader(packed, 2, transform=lambda image: image, batch_by="aspect"))


RANKS = """
import torch
from fastload import Buckets, FastLoader
from torchvision import transforms as v1

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
buckets = Buckets({sizes})
tf = v1.Compose([buckets.crop(), v1.ToTensor()])
loader = FastLoader({store!r}, 4, shuffle=True, seed=3, transform=tf, batch_by=buckets, shard=True)
shapes = []
for images, labels in loader:
    torch.distributed.barrier()
    shapes.append([list(images.shape), labels.tolist()])
report([len(loader), shapes])
torch.distributed.destroy_process_group()
"""


@pytest.mark.long
def test_two_processes_have_equal_numbers_of_batches(packed, tmp_path):
    parts = torchrun(RANKS.format(sizes=list(BUCKETS.sizes), store=str(packed)), tmp_path)
    whole = [
        [list(images.shape), labels.tolist()] for images, labels in of_kind("packed", None, packed)
    ]
    for rank, (length, shapes) in enumerate(parts):
        assert len(shapes) == length == -(-len(whole) // 2)
        assert shapes == (whole * 2)[rank : 2 * length : 2]


@pytest.mark.parametrize("sizes", [16, [16, 32]])
def test_sizes_that_are_no_pairs_are_told(sizes: Any) -> None:
    with pytest.raises(UsageError, match="expected a list of pairs"):
        Buckets(sizes)
