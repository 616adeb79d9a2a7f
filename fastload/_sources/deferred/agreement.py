"""Whether another library decodes JPEGs as the core does, bit for bit.

OpenCV and torchvision decode JPEGs with the libjpeg-turbo that they were built with. A build with
another library, or with other settings, gives other pixels, and the core must not stand in for it.
So before the core first does, both decode a few made JPEGs.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import PIL.Image

from . import single
from .recording import Opened, Recording
from .thread_state import batch, eagerly

_SIZE: Final = (101, 75)  # not a whole number of blocks
_KINDS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("RGB", {"subsampling": 0}),
    ("RGB", {"subsampling": 1}),
    ("RGB", {"subsampling": 2}),
    ("RGB", {"subsampling": 2, "progressive": True, "quality": 95}),
    ("L", {}),
)


def decodes_alike(theirs: Callable[[bytes], np.ndarray]) -> bool:
    """Whether ``theirs`` gives the core's pixels for JPEGs of every usual subsampling.

    Args:
        theirs: decodes a JPEG to uint8 (h, w, 3), red first, or (h, w) for a gray one.
    """
    with batch(None, arrays=True):  # whose cache and counts are not for the user's images
        return _decodes_alike(theirs)


def _decodes_alike(theirs: Callable[[bytes], np.ndarray]) -> bool:
    coarse = np.random.default_rng(0).integers(0, 256, (19, 26, 3), np.uint8)
    with eagerly():
        picture = PIL.Image.fromarray(coarse).resize(_SIZE, PIL.Image.Resampling.BICUBIC)
        for mode, options in _KINDS:
            stream = io.BytesIO()
            picture.convert(mode).save(stream, "JPEG", **options)
            data = stream.getvalue()
            opened = Opened(None, data, None, _SIZE, mode, "JPEG")
            ours = single.pixels(Recording(opened, (), _SIZE, mode))
            if ours is None or not np.array_equal(ours, theirs(data)):
                return False
    return True
