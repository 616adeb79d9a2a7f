"""torchvision.io's functions that read images: while deferring, they give deferred tensors.

Only JPEGs and PNGs of 8 bits, RGB and gray, in the modes for which the core gives torchvision's
values. Gray PNGs are masks, whose pixels most programs ask for at once: the core decodes them there
and then. Everything else, errors included, is torchvision's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ... import _native
from . import headers, openers, single
from .guarded import Function
from .recording import Opened, Operation, Recording
from .tensor import Deferred, DeferredTensor
from .thread_state import THREAD

_MODES = ("RGB", "L")


def reader(warnings: int) -> Callable[[Function], Function]:
    """``read_image`` or ``decode_image``; ``warnings``: how often releases warn that deprecate it.

    Given bytes, they warn once less.
    """

    def make(original: Function) -> Function:
        def function(*args: Any) -> Any:
            if THREAD.deferring:
                try:
                    tensor = _read(*args)
                except TypeError:  # arguments that are not known here
                    tensor = None
                if tensor is not None:
                    warn = original.__globals__.get("_warn_deprecated", lambda: None)
                    for _ in range(warnings - isinstance(args[0], torch.Tensor)):
                        warn()
                    return tensor
            return original(*args)

        return function

    return make


def _read(input: Any, mode: Any, apply_exif_orientation: Any = False) -> torch.Tensor | None:
    name = getattr(mode, "name", mode)
    if not isinstance(name, str):
        return None
    new_mode = {"UNCHANGED": "", "RGB": "RGB", "GRAY": "L"}.get(name.upper())
    if new_mode is None or apply_exif_orientation is not False:
        return None
    if not isinstance(input, torch.Tensor):
        file = openers.at_path(str(input))  # as torchvision, which knows no bytes
    elif isinstance(input, Deferred) or input.dtype != torch.uint8 or input.ndim != 1:
        return None
    elif input.device.type != "cpu" or input.requires_grad or not input.is_contiguous():
        return None
    else:
        file = openers.of_bytes(input.numpy().tobytes())
    if file is None:
        return None
    path, data, stamp, header = file
    if header is None or header.format != "JPEG":
        opened = _png(path, data, new_mode)
    else:
        opened = Opened(path, data, stamp, header.size, header.mode, "JPEG", "torchvision")
    if opened is None or opened.mode not in _MODES:
        return None
    operations: tuple[Operation, ...] = (("to_image",),)
    new_mode = new_mode or opened.mode
    if new_mode != opened.mode:
        if new_mode == "L":
            return None  # of a colour image torchvision takes the luminance that is in the file
        operations = (("convert", new_mode), *operations)
    batch = THREAD.batch
    if opened.format == "PNG" and new_mode == "L":
        tensor = single.tensor(
            Recording(opened, operations, opened.size, new_mode), single.ROWS_OF_PIXELS
        )
        batch.read += tensor is not None
        return tensor
    batch.opened += 1
    if batch.checks:
        opened = single.checked(opened)
    if batch.unmade is not None:
        batch.unmade[id(opened)] = opened
    return DeferredTensor(Recording(opened, operations, opened.size, new_mode))


def _png(path: str | None, data: bytes | None, new_mode: str) -> Opened | None:
    """A PNG that torchvision decodes as the core does, with its bytes: they had to be looked at.

    ``new_mode``: the mode; "": that of the file.
    """
    core = _native.load()
    if core is None or core.png_version() is None:
        return None
    if data is None:
        assert path is not None
        with open(path, "rb", buffering=0) as file:
            data = file.read(headers.PNG_HEAD)
            if headers.png(data) is not None:
                data += file.read()
    mode, size = headers.png(data) or ("", (0, 0))
    if mode not in _MODES or (new_mode or mode) != mode or not headers.is_plain_png(data):
        return None
    return Opened(None, data, None, size, mode, "PNG", "torchvision")
