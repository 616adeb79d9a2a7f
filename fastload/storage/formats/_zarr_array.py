"""Zarr v3 arrays that need no library: not compressed, chunks divide only the first axis.

Source: the Zarr core specification, version 3, and its codecs ``bytes``, ``crc32c`` and
``sharding_indexed``.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import StoreError
from .._crc import crc32c
from .._read import open_regular, read_regular
from ._array_writer import to_json, write_synced
from ._blocks import check_stored, counts, pieces, read_json

MISSING = 2**64 - 1  # in the index of a shard: an inner chunk that is not stored
_NAMES = {
    "|b1": "bool", "|i1": "int8", "|u1": "uint8", "<i2": "int16", "<u2": "uint16", "<i4": "int32",
    "<u4": "uint32", "<i8": "int64", "<u8": "uint64", "<f2": "float16", "<f4": "float32",
    "<f8": "float64",
}  # fmt: skip
DTYPES = "bool i1 u1 i2 u2 i4 u4 i8 u8 f2 f4 f8"
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
CRC32C = {"name": "crc32c"}


class Array:
    """A Zarr v3 array that needs no library: chunks divide only the first axis, not compressed.

    Attributes:
        rows: of a chunk file, along the first axis.
        inner: rows of an inner chunk of a shard; None if chunks are not shards.
        index_crc, index_first: a shard's index has a CRC32C; it lies at the start of the file.
    """

    def __init__(
        self, folder: str, shape: tuple[int, ...], dtype: np.dtype[Any], rows: int
    ) -> None:
        self.folder = folder
        self.shape = shape
        self.dtype = dtype
        self.rows = rows
        self.inner: int | None = None
        self.index_crc = False
        self.index_first = False
        self._separator = "/"

    @classmethod
    def open(cls, root: str, name: str) -> Array | None:
        """The array ``name`` of the folder ``root``; None if there is none of this kind."""
        folder = os.path.join(root, *name.split("/")) if name else root
        where = os.path.join(folder, "zarr.json")
        described = read_json(where)
        if described is None or described.get("node_type") != "array":
            return None
        try:
            return cls._parse(folder, described, where)
        except (AttributeError, KeyError, TypeError, IndexError, ValueError) as error:
            raise StoreError(f"expected a Zarr v3 array, found {error!r}", path=where) from error

    @classmethod
    def _parse(cls, folder: str, described: Mapping[str, Any], where: str) -> Array | None:
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
        made = cls(folder, shape, dtype, chunk[0])
        encoding = described["chunk_key_encoding"]
        if encoding["name"] != "default":
            return None
        made._separator = (encoding.get("configuration") or {}).get("separator", "/")
        if made._separator not in ("/", "."):
            return None
        codecs = list(described["codecs"])
        if codecs[0]["name"] == "sharding_indexed":
            if len(codecs) > 1:
                return None
            sharding = codecs[0]["configuration"]
            inner = counts(sharding["chunk_shape"], where)
            index_codecs = [codec["name"] for codec in sharding["index_codecs"]]
            if not _whole(inner, shape) or chunk[0] % max(1, inner[0]):
                return None
            if index_codecs not in (["bytes"], ["bytes", "crc32c"]) or not _plain(
                sharding["index_codecs"], np.dtype("<u8")
            ):
                return None
            made.inner = inner[0]
            made.index_crc = "crc32c" in index_codecs
            made.index_first = sharding.get("index_location", "end") == "start"
            codecs = list(sharding["codecs"])
        return made if _plain(codecs, dtype) else None

    @property
    def files(self) -> int:
        return -(-self.shape[0] // self.rows)

    def path_of(self, number: int) -> str:
        key = self._separator.join(["c", str(number), *["0"] * (len(self.shape) - 1)])
        return os.path.join(self.folder, *key.split("/"))

    def read(self) -> np.ndarray | None:
        """All of a small array that is not sharded; None if only the library can read it."""
        if self.inner is not None:
            return None
        check_stored(self.folder, self.shape, self.dtype.itemsize)
        parts = []
        nbytes = self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=object))
        for number in range(self.files):
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

    def index(self, number: int) -> np.ndarray:
        """The index of a shard: uint64 (inner chunks, 2), offset and length of each."""
        assert self.inner is not None  # a shard
        path = self.path_of(number)
        nbytes = self.rows // self.inner * 16
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


def shard_index(count: int, rows: int, nbytes: int) -> bytes:
    """The index of a shard with ``count`` of ``rows`` images, one after the other."""
    index = np.full((rows, 2), MISSING, "<u8")
    index[:count, 0] = np.arange(count) * nbytes
    index[:count, 1] = nbytes
    data = index.tobytes()
    return data + struct.pack("<I", crc32c(data))


def write_group(folder: str, attributes: Mapping[str, Any]) -> None:
    node = {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}
    write_synced(os.path.join(folder, "zarr.json"), to_json(node))


def describe(
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


def write_array(folder: str, array: np.ndarray) -> None:
    blocks = pieces(array)
    rows = len(blocks[0])
    os.makedirs(folder)
    describe(folder, array.shape, rows, array.dtype, [BYTES, CRC32C])
    for number, block in enumerate(blocks if array.size else []):
        path = os.path.join(folder, "c", str(number), *["0"] * (array.ndim - 1))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        padded = np.zeros((rows, *array.shape[1:]), array.dtype)  # chunks are always whole
        padded[: len(block)] = block
        data = padded.tobytes()
        write_synced(path, data, struct.pack("<I", crc32c(data)))
