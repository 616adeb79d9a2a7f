"""The columns of records that are being written, and their form in a partial store's journal.

A chunk of the journal is a head (magic, number of records, bytes of the JSON header, bytes of all
that follows, CRC-32 of it), a JSON header that lists arrays (name, dtype, shape) and fields, and
the arrays.
"""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import UsageError
from ._fields import (
    NONE,
    Blobs,
    Field,
    FieldColumn,
    Strings,
    encode_text,
    field_column,
    label_column,
    type_of_labels,
    types_of_fields,
)
from .base import Batch

_CHUNK = struct.Struct("<4sIIQI")
_MAGIC = b"FLJ2"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordColumns:
    """Everything about n records except their bytes; None: there is no such column.

    Attributes:
        nbytes: int64 (n,), length of each record.
        keys: in UTF-8 (undecodable bytes of file names unchanged).
        labels: int64, float32 or float64, (n,) or (n, k).
        sizes: int32 (n, 2), width and height; (0, 0) if unknown.
        kinds: uint8 (n,).
        crc32c: uint32 (n,).
    """

    nbytes: np.ndarray
    keys: Strings
    labels: np.ndarray | None = None
    sizes: np.ndarray | None = None
    kinds: np.ndarray | None = None
    crc32c: np.ndarray | None = None
    fields: Mapping[str, FieldColumn] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns(RecordColumns):
    """Those of records that are being written.

    Attributes:
        places: int64 (n, 5): number of the data file; where in it the record's frame starts, its
            bytes start, its frame ends; the frame's checksum. None if the format finds out by
            itself where records are.
    """

    keys: Blobs
    sizes: np.ndarray
    kinds: np.ndarray
    crc32c: np.ndarray
    places: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.kinds)

    def all_keys(self) -> list[str]:
        return self.keys.texts(np.arange(len(self)))

    def part(self, start: int, stop: int) -> Columns:
        indices = np.arange(start, stop)
        return dataclasses.replace(
            self,
            keys=Blobs.of(self.keys.take(indices)),
            fields={
                name: FieldColumn(
                    column.field,
                    Blobs.of(column.values.take(indices))
                    if isinstance(column.values, Strings)
                    else column.values[start:stop],
                )
                for name, column in self.fields.items()
            },
            **{
                name: array[start:stop]
                for name in _ARRAYS
                if (array := getattr(self, name)) is not None
            },
        )


@dataclasses.dataclass(frozen=True)
class Schema:
    """What all records of a store share: the type of their labels, and their fields."""

    labels: str
    fields: tuple[Field, ...]

    @classmethod
    def of(cls, labels: np.ndarray | None, fields: Mapping[str, FieldColumn]) -> Schema:
        return cls(type_of_labels(labels), tuple(column.field for column in fields.values()))

    def admit(self, other: Schema) -> None:
        """Raise UsageError unless records of ``other`` can follow records of this schema."""
        if (self.labels == NONE) != (other.labels == NONE):
            raise UsageError("expected a label in every record of the store or in none")
        if self.labels != other.labels:
            raise UsageError(
                "expected labels of one dtype and shape in the whole store, found "
                f"{self.labels} and {other.labels}"
            )
        if set(self.fields) != set(other.fields):
            raise UsageError(
                "expected the same fields in the whole store, found "
                f"{types_of_fields(self.fields)} and {types_of_fields(other.fields)}"
            )


def of_batch(batch: Batch) -> Columns:
    lengths = {name: len(getattr(batch, name)) for name in ("data", "sizes", "kinds", "crc32c")}
    lengths |= {} if batch.labels is None else {"labels": len(batch.labels)}
    lengths |= {name: len(values) for name, values in batch.fields.items()}
    count = len(batch.keys)
    wrong = {name: length for name, length in lengths.items() if length != count}
    if wrong:
        raise UsageError(f"expected {count} items in every column of the batch, found {wrong}")
    return Columns(
        labels=None if batch.labels is None else label_column(batch.labels),
        sizes=batch.sizes,
        crc32c=batch.crc32c,
        kinds=batch.kinds,
        nbytes=np.fromiter(map(len, batch.data), np.int64, count),
        keys=Blobs.of([encode_text(key) for key in batch.keys]),
        fields={
            name: field_column(name, values, batch.field_kinds.get(name))
            for name, values in batch.fields.items()
        },
    )


def join(parts: Sequence[Columns], *, labelled: bool = False) -> Columns:
    """All of ``parts`` as one. ``labelled``: whether the result of no parts has labels."""
    if not parts:
        return Columns(
            labels=np.empty(0, np.int64) if labelled else None,
            sizes=np.empty((0, 2), np.int32),
            crc32c=np.empty(0, np.uint32),
            kinds=np.empty(0, np.uint8),
            nbytes=np.empty(0, np.int64),
            keys=Blobs(np.empty(0, np.uint8), np.empty(0, np.int64)),
            places=np.empty((0, 5), np.int64),
        )
    return Columns(**join_columns(parts, _ARRAYS))


def join_columns(parts: Sequence[RecordColumns], names: Iterable[str]) -> dict[str, Any]:
    """Keys, fields and the arrays ``names`` of at least one part as one; None: a part lacks it."""
    joined: dict[str, Any] = {}
    for name in names:
        arrays = [getattr(part, name) for part in parts]
        joined[name] = None if any(array is None for array in arrays) else np.concatenate(arrays)
    joined["keys"] = Blobs.join([part.keys.whole() for part in parts])
    joined["fields"] = {
        name: _join_values([part.fields[name] for part in parts]) for name in parts[0].fields
    }
    return joined


def _join_values(columns: Sequence[FieldColumn]) -> FieldColumn:
    arrays, strings = [], []
    for column in columns:
        if isinstance(column.values, Strings):
            strings.append(column.values.whole())
        else:
            arrays.append(column.values)
    return FieldColumn(columns[0].field, Blobs.join(strings) if strings else np.concatenate(arrays))


_TYPES = {"sizes": "<i4", "crc32c": "<u4", "kinds": "u1", "nbytes": "<i8", "places": "<i8"}
_ARRAYS = ("labels", *_TYPES)


def _arrays(columns: Columns) -> dict[str, np.ndarray]:
    """Every array by its name in the journal; those of fields start with a slash."""
    arrays = {
        name: np.ascontiguousarray(array, dtype)
        for name, dtype in _TYPES.items()
        if (array := getattr(columns, name)) is not None
    }
    if columns.labels is not None:
        arrays["labels"] = columns.labels
    arrays |= {"keys": columns.keys.data, "key_ends": columns.keys.ends}
    return {**arrays, **field_arrays(columns.fields)}


def field_arrays(fields: Mapping[str, FieldColumn]) -> dict[str, np.ndarray]:
    """The arrays that hold ``fields``, by their names in files."""
    arrays: dict[str, np.ndarray] = {}
    for name, column in fields.items():
        if isinstance(column.values, Strings):
            whole = column.values.whole()
            arrays |= {f"/{name}/data": whole.data, f"/{name}/ends": whole.ends}
        else:
            arrays[f"/{name}"] = column.values
    return arrays


def fields_of(fields: Sequence[Field], arrays: Mapping[str, np.ndarray]) -> dict[str, FieldColumn]:
    """The inverse of ``field_arrays``. Raises KeyError for a field without its arrays."""
    return {
        field.name: FieldColumn(
            field,
            arrays[f"/{field.name}"]
            if field.kind == "array"
            else Blobs(arrays[f"/{field.name}/data"], arrays[f"/{field.name}/ends"]),
        )
        for field in fields
    }


def pack_chunk(columns: Columns) -> bytes:
    arrays = _arrays(columns)
    header = json.dumps(
        {
            "arrays": [[name, array.dtype.str, array.shape] for name, array in arrays.items()],
            "fields": [column.field.as_json() for column in columns.fields.values()],
        }
    ).encode()
    payload = b"".join([header, *(array.tobytes() for array in arrays.values())])
    crc = zlib.crc32(payload)
    return _CHUNK.pack(_MAGIC, len(columns), len(header), len(payload), crc) + payload


def unpack_chunks(journal: bytes) -> tuple[list[Columns], list[int]]:
    """The whole chunks at the start of ``journal``, and where each ends.

    A chunk that a crash truncated, and everything after it, is left out.
    """
    chunks: list[Columns] = []
    ends: list[int] = []
    at = 0
    while at + _CHUNK.size <= len(journal):
        magic, _, header_nbytes, nbytes, crc = _CHUNK.unpack_from(journal, at)
        payload = memoryview(journal)[at + _CHUNK.size : at + _CHUNK.size + nbytes]
        if magic != _MAGIC or len(payload) != nbytes or zlib.crc32(payload) != crc:
            break
        header = json.loads(bytes(payload[:header_nbytes]))
        arrays: dict[str, np.ndarray] = {}
        position = header_nbytes
        for name, dtype, shape in header["arrays"]:
            count = int(np.prod(shape, dtype=np.int64))
            arrays[name] = np.frombuffer(payload, dtype, count, position).reshape(shape)
            position += arrays[name].nbytes
        chunks.append(
            Columns(
                **{name: arrays[name] for name in ("sizes", "crc32c", "kinds", "nbytes")},
                labels=arrays.get("labels"),
                keys=Blobs(arrays["keys"], arrays["key_ends"]),
                fields=fields_of([Field.from_json(field) for field in header["fields"]], arrays),
                places=arrays.get("places"),
            )
        )
        at += _CHUNK.size + nbytes
        ends.append(at)
    return chunks, ends
