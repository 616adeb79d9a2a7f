"""LMDB: reader and writer of ``NAME.lmdb``. The layout is written down in docs/formats.md.

The writer uses the LMDB library. The reader does not: it maps the file and reads the pages itself
(``_lmdb_pages.py``), so that spans need no copy, nothing has to be reopened after a fork, and a
damaged file raises instead of ending the process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import MissingDependencyError, StoreError, UsageError
from .. import _columns
from .._crc import crc32c
from .._fields import Blobs, Field
from .._sums import sums_of
from .._writer import PartialWriter
from ..base import Batch, Spans, Store
from ..registry import Format
from ._lmdb_layout import COLUMNS, LAYOUT, KEY, RECORDS, VERSIONS, Opened, is_foreign, open_layout
from ._lmdb_pages import Pages

_MAX_VALUE = 2**32 - 1  # MAXDATASIZE of LMDB
# A transaction: large enough that its three syncs (10 ms and more) do not count, small enough that
# Ctrl-C waits for it about a second on a disk that writes 50 MB/s.
_FLUSH_NBYTES = 64 << 20
_FLUSH_RECORDS = 20_000
_INITIAL_MAP = 64 << 20  # grows by doubling
_PAGE = 4096


def open_lmdb(path: str | os.PathLike[str]) -> Store:
    """The store at ``path``: one of ours, or a layout of others that is known.

    Raises:
        StoreNotFoundError: nothing there.
        StoreError: not an LMDB file, damaged, or of a layout that is not known.
    """
    path = os.path.abspath(os.fspath(path))
    inside = os.path.join(path, "data.mdb")
    if not is_foreign(inside if os.path.isdir(path) else path):
        return LmdbStore(path)
    from ._lmdb_foreign import ForeignLmdbStore  # half of what opening a store of ours would import

    return ForeignLmdbStore(path)


class LmdbStore(Store):
    """Reads an LMDB store that fastload wrote: one file, or a folder with ``data.mdb``.

    Args:
        path: of the store.

    Raises:
        StoreNotFoundError: nothing there.
        StoreError: not an LMDB file, damaged, or not written by fastload.
    """

    format = "lmdb"
    mapped = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.fspath(path))
        inside = os.path.join(self.path, "data.mdb")
        self._file = inside if os.path.isdir(self.path) else self.path
        opened = open_layout(self._file)
        self._opened: Opened | None = opened
        self._count = len(opened.kinds)
        self._transaction = opened.pages.transaction
        opened.sums.check_classes(opened.classes)
        self.classes = opened.classes
        self.metadata = opened.metadata

    def __len__(self) -> int:
        return self._count

    @property
    def _columns(self) -> Opened:
        if self._opened is None:
            opened = open_layout(self._file)
            if (len(opened.kinds), opened.pages.transaction) != (self._count, self._transaction):
                raise StoreError(
                    "the store was replaced by another one since it was opened: open it again",
                    path=self._file,
                )
            self._opened = opened
        return self._opened

    @property
    def files(self) -> Sequence[str]:
        """The data file."""
        return [self._file]

    def spans(self, indices: np.ndarray) -> Spans:
        """As in the contract.

        Raises:
            StoreError: the table names a place outside the file, or the file was cut short.
        """
        columns = self._columns
        columns.pages.check()
        offset = columns.offsets[indices].astype(np.int64)
        nbytes = columns.nbytes[indices].astype(np.int64)
        wrong = (offset < 0) | (offset > len(columns.pages.bytes) - nbytes)
        if bool(wrong.any()):
            first = int(np.flatnonzero(wrong)[0])
            raise StoreError(
                f"expected a record inside the file of {len(columns.pages.bytes)} bytes, "
                f"found {int(nbytes[first])} bytes at {int(offset[first])}: pack it again",
                path=self._file,
                record=int(indices[first]),
            )
        return Spans(file=np.zeros(len(offset), np.int32), offset=offset, nbytes=nbytes)

    def check_whole(self) -> None:
        """As in the contract."""
        self._columns.pages.check()

    def check_columns(self) -> bool:
        """As in the contract."""
        its = self._columns
        return its.sums.check_all(its, its.classes)

    def tables(self) -> Spans:
        """As in the contract."""
        places = np.array(self._columns.places, np.int64).reshape(-1, 2)
        offset, nbytes = np.ascontiguousarray(places.T)
        return Spans(file=np.zeros(len(places), np.int32), offset=offset, nbytes=nbytes)

    def kinds(self, indices: np.ndarray) -> np.ndarray:
        """As in the contract."""
        columns = self._columns
        columns.sums.check("kinds", columns.kinds)
        return self._checked(columns.kinds[indices], indices)

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """As in the contract; always known."""
        columns = self._columns
        columns.sums.check("sizes", columns.sizes)
        sizes: np.ndarray = columns.sizes.take(indices, axis=0)  # rows, faster than by []
        return sizes

    @property
    def labels(self) -> np.ndarray | None:
        """As in the contract: a view of the file."""
        columns = self._columns
        columns.sums.check("labels", columns.labels)
        return columns.labels

    def keys(self, indices: np.ndarray) -> list[str]:
        """As in the contract.

        Raises:
            StoreError: the table of keys is damaged.
        """
        columns = self._columns
        columns.sums.check("keys", columns.keys)
        return columns.keys.texts(indices, self._file)

    @property
    def fields(self) -> Mapping[str, Field]:
        """As in the contract."""
        return {name: column.field for name, column in self._columns.fields.items()}

    def column(self, name: str) -> np.ndarray:
        """As in the contract: a view of the file."""
        found = self._columns.fields.get(name)
        if found is None or isinstance(found.values, Blobs):
            return super().column(name)
        self._columns.sums.check(f"/{name}", found.values)
        return found.values

    def values(self, name: str, indices: np.ndarray) -> list[bytes]:
        """As in the contract."""
        found = self._columns.fields.get(name)
        if found is None or not isinstance(found.values, Blobs):
            return super().values(name, indices)
        self._columns.sums.check(f"/{name}", found.values)
        return found.values.take(indices, self._file)

    def checksums(self, indices: np.ndarray) -> np.ndarray | None:
        """As in the contract; every record has one."""
        crc32c: np.ndarray = self._columns.crc32c[indices]
        return crc32c

    def close(self) -> None:
        """Let go of the map, once no array of ours is used any more."""
        self._opened = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}


class LmdbWriter(PartialWriter):
    """Writes an LMDB store. See ``open_writer`` for the arguments."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        classes: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._lmdb = _library()
        begun = {"format": LAYOUT, "version": VERSIONS[-1]}
        super().__init__(path, begun, classes=classes, metadata=metadata, settings=settings)
        self._pending: list[Batch] = []
        self._pending_nbytes = 0
        try:
            self._resume()
        except BaseException:
            self._partial.close()
            raise

    def _resume(self) -> None:
        data = self._partial.file("data.mdb")
        size = os.path.getsize(data) if os.path.exists(data) else 0
        if size:
            try:
                self._check_records(Pages(data))
            except StoreError as error:  # the library must not be given such a file
                raise self._damaged(error.message, data) from error
        try:
            self._env = self._lmdb.open(
                data, map_size=max(_INITIAL_MAP, 2 * size), subdir=False, lock=False, max_dbs=2,
                readahead=False, **_data_format_1(self._lmdb),
            )  # fmt: skip
            self._records = self._env.open_db(RECORDS)
            with self._env.begin() as transaction:
                self._durable = int(transaction.stat(self._records)["entries"])
        except self._lmdb.Error as error:
            raise self._failed(error) from error
        self._partial.keep(self._durable)

    def _check_records(self, pages: Pages) -> None:
        """The records are the first of the journal, and as they were written."""
        tree = pages.subtree(RECORDS)
        if tree is None:
            return  # killed before the first of them
        values, columns = pages.walk(tree), _columns.join(self._partial.chunks)
        count = len(values.nbytes)
        if not np.array_equal(values.nbytes, columns.nbytes[:count]):
            raise StoreError("expected the records of the journal, found others", path=pages.path)
        keys = b"".join(map(KEY.pack, range(count)))
        places = values.key[:, None] + np.arange(KEY.size)
        if (values.key_nbytes != KEY.size).any() or pages.bytes[places].tobytes() != keys:
            raise StoreError("expected records numbered from 0 on, found other keys",
                             path=pages.path)  # fmt: skip
        for record, (offset, nbytes, crc) in enumerate(
            zip(values.offset.tolist(), values.nbytes.tolist(), columns.crc32c.tolist())
        ):
            found = crc32c(pages.bytes[offset : offset + nbytes].data)
            if found != crc:
                raise StoreError(
                    f"expected CRC32C {crc:08x} of record {record}, found {found:08x}",
                    path=pages.path,
                )

    def extend(self, batch: Batch) -> None:
        """Add records; every 64 MB or 20,000 records they are made durable.

        Raises:
            UsageError: the records differ from earlier ones in the type of labels or in fields.
            StoreError: writing failed, for instance on a full disk.
        """
        if not batch.keys:
            return
        columns = self._admit(batch)
        largest = max(map(len, batch.data))
        if largest > _MAX_VALUE:
            raise UsageError(f"expected records of at most {_MAX_VALUE} bytes, found {largest}")
        self._pending.append(batch)
        self._columns.append(columns)
        self._pending_nbytes += sum(map(len, batch.data))
        if self._pending_nbytes >= _FLUSH_NBYTES or self._pending_records >= _FLUSH_RECORDS:
            self.sync()

    def sync(self) -> None:
        """Make all that was added durable, in one transaction."""
        if not self._pending:
            return
        first = self._durable
        items = [
            (KEY.pack(first + i), data)
            for i, data in enumerate(data for batch in self._pending for data in batch.data)
        ]
        try:
            self._partial.add(_columns.join(self._columns))
        except OSError as error:
            raise self._failed(error) from error
        self._make_room(self._pending_nbytes, len(items))
        self._write(lambda transaction: self._append(transaction, self._records, items))
        self._durable += len(items)
        self._pending.clear()
        self._columns.clear()
        self._pending_nbytes = 0

    def _make_room(self, nbytes: int, records: int) -> None:
        """Grow the map beforehand: a transaction that finds it full has to be done again."""
        info = self._env.info()
        # a value takes whole pages, or less than one
        wanted = (info["last_pgno"] + 1) * _PAGE + nbytes + 2 * _PAGE * records + _INITIAL_MAP
        if info["map_size"] < wanted:
            self._env.set_mapsize(max(2 * info["map_size"], wanted))

    def _append(self, transaction: Any, database: Any, items: Sequence[tuple[bytes, Any]]) -> None:
        """Put ``items``, whose keys are ascending and greater than all that are there."""
        _, added = transaction.cursor(database).putmulti(items, dupdata=False, append=True)
        if added != len(items):
            raise StoreError(
                f"expected {len(items)} new records, {len(items) - added} were there already: "
                f"delete {self._partial.folder!r} to start again",
                path=self._partial.folder,
            )

    def _write(self, action: Callable[[Any], None]) -> None:
        """One durable transaction; the map grows until it fits."""
        while True:
            try:
                with self._env.begin(write=True) as transaction:
                    action(transaction)
                return
            except self._lmdb.MapFullError:
                self._env.set_mapsize(2 * self._env.info()["map_size"])
            except self._lmdb.Error as error:
                raise self._failed(error) from error

    def commit(self) -> None:
        """Write the columns, check that the file opens, and give it its name."""
        self.sync()
        columns = _columns.join(self._partial.chunks, labelled=bool(self._classes))
        data = self._partial.file("data.mdb")
        pages = Pages(data)
        tree = pages.subtree(RECORDS)
        values = pages.walk(tree) if tree is not None else None
        if tree is None or values is None or not np.array_equal(values.nbytes, columns.nbytes):
            raise StoreError(
                f"the records differ from their journal: delete {self._partial.folder!r} and "
                "start again",
                path=self._partial.folder,
            )
        content: dict[bytes, Any] = {
            b"metadata": json.dumps(self._metadata).encode(),
            b"classes": json.dumps(self._classes).encode(),
            b"checksums": json.dumps(sums_of(columns, self._classes)).encode(),
            b"sizes": columns.sizes.astype("<i4"),
            b"crc32c": columns.crc32c.astype("<u4"),
            b"kinds": columns.kinds,
            b"nbytes": columns.nbytes.astype("<i8"),
            b"offsets": values.offset.astype("<i8"),
            b"key_ends": columns.keys.ends.astype("<i8"),
            b"keys": columns.keys.data,
        }
        if columns.labels is not None:
            content[b"labels"] = columns.labels
        for field, array in _columns.field_arrays(columns.fields).items():
            content[field.encode()] = array
        listed = sorted(name.decode() for name in (*content, b"fingerprint"))
        content[b"format"] = json.dumps({**_described(columns), "columns": listed}).encode()
        for name, value in content.items():
            if memoryview(value).nbytes > _MAX_VALUE:
                raise UsageError(
                    f"the column {name.decode()} is larger than 4 GiB, which LMDB cannot hold: "
                    "pack into several stores"
                )
        database = self._env.open_db(COLUMNS)

        def write(transaction: Any) -> None:
            fingerprint = {"transaction": transaction.id(), "root": tree.root}
            content[b"fingerprint"] = json.dumps(fingerprint).encode()
            transaction.drop(database, delete=False)  # what a commit that was killed left there
            items = [(name, _plain(content[name])) for name in sorted(content)]
            self._append(transaction, database, items)

        self._write(write)
        self._env.close()
        try:
            open_layout(data, rebuild=False)  # no store gets its name before it was opened once
            self._partial.finish("data.mdb")
            self._closed = True
        except OSError as error:
            raise self._failed(error) from error

    def _release(self) -> None:
        self._env.close()


def _described(columns: _columns.Columns) -> dict[str, Any]:
    """The value of "format": version 1 wherever an older fastload can read the store."""
    labels = columns.labels
    extra: dict[str, Any] = {}
    if labels is not None and (labels.dtype.str, labels.ndim) != ("<i8", 1):
        extra["labels"] = [labels.dtype.str, labels.shape[1] if labels.ndim > 1 else None]
    if columns.fields:
        extra["fields"] = [column.field.as_json() for column in columns.fields.values()]
    return {"format": LAYOUT, "version": VERSIONS[1 if extra else 0], **extra}


def _plain(value: bytes | np.ndarray) -> bytes | memoryview:
    return value if isinstance(value, bytes) else value.reshape(-1).view(np.uint8).data


def _library() -> Any:
    try:
        import lmdb
    except ImportError as error:
        raise MissingDependencyError("writing .lmdb needs LMDB: pip install lmdb") from error
    return lmdb


def _data_format_1(lmdb: Any) -> dict[str, Any]:
    """Arguments that keep py-lmdb 3 and newer from writing the data format of LMDB 1.0."""
    return {"lib_version": 0} if int(lmdb.__version__.split(".")[0]) >= 3 else {}


def _has_data_file(path: str) -> bool:
    """Whether a folder is an LMDB environment."""
    return os.path.isfile(os.path.join(path, "data.mdb"))


FORMAT = Format(
    name="lmdb",
    title="LMDB",
    suffixes=(".lmdb",),
    open=open_lmdb,
    writer=LmdbWriter,
    recognise=_has_data_file,
    folders=True,
)
