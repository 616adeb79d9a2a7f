"""Datasets of which some samples cannot be read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import torch
from torch.utils.data import Dataset, IterableDataset
from torchvision.datasets import ImageFolder

from batches import EVAL

Sample = tuple[int, torch.Tensor]


class Broken(Dataset[Sample]):
    """``n`` samples, of which those in ``bad`` cannot be read; each with a random number."""

    def __init__(self, n: int = 12, bad: Collection[int] = (1, 6, 7)) -> None:
        self.n = n
        self.bad = bad

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Sample:
        if i in self.bad:
            raise FileNotFoundError(2, "gone", f"/data/{i}.jpg")
        return i, torch.rand(1)


class BrokenMany(Broken):
    """The same, which makes a batch's samples together."""

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        return [self[i] for i in indices]


class BrokenStream(IterableDataset[Sample]):
    """The same, one after the other; its iterator continues after an error."""

    def __init__(self, n: int = 12, bad: Collection[int] = (1, 6, 7)) -> None:
        self.samples = Broken(n, bad)

    def __iter__(self) -> Iterator[Sample]:
        return _Steps(self.samples)


class _Steps(Iterator[Sample]):
    def __init__(self, samples: Broken) -> None:
        self.samples = samples
        self.at = -1

    def __next__(self) -> Sample:
        self.at += 1
        if self.at >= len(self.samples):
            raise StopIteration
        return self.samples[self.at]


def damaged_photos(photos: Path, folder: Path, no_images: Sequence[int]) -> ImageFolder:
    """``photos`` in ``folder``: ``no_images`` are none, 5 is truncated, and 6 is gone."""
    shutil.copytree(photos, folder)
    damaged = ImageFolder(folder, EVAL)
    paths = [path for path, _ in damaged.samples]
    for number in no_images:
        Path(paths[number]).write_bytes(b"no image at all")
    os.truncate(paths[5], 400)
    os.remove(paths[6])
    return damaged
