"""Replaying a recording: eagerly, with Pillow and torch, what the user's code would have got."""

from __future__ import annotations

import contextlib
import io
import os
from typing import Any

import PIL.Image
import torch
from PIL.ImageFile import ImageFile
from PIL.PngImagePlugin import PngImageFile

from ... import _native
from ...storage._crc import crc32c
from ...storage._read import open_regular, pread_all
from ...storage._spans import ENCODED
from . import stamps
from .headers import SETTLED, png_ends_with_pixels
from .operations import IMAGE_OPERATIONS, TENSOR_OPERATIONS
from .recording import Opened, Operation, Recording, Stored
from .thread_state import THREAD, eagerly, note_failure, note_made

NO_IMAGE = PIL.Image.new("1", (1, 1))  # of what came as a tensor


class FileChanged(OSError):
    """A file, or a record of a store, is no longer what it was when it was opened."""


def record_bytes(opened: Opened, stored: Stored) -> bytes:
    """The bytes of a record.

    Raises:
        FileChanged: its file is shorter than it was, or is gone, or its checksum does not match.
    """
    data = opened.data if opened.path is None else _read(opened.path, stored)
    assert data is not None, "what has no path has its bytes"
    if stored.checksum is not None and crc32c(data) != stored.checksum:
        raise FileChanged(f"{opened.path}: the CRC32C of a record does not match")
    return data


def _read(path: str, stored: Stored) -> bytes:
    try:
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            size = os.fstat(file.fileno()).st_size
            nbytes = size - stored.offset if stored.nbytes < 0 else stored.nbytes
            data = pread_all(file.fileno(), nbytes, stored.offset)
    except (OSError, ValueError) as error:
        raise FileChanged(f"{path} can no longer be read: {error}") from error
    if len(data) != nbytes:
        raise FileChanged(f"{path} is shorter than it was: was it truncated?")
    return data


def encoded(opened: Opened) -> bytes:
    """The bytes of an image that was opened.

    Raises:
        FileChanged: its file changed since, or is gone.
    """
    if opened.stored is not None:
        return record_bytes(opened, opened.stored)
    if opened.data is not None:
        return opened.data
    assert opened.path is not None
    try:
        with open(opened.path, "rb", buffering=0) as file:
            before = stamps.of_path(file.fileno())
            data = file.read()
    except OSError as error:
        raise FileChanged(
            f"{opened.path} was opened, but can no longer be read: {error}"
        ) from error
    if before != opened.stamp:
        raise FileChanged(
            f"{opened.path} changed after it was opened and before it was decoded: a Dataset that "
            "writes its files while they are read needs FastLoader(engine='torch')"
        )
    return data


def reopen(opened: Opened) -> ImageFile:
    """The image as ``PIL.Image.open`` gave it: the header read, the body not."""
    with eagerly():
        return PIL.Image.open(io.BytesIO(encoded(opened)))


def load_rows(image: PIL.Image.Image, *, adds_info: bool = True) -> bool:
    """Load a PNG of any mode as ``image.load()`` does, with rows of the core's; whether it did.

    Measured: in a quarter to two fifths of Pillow's time. All but the rows is Pillow's, to which
    they look like a file without compression.

    ``adds_info``: also where loading may add to the ``info``.
    """
    core = _native.load()
    if core is None or type(image) is not PngImageFile:
        return False
    kinds = [kind for kind, *_ in image.tile or ()]  # None in old releases
    file = image.fp
    if kinds != ["zip"] or type(file) is not io.BytesIO or file.closed:
        return False
    data = file.getvalue()
    rows = core.png_rows(data) if adds_info or png_ends_with_pixels(data) else None
    if rows is None:
        return False
    ((_, *others),) = image.tile
    image.tile = [("raw", *others)]  # type: ignore[list-item] # a plain tuple in old releases
    chunks = iter((rows,))
    vars(image)["load_read"] = lambda nbytes: next(chunks, b"")
    image.load()
    del vars(image)["load_read"]
    return True


def _decoded_record(opened: Opened, stored: Stored) -> PIL.Image.Image:
    """The image of a record, decoded with Pillow.

    Raises:
        DecodeError: it is damaged, or not of its size.
        FileChanged: it cannot be read any more.
    """
    from ..._engine.pillow import decoded

    with eagerly():
        data = record_bytes(opened, stored)
        return decoded(data, stored.kind, opened.size, path=opened.path, offset=stored.offset)


def record_info(opened: Opened, stored: Stored) -> dict[str | tuple[int, int], Any] | None:
    """``Image.info`` of a record; None: only decoding it tells."""
    if stored.kind != ENCODED:
        return None
    data = record_bytes(opened, stored)
    with eagerly(), PIL.Image.open(io.BytesIO(data)) as image:
        return dict(image.info) if image.format in SETTLED else None


def _decoded(opened: Opened) -> PIL.Image.Image:
    """The image, decoded: to make others of, not to be changed."""
    if THREAD.decoded is not None and THREAD.decoded[0] is opened:
        return THREAD.decoded[1]
    if opened.stored is not None:
        image = _decoded_record(opened, opened.stored)
    else:
        image = reopen(opened)
        if not load_rows(image):
            image.load()
    note_made(opened)
    if THREAD.deferring:
        THREAD.decoded = opened, image
    return image


def _by_torchvision(opened: Opened, operations: tuple[Operation, ...]) -> torch.Tensor:
    """What torchvision.io gave: ``operations`` are those up to the tensor."""
    from torchvision.io import ImageReadMode

    mode = ImageReadMode.RGB if ("convert", "RGB") in operations else ImageReadMode.UNCHANGED
    data = torch.frombuffer(bytearray(encoded(opened)), dtype=torch.uint8)
    # Below the functions that warn: the user's code has been warned.
    image = torch.ops.image
    decode = image.decode_jpeg if opened.format == "JPEG" else image.decode_png
    tensor: torch.Tensor = decode(data, mode.value, False)
    note_made(opened)
    return tensor


def replay(recording: Recording) -> PIL.Image.Image | torch.Tensor:
    """What the user's code would have got: a PIL image or a plain tensor.

    Raises:
        FileChanged: the file changed since it was opened.
        Whatever Pillow raises for a damaged body.
    """
    try:
        return _replayed(recording)
    except Exception:
        note_failure()
        raise


def _replayed(recording: Recording) -> PIL.Image.Image | torch.Tensor:
    operations = recording.operations
    tensor: torch.Tensor | None = None
    if recording.opened.library == "torchvision":
        end = operations.index(("to_image",)) + 1
        tensor, operations = _by_torchvision(recording.opened, operations[:end]), operations[end:]
        image = NO_IMAGE
    else:
        image = _decoded(recording.opened) if operations else reopen(recording.opened)
    return changed(image, operations, tensor)


def _recorded_in() -> contextlib.AbstractContextManager[object]:
    """The state of torch in which operations are recorded; now it may be another one.

    Only then it is entered: measured, that takes as long as half of a small image's operations.
    """
    if torch.is_autocast_enabled("cpu") or torch._C._len_torch_function_stack():
        state = contextlib.ExitStack()
        state.enter_context(torch.autocast("cpu", enabled=False))
        state.enter_context(torch.device("cpu"))
        return state
    return contextlib.nullcontext()


def changed(
    image: PIL.Image.Image, operations: tuple[Operation, ...], tensor: torch.Tensor | None = None
) -> PIL.Image.Image | torch.Tensor:
    """What the operations make of an image, or of its tensor."""
    with eagerly(), _recorded_in():
        for name, *arguments in operations:
            operation = IMAGE_OPERATIONS.get(name)
            if operation is not None:
                image = operation.replay(image, *arguments)
            else:
                value = image if tensor is None else tensor
                tensor = TENSOR_OPERATIONS[name].replay(value, *arguments)
    return image if tensor is None else tensor
