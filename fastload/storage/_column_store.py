"""What stores over Arrow tables share: columns beside the images, and sizes from their headers.

Note [Columns]
    A sample is a dict with the columns of the table, like one of its rows. Numbers have the dtypes
    that default_collate gives Python's numbers (int64, float64, bool), or those of the format
    "torch" of a Hugging Face dataset (float32). Lists of fixed length make one tensor (n, ...).
    Every other column, and one that contains None, is a list of n values, each as it is in a row:
    default_collate would transpose lists and fail at None, differently from batch to batch.
"""

from __future__ import annotations

import abc
import dataclasses
import datetime
import decimal
import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import StoreError, UsageError
from ._probe import UNKNOWN, UNREADABLE, by_core, by_pillow
from ._read import open_regular, part_of, read_spans
from .base import ENCODED, Field, Spans, Store

if TYPE_CHECKING:
    from .._native import _core


class ColumnField(Field):
    """A column, which may have any name."""

    def __post_init__(self) -> None:
        pass


class ColumnStore(Store):
    """A store whose records are the images of a table's rows. See Note [Columns].

    A subclass sets ``_fields`` and ``_labels``, and calls ``_forget_sizes`` with its rows.
    """

    _fields: Mapping[str, Field]
    _labels: np.ndarray | None
    _float: np.dtype[Any] = np.dtype(np.float64)

    @abc.abstractmethod
    def _numbers_at(self, name: str, indices: np.ndarray) -> np.ndarray:
        """The numbers of a column of kind "array", (n, ...), in the table's dtype."""

    @abc.abstractmethod
    def _given(self, name: str, indices: np.ndarray) -> list[Any]:
        """The values of another column, as they are in a row; of an image, bytes and path."""

    @abc.abstractmethod
    def _core_files(self, spans: Spans) -> _core.Files | None:
        """The core's view, in this process, of what ``spans`` refer to; None without a core."""

    def _headers(self, indices: np.ndarray) -> Spans:
        """Where to read headers; where a record cannot be read, no bytes."""
        return self.spans(indices)

    @abc.abstractmethod
    def class_names(self, name: str) -> list[str]:
        """The class names of a column of class labels; empty for other columns."""

    def _row_numbers(self, indices: np.ndarray) -> np.ndarray:
        """The rows of the table that ``indices`` are."""
        return indices

    @property
    def labels(self) -> np.ndarray | None:
        return self._labels

    @property
    def fields(self) -> Mapping[str, Field]:
        """The other columns; other images as the bytes of their files."""
        return self._fields

    def _dtype(self, kind: np.dtype[Any]) -> np.dtype[Any]:
        """What a batch has of numbers of the dtype ``kind``: see Note [Columns]."""
        kinds = {"f": self._float, "b": np.dtype(bool)}
        return kinds.get(kind.kind, np.dtype(np.int64))

    def _values_of(self, name: str, indices: np.ndarray) -> np.ndarray:
        values = self._numbers_at(name, indices)
        return values.astype(self._dtype(values.dtype), copy=False)

    def column(self, name: str) -> np.ndarray:
        field = self.fields.get(name)
        if field is None or field.kind != "array":
            return super().column(name)
        return self._values_of(name, np.arange(len(self), dtype=np.int64))

    def batch(self, name: str, indices: np.ndarray) -> np.ndarray | list[Any]:
        """Values other than numbers as they are in a row."""
        kind = self.fields[name].kind
        if kind == "array":
            return self._values_of(name, indices)
        return self._bytes(name, indices) if kind == "bytes" else self._given(name, indices)

    def _bytes(self, name: str, indices: np.ndarray) -> list[bytes | None]:
        """Byte strings, or the files of images; None for a row without an image."""
        return [
            _file_of(value, index) if isinstance(value, dict) else value
            for value, index in zip(self._given(name, indices), indices.tolist(), strict=True)
        ]

    def values(self, name: str, indices: np.ndarray) -> list[bytes]:
        field = self.fields.get(name)
        if field is None or field.kind == "array":
            return super().values(name, indices)
        if field.kind == "bytes":  # a missing image becomes an empty file
            return [value or b"" for value in self._bytes(name, indices)]
        values = self._given(name, indices)
        if field.kind == "text":
            return [value.encode("utf-8") for value in values]
        plain = functools.partial(_plain, name)
        return [json.dumps(value, default=plain).encode("utf-8") for value in values]

    def keys(self, indices: np.ndarray) -> list[str]:
        """Numbers of the rows."""
        return [f"{index:08d}" for index in np.asarray(indices).tolist()]

    # --- sizes ------------------------------------------------------------------------------------

    def _forget_sizes(self, rows: int) -> None:
        """Begin with the sizes of so many rows unknown."""
        # Zeros take no memory until they are written.
        self._sizes = np.zeros((rows, 2), np.int32)  # UNKNOWN
        self._kinds = np.zeros(rows, np.uint8)  # ENCODED

    def kinds(self, indices: np.ndarray) -> np.ndarray:
        """ENCODED, or TURNED if EXIF says so, because ``datasets.Image`` applies it."""
        self._probe(indices)
        kinds: np.ndarray = self._kinds[self._row_numbers(indices)]
        return kinds

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """After EXIF. A file's header is read when it is needed."""
        self._probe(indices)
        sizes: np.ndarray = np.maximum(self._sizes[self._row_numbers(indices)], 0)
        return sizes

    def _probe(self, indices: np.ndarray, spans: Spans | None = None) -> None:
        """Find the sizes of ``indices``; ``spans``: where they lie, if that is known."""
        rows = self._row_numbers(indices)
        unknown = self._sizes[rows, 0] == UNKNOWN
        if not unknown.any():
            return
        rows, first = np.unique(rows[unknown], return_index=True)
        at = np.flatnonzero(unknown)[first]
        indices = np.asarray(indices, np.int64)[at]
        spans = self._headers(indices) if spans is None else part_of(spans, at)
        sizes = np.zeros((len(rows), 2), np.int32)
        numbered = spans
        if spans.memory is not None:
            numbered = dataclasses.replace(spans, file=-1 - spans.file)
        good = by_core(self._core_files(spans), numbered, sizes, upright=True)
        kinds = np.full(len(rows), ENCODED, np.uint8)
        for i in np.flatnonzero(~good).tolist():
            sizes[i], kinds[i] = UNREADABLE, ENCODED
            try:
                position = np.array([i])
                (data,) = read_spans(self, indices[position], part_of(spans, position))
            except StoreError:
                continue  # raised again, with the place, when the record is decoded
            width, height, kinds[i] = by_pillow(data, upright=True)
            sizes[i] = width, height
        # Sizes last: another thread that sees a size must see the kind too.
        self._kinds[rows] = kinds
        self._sizes[rows] = sizes


def likely_label(names: Iterable[str], is_class: Callable[[str], bool]) -> str | None:
    """The column that may hold the labels: one of a usual name, else the only one of classes."""
    names = list(names)
    classes = [name for name in names if is_class(name)]
    named = [name for name in ("label", "labels") if name in names]
    return next(iter(named or (classes if len(classes) == 1 else [])), None)


def _file_of(value: Mapping[str, Any], record: int) -> bytes | None:
    """The bytes of an undecoded image; None if there is none."""
    if value["bytes"] is not None:
        return bytes(value["bytes"])
    if value["path"] is None:
        return None
    try:
        with open(value["path"], "rb", opener=open_regular) as file:
            return file.read()
    except OSError as error:
        raise StoreError(
            f"expected the file of an image, found none that can be read ({error.strerror}): put "
            "it back, or remove the column",
            path=value["path"],
            record=record,
        ) from error


def _plain(name: str, value: object) -> object:
    """A value of the column ``name`` that JSON cannot hold, as one that it can."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal)):
        return str(value)
    raise UsageError(
        f"expected numbers, text, dates, and lists and dicts of such in the column {name!r}, found "
        f"a {type(value).__name__}, which JSON cannot hold: remove it (dataset.remove_columns)"
    )
