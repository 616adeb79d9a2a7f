"""ColumnReader: the named columns of a store, each checked before it is used.

LMDB, HDF5, .pth, N5 and Zarr stores hold columns as named values. What is in them may be damaged,
or written by another program.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..errors import StoreError, UsageError
from ._fields import Blobs, Field, FieldColumn, is_text, label_column


class ColumnReader:
    """The columns of a store of ``count`` records.

    A column may also be stored as the bytes of its numbers (uint8), if the format cannot hold its
    type or has bytes only. ``get`` returns None for a column that is not there; ``prefix`` begins
    the names of fields.
    """

    def __init__(
        self,
        path: str,
        count: int,
        get: Callable[[str], np.ndarray | None],
        *,
        prefix: str = "fields/",
    ) -> None:
        self._path, self._count, self._get, self._prefix = path, count, get, prefix

    def optional(
        self, name: str, dtype: str | np.dtype[np.generic], *shape: int
    ) -> np.ndarray | None:
        """The column ``name``, (count, *shape); None if there is none."""
        array = self._get(name)
        if array is None:
            return None
        kind, wanted = np.dtype(dtype), (self._count, *shape)
        nbytes = kind.itemsize * math.prod(shape)
        as_bytes = (self._count, nbytes), (self._count * nbytes,)
        if array.dtype == np.uint8 and array.shape in as_bytes:
            array = np.ascontiguousarray(array).reshape(-1).view(kind).reshape(wanted)
        if array.dtype != kind or array.shape != wanted:
            raise self._damaged(name, f"{kind} {wanted}", array)
        return array

    def column(self, name: str, dtype: str | np.dtype[np.generic], *shape: int) -> np.ndarray:
        """As ``optional``; a missing column raises StoreError too."""
        array = self.optional(name, dtype, *shape)
        if array is None:
            raise StoreError(
                f"the column {name!r} is missing: the store is damaged, pack it again",
                path=self._path,
            )
        return array

    def blobs(self, data: str, ends: str) -> Blobs | None:
        """Byte strings, one for each record; None if one of the two columns is missing."""
        values, positions = self._get(data), self.optional(ends, "<i8")
        if values is None or positions is None:
            return None
        if values.dtype != np.uint8 or values.ndim != 1:
            raise self._damaged(data, "uint8 (n,)", values)
        return Blobs(values, positions)

    def fields(self, fields: Sequence[Field]) -> Mapping[str, FieldColumn]:
        columns: dict[str, FieldColumn] = {}
        for field in fields:
            name = f"{self._prefix}{field.name}"
            values = (
                self.blobs(f"{name}/data", f"{name}/ends")
                if field.dtype is None
                else self.optional(name, field.dtype, *field.shape)
            )
            if values is None:
                raise self._damaged(name, "a field", None)
            columns[field.name] = FieldColumn(field, values)
        return columns

    def _damaged(self, name: str, expected: str, found: np.ndarray | None) -> StoreError:
        what = "nothing" if found is None else f"{found.dtype} {found.shape}"
        return StoreError(
            f"expected {expected} in the column {name!r} of {self._count} records, found {what}: "
            "the store is damaged, pack it again",
            path=self._path,
        )


def checked_labels(labels: np.ndarray | None, name: str, count: int, path: str) -> np.ndarray:
    """``labels`` of any program, as a store returns them; None: what has their name is no array."""
    if labels is None:
        raise StoreError(
            f"expected an array of labels under the name {name!r}, found something else: if it was "
            "one copy the store again, else give it another name",
            path=path,
        )
    try:
        labels = label_column(labels)
    except UsageError as error:
        raise StoreError(str(error), path=path) from error
    if len(labels) != count:
        raise StoreError(
            f"expected {count} labels, as there are images, found {len(labels)}", path=path
        )
    return labels


def checked_classes(classes: object, path: str) -> list[str]:
    if not isinstance(classes, (list, tuple)) or not all(map(is_text, classes)):
        # reprlib looks only a few levels into values that are nested or refer to themselves
        raise StoreError(
            f"expected a list of class names, found {reprlib.repr(classes)}", path=path
        )
    return list(classes)
