"""Arrays that become deferred images: ``PIL.Image.fromarray``, and what makes tensors of arrays.

Their pixels are copied there and then, as Pillow and torchvision copy them. What is asked of them
from then on is done for the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import PIL

from ..._base.pixel_limit import is_within
from ...storage._spans import RAW
from .image import COPY, DeferredImage
from .recording import Opened, Recording, Stored
from .thread_state import THREAD

# Pillow 11.3 warns of a mode, as no other version does.
_TAKES_MODE = PIL.__version__.split(".")[:2] != ["11", "3"]


def _plain(mode: Any) -> bool:
    """Whether Pillow takes the bytes of an array of colours as they are, given this mode."""
    return mode is None or (_TAKES_MODE and type(mode) is str and mode == "RGB")


def from_array(original: Callable[..., Any]) -> Callable[..., Any]:
    """``PIL.Image.fromarray``, given the original one."""

    def fromarray(obj: Any, mode: Any = None) -> Any:
        if not (type(obj) is np.ndarray and may_defer(obj) and _plain(mode)):
            return original(obj, mode)
        return deferred_array(obj)

    return fromarray


def may_defer(array: np.ndarray) -> bool:
    """Whether an image of this array may be deferred: on this thread, in this batch."""
    # Only colours, of which Pillow makes a copy: a gray image would share the array's memory.
    return (
        bool(THREAD.deferring)
        and array.dtype == np.uint8
        and array.ndim == 3
        and array.shape[2] == 3
        and array.size > 0
        and is_within(array.shape[1], array.shape[0])
    )


def note_array() -> None:
    """Count an image that is made of an array."""
    THREAD.batch.opened += 1
    THREAD.batch.given += 1


def deferred_array(array: np.ndarray) -> DeferredImage:
    """A deferred image of the pixels of an array for which ``may_defer`` holds."""
    note_array()
    return deferred_pixels(array.tobytes(), (array.shape[1], array.shape[0]))


def deferred_pixels(data: bytes, size: tuple[int, int]) -> DeferredImage:
    """A deferred image of ``size`` (w, h) of its pixels: RGB, row by row."""
    stored = Stored(RAW, 0, len(data), mapped=False, checksum=None)
    opened = Opened(None, data, None, size, "RGB", "", stored=stored)
    return DeferredImage.of_pixels(Recording(opened, COPY, size, "RGB"))
