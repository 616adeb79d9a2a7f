"""Labels and named fields of records: their types, and columns made out of single values.

A field has one of four kinds. "array": every record has numbers of one dtype and shape, stored as
one column. "bytes", "text" (UTF-8), "json": values of any length, stored as ``Strings``.
"""

from __future__ import annotations

import abc
import json
import numbers
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from .._base.value_class import value_class
from ..errors import StoreError, StoreNotFoundError, UsageError

KINDS = ("array", "bytes", "text", "json")
RESERVED = ("image", "label", "key")  # names that samples use for something else
_MAX_NAME = 100  # characters
_LABELS = ("<i8", "<f4", "<f8")


@value_class()
class Field:
    """One named field of every record of a store.

    Attributes:
        name: at most 100 printable characters without a slash; not "image", "label" or "key".
        kind: "array", "bytes", "text" or "json".
        dtype: of an "array": bool, an integer or a float, little-endian; None for other kinds.
        shape: of one record's value in an "array", () for a number; () for other kinds.
    """

    name: str
    kind: str
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        name = self.name
        if not (0 < len(name) <= _MAX_NAME and name.isprintable()) or "/" in name:
            raise UsageError(
                f"expected a field name of 1 to {_MAX_NAME} printable characters without a slash, "
                f"got {name!r}"
            )
        if name in RESERVED:
            raise UsageError(f"a field cannot be called {name!r}: choose another name")
        if self.kind not in KINDS:
            raise UsageError(
                f"expected one of the field kinds {', '.join(KINDS)}, got {self.kind!r}"
            )
        if (self.kind == "array") != (self.dtype is not None):
            raise UsageError(
                f"field {name!r}: only arrays have a dtype, got {self.dtype} {self.kind}"
            )
        if self.dtype is not None and (self.dtype.kind not in "biuf" or self.dtype.itemsize > 8):
            raise UsageError(
                f"field {name!r}: expected bool, integers or floats of up to 64 bits, got "
                f"{self.dtype}"
            )

    def as_json(self) -> dict[str, Any]:
        dtype = None if self.dtype is None else self.dtype.str
        return {"name": self.name, "kind": self.kind, "dtype": dtype, "shape": list(self.shape)}

    @classmethod
    def from_json(cls, value: Any) -> Field:
        """The field that a file's header describes. Raises ValueError where that is damaged."""
        try:
            name, kind, dtype = str(value["name"]), str(value["kind"]), value["dtype"]
            shape = tuple(int(side) for side in value["shape"])
            if min(shape, default=0) < 0 or len(shape) > 16:
                raise ValueError(f"a shape of {shape}")
            return cls(name, kind, None if dtype is None else np.dtype(str(dtype)), shape)
        except (KeyError, TypeError, OverflowError, SyntaxError) as error:  # the last of a dtype
            raise ValueError(f"not a field: {str(value)[:200]}") from error

    def decode(self, value: bytes) -> Any:
        """One value of a field that is no array: bytes, str, or decoded JSON. Raises ValueError."""
        if self.kind == "text":
            return value.decode("utf-8")
        if self.kind != "json":
            return value
        try:
            return json.loads(value)
        except RecursionError as error:
            raise ValueError("JSON that is nested too deeply") from error


NONE = "none"  # where there are no labels, or no fields


def type_of_labels(labels: np.ndarray | None) -> str:
    """Dtype and shape of one label, to show and to compare."""
    return NONE if labels is None else _of_arrays(labels.dtype, labels.shape[1:])


def types_of_fields(fields: Iterable[Field]) -> str:
    """Names and types of fields, to show and to compare: names are quoted, so no two are alike."""

    def shown(field: Field) -> str:
        dtype = field.dtype
        return f"{field.name!r} ({field.kind if dtype is None else _of_arrays(dtype, field.shape)})"

    return ", ".join(sorted(map(shown, fields))) or NONE


def _of_arrays(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    return f"{dtype}{list(shape) or ''}"


class Strings(abc.ABC):
    """n byte strings."""

    @abc.abstractmethod
    def take(self, indices: np.ndarray, path: str | None = None) -> list[bytes]:
        """The strings ``indices`` (int64, in range)."""

    @abc.abstractmethod
    def whole(self) -> Blobs:
        """All of them, in memory or mapped. Raises StoreError."""

    @abc.abstractmethod
    def check(self, count: int, name: str, path: str | None) -> None:
        """Raise StoreError, about ``name``, unless there are ``count``, each in its place."""

    def texts(self, indices: np.ndarray, path: str | None = None) -> list[str]:
        """The strings ``indices`` decoded as UTF-8; other bytes become surrogates."""
        return [value.decode("utf-8", "surrogateescape") for value in self.take(indices, path)]


@value_class()
class Blobs(Strings):
    """Byte strings, one after the other.

    Attributes:
        data: uint8 (sum of all lengths,).
        ends: int64 (n,), where each ends in ``data``.
    """

    data: np.ndarray
    ends: np.ndarray

    def whole(self) -> Blobs:
        return self

    @classmethod
    def of(cls, values: Sequence[bytes]) -> Blobs:
        lengths = np.fromiter(map(len, values), np.int64, len(values))
        return cls(np.frombuffer(b"".join(values), np.uint8), np.cumsum(lengths))

    @classmethod
    def join(cls, parts: Sequence[Blobs]) -> Blobs:
        start = np.cumsum([0] + [len(blobs.data) for blobs in parts[:-1]])
        ends = [blobs.ends + at for blobs, at in zip(parts, start, strict=True)]
        data = np.concatenate([blobs.data for blobs in parts])
        return cls(data, np.concatenate(ends, dtype=np.int64))

    def check(self, count: int, name: str, path: str | None) -> None:
        ends = self.ends
        if ends.ndim != 1 or ends.dtype.kind != "i" or self.data.ndim != 1:
            raise StoreError(
                f"the table of {name} is damaged: expected a list of ends, found {ends.dtype} "
                f"{ends.shape} for data {self.data.shape}",
                path=path,
            )
        last = int(ends[-1]) if len(ends) else 0
        first = int(ends[0]) if len(ends) else 0
        if (
            len(ends) != count
            or not 0 <= first <= last <= len(self.data)
            or bool((ends[1:] < ends[:-1]).any())
        ):
            raise StoreError(
                f"the table of {name} is damaged: expected {count} ascending ends, found "
                f"{len(ends)} up to {last}",
                path=path,
            )

    def take(self, indices: np.ndarray, path: str | None = None) -> list[bytes]:
        indices = np.asarray(indices, np.int64)
        ends = self.ends[indices]
        starts = np.where(indices > 0, self.ends[indices - 1], 0)
        if bool(((starts < 0) | (starts > ends) | (ends > len(self.data))).any()):
            raise StoreError("a table of keys or values is damaged: pack it again", path=path)
        data = self.data.data
        return [bytes(data[a:b]) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


class DeferredStrings(Strings):
    """Byte strings that are read when they are first used: keys, which training does not need.

    ``path`` is the file or folder that they are read from.
    """

    def __init__(self, count: int, read: Callable[[], Blobs], path: str) -> None:
        self._count, self._read, self._path = count, read, path
        self._version = _version(path)
        self._strings: Blobs | None = None

    def take(self, indices: np.ndarray, path: str | None = None) -> list[bytes]:
        return self.whole().take(indices, path)

    def whole(self) -> Blobs:
        if self._strings is None:
            if _version(self._path) != self._version:
                raise StoreError(
                    "the store was replaced by another one since it was opened: open it again",
                    path=self._path,
                )
            strings = self._read()
            strings.check(self._count, "keys", self._path)
            self._strings = strings
        return self._strings

    def check(self, count: int, name: str, path: str | None) -> None:
        """Only their number: ``whole`` checks the rest."""
        if count != self._count:
            raise StoreError(
                f"the table of {name} is damaged: expected {count}, found {self._count}", path=path
            )


def _version(path: str) -> tuple[int, ...]:
    """Differs if a file or folder was replaced by another one; raises StoreNotFoundError."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise StoreNotFoundError(
            f"the store cannot be read any more: {error.strerror}", path=path
        ) from error
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def encode_text(text: str) -> bytes:
    """A key as a store holds it: UTF-8, in which undecodable bytes of file names are unchanged."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"expected text that UTF-8 can hold, got {text[:100]!a}, in which character "
            f"{error.start} is half of one (a lone surrogate)"
        ) from error


def encode_json(value: object) -> bytes:
    """``value`` as JSON in UTF-8; all in ASCII where text has what UTF-8 cannot hold.

    So half a character (a lone surrogate) and undecodable bytes of file names come back unchanged.
    Raises ValueError or TypeError for what JSON cannot hold.
    """
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def json_object(text: bytes) -> dict[str, Any]:
    """The JSON object in ``text``; empty if it is something else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def is_text(value: object) -> TypeGuard[str]:
    """Whether ``encode_text`` accepts ``value``."""
    try:
        return isinstance(value, str) and encode_text(value) is not None
    except UsageError:
        return False


class FieldColumn(NamedTuple):
    """The values of one field of n records: (n, *shape) for an "array", else ``Strings``."""

    field: Field
    values: np.ndarray | Strings


def little(array: np.ndarray) -> np.ndarray:
    """``array``, C-contiguous and little-endian; copied only if it is not."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)


def _odd(labels: object) -> str:
    """The first label that is no number, for a message; there may be none, but too many axes."""
    array = np.asarray(labels, object)
    odd = (x for x in array.flat if np.ndim(x) or np.asarray(x).dtype.kind not in "biuf")
    return next(map(reprlib.repr, odd), f"an array of shape {array.shape}")


def label_column(labels: object) -> np.ndarray:
    """Labels as stores hold them: int64, float32 or float64, of shape (n,) or (n, k)."""
    try:
        array = np.asarray(labels)
    except ValueError as error:
        raise UsageError(
            "expected the same number of labels in every record; put lists of different lengths "
            "into a field"
        ) from error
    if not array.size and array.ndim == 1:
        array = array.astype(np.int64)
    if array.dtype.kind not in "biuf" or array.ndim not in (1, 2):
        raise UsageError(
            "expected labels that are numbers below 2**63 or equally long lists of such, got "
            f"{_odd(labels)}: give the index of a name in classes=; put other values in a field"
        )
    large = array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max
    if array.dtype.kind == "f" and isinstance(labels, list):  # NumPy makes floats of large ints
        large = any(isinstance(label, int) and abs(label) >= 1 << 63 for label in labels)
    if large:
        raise UsageError("expected labels below 2**63")
    if array.dtype.kind != "f":
        return np.ascontiguousarray(array, "<i8")
    return np.ascontiguousarray(array, "<f4" if array.dtype.itemsize <= 4 else "<f8")


def is_label_dtype(dtype: str) -> bool:
    """Whether stores may keep labels of this dtype."""
    return dtype in _LABELS


def field_column(
    name: str, values: np.ndarray | Sequence[bytes], kind: str | None = None
) -> FieldColumn:
    """A column made of an array (n, ...), or of n byte strings of ``kind`` (default "bytes")."""
    if isinstance(values, np.ndarray):
        array = little(values)
        return FieldColumn(Field(name, "array", array.dtype, array.shape[1:]), array)
    return FieldColumn(Field(name, kind or "bytes"), Blobs.of(values))


def gather_fields(
    records: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, np.ndarray | Sequence[bytes]], dict[str, str]]:
    """``Batch.fields`` and ``Batch.field_kinds`` from the fields of single records.

    Numbers and arrays become "array", bytes "bytes", str "text", anything else "json".
    """
    names = list(records[0]) if records else []
    for number, record in enumerate(records):
        if record.keys() != records[0].keys():
            raise UsageError(
                f"expected the fields {names} in every record, found {list(record)} in record "
                f"{number}"
            )
    fields: dict[str, np.ndarray | Sequence[bytes]] = {}
    kinds: dict[str, str] = {}
    for name in names:
        Field(name, "bytes")  # refuses invalid names
        values = [record[name] for record in records]
        types = {_kind_of(value) for value in values}
        if len(types) != 1:
            raise UsageError(f"field {name!r}: expected values of one type, found {sorted(types)}")
        kinds[name] = types.pop()
        fields[name] = _values_of(name, kinds[name], values)
    return fields, kinds


def _kind_of(value: object) -> str:
    if isinstance(value, (numbers.Number, np.ndarray, np.bool_)):
        return "array"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "bytes"
    return "text" if isinstance(value, str) else "json"


def _values_of(name: str, kind: str, values: list[Any]) -> np.ndarray | list[bytes]:
    if kind == "text":
        try:
            return [value.encode() for value in values]
        except UnicodeEncodeError as error:
            raise UsageError(
                f"field {name!r}: expected text that UTF-8 can hold, got {error.object[:100]!a}, in"
                f" which character {error.start} is half of one (a lone surrogate): replace it, or "
                "put the text into a list or a dict, which are stored as JSON"
            ) from error
    if kind == "bytes":
        return [bytes(value) for value in values]
    if kind == "json":
        try:
            return [encode_json(value) for value in values]
        except (TypeError, ValueError) as error:
            raise UsageError(f"field {name!r}: JSON cannot hold it: {error}") from error
    shapes = {np.shape(value) for value in values}
    if len(shapes) > 1:
        raise UsageError(
            f"field {name!r}: expected arrays of one shape, found {sorted(shapes)[:5]}: pad them, "
            "or give lists, which are stored as JSON"
        )
    return np.stack([np.asarray(value) for value in values])


def numbered_keys(count: int) -> Blobs:
    """Keys for records that have none: their numbers, with 8 digits or more."""
    parts = [_digits(0, min(count, 10**8), 8)]
    for width in range(9, 20):  # 10 ** 19 is more than an int64 holds
        if count > 10 ** (width - 1):
            parts.append(_digits(10 ** (width - 1), min(count, 10**width), width))
    return parts[0] if len(parts) == 1 else Blobs.join(parts)


def _digits(first: int, stop: int, width: int) -> Blobs:
    """The numbers from ``first`` to ``stop`` with ``width`` digits each, without Python objects."""
    numbers = np.arange(first, stop, dtype=np.int64)
    data = np.empty((len(numbers), width), np.uint8)
    for column in range(width - 1, -1, -1):
        data[:, column] = numbers % 10 + ord("0")
        numbers //= 10
    return Blobs(data.reshape(-1), np.arange(1, len(data) + 1, dtype=np.int64) * width)
