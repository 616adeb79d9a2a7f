"""Zarr v3: reader and writer of the folder ``NAME.zarr``. The layout is in SPECIFICATION.md.

Images are one array (N, height, width, 3), sharded: a shard is a file of many images, each an inner
chunk that is not compressed, with an index after them. The index says where each image lies, so
that it is read in place. Arrays in any other form are read through the zarr library. Source: the
Zarr core specification, version 3, and its codecs ``bytes``, ``crc32c`` and ``sharding_indexed``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import StoreError, StoreNotFoundError, install, needed
from .._columns import Columns
from .._crc import crc32c
from .._durable import write_synced
from .._read import open_regular, read_regular
from ..registry import Format
from ..table import Indirect, Table, TableStore
from ._array_writer import to_json
from ._blocks import (
    BlockArrayWriter,
    BlockedArray,
    check_stored,
    counts,
    folder_table,
    pieces,
    read_json,
)
from ._image_table import IMAGES, Axes, StoreHeader, arrays_of, axes_of, first_of

NAME = "zarr"
_MISSING = 2**64 - 1  # in the index of a shard: an inner chunk that is not stored
_NAMES = {
    "|b1": "bool", "|i1": "int8", "|u1": "uint8", "<i2": "int16", "<u2": "uint16", "<i4": "int32",
    "<u4": "uint32", "<i8": "int64", "<u8": "uint64", "<f2": "float16", "<f4": "float32",
    "<f8": "float64",
}  # fmt: skip
_DTYPES = "bool i1 u1 i2 u2 i4 u4 i8 u8 f2 f4 f8"
_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
_CRC32C = {"name": "crc32c"}


def read_zarr(path: str) -> Table:
    """The table of a Zarr folder with an array of images, or of an array that is one."""
    if not os.path.isdir(path):
        raise StoreNotFoundError("expected a Zarr folder, found none", path=path)
    root = read_json(os.path.join(path, "zarr.json")) or {}
    attributes = root.get("attributes") or {}
    if not isinstance(attributes, dict):
        raise StoreError(
            f"expected attributes that are an object, found {str(attributes)[:100]}",
            path=os.path.join(path, "zarr.json"),
        )

    def has(name: str) -> bool:
        return name in attributes or _is_array(path, name)

    header = StoreHeader.read(attributes.get("fastload"), NAME, ZarrWriter.version, path, has)
    name = ""
    if root.get("node_type") != "array" and not os.path.exists(os.path.join(path, ".zarray")):
        there = {entry.name for entry in os.scandir(path) if entry.is_dir()}
        name = first_of(IMAGES, there) or ""
        if not name:
            raise StoreError(
                f"expected a Zarr array of images ({', '.join(IMAGES)}), found "
                f"{', '.join(sorted(there)[:20]) or 'nothing'}",
                path=path,
            )
    images, places = ZarrArray.open(path, name), None
    if images is None:
        array = _by_library(path, name)
        check_stored(os.path.join(path, name), array.shape, 1)
        axes = axes_of(array.shape, array.dtype, path, name)
    else:
        axes = axes_of(images.shape, images.dtype, path, name)
        check_stored(images.folder, images.shape, 1)
        places = images.places(axes)
    otherwise = Indirect(
        f"{os.path.basename(path)} is compressed, incomplete or not in the order (N, "
        "height, width, 3), so it is read through the zarr library: pack it again",
        functools.partial(_read_images, path, name, axes),
    )
    described = [os.path.join(path, name, file) for file in ("zarr.json", ".zarray")]
    return folder_table(
        path, functools.partial(_column, path), format=NAME, axes=axes, places=places,
        otherwise=otherwise, described=list(filter(os.path.exists, described)),
        attributes=attributes, header=header,
    )  # fmt: skip


def _read_images(path: str, name: str, axes: Axes, indices: np.ndarray) -> list[bytes]:
    """Images that do not lie in a file as they are, by the zarr library."""
    array = _by_library(path, name)
    try:
        return [axes.rgb(np.asarray(array[index])) for index in indices.tolist()]
    except Exception as error:  # codecs raise anything on damaged data
        raise StoreError(f"zarr cannot read it: {error}", path=path) from error


def _column(path: str, name: str) -> np.ndarray | None:
    """A small array of the store, little-endian; None if there is none."""
    if not _is_array(path, name):
        return None
    plain = ZarrArray.open(path, name)
    array = None if plain is None else plain.read()
    if array is None:
        opened = _by_library(path, name)
        check_stored(os.path.join(path, name), opened.shape, opened.dtype.itemsize)
        try:
            # The library makes a list of all chunks, also of an array without a number.
            array = np.asarray(opened[...]) if opened.size else np.empty(opened.shape, opened.dtype)
        except Exception as error:  # codecs raise anything on damaged data
            raise StoreError(f"zarr cannot read {name!r}: {error}", path=path) from error
    return array.astype(array.dtype.newbyteorder("<"))


def _is_array(path: str, name: str) -> bool:
    folder = os.path.join(path, *name.split("/"))
    return any(os.path.exists(os.path.join(folder, file)) for file in ("zarr.json", ".zarray"))


def _by_library(path: str, name: str) -> Any:
    zarr = needed(
        "zarr",
        f"{path!r} is compressed or in another form than fastload writes, and needs the zarr "
        f"library: {install('zarr')}",
    )
    try:
        return zarr.open_array(os.path.join(path, name), mode="r")
    except Exception as error:  # what it raises for damaged descriptions is not documented
        raise StoreError(f"zarr cannot open {name!r}: {error}", path=path) from error


@dataclasses.dataclass(kw_only=True)
class ZarrArray(BlockedArray):
    """A Zarr v3 array that needs no library: chunks divide only the first axis, not compressed.

    ``piece`` are the rows of an inner chunk, if chunks are shards.

    Attributes:
        index_crc, index_first: a shard's index has a CRC32C; it lies at the start of the file.
    """

    separator: str = "/"
    sharded: bool = False
    index_crc: bool = False
    index_first: bool = False

    @classmethod
    def open(cls, root: str, name: str) -> ZarrArray | None:
        """The array ``name`` of the folder ``root``; None if there is none of this kind."""
        folder = os.path.join(root, name) if name else root
        where = os.path.join(folder, "zarr.json")
        described = read_json(where)
        if described is None or described.get("node_type") != "array":
            return None
        try:
            return cls._parse(folder, described, where)
        except (AttributeError, KeyError, TypeError, IndexError, ValueError) as error:
            raise StoreError(f"expected a Zarr v3 array, found {error!r}", path=where) from error

    @classmethod
    def _parse(cls, folder: str, described: Mapping[str, Any], where: str) -> ZarrArray | None:
        shape = counts(described["shape"], where)
        grid = described["chunk_grid"]
        chunk = counts(grid["configuration"]["chunk_shape"], where)
        dtypes = {name: dtype for dtype, name in _NAMES.items()}
        if (
            described["zarr_format"] != 3
            or grid["name"] != "regular"
            or described["data_type"] not in dtypes
            or not _whole(chunk, shape)
            or described.get("storage_transformers")
        ):
            return None
        dtype = np.dtype(dtypes[described["data_type"]])
        made = cls(folder=folder, shape=shape, dtype=dtype, rows=chunk[0], piece=chunk[0])
        encoding = described["chunk_key_encoding"]
        if encoding["name"] != "default":
            return None
        made.separator = (encoding.get("configuration") or {}).get("separator", "/")
        if made.separator not in ("/", "."):
            return None
        codecs = list(described["codecs"])
        if codecs[0]["name"] == "sharding_indexed":
            if len(codecs) > 1:
                return None
            sharding = codecs[0]["configuration"]
            inner = counts(sharding["chunk_shape"], where)
            if not _whole(inner, shape) or chunk[0] % max(1, inner[0]):
                return None
            if not _plain(sharding["index_codecs"], np.dtype("<u8")):
                return None
            made.piece, made.sharded = inner[0], True
            made.index_crc = len(sharding["index_codecs"]) > 1
            made.index_first = sharding.get("index_location", "end") == "start"
            codecs = list(sharding["codecs"])
        return made if _plain(codecs, dtype) else None

    def path_of(self, number: int) -> str:
        key = self.separator.join(["c", str(number), *["0"] * (len(self.shape) - 1)])
        return os.path.join(self.folder, key)

    def begins(self, paths: Sequence[str], axes: Axes) -> np.ndarray | None:
        begins = [np.zeros(0 if self.sharded else len(paths), np.int64)]
        for number, path in enumerate(paths if self.sharded else ()):
            images = min(self.rows, axes.count - number * self.rows)
            index = self._index(path)[: -(-images // self.piece)]
            if bool((index[:, 0] == _MISSING).any()):
                return None
            size = os.path.getsize(path)
            if bool((index > size).any() or (index[:, 1] < self.piece * axes.nbytes).any()):
                raise StoreError(
                    "the index of the shard names places outside of it: copy the store again or "
                    "pack it again",
                    path=path,
                )
            begins.append(index[:, 0].astype(np.int64))
        return np.concatenate(begins)

    def read(self) -> np.ndarray | None:
        """All of a small array that is not sharded; None if only the library can read it."""
        if self.sharded:
            return None
        check_stored(self.folder, self.shape, self.dtype.itemsize)
        parts = []
        nbytes = self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=object))
        for number in range(-(-self.shape[0] // self.rows)):
            path = self.path_of(number)
            rows = min(self.rows, self.shape[0] - number * self.rows)
            try:
                data = read_regular(path, self.rows * nbytes + 4)
            except FileNotFoundError:
                return None
            except (OSError, ValueError) as error:
                raise StoreError(f"the chunk cannot be read: {error}", path=path) from error
            if len(data) < self.rows * nbytes:
                raise StoreError(
                    f"expected {self.rows * nbytes} bytes, found {len(data)}: the chunk was "
                    "truncated; copy the store again or pack it again",
                    path=path,
                )
            if len(data) == self.rows * nbytes + 4 and crc32c(data[:-4]) != _number(data[-4:]):
                raise StoreError("the CRC32C of the chunk does not match: copy or pack it again",
                                 path=path)  # fmt: skip
            chunk = np.frombuffer(data, self.dtype, rows * nbytes // self.dtype.itemsize)
            parts.append(chunk.reshape(rows, *self.shape[1:]))
        return np.concatenate(parts) if parts else np.empty(self.shape, self.dtype)

    def _index(self, path: str) -> np.ndarray:
        """The index of a shard: uint64 (inner chunks, 2), offset and length of each."""
        nbytes = self.rows // self.piece * 16
        whole = nbytes + (4 if self.index_crc else 0)
        try:
            with open(path, "rb", buffering=0, opener=open_regular) as file:
                size = os.fstat(file.fileno()).st_size
                begin = 0 if self.index_first else size - whole
                data = os.pread(file.fileno(), whole, begin) if whole <= size else b""
        except OSError as error:
            raise StoreError(f"the shard cannot be read: {error.strerror}", path=path) from error
        if len(data) != whole or (
            self.index_crc and crc32c(data[:nbytes]) != _number(data[nbytes:])
        ):
            raise StoreError(
                f"expected an index of {whole} bytes whose CRC32C matches, found another: the "
                "shard was truncated or is damaged; copy the store again or pack it again",
                path=path,
            )
        return np.frombuffer(data, "<u8", nbytes // 8).reshape(-1, 2)


class ZarrWriter(BlockArrayWriter):
    """Writes a Zarr v3 folder. See ``open_writer`` for the arguments."""

    format = NAME
    read = staticmethod(read_zarr)

    def _block_path(self, number: int) -> str:
        return os.path.join("c", str(number), "0", "0", "0")

    def _block_tail(self, count: int) -> bytes:
        """The index of a shard."""
        nbytes = math.prod(self._shape)
        index = np.full((self._rows, 2), _MISSING, "<u8")
        index[:count, 0] = np.arange(count) * nbytes
        index[:count, 1] = nbytes
        data = index.tobytes()
        return data + struct.pack("<I", crc32c(data))

    def _describe(self, root: str, columns: Columns, shape: tuple[int, int, int, int]) -> None:
        sharding = {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [1, *shape[1:]],
                "codecs": [_BYTES],
                "index_codecs": [_BYTES, _CRC32C],
                "index_location": "end",
            },
        }
        _describe(os.path.join(root, "images"), shape, self._rows, np.dtype("u1"), [sharding])
        arrays = arrays_of(columns, dtypes=_DTYPES, raw=True)
        arrays |= {"keys/data": columns.keys.data, "keys/ends": columns.keys.ends}
        groups = {name.rpartition("/")[0] for name in arrays} - {""}
        groups |= {group.rpartition("/")[0] for group in groups} - {""}
        for group in sorted(groups):
            os.makedirs(os.path.join(root, *group.split("/")))
            _write_group(os.path.join(root, *group.split("/")), {})
        for name, array in arrays.items():
            _write_array(os.path.join(root, *name.split("/")), array)
        _write_group(
            root,
            {"classes": self._classes, "fastload": self.header(["images", "classes", *arrays])},
        )


def _whole(chunk: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether chunks divide only the first axis."""
    return len(chunk) == len(shape) and chunk[0] > 0 and tuple(chunk[1:]) == tuple(shape[1:])


def _plain(codecs: Sequence[Mapping[str, Any]], dtype: np.dtype[Any]) -> bool:
    """Whether codecs only add a CRC32C after unchanged little-endian numbers."""
    names = [codec["name"] for codec in codecs]
    if names not in (["bytes"], ["bytes", "crc32c"]):
        return False
    endian = (codecs[0].get("configuration") or {}).get("endian", "little")
    return dtype.itemsize == 1 or endian == "little"


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _write_group(folder: str, attributes: Mapping[str, Any]) -> None:
    node = {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}
    write_synced(os.path.join(folder, "zarr.json"), to_json(node))


def _describe(
    folder: str, shape: Sequence[int], rows: int, dtype: np.dtype[Any], codecs: Sequence[Any]
) -> None:
    node = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": _NAMES[dtype.str],
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [max(1, side) for side in (rows, *shape[1:])]},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": False if dtype.kind == "b" else 0,
        "codecs": list(codecs),
        "attributes": {},
    }
    write_synced(os.path.join(folder, "zarr.json"), to_json(node))


def _write_array(folder: str, array: np.ndarray) -> None:
    blocks = pieces(array)
    rows = len(blocks[0])
    os.makedirs(folder)
    _describe(folder, array.shape, rows, array.dtype, [_BYTES, _CRC32C])
    for number, block in enumerate(blocks if array.size else []):
        path = os.path.join(folder, "c", str(number), *["0"] * (array.ndim - 1))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        padded = np.zeros((rows, *array.shape[1:]), array.dtype)  # chunks are always whole
        padded[: len(block)] = block
        data = padded.tobytes()
        write_synced(path, data, struct.pack("<I", crc32c(data)))


FORMAT = Format(
    name="zarr",
    title="Zarr",
    suffixes=(".zarr",),
    open=functools.partial(TableStore, read=read_zarr),
    writer=ZarrWriter,
    folders=True,
    options=frozenset({"shards"}),
    pixels="only",
)
