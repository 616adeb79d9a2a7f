"""Hue in the core: Pillow's levels for every colour."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fastload._transforms.pixels import operations
from native_core import open_files, submit

pytestmark = pytest.mark.native

SIDE = 256


def test_the_hue_of_every_colour_is_shifted_as_pillow_shifts_it(
    tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    # Each colour with one of the shifts; make test-long: with all of them.
    for first in range(count(1, 256)):
        for red in range(256):
            shift = (red * 37 + first) & 255
            colors = plane(red)
            ours = shifted_by_the_core(tmp_path, colors, shift)
            assert np.array_equal(ours, shifted_by_pillow(colors, shift)), (red, shift)


def plane(red: int) -> np.ndarray:
    """All colours with this much red: uint8 (256, 256, 3)."""
    green, blue = np.mgrid[:SIDE, :SIDE].astype(np.uint8)
    return np.stack([np.full_like(green, red), green, blue], -1)


def shifted_by_pillow(colors: np.ndarray, shift: int) -> np.ndarray:
    hsv = np.array(Image.fromarray(colors).convert("HSV"))
    hsv[..., 0] += np.uint8(shift)
    bands = [Image.fromarray(np.ascontiguousarray(hsv[..., band])) for band in range(3)]
    return np.asarray(Image.merge("HSV", bands).convert("RGB"))


def shifted_by_the_core(tmp_path: Path, colors: np.ndarray, shift: int) -> np.ndarray:
    path = tmp_path / "colors.bmp"
    Image.fromarray(colors).save(path)
    stages = (
        np.full((1, 2), SIDE, np.int32),
        np.full((1, 1), operations.HUE, np.int32),
        np.full((1, 1, 1), shift, np.float64),
        np.array([[[0, 0, SIDE, SIDE, SIDE, SIDE, 0, 0, 0, SIDE, SIDE]]], np.int32),
        np.array([[1, 2, 0, 0, 0]], np.int32),
    )
    done = submit(open_files([path]), [[0, 0, SIDE, SIDE]], stages=stages).wait()
    assert done.status.tolist() == [0]
    return done.images[0]
