"""N5: reader and writer of the folder ``NAME.n5``. The layout is in SPECIFICATION.md.

Numbers are big-endian. The first dimension changes fastest, so NumPy has the dimensions in reverse,
and images of height H and width W are a dataset of [3, W, H, N]. A block is a file of several
images, which lie in it as (height, width, 3). Source: the N5 specification, version 4.
"""

from __future__ import annotations

import bz2
import dataclasses
import functools
import lzma
import math
import os
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import StoreError, StoreNotFoundError
from .._columns import Columns
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
from ._image_table import IMAGES, Axes, StoreHeader, arrays_of, axes_of, first_of, least_stored

NAME = "n5"
_OF_DATASETS = {"dimensions", "blockSize", "dataType"}  # attributes that no group has
_MAX_BLOCK = 1 << 31  # bytes of a block that is unpacked in memory
_DTYPES = "i1 u1 i2 u2 i4 u4 i8 u8 f4 f8"
_NAMES = {
    "|i1": "int8", "|u1": "uint8", ">i2": "int16", ">u2": "uint16", ">i4": "int32",
    ">u4": "uint32", ">i8": "int64", ">u8": "uint64", ">f4": "float32", ">f8": "float64",
}  # fmt: skip


def read_n5(path: str) -> Table:
    """The table of an N5 folder with a dataset of images, or of a dataset that is one."""
    if not os.path.isdir(path):
        raise StoreNotFoundError("expected an N5 folder, found none", path=path)
    attributes = read_json(os.path.join(path, "attributes.json")) or {}

    def has(name: str) -> bool:
        return name in attributes or os.path.exists(
            os.path.join(path, *name.split("/"), "attributes.json")
        )

    header = StoreHeader.read(attributes.get("fastload"), NAME, N5Writer.version, path, has)
    name = ""
    if "dimensions" not in attributes:
        there = {entry.name for entry in os.scandir(path) if entry.is_dir()}
        name = first_of(IMAGES, there) or "images"
    images = N5Dataset.open(path, name)
    if images is None:
        raise StoreError(
            f"expected an N5 dataset of images ({', '.join(IMAGES)}), found none", path=path
        )
    axes = axes_of(images.shape, images.dtype, path, name)
    check_stored(images.folder, images.shape, 1)
    otherwise = Indirect(
        f"the blocks of {os.path.basename(path)} are compressed, incomplete or not in the order "
        "(N, height, width, 3), so each has to be unpacked in Python: pack it again",
        functools.partial(_read_images, images, axes),
    )

    def get(name: str) -> np.ndarray | None:
        dataset = N5Dataset.open(path, name)
        return None if dataset is None else dataset.read()

    return folder_table(
        path, get, format=NAME, axes=axes, places=images.places(axes), otherwise=otherwise,
        described=[os.path.join(images.folder, "attributes.json")],
        attributes=attributes, header=header,
    )  # fmt: skip


def _read_images(images: N5Dataset, axes: Axes, indices: np.ndarray) -> list[bytes]:
    unpacked = {}
    for number in np.unique(indices // images.rows).tolist():
        block = images.block(number)
        for index in np.unique(indices[indices // images.rows == number]).tolist():
            unpacked[index] = axes.rgb(block[index % images.rows])
    return [unpacked[index] for index in indices.tolist()]


@dataclasses.dataclass(kw_only=True)
class N5Dataset(BlockedArray):
    """One N5 dataset whose blocks divide only the last dimension.

    ``shape`` and ``rows`` are in NumPy's order, the last dimension of N5 first; ``dtype`` is
    big-endian.
    """

    compression: str
    use_zlib: bool

    @classmethod
    def open(cls, root: str, name: str) -> N5Dataset | None:
        """The dataset ``name`` of the folder ``root``; None for a group, or nothing."""
        folder = os.path.join(root, name) if name else root
        where = os.path.join(folder, "attributes.json")
        attributes = read_json(where) or {}
        if not _OF_DATASETS & set(attributes):
            return None
        shape = counts(attributes.get("dimensions"), where)[::-1]
        block = counts(attributes.get("blockSize"), where)[::-1]
        dtypes = {name: dtype for dtype, name in _NAMES.items()}
        dtype, compression = attributes.get("dataType"), attributes.get("compression")
        # The first versions of N5 have "compressionType".
        compression = compression or {"type": attributes.get("compressionType", "raw")}
        numpy_dtype = dtypes.get(dtype) if isinstance(dtype, str) else None
        if numpy_dtype is None or not isinstance(compression, dict) or 0 in block:
            raise StoreError("expected the attributes of an N5 dataset, found others", path=where)
        if len(block) != len(shape) or any(
            inside < whole for inside, whole in zip(block[1:], shape[1:])
        ):
            raise StoreError(
                f"expected blocks of whole images, found blocks of {block} in an array of "
                f"{shape}: write it again with a blockSize of {list(shape[:0:-1])} and a "
                "number of images",
                path=where,
            )
        return cls(
            folder=folder, shape=shape, dtype=np.dtype(numpy_dtype), rows=block[0], piece=block[0],
            compression=str(compression.get("type")), use_zlib=bool(compression.get("useZlib")),
        )  # fmt: skip

    def path_of(self, number: int) -> str:
        return os.path.join(self.folder, *["0"] * (len(self.shape) - 1), str(number))

    def begins(self, paths: Sequence[str], axes: Axes) -> np.ndarray | None:
        if self.compression != "raw":
            return None
        begins = np.zeros(len(paths), np.int64)
        for number, path in enumerate(paths):
            try:
                with open(path, "rb", buffering=0, opener=open_regular) as block:
                    shape, begins[number] = self.head(block.read(128), path)
            except OSError as error:
                raise StoreError(
                    f"the block cannot be read: {error.strerror}", path=path
                ) from error
            wanted = min(self.rows, axes.count - number * self.rows)
            if shape[1:] != self.shape[1:] or shape[0] < wanted:
                return None
        return begins

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
        unpackers: Mapping[str, Callable[[], Any]] = {
            "gzip": lambda: zlib.decompressobj(15 if self.use_zlib else 31),
            "bzip2": bz2.BZ2Decompressor,
            "xz": lzma.LZMADecompressor,
        }
        if self.compression not in unpackers:
            raise StoreError(
                f"expected the compression raw, gzip, bzip2 or xz, found {self.compression}: write "
                "it again with one of these",
                path=self.folder,
            )
        unpacker = unpackers[self.compression]()
        try:
            unpacked: bytes = unpacker.decompress(data, nbytes + 1)
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
            raise StoreError(f"the block is damaged: {error}", path=path) from error
        if len(unpacked) != nbytes or not unpacker.eof:
            raise StoreError(
                f"expected {nbytes} bytes of {self.compression}, found others: the block was "
                "truncated or is damaged",
                path=path,
            )
        return unpacked

    def read(self) -> np.ndarray:
        """All of a small dataset, little-endian."""
        check_stored(self.folder, self.shape, self.dtype.itemsize)
        blocks = range(-(-self.shape[0] // self.rows))
        for number in blocks:
            if not os.path.exists(self.path_of(number)):
                raise StoreError(
                    f"expected {len(blocks)} blocks, found no number {number}: copy the store "
                    "again or pack it again",
                    path=self.folder,
                )
        parts = [self.block(number) for number in blocks]
        whole = np.concatenate(parts) if parts else np.empty(self.shape, self.dtype)
        return whole.astype(self.dtype.newbyteorder("<"))


class N5Writer(BlockArrayWriter):
    """Writes an N5 folder. See ``open_writer`` for the arguments."""

    format = NAME
    read = staticmethod(read_n5)

    def _block_path(self, number: int) -> str:
        return os.path.join("0", "0", "0", str(number))

    def _block_head(self, count: int) -> bytes:
        return _block_head((count, *self._shape))

    def _describe(self, root: str, columns: Columns, shape: tuple[int, int, int, int]) -> None:
        _describe(os.path.join(root, "images"), shape, self._rows, np.dtype("u1"))
        arrays = arrays_of(columns, dtypes=_DTYPES, raw=True)
        arrays |= {"keys/data": columns.keys.data, "keys/ends": columns.keys.ends}
        for name, array in arrays.items():
            _write_dataset(os.path.join(root, *name.split("/")), array)
        attributes = {
            "n5": "2.5.0",
            "classes": self._classes,
            "fastload": self.header(["images", "classes", *arrays]),
        }
        write_synced(os.path.join(root, "attributes.json"), to_json(attributes))


def _block_head(shape: Sequence[int]) -> bytes:
    return struct.pack(f">HH{len(shape)}I", 0, len(shape), *shape[::-1])


def _describe(folder: str, shape: Sequence[int], rows: int, dtype: np.dtype[Any]) -> None:
    attributes = {
        "dimensions": list(shape[::-1]),
        "blockSize": [*(max(1, side) for side in shape[:0:-1]), max(1, rows)],
        "dataType": _NAMES[dtype.newbyteorder(">").str],
        "compression": {"type": "raw"},
    }
    write_synced(os.path.join(folder, "attributes.json"), to_json(attributes))


def _write_dataset(folder: str, array: np.ndarray) -> None:
    blocks = pieces(array)
    os.makedirs(folder)
    _describe(folder, array.shape, len(blocks[0]), array.dtype)
    if not array.size:
        return
    inside = os.path.join(folder, *["0"] * (array.ndim - 1))
    os.makedirs(inside, exist_ok=True)
    for number, block in enumerate(blocks):
        big = np.ascontiguousarray(block, block.dtype.newbyteorder(">"))
        write_synced(os.path.join(inside, str(number)), _block_head(block.shape), big.tobytes())


FORMAT = Format(
    name="n5",
    title="N5",
    suffixes=(".n5",),
    open=functools.partial(TableStore, read=read_n5),
    writer=N5Writer,
    folders=True,
    options=frozenset({"shards"}),
    pixels="only",
)
