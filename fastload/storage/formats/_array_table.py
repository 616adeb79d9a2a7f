"""Columns of records as named arrays, for formats that are made of arrays, and back."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import StoreError, UsageError
from .._columns import Columns, field_arrays, fields_of
from .._fields import Blobs, Field, FieldColumn, is_text, label_column
from .._sums import demand


def arrays_of(columns: Columns, *, dtypes: str, raw: bool) -> dict[str, np.ndarray]:
    """The columns of a store as arrays, by name; keys are left out.

    Args:
        columns: of all records.
        dtypes: what the format can hold, such as ``"u1 i8 f4"``; fields of other types become
            bytes, and the table that is read from them gets the type back.
        raw: all records are raw pixels of one size, which the array of images says.
    """
    arrays = {"crc32c": columns.crc32c.astype("<u4")}
    if columns.labels is not None:
        arrays["labels"] = columns.labels
    if not raw:
        arrays["offsets"] = np.concatenate([[0], np.cumsum(columns.nbytes)]).astype("<i8")
        arrays["sizes"] = columns.sizes.astype("<i4")
        arrays["kinds"] = columns.kinds
    arrays |= {f"fields{name}": array for name, array in field_arrays(columns.fields).items()}
    known = {np.dtype(name) for name in dtypes.split()}
    return {
        name: array if array.dtype in known else as_bytes(array) for name, array in arrays.items()
    }


def as_bytes(array: np.ndarray) -> np.ndarray:
    """``array`` (n, ...) as uint8 (n, bytes of an item)."""
    nbytes = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(len(array), nbytes)


def read_header(
    text: Any, format_: str, version: int, path: str, has: Callable[[str], bool]
) -> dict[str, Any]:
    """The header that ``ArrayWriter.header`` made, checked; one that says nothing of other writers.

    Args:
        text: what lies in the place of the header, None where nothing does.
        format_, version: that are expected.
        path: of the store.
        has: whether the store has a column of this name.

    Raises:
        StoreError: no such header, or of a version that this fastload does not know; a column that
            the store was written with is missing, or the header of one that fastload wrote.
    """
    if text is None:
        if has("crc32c"):  # which fastload alone writes
            raise StoreError(
                "expected the header 'fastload' beside the column 'crc32c', found none: lost or "
                "renamed since the store was written; copy it again from where it is whole, or "
                "pack it again",
                path=path,
            )
        return {"metadata": {}, "fields": []}
    header = _parsed_header(text, format_, version, path)
    sums = header.get("crc32c", {})
    # Older stores have no list of columns, but all have the checksums of their records.
    older = ["crc32c", *(["labels"] if "labels" in sums else [])]
    demand(header.get("columns", older), has, path)
    return header


def _parsed_header(text: Any, format_: str, version: int, path: str) -> dict[str, Any]:
    try:
        header = dict(json.loads(text) if isinstance(text, (bytes, str)) else text)
        if header["format"] != f"fastload-{format_}":
            raise ValueError(f"a format of {header['format']!r}")
        known = int(header["version"])
        if not isinstance(header["metadata"], dict):
            raise ValueError("metadata that are no object")
        if not isinstance(header.get("crc32c", {}), dict):
            raise ValueError("checksums that are no object")
        listed = header.get("columns", [])
        if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
            raise ValueError("columns that are no list of names")
        header["fields"] = [Field.from_json(field) for field in header["fields"]]
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise StoreError(
            f"expected the header of a fastload-{format_} store, found {error}: pack it again",
            path=path,
        ) from error
    if known != version:
        raise StoreError(
            f"expected version {version} of fastload-{format_}, found {known}: "
            "update fastload, or pack it again",
            path=path,
        )
    return header


class Arrays:
    """The named arrays of a store that fastload wrote, each checked when it is taken.

    Args:
        path: of the store, for messages.
        count: of the records.
        get: name -> array, or None where there is none; raises StoreError.
    """

    def __init__(self, path: str, count: int, get: Callable[[str], np.ndarray | None]) -> None:
        self._path = path
        self._count = count
        self._get = get

    def optional(self, name: str, dtype: str, *shape: int) -> np.ndarray | None:
        """The column ``name``, (count, *shape); None where there is none."""
        array = self._get(name)
        if array is None:
            return None
        if array.dtype != np.dtype(dtype) or array.shape != (self._count, *shape):
            raise self._damaged(name, f"{dtype} {(self._count, *shape)}", array)
        return array

    def labels(self) -> np.ndarray | None:
        """The labels; None where there are none."""
        return checked_labels(self._get("labels"), self._count, self._path)

    def blobs(self, name: str) -> Blobs | None:
        """Byte strings, one a record; None where there are none."""
        data, ends = self._get(f"{name}/data"), self.optional(f"{name}/ends", "<i8")
        if data is None or ends is None:
            return None
        if data.dtype != np.uint8 or data.ndim != 1:
            raise self._damaged(f"{name}/data", "uint8 (n,)", data)
        return Blobs(data, ends)

    def fields(self, fields: Sequence[Field]) -> Mapping[str, FieldColumn]:
        """The fields of the header, with their columns."""
        arrays: dict[str, np.ndarray] = {}
        for field in fields:
            name = f"fields/{field.name}"
            if field.kind != "array":
                blobs = self.blobs(name)
                if blobs is None:
                    raise self._damaged(name, "a field", None)
                arrays[f"/{field.name}/data"], arrays[f"/{field.name}/ends"] = (
                    blobs.data, blobs.ends,
                )  # fmt: skip
                continue
            assert field.dtype is not None  # as Field makes sure
            array = self._get(name)
            wanted = (self._count, *field.shape)
            nbytes = field.dtype.itemsize * int(np.prod(field.shape, dtype=object))
            if (
                array is not None
                and array.dtype == np.uint8
                and array.shape == (len(array), nbytes)
            ):
                array = array.reshape(-1).view(field.dtype).reshape(-1, *field.shape)
            if array is None or array.dtype != field.dtype or array.shape != wanted:
                raise self._damaged(name, f"{field.dtype} {wanted}", array)
            arrays[f"/{field.name}"] = array
        return fields_of(fields, arrays)

    def _damaged(self, name: str, expected: str, found: np.ndarray | None) -> StoreError:
        what = "nothing" if found is None else f"{found.dtype} {found.shape}"
        return StoreError(
            f"expected {expected} in {name!r}, found {what}: the store is damaged, pack it again",
            path=self._path,
        )


def checked_labels(labels: np.ndarray | None, count: int, path: str) -> np.ndarray | None:
    """Labels as a store gives them.

    Raises:
        StoreError: they are no numbers, or not one row for each record.
    """
    if labels is None:
        return None
    try:
        labels = label_column(labels)
    except UsageError as error:
        raise StoreError(str(error), path=path) from error
    if len(labels) != count:
        raise StoreError(
            f"expected {count} labels, as there are images, found {len(labels)}", path=path
        )
    return labels


def checked_classes(classes: Any, path: str) -> list[str]:
    """Class names.

    Raises:
        StoreError: no list of texts.
    """
    if not isinstance(classes, (list, tuple)) or not all(map(is_text, classes)):
        # reprlib looks into what is nested, or refers to itself, no deeper than a few levels
        raise StoreError(
            f"expected a list of class names, found {reprlib.repr(classes)}", path=path
        )
    return list(classes)


def same(count: int, value: Any, dtype: str) -> np.ndarray:
    """A column (count, ...) that holds ``value`` everywhere, and takes no memory; read-only."""
    one = np.asarray(value, dtype)
    return np.broadcast_to(one, (count, *one.shape))


def numbered(count: int) -> Blobs:
    """Keys for records that have none: their numbers, of 8 digits or more."""
    parts = [_digits(0, min(count, 10**8), 8)]
    for width in range(9, 20):  # 10 ** 19 is more than an int64 holds
        if count > 10 ** (width - 1):
            parts.append(_digits(10 ** (width - 1), min(count, 10**width), width))
    return parts[0] if len(parts) == 1 else Blobs.join(parts)


def _digits(first: int, stop: int, width: int) -> Blobs:
    """The numbers from ``first`` to ``stop``, each of ``width`` digits, without an object each."""
    numbers = np.arange(first, stop, dtype=np.int64)
    data = np.empty((len(numbers), width), np.uint8)
    for column in range(width - 1, -1, -1):
        data[:, column] = numbers % 10 + ord("0")
        numbers //= 10
    return Blobs(data.reshape(-1), np.arange(1, len(data) + 1, dtype=np.int64) * width)
