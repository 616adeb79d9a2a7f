"""HDF5: reader and writer of ``NAME.h5``. The layout is in SPECIFICATION.md.

Raw images are one contiguous dataset ``images``; image files are one contiguous dataset ``bytes``
and a dataset ``offsets``. The HDF5 library has one lock for a whole process: it is used to open a
store, and after that records are read from the file without it. Data that do not lie in the file as
they are (chunked, compressed) are read through the library (``Store.indirect``).

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
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import numpy as np

from ...errors import StoreError, UsageError
from ...hints import Compression
from .._columns import Columns
from .._fields import encode_text
from .._shards import Sharding
from .._writes import write_all
from ..base import Writer
from ..registry import Format
from ..table import Indirect, Table, TableStore
from ._array_shards import apart, array_writer, read_shards
from ._array_writer import ArrayWriter, to_json
from ._hdf5_layout import NAME, VERSION, Layout, library, opened
from ._image_table import arrays_of

if TYPE_CHECKING:
    import h5py

COMPRESSIONS = get_args(Compression)
_SPARE_NBYTES = 4 << 20  # of the disk: the library's own tables, and what it caches
_PIECE_NBYTES = 64 << 10  # of pixels in a chunk of a compressed store, at least an image


def read_hdf5(path: str) -> Table:
    """The table of an HDF5 file, or of shards: written by fastload, or with images and labels."""
    if not os.path.exists(path):
        return read_shards(path, NAME, read_hdf5)
    with opened(path) as file:
        layout = Layout.of(file, path)
    if layout.why is None:
        return layout.table
    indirect = Indirect(layout.why, functools.partial(_read_records, path))
    return dataclasses.replace(layout.table, indirect=indirect)


def _read_records(path: str, indices: np.ndarray) -> list[bytes]:
    """Records that do not lie in the file as they are, by the library."""
    with opened(path) as file:
        take = Layout.of(file, path).take
        try:
            found = {index: take(index) for index in sorted(set(indices.tolist()))}
        except (OSError, RuntimeError, ValueError) as error:
            raise StoreError(f"HDF5 cannot read it: {error}", path=path) from error
    return [found[index] for index in indices.tolist()]


def write_hdf5(
    path: str | os.PathLike[str],
    *,
    compression: Compression | None = None,
    shards: int | None = None,
    shard_nbytes: int | None = None,
    total: int | None = None,
    **options: Any,
) -> Writer:
    """The writer of an HDF5 file, or of shards. See ``open_writer`` for the arguments."""
    sharding = Sharding(shards, shard_nbytes, total)
    if compression is None:
        return array_writer(Hdf5Writer, path, sharding, **options)
    if sharding.wanted:
        raise UsageError("expected shards or a compression, got both: compress single files")
    return array_writer(Hdf5Writer, path, sharding, compression=compression, **options)


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
    version = VERSION
    read = staticmethod(read_hdf5)
    only_raw: ClassVar[bool] = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        compression: Compression | None = None,
        **options: Any,
    ) -> None:
        if compression is not None and compression not in COMPRESSIONS:
            raise UsageError(
                f"compression: expected one of {', '.join(COMPRESSIONS)}, got {compression!r}"
            )
        library()
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
        self._file = library().File(data, "w", libver=("earliest", "v110"))
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
        self._add_chunks(data)

    def _check_room(self, nbytes: int) -> None:
        """Raise OSError before the library finds the disk full, which ends it (HDF5 2.0)."""
        disk = os.statvfs(self._partial.folder)
        if disk.f_bavail * disk.f_frsize < nbytes + _SPARE_NBYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @_as_os_errors()
    def _add_chunks(self, data: Sequence[bytes | memoryview]) -> None:
        new = np.frombuffer(b"".join(data), np.uint8).reshape(-1, *self._data.shape[1:])
        at = len(self._data)
        self._data.resize(at + len(new), axis=0)
        self._data[at:] = new

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


_DTYPES = "bool i1 u1 i2 u2 i4 u4 i8 u8 f2 f4 f8"


@_as_os_errors()
def _create(
    path: str,
    name: str,
    shape: tuple[int, ...],
    arrays: Mapping[str, np.ndarray],
) -> int | None:
    """Create a file whose first dataset, ``name``, has bytes that are not written; its offset."""
    h5py = library()
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
        parts = [(0, 0, offset), (offset + nbytes, offset + nbytes, None)]
        source, target = head, data
    else:  # only if the library places the dataset elsewhere than in the probe
        parts = [(begin, offset, nbytes)]
        source, target = data, head
    with open(source, "rb") as reader, open(target, "r+b") as writer:
        for start, to, length in parts:
            reader.seek(start)
            writer.seek(to)
            left = length
            while left is None or left > 0:
                piece = reader.read(1 << 20 if left is None else min(left, 1 << 20))
                if not piece:
                    break
                writer.write(piece)
                left = None if left is None else left - len(piece)
    os.unlink(source)
    return os.path.basename(target)


FORMAT = Format(
    name="hdf5",
    title="HDF5",
    suffixes=(".h5", ".hdf5"),
    open=functools.partial(TableStore, read=read_hdf5),
    writer=write_hdf5,
    options=frozenset({"compression", "shards"}),
    pixels="one size",
    apart=apart(Hdf5Writer),
)
