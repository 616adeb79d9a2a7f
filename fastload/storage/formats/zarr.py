"""Zarr v3: reader and writer of the folder ``NAME.zarr``. The layout is in SPECIFICATION.md.

Images are one array (N, height, width, 3), sharded: a shard is a file of many images, each an inner
chunk that is not compressed, with an index after them. The index says where each image lies, so
that it is read in place. Arrays in any other form are read through the zarr library.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np

from ...errors import MissingDependencyError, StoreError, StoreNotFoundError, install
from .._columns import Columns
from ..registry import Format
from ..table import Indirect, Table, TableStore
from ._blocks import (
    BlockArrayWriter,
    BlockWriter,
    check_stored,
    file_print,
    folder_table,
    read_json,
)
from ._image_table import IMAGES, Axes, Header, arrays_of, axes_of, first_of
from ._zarr_array import (
    BYTES,
    CRC32C,
    DTYPES,
    MISSING,
    Array,
    describe,
    shard_index,
    write_array,
    write_group,
)

NAME = "zarr"
VERSION = 1


def read_zarr(path: str) -> Table:
    """The table of a Zarr folder with an array of images, or of an array that is one."""
    if not os.path.isdir(path):
        raise StoreNotFoundError("expected a Zarr folder, found nothing", path=path)
    root = read_json(os.path.join(path, "zarr.json")) or {}
    attributes = root.get("attributes") or {}
    if not isinstance(attributes, dict):
        raise StoreError(
            f"expected attributes that are an object, found {str(attributes)[:100]}",
            path=os.path.join(path, "zarr.json"),
        )

    def has(name: str) -> bool:
        return name in attributes or _is_array(path, name)

    header = Header.read(attributes.get("fastload"), NAME, VERSION, path, has)
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
    images = Array.open(path, name)
    places = None
    if images is None:
        found = _by_library(path, name)
        check_stored(os.path.join(path, name), found.shape, 1)
        axes = axes_of(found.shape, found.dtype, path, name)
    else:
        axes = axes_of(images.shape, images.dtype, path, name)
        check_stored(images.folder, images.shape, 1)
        places = _places(images, axes)
    indirect = None
    if places is None:
        indirect = Indirect(
            f"{os.path.basename(path)} is compressed, incomplete or not in the order (N, "
            "height, width, 3), so it is read through the zarr library: pack it again",
            functools.partial(_read_images, path, name, axes),
        )
        described = (os.path.join(path, name, one) for one in ("zarr.json", ".zarray"))
        nowhere = np.zeros(axes.count, np.int64)
        places = nowhere.astype(np.int32), nowhere, list(filter(os.path.exists, described))
    file, offset, files = places
    return folder_table(
        path, functools.partial(_column, path), format=NAME, axes=axes, file=file, offset=offset,
        files=files, fingerprints=[file_print(file) for file in files], indirect=indirect,
        attributes=attributes, header=header,
    )  # fmt: skip


def _read_images(path: str, name: str, axes: Axes, indices: np.ndarray) -> list[bytes]:
    """Images that do not lie in a file as they are, by the zarr library."""
    array = _by_library(path, name)
    try:
        return [axes.rgb(np.asarray(array[index])) for index in indices.tolist()]
    except Exception as error:  # codecs raise anything on damaged data
        raise StoreError(f"zarr cannot read it: {error}", path=path) from error


def _places(images: Array, axes: Axes) -> tuple[np.ndarray, np.ndarray, list[str]] | None:
    """File and offset of each image; None if images do not lie there as they are."""
    count, nbytes = axes.count, axes.nbytes
    if not axes.in_place or images.files > 1 << 20:
        return None
    paths = [images.path_of(number) for number in range(images.files)]
    if not all(map(os.path.exists, paths)):
        return None
    numbers = np.arange(count, dtype=np.int64)
    file = (numbers // images.rows).astype(np.int32)
    if images.inner is None:
        return file, numbers % images.rows * nbytes, paths
    offset = np.zeros(count, np.int64)
    for number, path in enumerate(paths):
        mine = numbers[number * images.rows : (number + 1) * images.rows]
        inside = mine - number * images.rows
        found = images.index(number)[inside // images.inner]
        if bool((found[:, 0] == MISSING).any()):
            return None
        size = os.path.getsize(path)
        if bool(((found[:, 0] > size) | (found[:, 1] > size)).any()) or bool(
            (found[:, 1] < images.inner * nbytes).any()
        ):
            raise StoreError(
                "the index of the shard names places outside of it: copy the store again or pack "
                "it again",
                path=path,
            )
        offset[mine] = found[:, 0].astype(np.int64) + inside % images.inner * nbytes
    return file, offset, paths


def _column(path: str, name: str) -> np.ndarray | None:
    """A small array of the store, little-endian; None if there is none."""
    if not _is_array(path, name):
        return None
    plain = Array.open(path, name)
    array = None if plain is None else plain.read()
    if array is None:
        found = _by_library(path, name)
        check_stored(os.path.join(path, *name.split("/")), found.shape, found.dtype.itemsize)
        try:
            # The library makes a list of all chunks, also of an array without a number.
            array = np.asarray(found[...]) if found.size else np.empty(found.shape, found.dtype)
        except Exception as error:  # codecs raise anything on damaged data
            raise StoreError(f"zarr cannot read {name!r}: {error}", path=path) from error
    return array.astype(array.dtype.newbyteorder("<"))


def _is_array(path: str, name: str) -> bool:
    folder = os.path.join(path, *name.split("/"))
    return any(os.path.exists(os.path.join(folder, file)) for file in ("zarr.json", ".zarray"))


def _by_library(path: str, name: str) -> Any:
    """The array ``name``, opened by the zarr library."""
    try:
        import zarr
    except ImportError as error:
        raise MissingDependencyError(
            f"{path!r} is compressed or in another form than fastload writes, and needs the zarr "
            f"library: {install('zarr')}"
        ) from error
    try:
        return zarr.open_array(os.path.join(path, name), mode="r")
    except Exception as error:  # what it raises for damaged descriptions is not documented
        raise StoreError(f"zarr cannot open {name!r}: {error}", path=path) from error


class ZarrWriter(BlockArrayWriter):
    """Writes a Zarr v3 folder. See ``open_writer`` for the arguments."""

    format = NAME
    version = VERSION
    read = staticmethod(read_zarr)

    def _images(self, folder: str, width: int, height: int) -> BlockWriter:
        nbytes = width * height * 3
        return BlockWriter(
            lambda number: os.path.join(folder, "c", str(number), "0", "0", "0"),
            self._rows,
            lambda count: b"",
            lambda count: shard_index(count, self._rows, nbytes),
        )

    def _describe(self, root: str, columns: Columns, shape: tuple[int, int, int, int]) -> None:
        sharding = {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [1, *shape[1:]],
                "codecs": [BYTES],
                "index_codecs": [BYTES, CRC32C],
                "index_location": "end",
            },
        }
        describe(os.path.join(root, "images"), shape, self._rows, np.dtype("u1"), [sharding])
        arrays = arrays_of(columns, dtypes=DTYPES, raw=True)
        arrays |= {"keys/data": columns.keys.data, "keys/ends": columns.keys.ends}
        groups = {name.rpartition("/")[0] for name in arrays} - {""}
        groups |= {group.rpartition("/")[0] for group in groups} - {""}
        for group in sorted(groups):
            os.makedirs(os.path.join(root, *group.split("/")))
            write_group(os.path.join(root, *group.split("/")), {})
        for name, array in arrays.items():
            write_array(os.path.join(root, *name.split("/")), array)
        write_group(
            root,
            {"classes": self._classes, "fastload": self.header(["images", "classes", *arrays])},
        )


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
