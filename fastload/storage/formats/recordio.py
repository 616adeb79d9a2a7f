"""MXNet RecordIO: reader and writer of ``NAME.rec``. The layout is in SPECIFICATION.md.

Beside it lie ``NAME.idx`` and ``NAME.lst``, as im2rec writes them. Everything else lies in the
sidecar. Files that other programs wrote are scanned when they are opened.
"""

from __future__ import annotations

import dataclasses
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import UsageError
from .._columns import Columns
from .._crc import crc32c
from .._fields import label_column
from .._mapped import map_file
from ..base import Batch, Store
from ..registry import Apart, Format, Need
from ..stream import SHARD, STORE, StreamWriter, open_ranged, read_stream
from ..table import Table, TableStore, fingerprint
from . import _recordio_scan
from ._recordio_frames import (
    HEAD,
    MAGIC_BYTES,
    MAX_NBYTES,
    has_magic,
    head,
    join,
    pieces,
    pieces_at,
)
from ._recordio_scan import MARK_ID2, SHARD_ID2, SPLIT, STORE_ID2, pack_id2

_HEADER = struct.Struct("<IfQQ")  # flag, label, id, id2


def open_recordio(path: str) -> Store:
    """The store at ``path``: RecordIO files, one or the shards of one store."""
    return TableStore(path, _Reader())


def _open_ranged(path: str, need: Need) -> Store:
    reader = _Reader(need)
    return open_ranged(path, need, _recordio_scan.NAME, reader)


class _Reader:
    """Path -> the table of RecordIO files. Records in several pieces lie in memory."""

    def __init__(self, need: Need | None = None) -> None:
        self._memory: _MemoryFile | None = None
        self._need = need  # of files of which only records are fetched

    def __call__(self, path: str) -> Table:
        scan = _recordio_scan.scan
        table = read_stream(path, _recordio_scan.NAME, mark=_mark_of, scan=scan)
        split = np.flatnonzero(table.offset % 4 == SPLIT)
        return self._joined(table, split) if len(split) else table

    def _joined(self, table: Table, split: np.ndarray) -> Table:
        """``table`` with the records ``split``, which lie in pieces, in a file in memory."""
        parts = []
        if self._need is not None:
            some = np.unique(table.file[split]).tolist()
            self._need([(table.files[file], 0, -1) for file in some])
        for record in split.tolist():
            path = table.files[int(table.file[record])]
            data = map_file(path)
            whole = join(data, pieces_at(data, int(table.offset[record]) - SPLIT, path, record))
            parts.append(whole[len(whole) - int(table.nbytes[record]) :])
        if self._memory is None:  # kept while the store lives: the core may know its name
            self._memory = _MemoryFile(b"".join(parts))
        file, offset = table.file.copy(), table.offset.copy()
        lengths = np.array([len(content) for content in parts], np.int64)
        file[split] = len(table.files)
        offset[split] = np.cumsum(lengths) - lengths
        prints = None
        if table.fingerprints is not None:
            prints = [*table.fingerprints, fingerprint(self._memory.path)]
        return dataclasses.replace(
            table,
            files=[*table.files, self._memory.path],
            file=file,
            offset=offset,
            fingerprints=prints,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"_memory": None, "_need": None}


class _MemoryFile:
    """Bytes in an anonymous file of this process and its children, reached by ``path``."""

    def __init__(self, data: bytes) -> None:
        self._descriptor = os.memfd_create("fastload-joined", os.MFD_CLOEXEC)
        with open(self._descriptor, "wb", closefd=False) as file:
            file.write(data)
        self.path = f"/proc/self/fd/{self._descriptor}"

    # Bound here: at exit the module's names may be deleted before this is called.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._descriptor)


def _mark_of(begin: bytes) -> bytes | None:
    """The mark in ``id2`` of the first record's header."""
    if len(begin) < HEAD + _HEADER.size:
        return None
    marks = {STORE_ID2: STORE, SHARD_ID2: SHARD}
    return marks.get(_HEADER.unpack_from(begin, HEAD)[3] & MARK_ID2)


class RecordIOWriter(StreamWriter):
    """Writes RecordIO files, each with its .idx and .lst."""

    format = _recordio_scan.NAME

    def extend(self, batch: Batch) -> None:
        headers = self._headers(self.next_index, batch)
        split = [
            i
            for i, (data, header) in enumerate(zip(batch.data, headers))
            if has_magic(data) or (MAGIC_BYTES in header and has_magic(header))
        ]
        self._split: dict[int, bytes] = {}
        if split:
            # The base class writes this many bytes of the pieces in place of the record.
            data = list(batch.data)
            for i in split:
                self._split[i] = b"".join(pieces(headers[i] + bytes(data[i])))
                data[i] = self._split[i][SPLIT : SPLIT + len(data[i])]
            batch = dataclasses.replace(batch, data=data)
        self._heads = headers
        super().extend(batch)

    def _headers(self, first: int, batch: Batch) -> list[bytes]:
        """The header of each record, with its labels as float32; the sidecar has them exactly."""
        count = len(batch.keys)
        labels = np.zeros(count) if batch.labels is None else label_column(batch.labels)
        floats = labels.astype("<f4")
        ids = range(first, first + count)
        kinds, sizes = batch.kinds.tolist(), batch.sizes.tolist()
        id2 = [pack_id2(k, *wh) for k, wh in zip(kinds, sizes)]
        if first == 0 and id2:
            id2[0] |= SHARD_ID2 if self._sharded else STORE_ID2
        if floats.ndim == 1:
            rows = zip(floats.tolist(), ids, id2)
            headers = [_HEADER.pack(0, label, number, other) for label, number, other in rows]
        else:
            width = floats.shape[1]
            headers = [
                _HEADER.pack(width, 0.0, number, other) + row.tobytes()
                for row, number, other in zip(floats, ids, id2)
            ]
        longest = max(map(len, batch.data), default=0) + len(headers[0] if headers else b"")
        if longest > MAX_NBYTES:
            raise UsageError(
                f"expected records of at most {MAX_NBYTES} bytes with their headers, as RecordIO "
                f"has them; found {longest}"
            )
        return headers

    def data_crcs(self, batch: Batch) -> Sequence[int]:
        sums = super().data_crcs(batch)
        return [crc32c(batch.data[i]) if i in self._split else crc for i, crc in enumerate(sums)]

    def frames(self, first: int, batch: Batch) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """The header; zeros up to a multiple of 4."""
        before = [
            head(len(header) + len(data)) + header for header, data in zip(self._heads, batch.data)
        ]
        after = [bytes(-len(data) % 4) for data in batch.data]
        for i, framed in self._split.items():
            before[i] = framed[:SPLIT]
            after[i] = framed[SPLIT + len(batch.data[i]) :]
        return before, after

    def extras(self, name: str, records: Columns) -> Mapping[str, bytes]:
        """.idx: id, offset. .lst: id, labels, key. Columns are separated by tabs."""
        assert records.places is not None  # a stream's records have them
        stem = os.path.splitext(name)[0]
        numbers = self._ids(records)
        begin = records.places[:, 1].tolist()
        index = [b"%d\t%d\n" % line for line in zip(numbers, begin)]
        labels = np.zeros(len(records)) if records.labels is None else records.labels
        rows = (labels if labels.ndim == 2 else labels[:, None]).tolist()
        keys = records.keys.take(np.arange(len(records)))
        lines = [
            b"%d\t%s\t%s\n" % (number, "\t".join(map(str, row)).encode(), _one_line(key))
            for number, row, key in zip(numbers, rows, keys)
        ]
        return {f"{stem}.idx": b"".join(index), f"{stem}.lst": b"".join(lines)}

    def _ids(self, records: Columns) -> range:
        """Indices in the store of the records of one file; called for the files in order."""
        first = self._listed + (0 if self._apart is None else self._apart.first)
        self._listed += len(records)
        return range(first, first + len(records))

    _listed = 0


def _one_line(key: bytes) -> bytes:
    """A key for one line: tabs and line breaks become blanks."""
    return key.replace(b"\t", b" ").replace(b"\n", b" ").replace(b"\r", b" ")


FORMAT = Format(
    name="recordio",
    title="RecordIO",
    suffixes=(".rec",),
    open=open_recordio,
    writer=RecordIOWriter,
    options=frozenset({"shards"}),
    ranged=_open_ranged,
    apart=Apart(writer=RecordIOWriter, name=RecordIOWriter.shard_name),
    companions=("{stem}.idx", "{stem}.lst"),
)
