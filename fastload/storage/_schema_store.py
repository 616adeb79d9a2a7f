"""SchemaStore: a store over a table with an Arrow schema, which says what each column is.

Note [Columns] of ``_column_store.py`` says what a batch has beside the images.
"""

from __future__ import annotations

import abc
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import StoreError, UsageError
from . import _row_groups
from ._arrow_columns import ImagePlaces, images_of, numbers_of
from ._column_store import ColumnField, ColumnStore, likely_label
from ._probe import core_files
from ._row_groups import RowGroups
from .base import Field, Located, Spans
from .column_options import ColumnOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from .._native import _core


class SchemaStore(ColumnStore):
    """A store whose columns are those of an Arrow schema.

    A subclass sets ``path`` and calls ``_read_schema`` when it can answer the methods below. If its
    images are decoded into memory, ``spans`` gives places in ``Spans.memory``, and it sets
    ``_options``.
    """

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
        self._labels = None
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
        """The dtype of a column of numbers in its file."""
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

    def locate(self, indices: np.ndarray) -> Located:
        """Rows are decoded once for all of it."""
        spans = self.spans(indices)
        self._probe(indices, spans)
        return Located(spans=spans, kinds=self.kinds(indices), sizes=self.sizes(indices))

    def _core_files(self, spans: Spans) -> _core.Files | None:
        memory = dict(enumerate(spans.memory or ()))
        return core_files(b"", np.zeros(len(memory), np.int64), memory)


def images_in(
    column: pa.ChunkedArray, name: str, path: str, record: Callable[[int], int]
) -> ImagePlaces:
    """The images of rows of the column ``name``: byte strings, or structs of these and a path.

    ``record`` gives the number of the record of a row.
    """
    images = images_of(_as_struct(column), name)
    if len(images.ends):
        row = int(np.flatnonzero(images.file >= len(images.buffers))[0])
        raise StoreError(
            f"expected the bytes of images in the column {name!r}, found only the path "
            f"{images.paths[: int(images.ends[0])].decode(errors='replace')!r}: store the bytes "
            "in the file, or give datasets.load_dataset(...), where the path leads to a file",
            path=path,
            record=record(row),
        )
    return images


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


def features_of(schema: pa.Schema) -> Mapping[str, Mapping[str, Any]]:
    """What Hugging Face's datasets noted about the columns, by name; empty if it did not.

    https://huggingface.co/docs/datasets/about_dataset_features
    """
    noted = (schema.metadata or {}).get(b"huggingface")
    if noted is None:
        return {}
    try:
        features = json.loads(noted)["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    if not isinstance(features, dict):
        return {}
    return {name: feature for name, feature in features.items() if isinstance(feature, dict)}


def is_struct_of_image(kind: pa.DataType) -> bool:
    """Whether it is a struct of bytes and path, the type of datasets.Image."""
    import pyarrow as pa

    if not pa.types.is_struct(kind):
        return False
    types = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
    return set(types) == {"bytes", "path"} and is_binary(types["bytes"])


def is_encoded_image(kind: pa.DataType) -> bool:
    """Whether it is Lance's type of encoded images, which are byte strings."""
    import pyarrow as pa

    if not isinstance(kind, pa.BaseExtensionType):
        return False
    named = getattr(kind, "extension_name", "") == "lance.arrow.encoded_image"
    return named and is_binary(kind.storage_type)


def is_binary(kind: pa.DataType) -> bool:
    import pyarrow as pa

    views = getattr(pa.types, "is_binary_view", lambda kind: False)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or views(kind))


def shape_of(kind: pa.DataType) -> tuple[int, ...] | None:
    """The shape of a value of numbers; None if values are anything else."""
    import pyarrow as pa

    shape: tuple[int, ...] = ()
    if isinstance(kind, pa.BaseExtensionType):
        sides = tuple(getattr(kind, "shape", ()))
        if not sides or not all(isinstance(side, int) for side in sides):
            return None
        shape, kind = sides, kind.storage_type
        for _ in sides:
            if not (pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)):
                return None
            kind = kind.value_type
    while pa.types.is_fixed_size_list(kind):
        shape, kind = (*shape, kind.list_size), kind.value_type
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return shape if numeric and 0 not in shape else None


def _as_struct(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of images as struct<bytes, path>; byte strings are not copied."""
    import pyarrow as pa

    if pa.types.is_struct(column.type):
        return column
    if isinstance(column.type, pa.BaseExtensionType):
        storage = [chunk.storage for chunk in column.chunks]
        column = pa.chunked_array(storage, column.type.storage_type)
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        column = column.cast(pa.large_binary())
    kind = pa.struct([("bytes", column.type), ("path", pa.string())])
    parts = [
        pa.StructArray.from_arrays(
            [chunk, pa.nulls(len(chunk), pa.string())], fields=[kind.field(0), kind.field(1)]
        )
        for chunk in column.chunks
    ]
    return pa.chunked_array(parts, kind)
