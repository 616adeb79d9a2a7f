"""Loaders over which another loader's dataset iterates."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import deferred_datasets as shapes
from fastload import FastLoader
from fastload._run.epoch_iterator import EpochIterator
from fastload._sources.deferred.within import BriefIterator
from sides import assert_same, outcome

# Pillow leaves a truncated file open.
pytestmark = [
    pytest.mark.native,
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def _deferring(monkeypatch: pytest.MonkeyPatch, short_farewell: None) -> None:
    monkeypatch.setenv("FASTLOAD_DEFER", "1")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("photos") / "class"
    folder.mkdir()
    return shapes.write_colour_jpegs(folder)


class Episodes(Dataset[Any]):
    """Iterates over loaders of ``kind`` in each sample."""

    def __init__(self, kind: type, photos: list[Path]) -> None:
        self.loaders = [kind(shapes.Photos(photos[k::2]), 3, shuffle=True) for k in range(2)]
        self.kinds: set[type] = set()

    def __len__(self) -> int:
        return 4

    def iterator(self, i: int) -> Iterator[Any]:
        iterator = iter(self.loaders[i % 2])
        self.kinds.add(type(iterator))
        return iterator

    def __getitem__(self, i: int) -> Any:
        return next(self.iterator(i))


class Many(Episodes):
    """Has so many samples that each loader is known to make its iterators for one of them."""

    def __len__(self) -> int:
        return 32


class Whole(Episodes):
    """Takes all batches of a loader, and changes some."""

    def __getitem__(self, i: int) -> Any:
        images, labels = zip(*itertools.islice(self.iterator(i), 2), strict=True)
        return torch.cat(images) * 2, [label.sum() for label in labels]


class Held(Episodes):
    """Goes on with iterators of earlier samples."""

    def __init__(self, kind: type, photos: list[Path]) -> None:
        super().__init__(kind, photos)
        self.held: dict[int, Iterator[Any]] = {}

    def __getitem__(self, i: int) -> Any:
        if i % 2 not in self.held:
            self.held[i % 2] = self.iterator(i)
        try:
            return next(self.held[i % 2])[0][:1]
        except StopIteration:
            del self.held[i % 2]
            return self[i]


class Made(Episodes):
    """Makes a loader for each sample."""

    def __init__(self, kind: type, photos: list[Path]) -> None:
        super().__init__(kind, photos)
        self.kind = kind

    def __getitem__(self, i: int) -> Any:
        dataset = self.loaders[i % 2].dataset
        return list(self.kind(dataset, 2, sampler=[1, i % 3, 0], drop_last=True))


def part_of_a_row(samples: list[Any]) -> torch.Tensor:
    return torch.stack([image for image, _ in samples])[0][:, :8, :8]


class Parts(Episodes):
    """Takes parts of rows of its loaders' batches."""

    def __init__(self, kind: type, photos: list[Path]) -> None:
        super().__init__(kind, photos)
        dataset = shapes.Photos(photos)
        self.loaders = [kind(dataset, 3, collate_fn=part_of_a_row) for _ in range(2)]

    def __getitem__(self, i: int) -> Any:
        return torch.stack(list(self.iterator(i)))


class PartsOfStream(Parts, IterableDataset[Any]):
    """The same as a stream, whose batches cannot be made again."""

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(4))


class Stream(IterableDataset[Any]):
    """Gives the batches of a loader one by one."""

    def __init__(self, kind: type, photos: list[Path]) -> None:
        self.loader = kind(shapes.Photos(photos), 1, shuffle=True)

    def __iter__(self) -> Iterator[Any]:
        for images, _ in self.loader:
            yield images[0]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [Episodes, Many, Whole, Held, Made, Stream, Parts, PartsOfStream])
def test_batches_are_as_with_torchs_loaders(
    make: Callable[[type, list[Path]], Any], photos: list[Path], workers: int
) -> None:
    theirs, ours = (
        outcome(kind, make(kind, photos), 2, batch_size=2, num_workers=workers)
        for kind in (DataLoader, FastLoader)
    )
    assert_same(ours, theirs)
    assert not any(isinstance(part, tuple) for part in ours[1:]), "none failed"


class Placeholders(shapes.Photos):
    """Has a gray image for one that cannot be read."""

    def __getitem__(self, i: int) -> Any:
        try:
            return super().__getitem__(i)
        except OSError:
            return torch.full((3, 32, 32), 0.5), -i


class Mended(Held):
    """Goes on with iterators over images of which one is damaged."""

    def __init__(self, kind: type, photos: list[Path]) -> None:
        super().__init__(kind, photos)
        self.loaders = [kind(Placeholders(photos), 3) for _ in range(2)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [Episodes, Many, Whole, Mended])
def test_a_damaged_image_is_the_inner_loaders(
    make: Callable[[type, list[Path]], Any], tmp_path: Path, workers: int
) -> None:
    paths = shapes.write_colour_jpegs(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:-200])
    theirs, ours = (
        outcome(kind, make(kind, paths), 2, batch_size=2, num_workers=workers)
        for kind in (DataLoader, FastLoader)
    )
    assert_same(ours, theirs)
    assert ("truncated" in str(ours)) == (make is not Mended)


class KeptLate(Many):
    """Goes on with one iterator, after many that were brief."""

    def __init__(self, kind: type, photos: list[Path]) -> None:
        super().__init__(kind, photos)
        self.loaders = [kind(Placeholders(photos), 2) for _ in range(2)]
        self.held: Iterator[Any] | None = None

    def __getitem__(self, i: int) -> Any:
        if i < 16:
            return next(self.iterator(i))
        self.held = self.held or self.iterator(i)
        return next(self.held, ())


def test_an_iterator_that_is_kept_after_brief_ones_goes_on(tmp_path: Path) -> None:
    paths = shapes.write_colour_jpegs(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:-200])
    theirs, ours = (
        outcome(kind, KeptLate(kind, paths), 2, batch_size=1) for kind in (DataLoader, FastLoader)
    )
    assert_same(ours, theirs)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_sees_their_images(photos: list[Path], workers: int) -> None:
    dataset = Episodes(FastLoader, photos)
    loader = FastLoader(dataset, 2, num_workers=workers)
    for _ in loader:
        pass
    stats = loader.stats()
    assert (stats["images_opened"], stats["images_deferred"]) == (12, 12)
    assert "images: 12 opened" in loader.explain()


def test_images_of_brief_iterators_are_the_outer_loaders(photos: list[Path]) -> None:
    dataset = Many(FastLoader, photos)
    loader = FastLoader(dataset, 2)
    for _ in loader:
        pass
    assert loader.stats()["images_deferred"] == 96
    assert dataset.kinds == {EpochIterator, BriefIterator}


def test_images_of_kept_iterators_are_the_inner_loaders(photos: list[Path]) -> None:
    dataset = Held(FastLoader, photos)
    loader = FastLoader(dataset, 1)
    for _ in range(3):
        for _ in loader:
            pass
    assert dataset.kinds == {EpochIterator}


def test_images_are_the_inner_loaders_where_the_outer_one_defers_nothing(
    photos: list[Path],
) -> None:
    dataset = Many(FastLoader, photos)
    for _ in FastLoader(dataset, 2, engine="torch"):
        pass
    assert dataset.kinds == {EpochIterator}
