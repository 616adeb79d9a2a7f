"""The columns of records that are being written, and their form in a partial store's journal."""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from .base import Batch

_CHUNK = struct.Struct("<4sIQII")  # magic, records, payload bytes, has labels, CRC-32 of payload
_MAGIC = b"FLJ1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns:
    """What is kept of n records beside their bytes.

    Attributes:
        labels: int64 (n,), or None without labels.
        sizes: int32 (n, 2), width and height.
        crc32c: uint32 (n,).
        kinds: uint8 (n,).
        nbytes: int64 (n,), length of each record.
        key_ends: int64 (n,), where each key ends in ``keys``.
        keys: the keys in UTF-8 (undecodable bytes of file names as they are), one after the other.
    """

    labels: np.ndarray | None
    sizes: np.ndarray
    crc32c: np.ndarray
    kinds: np.ndarray
    nbytes: np.ndarray
    key_ends: np.ndarray
    keys: bytes

    def __len__(self) -> int:
        return len(self.kinds)

    def all_keys(self) -> list[str]:
        """Every key, in order."""
        ends = self.key_ends.tolist()
        starts = [0, *ends[:-1]]
        return [
            self.keys[a:b].decode("utf-8", "surrogateescape")
            for a, b in zip(starts, ends, strict=True)
        ]


def of_batch(batch: Batch) -> Columns:
    """The columns of one batch."""
    keys = [key.encode("utf-8", "surrogateescape") for key in batch.keys]
    lengths = np.fromiter((len(key) for key in keys), np.int64, len(keys))
    return Columns(
        labels=batch.labels,
        sizes=batch.sizes,
        crc32c=batch.crc32c,
        kinds=batch.kinds,
        nbytes=np.fromiter((len(data) for data in batch.data), np.int64, len(keys)),
        key_ends=np.cumsum(lengths),
        keys=b"".join(keys),
    )


def join(parts: Sequence[Columns], *, labelled: bool = False) -> Columns:
    """All of ``parts`` as one. ``labelled`` says whether zero parts have a label column."""
    if not parts:
        return Columns(
            labels=np.empty(0, np.int64) if labelled else None,
            sizes=np.empty((0, 2), np.int32),
            crc32c=np.empty(0, np.uint32),
            kinds=np.empty(0, np.uint8),
            nbytes=np.empty(0, np.int64),
            key_ends=np.empty(0, np.int64),
            keys=b"",
        )
    start = np.cumsum([0] + [len(part.keys) for part in parts[:-1]])
    labels = [part.labels for part in parts if part.labels is not None]
    return Columns(
        labels=np.concatenate(labels) if labels else None,
        sizes=np.concatenate([part.sizes for part in parts]),
        crc32c=np.concatenate([part.crc32c for part in parts]),
        kinds=np.concatenate([part.kinds for part in parts]),
        nbytes=np.concatenate([part.nbytes for part in parts]),
        key_ends=np.concatenate(
            [part.key_ends + at for part, at in zip(parts, start, strict=True)], dtype=np.int64
        ),
        keys=b"".join(part.keys for part in parts),
    )


def pack_chunk(columns: Columns) -> bytes:
    """``columns`` as one chunk of a journal."""
    arrays: list[Any] = [columns.sizes, columns.crc32c, columns.kinds, columns.nbytes]
    arrays += [columns.key_ends] + ([] if columns.labels is None else [columns.labels])
    payload = b"".join(array.tobytes() for array in arrays) + columns.keys
    labelled = columns.labels is not None
    return _CHUNK.pack(_MAGIC, len(columns), len(payload), labelled, zlib.crc32(payload)) + payload


def unpack_chunks(journal: bytes) -> tuple[list[Columns], list[int]]:
    """The whole chunks at the beginning of ``journal``, and where each ends.

    A chunk that a crash cut short, and what follows it, is left out.
    """
    chunks: list[Columns] = []
    ends: list[int] = []
    at = 0
    while at + _CHUNK.size <= len(journal):
        magic, count, nbytes, labelled, crc = _CHUNK.unpack_from(journal, at)
        payload = journal[at + _CHUNK.size : at + _CHUNK.size + nbytes]
        if magic != _MAGIC or len(payload) != nbytes or zlib.crc32(payload) != crc:
            break
        position = 0

        def take(
            dtype: str, width: int, payload: bytes = payload, count: int = count
        ) -> np.ndarray:
            nonlocal position
            array = np.frombuffer(payload, dtype, count * width, position)
            position += array.nbytes
            return array

        sizes, crc32c, kinds = take("<i4", 2).reshape(-1, 2), take("<u4", 1), take("u1", 1)
        nbytes_, key_ends = take("<i8", 1), take("<i8", 1)
        labels = take("<i8", 1) if labelled else None
        chunks.append(
            Columns(
                labels=labels,
                sizes=sizes,
                crc32c=crc32c,
                kinds=kinds,
                nbytes=nbytes_,
                key_ends=key_ends,
                keys=payload[position:],
            )
        )
        at += _CHUNK.size + nbytes
        ends.append(at)
    return chunks, ends
