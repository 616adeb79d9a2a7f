"""Several crops of one image: one decode, and tensors that stay deferred until their batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1
from torchvision.transforms import v2

import deferred_programs
from fastload import FastLoader
from fastload._sources.deferred import batch as batches
from fastload._sources.deferred import switch
from fastload._sources.deferred.recording import Opened, Recording

NORMALIZE = v1.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def _each(change: Callable[[Any], torch.Tensor]) -> Callable[[Any], torch.Tensor]:
    return v1.Lambda(lambda crops: torch.stack([change(crop) for crop in crops]))


def _tiles(image: Image.Image) -> torch.Tensor:
    boxes = [(x, y, x + 64, y + 64) for y in (0, 50) for x in (0, 40, 80)]
    return torch.stack([v1.functional.to_tensor(image.crop(box)) for box in boxes])


CROPS: dict[str, Callable[[Any], Any]] = {
    "ten crops": v1.Compose(
        [v1.Resize(96), v1.TenCrop(80), _each(v1.ToTensor()), _each(NORMALIZE)]
    ),
    "five crops": v2.Compose([v2.Resize(96), v2.FiveCrop(72), _each(v1.ToTensor())]),
    "tiles": _tiles,
    "in a tuple": v1.Compose([v1.Resize(96), v1.FiveCrop(80), _each(v1.ToTensor()), tuple]),
    "bytes": v1.Compose([v1.TenCrop(80, vertical_flip=True), _each(v1.PILToTensor())]),
    "changed in place": v1.Compose(
        [v1.FiveCrop(80), _each(v1.ToTensor()), _each(lambda crop: crop.mul_(2).add_(1))]
    ),
}


class Crops(Dataset[Any]):
    """Crops of photos; every third is made at once, as where both ways are measured."""

    def __init__(self, paths: list[Path], crops: Callable[[Any], Any], mixed: bool) -> None:
        self.paths, self.crops, self.mixed = paths, crops, mixed

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        made = self.crops(Image.open(self.paths[index]).convert("RGB"))
        if self.mixed and index % 3 == 1:
            return made.cpu().contiguous().numpy() is not None and made
        return made


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    rng = np.random.default_rng(3)
    paths = []
    for i in range(7):
        small = Image.fromarray(rng.integers(0, 256, (9, 11, 3), np.uint8))
        if i == 3:
            small = small.convert("L")
        paths.append(tmp_path / f"{i}.{'png' if i in (3, 5) else 'jpg'}")
        small.resize((150 + i, 130)).save(paths[-1])
    return paths


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("crops", CROPS.values(), ids=CROPS)
def test_crops_are_dataloaders_and_stay_deferred(
    photos: list[Path],
    crops: Callable[[Any], Any],
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FASTLOAD_DEFER", "1")
    dataset = Crops(photos, crops, mixed=False)
    loader = FastLoader(dataset, batch_size=3, num_workers=workers)
    for expected, batch in zip(DataLoader(dataset, batch_size=3), loader, strict=True):
        assert type(expected) is type(batch)
        for one, other in zip(expected, batch, strict=True):
            assert one.stride() == other.stride()
            assert torch.equal(one, other)
    stats = loader.stats()
    changed = crops is CROPS["changed in place"]
    assert bool(stats["images_materialised"]) is changed
    assert stats["images_deferred"] >= (0 if changed else 5 * len(photos))


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_are_made_at_once_are_stacked_with_the_others(
    photos: list[Path], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTLOAD_DEFER", "1")
    dataset = Crops(photos, CROPS["ten crops"], mixed=True)
    loader = FastLoader(dataset, batch_size=3, num_workers=workers)
    for expected, batch in zip(DataLoader(dataset, batch_size=3), loader, strict=True):
        assert torch.equal(expected, batch)
    assert loader.stats()["images_deferred"] == 10 * len(photos)


@pytest.mark.parametrize("how", range(9))
def test_rows_of_a_batch_are_views_of_it(photos: list[Path], how: int) -> None:
    def outcome(context: contextlib.AbstractContextManager[None]) -> Any:
        with context:
            image = Image.open(photos[0]).convert("RGB").resize((40, 30))
            made = deferred_programs.taken_apart(v1.functional.to_tensor(image), how)
            return deferred_programs.described(made)

    assert outcome(switch.deferring()) == outcome(contextlib.nullcontext())


def test_an_image_is_in_no_part_twice_and_parts_have_the_same_images() -> None:
    opened = [Opened(str(i), None, None, (9, 9), "RGB", "JPEG") for i in range(4)]

    def parts(numbers: list[int]) -> list[tuple[int, ...]]:
        return batches._several([Recording(opened[i], (), (9, 9), "RGB") for i in numbers])

    assert parts([2, 0, 1]) == []
    assert parts([0, 0, 0, 1, 1, 1]) == [(0, 3), (1, 4), (2, 5)]
    assert parts([0, 1, 1, 2, 3, 3]) == [(0, 3), (1, 4), (2, 5)]
    assert parts([0] * 99) == []
