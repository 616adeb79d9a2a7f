"""Several views of each image: each as its own chain gives it, with independent random numbers."""

from __future__ import annotations

import io
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, default_collate
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import torchvision_oracle
from fastload import DataError, FastLoader, PackedDataset, UsageError, open_writer
from fastload._transforms.plan import seed_of
from fastload.storage import Record

LARGE = v1.Compose(
    [v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.ColorJitter(0.4), v1.ToTensor()]
)
SMALL = v1.Compose(
    [v1.RandomResizedCrop((12, 16), scale=(0.05, 0.4)), v1.RandomHorizontalFlip(), v1.ToTensor()]
)
BYTES = v1.Compose([v1.CenterCrop(20), v1.PILToTensor()])
CHAINS = [LARGE, LARGE, SMALL, BYTES, SMALL]


def assert_views(photos: Path, views: Any, indices: list[int], epoch: int) -> None:
    dataset = ImageFolder(photos)
    assert type(views) is list and len(views) == len(CHAINS)
    for number, (chain, images) in enumerate(zip(CHAINS, views, strict=True)):
        for index, image in zip(indices, images, strict=True):
            seed = seed_of(7, number)
            theirs = torchvision_oracle.sample(chain, dataset[index][0], index, seed, epoch)
            assert torch.equal(image, theirs), (number, index)


@pytest.mark.native
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["store", "folder"])
def test_each_view_is_what_torchvision_makes_of_its_chain(
    store: Path, photos: Path, num_workers: int, kind: str
) -> None:
    if kind == "store":
        loader = FastLoader(store, batch_size=7, transform=CHAINS, seed=7, num_workers=num_workers)
    else:
        dataset = ImageFolder(photos, CHAINS)  # type: ignore[arg-type]
        loader = FastLoader(dataset, batch_size=7, seed=7, num_workers=num_workers)
    for epoch in range(2):
        at = 0
        for views, labels in loader:
            indices = list(range(at, at + len(labels)))
            assert_views(photos, views, indices, epoch)
            assert labels.tolist() == [ImageFolder(photos).targets[i] for i in indices]
            at += len(labels)
    assert at == 24


def test_views_of_one_chain_differ_and_the_first_is_what_it_gives_alone(store: Path) -> None:
    def first(transform: Any) -> Any:
        return next(iter(FastLoader(store, batch_size=4, transform=transform, seed=7)))[0]

    one, other, third = first([LARGE, LARGE, LARGE])
    assert torch.equal(one, first(LARGE))
    assert torch.equal(other, first((LARGE, LARGE))[1])
    for i in range(4):
        assert len(torch.unique(torch.stack([one[i], other[i], third[i]]), dim=0)) == 3


def test_seeds_of_views_are_their_own() -> None:
    seeds = {seed_of(seed, view) for seed in range(50) for view in range(20)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 1 << 64 for seed in seeds)


def test_batches_are_as_default_collate_makes_them_of_samples(store: Path) -> None:
    dataset = PackedDataset(store, [LARGE, SMALL], seed=7)
    dataset.set_epoch(0)
    batch = next(iter(FastLoader(dataset, batch_size=5)))
    theirs = default_collate([dataset[i] for i in range(5)])
    assert [type(part) for part in batch] == [type(part) for part in theirs]
    for ours, other in zip(batch[0], theirs[0], strict=True):
        assert torch.equal(ours, other)
    from_torch = next(iter(DataLoader(dataset, batch_size=5)))
    assert torch.equal(from_torch[0][1], batch[0][1])
    seen = next(iter(FastLoader(dataset, batch_size=5, collate_fn=lambda samples: samples)))
    assert torch.equal(seen[2][0][1], batch[0][1][2]) and seen[2][1] == 0


def test_fields_come_with_views(store: Path) -> None:
    loader = FastLoader(
        PackedDataset(store, fields=["key"]), batch_size=3, transform=[SMALL, BYTES]
    )
    batch = next(iter(loader))
    assert list(batch) == ["image", "label", "key"]
    assert [view.shape for view in batch["image"]] == [(3, 3, 12, 16), (3, 3, 20, 20)]


def test_views_whose_chains_only_python_can_end(store: Path, photos: Path) -> None:
    ended = v1.Compose([*LARGE.transforms[:2], lambda image: image, *LARGE.transforms[3:]])
    found = []
    for given in (store, ImageFolder(photos, [SMALL, ended])):  # type: ignore[arg-type]
        transform = [SMALL, ended] if given is store else None
        for workers, size in ((2, 6), (0, 3)):
            loader = FastLoader(
                given, batch_size=size, transform=transform, seed=7, num_workers=workers
            )
            assert "because: view 1: <lambda>" in loader.explain()
            views = [images for images, _ in loader]
            found.append([torch.cat([batch[view] for batch in views]) for view in (0, 1)])
    first = found[0]
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(first, other, strict=True))
    # what random transforms draw is in the result
    assert not torch.equal(
        first[1],
        torch.cat(
            [b[1] for b, _ in FastLoader(store, batch_size=6, transform=[SMALL, ended], seed=8)]
        ),
    )


def test_explain_says_what_each_view_is(store: Path) -> None:
    text = FastLoader(store, transform=[LARGE, SMALL]).explain()
    assert "engine: torch" not in text
    assert text.index("view 0:") < text.index("ColorJitter") < text.index("view 1:")


@pytest.mark.parametrize("cache", ["ram", "decoded", "dct"])
def test_views_of_a_cache_are_the_same(store: Path, cache: str) -> None:
    plain = FastLoader(store, batch_size=6, transform=[LARGE, SMALL], seed=7)
    cached = FastLoader(store, batch_size=6, transform=[LARGE, SMALL], seed=7, cache=cache)
    for epoch in range(3):
        for ours, theirs in zip(cached, plain, strict=True):
            assert all(map(torch.equal, ours[0], theirs[0])), epoch
        assert cached.stats()["cache_hits"] == (24 if epoch else 0)


def test_a_sample_that_cannot_be_read_lacks_in_every_view(photos: Path, tmp_path: Path) -> None:
    dataset = ImageFolder(photos, [LARGE, SMALL])  # type: ignore[arg-type]
    broken = tmp_path / "broken.jpg"
    data = Path(dataset.samples[3][0]).read_bytes()
    broken.write_bytes(data[: len(data) // 3])
    dataset.samples[3] = (str(broken), 0)
    with pytest.raises(DataError, match=r"broken\.jpg"):
        list(FastLoader(dataset, batch_size=6))
    loader = FastLoader(dataset, batch_size=6, on_error="skip", max_errors=2, seed=7)
    (large, small), labels = next(iter(loader))
    assert len(large) == len(small) == len(labels) == 5
    good = ImageFolder(photos, [LARGE, SMALL])  # type: ignore[arg-type]
    (theirs, _), _ = next(iter(FastLoader(Subset(good, [0, 1, 2, 4, 5]), batch_size=5, seed=7)))
    assert torch.equal(large, theirs)


def test_an_epoch_of_views_goes_on_where_it_was_left(store: Path) -> None:
    def make() -> Any:
        return FastLoader(store, batch_size=6, transform=[LARGE, SMALL], seed=7, shuffle=True)

    whole = list(make())
    left = make()
    iterator = iter(left)
    next(iterator)
    again = make()
    again.load_state_dict(left.state_dict())
    for ours, theirs in zip(again, whole[1:], strict=True):
        assert all(map(torch.equal, ours[0], theirs[0]))


def test_parts_with_other_views_do_not_make_one_dataset(store: Path) -> None:
    parts = [PackedDataset(store, [LARGE, SMALL]), PackedDataset(store, [LARGE, LARGE])]
    assert "different transforms" in FastLoader(ConcatDataset(parts)).explain()
    mixed = [PackedDataset(store, [SMALL]), PackedDataset(store, SMALL)]
    assert "different transforms" in FastLoader(ConcatDataset(mixed)).explain()
    (view,), _ = next(iter(FastLoader(mixed[0], batch_size=2)))
    assert view.shape == (2, 3, 12, 16)
    with pytest.raises(UsageError, match="expected a transform for each view"):
        FastLoader(store, transform=[], engine="native")


def test_views_in_another_dtype_and_layout(store: Path) -> None:
    given = {"batch_size": 4, "transform": [LARGE, SMALL], "seed": 7}
    halves = FastLoader(
        store,
        dtype=torch.float16,
        memory_format=torch.channels_last,
        **given,  # type: ignore[arg-type]
    )
    views, _ = next(iter(halves))
    theirs, _ = next(iter(FastLoader(store, **given)))  # type: ignore[arg-type]
    for ours, other in zip(views, theirs, strict=True):
        assert ours.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(ours, other.half())
    assert np.isfinite(views[0].float().numpy()).all()


@pytest.mark.native
def test_a_sample_is_decoded_once_where_its_views_lie_close(store: Path) -> None:
    from fastload._engine.kernel import shared_regions
    from fastload._transforms.geometry.crop_geometry import Geometry

    class Drawn:
        def __init__(self, boxes: list[list[int]], kinds: list[int]) -> None:
            n = len(boxes)
            none = np.zeros((n, 2), np.int32)
            self.geometry = Geometry(np.array(boxes, np.int32), none, none, np.zeros(n), 1, 1)
            self.sizes = np.full((n, 2), 100, np.int32)
            self.kinds = np.array(kinds, np.uint8)

    # close together; far apart in a JPEG; far apart in a DCT record; raw pixels
    one = [[0, 0, 40, 40], [0, 0, 10, 90], [0, 0, 10, 10], [0, 0, 40, 40]]
    other = [[10, 5, 40, 40], [90, 0, 10, 90], [90, 90, 10, 10], [10, 5, 40, 40]]
    kinds = [0, 0, 2, 1]
    batches: Any = [Drawn(one, kinds), Drawn(other, kinds)]
    assert shared_regions(batches).tolist() == [[0, 0, 50, 45], [0, 0, 100, 90], [0] * 4, [0] * 4]


@pytest.mark.native
def test_jobs_that_are_no_views_of_a_batch_are_refused(store: Path) -> None:
    from fastload._base.slabs import SlabRing
    from fastload._engine.image_engine import EngineOptions
    from fastload._engine.registry import NATIVE, make_engine
    from fastload._transforms.geometry.draws import Numbers
    from fastload._transforms.recognise import Plan, recognise

    plan = recognise(SMALL)
    assert isinstance(plan, Plan)
    decoder: Any = make_engine(
        NATIVE, PackedDataset(store).store, plan, EngineOptions(threads=1, ring=SlabRing(4))
    )
    records = np.arange(4)
    batch = decoder.prepare(Numbers(1, 0, records), timed=False)
    fewer = decoder.prepare(Numbers(1, 0, records[:3]), timed=False)
    whole = np.concatenate([np.zeros((4, 2), np.int32), batch.sizes], axis=1)
    begun = decoder._begin(batch, {})
    with pytest.raises(ValueError, match="begin=False"):
        decoder._begin(batch, {}, views=([begun.job], whole))
    begun.result()
    with pytest.raises(ValueError, match="as many samples"):
        decoder._begin(batch, {}, views=([decoder._begin(fewer, {}, begin=False).job], whole))
    later = decoder._begin(batch, {}, begin=False)
    for region in (whole + [1, 0, 0, 0], whole // 9):
        with pytest.raises(ValueError, match="a region"):
            decoder._begin(batch, {}, views=([later.job], np.ascontiguousarray(region, np.int32)))


def test_views_of_different_sizes_have_all_their_slabs_named(store: Path) -> None:
    loader: FastLoader[Any] = FastLoader(store, batch_size=4, transform=[LARGE, SMALL])
    list(loader)
    rings = loader.inspect().engine.rings
    assert len(rings) == 2
    assert all(ring.allocations > 0 for ring in rings)


@pytest.mark.native
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_header_that_promises_too_many_pixels_is_refused_without_memory_for_them(
    tmp_path: Path,
) -> None:
    import resource

    buffer = io.BytesIO()
    torchvision_oracle.picture(40, 30).save(buffer, "JPEG")
    data = bytearray(buffer.getvalue())
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", 65000, 65000)
    with open_writer(tmp_path / "a.lmdb", classes=["a"]) as writer:
        writer.append([Record(data=bytes(data), label=0, key="0", width=65000, height=65000)])
    whole = v1.Compose([v1.Resize((8, 8)), v1.ToTensor()])
    loader = FastLoader(tmp_path / "a.lmdb", transform=[whole, whole], num_workers=0)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + (4 << 30)  # pixels would take 12 GB
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        with pytest.raises(DataError, match="decompression bomb"):
            list(loader)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
