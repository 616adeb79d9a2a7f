"""LMDB: reader and writer of ``NAME.lmdb``. The layout is in SPECIFICATION.md.

The writer uses the LMDB library. The reader maps the file and reads the pages itself
(``_lmdb_pages.py``), so that spans need no copy, nothing has to be reopened after a fork, and a
damaged file raises an error instead of ending the process.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import struct
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ...errors import StoreError, StoreNotFoundError, UsageError, needed
from .. import _columns
from .._crc import crc32c
from .._fields import is_label_dtype
from .._nearby import nothing_at
from .._sums import Sums, sums_of
from .._writer import PartialWriter, WriterOptions
from ..base import Batch, Fetch, Spans
from ..registry import Format
from ..table import Table, TableStore, constant
from ._image_table import ColumnReader, StoreHeader, checked_classes
from ._lmdb_pages import Need, Pages, Tree

if TYPE_CHECKING:
    from types import ModuleType

    import lmdb
    from typing_extensions import Unpack

NAME = "lmdb"
VERSION = 2
LAYOUT = f"fastload-{NAME}"
RECORDS = b"records"  # names of the sub-databases
COLUMNS = b"columns"
KEY = struct.Struct(">Q")  # of a record

_LOOKED_UP = ("labels", "sizes", "crc32c", "kinds", "nbytes", "offsets")  # for every batch
_MAX_JSON = 1 << 28
_MAX_VALUE = 2**32 - 1  # MAXDATASIZE of LMDB
# A transaction: large enough that its three syncs (10 ms and more) do not matter, small enough that
# Ctrl-C waits for it about a second on a disk that writes 50 MB/s.
_FLUSH_NBYTES = 64 << 20
_FLUSH_RECORDS = 20_000
_INITIAL_MAP = 1 << 30  # of addresses, not of the disk; grows by doubling

_T = TypeVar("_T")


def read_lmdb(path: str) -> Table:
    """The table of an LMDB file, or a folder with ``data.mdb``, of fastload or another program."""
    pages = _pages(_data_file(path))
    trees = _own_trees(pages)
    if trees is not None:
        return read_layout(pages, *trees)
    from ._lmdb_foreign import read_foreign  # as much again to import as all of our own layout

    return read_foreign(pages)


def _open_ranged(path: str, need: Fetch) -> TableStore:
    """The store ``path``, of which nothing is there yet: ``Format.ranged``.

    What fastload wrote is read by its trees and columns; anything else is fetched whole.
    """
    file = _data_file(path)

    def read(path: str) -> Table:
        pages = _pages(file, lambda ranges: need([(file, *place) for place in ranges]))
        trees = _own_trees(pages)
        if trees is not None:
            with contextlib.suppress(StoreError):  # perhaps only its table of offsets does not fit
                return read_layout(pages, *trees, rebuild=False)
        need([(file, 0, -1)])
        return read_lmdb(path)

    return TableStore(path, read)


def _data_file(path: str) -> str:
    return os.path.join(path, "data.mdb") if os.path.isdir(path) else path


def _pages(path: str, need: Need | None = None) -> Pages:
    try:
        return Pages(path, need)
    except StoreNotFoundError:
        raise StoreNotFoundError(
            f"expected an LMDB store, found nothing{nothing_at(path)}", path=path
        ) from None


def _own_trees(pages: Pages) -> tuple[Tree, Tree] | None:
    records, columns = pages.subtree(RECORDS), pages.subtree(COLUMNS)
    return None if records is None or columns is None else (records, columns)


def read_layout(pages: Pages, records: Tree, columns: Tree, *, rebuild: bool = True) -> Table:
    """The table of a store that fastload wrote. Reads no column except the small JSON ones.

    If the table of offsets does not fit the file, it is computed anew, with a warning; without
    ``rebuild`` it is a StoreError.
    """
    path, count = pages.path, records.entries
    values = _ColumnValues(pages, columns)
    reader = ColumnReader(path, count, values.get, prefix="/")
    format_ = values.json("format", dict)
    described = {
        "fields": [],
        **format_,
        "metadata": values.json("metadata", dict),
        "crc32c": values.json("checksums", dict),
    }
    header = StoreHeader.read(described, NAME, VERSION, path, values.places.__contains__)
    keys = reader.blobs("keys", "key_ends")
    if keys is None:
        raise StoreError("the column 'keys' is missing: pack it again", path=path)
    offset, nbytes = reader.column("offsets", "<i8"), reader.column("nbytes", "<i8")
    if not _table_fits(pages, records, values.json("fingerprint", dict), offset, nbytes):
        if not rebuild:
            raise StoreError("the table of offsets does not fit the file", path=path)
        warnings.warn(
            f"{path!r} was changed or copied by an LMDB tool (such as mdb_copy -c) after it was "
            "packed: its table of offsets is rebuilt in memory each time it is opened; pack it "
            "again to open it faster",
            stacklevel=6,
        )
        entries = pages.walk(records)
        offset, nbytes = entries.offset, entries.nbytes
    places = [values.places[name] for name in _LOOKED_UP if name in values.places]
    return Table(
        format=NAME,
        files=[path],
        file=constant(count, 0, "<i4"),
        offset=offset,
        nbytes=nbytes,
        keys=keys,
        labels=_labels(reader, format_.get("labels"), path),
        sizes=reader.column("sizes", "<i4", 2),
        kinds=reader.column("kinds", "u1"),
        crc32c=reader.column("crc32c", "<u4"),
        fields=reader.fields(header.fields),
        classes=checked_classes(values.json("classes", list), path),
        metadata=header.metadata,
        fingerprints=[(len(pages.bytes), pages.transaction, 0)],
        watch=pages.watch,
        sums=Sums(path, header.sums),
        late=True,
        lookups=Spans(
            file=np.zeros(len(places), np.int32),
            offset=np.array([offset for offset, _ in places], np.int64),
            nbytes=np.array([nbytes for _, nbytes in places], np.int64),
        ),
    )


def _table_fits(
    pages: Pages,
    records: Tree,
    fingerprint: dict[str, Any],
    offsets: np.ndarray,
    nbytes: np.ndarray,
) -> bool:
    """Whether the table of offsets describes this file: same commit, same tree, spot checks."""
    if fingerprint != {"transaction": pages.transaction, "root": records.root}:
        return False
    count = records.entries
    if pages.need is not None:
        return True  # each of these looks costs a round trip for each level of the tree
    return all(
        pages.find(records, KEY.pack(index)) == (int(offsets[index]), int(nbytes[index]))
        for index in ({0, count // 2, count - 1} if count else ())
    )


def _labels(reader: ColumnReader, described: object, path: str) -> np.ndarray | None:
    """The labels; ``described`` is their dtype and width in "format", None: int64 (n,)."""
    dtype, width = (
        described if isinstance(described, list) and len(described) == 2 else ("<i8", None)
    )
    if not (is_label_dtype(dtype) and (width is None or (type(width) is int and width >= 0))):
        raise StoreError(f"not a type of labels: {str(described)[:200]}", path=path)
    return reader.optional("labels", dtype, *([] if width is None else [width]))


class _ColumnValues:
    """The values of the columns tree, as views of the file.

    Attributes:
        places: name -> (offset, nbytes) of its value, found in one walk, which fetches all values
            of a remote store at once; searching for each takes most of the time of opening.
    """

    def __init__(self, pages: Pages, tree: Tree) -> None:
        self._pages = pages
        entries = pages.walk(tree)
        names = [name.decode("utf-8", "replace") for name in pages.keys(entries)]
        places = zip(entries.offset.tolist(), entries.nbytes.tolist())
        self.places = dict(zip(names, places))

    def get(self, name: str) -> np.ndarray | None:
        """uint8 (bytes,); None if there is no such column."""
        if name not in self.places:
            return None
        offset, nbytes = self.places[name]
        return self._pages.bytes[offset : offset + nbytes]

    def json(self, name: str, kind: type[_T]) -> _T:
        value = self.get(name)
        if value is None:
            raise StoreError(
                f"the column {name!r} is missing: pack it again", path=self._pages.path
            )
        try:
            if len(value) > _MAX_JSON:
                raise ValueError("too long")
            decoded = json.loads(value.tobytes())
            if not isinstance(decoded, kind):
                raise ValueError(f"expected a {kind.__name__}")
        except (ValueError, RecursionError) as error:
            raise StoreError(
                f"the column {name!r} is not valid JSON: {error}", path=self._pages.path
            ) from error
        return decoded


class LmdbWriter(PartialWriter):
    """Writes an LMDB store. See ``open_writer`` for the arguments."""

    def __init__(self, path: str | os.PathLike[str], **options: Unpack[WriterOptions]) -> None:
        self._lmdb = needed("lmdb", "writing .lmdb needs LMDB: pip install lmdb")
        self._pending: list[Batch] = []
        self._pending_nbytes = 0
        begun = {"format": LAYOUT, "version": VERSION}
        super().__init__(path, begun, **options)

    def _resume(self) -> None:
        data = self._partial.file("data.mdb")
        size = os.path.getsize(data) if os.path.exists(data) else 0
        if size:
            try:
                self._check_records(Pages(data))
            except StoreError as error:  # the library would crash on such a file
                if self._partial.chunks:
                    raise self._partial.damaged(error.message, data) from error
                os.remove(data)  # the disk was full when it was made
        try:
            self._env = self._lmdb.open(
                os.fsencode(data), map_size=max(_INITIAL_MAP, 2 * size), subdir=False, lock=False,
                max_dbs=2, readahead=False, **_data_format_1(self._lmdb),
            )  # fmt: skip
        except self._lmdb.Error as error:
            raise self._failed(error) from error
        try:
            self._records = self._env.open_db(RECORDS)
            with self._env.begin() as transaction:
                self._durable = int(transaction.stat(self._records)["entries"])
        except self._lmdb.Error as error:
            self._env.close()  # a process cannot open it twice
            raise self._failed(error) from error
        self._partial.keep(self._durable)

    def _check_records(self, pages: Pages) -> None:
        """The records are the first ones of the journal, and as they were written."""
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
            actual = crc32c(pages.bytes[offset : offset + nbytes].data)
            if actual != crc:
                raise StoreError(
                    f"expected CRC32C {crc:08x} of record {record}, found {actual:08x}",
                    path=pages.path,
                )

    def _add(self, batch: Batch, columns: _columns.Columns) -> None:
        """Every 64 MB or 20,000 records they are made durable."""
        largest = max(map(len, batch.data))
        if largest > _MAX_VALUE:
            raise UsageError(f"expected records of at most {_MAX_VALUE} bytes, found {largest}")
        self._pending.append(batch)
        self._columns.append(columns)
        self._pending_nbytes += sum(map(len, batch.data))
        if self._pending_nbytes >= _FLUSH_NBYTES or self._pending_records >= _FLUSH_RECORDS:
            self.sync()

    def sync(self) -> None:
        if not self._pending:
            return
        first = self._durable
        items = [
            (KEY.pack(first + i), data)
            for i, data in enumerate(data for batch in self._pending for data in batch.data)
        ]
        with self._writing():
            self._partial.keep(first)  # without what a transaction that failed was to add
            self._partial.add(_columns.join(self._columns))
        self._write(lambda transaction: self._append(transaction, self._records, items))
        self._durable += len(items)
        self._pending.clear()
        self._columns.clear()
        self._pending_nbytes = 0

    def _append(
        self,
        transaction: lmdb.Transaction,
        database: lmdb._Database,
        items: Sequence[tuple[bytes, bytes | memoryview]],
    ) -> None:
        """Put ``items``, whose keys are ascending and greater than all existing ones."""
        _, added = transaction.cursor(database).putmulti(items, dupdata=False, append=True)
        if added != len(items):
            exist = len(items) - added
            raise self._partial.damaged(f"expected {len(items)} new records, {exist} exist already")

    def _write(self, action: Callable[[lmdb.Transaction], None]) -> None:
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
        self.sync()
        columns = _columns.join(self._partial.chunks, labelled=bool(self._classes))
        data = self._partial.file("data.mdb")
        pages = Pages(data)
        tree = pages.subtree(RECORDS)
        assert tree is not None, "``_resume`` has made it"
        values = pages.walk(tree)
        if not np.array_equal(values.nbytes, columns.nbytes):
            raise self._partial.damaged("the records differ from their journal")
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

        def write(transaction: lmdb.Transaction) -> None:
            fingerprint = {"transaction": transaction.id(), "root": tree.root}
            content[b"fingerprint"] = json.dumps(fingerprint).encode()
            transaction.drop(database, delete=False)  # left by a commit that was killed
            items = [(name, _plain(content[name])) for name in sorted(content)]
            self._append(transaction, database, items)

        self._write(write)
        self._env.close()
        with self._writing():
            finished = Pages(data)  # opened once before it gets its name
            trees = _own_trees(finished)
            assert trees is not None, "they were just written"
            read_layout(finished, *trees, rebuild=False).checked()
            self._partial.publish([("data.mdb", self.path)])
            self._closed = True

    def _release(self) -> None:
        self._env.close()


def _described(columns: _columns.Columns) -> dict[str, Any]:
    labels = columns.labels
    described: dict[str, Any] = {"format": LAYOUT, "version": VERSION}
    if labels is not None and (labels.dtype.str, labels.ndim) != ("<i8", 1):
        described["labels"] = [labels.dtype.str, labels.shape[1] if labels.ndim > 1 else None]
    if columns.fields:
        described["fields"] = [column.field.as_json() for column in columns.fields.values()]
    return described


def _plain(value: bytes | np.ndarray) -> bytes | memoryview:
    return value if isinstance(value, bytes) else value.reshape(-1).view(np.uint8).data


def _data_format_1(lmdb: ModuleType) -> dict[str, int]:
    """Arguments that keep py-lmdb 3 and newer from writing the data format of LMDB 1.0."""
    return {"lib_version": 0} if int(lmdb.__version__.split(".")[0]) >= 3 else {}


def _has_data_file(path: str) -> bool:
    return os.path.isfile(os.path.join(path, "data.mdb"))


FORMAT = Format(
    name="lmdb",
    title="LMDB",
    suffixes=(".lmdb",),
    open=functools.partial(TableStore, read=read_lmdb),
    writer=LmdbWriter,
    recognise=_has_data_file,
    folders=True,
    ranged=_open_ranged,
)
