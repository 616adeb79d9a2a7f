"""The framing of MXNet's RecordIO, and the header that im2rec writes before an image.

    piece        u32 magic | u32 part << 29 | length | data | zeros up to a multiple of 4
    record       one piece of part 0; or, where the data holds the magic at a multiple of 4, a piece
                 of part 1, any of part 2 and one of part 3: the data cut at each magic, which is
                 left out
    data         u32 flag | f32 label | u64 id | u64 id2 | `flag` x f32 labels | image

Sources: dmlc-core's ``include/dmlc/recordio.h`` and ``src/recordio.cc``; ``IRHeader`` in MXNet's
``python/mxnet/recordio.py``.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator

import numpy as np

from ...errors import StoreError
from .._mapped import Mapped

MAGIC = 0xCED7230A
HEAD = 8  # bytes of a piece before its data
MAX_NBYTES = (1 << 29) - 1  # of the data of a piece
HEADER = np.dtype([("flag", "<u4"), ("label", "<f4"), ("id", "<u8"), ("id2", "<u8")])

_HEAD = struct.Struct("<II")
MAGIC_BYTES = _HEAD.pack(MAGIC, 0)[:4]
_WHOLE, _FIRST, _MIDDLE, _LAST = 0, 1, 2, 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frames:
    """Where n records lie.

    Attributes:
        frame: int64 (n,), where each record's first piece starts.
        offset, nbytes: int64 (n,), of its data, or of the data of its first piece.
        split: record in several pieces -> offset and length of the data of each piece.
    """

    frame: np.ndarray
    offset: np.ndarray
    nbytes: np.ndarray
    split: dict[int, list[tuple[int, int]]]


def pieces(data: bytes) -> Iterator[bytes]:
    """The framed pieces of a record with ``data``, at most ``MAX_NBYTES``; together, the record."""
    cuts, at = [], data.find(MAGIC_BYTES)
    while at >= 0:
        if at % 4 == 0:
            cuts.append(at)
        at = data.find(MAGIC_BYTES, at + 1 + (at % 4 == 0) * 3)
    start = 0
    for number, cut in enumerate(cuts):
        yield _piece(_MIDDLE if number else _FIRST, data[start:cut])
        start = cut + 4
    yield _piece(_LAST if cuts else _WHOLE, data[start:])


def head(nbytes: int) -> bytes:
    """The bytes before ``nbytes`` bytes of data that do not contain the magic."""
    return _HEAD.pack(MAGIC, nbytes)


def has_magic(data: bytes | memoryview) -> bool:
    """Whether ``data`` contains the magic at a multiple of 4."""
    # Comparing words takes 5 us for a photo, searching for the bytes 100.
    return bool((np.frombuffer(data, "<u4", len(data) // 4) == MAGIC).any())


def _piece(part: int, data: bytes) -> bytes:
    return _HEAD.pack(MAGIC, part << 29 | len(data)) + data + bytes(-len(data) % 4)


def join(data: Mapped, parts: list[tuple[int, int]]) -> bytes:
    """The data of a record that lies in several pieces of the mapped file ``data``."""
    return MAGIC_BYTES.join(bytes(data[offset : offset + nbytes]) for offset, nbytes in parts)


def pieces_at(data: Mapped, at: int, path: str, record: int) -> list[tuple[int, int]]:
    """Offset and length of the data of each piece of the record that starts at ``at``."""
    places: list[tuple[int, int]] = []
    part = _FIRST
    while part != _LAST:
        if len(data) - at < HEAD:
            raise _bad("the file is truncated in a record of several pieces", path, record, at)
        magic, word = _HEAD.unpack_from(data, at)
        length, part = word & MAX_NBYTES, word >> 29
        expected = (_MIDDLE, _LAST) if places else (_FIRST,)
        if magic != MAGIC or part not in expected or length > len(data) - at - HEAD:
            raise _bad("expected a piece of a record, found other bytes", path, record, at)
        places.append((at + HEAD, length))
        at += HEAD + length + (-length & 3)
    return places


def frames(data: Mapped, path: str) -> Frames:
    """Where every record of a whole file lies."""
    begin: list[int] = []
    lengths: list[int] = []
    split: dict[int, list[tuple[int, int]]] = {}
    at, end, unpack = 0, len(data), _HEAD.unpack_from
    inside = False  # between the first and the last piece of a record
    while at < end:
        record = len(begin) - inside
        if end - at < HEAD:
            raise _bad(f"the file is truncated: expected {HEAD} bytes, found {end - at}", path,
                       record, at)  # fmt: skip
        magic, word = unpack(data, at)
        length, part = word & MAX_NBYTES, word >> 29
        if magic != MAGIC or part > _LAST or inside != (part in (_MIDDLE, _LAST)):
            raise _bad(
                "expected the start of a RecordIO record, found other bytes: this is not a "
                "RecordIO file, or it is damaged",
                path, record, at,
            )  # fmt: skip
        if length > end - at - HEAD:
            raise _bad(
                f"the file is truncated: expected {HEAD + length} bytes, found {end - at}",
                path, record, at,
            )  # fmt: skip
        if part in (_WHOLE, _FIRST):
            begin.append(at)
            lengths.append(length)
        if part != _WHOLE:
            split.setdefault(record, []).append((at + HEAD, length))
            inside = part != _LAST
        at += HEAD + length + (-length & 3)
    if inside:
        raise _bad("the file is truncated: expected the last piece of a record, found none", path,
                   len(begin) - 1, begin[-1])  # fmt: skip
    frame = np.array(begin, np.int64)
    return Frames(frame=frame, offset=frame + HEAD, nbytes=np.array(lengths, np.int64), split=split)


def _bad(message: str, path: str, record: int, offset: int) -> StoreError:
    return StoreError(f"{message}; copy or pack it again", path=path, record=record, offset=offset)


def headers(data: Mapped, places: Frames, path: str) -> np.ndarray:
    """The header (``HEADER``) of each record, whose labels lie inside the data."""
    out = np.zeros(len(places.offset), HEADER)
    nbytes = places.nbytes.copy()
    plain = np.ones(len(out), bool)
    for record, parts in places.split.items():
        whole = join(data, parts)
        plain[record], nbytes[record] = False, len(whole)
        if len(whole) >= HEADER.itemsize:
            out[record] = np.frombuffer(whole, HEADER, 1)[0]
    short = nbytes < HEADER.itemsize
    plain &= ~short
    if plain.any():
        bytes_ = np.frombuffer(data, np.uint8)
        rows = np.lib.stride_tricks.sliding_window_view(bytes_, HEADER.itemsize)
        out[plain] = rows[places.offset[plain]].view(HEADER)[:, 0]
    short |= HEADER.itemsize + 4 * out["flag"].astype(np.int64) > nbytes
    wrong = np.flatnonzero(short)
    if len(wrong):
        record = int(wrong[0])
        raise _bad(
            f"expected a header of {HEADER.itemsize} bytes and its labels in the record, found a "
            f"record of {int(nbytes[record])} bytes",
            path, record, int(places.frame[record]),
        )  # fmt: skip
    return out
