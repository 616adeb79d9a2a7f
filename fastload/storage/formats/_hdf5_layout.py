"""What an HDF5 file holds: where its records lie, and its columns. Everything is checked.

The HDF5 library is used under a lock of this module, and a file is closed before that lock is
released: a process forked meanwhile inherits neither an open file nor the library's lock held.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from ...errors import MissingDependencyError, StoreError, StoreNotFoundError
from .._column_reader import ColumnReader, checked_labels
from .._fields import Blobs, DeferredStrings, encode_text, little, numbered_keys
from .._mapped import MappedColumns
from .._read import open_regular
from .._sums import Sums
from ..base import RAW
from ..table import Table, constant
from ._image_table import (
    CLASSES,
    IMAGES,
    LABELS,
    Axes,
    Header,
    axes_of,
    first_of,
    least_stored,
)

if TYPE_CHECKING:
    import h5py

NAME = "hdf5"
VERSION = 1
_CACHE_NBYTES = 64 << 20  # of chunks, while a batch is read
_MAPPED = 1 << 16  # bytes of a column that is mapped instead of read


class Layout:
    """What an open file holds.

    Attributes:
        why: the records do not lie in the file as they are, and what to do about it; or None.
        take: index -> the record's bytes, through the library.
    """

    def __init__(self, table: Table, why: str | None, take: Callable[[int], bytes]) -> None:
        self.table = table
        self.why = why
        self.take = take

    @classmethod
    def of(cls, file: h5py.File, path: str) -> Layout:
        datasets, mapped = _datasets(file), MappedColumns(path)
        text = _array(datasets["fastload"], path).item() if "fastload" in datasets else None
        header = Header.read(text, NAME, VERSION, path, datasets.__contains__)
        images = datasets.get(first_of(IMAGES, datasets) or "")
        pairs = images is None and {"bytes", "offsets"} <= datasets.keys()
        if not pairs and images is None:
            raise StoreError(
                f"expected a dataset of images ({', '.join(IMAGES)}), or bytes and offsets, found "
                f"{', '.join(sorted(datasets)[:20]) or 'no dataset'}",
                path=path,
            )
        if pairs:
            ends = _array(datasets["offsets"], path, mapped)
            places = _Places.encoded(datasets["bytes"], ends, path)
        elif _is_variable(images):
            places = _Places.variable(images, path)
        else:
            places = _Places.raw(images, path)
        count = len(places.nbytes)

        def column(name: str) -> np.ndarray | None:
            return _array(datasets[name], path, mapped) if name in datasets else None

        reader = ColumnReader(path, count, column)
        keys = datasets.get("keys")
        if keys is not None and keys.shape != (count,):
            raise StoreError(f"expected {count} keys, found a shape of {keys.shape}", path=path)
        labels, classes = first_of(LABELS, datasets), first_of(CLASSES, datasets)
        sizes, kinds = reader.optional("sizes", "<i4", 2), reader.optional("kinds", "u1")
        if places.axes is not None:
            sizes = constant(count, (places.axes.width, places.axes.height), "<i4")
        table = Table(
            format=NAME,
            files=[path],
            file=constant(count, 0, "<i4"),
            offset=places.offset,
            nbytes=places.nbytes,
            sizes=sizes,
            kinds=constant(count, RAW, "u1") if places.axes is not None else kinds,
            crc32c=reader.optional("crc32c", "<u4"),
            labels=checked_labels(_array(datasets[labels], path, mapped), count, path)
            if labels
            else None,
            classes=[_decoded(name) for name in _array(datasets[classes], path)] if classes else [],
            keys=DeferredStrings(count, functools.partial(_keys_of, path, count), path),
            fields=reader.fields(header.fields),
            metadata=header.metadata,
            sums=Sums(path, header.sums),
        )
        table = dataclasses.replace(table, watch=mapped.watch)
        why = None
        if places.why is not None:
            name = os.path.basename(path)
            why = (
                f"{name} has to go through the HDF5 library, one thread at a time, because "
                f"{places.why}: pack it again without --compression (fastload pack {name} NEW.h5)"
            )
        return cls(table, why, places.take)


class _Places:
    """Where the records lie, and how the library reads them if they do not lie there as they are.

    Attributes:
        offset, nbytes: int64 (n,), in the file; 0 if ``why`` is set.
        why: the records do not lie in the file as they are, or None.
        take: index -> the record's bytes, through the library.
        axes: of raw images; None of image files.
    """

    def __init__(
        self,
        offset: np.ndarray,
        nbytes: np.ndarray,
        why: str | None,
        take: Callable[[int], bytes],
        axes: Axes | None = None,
    ) -> None:
        self.offset = offset if why is None else np.zeros_like(nbytes)
        self.nbytes = nbytes if why is None else np.zeros_like(nbytes)
        self.why = why
        self.take = take
        self.axes = axes

    @classmethod
    def raw(cls, images: h5py.Dataset, path: str) -> _Places:
        """Of one dataset of pixels."""
        name = images.name.lstrip("/")
        axes = axes_of(images.shape, images.dtype, path, name)
        begin, why = _place(images, path)
        if why is None and not axes.in_place:
            why = f"{name!r} is not in the order (N, height, width, 3)"
        nbytes = constant(axes.count, axes.nbytes, "<i8")
        offset = begin + np.arange(axes.count, dtype=np.int64) * axes.nbytes
        return cls(offset, nbytes, why, lambda index: axes.rgb(images[index]), axes)

    @classmethod
    def encoded(cls, data: h5py.Dataset, ends: np.ndarray, path: str) -> _Places:
        """Of image files one after the other, record i from ends[i] to ends[i + 1]."""
        if data.dtype != np.uint8 or data.ndim != 1 or ends.dtype.kind not in "iu" or not ends.size:
            raise StoreError(
                f"expected bytes as uint8 (n,) and offsets as integers (records + 1,), found "
                f"{data.dtype} {data.shape} and {ends.dtype} {ends.shape}",
                path=path,
            )
        ends = ends.astype(np.int64)
        if ends[0] < 0 or ends[-1] > data.shape[0] or bool((np.diff(ends) < 0).any()):
            raise StoreError(
                f"expected ascending offsets of at most {data.shape[0]}, found others: the file "
                "is damaged, pack it again",
                path=path,
            )
        begin, why = _place(data, path)
        return cls(
            begin + ends[:-1],
            np.diff(ends),
            why,
            lambda index: data[int(ends[index]) : int(ends[index + 1])].tobytes(),
        )

    @classmethod
    def variable(cls, images: h5py.Dataset, path: str) -> _Places:
        """Of image files as arrays of variable length."""
        count, stored = images.shape[0], images.id.get_storage_size()
        if least_stored(images.shape, images.dtype.itemsize) > stored:
            raise StoreError(
                f"expected {count} images, found {stored} bytes: the file is damaged or not "
                "finished",
                path=path,
            )
        why = f"{images.name.lstrip('/')!r} is a dataset of arrays of variable length"
        nbytes = np.zeros(count, np.int64)
        return cls(nbytes, nbytes, why, lambda index: bytes(images[index].tobytes()))


def _place(dataset: h5py.Dataset, path: str) -> tuple[int, str | None]:
    """Where the data of a dataset start in the file, or why they do not lie there in one piece."""
    import h5py

    name = dataset.name.lstrip("/")
    properties = dataset.id.get_create_plist()
    if dataset.is_virtual or dataset.external:
        raise StoreError(
            f"the data of {name!r} lie in other files: copy them into one (h5repack)",
            path=path,
        )
    nbytes = dataset.size * dataset.dtype.itemsize
    if not nbytes:
        return 0, None
    if properties.get_layout() != h5py.h5d.CONTIGUOUS:
        chunked = properties.get_layout() == h5py.h5d.CHUNKED
        stored = dataset.id.get_storage_size()
        if chunked and least_stored(dataset.shape, dataset.dtype.itemsize) > stored:
            raise StoreError(
                f"expected the data of {name!r}, found {stored} bytes for "
                f"a shape of {dataset.shape}: the file is damaged or not finished",
                path=path,
            )
        packed = f"compressed ({dataset.compression})" if dataset.compression else "chunked"
        return 0, f"{name!r} is {packed if chunked else 'stored in its header'}"
    offset = dataset.id.get_offset()
    if offset is None:
        raise StoreError(f"the data of {name!r} were never written", path=path)
    size = os.path.getsize(path)
    if offset < 0 or offset + nbytes > size:
        raise StoreError(
            f"expected {nbytes} bytes of {name!r} at {offset}, found a file of {size} bytes: it "
            "was truncated or is damaged",
            path=path,
        )
    return int(offset), None


def _datasets(file: h5py.File) -> dict[str, h5py.Dataset]:
    """The datasets of a file by path, including ``fields``; links to other files are left out."""
    import h5py

    found: dict[str, h5py.Dataset] = {}
    groups = [("", file)]
    while groups:
        prefix, group = groups.pop()
        for name in group:
            link = group.get(name, getclass=True, getlink=True)
            if link is None:  # a damaged name is not in the order in which names are looked up
                raise StoreError(
                    f"{name!r} is listed and cannot be found: the file is damaged, copy it again "
                    "or pack it again",
                    path=file.filename,
                )
            if link is not h5py.HardLink:
                continue
            item = group[name]
            if isinstance(item, h5py.Dataset):
                found[prefix + name] = item
            elif prefix.count("/") < 2 and (prefix + name).startswith(("fields", "keys")):
                groups.append((f"{prefix}{name}/", item))
    return found


def _is_variable(dataset: h5py.Dataset) -> bool:
    import h5py

    return bool(h5py.check_vlen_dtype(dataset.dtype) == np.uint8 and dataset.ndim == 1)


def _array(dataset: h5py.Dataset, path: str, mapped: MappedColumns | None = None) -> np.ndarray:
    """A whole column that lies in the file; ``mapped`` leaves it there if it is large."""
    import h5py

    if dataset.shape is None:
        raise StoreError(f"{dataset.name!r} is empty: the file is damaged", path=path)
    kind = h5py.check_string_dtype(dataset.dtype)
    if kind is None or kind.length is not None:
        _place(dataset, path)
    elif dataset.size > max(1 << 16, os.path.getsize(path)):
        raise StoreError(f"{dataset.name!r} is larger than its file: it is damaged", path=path)
    large = dataset.size * dataset.dtype.itemsize >= _MAPPED and dataset.dtype.isnative
    if mapped is not None and large and dataset.dtype.kind in "iuf":
        # A column in one piece stays in the file: a batch looks up only its own labels.
        offset, why = _place(dataset, path)
        if why is None:
            return mapped.array(dataset.dtype, offset, dataset.shape)
    array = np.asarray(dataset[()])
    return array if array.dtype.kind not in "iuf" else little(array)


def _keys_of(path: str, count: int) -> Blobs:
    """The keys of a file that is not open."""
    with opened(path) as file:
        datasets = _datasets(file)
        reader = ColumnReader(
            path, count, lambda name: _array(datasets[name], path) if name in datasets else None
        )
        blobs = reader.blobs("keys/data", "keys/ends")
        if blobs is not None:
            return blobs
        names = datasets.get("keys")
        return numbered_keys(count) if names is None else _strings(names, count, path)


def _strings(dataset: h5py.Dataset, count: int, path: str) -> Blobs:
    """The keys of a file of another program, or of one that has them as strings."""
    names = _array(dataset, path).tolist()
    if len(names) != count:
        raise StoreError(f"expected {count} keys, found {len(names)}", path=path)
    return Blobs.of([name if isinstance(name, bytes) else encode_text(str(name)) for name in names])


def _decoded(name: object) -> str:
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else str(name)


def library() -> ModuleType:
    """h5py; raises MissingDependencyError."""
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise MissingDependencyError(".h5 files need h5py: pip install h5py") from error


@functools.cache
def _fork_lock() -> threading.RLock:
    """Held while the library works, and by a fork: no child starts with the library's lock held."""
    lock = threading.RLock()
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )
    return lock


@contextlib.contextmanager
def opened(path: str) -> Iterator[h5py.File]:
    """The file, open for reading within the block."""
    h5py = library()
    if not os.path.exists(path):
        raise StoreNotFoundError("expected an HDF5 file, found nothing", path=path)
    with _fork_lock():
        try:
            os.close(open_regular(path))  # the library would wait for the writer of a pipe
            file = h5py.File(path, "r", locking=False, rdcc_nbytes=_CACHE_NBYTES)
        except OSError as error:
            raise StoreError(
                f"expected an HDF5 file, found one that cannot be opened ({error}): it was "
                "truncated, or is of another format",
                path=path,
            ) from error
        with file:
            try:
                yield file
            except StoreError:  # raised here, and some are OSErrors too
                raise
            except (KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
                raise StoreError(f"the file is damaged: HDF5 says {error}", path=path) from error
