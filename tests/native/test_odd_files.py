"""Other projects' odd PNG and WebP files: decoded as Pillow does, or left to Pillow.

FASTLOAD_ODD_IMAGES names a folder of them, such as the test images of Pillow, libpng (with
PngSuite) and libwebp.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import native_core
from fastload import _native

pytestmark = [pytest.mark.native, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def files() -> list[Path]:
    given = os.environ.get("FASTLOAD_ODD_IMAGES")
    if not given:
        pytest.skip("no odd images: set FASTLOAD_ODD_IMAGES to a folder of PNG and WebP files")
    suffixes = (".png", ".apng", ".webp")
    found = [path for path in Path(given).rglob("*") if path.suffix.lower() in suffixes]
    assert found, f"expected PNG or WebP files in FASTLOAD_ODD_IMAGES={given}"
    return sorted(found)


def test_odd_files_of_other_projects_are_pillows_pixels_or_left_to_pillow(
    files: list[Path],
) -> None:
    wrong = []
    decoded = 0
    for path in files:
        try:
            expected = native_core.pixels(path.read_bytes())
        except Exception:  # any: Pillow raises what it likes
            expected = None
        height, width = (1, 1) if expected is None else expected.shape[:2]
        opened = native_core.open_files([path])
        done = native_core.submit(opened, [(0, 0, width, height)], threads=0).wait()
        if done.status[0] == _native.OK:
            decoded += 1
            if expected is None or not np.array_equal(done.images[0], expected):
                wrong.append(path)
    assert not wrong
    assert decoded > len(files) // 2


def test_masks_of_other_projects_have_pillows_levels(files: list[Path]) -> None:
    wrong = []
    for path in files:
        data = path.read_bytes()
        levels = native_core.core().png_levels(data)
        if levels is not None:
            found = np.frombuffer(levels[0], np.uint8).reshape(levels[2], levels[1])
            if not np.array_equal(found, np.asarray(Image.open(io.BytesIO(data)))):
                wrong.append(path)
    assert not wrong
