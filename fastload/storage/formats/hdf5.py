"""HDF5: reader and writer of ``NAME.h5``. The layout is in SPECIFICATION.md.

Raw images are one contiguous dataset ``images``; image files are one contiguous dataset ``bytes``
and a dataset ``offsets``. The HDF5 library has one lock for a whole process: it is used to open a
store, and after that records are read from the file without it. Data that do not lie in the file as
they are (chunked, compressed) are read through the library (``Store.indirect``). It is used under a
lock of this module, and a file is closed before that lock is released: a process forked meanwhile
inherits neither an open file nor the library's lock held.

Note [Writing contiguous data of unknown length]. HDF5 needs the length of a contiguous dataset when
it is created, and a packer does not know it. So the library first creates a tiny file with one
dataset, which shows the offset of the first dataset in a file. Records are then written to a file
from that offset on. When all are there, the library creates a second file, with the true length and
all columns, without writing the records (early allocation, no fill value: the file is sparse). What
it wrote before and after the records is then copied around them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import numpy as np

from ...errors import StoreError, StoreNotFoundError, UsageError, needed
from ...hints import Compression
from .._columns import Columns
from .._durable import write_all
from .._fields import Blobs, encode_text, little, numbered_keys
from .._mapped import MappedColumns
from .._read import open_regular
from .._writer import WriterOptions
from ..registry import Format
from ..table import Indirect, Table, TableStore, constant
from ._array_writer import ArrayWriter, apart, array_writer, read_shards, to_json
from ._image_table import (
    CLASSES,
    IMAGES,
    Axes,
    ColumnReader,
    StoreHeader,
    arrays_of,
    axes_of,
    first_of,
    image_table,
    least_stored,
)

if TYPE_CHECKING:
    import h5py
    from typing_extensions import Unpack

NAME = "hdf5"
COMPRESSIONS = get_args(Compression)
_CACHE_NBYTES = 64 << 20  # of chunks, while a batch is read
_MAPPED = 1 << 16  # bytes of a column that is mapped instead of read
_SPARE_NBYTES = 4 << 20  # of the disk: the library's own tables, and what it caches
_PIECE_NBYTES = 64 << 10  # of pixels in a chunk of a compressed store, at least an image
_DTYPES = "bool i1 u1 i2 u2 i4 u4 i8 u8 f2 f4 f8"


def read_hdf5(path: str) -> Table:
    """The table of an HDF5 file, or of shards: written by fastload, or with images and labels."""
    if not os.path.exists(path):
        return read_shards(path, NAME, read_hdf5)
    with _opened(path) as file:
        return _layout(file, path)[0]


def _read_records(path: str, indices: np.ndarray) -> list[bytes]:
    with _opened(path) as file:
        _, take = _layout(file, path)
        try:
            records = {index: take(index) for index in sorted(set(indices.tolist()))}
        except (OSError, RuntimeError, ValueError) as error:
            raise StoreError(f"HDF5 cannot read it: {error}", path=path) from error
    return [records[index] for index in indices.tolist()]


def _layout(file: h5py.File, path: str) -> tuple[Table, Callable[[int], bytes]]:
    """The table of an open file, and what gives the bytes of a record through the library."""
    datasets, mapped = _datasets(file), MappedColumns(path)
    text = _array(datasets["fastload"], path).item() if "fastload" in datasets else None
    header = StoreHeader.read(text, NAME, Hdf5Writer.version, path, datasets.__contains__)
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
        places = _RecordPlaces.encoded(datasets["bytes"], ends, path)
    elif _is_variable(images):
        places = _RecordPlaces.variable(images, path)
    else:
        places = _RecordPlaces.raw(images, path)
    count, offset, nbytes, indirect = len(places.nbytes), places.offset, places.nbytes, None
    if places.why is not None:
        offset = nbytes = np.zeros(count, np.int64)
        name = os.path.basename(path)
        indirect = Indirect(
            f"{name} has to go through the HDF5 library, one thread at a time, because "
            f"{places.why}: pack it again without --compression (fastload pack {name} NEW.h5)",
            functools.partial(_read_records, path),
        )
    keys, classes = datasets.get("keys"), first_of(CLASSES, datasets)
    if keys is not None and keys.shape != (count,):
        raise StoreError(f"expected {count} keys, found a shape of {keys.shape}", path=path)

    def column(name: str) -> np.ndarray | None:
        return _array(datasets[name], path, mapped) if name in datasets else None

    table = image_table(
        path, column, functools.partial(_keys_of, path, count), header,
        present=datasets, nbytes=nbytes, axes=places.axes,
        format=NAME, files=[path], file=constant(count, 0, "<i4"), offset=offset, indirect=indirect,
        classes=[_decoded(name) for name in _array(datasets[classes], path)] if classes else [],
    )  # fmt: skip
    return dataclasses.replace(table, watch=mapped.watch), places.take


@dataclasses.dataclass(frozen=True)
class _RecordPlaces:
    """Where the records lie, and how the library reads them if they do not lie there as they are.

    Attributes:
        offset, nbytes: int64 (n,), in the file.
        why: the records do not lie in the file as they are, or None.
        take: index -> the record's bytes, through the library.
        axes: of raw images; None of image files.
    """

    offset: np.ndarray
    nbytes: np.ndarray
    why: str | None
    take: Callable[[int], bytes]
    axes: Axes | None = None

    @classmethod
    def raw(cls, images: h5py.Dataset, path: str) -> _RecordPlaces:
        name = images.name.lstrip("/")
        axes = axes_of(images.shape, images.dtype, path, name)
        begin, why = _place(images, path)
        if why is None and not axes.in_place:
            why = f"{name!r} is not in the order (N, height, width, 3)"
        nbytes = constant(axes.count, axes.nbytes, "<i8")
        offset = begin + np.arange(axes.count, dtype=np.int64) * axes.nbytes
        return cls(offset, nbytes, why, lambda index: axes.rgb(images[index]), axes)

    @classmethod
    def encoded(cls, data: h5py.Dataset, ends: np.ndarray, path: str) -> _RecordPlaces:
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
    def variable(cls, images: h5py.Dataset, path: str) -> _RecordPlaces:
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
            f"the data of {name!r} lie in other files: copy them into one (h5repack)", path=path
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

    datasets: dict[str, h5py.Dataset] = {}
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
                datasets[prefix + name] = item
            elif prefix.count("/") < 2 and (prefix + name).startswith(("fields", "keys")):
                groups.append((f"{prefix}{name}/", item))
    return datasets


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
    with _opened(path) as file:
        datasets = _datasets(file)
        reader = ColumnReader(
            path, count, lambda name: _array(datasets[name], path) if name in datasets else None
        )
        blobs = reader.blobs("keys/data", "keys/ends")
        if blobs is not None:
            return blobs
        if "keys" not in datasets:
            return numbered_keys(count)
        names = _array(datasets["keys"], path).tolist()  # of another program
        names = [name if isinstance(name, bytes) else encode_text(str(name)) for name in names]
        return Blobs.of(names)


def _decoded(name: object) -> str:
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else str(name)


def _library() -> ModuleType:
    return needed("h5py", ".h5 files need h5py: pip install h5py")


@functools.cache
def _fork_lock() -> threading.RLock:
    """Held while the library works, and by a fork: no child starts with the library's lock held."""
    lock = threading.RLock()
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )
    return lock


@contextlib.contextmanager
def _opened(path: str) -> Iterator[h5py.File]:
    h5py = _library()
    if not os.path.exists(path):
        raise StoreNotFoundError("expected an HDF5 file, found nothing", path=path)
    try:
        os.close(open_regular(path))  # the library would wait for the writer of a pipe
    except OSError as error:
        raise StoreError(f"the store cannot be read: {error.strerror}", path=path) from error
    with _fork_lock():
        try:
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


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    """Turn the library's errors, RuntimeError too, into the system's, found in their text."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        number = re.search(r"errno = (\d+)", str(error))
        if number is None:
            raise OSError(f"HDF5 says {error}") from error
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


class Hdf5Writer(ArrayWriter):
    """Writes an HDF5 store. See ``open_writer`` for the arguments.

    Without ``compression`` contiguous, at full speed; with "gzip" or "lzf" chunked and smaller,
    read through the HDF5 library.
    """

    format = NAME
    read = staticmethod(read_hdf5)
    only_raw: ClassVar[bool] = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        compression: Compression | None = None,
        **options: Unpack[WriterOptions],
    ) -> None:
        if compression is not None and compression not in COMPRESSIONS:
            raise UsageError(
                f"compression: expected one of {', '.join(COMPRESSIONS)}, got {compression!r}"
            )
        _library()
        self._compression = compression
        self._file: Any = None
        self._data: Any = None  # the dataset of a compressed store
        super().__init__(path, **options)

    @_as_os_errors()
    def _begin(self) -> None:
        data = self._partial.file("data")
        if self._compression is None:
            self._at = self._first_offset()
            self._file = open(data, "wb", buffering=0)
            return
        self._file = _library().File(data, "w", libver=("earliest", "v110"))
        width, height = self._size or (1, 1)
        item = (height, width, 3) if self._raw else ()
        many = max(1, _PIECE_NBYTES // (height * width * 3 if self._raw else 1))
        self._data = self._file.create_dataset(
            "images" if self._raw else "bytes", (0, *item), np.uint8, maxshape=(None, *item),
            chunks=(many, *item), compression=self._compression, shuffle=False,
        )  # fmt: skip

    def _first_offset(self) -> int:
        """The offset of the first dataset in a file. See Note [Writing contiguous data ...]."""
        probe = self._partial.file("probe")
        offset = _create(probe, "bytes", (1,), {})
        os.unlink(probe)
        assert offset is not None  # it has a byte
        return offset

    def _write(self, data: Sequence[bytes | memoryview]) -> None:
        if self._compression is None:
            write_all(self._file.fileno(), data, self._at)
            self._at += sum(map(len, data))
            return
        self._check_room(sum(map(len, data)))
        with _as_os_errors():
            new = np.frombuffer(b"".join(data), np.uint8).reshape(-1, *self._data.shape[1:])
            at = len(self._data)
            self._data.resize(at + len(new), axis=0)
            self._data[at:] = new

    def _check_room(self, nbytes: int) -> None:
        """Raise OSError before the library finds the disk full, which ends it (HDF5 2.0)."""
        disk = os.statvfs(self._partial.folder)
        if disk.f_bavail * disk.f_frsize < nbytes + _SPARE_NBYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _close(self, columns: Columns) -> str:
        raw = bool(self._raw)
        arrays = arrays_of(columns, dtypes=_DTYPES, raw=raw)
        arrays |= {"keys/data": columns.keys.data, "keys/ends": columns.keys.ends}
        name = "images" if raw else "bytes"
        header = to_json(self.header([name, "classes", *arrays]))
        # Strings of one length: those of any length lie in heaps, which the library trusts.
        arrays["classes"] = np.array([encode_text(name) for name in self._classes] or [b""], "S")
        arrays["classes"] = arrays["classes"][: len(self._classes)]
        arrays["fastload"] = np.array([header], "S")
        self._check_room(sum(array.nbytes for array in arrays.values()))
        if self._compression is not None and self._file is not None:
            with _as_os_errors():
                _add(self._file, arrays)
                file, self._file = self._file, None
                file.close()
            return "data"
        width, height = self._size or (1, 1)
        nbytes = int(columns.nbytes.sum())
        shape = (len(columns), height, width, 3) if raw else (nbytes,)
        head = self._partial.file("head")
        offset = _create(head, name, shape, arrays)
        if offset is None:  # nothing was written
            return "head"
        begin = self._at - nbytes
        self._release()
        return _splice(self._partial.file("data"), begin, head, offset, nbytes)

    def _release(self) -> None:
        file, self._file, self._data = self._file, None, None
        if file is not None:
            # The file is deleted, so it does not matter what the library can no longer write.
            with contextlib.suppress(OSError, RuntimeError):
                file.close()


@_as_os_errors()
def _create(
    path: str, name: str, shape: tuple[int, ...], arrays: Mapping[str, np.ndarray]
) -> int | None:
    """Create a file whose first dataset, ``name``, has bytes that are not written; its offset."""
    h5py = _library()
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_EARLIEST, h5py.h5f.LIBVER_V110)
    access.set_alignment(1, 64)
    with h5py.File(h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_TRUNC, fapl=access)) as file:
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_layout(h5py.h5d.CONTIGUOUS)
        creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        creation.set_obj_track_times(False)  # the same images give the same file
        made = h5py.h5d.create(
            file.id, name.encode(), h5py.h5t.STD_U8LE, h5py.h5s.create_simple(shape), creation
        )
        offset: int | None = made.get_offset()
        _add(file, arrays)
    return offset


def _add(file: h5py.File, arrays: Mapping[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        file.create_dataset(name, data=array)


def _splice(data: str, begin: int, head: str, offset: int, nbytes: int) -> str:
    """Join records and columns; the name of the file that has both.

    ``data`` has ``nbytes`` bytes of records from ``begin`` on, ``head`` the columns, and a hole of
    as many bytes from ``offset`` on.
    """
    if begin == offset:
        source, start, target, to = head, offset + nbytes, data, offset + nbytes
    else:  # only if the library places the dataset elsewhere than in the probe
        source, start, target, to = data, begin, head, offset
    with open(source, "rb") as reader, open(target, "r+b") as writer:
        if source == head:
            writer.write(reader.read(offset))
        reader.seek(start)
        writer.seek(to)
        shutil.copyfileobj(reader, writer, 1 << 20)
    os.unlink(source)
    return os.path.basename(target)


FORMAT = Format(
    name="hdf5",
    title="HDF5",
    suffixes=(".h5", ".hdf5"),
    open=functools.partial(TableStore, read=read_hdf5),
    writer=functools.partial(array_writer, Hdf5Writer),
    options=frozenset({"compression", "shards"}),
    pixels="one size",
    apart=apart(Hdf5Writer),
)
