"""Table and TableStore: a store whose columns lie in memory or in a sidecar, not in its own format.

A format of this kind is a ``TableStore`` with ``_load``: it reads the sidecar where that fits the
files, and otherwise scans them (``_sidecar.py`` has the file, ``_stream.py`` the writer).
"""

from __future__ import annotations

import abc
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import StoreError, StoreNotFoundError
from ._columns import Columns
from ._crc import crc32c
from ._fields import Blobs, Field, FieldColumn, LateBlobs, is_label_dtype
from ._mapped import Watch
from ._probe import UNKNOWN, probe_sizes
from ._read import open_regular
from ._sums import Sums
from .base import Spans, Store

_EDGE = 64 << 10  # bytes at each end of a file that go into its fingerprint

Fingerprint = tuple[int, int, int]  # size, CRC32C of the first 64 KiB, of the last 64 KiB


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Files and the columns of the n records in them.

    Attributes:
        format: name of the store's format.
        files: data files, absolute.
        file: int32 (n,), index into ``files``.
        offset, nbytes: int64 (n,), where the record's bytes lie in its file.
        keys: the keys in UTF-8.
        labels: int64, float32 or float64, (n,) or (n, k); None without labels.
        sizes: int32 (n, 2), width and height, (0, 0) where not known; None: none is known.
        kinds: uint8 (n,); None: all ENCODED.
        crc32c: uint32 (n,); None without checksums.
        fields: name -> column.
        classes, metadata: as in ``Store``.
        fingerprints: of ``files``; None: taken when the table is checked.
        watch: of the file that columns are left in, to be asked before they are used; or None.
        sums: of labels, keys, fields and classes.
    """

    format: str
    files: Sequence[str]
    file: np.ndarray
    offset: np.ndarray
    nbytes: np.ndarray
    keys: Blobs
    labels: np.ndarray | None = None
    sizes: np.ndarray | None = None
    kinds: np.ndarray | None = None
    crc32c: np.ndarray | None = None
    fields: Mapping[str, FieldColumn] = dataclasses.field(default_factory=dict)
    classes: Sequence[str] = ()
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fingerprints: Sequence[Fingerprint] | None = None
    watch: Watch | None = None
    sums: Sums = dataclasses.field(default_factory=lambda: Sums("", None))

    def __len__(self) -> int:
        return len(self.nbytes)

    @classmethod
    def of(
        cls,
        columns: Columns,
        offset: np.ndarray,
        *,
        format: str,
        files: Sequence[str],
        classes: Sequence[str],
        metadata: Mapping[str, Any],
    ) -> Table:
        """The table, checked, of records that a writer has placed in ``files``.

        Raises:
            StoreError: a record is not where its columns say.
        """
        assert columns.places is not None  # every writer of several files has them
        return cls(
            format=format,
            files=files,
            file=columns.places[:, 0].astype(np.int32),
            offset=np.ascontiguousarray(offset),
            nbytes=columns.nbytes,
            keys=columns.keys,
            labels=columns.labels,
            sizes=columns.sizes,
            kinds=columns.kinds,
            crc32c=columns.crc32c,
            fields=columns.fields,
            classes=classes,
            metadata=metadata,
        ).checked()

    def checked(self) -> Table:
        """This table with fingerprints, if every column is as described and inside its file.

        Raises:
            StoreError: it is not, or a file cannot be read.
        """
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
        blobs = {"keys": self.keys}
        for name, column in self.fields.items():
            if isinstance(column.values, Blobs):
                blobs[name] = column.values
            elif column.values.shape != (count, *column.field.shape):
                expected = f"shape {(count, *column.field.shape)}"
                raise self._wrong(name, expected, str(column.values.shape))
        for name, values in blobs.items():
            if isinstance(values, LateBlobs) and len(values) == count:
                continue  # checked when they are read
            values.check(count, name, self.files[0] if self.files else None)
        self._check_spans(np.array([size for size, _, _ in prints], np.int64))
        return dataclasses.replace(self, fingerprints=prints)

    def _check_spans(self, sizes: np.ndarray) -> None:
        file, offset, nbytes = self.file, self.offset, self.nbytes
        wrong = (file < 0) | (file >= len(sizes))
        if not wrong.any() and len(file):
            wrong = (offset < 0) | (nbytes < 0) | (offset > sizes[file] - nbytes)
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            known = 0 <= file[at] < len(self.files)
            raise StoreError(
                f"expected a record inside its file, found {int(nbytes[at])} bytes: was the file "
                "cut short? Copy or pack it again",
                path=self.files[int(file[at])] if known else self.files[0] if self.files else None,
                record=at,
                offset=int(offset[at]),
            )

    def _wrong(self, name: str, expected: str, found: str) -> StoreError:
        return StoreError(
            f"the table of {name} is damaged: expected {expected}, found {found}",
            path=self.files[0] if self.files else None,
        )

    def check_columns(self) -> bool:
        """As in ``Store``."""
        return self.sums.check_all(self, self.classes)

    @property
    def identity(self) -> int:
        """A number that differs between stores that differ in their files or count of records."""
        return crc32c(repr((len(self), list(self.fingerprints or ()))).encode())


def fingerprint(path: str) -> Fingerprint:
    """Size, and CRC32C of the first and last 64 KiB, of a file.

    Raises:
        StoreNotFoundError: no such file.
        StoreError: it cannot be read.
    """
    try:
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            size = os.fstat(file.fileno()).st_size
            first = crc32c(os.pread(file.fileno(), _EDGE, 0))
            return size, first, crc32c(os.pread(file.fileno(), _EDGE, max(0, size - _EDGE)))
    except FileNotFoundError as error:
        raise StoreNotFoundError("a data file of the store is missing", path=path) from error
    except OSError as error:
        raise StoreError(f"the file cannot be read: {error.strerror}", path=path) from error


class TableStore(Store):
    """A store over a ``Table``.

    Args:
        path: as given to ``open_store``; may name no file, where it stands for several.

    Raises:
        StoreNotFoundError: nothing there.
        StoreError: damaged, or not of this format.
    """

    mapped = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.fspath(path))
        table = self._load(self.path).checked()
        self._loaded: Table | None = table
        self._count = len(table)
        self._identity = table.identity
        self._probed: np.ndarray | None = None
        table.sums.check_classes(table.classes)
        self.classes = list(table.classes)
        self.metadata = dict(table.metadata)

    @abc.abstractmethod
    def _load(self, path: str) -> Table:
        """The table of the store at ``path``: out of its sidecar, or by scanning the files."""

    @property
    def _table(self) -> Table:
        if self._loaded is None:
            table = self._load(self.path).checked()
            if table.identity != self._identity:
                raise StoreError(
                    "the store was replaced by another one since it was opened: open it again",
                    path=self.path,
                )
            self._loaded = table
        if self._loaded.watch is not None:
            self._loaded.watch.check()
        return self._loaded

    def __len__(self) -> int:
        return self._count

    @property
    def files(self) -> Sequence[str]:
        """The data files."""
        return self._table.files

    def check_whole(self) -> None:
        """As in the contract."""
        if self._loaded is not None and self._loaded.watch is not None:
            self._loaded.watch.check()

    def check_columns(self) -> bool:
        """As in the contract."""
        return self._table.check_columns()

    def spans(self, indices: np.ndarray) -> Spans:
        """As in the contract; known to lie inside the files since they were opened."""
        table = self._table
        return Spans(
            file=np.ascontiguousarray(table.file[indices]),
            offset=np.ascontiguousarray(table.offset[indices]),
            nbytes=np.ascontiguousarray(table.nbytes[indices]),
        )

    def kinds(self, indices: np.ndarray) -> np.ndarray:
        """As in the contract."""
        table = self._table
        if table.kinds is None:
            return np.zeros(len(indices), np.uint8)
        table.sums.check("kinds", table.kinds)
        return self._checked(table.kinds[indices], indices)

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """As in the contract. An image's header is read, once per process, where it must be."""
        table = self._table
        table.sums.check("sizes", table.sizes)
        sizes = table.sizes if self._probed is None else self._probed
        if sizes is not None:
            found: np.ndarray = sizes[indices]
            if bool(found.all()):
                return found if self._probed is None else _at_least_zero(found)
        if self._probed is None:
            self._probed = np.full((len(self), 2), UNKNOWN, np.int32)
            if sizes is not None:
                self._probed[:] = sizes
        unknown = np.unique(indices[self._probed[indices, 0] == UNKNOWN])
        if len(unknown):
            self._probed[unknown] = probe_sizes(self, unknown)
        return _at_least_zero(self._probed[indices])

    @property
    def labels(self) -> np.ndarray | None:
        """As in the contract."""
        table = self._table
        table.sums.check("labels", table.labels)
        return _read_only(table.labels)

    def keys(self, indices: np.ndarray) -> list[str]:
        """As in the contract."""
        table = self._table
        table.sums.check("keys", table.keys)
        return table.keys.texts(indices, self.path)

    def checksums(self, indices: np.ndarray) -> np.ndarray | None:
        """As in the contract."""
        if self._table.crc32c is None:
            return None
        crcs: np.ndarray = self._table.crc32c[indices]
        return crcs

    @property
    def fields(self) -> Mapping[str, Field]:
        """As in the contract."""
        return {name: column.field for name, column in self._table.fields.items()}

    def column(self, name: str) -> np.ndarray:
        """As in the contract."""
        found = self._table.fields.get(name)
        if found is None or isinstance(found.values, Blobs):
            return super().column(name)
        self._table.sums.check(f"/{name}", found.values)
        column = _read_only(found.values)
        assert column is not None  # it went in
        return column

    def values(self, name: str, indices: np.ndarray) -> list[bytes]:
        """As in the contract."""
        found = self._table.fields.get(name)
        if found is None or not isinstance(found.values, Blobs):
            return super().values(name, indices)
        self._table.sums.check(f"/{name}", found.values)
        return found.values.take(indices, self.path)

    def close(self) -> None:
        """Let go of the table; it is read again when used again."""
        self._loaded = self._probed = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None, "_probed": None}


def _at_least_zero(sizes: np.ndarray) -> np.ndarray:
    known: np.ndarray = np.maximum(sizes, 0)
    return known


def _read_only(array: np.ndarray | None) -> np.ndarray | None:
    if array is None or not array.flags.writeable:
        return array
    view: np.ndarray = array.view()
    view.flags.writeable = False
    return view
