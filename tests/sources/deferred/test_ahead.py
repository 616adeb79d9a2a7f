"""Pixels that are made before a sample asks for them: the right ones, or none."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from fastload import FastLoader
from fastload._sources.deferred import ahead, single
from fastload._sources.deferred.switch import deferring
from fastload._sources.deferred.thread_state import THREAD


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    return [drawn(tmp_path / f"{i}.jpg", i) for i in range(24)]


def drawn(path: Path, seed: int, size: tuple[int, int] = (120, 90)) -> Path:
    coarse = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), np.uint8)
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path)
    return path


@pytest.fixture(autouse=True)
def all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    for least in ("LEAST_AHEAD", "LEAST_CHANGED"):
        monkeypatch.setattr(single, least, 0)  # else none of these would be made ahead


class Pixels(Dataset[Any]):
    """What ``of`` makes of each image as an array."""

    def __init__(self, paths: list[Path], of: Callable[[Any], Any] = np.array) -> None:
        self.paths = paths
        self.of = of

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with Image.open(self.paths[index]) as file:
            return torch.from_numpy(self.of(file.convert("RGB"))), index


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each request of pixels: whether they were made ahead."""
    monkeypatch.setattr(ahead.Ahead, "__init__", _with_two_threads(ahead.Ahead.__init__))
    monkeypatch.setattr("fastload._base.machine.cpu.available", lambda: 2)
    found: list[bool] = []
    take = ahead.Ahead.take

    def spy(self: Any, recording: Any) -> Any:
        memory = take(self, recording)
        found.append(memory is not None)
        return memory

    monkeypatch.setattr(ahead.Ahead, "take", spy)
    return found


def _with_two_threads(init: Callable[..., None]) -> Callable[..., None]:
    return lambda self, threads: init(self, 2)


def batches(loader: Any) -> list[Any]:
    return [(images.clone(), labels.tolist()) for images, labels in loader]


def equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        a[1] == b[1] and torch.equal(a[0], b[0]) for a, b in zip(one, other)
    )


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "array": np.array,
    "resize": lambda image: np.array(image.resize((50, 40), Image.Resampling.BILINEAR)),
    "crop": lambda image: np.array(image.crop((4, 5, 80, 70))),
    "twice": lambda image: np.array(image) + np.array(image.crop((0, 0, 60, 50))).max(),
    "at random": lambda image: np.array(image.crop((n := random.randrange(30), 5, n + 60, 70))),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_batches_are_dataloaders_in_every_epoch(photos: list[Path], program: str) -> None:
    dataset = Pixels(photos, PROGRAMS[program])
    ours, theirs = (kind(dataset, 8, shuffle=True) for kind in (FastLoader, DataLoader))
    for epoch in range(4):
        made = []
        for loader in (ours, theirs):
            torch.manual_seed(epoch)
            random.seed(epoch)
            made.append(batches(loader))
        assert equal(*made)


def test_the_second_epoch_finds_its_pixels_made(photos: list[Path], taken: list[bool]) -> None:
    loader = FastLoader(Pixels(photos), 8, shuffle=True)
    batches(loader)
    assert taken == [False] * 24
    taken.clear()
    batches(loader)
    # of the first sample of each batch nobody knew that it would come
    assert taken == ([False] + [True] * 7) * 3


def test_several_images_of_a_sample_are_made_ahead(photos: list[Path], taken: list[bool]) -> None:
    class Pairs(Pixels):
        def __getitem__(self, index: int) -> Any:
            one, other = super().__getitem__(index), super().__getitem__((index + 5) % 24)
            return one[0] - other[0], index

    loader = FastLoader(Pairs(photos), 12)
    first = batches(loader)
    taken.clear()
    assert equal(batches(loader), first)
    assert sum(taken) >= 40


def test_a_batch_sampler_may_give_iterators(photos: list[Path]) -> None:
    class Once:
        def __iter__(self) -> Any:
            return iter([iter([3, 1, 2]), (5, 4), {7: 0, 6: 0}.keys()])

        def __len__(self) -> int:
            return 3

    made = [
        [batches(loader) for _ in range(2)]
        for loader in (
            kind(Pixels(photos), batch_sampler=Once())  # type: ignore[call-arg]
            for kind in (FastLoader, DataLoader)
        )
    ]
    assert all(equal(*epoch) for epoch in zip(*made, strict=True))


def test_a_file_that_changes_is_read_anew(photos: list[Path], taken: list[bool]) -> None:
    loader = FastLoader(Pixels(photos), 24)
    batches(loader)
    drawn(photos[7], 99)
    os.utime(photos[7], ns=(1, 1))
    taken.clear()
    assert equal(batches(loader), batches(DataLoader(loader.dataset, 24)))
    assert taken.count(False) == 2  # and the first of the batch


def test_a_file_that_is_gone_is_missed_where_it_is_opened(photos: list[Path]) -> None:
    loader = FastLoader(Pixels(photos), 24)
    batches(loader)
    photos[7].unlink()
    with pytest.raises(FileNotFoundError, match=r"7\.jpg"):
        batches(loader)


def test_a_damaged_file_fails_as_with_dataloader(photos: list[Path]) -> None:
    loader = FastLoader(Pixels(photos), 24)
    batches(loader)
    data, stamp = photos[7].read_bytes(), photos[7].stat()
    photos[7].write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    os.utime(photos[7], ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    outcomes = []
    for one in (loader, DataLoader(loader.dataset, 24)):
        try:
            outcomes.append(batches(one)[0][0].tolist())
        except OSError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def test_guesses_that_are_wrong_are_given_up(photos: list[Path], taken: list[bool]) -> None:
    loader = FastLoader(Pixels(photos * 4, PROGRAMS["at random"]), 96)
    begun = []
    begin = single.begin
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(single, "begin", lambda one: begun.append(one) or begin(one))
        for _ in range(4):
            batches(loader)
    assert 0 < len(begun) <= 2 * 32
    assert taken.count(True) < 24


def test_what_nobody_asked_for_is_cancelled(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, made = single.begin, []
    monkeypatch.setattr(single, "begin", lambda one: made.append(begin(one)) or made[-1])
    cancel, cancelled = single.Begun.cancel, []
    monkeypatch.setattr(single.Begun, "cancel", lambda self: cancelled.append(self) or cancel(self))
    decoder, dataset = ahead.Ahead(4), Pixels(photos)
    in_order(decoder, dataset)
    with pytest.raises(ValueError, match="sample 3"), deferring():
        with decoder.watching(range(24)) as indices:
            for index in indices:
                if index == 3:
                    raise ValueError("sample 3")
                dataset[index]
    assert len(made) > 4
    assert all(one in cancelled and one._job.done for one in made)
    assert THREAD.ahead is None and not decoder._begun and not decoder._nbytes


def in_order(decoder: ahead.Ahead, dataset: Pixels) -> list[int]:
    """Make all samples; bytes that were being made ahead before each of them."""
    found = []
    with deferring(), decoder.watching(range(len(dataset))) as indices:
        for index in indices:
            found.append(decoder._nbytes)
            dataset[index]
    return found


def test_memory_of_what_is_made_ahead_is_bounded(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "_MOST_NBYTES", 120 * 90 * 3 * 2)
    decoder, dataset = ahead.Ahead(7), Pixels(photos)
    assert max(in_order(decoder, dataset)) == 0
    assert max(in_order(decoder, dataset)) == 120 * 90 * 3 * 2


def test_only_so_many_indices_are_remembered(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "_REMEMBERED", 10)
    decoder, dataset = ahead.Ahead(2), Pixels(photos)
    in_order(decoder, dataset)
    assert list(decoder._known) == list(range(10))


def test_a_loop_within_a_loop_is_left_alone(photos: list[Path]) -> None:
    loader = FastLoader(Pixels(photos), 8)
    expected = batches(DataLoader(loader.dataset, 8))
    for _ in range(2):
        for outer, expects in zip(loader, expected, strict=True):
            assert equal(batches(loader), expected)
            assert torch.equal(outer[0], expects[0])


def test_without_deferring_nothing_is_made_ahead(photos: list[Path], taken: list[bool]) -> None:
    loader = FastLoader(Pixels(photos), 8, engine="torch")
    for _ in range(2):
        batches(loader)
    assert taken == []
