"""Folders and stores of PNG and WebP images: the core decodes all, as Pillow does.

A core that was built without libdeflate or libwebp leaves them to Pillow, with the same batches.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import png_files
from fastload import FastLoader, _native, pack, verify
from fastload._transforms.targets import moving
from sides import assert_same

pytestmark = pytest.mark.native

COUNT = 18
# But gray of 16 bits, which no store of bytes can hold.
PNGS = [kind for kind in png_files.KINDS if kind != (png_files.GRAY, 16)]
TRAIN = v1.Compose([v1.RandomResizedCrop(16), v1.RandomHorizontalFlip(), v1.ToTensor()])


@pytest.fixture(scope="module", params=["png", "webp"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of many kinds in two classes."""
    root = tmp_path_factory.mktemp(request.param)
    rng = np.random.default_rng(1)
    for i in range(COUNT):
        path = root / f"class{i % 2}" / f"{i:03d}.{request.param}"
        path.parent.mkdir(exist_ok=True)
        width, height = 20 + i, 24
        if request.param == "png":
            colour, depth = PNGS[i % len(PNGS)]
            path.write_bytes(
                png_files.image(rng, width, height, colour, depth, interlaced=i % 3 == 0)
            )
            continue
        image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        if i % 3 == 0:
            image.putalpha(128)
        image.save(path, lossless=i % 2 == 0)
    return root


def built_for(folder: Path) -> bool:
    """Whether the core has the library for what is in ``folder``."""
    core = _native.load()
    assert core is not None
    png = any(folder.rglob("*.png"))
    return (core.png_version() if png else core.webp_version()) is not None


def epochs(folder: Path, dataset: Any, **more: Any) -> list[Any]:
    loader = FastLoader(dataset, 5, shuffle=True, seed=3, num_workers=2, **more)
    assert ("pillow" in loader.explain()) == (not built_for(folder))
    return [list(loader) for _ in range(2)]


@pytest.fixture(scope="module")
def pillows(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the pixels that Pillow decodes."""
    path = tmp_path_factory.mktemp("pixels") / "pixels.lmdb"
    pack(folder, path, encode="raw")
    return path


def of_pixels(path: Path, transform: Any) -> list[Any]:
    loader = FastLoader(path, 5, shuffle=True, seed=3, transform=transform)
    return [list(loader) for _ in range(2)]


@pytest.mark.parametrize("arguments", [{}, {"cache": "decoded"}, {"cache": "dct"}], ids=str)
def test_batches_of_a_folder_are_of_pillows_pixels(
    folder: Path, pillows: Path, arguments: Any
) -> None:
    found = epochs(folder, ImageFolder(str(folder), TRAIN), **arguments)
    assert_same(found, of_pixels(pillows, TRAIN))


def test_batches_of_a_packed_folder_are_of_pillows_pixels(
    folder: Path, pillows: Path, tmp_path: Path
) -> None:
    packed = tmp_path / "x.lmdb"
    pack(folder, packed)
    assert_same(epochs(folder, packed, transform=TRAIN), of_pixels(pillows, TRAIN))
    verify(packed, decode=True)
    views = [TRAIN, v1.Compose([v1.CenterCrop(16), v1.ToTensor()])]
    assert_same(epochs(folder, packed, transform=views), of_pixels(pillows, views))


@pytest.mark.parametrize("mode", ["L", "P", "1", "I;16"])
def test_masks_keep_their_indices(mode: str) -> None:
    levels = np.random.default_rng(0).integers(0, 30, (12, 10), dtype=np.uint8)
    image = Image.fromarray(levels.astype(np.uint16) if mode == "I;16" else levels)
    if mode == "P":
        image.putpalette([7, 8, 9] * 256)
    elif mode == "1":
        image = image.point(lambda level: 255 * (level > 9)).convert("1")
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    found = moving._read_mask(buffer.getvalue())
    expected = np.asarray(Image.open(buffer))
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == (np.int32 if mode == "I;16" else expected.dtype)
