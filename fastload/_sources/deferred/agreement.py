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

from ... import _native
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

    It decodes to uint8 (h, w, 3), red first, or (h, w) for a gray one.
    """
    alike = all(np.array_equal(ours, theirs(data)) for data, ours in _examples())
    return "" if alike else OTHER


@functools.cache
def _examples() -> list[tuple[bytes, np.ndarray]]:
    """Files, and what the core makes of them."""
    core = _native.load()
    assert core is not None, "nothing is exchanged without it"
    examples: list[tuple[bytes, np.ndarray]] = []
    coarse = np.random.default_rng(0).integers(0, 256, (10, 12, 3), np.uint8)
    with eagerly():
        picture = PIL.Image.fromarray(coarse).resize(_SIZE, PIL.Image.Resampling.BICUBIC)
        for mode, options in _KINDS:
            stream = io.BytesIO()
            picture.convert(mode).save(stream, "JPEG", **options)
            data, ours = stream.getvalue(), np.empty_like(np.asarray(picture.convert(mode)))
            decoded = core.decode(data, ours)
            assert decoded, "the core decodes every kind"
            examples.append((data, ours))
    return examples
