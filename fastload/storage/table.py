"""Table and TableStore: one class behind every packed store.

A format reads a path into a ``Table``: where the records lie in which files, and the columns that
belong to them. ``TableStore`` makes a ``Store`` of it. Columns may be arrays in memory, views of a
mapped file, or strings that are read when they are first asked for.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import StoreError, StoreNotFoundError
from ._columns import RecordColumns
from ._crc import crc32c
from ._fields import Field, Strings, is_label_dtype
from ._mapped import Mapped, TruncationWatch
from ._probe import UNKNOWN, known_sizes, probe_sizes
from ._read import open_regular
from ._sums import Sums
from .base import Spans, Store

FINGERPRINT_NBYTES = 64 << 10  # bytes at each end of a file that go into its fingerprint

Fingerprint = tuple[int, int, int]
"""Tells one version of a file from another: its size, then two numbers that the format chooses, by
default the CRC32C of the first and of the last 64 KiB."""


@dataclasses.dataclass(frozen=True)
class Indirect:
    """How to read records that do not lie in the files as they are.

    Attributes:
        why: they do not, and what to do about it.
        read: indices (int64, in range) -> the bytes of each record; raises StoreError.
    """

    why: str
    read: Callable[[np.ndarray], list[bytes]]


@dataclasses.dataclass(frozen=True)
class Framing:
    """What the format itself says of the frames around records, for ``verify``.

    Attributes:
        sums_records: its checksums are of the records, too.
        check: (mapped file, where a frame starts, where a record ends) -> where the frame after the
            one of that record starts; where and how each damaged frame before it is wrong. The
            record may be the file's end.
    """

    sums_records: bool
    check: Callable[[Mapped, int, int], tuple[int, list[tuple[int, str]]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table(RecordColumns):
    """Files and the columns of the n records in them; all are ENCODED without ``kinds``.

    Attributes:
        files: absolute.
        file: int32 (n,), index into ``files``.
        offset: int64 (n,), where the record's bytes lie in its file.
        classes, metadata, sample_fields: as in ``Store``.
        fingerprints: of ``files``; None: computed when the table is checked.
        watch: of the file that columns are views of, checked before they are used; or None.
        sums: checksums of labels, keys, fields and classes.
        late: columns are views of the only file, which should not be read through when the store is
            opened, so spans and strings are checked when they are used.
        lookups: as ``Store.tables`` returns them; None: the columns are in memory.
        indirect: set if the records do not lie in ``files`` as they are.
        memory: as of ``Store``.
        framing: None: nothing surrounds the records that a reader of the format compares.
    """

    format: str
    files: Sequence[str]
    file: np.ndarray
    offset: np.ndarray
    classes: Sequence[str] = ()
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sample_fields: tuple[str, ...] | None = None
    fingerprints: Sequence[Fingerprint] | None = None
    watch: TruncationWatch | None = None
    sums: Sums = dataclasses.field(default_factory=lambda: Sums("", None))
    late: bool = False
    lookups: Spans | None = None
    indirect: Indirect | None = None
    memory: Mapping[int, np.ndarray] = dataclasses.field(default_factory=dict)
    framing: Framing | None = None

    def __len__(self) -> int:
        return len(self.nbytes)

    def checked(self) -> Table:
        """This table with fingerprints, if every column is there, as described, and in its file."""
        prints = self.fingerprints
        prints = [fingerprint(path) for path in self.files] if prints is None else prints
        count = len(self)
        for name, dtype, shape in (
            ("file", "<i4", (count,)),
            ("offset", "<i8", (count,)),
            ("nbytes", "<i8", (count,)),
            ("sizes", "<i4", (count, 2)),
            ("kinds", "|u1", (count,)),
            ("crc32c", "<u4", (count,)),
        ):
            array = getattr(self, name)
            if array is not None and (array.dtype.str, array.shape) != (dtype, shape):
                raise self._wrong(name, f"{dtype} {shape}", f"{array.dtype.str} {array.shape}")
        labels = self.labels
        if labels is not None and not (
            is_label_dtype(labels.dtype.str) and labels.ndim in (1, 2) and len(labels) == count
        ):
            raise self._wrong("labels", f"{count} of them", f"{labels.dtype} {labels.shape}")
        strings = {"keys": self.keys}
        for name, column in self.fields.items():
            if isinstance(column.values, Strings):
                strings[name] = column.values
            elif column.values.shape != (count, *column.field.shape):
                expected = f"shape {(count, *column.field.shape)}"
                raise self._wrong(name, expected, str(column.values.shape))
        table = dataclasses.replace(self, fingerprints=prints)
        if not self.late:
            for name, values in strings.items():
                values.check(count, name, self.files[0] if self.files else None)
            table._check_places()
        return table

    def _check_places(self) -> None:
        file, offset, nbytes = self.file, self.offset, self.nbytes
        sizes = np.array([size for size, _, _ in self.fingerprints or ()], np.int64)
        wrong = (file < 0) | (file >= len(sizes))
        if not wrong.any() and len(file):
            wrong = (offset < 0) | (nbytes < 0) | (offset > sizes[file] - nbytes)
        if wrong.any():
            raise self._outside(int(np.flatnonzero(wrong)[0]))

    def _outside(self, record: int) -> StoreError:
        file = int(self.file[record])
        return StoreError(
            f"expected a record inside its file, found {int(self.nbytes[record])} bytes: if the "
            "file was truncated copy it again, else pack it again",
            path=self.files[file] if 0 <= file < len(self.files) else next(iter(self.files), None),
            record=record,
            offset=int(self.offset[record]),
        )

    def spans(self, indices: np.ndarray) -> Spans:
        """Where the records ``indices`` lie, known to be inside their files."""
        offset, nbytes = self.offset[indices], self.nbytes[indices]
        if not self.late:
            file = np.ascontiguousarray(self.file[indices])
            return Spans(file=file, offset=offset, nbytes=nbytes)
        assert self.fingerprints is not None  # the table was checked
        wrong = (offset < 0) | (nbytes < 0) | (offset > self.fingerprints[0][0] - nbytes)
        if wrong.any():
            raise self._outside(int(indices[np.flatnonzero(wrong)[0]]))
        return Spans(file=np.zeros(len(offset), np.int32), offset=offset, nbytes=nbytes)

    def _wrong(self, name: str, expected: str, found: str) -> StoreError:
        return StoreError(
            f"the table of {name} is damaged: expected {expected}, found {found}",
            path=self.files[0] if self.files else None,
        )

    def check_columns(self) -> bool:
        return self.sums.check_all(self, self.classes)

    @property
    def identity(self) -> int:
        """Differs between stores that differ in their files or in the number of records."""
        return crc32c(repr((len(self), list(self.fingerprints or ()))).encode())


def fingerprint(path: str) -> Fingerprint:
    """Size, and CRC32C of the first and last 64 KiB, of a file."""
    try:
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            size = os.fstat(file.fileno()).st_size
            first = crc32c(os.pread(file.fileno(), FINGERPRINT_NBYTES, 0))
            end = max(0, size - FINGERPRINT_NBYTES)
            return size, first, crc32c(os.pread(file.fileno(), FINGERPRINT_NBYTES, end))
    except FileNotFoundError as error:
        raise StoreNotFoundError("a data file of the store is missing", path=path) from error
    except OSError as error:
        raise StoreError(f"the file cannot be read: {error.strerror}", path=path) from error


class TableStore(Store):
    """A store over a ``Table``.

    Note [Labels that are none]. Where some records of another program's file have a label and some
    have none, or labels are no numbers, they are a field. Samples are then dicts with that field
    (``sample_fields``), as the rows of a table are: images alone would lose them without a word.

    ``read``: path -> its table; called again when the store is used after ``close``, in another
    process or after pickling, so it must be picklable.
    """

    mapped = True

    def __init__(self, path: str | os.PathLike[str], read: Callable[[str], Table]) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._read_table = read
        table = read(self.path).checked()
        self._loaded: Table | None = table
        self._count = len(table)
        self._identity = table.identity
        self._probed: np.ndarray | None = None
        table.sums.check_classes(table.classes)
        self.format = table.format
        self.classes = list(table.classes)
        self.metadata = dict(table.metadata)
        self.sample_fields = table.sample_fields
        self.indirect = None if table.indirect is None else table.indirect.why

    @property
    def table(self) -> Table:
        """The table, read again if it was closed. StoreError if the store was replaced since."""
        if self._loaded is None:
            table = self._read_table(self.path).checked()
            if table.identity != self._identity:
                raise StoreError(
                    "the store was replaced by another one since it was opened: open it again",
                    path=self.path,
                )
            self._loaded = table
        if not self._loaded.late:  # else ``spans`` does
            self.check_whole()
        return self._loaded

    def __len__(self) -> int:
        return self._count

    @property
    def files(self) -> Sequence[str]:
        return self.table.files

    def memory(self) -> Mapping[int, np.ndarray]:
        return self.table.memory

    def check_whole(self) -> None:
        if self._loaded is not None and self._loaded.watch is not None:
            self._loaded.watch.check()

    def check_columns(self) -> bool:
        return self.table.check_columns()

    def spans(self, indices: np.ndarray) -> Spans:
        """Inside the files as they were when the store was opened."""
        table = self.table
        if table.late:
            self.check_whole()
        return table.spans(indices)

    def tables(self) -> Spans:
        lookups = self.table.lookups
        return super().tables() if lookups is None else lookups

    def read(self, indices: np.ndarray) -> list[bytes]:
        indirect = self.table.indirect
        return super().read(indices) if indirect is None else indirect.read(indices)

    def kinds(self, indices: np.ndarray) -> np.ndarray:
        table = self.table
        if table.kinds is None:
            return np.zeros(len(indices), np.uint8)
        table.sums.check("kinds", table.kinds)
        return self._checked(table.kinds[indices], indices)

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Unknown sizes are read from the images, once per process."""
        table = self.table
        table.sums.check("sizes", table.sizes)
        if self._probed is None:
            sizes = table.sizes
            if sizes is not None:
                # Faster than []; but of a column of one value ``take`` makes a whole copy.
                dense = sizes.flags.c_contiguous
                rows: np.ndarray = sizes.take(indices, axis=0) if dense else sizes[indices]
                if bool(rows.all()):
                    return rows
            self._probed = np.full((len(self), 2), UNKNOWN, np.int32)
            if sizes is not None:
                self._probed[:] = sizes
        return known_sizes(self._probed, indices, functools.partial(probe_sizes, self))

    @property
    def labels(self) -> np.ndarray | None:
        table = self.table
        table.sums.check("labels", table.labels)
        return None if table.labels is None else _read_only(table.labels)

    def keys(self, indices: np.ndarray) -> list[str]:
        table = self.table
        table.sums.check("keys", table.keys)
        return table.keys.texts(indices, self.path)

    def checksums(self, indices: np.ndarray) -> np.ndarray | None:
        column = self.table.crc32c
        if column is None:
            return None
        crcs: np.ndarray = column[indices]
        return crcs

    @property
    def fields(self) -> Mapping[str, Field]:
        return {name: column.field for name, column in self.table.fields.items()}

    def _column(self, field: Field) -> np.ndarray:
        values = self._checked_values(field)
        assert isinstance(values, np.ndarray)
        return _read_only(values)

    def _values(self, field: Field, indices: np.ndarray) -> list[bytes]:
        values = self._checked_values(field)
        assert isinstance(values, Strings)
        return values.take(indices, self.path)

    def _checked_values(self, field: Field) -> np.ndarray | Strings:
        table = self.table
        values = table.fields[field.name].values
        table.sums.check(f"/{field.name}", values)
        return values

    def close(self) -> None:
        self._loaded = self._probed = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None, "_probed": None}


def constant(count: int, value: object, dtype: str) -> np.ndarray:
    """A read-only column (count, ...) with ``value`` in every row, which takes no memory."""
    row = np.asarray(value, dtype)
    return np.broadcast_to(row, (count, *row.shape))


def _read_only(array: np.ndarray) -> np.ndarray:
    if not array.flags.writeable:
        return array
    view: np.ndarray = array.view()
    view.flags.writeable = False
    return view
