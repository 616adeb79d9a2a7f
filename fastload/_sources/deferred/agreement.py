"""Whether another library decodes JPEGs as the core does, bit for bit.

OpenCV and torchvision decode JPEGs with the libjpeg-turbo that they were built with. A build with
another library, or with other settings, gives other pixels, and the core must not stand in for it.
So before such a function is exchanged, both decode a few made JPEGs.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import PIL.Image
import torch

from . import single
from .operations import Layout
from .recording import Opened, Recording
from .thread_state import eagerly

_SIZE: Final = (45, 37)  # not a whole number of blocks
_KINDS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("RGB", {"subsampling": 0}),
    ("RGB", {"subsampling": 1}),
    ("RGB", {"subsampling": 2}),
    ("RGB", {"subsampling": 2, "progressive": True, "quality": 95}),
    ("L", {}),
)


OTHER: Final = "it decodes JPEGs in another way than fastload's core"


def fault(theirs: Callable[[bytes], np.ndarray]) -> str:
    """What is wrong with JPEGs of every usual subsampling, if ``theirs`` decodes them; "": nothing.

    Args:
        theirs: decodes a JPEG to uint8 (h, w, 3), red first, or (h, w) for a gray one.
    """
    alike = all(np.array_equal(ours, theirs(data)) for data, ours in _examples())
    return "" if alike else OTHER


@functools.cache
def _examples() -> list[tuple[bytes, np.ndarray]]:
    """Files, and what the core makes of them."""
    made: list[tuple[bytes, np.ndarray]] = []
    coarse = np.random.default_rng(0).integers(0, 256, (10, 12, 3), np.uint8)
    with eagerly():
        picture = PIL.Image.fromarray(coarse).resize(_SIZE, PIL.Image.Resampling.BICUBIC)
        for mode, options in _KINDS:
            stream = io.BytesIO()
            picture.convert(mode).save(stream, "JPEG", **options)
            data = stream.getvalue()
            opened = Opened(None, data, None, _SIZE, mode, "JPEG")
            ended = Recording(opened, (("to_image",),), _SIZE, mode)
            ours = single.tensor(ended, Layout(torch.uint8, contiguous=False), least_pixels=0)
            assert ours is not None, "the core decodes every kind"
            levels = ours.permute(1, 2, 0).numpy()
            made.append((data, levels[:, :, 0] if mode == "L" else levels))
    return made
