"""Images with more than 8 bits per channel: FastLoader gives what DataLoader gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fastload import FastLoader, PackedDataset, pack
from sides import assert_same, side_by_side

COUNT = 8
SUFFIXES = {"I;16": "png", "mixed": "png", "1": "png", "I": "tif", "F": "tif"}
TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "PILToTensor": v1.PILToTensor(),
    "v2.PILToTensor": v2.PILToTensor(),
    "ToImage": v2.ToImage(),
    "ToTensor": v1.ToTensor(),
    "crop": v1.Compose([v1.RandomCrop(16), v1.RandomHorizontalFlip(), v1.PILToTensor()]),
    "scaled": v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]),
}


class Own(Dataset[Any]):
    """As people write it: the image as it is in the file."""

    def __init__(self, folder: Path, transform: Callable[[Any], Any]) -> None:
        self._files = sorted(path for path in folder.rglob("*.*") if path.is_file())
        self._transform = transform

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Any:
        return self._transform(Image.open(self._files[index])), index


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Class folders by Pillow's mode; "mixed": 8 and 16 bits."""
    root = tmp_path_factory.mktemp("depths")
    rng = np.random.default_rng(0)
    for mode, suffix in SUFFIXES.items():
        for i in range(COUNT):
            path = root / mode / f"class{i % 2}" / f"{i}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            levels = rng.integers(0, 1 << 16, (24, 24))
            image = {
                "I;16": lambda levels=levels: Image.fromarray(levels.astype(np.uint16)),
                "mixed": lambda levels=levels, i=i: Image.fromarray(
                    levels.astype(np.uint16) if i % 3 else (levels >> 8).astype(np.uint8)
                ),
                "1": lambda levels=levels: Image.fromarray(levels > 30_000),
                "I": lambda levels=levels: Image.fromarray((levels * 1000).astype(np.int32)),
                "F": lambda levels=levels: Image.fromarray((levels / 77).astype(np.float32)),
            }[mode]()
            assert mode in ("mixed", image.mode)
            image.save(path)
    return {mode: root / mode for mode in SUFFIXES}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("mode", SUFFIXES)
def test_a_dataset_of_ones_own_has_torchvisions_depth(
    folders: dict[str, Path], mode: str, name: str
) -> None:
    side_by_side(Own(folders[mode], TRANSFORMS[name]), batch_size=4, shuffle=True, num_workers=0)


@pytest.mark.parametrize("mode", ["I;16", "F"])
def test_workers_keep_the_depth(folders: dict[str, Path], mode: str) -> None:
    side_by_side(Own(folders[mode], TRANSFORMS["crop"]), 1, batch_size=4, num_workers=2)


@pytest.mark.parametrize("mode", SUFFIXES)
def test_a_folder_with_a_loader_of_ones_own_has_torchvisions_depth(
    folders: dict[str, Path], mode: str
) -> None:
    for name in ("PILToTensor", "ToTensor"):
        dataset = ImageFolder(str(folders[mode]), TRANSFORMS[name], loader=Image.open)
        side_by_side(dataset, 1, batch_size=4, num_workers=0)


@pytest.mark.parametrize("name", ["PILToTensor", "ToImage", "ToTensor", "scaled"])
@pytest.mark.parametrize("mode", SUFFIXES)
def test_a_folder_and_its_store_have_the_8_bits_of_torchvisions_loader(
    folders: dict[str, Path], tmp_path: Path, mode: str, name: str
) -> None:
    folder = ImageFolder(str(folders[mode]), TRANSFORMS[name])
    expected = list(DataLoader(folder, 4))
    assert_same(list(FastLoader(folder, 4, num_workers=0)), expected)
    pack(folders[mode], tmp_path / "x.lmdb")
    packed = PackedDataset(tmp_path / "x.lmdb", transform=TRANSFORMS[name])
    for kind in (DataLoader, FastLoader):
        assert_same(list(kind(packed, 4, num_workers=0)), expected)


def test_explain_says_that_pillow_decodes_16_bits(folders: dict[str, Path]) -> None:
    loader = FastLoader(Own(folders["I;16"], TRANSFORMS["PILToTensor"]), 4, num_workers=0)
    first = next(iter(loader))[0]
    assert first.dtype == TRANSFORMS["PILToTensor"](Image.open(loader.dataset._files[0])).dtype
    list(loader)
    with Image.open(loader.dataset._files[0]) as image:
        mode = image.mode  # older versions of Pillow say "I"
    assert f"{COUNT} images of mode {mode} became tensors at {__file__}" in loader.explain()
