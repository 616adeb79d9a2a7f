"""``PIL.Image.fromarray`` that gives deferred images: datasets in memory open theirs with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import PIL

from ..._base.pixel_limit import is_within
from ...storage.base import RAW
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
        # Only colours, of which Pillow makes a copy: a gray image would share the array's memory.
        if (
            not THREAD.deferring
            or not THREAD.batch.arrays
            or not _plain(mode)
            or type(obj) is not np.ndarray
            or obj.dtype != np.uint8
            or obj.ndim != 3
            or obj.shape[2] != 3
            or not obj.size
            or not is_within(obj.shape[1], obj.shape[0])
        ):
            return original(obj, mode)
        THREAD.batch.opened += 1
        THREAD.batch.given += 1
        return deferred_pixels(obj.tobytes(), (obj.shape[1], obj.shape[0]))

    return fromarray


def deferred_pixels(data: bytes, size: tuple[int, int]) -> DeferredImage:
    """A deferred image of ``size`` (w, h) of its pixels: RGB, row by row."""
    stored = Stored(RAW, 0, len(data), mapped=False, checksum=None)
    opened = Opened(None, data, None, size, "RGB", "", stored=stored)
    image = DeferredImage(Recording(opened, COPY, size, "RGB"))
    image.info = {}
    image._loaded = True  # there is nothing that could be damaged
    return image
