"""torchvision.io's functions that read images: while deferring, they give deferred tensors.

Only JPEGs, RGB and gray, in the modes for which the core gives torchvision's values. Everything
else, errors included, is torchvision's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from stat import S_ISREG
from typing import Any

import torch

from . import headers, single, stamps
from .operations import Layout
from .recording import Opened, Operation
from .stamps import Stamp
from .tensor import DeferredTensor, _Deferred, _Memory
from .thread_state import THREAD
from .trial import Function


def reader(warnings: int) -> Callable[[Function], Function]:
    """read_image or decode_image."""

    def make(original: Function) -> Function:
        def read(input: Any, mode: Any, apply_exif_orientation: Any = False) -> Any:
            wanted = _wanted(mode)
            if wanted is None or apply_exif_orientation is not False:
                return None
            if isinstance(input, torch.Tensor):
                return _of_bytes(input, wanted), warnings - 1
            return _of_path(os.fspath(input), wanted), warnings

        return _first(read, original)

    return make


def decode_jpeg(original: Function) -> Function:
    """decode_jpeg."""

    def decode(
        input: Any, mode: Any, device: Any = "cpu", apply_exif_orientation: Any = False
    ) -> Any:
        wanted = _wanted(mode)
        if wanted is None or not isinstance(input, torch.Tensor):
            return None
        if device != "cpu" or apply_exif_orientation is not False:
            return None
        return _of_bytes(input, wanted), 1

    return _first(decode, original)


def _first(ours: Function, original: Function) -> Function:
    """Asks ``ours``, and then ``original``.

    ``ours`` gives None, or a tensor or None and how often to warn.
    """

    def function(*args: Any) -> Any:
        if THREAD.deferring:
            try:
                found = ours(*args)
            except TypeError:  # arguments that are not known here
                found = None
            if found is not None and found[0] is not None:
                warn = original.__globals__.get("_warn_deprecated", _no_warning)
                for _ in range(found[1]):
                    warn()
                return found[0]
        return original(*args)

    return function


def _no_warning() -> None:
    """Older versions are not deprecated."""


def _wanted(mode: Any) -> str | None:
    """ "RGB", "L" or "" for what the file has; None: another mode."""
    name = getattr(mode, "name", mode)
    if name is None:
        return ""
    if not isinstance(name, str):
        return None
    return {"UNCHANGED": "", "RGB": "RGB", "GRAY": "L"}.get(name.upper())


def _of_path(path: str, wanted: str) -> DeferredTensor | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError, TypeError):
        return None
    try:
        found = os.fstat(descriptor)
        if not S_ISREG(found.st_mode):
            return None
        if stamps.is_recent(found):
            with open(descriptor, "rb", closefd=False) as file:
                return _of_known(file.read(), wanted)
        header = headers.jpeg(lambda count, offset: os.pread(descriptor, count, offset))
    finally:
        os.close(descriptor)
    return _deferred(header, os.path.abspath(path), None, stamps.of(found), wanted)


def _of_bytes(data: torch.Tensor, wanted: str) -> DeferredTensor | None:
    if isinstance(data, _Deferred) or data.dtype != torch.uint8 or data.ndim != 1:
        return None
    if data.device.type != "cpu" or data.requires_grad:
        return None
    return _of_known(data.numpy().tobytes(), wanted)


def _of_known(known: bytes, wanted: str) -> DeferredTensor | None:
    header = headers.jpeg(lambda count, offset: known[offset : offset + count])
    return _deferred(header, None, known, None, wanted)


def _deferred(
    header: headers.Header | None,
    path: str | None,
    data: bytes | None,
    stamp: Stamp | None,
    wanted: str,
) -> DeferredTensor | None:
    if header is None or header.mode not in ("RGB", "L"):
        return None
    operations: tuple[Operation, ...] = (("to_image",),)
    mode = wanted or header.mode
    if mode != header.mode:
        if mode == "L":
            return None  # of a colour image torchvision takes the luminance that is in the file
        operations = (("convert", mode), *operations)
    opened = Opened(path, data, stamp, header.size, header.mode, "JPEG", "torchvision")
    batch = THREAD.batch
    batch.opened += 1
    if batch.checks:
        opened = single.checked(opened)
    if batch.asked is not None:
        batch.asked[id(opened)] = opened
    layout = Layout(torch.uint8, contiguous=False)
    return DeferredTensor._of(_Memory(opened, operations, header.size, mode, layout))
