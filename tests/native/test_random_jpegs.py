"""Random JPEGs of every sampling: each crop equals Pillow's, with each instruction set."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import jpeg_blocks
import native_core
from fastload import _native
from instruction_sets import SIMD

pytestmark = pytest.mark.native

SAMPLINGS = [(0, 0), (1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (4, 2), (2, 4)]  # 0: gray


def out_of_blocks(rng: np.random.Generator, h: int, v: int) -> bytes:
    """A JPEG with random coefficients and quantisers, each up to a random limit."""
    sampling = [(1, 1)] if h == 0 else [(h, v), (1, 1), (1, 1)]
    width, height = int(rng.integers(1, 150)), int(rng.integers(1, 60))
    columns, rows = -(-width // (8 * max(h, 1))), -(-height // (8 * max(v, 1)))
    most, most_quant = 1 << int(rng.integers(1, 15)), 1 << int(rng.integers(1, 17))
    blocks = []
    for across, down in sampling:
        values = rng.integers(-most + 1, most, (rows * down, columns * across, 64))
        values *= rng.random(values.shape) < rng.random() ** 2
        values[..., 0] //= 2
        values[rng.random(values.shape[:2]) < 0.3, 8:] = (
            0  # rows 1 to 7, for which libjpeg has a shortcut
        )
        values[rng.random(values.shape[:2]) < 0.2, 1:] = 0
        blocks.append(values)
    quant = [rng.integers(1, most_quant, 64) for _ in sampling]
    return jpeg_blocks.write(width, height, sampling, quant, blocks)


def encoded(rng: np.random.Generator) -> bytes:
    """A JPEG as Pillow writes it, or 4:4:0, often small."""
    width, height = (int(rng.integers(1, rng.choice([20, 70, 300]))) for _ in range(2))
    image = native_core.photo(width, height, int(rng.integers(1 << 30)))
    if rng.random() < 0.3:
        image = Image.fromarray(rng.choice([0, 255], (height, width, 3)).astype(np.uint8))
    subsampling, quality = int(rng.integers(4)), int(rng.integers(1, 96))
    if subsampling == 3:
        return native_core.encode(image.convert("L"), quality=quality)
    data = native_core.encode(
        image,
        quality=quality,
        subsampling=subsampling,
        restart_marker_blocks=int(rng.integers(1, 9)) if rng.random() < 0.1 else 0,
    )
    return native_core.as_440(data) if subsampling == 1 and rng.random() < 0.5 else data


def files(rng: np.random.Generator, count: int) -> Iterator[bytes]:
    for index in range(count):
        if index % 3 == 0:
            yield out_of_blocks(rng, *SAMPLINGS[index // 3 % len(SAMPLINGS)])
        else:
            yield encoded(rng)


def crop(path: Path, box: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    kind = [_native.DCT] if path.suffix == ".dct" else [0]
    result = native_core.submit(native_core.open_files([path]), [box], kind=kind, threads=0).wait()
    assert result.status[0] == _native.OK
    return np.asarray(result.images[0])


@pytest.mark.parametrize("count", [60, pytest.param(3000, marks=pytest.mark.long)])
def test_every_crop_is_that_of_pillows_pixels(tmp_path: Path, count: int) -> None:
    core = native_core.core()
    rng = np.random.default_rng(count)
    try:
        for data in files(rng, count):
            pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
            height, width = pixels.shape[:2]
            boxes = [(0, 0, width, height)]
            for _ in range(3):
                x0, x1 = sorted(rng.choice(width + 1, 2, replace=False).tolist())
                y0, y1 = sorted(rng.choice(height + 1, 2, replace=False).tolist())
                boxes.append((x0, y0, x1 - x0, y1 - y0))
            paths = [tmp_path / "image.jpg"]
            paths[0].write_bytes(data)
            try:
                record = core.dct_encode(data)
            except ValueError:  # coefficients or a sampling that records do not support
                pass
            else:
                paths.append(tmp_path / "image.dct")
                paths[1].write_bytes(record)
            for simd in SIMD:
                if not core.set_simd(simd):
                    continue
                for path in paths:
                    for x, y, w, h in boxes:
                        expected = pixels[y : y + h, x : x + w]
                        np.testing.assert_array_equal(crop(path, (x, y, w, h)), expected)
    finally:
        core.set_simd("")
