"""Batches that are made again, since an image is damaged, have DataLoader's random numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision.transforms import functional as F

import deferred_datasets as shapes
from sides import side_by_side

DAMAGED = (35, 52, 62, 67, 76, 82, 89)


class Numbered(Dataset[Any]):
    """A random number, and the image at ``index``; zeros for what cannot be read."""

    def __init__(self, sound: Path, damaged: Path) -> None:
        self.paths = [damaged if i in DAMAGED else sound for i in range(200)]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        number = torch.rand(())
        try:
            return number, F.to_tensor(Image.open(self.paths[index]).convert("RGB").resize((9, 9)))
        except OSError:
            return number, torch.zeros(3, 9, 9)


@pytest.mark.native
@pytest.mark.parametrize("prefetch_factor", [1, 2])
def test_many_batches_may_be_made_again_soon_after_each_other(
    tmp_path: Path, prefetch_factor: int
) -> None:
    sound, damaged = (tmp_path / name for name in ("sound.png", "damaged.png"))
    for path in (sound, damaged):
        Image.effect_noise((96, 95), 50).save(path)
    shapes.truncate(damaged)
    side_by_side(
        Numbered(sound, damaged), 1, batch_size=7, num_workers=2, prefetch_factor=prefetch_factor
    )
