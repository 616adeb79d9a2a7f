"""Tensors that torchvision makes of arrays are deferred, with DataLoader's values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms

from fastload import FastLoader
from sides import side_by_side


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    rng = np.random.default_rng(4)
    paths = []
    for n in range(12):
        coarse = Image.fromarray(rng.integers(0, 256, (9, 11, 3), np.uint8))
        paths.append(tmp_path / f"{n}.jpg")
        coarse.resize((120 + 9 * n, 100 + 7 * n), Image.Resampling.BICUBIC).save(paths[-1])
    return paths


class Arrays(Dataset[Any]):
    """Arrays made tensors of by torchvision, as they are and flipped."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self.transform = transforms.Compose(
            [transforms.ToTensor(), transforms.Normalize([0.4, 0.5, 0.6], [0.2, 0.25, 0.3])]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = np.array(Image.open(self.paths[index]).resize((80, 70)))
        flipped = image[:, ::-1].copy()
        to_tensor = self.transform.transforms[0]
        made = self.transform(image), self.transform(flipped), to_tensor(flipped[..., 0])
        image[:] = flipped[:] = 0
        return made


class Negative(Arrays):
    """Arrays of which torch makes no tensor."""

    def __getitem__(self, index: int) -> Any:
        return self.transform(np.array(Image.open(self.paths[index]))[:, ::-1])


@pytest.mark.native
@pytest.mark.parametrize("workers", [0, 2])
def test_the_tensor_of_an_array_is_made_with_the_batch(photos: list[Path], workers: int) -> None:
    dataset = Arrays(photos)
    side_by_side(dataset, batch_size=5, shuffle=True, num_workers=workers)
    loader = FastLoader(dataset, batch_size=5, num_workers=workers)
    list(loader)
    assert loader.stats()["images_deferred"] == 2 * len(photos)


def test_an_array_with_negative_strides_is_refused_as_by_torch(photos: list[Path]) -> None:
    side_by_side(Negative(photos), epochs=1, batch_size=5)
