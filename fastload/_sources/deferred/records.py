"""Reading a record of a store for one deferred image, with Pillow: what the core does not do."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

import PIL.Image

from ...storage._crc import crc32c
from ...storage._read import open_regular, pread_all
from ...storage.base import ENCODED
from .headers import SETTLED
from .recording import Opened, Stored
from .thread_state import eagerly

if TYPE_CHECKING:
    from PIL.Image import Image


class RecordChanged(OSError):
    """A record is no longer what it was when the store was opened."""


def record_bytes(opened: Opened, stored: Stored) -> bytes:
    """The bytes of a record.

    Raises:
        RecordChanged: its file is shorter than it was, or is gone, or its checksum does not match.
    """
    data = opened.data if opened.path is None else _read(opened.path, stored)
    assert data is not None, "what has no path has its bytes"
    if stored.checksum is not None and crc32c(data) != stored.checksum:
        raise RecordChanged(f"{opened.path}: the CRC32C of a record does not match")
    return data


def _read(path: str, stored: Stored) -> bytes:
    try:
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            size = os.fstat(file.fileno()).st_size
            nbytes = size - stored.offset if stored.nbytes < 0 else stored.nbytes
            data = pread_all(file.fileno(), nbytes, stored.offset)
    except (OSError, ValueError) as error:
        raise RecordChanged(f"{path} can no longer be read: {error}") from error
    if len(data) != nbytes:
        raise RecordChanged(f"{path} is shorter than it was: was it truncated?")
    return data


def decoded_record(opened: Opened, stored: Stored) -> Image:
    """The image of a record, decoded with Pillow.

    Raises:
        DecodeError: it is damaged, or not of its size.
        RecordChanged: it cannot be read any more.
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
