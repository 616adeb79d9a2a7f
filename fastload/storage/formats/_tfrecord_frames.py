"""The framing of TFRecord files: where records lie, with the checksum of each length.

    record       u64 length | u32 masked CRC32C of the length | data | u32 masked CRC32C of the data

Source: tensorflow's ``tensorflow/core/lib/io/record_writer.h``; the mask is that of
``tensorflow/core/lib/hash/crc32c.h``.
"""

from __future__ import annotations

import struct
from typing import TypeVar

import numpy as np

from ...errors import StoreError
from .._crc import crc32c, crc32c_blocks
from .._mapped import Mapped

HEAD, TAIL = 12, 4  # bytes before and after the data of a record

_LENGTH = struct.Struct("<Q")
_Crc = TypeVar("_Crc", int, np.ndarray)
_CHUNK = 1 << 16  # records whose lengths are checked together: arrays that stay in the cache


def masked(crc: _Crc) -> _Crc:
    """A CRC32C, or an array of these, as TFRecord stores it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def head(nbytes: int) -> bytes:
    """The bytes before ``nbytes`` bytes of data."""
    length = _LENGTH.pack(nbytes)
    return length + masked(crc32c(length)).to_bytes(4, "little")


def frames(data: Mapped, path: str) -> tuple[np.ndarray, np.ndarray]:
    """Offset and length (int64) of the data of every record of a whole file."""
    end, unpack = len(data), _LENGTH.unpack_from
    at, count, parts = 0, 0, []
    while at < end:
        offsets: list[int] = []
        while at < end and len(offsets) < _CHUNK:  # to find a damaged length soon
            offsets.append(at)
            if end - at < HEAD + TAIL:
                break
            at += unpack(data, at)[0] + (HEAD + TAIL)
        cut = at > end or end - offsets[-1] < HEAD + TAIL
        begin = np.array(offsets[:-1] if cut else offsets, np.int64)
        _check_lengths(data, begin, count, path)
        count += len(begin)
        if cut:
            raise _truncated(data, offsets[-1], count, path)
        parts.append(begin)
    begin = np.concatenate(parts) if parts else np.empty(0, np.int64)
    return begin + HEAD, np.diff(begin, append=end) - (HEAD + TAIL)


def check(data: Mapped, begin: int, end: int) -> tuple[int, list[tuple[int, str]]]:
    """As ``Framing.check``; behind a damaged length no frame can be found."""
    wrong: list[tuple[int, str]] = []
    view = memoryview(data)
    while begin < end:
        length = _LENGTH.unpack(view[begin : begin + 8])[0] if len(view) - begin > 8 else 0
        tail = begin + HEAD + length
        if view[begin : begin + HEAD] != head(length) or tail + TAIL > len(view):
            what = "expected the length of a TFRecord and its checksum, found other bytes"
            return len(view), [*wrong, (begin, what)]
        expected = int.from_bytes(view[tail : tail + TAIL], "little")
        found = masked(crc32c(view[begin + HEAD : tail]))
        if found != expected:
            what = f"expected the masked CRC32C {expected:08x} of a TFRecord, found {found:08x}"
            wrong.append((begin, what))
        begin = tail + TAIL
    return begin, wrong


def _truncated(data: Mapped, at: int, record: int, path: str) -> StoreError:
    rest = len(data) - at
    if rest < HEAD:
        what = f"the file is truncated: expected the {HEAD} bytes that start a record, found {rest}"
    else:
        length = _LENGTH.unpack_from(data, at)[0]
        if data[at : at + HEAD] != head(length):
            return _damaged(at, record, path)
        nbytes = HEAD + length + TAIL
        what = f"the file is truncated: expected a record of {nbytes} bytes, found {rest}"
    return StoreError(
        f"{what}; copy it again or pack it again", path=path, record=record, offset=at
    )


def _damaged(at: int, record: int, path: str) -> StoreError:
    return StoreError(
        "expected the length of a TFRecord and its checksum, found other bytes: this is not a "
        "TFRecord file, or it is damaged; copy it again or pack it again",
        path=path,
        record=record,
        offset=at,
    )


def _check_lengths(data: Mapped, begin: np.ndarray, first: int, path: str) -> None:
    """Compare the CRC32C of each length with the stored one; ``first``: number of the record."""
    if not len(begin):
        return
    heads = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), HEAD)[begin]
    crc = crc32c_blocks(np.ascontiguousarray(heads[:, :8]).data, 8)
    wrong = np.flatnonzero(np.ascontiguousarray(heads[:, 8:]).view("<u4")[:, 0] != masked(crc))
    if len(wrong):
        raise _damaged(int(begin[wrong[0]]), first + int(wrong[0]), path)
