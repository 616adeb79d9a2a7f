"""Affine maps read no pixel outside the copy of the source that they interpolate in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.native

AFFINE = 17
# The lower right of a large image, turned: the rows and columns before it are not copied, and most
# positions lie beyond the right or the lower edge, beside others that are inside.
PROGRAM = f"""
import numpy as np
from PIL import Image
import native_core

side = 2000
image = (np.arange(3 * side**2) % 251).astype(np.uint8).reshape(side, side, 3)
turned = [0.8, -0.6, 2300.0, 0.6, 0.8, 1300.0]
for filter in (2, 3):
    expected = Image.fromarray(image).transform(
        (side, side), Image.Transform.AFFINE, turned, Image.Resampling(filter)
    )
    found = image.copy()
    values = np.array([[*turned, filter, 0, 0, 0]], np.float64)
    native_core.core().pixels(found, np.array([{AFFINE}], np.int32), values)
    assert found.any()
    assert np.array_equal(found, np.asarray(expected))
print("equal")
"""


def test_an_affine_map_of_a_corner_reads_nothing_before_its_copy() -> None:
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "MALLOC_MMAP_THRESHOLD_": "65536",  # the copy is a map: nothing readable lies before it
        },
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "equal\n"), done.stderr
