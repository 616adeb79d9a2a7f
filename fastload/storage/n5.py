"""N5: reader and writer of the folder ``NAME.n5``. The layout is written down in docs/formats.md.

Numbers are big-endian; the first dimension changes fastest, so that images of height H and width W
are an N5 dataset of [3, W, H, N]. Source: the N5 specification, version 4.
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

from fastload.errors import StoreError, StoreNotFoundError

from ._array_table import (
    Arrays,
    arrays_of,
    checked_classes,
    checked_labels,
    numbered,
    parse_header,
)
from ._array_writer import ArrayWriter, to_json, write_synced
from ._blocks import (
    BlockWriter,
    PerFile,
    counts,
    file_print,
    pieces,
    read_json,
    sync_folders,
)
from ._columns import Columns
from ._image_array import CLASSES, IMAGES, LABELS, Axes, axes_of, first_of
from ._table import Fingerprint, Table, TableStore
from .base import RAW

FORMAT = "n5"
VERSION = 1
_MAX_BLOCK = 1 << 31  # bytes of a block that is unpacked in memory
_DTYPES = "i1 u1 i2 u2 i4 u4 i8 u8 f4 f8"
_NAMES = {
    "|i1": "int8", "|u1": "uint8", ">i2": "int16", ">u2": "uint16", ">i4": "int32",
    ">u4": "uint32", ">i8": "int64", ">u8": "uint64", ">f4": "float32", ">f8": "float64",
}  # fmt: skip


class N5Store(TableStore):
    """Reads an N5 folder with a dataset of images, or a dataset that is one.

    Args:
        path: of the folder.

    Raises:
        StoreNotFoundError: nothing there.
        StoreError: no N5, damaged, or in blocks that do not hold whole images.
    """

    format = FORMAT

    def _load(self, path: str) -> Table:
        if not os.path.isdir(path):
            raise StoreNotFoundError("expected an N5 folder, found nothing", path=path)
        attributes = read_json(os.path.join(path, "attributes.json")) or {}
        header: dict[str, Any] = {"metadata": {}, "fields": []}
        if "fastload" in attributes:
            header = parse_header(attributes["fastload"], FORMAT, VERSION, path)
        name = ""
        if "dimensions" not in attributes:
            there = [entry.name for entry in os.scandir(path) if entry.is_dir()]
            name = first_of(IMAGES, there) or "images"
        images = _Dataset.open(path, name)
        if images is None:
            raise StoreError(
                f"expected an N5 dataset of images ({', '.join(IMAGES)}), found none", path=path
            )
        axes = axes_of(images.shape, images.dtype, path, name)
        self._images, self._axes = images, axes
        file, offset, files, prints = _places(images, axes)
        self.indirect = None
        if files is None:
            self.indirect = (
                f"the blocks of {os.path.basename(path)} are compressed, incomplete or not in the "
                f"order (N, height, width, 3), so each has to be unpacked in Python: pack it again"
            )
            files = [os.path.join(images.folder, "attributes.json")]
            prints = [file_print(files[0])]

        def get(name: str) -> np.ndarray | None:
            found = _Dataset.open(path, name)
            return None if found is None else found.read()

        count = axes.count
        arrays = Arrays(path, count, get)
        labels = first_of(LABELS, [name for name in LABELS if os.path.isdir(f"{path}/{name}")])
        classes = first_of(CLASSES, attributes)
        return Table(
            format=FORMAT,
            files=files,
            file=file,
            offset=offset,
            nbytes=np.full(count, 0 if self.indirect else axes.nbytes, np.int64),
            sizes=np.full((count, 2), (axes.width, axes.height), np.int32),
            kinds=np.full(count, RAW, np.uint8),
            keys=arrays.blobs("keys") or numbered(count),
            labels=checked_labels(get(labels), count, path) if labels else None,
            crc32c=arrays.optional("crc32c", "<u4"),
            fields=arrays.fields(header["fields"]),
            classes=checked_classes(attributes[classes], path) if classes else [],
            metadata=header["metadata"],
            fingerprints=prints,
        )

    def read(self, indices: np.ndarray) -> list[bytes]:
        """As in the contract; where blocks are compressed, they are unpacked.

        Raises:
            StoreError: a block cannot be read.
        """
        self._table  # noqa: B018 - reads where the images are, if that was let go of
        if self.indirect is None:
            return super().read(indices)
        images, found = self._images, {}
        for number in np.unique(indices // images.rows).tolist():
            block = images.block(number)
            for index in np.unique(indices[indices // images.rows == number]).tolist():
                found[index] = self._axes.rgb(block[index % images.rows])
        return [found[index] for index in indices.tolist()]


class _Dataset:
    """One N5 dataset whose blocks are cut along the last dimension only.

    Attributes:
        folder: where it is.
        shape: as NumPy has it, the last dimension of N5 first.
        dtype: big-endian.
        rows: of a block, along the first axis of ``shape``.
        compression: name.
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
        if dtype not in dtypes or not isinstance(compression, dict) or 0 in block:
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
        self.dtype = np.dtype(dtypes[dtype])
        self.rows = block[0]
        self.compression = str(compression.get("type"))
        self._zlib = bool(compression.get("useZlib"))

    @classmethod
    def open(cls, root: str, name: str) -> _Dataset | None:
        """The dataset ``name`` of the folder ``root``, or None."""
        folder = os.path.join(root, *name.split("/")) if name else root
        attributes = read_json(os.path.join(folder, "attributes.json"))
        return (
            None
            if attributes is None or "dimensions" not in attributes
            else cls(folder, attributes)
        )

    def path_of(self, number: int) -> str:
        """The file of a block."""
        return os.path.join(self.folder, *["0"] * (len(self.shape) - 1), str(number))

    @property
    def blocks(self) -> int:
        """How many there are."""
        return -(-self.shape[0] // self.rows)

    def head(self, data: bytes, path: str) -> tuple[tuple[int, ...], int]:
        """The shape of a block and where its numbers begin, out of its first bytes."""
        many = len(self.shape)
        if len(data) < 4 + 4 * many:
            raise StoreError("expected the header of an N5 block: it was cut short", path=path)
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
        """The block ``number``; zeros where there is none, as N5 says."""
        path = self.path_of(number)
        wanted = (min(self.rows, self.shape[0] - number * self.rows), *self.shape[1:])
        try:
            with open(path, "rb") as file:
                data = file.read(_MAX_BLOCK)
        except FileNotFoundError:
            return np.zeros(wanted, self.dtype)
        except OSError as error:
            raise StoreError(f"the block cannot be read: {error}", path=path) from error
        shape, begin = self.head(data, path)
        nbytes = math.prod(shape) * self.dtype.itemsize
        if nbytes > _MAX_BLOCK or any(have < want for have, want in zip(shape, wanted)):
            raise StoreError(
                f"expected a block of {wanted}, found {shape}: it is damaged", path=path
            )
        data = self._unpack(data[begin:], nbytes, path)
        if len(data) < nbytes:
            raise StoreError(f"expected {nbytes} bytes, found {len(data)}: the block was cut short",
                             path=path)  # fmt: skip
        whole = np.frombuffer(data, self.dtype, math.prod(shape)).reshape(shape)
        return whole[tuple(slice(side) for side in wanted)]

    def _unpack(self, data: bytes, nbytes: int, path: str) -> bytes:
        """``nbytes`` bytes of a block, and no more, whatever its compression makes of it."""
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
                f"expected {nbytes} bytes of {self.compression}, found others: the block was cut "
                "short or is damaged",
                path=path,
            )
        return found

    def read(self) -> np.ndarray:
        """All of a small dataset, little-endian.

        Raises:
            StoreError: damaged, or larger than its files could be.
        """
        present = sum(
            os.path.exists(self.path_of(number)) for number in range(min(self.blocks, 1 << 20))
        )
        if present != self.blocks:
            raise StoreError(
                f"expected {self.blocks} blocks, found {present}: copy or pack the store again",
                path=self.folder,
            )
        parts = [self.block(number) for number in range(self.blocks)]
        whole = np.concatenate(parts) if parts else np.empty(self.shape, self.dtype)
        return whole.astype(self.dtype.newbyteorder("<"))


def _places(
    images: _Dataset, axes: Axes
) -> tuple[np.ndarray, np.ndarray, list[str] | None, list[Fingerprint]]:
    """File and offset of each image; no files where images do not lie there as they are."""
    count = axes.count
    numbers = np.arange(count, dtype=np.int64)
    none = np.zeros(count, np.int64)
    nowhere: tuple[np.ndarray, np.ndarray, None, list[Fingerprint]] = (
        none.astype(np.int32), none, None, [],
    )  # fmt: skip
    paths = [images.path_of(number) for number in range(min(images.blocks, 1 << 20))]
    if not axes.in_place or images.compression != "raw" or len(paths) < images.blocks:
        return nowhere
    if not all(map(os.path.exists, paths)):
        return nowhere
    begins = np.zeros(len(paths), np.int64)
    for number, path in enumerate(paths):
        with open(path, "rb", buffering=0) as block:
            shape, begins[number] = images.head(block.read(64), path)
        wanted = min(images.rows, count - number * images.rows)
        if shape[1:] != images.shape[1:] or shape[0] < wanted:
            return nowhere
    which = (numbers // images.rows).astype(np.int32)
    offset = begins[which] + numbers % images.rows * axes.nbytes if count else none
    return which, offset, paths, [file_print(path) for path in paths]


class N5Writer(ArrayWriter):
    """Writes an N5 folder. See ``open_writer`` for the arguments.

    Args:
        shards: so many blocks, which needs ``total``.
        shard_nbytes: of a block; None: 64 MiB, and at most 4,096 images.
        total: how many records will come.
    """

    format = FORMAT
    version = VERSION

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        shards: int | None = None,
        shard_nbytes: int | None = None,
        total: int | None = None,
        **options: Any,
    ) -> None:
        self._per_file = PerFile(shards, shard_nbytes, total)
        self._blocks: BlockWriter | None = None
        super().__init__(path, **options)

    def _begin(self) -> None:
        width, height = self._size or (1, 1)
        folder = os.path.join(self._partial.file("data"), "images")
        os.makedirs(folder)
        self._rows = self._per_file.images(width * height * 3)
        self._blocks = BlockWriter(
            lambda number: os.path.join(folder, "0", "0", "0", str(number)),
            self._rows,
            lambda count: _head((count, height, width, 3)),
            lambda count: b"",
        )

    def _write(self, data: Sequence[bytes | memoryview]) -> None:
        assert self._blocks is not None  # begun
        self._blocks.write(data)

    def _close(self, columns: Columns) -> str:
        if self._blocks is None:
            self._begin()
        assert self._blocks is not None  # begun
        self._blocks.finish()
        root = self._partial.file("data")
        width, height = self._size or (1, 1)
        shape = (len(columns), height, width, 3)
        _describe(os.path.join(root, "images"), shape, self._rows, np.dtype("u1"))
        arrays = arrays_of(columns, dtypes=_DTYPES, raw=True)
        arrays |= {"keys/data": columns.keys.data, "keys/ends": columns.keys.ends}
        for name, array in arrays.items():
            _write_dataset(os.path.join(root, *name.split("/")), array)
        attributes = {"n5": "2.5.0", "classes": self._classes, "fastload": self.header()}
        write_synced(os.path.join(root, "attributes.json"), to_json(attributes))
        sync_folders(root)
        return "data"

    def _check(self, path: str, count: int) -> None:
        found = len(N5Store(path))
        if found != count:
            raise StoreError(f"expected {count} records, found {found}", path=path)

    def _release(self) -> None:
        if self._blocks is not None:
            self._blocks.abandon()


def _head(shape: Sequence[int]) -> bytes:
    """The header of a block: mode, number of dimensions, their sizes."""
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
        write_synced(os.path.join(inside, str(number)), _head(block.shape), big.tobytes())
