"""cache= with a user's own Dataset: the same batches, and what was opened is decoded once."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import functional as F

import deferred_datasets as shapes
from combinations import combinations
from fastload import FastLoader
from fastload._engine.cache.opened import OpenedCache, key_of
from fastload._engine.cache.store import BYTES
from fastload._sources.deferred import single
from sides import assert_same, outcome

KINDS = ["ram", "dct", "decoded", "shm"]


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    return shapes.write_photos(tmp_path)


@pytest.fixture(autouse=True)
def all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    for least in ("LEAST_PIXELS", "LEAST_CHANGED"):
        monkeypatch.setattr(single, least, 0)  # also these small ones are made by the core


class Arrays(Dataset[Any]):
    """Asks for the pixels before anything else."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = np.asarray(Image.open(self.paths[index]).convert("RGB"))
        y, x = (int(v) for v in torch.randint(0, 9, (2,)))
        return torch.from_numpy(image[y : y + 32, x : x + 32].transpose(2, 0, 1).copy()), index


class Whole(Arrays):
    """Gives the whole image."""

    def __getitem__(self, index: int) -> Any:
        return F.pil_to_tensor(Image.open(self.paths[index]).convert("RGB")), index


@pytest.mark.parametrize(
    ("shape", "kind", "workers"),
    combinations(
        [shapes.Photos, shapes.TwoViews, shapes.InMemory, Arrays], KINDS, [0, 2], rounds=2
    ),
)
def test_batches_are_the_same_with_a_cache(
    photos: list[Path], shape: type, kind: str, workers: int
) -> None:
    arguments: dict[str, Any] = {"batch_size": 4, "shuffle": True, "num_workers": workers}
    theirs = outcome(DataLoader, shape(photos), 3, **arguments)
    ours = outcome(FastLoader, shape(photos), 3, cache=kind, cache_limit="64MB", **arguments)
    assert_same(ours, theirs)


def epochs(loader: Any, count: int) -> Iterator[dict[str, Any]]:
    """The figures after each epoch."""
    for _ in range(count):
        for _ in loader:
            pass
        yield loader.stats()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("shape", [shapes.Photos, Arrays])
def test_later_epochs_come_from_the_cache(photos: list[Path], workers: int, shape: type) -> None:
    decoded = [path for i, path in enumerate(photos) if i % 7 != 5]  # those are CMYK
    loader = FastLoader(
        shape(decoded), 4, shuffle=True, num_workers=workers, cache="decoded", cache_limit="64MB"
    )
    assert "cache: decoded, empty until the first epoch" in loader.explain()
    first, later = epochs(loader, 2)
    assert (first["cache_hits"], first["cache_misses"]) == (0, len(decoded))
    assert (later["cache_hits"], later["cache_misses"]) == (len(decoded), 0)
    assert later["cache_nbytes"] > 0
    assert f"cache: decoded, {len(decoded)} opened images kept as pixels" in loader.explain()


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_file_is_noticed(photos: list[Path], kind: str) -> None:
    loader = FastLoader(Whole(photos[:1]), 1, cache=kind, cache_limit="64MB")
    (before,) = [batch[0] for batch in loader]
    Image.fromarray(255 - before[0].permute(1, 2, 0).numpy()).save(photos[0])
    (after,) = [batch[0] for batch in loader]
    (expected,) = [batch[0] for batch in DataLoader(Whole(photos[:1]), 1)]
    assert torch.equal(after, expected)
    assert not torch.equal(after, before)


def test_what_does_not_fit_is_read_from_the_files(photos: list[Path]) -> None:
    loader = FastLoader(shapes.Photos(photos), 4, cache="decoded", cache_limit=300_000)
    *_, last = epochs(loader, 3)
    assert 0 < last["cache_hits"] < len(photos)
    assert "the rest does not fit and is read from the files" in loader.explain()


def test_loaders_share_what_they_opened_in_shared_memory(photos: list[Path]) -> None:
    def loader() -> Any:
        return FastLoader(shapes.Photos(photos), 4, cache="shm", cache_limit=8_123_456)

    one, other = loader(), loader()
    (first,) = epochs(one, 1)
    (second,) = epochs(other, 1)
    assert first["cache_misses"] == second["cache_hits"] > 0
    assert second["cache_misses"] == 0


# The numbers of images.


def a_cache(kind: str = "ram", images: int = 1) -> OpenedCache:
    return OpenedCache(kind, BYTES, 1 << 20, None, images)


def test_a_file_that_changes_is_another_image() -> None:
    stamp = (1, 2, 3)
    keys = {
        key_of("/a", stamp, None),
        key_of("/b", stamp, None),
        key_of("/a", (1, 2, 4), None),
        key_of(None, None, b"/a"),
        key_of(None, None, b""),
    }
    assert len(keys) == 5
    assert key_of("/a", stamp, None) in keys


def test_every_image_has_a_number_of_its_own() -> None:
    cache = a_cache(images=1000)
    keys = [key_of(None, None, b"%d" % i) for i in range(1000)]
    numbers = [cache.number(key) for key in keys]
    assert len(set(numbers)) == 1000
    assert [cache.number(key) for key in keys] == numbers


def test_images_that_find_no_number_are_not_kept() -> None:
    cache = a_cache()
    keys = [bytes(8) + i.to_bytes(8, "big") for i in range(1, 40)]  # all want the same place
    numbers = [cache.number(key) for key in keys]
    assert sorted(set(numbers)) == [-1, *range(16)]
    found, records = cache.find(keys, file=0)
    assert found.kept is not None
    assert not found.kept.any()
    fill = cache.to_fill(found.kept, records, np.ones((39, 2), np.int32))
    assert fill is not None
    assert fill.wanted.sum() == 16


def _number_all(cache: OpenedCache, keys: list[bytes], send: Any) -> None:
    send.send([cache.number(key) for key in keys])
    os._exit(0)


def test_forked_processes_agree_on_the_numbers() -> None:
    cache = a_cache(images=300)
    keys = [key_of(None, None, b"%d" % i) for i in range(300)]
    context = multiprocessing.get_context("fork")
    results = []
    for part in (keys, keys[::-1]):
        receive, send = context.Pipe(duplex=False)
        process = context.Process(target=_number_all, args=(cache, part, send))
        process.start()
        results.append((process, receive))
    one, other = (receive.recv() for _, receive in results)
    for process, _ in results:
        process.join()
    assert one == other[::-1] == [cache.number(key) for key in keys]
