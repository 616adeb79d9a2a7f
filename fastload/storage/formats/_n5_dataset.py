"""N5 datasets whose blocks divide only the last dimension: reading blocks, and writing.

Numbers are big-endian. The first dimension changes fastest, so NumPy has the dimensions in reverse.
Source: the N5 specification, version 4.
"""

from __future__ import annotations

import bz2
import lzma
import math
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import StoreError
from .._read import read_regular
from ._array_writer import to_json, write_synced
from ._blocks import check_stored, counts, pieces, read_json
from ._image_table import least_stored

_OF_DATASETS = {"dimensions", "blockSize", "dataType"}  # attributes that no group has
_MAX_BLOCK = 1 << 31  # bytes of a block that is unpacked in memory
DTYPES = "i1 u1 i2 u2 i4 u4 i8 u8 f4 f8"
_NAMES = {
    "|i1": "int8", "|u1": "uint8", ">i2": "int16", ">u2": "uint16", ">i4": "int32",
    ">u4": "uint32", ">i8": "int64", ">u8": "uint64", ">f4": "float32", ">f8": "float64",
}  # fmt: skip


class Dataset:
    """One N5 dataset whose blocks divide only the last dimension.

    Attributes:
        shape: in NumPy's order, the last dimension of N5 first.
        dtype: big-endian.
        rows: of a block, along the first axis of ``shape``.
    """

    def __init__(self, folder: str, attributes: Mapping[str, Any]) -> None:
        where = os.path.join(folder, "attributes.json")
        self.folder = folder
        self.shape = counts(attributes.get("dimensions"), where)[::-1]
        block = counts(attributes.get("blockSize"), where)[::-1]
        dtypes = {name: dtype for dtype, name in _NAMES.items()}
        dtype, compression = attributes.get("dataType"), attributes.get("compression")
        # The first versions of N5 have "compressionType".
        compression = compression or {"type": attributes.get("compressionType", "raw")}
        known = dtypes.get(dtype) if isinstance(dtype, str) else None
        if known is None or not isinstance(compression, dict) or 0 in block:
            raise StoreError("expected the attributes of an N5 dataset, found others", path=where)
        if len(block) != len(self.shape) or any(
            inside < whole for inside, whole in zip(block[1:], self.shape[1:])
        ):
            raise StoreError(
                f"expected blocks of whole images, found blocks of {block} in an array of "
                f"{self.shape}: write it again with a blockSize of {list(self.shape[:0:-1])} and a "
                "number of images",
                path=where,
            )
        self.dtype = np.dtype(known)
        self.rows = block[0]
        self.compression = str(compression.get("type"))
        self._zlib = bool(compression.get("useZlib"))

    @classmethod
    def open(cls, root: str, name: str) -> Dataset | None:
        """The dataset ``name`` of the folder ``root``; None for a group, or nothing."""
        folder = os.path.join(root, *name.split("/")) if name else root
        attributes = read_json(os.path.join(folder, "attributes.json")) or {}
        return cls(folder, attributes) if _OF_DATASETS & set(attributes) else None

    def path_of(self, number: int) -> str:
        return os.path.join(self.folder, *["0"] * (len(self.shape) - 1), str(number))

    @property
    def blocks(self) -> int:
        return -(-self.shape[0] // self.rows)

    def head(self, data: bytes, path: str) -> tuple[tuple[int, ...], int]:
        """The shape of a block and where its numbers start, from its first bytes."""
        many = len(self.shape)
        if len(data) < 4 + 4 * many:
            raise StoreError("expected the header of an N5 block: it was truncated", path=path)
        mode, dimensions = struct.unpack_from(">HH", data)
        shape = struct.unpack_from(f">{many}I", data, 4)[::-1]
        if mode not in (0, 1) or dimensions != many:
            raise StoreError(
                f"expected an N5 block of {self.shape[1:]}, found mode {mode} and {shape}: it is "
                "damaged",
                path=path,
            )
        return shape, 4 + 4 * many + (4 if mode == 1 else 0)

    def block(self, number: int) -> np.ndarray:
        """The block ``number``; zeros if it is missing, as N5 defines."""
        path = self.path_of(number)
        wanted = (min(self.rows, self.shape[0] - number * self.rows), *self.shape[1:])
        try:
            if math.prod(wanted) * self.dtype.itemsize > _MAX_BLOCK:
                raise ValueError(f"a shape of {wanted}, more than {_MAX_BLOCK} bytes")
            data = read_regular(path, _MAX_BLOCK)
        except FileNotFoundError:
            return np.zeros(wanted, self.dtype)
        except (OSError, ValueError) as error:
            raise StoreError(f"the block cannot be read: {error}", path=path) from error
        shape, begin = self.head(data, path)
        nbytes = math.prod(shape) * self.dtype.itemsize
        if least_stored(shape, self.dtype.itemsize) > len(data) or any(
            have < want for have, want in zip(shape, wanted)
        ):
            raise StoreError(
                f"expected a block of {wanted}, found {shape}: it is damaged", path=path
            )
        data = self._unpack(data[begin:], nbytes, path)
        if len(data) < nbytes:
            raise StoreError(f"expected {nbytes} bytes, found {len(data)}: the block was truncated",
                             path=path)  # fmt: skip
        whole = np.frombuffer(data, self.dtype, math.prod(shape)).reshape(shape)
        return whole[tuple(slice(side) for side in wanted)]

    def _unpack(self, data: bytes, nbytes: int, path: str) -> bytes:
        """The ``nbytes`` bytes of a block; never unpacks more, however much it may hold."""
        if self.compression == "raw":
            return data
        unpacker: Any
        if self.compression == "gzip":
            unpacker = zlib.decompressobj(15 if self._zlib else 31)
        elif self.compression == "bzip2":
            unpacker = bz2.BZ2Decompressor()
        elif self.compression == "xz":
            unpacker = lzma.LZMADecompressor()
        else:
            raise StoreError(
                f"expected the compression raw, gzip, bzip2 or xz, found {self.compression}: write "
                "it again with one of these",
                path=self.folder,
            )
        try:
            found: bytes = unpacker.decompress(data, nbytes + 1)
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
            raise StoreError(f"the block is damaged: {error}", path=path) from error
        if len(found) != nbytes or not unpacker.eof:
            raise StoreError(
                f"expected {nbytes} bytes of {self.compression}, found others: the block was "
                "truncated or is damaged",
                path=path,
            )
        return found

    def read(self) -> np.ndarray:
        """All of a small dataset, little-endian."""
        check_stored(self.folder, self.shape, self.dtype.itemsize)
        for number in range(self.blocks):
            if not os.path.exists(self.path_of(number)):
                raise StoreError(
                    f"expected {self.blocks} blocks, found no number {number}: copy the store "
                    "again or pack it again",
                    path=self.folder,
                )
        parts = [self.block(number) for number in range(self.blocks)]
        whole = np.concatenate(parts) if parts else np.empty(self.shape, self.dtype)
        return whole.astype(self.dtype.newbyteorder("<"))


def block_head(shape: Sequence[int]) -> bytes:
    """The header of a block: mode, number of dimensions, their sizes."""
    return struct.pack(f">HH{len(shape)}I", 0, len(shape), *shape[::-1])


def describe(folder: str, shape: Sequence[int], rows: int, dtype: np.dtype[Any]) -> None:
    attributes = {
        "dimensions": list(shape[::-1]),
        "blockSize": [*(max(1, side) for side in shape[:0:-1]), max(1, rows)],
        "dataType": _NAMES[dtype.newbyteorder(">").str],
        "compression": {"type": "raw"},
    }
    write_synced(os.path.join(folder, "attributes.json"), to_json(attributes))


def write_dataset(folder: str, array: np.ndarray) -> None:
    blocks = pieces(array)
    os.makedirs(folder)
    describe(folder, array.shape, len(blocks[0]), array.dtype)
    if not array.size:
        return
    inside = os.path.join(folder, *["0"] * (array.ndim - 1))
    os.makedirs(inside, exist_ok=True)
    for number, block in enumerate(blocks):
        big = np.ascontiguousarray(block, block.dtype.newbyteorder(">"))
        write_synced(os.path.join(inside, str(number)), block_head(block.shape), big.tobytes())
