"""Columns of an Arrow table as arrays: where values lie in its buffers, without copying them.

An Arrow column consists of chunks. A chunk of byte strings has one buffer with all bytes, and one
with the position where each string starts (https://arrow.apache.org/docs/format/Columnar.html).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import StoreError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclasses.dataclass(frozen=True)
class ImagePlaces:
    """Where the images of a column lie.

    Attributes:
        buffers: uint8 (n,), views of the table's own memory.
        file: int32 (rows,): number of the buffer, or ``len(buffers)`` + number of the path.
        none: number of the buffer for rows without an image; None if every row has one.
        offset, nbytes: int64 (rows,), as in ``Spans``.
        paths: all paths in one byte string; ``ends``: int64, where each ends.
    """

    buffers: list[np.ndarray]
    file: np.ndarray
    none: int | None
    offset: np.ndarray
    nbytes: np.ndarray
    paths: bytes
    ends: np.ndarray

    def have_bytes(self, rows: np.ndarray) -> np.ndarray:
        """bool (n,): those of ``rows`` that have not only a path."""
        within: np.ndarray = self.file[rows] < len(self.buffers)
        return within

    def check_bytes(self, rows: np.ndarray, records: np.ndarray, name: str, path: str) -> None:
        """Raise StoreError for the first of ``rows`` that has only a path.

        The column is called ``name``; the rows are the ``records`` (int64) of the store's ``path``.
        """
        loose = np.flatnonzero(~self.have_bytes(rows))
        if not len(loose):
            return
        number = int(self.file[rows[loose[0]]]) - len(self.buffers)
        begin = int(self.ends[number - 1]) if number else 0
        raise StoreError(
            f"expected the bytes of images in the column {name!r}, found only the path "
            f"{self.paths[begin : int(self.ends[number])].decode(errors='replace')!r}: store the "
            "bytes there (save_to_disk and push_to_hub of a datasets.Dataset do, to_parquet does "
            "not), or pack the folder of the images",
            path=path,
            record=int(records[loose[0]]),
        )


def images_of(column: pa.ChunkedArray, name: str | None) -> ImagePlaces:
    """The images of a ``ChunkedArray`` of struct<bytes, path>, the type of datasets.Image.

    ``name``: the column's, whose paths are to be local files; None: paths are not followed.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = len(column)
    file, offset = np.full(rows, -1, np.int32), np.zeros(rows, np.int64)
    nbytes = np.zeros(rows, np.int64)
    buffers: list[np.ndarray] = []
    numbers: dict[tuple[int, int], int] = {}  # by address and size, as buffers may overlap
    paths, loose = [], []
    begin = 0
    for chunk in column.chunks:
        some = slice(begin, begin + len(chunk))
        begin = some.stop
        there = _bools(chunk.is_valid())
        data = chunk.field("bytes")
        if pa.types.is_null(data.type):
            data = data.cast(pa.binary())
        inside = there & _bools(data.is_valid())
        starts, ends, memory = _strings(data)
        if inside.any():
            place = (0, 0) if memory is None else (memory.address, memory.size)
            if place not in numbers:
                numbers[place] = len(buffers)
                buffers.append(np.zeros(1, np.uint8) if memory is None else _bytes(memory))
            file[some][inside] = numbers[place]
            offset[some][inside] = starts[inside]
            nbytes[some][inside] = (ends - starts)[inside]
        path = chunk.field("path")
        named = there & ~inside & _bools(path.is_valid())
        if named.any():
            paths.append(path.filter(pa.array(named)).cast(pa.large_string()))
            loose.append(np.flatnonzero(named) + some.start)
    none = None
    outside = np.concatenate([np.zeros(0, np.int64), *loose])
    file[outside] = 0
    if (file < 0).any():
        none = len(buffers)
        buffers.append(np.zeros(1, np.uint8))
        file[file < 0] = none
    text = pa.concat_arrays([pa.array([], pa.large_string()), *paths])
    remote = pc.or_(pc.match_substring(text, "://"), pc.match_substring(text, "::"))
    if name is not None and pc.any(remote).as_py():
        raise UsageError(
            f"the column {name!r} has images that are not local files, such as "
            f"{text.filter(remote)[0].as_py()!r}: load the dataset with its files, or store the "
            "bytes in it (dataset.map), and try again"
        )
    starts, ends, memory = _strings(text)
    blob, path_ends = b"", np.zeros(0, np.int64)
    if len(text):
        first = int(starts[0])
        blob = b"" if memory is None else _bytes(memory)[first : int(ends[-1])].tobytes()
        path_ends = np.asarray(ends - first, np.int64)
        file[outside] = len(buffers) + np.arange(len(outside), dtype=np.int32)
        nbytes[outside] = -1
    return ImagePlaces(buffers, file, none, offset, nbytes, blob, path_ends)


def images_in(column: pa.ChunkedArray) -> ImagePlaces:
    """The images of a column of byte strings, or of structs of these and a path."""
    return images_of(_as_struct(column), None)


def numbers_of(column: pa.ChunkedArray) -> np.ndarray | None:
    """The numbers of a column, (rows, *shape), in their dtype; None if it has other values."""
    import pyarrow as pa

    shape = shape_of(column.type)
    if shape is None:
        return None
    parts = []
    for chunk in column.chunks:
        levels = [chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk]
        for _ in shape:
            levels.append(levels[-1].flatten())
        if any(level.null_count for level in levels):
            return None
        numbers = levels[-1].to_numpy(zero_copy_only=False)
        if numbers.dtype == np.uint64 and len(numbers) and numbers.max() > np.iinfo(np.int64).max:
            return None
        if len(numbers) % math.prod(shape):
            return None
        parts.append(numbers.reshape(-1, *shape))
    if not parts or sum(map(len, parts)) != len(column):
        return None
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _strings(array: pa.Array) -> tuple[np.ndarray, np.ndarray, pa.Buffer | None]:
    """Where each string of an array starts and ends in its buffer, and the buffer."""
    import pyarrow as pa

    large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    if not large and not (pa.types.is_binary(array.type) or pa.types.is_string(array.type)):
        array = array.cast(pa.large_binary())
        large = True
    _, positions, memory = array.buffers()
    if not len(array) or positions is None:
        return np.zeros(len(array), np.int64), np.zeros(len(array), np.int64), memory
    edges = np.frombuffer(positions, np.int64 if large else np.int32)
    edges = edges[array.offset : array.offset + len(array) + 1].astype(np.int64)
    return edges[:-1], edges[1:], memory


def _bytes(memory: pa.Buffer) -> np.ndarray:
    return np.frombuffer(memory, np.uint8) if memory.size else np.zeros(1, np.uint8)


def _bools(array: pa.BooleanArray) -> np.ndarray:
    values: np.ndarray = array.to_numpy(zero_copy_only=False)
    return values


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
    """The shape of a value of numbers, without a side of 0; None if values are anything else."""
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
