"""ColumnStore: a store over an Arrow table: columns beside the images, and sizes from headers.

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
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import StoreError, UsageError
from . import _row_groups
from ._arrow_columns import (
    features_of,
    is_binary,
    is_encoded_image,
    is_struct_of_image,
    numbers_of,
    shape_of,
)
from ._probe import UNKNOWN, UNREADABLE, by_core, by_pillow, core_files
from ._read import open_regular, part_of, read_spans
from ._row_groups import RowGroups
from .base import ENCODED, Field, Located, Spans, Store
from .column_options import ColumnOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from .._native import _core


class ColumnField(Field):
    """A column, which may have any name."""

    def __post_init__(self) -> None:
        pass


class ColumnStore(Store):
    """A store whose records are the images of a table's rows. See Note [Columns].

    A subclass sets ``path``, calls ``_read_schema`` when it can answer the abstract methods, and
    ``_forget_sizes`` with its rows. If images are decoded into memory, it also sets ``_options``,
    and ``spans`` gives places in ``Spans.memory``.
    """

    _float: np.dtype[Any] = np.dtype(np.float64)
    _options: ColumnOptions
    _own: tuple[int, RowGroups] | None = None  # with a limit of its own, in this process

    @property
    def _groups(self) -> RowGroups:
        """What keeps decoded rows: that of the process, unless the store has a limit of its own."""
        limit = self._options.limit
        if limit is None:
            return _row_groups.of_process()
        if self._own is None or self._own[0] != os.getpid():
            self._own = os.getpid(), RowGroups(limit)
        return self._own[1]

    @abc.abstractmethod
    def _whole(self, name: str) -> pa.ChunkedArray:
        """A whole column."""

    @abc.abstractmethod
    def _has_nulls(self, name: str) -> bool | None:
        """Whether a column has nulls, in its lists too; None: only reading it would tell."""

    @abc.abstractmethod
    def _given(self, name: str, indices: np.ndarray) -> list[Any]:
        """The values of another column, as they are in a row; of an image, bytes and path."""

    def _headers(self, indices: np.ndarray) -> Spans:
        """Where to read headers; where a record cannot be read, no bytes."""
        try:
            return self.spans(indices)
        except StoreError:
            good = self._readable(indices)
        spans = self.spans(indices[good])
        memory = [*(spans.memory or ()), np.zeros(1, np.uint8)]
        file = np.full(len(indices), -len(memory), np.int32)
        offset, nbytes = np.zeros(len(indices), np.int64), np.zeros(len(indices), np.int64)
        file[good], offset[good], nbytes[good] = spans.file, spans.offset, spans.nbytes
        return Spans(file=file, offset=offset, nbytes=nbytes, held=spans.held, memory=memory)

    def _readable(self, indices: np.ndarray) -> np.ndarray:
        """bool (n,): the records that ``spans`` finds; of others it says what is wrong."""
        return np.ones(len(indices), bool)

    def _row_numbers(self, indices: np.ndarray) -> np.ndarray:
        """The rows of the table that ``indices`` are."""
        return indices

    # --- what columns there are -------------------------------------------------------------------

    def _read_schema(self, schema: pa.Schema, column: str | None) -> None:
        """Find out what each column is. ``column`` holds the images; None: the one that can."""
        self._schema, self._features = schema, features_of(schema)
        features = self._features
        types = {field.name: field.type for field in schema}
        if len(types) != len(schema):
            raise UsageError(f"{self.path!r}: expected columns with different names")
        pictures = [
            name
            for name, kind in types.items()
            if features.get(name, {}).get("_type") == "Image"
            or is_struct_of_image(kind)
            or is_encoded_image(kind)
        ]
        self._set_columns(_chosen(self.path, types, features, pictures, column), pictures)

    def _set_columns(self, image: str, pictures: Sequence[str]) -> None:
        """``image`` holds the images, ``pictures`` others; what the other columns are."""
        types = {field.name: field.type for field in self._schema}
        self._image = image
        self._columns: dict[str, np.ndarray] = {}
        self._labels: np.ndarray | None = None
        arrays = {
            name: shape
            for name, kind in types.items()
            if name not in pictures and name != self._image
            if (shape := shape_of(kind)) is not None and self._is_array(name, kind)
        }
        rest = [name for name in types if name != self._image]
        self._label = self._choose_label(rest, arrays)
        self.names = self._image, self._label or "label"
        self.classes = [] if self._label is None else self.class_names(self._label)
        self._fields = {
            name: self._field(name, types[name], arrays.get(name), name in pictures)
            for name in rest
            if name != self._label
        }
        self.sample_fields = tuple(name for name in self._fields if name not in pictures)
        self.metadata: dict[str, Any] = {}

    def _is_array(self, name: str, kind: pa.DataType) -> bool:
        """Whether a column of numbers has one in each row, which int64 can hold."""
        import pyarrow as pa

        # Lists of these have any length, and statistics do not say what int64 can hold.
        if isinstance(kind, pa.BaseExtensionType) or pa.types.is_uint64(kind):
            values = numbers_of(self._whole(name))
            if values is not None:
                self._columns[name] = values
            return values is not None
        nulls = self._has_nulls(name)
        if nulls is None:
            nulls = numbers_of(self._whole(name)) is None
        return not nulls

    def _choose_label(self, names: list[str], arrays: Mapping[str, tuple[int, ...]]) -> str | None:
        name = likely_label(
            names, lambda name: self._features.get(name, {}).get("_type") == "ClassLabel"
        )
        if name is None or arrays.get(name) != () or self._kind(name).kind not in "iuf":
            return None
        return name

    def _kind(self, name: str) -> np.dtype[Any]:
        import pyarrow as pa

        kind = self._schema.field(name).type
        while not (pa.types.is_primitive(kind)):
            kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind.value_type
        dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return dtype

    def _field(
        self, name: str, kind: pa.DataType, shape: tuple[int, ...] | None, picture: bool
    ) -> Field:
        import pyarrow as pa

        if shape is not None:
            return ColumnField(name, "array", self._dtype(self._kind(name)), shape)
        if picture:
            return ColumnField(name, "bytes")
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        whole = (text or is_binary(kind)) and self._has_nulls(name) is False
        return ColumnField(name, ("text" if text else "bytes") if whole else "json")

    def class_names(self, name: str) -> list[str]:
        names = self._features.get(name, {}).get("names")
        return list(map(str, names)) if isinstance(names, list) else []

    @property
    def labels(self) -> np.ndarray | None:
        if self._labels is None and self._label is not None:
            labels = self._values_of(self._label, np.arange(len(self), dtype=np.int64))
            labels.flags.writeable = False
            self._labels = labels
        return self._labels

    def _numbers_at(self, name: str, indices: np.ndarray) -> np.ndarray:
        values = self._columns.get(name)
        if values is None:
            values = numbers_of(self._whole(name)) if len(self) else self._none(name)
            if values is None:
                raise StoreError(
                    f"expected numbers in the column {name!r}, found nulls, of which its "
                    "statistics know nothing: the file is damaged, write it again",
                    path=self.path,
                )
            self._columns[name] = values
        rows: np.ndarray = values[self._row_numbers(indices)]
        return rows

    def _none(self, name: str) -> np.ndarray:
        shape = () if name == self._label else tuple(self._fields[name].shape)
        return np.empty((0, *shape), self._kind(name))

    # --- their values -----------------------------------------------------------------------------

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

    def _column(self, field: Field) -> np.ndarray:
        return self._values_of(field.name, np.arange(len(self), dtype=np.int64))

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

    def _values(self, field: Field, indices: np.ndarray) -> list[bytes]:
        if field.kind == "bytes":  # a missing image becomes an empty file
            return [value or b"" for value in self._bytes(field.name, indices)]
        values = self._given(field.name, indices)
        if field.kind == "text":
            return [value.encode("utf-8") for value in values]
        plain = functools.partial(_plain, field.name)
        return [json.dumps(value, default=plain).encode("utf-8") for value in values]

    def keys(self, indices: np.ndarray) -> list[str]:
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

    def locate(self, indices: np.ndarray) -> Located:
        """Rows are decoded once for all of it."""
        spans = self.spans(indices)
        self._probe(indices, spans)
        rows = self._row_numbers(indices)
        return Located(spans=spans, kinds=self._kinds[rows], sizes=np.maximum(self._sizes[rows], 0))

    def _core_files(self, spans: Spans) -> _core.Files | None:
        """The core's view, in this process, of what ``spans`` refer to; None without a core."""
        memory = dict(enumerate(spans.memory or ()))
        return core_files(b"", np.zeros(len(memory), np.int64), memory)


def likely_label(names: Iterable[str], is_class: Callable[[str], bool]) -> str | None:
    """The column that may hold the labels: one of a usual name, else the only one of classes."""
    names = list(names)
    classes = [name for name in names if is_class(name)]
    named = [name for name in ("label", "labels") if name in names]
    return next(iter(named or (classes if len(classes) == 1 else [])), None)


def _chosen(
    path: str,
    types: Mapping[str, pa.DataType],
    features: Mapping[str, Mapping[str, Any]],
    pictures: Sequence[str],
    column: str | None,
) -> str:
    listed = ", ".join(f"{name} ({kind})" for name, kind in types.items()) or "nothing"
    if column is not None:
        if column not in types:
            raise UsageError(f"column: {path!r} has {listed}, got {column!r}")
        name = column
    else:
        decoded = [name for name in pictures if features.get(name, {}).get("decode", True)]
        names = decoded or list(pictures)
        if not names:
            names = [name for name, kind in types.items() if is_binary(kind)]
            if len(names) > 1 and "image" not in names:
                raise UsageError(
                    f"{path!r}: expected one column of images, found several of bytes "
                    f"({', '.join(names)}): say which with column={names[0]!r}"
                )
        if not names:
            raise UsageError(
                f"{path!r}: expected a column with the bytes of images, or with the struct of "
                f"bytes and path that datasets.Image makes, found {listed}"
            )
        name = "image" if "image" in names else names[0]
    kind = types[name]
    if not (is_binary(kind) or is_struct_of_image(kind) or is_encoded_image(kind)):
        raise UsageError(
            f"{path!r}: expected bytes, or bytes and path, in the column of images {name!r}, found "
            f"{kind}"
        )
    mode = features.get(name, {}).get("mode")
    if mode not in (None, "RGB"):
        raise UsageError(
            f"the column {name!r} has images of the mode {mode!r}, while fastload makes RGB of all "
            "images: put Grayscale into the transform if that is wanted, and write the column with "
            "datasets.Image(mode='RGB')"
        )
    return name


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
