"""The inverse DCT and the colour conversion by themselves, against Pillow's libjpeg."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import jpeg_blocks
import native_core

pytestmark = pytest.mark.native

# Of jpeg/ycc.h: horizontal and vertical factor of luma.
SAMPLINGS = {1: (1, 1), 2: (2, 1), 3: (1, 2), 4: (2, 2)}
BESIDE = 64

Samples = npt.NDArray[np.uint8]


def plane(blocks: npt.NDArray[np.int16], quant: npt.NDArray[np.uint16]) -> Samples:
    """(8 * rows, 8 * columns) of (rows, columns, 64)."""
    made = np.zeros((len(blocks), 8, 8 * blocks.shape[1]), np.uint8)
    for row, samples in zip(blocks, made, strict=True):
        native_core.core()._inverse_dct(row, quant, samples)
    return made.reshape(-1, made.shape[2])


def random_blocks(rng: np.random.Generator, rows: int, columns: int) -> npt.NDArray[np.int16]:
    """Blocks of all densities and sizes of values, some flat, some with only a first row."""
    blocks = np.zeros((rows * columns, 64), np.int64)
    for block in blocks:
        most = 1 << rng.integers(1, 15)
        block[:] = rng.integers(-most + 1, most, 64)
        if rng.random() < 0.3:
            block[rng.random(64) < 0.3] = most - 1
        block[rng.random(64) < rng.random()] = 0
        block[rng.choice([1, 8, 32, 64, 64, 64]) :] = 0
    blocks[:, 0] //= 2  # differences have 15 bits too
    return blocks.reshape(rows, columns, 64).astype(np.int16)


@pytest.mark.usefixtures("simd")
@pytest.mark.parametrize("most", [1, 16, 255, 4096, 65535])
def test_samples_are_those_of_libjpeg_for_absurd_coefficients_too(most: int) -> None:
    rng = np.random.default_rng(most)
    different = 0
    for columns in range(1, 12):
        blocks = random_blocks(rng, 6, columns)
        quant = rng.integers(1, most + 1, 64).astype(np.uint16)
        data = jpeg_blocks.write(8 * columns, 48, [(1, 1)], [quant], [blocks])
        expected = np.asarray(Image.open(io.BytesIO(data)))
        found = plane(blocks, quant)
        np.testing.assert_array_equal(found, expected)
        different += len(np.unique(found))
    assert different > 300  # not just black and white


def rows_of(samples: Samples, y: int, width: int) -> Samples:
    """One row with its ends repeated, between bytes that must not matter."""
    row = np.full(width + 2 * BESIDE, 99, np.uint8)
    row[BESIDE : BESIDE + width] = samples[y, :width]
    row[BESIDE - 1], row[BESIDE + width] = row[BESIDE], row[BESIDE + width - 1]
    return row


@pytest.mark.usefixtures("simd")
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_pixels_are_those_of_libjpeg(sampling: int) -> None:
    h, v = SAMPLINGS[sampling]
    rng = np.random.default_rng(sampling)
    for width, height in ((5, 3), (64, 32), (193, 40), (131, 33), (130, 1)):
        mcu_columns, mcu_rows = -(-width // (8 * h)), -(-height // (8 * v))
        blocks, planes = [], []
        quant = np.ones(64, np.uint16)
        for factors in ((h, v), (1, 1), (1, 1)):
            one = np.zeros((mcu_rows * factors[1], mcu_columns * factors[0], 64), np.int16)
            one[..., 0] = rng.integers(-800, 800, one.shape[:2])
            one[..., rng.integers(1, 64, 6)] = rng.integers(-400, 400, (*one.shape[:2], 6))
            blocks.append(one)
            planes.append(plane(one, quant))
        data = jpeg_blocks.write(width, height, [(h, v), (1, 1), (1, 1)], [quant] * 3, blocks)
        expected = native_core.pixels(data)
        chroma_width, chroma_height = -(-width // h), -(-height // v)
        for y in range(height):
            below = y % v == v - 1
            far = min(max(y // v + (1 if below else -1), 0), chroma_height - 1)
            luma = rows_of(planes[0], y, width)
            chroma = np.stack(
                [rows_of(planes[k], at, chroma_width) for at in (y // v, far) for k in (1, 2)]
            )
            x0, x1 = sorted(rng.choice(width + 1, 2, replace=False)) if y else (0, width)
            found = np.zeros((x1 - x0, 3), np.uint8)
            native_core.core()._ycc_to_rgb(sampling, luma, chroma, below, int(x0), found)
            np.testing.assert_array_equal(found, expected[y, x0:x1])


@pytest.mark.usefixtures("simd")
def test_each_colour_is_converted_as_libjpeg_converts_it() -> None:
    """Every Cb with every Cr at three levels of luma; jdcolor.c's formula in integers."""
    cb, cr = (axis.ravel() for axis in np.mgrid[0:256, 0:256])
    chroma = np.zeros((4, len(cb) + 2 * BESIDE), np.uint8)
    chroma[0, BESIDE:-BESIDE], chroma[1, BESIDE:-BESIDE] = cb, cr
    b, r = cb - 128, cr - 128
    for y in (0, 111, 255):
        luma = np.full(len(cb) + 2 * BESIDE, y, np.uint8)
        green = (-22554 * b - 46802 * r + 32768) >> 16
        expected = np.stack([(91881 * r + 32768) >> 16, green, (116130 * b + 32768) >> 16], 1) + y
        found = np.zeros((len(cb), 3), np.uint8)
        native_core.core()._ycc_to_rgb(1, luma, chroma, False, 0, found)
        np.testing.assert_array_equal(found, expected.clip(0, 255))


@pytest.mark.usefixtures("simd")
@pytest.mark.parametrize("width", [1, 16, 63, 64, 200])
def test_gray_is_its_luma_three_times(width: int) -> None:
    luma = np.random.default_rng(width).integers(0, 256, width + 3 + 2 * BESIDE, np.uint8)
    found = np.zeros((width, 3), np.uint8)
    native_core.core()._ycc_to_rgb(0, luma, np.zeros((4, 400), np.uint8), False, 3, found)
    np.testing.assert_array_equal(found, luma[BESIDE + 3 : -BESIDE, None].repeat(3, 1))
