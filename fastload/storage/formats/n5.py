"""N5: reader and writer of the folder ``NAME.n5``. The layout is in SPECIFICATION.md.

The first dimension of N5 changes fastest, so images of height H and width W are a dataset of
[3, W, H, N]. A block is a file of several images, which lie in it as (height, width, 3).
"""

from __future__ import annotations

import functools
import os

import numpy as np

from ...errors import StoreError, StoreNotFoundError
from .._columns import Columns
from .._read import open_regular
from ..registry import Format
from ..table import Fingerprint, Indirect, Table, TableStore
from ._array_writer import to_json, write_synced
from ._blocks import (
    BlockArrayWriter,
    BlockWriter,
    check_stored,
    file_print,
    folder_table,
    read_json,
)
from ._image_table import IMAGES, Axes, Header, arrays_of, axes_of, first_of
from ._n5_dataset import DTYPES, Dataset, block_head, describe, write_dataset

NAME = "n5"
VERSION = 1


def read_n5(path: str) -> Table:
    """The table of an N5 folder with a dataset of images, or of a dataset that is one."""
    if not os.path.isdir(path):
        raise StoreNotFoundError("expected an N5 folder, found nothing", path=path)
    attributes = read_json(os.path.join(path, "attributes.json")) or {}

    def has(name: str) -> bool:
        return name in attributes or os.path.exists(
            os.path.join(path, *name.split("/"), "attributes.json")
        )

    header = Header.read(attributes.get("fastload"), NAME, VERSION, path, has)
    name = ""
    if "dimensions" not in attributes:
        there = {entry.name for entry in os.scandir(path) if entry.is_dir()}
        name = first_of(IMAGES, there) or "images"
    images = Dataset.open(path, name)
    if images is None:
        raise StoreError(
            f"expected an N5 dataset of images ({', '.join(IMAGES)}), found none", path=path
        )
    axes = axes_of(images.shape, images.dtype, path, name)
    check_stored(images.folder, images.shape, 1)
    file, offset, files, prints = _places(images, axes)
    indirect = None
    if files is None:
        indirect = Indirect(
            f"the blocks of {os.path.basename(path)} are compressed, incomplete or not in the "
            "order (N, height, width, 3), so each has to be unpacked in Python: pack it again",
            functools.partial(_read_images, images, axes),
        )
        files = [os.path.join(images.folder, "attributes.json")]
        prints = [file_print(files[0])]

    def get(name: str) -> np.ndarray | None:
        found = Dataset.open(path, name)
        return None if found is None else found.read()

    return folder_table(
        path, get, format=NAME, axes=axes, file=file, offset=offset, files=files,
        fingerprints=prints, indirect=indirect, attributes=attributes, header=header,
    )  # fmt: skip


def _read_images(images: Dataset, axes: Axes, indices: np.ndarray) -> list[bytes]:
    """Images of blocks that have to be unpacked."""
    found = {}
    for number in np.unique(indices // images.rows).tolist():
        block = images.block(number)
        for index in np.unique(indices[indices // images.rows == number]).tolist():
            found[index] = axes.rgb(block[index % images.rows])
    return [found[index] for index in indices.tolist()]


def _places(
    images: Dataset, axes: Axes
) -> tuple[np.ndarray, np.ndarray, list[str] | None, list[Fingerprint]]:
    """File and offset of each image; no files if images do not lie there as they are."""
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
        try:
            with open(path, "rb", buffering=0, opener=open_regular) as block:
                shape, begins[number] = images.head(block.read(128), path)
        except OSError as error:
            raise StoreError(f"the block cannot be read: {error.strerror}", path=path) from error
        wanted = min(images.rows, count - number * images.rows)
        if shape[1:] != images.shape[1:] or shape[0] < wanted:
            return nowhere
    which = (numbers // images.rows).astype(np.int32)
    offset = begins[which] + numbers % images.rows * axes.nbytes if count else none
    return which, offset, paths, [file_print(path) for path in paths]


class N5Writer(BlockArrayWriter):
    """Writes an N5 folder. See ``open_writer`` for the arguments."""

    format = NAME
    version = VERSION
    read = staticmethod(read_n5)

    def _images(self, folder: str, width: int, height: int) -> BlockWriter:
        return BlockWriter(
            lambda number: os.path.join(folder, "0", "0", "0", str(number)),
            self._rows,
            lambda count: block_head((count, height, width, 3)),
            lambda count: b"",
        )

    def _describe(self, root: str, columns: Columns, shape: tuple[int, int, int, int]) -> None:
        describe(os.path.join(root, "images"), shape, self._rows, np.dtype("u1"))
        arrays = arrays_of(columns, dtypes=DTYPES, raw=True)
        arrays |= {"keys/data": columns.keys.data, "keys/ends": columns.keys.ends}
        for name, array in arrays.items():
            write_dataset(os.path.join(root, *name.split("/")), array)
        attributes = {
            "n5": "2.5.0",
            "classes": self._classes,
            "fastload": self.header(["images", "classes", *arrays]),
        }
        write_synced(os.path.join(root, "attributes.json"), to_json(attributes))


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
