"""MXNet RecordIO: reader and writer of ``NAME.rec``. The layout is in SPECIFICATION.md.

Beside it lie ``NAME.idx`` and ``NAME.lst``, as im2rec writes them. Everything else lies in the
sidecar. Files that other programs wrote are scanned when they are opened: their table is made from
the header that im2rec writes before an image, and a .lst file.

    piece        u32 magic | u32 part << 29 | length | data | zeros up to a multiple of 4
    record       one piece of part 0; or, where the data holds the magic at a multiple of 4, a piece
                 of part 1, any of part 2 and one of part 3: the data cut at each magic, which is
                 left out
    data         u32 flag | f32 label | u64 id | u64 id2 | `flag` x f32 labels | image

Sources: dmlc-core's ``include/dmlc/recordio.h`` and ``src/recordio.cc``; ``IRHeader`` in MXNet's
``python/mxnet/recordio.py``.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ...errors import StoreError, UsageError
from .._columns import Columns
from .._crc import crc32c
from .._fields import Blobs, FieldColumn, field_column, label_column
from .._mapped import Mapped, MappedFiles, map_file
from .._read import open_regular
from ..base import ENCODED, Batch, Fetch, Store
from ..registry import Apart, Format
from ..stream import SHARD, STORE, StreamWriter, open_ranged, read_stream
from ..table import Framing, Table, TableStore

MAGIC = 0xCED7230A
HEAD = 8  # bytes of a piece before its data
MAX_NBYTES = (1 << 29) - 1  # of the data of a piece
HEADER = np.dtype([("flag", "<u4"), ("label", "<f4"), ("id", "<u8"), ("id2", "<u8")])

_HEAD = struct.Struct("<II")
MAGIC_BYTES = _HEAD.pack(MAGIC, 0)[:4]
_WHOLE, _FIRST, _MIDDLE, _LAST = 0, 1, 2, 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frames:
    """Where n records lie.

    Attributes:
        frame: int64 (n,), where each record's first piece starts.
        offset, nbytes: int64 (n,), of its data, or of the data of its first piece.
        split: record in several pieces -> offset and length of the data of each piece.
    """

    frame: np.ndarray
    offset: np.ndarray
    nbytes: np.ndarray
    split: dict[int, list[tuple[int, int]]]


def pieces(data: bytes) -> Iterator[bytes]:
    """The framed pieces of a record with ``data``, at most ``MAX_NBYTES``; together, the record."""
    cuts, at = [], data.find(MAGIC_BYTES)
    while at >= 0:
        if at % 4 == 0:
            cuts.append(at)
        at = data.find(MAGIC_BYTES, at + 1 + (at % 4 == 0) * 3)
    start = 0
    for number, cut in enumerate(cuts):
        yield _piece(_MIDDLE if number else _FIRST, data[start:cut])
        start = cut + 4
    yield _piece(_LAST if cuts else _WHOLE, data[start:])


def head(nbytes: int) -> bytes:
    """The bytes before ``nbytes`` bytes of data that do not contain the magic."""
    return _HEAD.pack(MAGIC, nbytes)


def has_magic(data: bytes | memoryview) -> bool:
    """Whether ``data`` contains the magic at a multiple of 4."""
    # Comparing words takes 5 us for a photo, searching for the bytes 100.
    return bool((np.frombuffer(data, "<u4", len(data) // 4) == MAGIC).any())


def _piece(part: int, data: bytes) -> bytes:
    return _HEAD.pack(MAGIC, part << 29 | len(data)) + data + bytes(-len(data) % 4)


def join(data: Mapped, parts: list[tuple[int, int]]) -> bytes:
    """The data of a record that lies in several pieces of the mapped file ``data``."""
    return MAGIC_BYTES.join(bytes(data[offset : offset + nbytes]) for offset, nbytes in parts)


def pieces_at(data: Mapped, at: int, path: str, record: int) -> list[tuple[int, int]]:
    """Offset and length of the data of each piece of the record that starts at ``at``."""
    places: list[tuple[int, int]] = []
    part = _FIRST
    while part != _LAST:
        if len(data) - at < HEAD:
            raise _bad("the file is truncated in a record of several pieces", path, record, at)
        magic, word = _HEAD.unpack_from(data, at)
        length, part = word & MAX_NBYTES, word >> 29
        expected = (_MIDDLE, _LAST) if places else (_FIRST,)
        if magic != MAGIC or part not in expected or length > len(data) - at - HEAD:
            raise _bad("expected a piece of a record, found other bytes", path, record, at)
        places.append((at + HEAD, length))
        at += HEAD + length + (-length & 3)
    return places


def frames(data: Mapped | memoryview, path: str) -> Frames:
    """Where every record of a whole file lies, or of whole frames of one."""
    begin: list[int] = []
    lengths: list[int] = []
    split: dict[int, list[tuple[int, int]]] = {}
    at, end, unpack = 0, len(data), _HEAD.unpack_from
    inside = False  # between the first and the last piece of a record
    while at < end:
        record = len(begin) - inside
        if end - at < HEAD:
            raise _bad(f"the file is truncated: expected {HEAD} bytes, found {end - at}", path,
                       record, at)  # fmt: skip
        magic, word = unpack(data, at)
        length, part = word & MAX_NBYTES, word >> 29
        if magic != MAGIC or part > _LAST or inside != (part in (_MIDDLE, _LAST)):
            raise _bad(
                "expected the start of a RecordIO record, found other bytes: this is not a "
                "RecordIO file, or it is damaged",
                path, record, at,
            )  # fmt: skip
        if length > end - at - HEAD:
            raise _bad(
                f"the file is truncated: expected {HEAD + length} bytes, found {end - at}",
                path, record, at,
            )  # fmt: skip
        if part in (_WHOLE, _FIRST):
            begin.append(at)
            lengths.append(length)
        if part != _WHOLE:
            split.setdefault(record, []).append((at + HEAD, length))
            inside = part != _LAST
        at += HEAD + length + (-length & 3)
    if inside:
        raise _bad("the file is truncated: expected the last piece of a record, found none", path,
                   len(begin) - 1, begin[-1])  # fmt: skip
    frame = np.array(begin, np.int64)
    return Frames(frame=frame, offset=frame + HEAD, nbytes=np.array(lengths, np.int64), split=split)


def check(data: Mapped, begin: int, end: int) -> tuple[int, list[tuple[int, str]]]:
    """As ``Framing.check``, of the heads of pieces; the first damaged one ends it."""
    stop = min(len(data), end + -end % 4)
    try:
        frames(memoryview(data)[begin:stop], "")
    except StoreError as error:
        return stop, [(begin + (error.offset or 0), error.message)]
    return stop, []


def _bad(message: str, path: str, record: int, offset: int) -> StoreError:
    return StoreError(f"{message}; copy or pack it again", path=path, record=record, offset=offset)


def headers(data: Mapped, places: Frames, path: str) -> np.ndarray:
    """The header (``HEADER``) of each record, whose labels lie inside its first piece."""
    out, nbytes = np.zeros(len(places.offset), HEADER), places.nbytes
    whole = nbytes >= HEADER.itemsize
    if whole.any():
        bytes_ = np.frombuffer(data, np.uint8)
        rows = np.lib.stride_tricks.sliding_window_view(bytes_, HEADER.itemsize)
        out[whole] = rows[places.offset[whole]].view(HEADER)[:, 0]
    wrong = np.flatnonzero(HEADER.itemsize + 4 * out["flag"].astype(np.int64) > nbytes)
    if len(wrong):
        record = int(wrong[0])
        what = (
            f"expected a header of {HEADER.itemsize} bytes and its labels in the record, found a "
            f"record of {int(nbytes[record])} bytes"
        )
        if record in places.split:
            what = (
                "expected the header and labels of a record in its first piece, found the magic "
                "number of RecordIO among them"
            )
        raise _bad(what, path, record, int(places.frame[record]))
    return out


NAME = "recordio"
# Marks in ``id2`` of a file's first record: it was written with a sidecar, as a whole store or as a
# shard.
STORE_ID2, SHARD_ID2, MARK_ID2 = 0xFA50 << 48, 0xFA60 << 48, 0xFFF0 << 48
SPLIT = 1  # added to the (even) offset of a record in several pieces, which has no single span


def scan(files: Sequence[str]) -> Table:
    """The table of RecordIO files as im2rec writes them, read from start to end.

    The offset of a record in several pieces is where it starts, plus ``SPLIT``.
    """
    data = MappedFiles(files)
    walked = [_File(path, data[number]) for number, path in enumerate(files)]
    counts = [len(file.header) for file in walked]
    header = np.concatenate([file.header for file in walked])
    labels, ragged = _labels(walked, header, data)
    kinds, sizes = unpack_id2(header["id2"])
    return Table(
        format=NAME,
        files=list(files),
        file=np.repeat(np.arange(len(walked), dtype=np.int32), counts),
        offset=np.concatenate([file.offset for file in walked]),
        nbytes=np.concatenate([file.nbytes for file in walked]),
        keys=_keys(walked),
        labels=labels,
        sizes=sizes,
        kinds=kinds,
        fields=ragged,
        sample_fields=tuple(ragged) or None,  # see Note [Labels that are none]
    )


class _File:
    def __init__(self, path: str, data: Mapped) -> None:
        self.path = path
        places = frames(data, path)
        self.header = headers(data, places, path)
        before = HEADER.itemsize + 4 * self.header["flag"].astype(np.int64)
        self.labels = places.offset + HEADER.itemsize
        self.offset = places.offset + before
        self.nbytes = places.nbytes - before
        for record, pieces in places.split.items():
            self.offset[record] = places.frame[record] + SPLIT
            whole = sum(nbytes for _, nbytes in pieces) + 4 * (len(pieces) - 1)
            self.nbytes[record] = whole - before[record]


def pack_id2(kind: int, width: int, height: int) -> int:
    """The ``id2`` of a record that fastload writes; im2rec leaves it 0.

    0 for an image file; else ``kind`` in the upper 16 bits, then width and height of 24 bits each.
    The first record of a file also has ``STORE_ID2`` or ``SHARD_ID2``.
    """
    return 0 if kind == ENCODED else kind << 48 | width << 24 | height


def unpack_id2(id2: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """The kinds and sizes of records; no sizes if all are image files."""
    marks = id2 & np.uint64(MARK_ID2)
    marked = (marks == np.uint64(STORE_ID2)) | (marks == np.uint64(SHARD_ID2))
    kinds = np.where(marked, id2 ^ marks, id2) >> np.uint64(48)
    ours = (kinds == 1) | (kinds == 2)
    if not ours.any():
        return np.zeros(len(id2), np.uint8), None
    mask = np.uint64((1 << 24) - 1)
    sizes = np.stack([id2 >> np.uint64(24) & mask, id2 & mask], axis=1).astype(np.int32)
    sizes[~ours] = 0
    return np.where(ours, kinds, ENCODED).astype(np.uint8), sizes


def _labels(
    files: Sequence[_File], header: np.ndarray, data: MappedFiles
) -> tuple[np.ndarray | None, dict[str, FieldColumn]]:
    """The labels; a field "labels" instead if records have different numbers of them."""
    flag = header["flag"]
    if not len(flag) or bool((flag == 0).all()):
        return _exact(header["label"]), {}
    if bool((flag == flag[0]).all()):
        width = int(flag[0])
        vectors = [_vectors(data[number], file.labels, width) for number, file in enumerate(files)]
        return _exact(np.concatenate(vectors)), {}
    rows = []
    for number, file in enumerate(files):
        for at, width, label in zip(
            file.labels.tolist(), file.header["flag"].tolist(), file.header["label"].tolist()
        ):
            several = np.frombuffer(data[number][at : at + 4 * width], "<f4").tolist()
            rows.append(json.dumps(several if width else [label]).encode())
    return None, {"labels": field_column("labels", rows, "json")}


def _vectors(data: Mapped, at: np.ndarray, width: int) -> np.ndarray:
    if not len(at):
        return np.empty((0, width), np.float32)
    rows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), 4 * width)
    return np.ascontiguousarray(rows[at]).view("<f4")


def _exact(labels: np.ndarray) -> np.ndarray:
    """As int64 if all are whole numbers that a float32 holds exactly."""
    whole = np.isfinite(labels).all() and (np.abs(labels) <= 1 << 24).all()
    if whole and (labels == np.floor(labels)).all():
        return label_column(labels.astype(np.int64))
    return label_column(np.ascontiguousarray(labels))


def _keys(files: Sequence[_File]) -> Blobs:
    """Paths from the .lst files, or the records' ids for records that they do not list."""
    keys: list[bytes] = []
    for file in files:
        listed = _listed(os.path.splitext(file.path)[0] + ".lst")
        ids = file.header["id"].tolist()
        keys += [listed.get(number, b"%d" % number) for number in ids]
    if len(set(keys)) != len(keys):
        keys = [b"%d" % record for record in range(len(keys))]
    return Blobs.of(keys)


def _listed(path: str) -> dict[int, bytes]:
    """id -> path from a .lst file: lines of id, labels and path, separated by tabs."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            lines = file.read().splitlines()
    except OSError:
        return {}  # optional for im2rec's readers too
    paths = {}
    for line in lines:
        columns = line.split(b"\t")
        if len(columns) >= 3 and columns[0].isdigit():
            paths[int(columns[0])] = columns[-1]
    return paths


_HEADERS = struct.Struct("<IfQQ")  # flag, label, id, id2
_BLANKS = bytes.maketrans(b"\t\n\r", b"   ")  # in a key that is part of a line


def read_recordio(path: str, need: Fetch | None = None) -> Table:
    """The table of RecordIO files; ``need`` fetches whole files where only records are there."""
    framing = Framing(sums_records=False, check=check)
    table = read_stream(path, NAME, mark=_mark_of, scan=scan, framing=framing)
    return _joined(table, need)


def _open_ranged(path: str, need: Fetch) -> Store:
    return open_ranged(path, need, NAME, functools.partial(read_recordio, need=need))


def _joined(table: Table, need: Fetch | None) -> Table:
    """``table`` with the records that lie in pieces in memory: those of a file as one file more."""
    split = np.flatnonzero(table.offset % 4 == SPLIT)
    if not len(split):
        return table
    numbers = np.unique(table.file[split]).tolist()
    if need is not None:
        need([(table.files[number], 0, -1) for number in numbers])
    file, offset, memory = table.file.copy(), table.offset.copy(), {}
    for place, number in enumerate(numbers, len(table.files)):
        path, mine = table.files[number], split[table.file[split] == number]
        data, parts = map_file(path), list[bytes]()
        for record in mine.tolist():
            whole = join(data, pieces_at(data, int(table.offset[record]) - SPLIT, path, record))
            parts.append(whole[len(whole) - int(table.nbytes[record]) :])
        file[mine] = place
        offset[mine] = np.cumsum([0, *map(len, parts[:-1])])
        memory[place] = np.frombuffer(b"".join(parts), np.uint8)
    prints = table.fingerprints
    return dataclasses.replace(
        table,
        files=[*table.files, *(table.files[number] for number in numbers)],
        file=file,
        offset=offset,
        fingerprints=prints and [*prints, *(prints[number] for number in numbers)],
        memory=memory,
    )


def _mark_of(begin: bytes) -> bytes | None:
    if len(begin) < HEAD + _HEADERS.size:
        return None
    marks = {STORE_ID2: STORE, SHARD_ID2: SHARD}
    return marks.get(_HEADERS.unpack_from(begin, HEAD)[3] & MARK_ID2)


class RecordIOWriter(StreamWriter):
    """Writes RecordIO files, each with its .idx and .lst."""

    format = NAME
    _listed = 0  # records in the .lst files so far

    def _add(self, batch: Batch, columns: Columns) -> None:
        headers = self._headers(self.next_index, batch)
        split = [
            i
            for i, (data, header) in enumerate(zip(batch.data, headers))
            if has_magic(data) or (MAGIC_BYTES in header and has_magic(header))
        ]
        self._split: dict[int, bytes] = {}
        if split:
            # The base class writes this many bytes of the pieces in place of the record.
            data, sums = list(batch.data), batch.crc32c.copy()
            for i in split:
                self._split[i] = b"".join(pieces(headers[i] + bytes(data[i])))
                data[i] = self._split[i][SPLIT : SPLIT + len(data[i])]
                sums[i] = crc32c(data[i])
            batch = dataclasses.replace(batch, data=data, crc32c=sums)
        self._heads = headers
        super()._add(batch, columns)

    def _headers(self, first: int, batch: Batch) -> list[bytes]:
        """The header of each record, with its labels as float32; the sidecar has them exactly."""
        count = len(batch.keys)
        labels = np.zeros(count) if batch.labels is None else label_column(batch.labels)
        floats = labels.astype("<f4")
        ids = range(first, first + count)
        kinds, sizes = batch.kinds.tolist(), batch.sizes.tolist()
        id2 = [pack_id2(k, *wh) for k, wh in zip(kinds, sizes)]
        if first == 0:
            id2[0] |= SHARD_ID2 if self._sharded else STORE_ID2
        if floats.ndim == 1:
            rows = zip(floats.tolist(), ids, id2)
            headers = [_HEADERS.pack(0, label, number, other) for label, number, other in rows]
        else:
            width = floats.shape[1]
            headers = [
                _HEADERS.pack(width, 0.0, number, other) + row.tobytes()
                for row, number, other in zip(floats, ids, id2)
            ]
        longest = max(map(len, batch.data)) + len(headers[0])
        if longest > MAX_NBYTES:
            raise UsageError(
                f"expected records of at most {MAX_NBYTES} bytes with their headers, as RecordIO "
                f"has them; found {longest}"
            )
        return headers

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
        # The files' records come in order, so these are their indices in the store.
        first = self._listed + (0 if self._apart is None else self._apart.first)
        self._listed += len(records)
        numbers = range(first, first + len(records))
        begin = records.places[:, 1].tolist()
        index = [b"%d\t%d\n" % line for line in zip(numbers, begin)]
        labels = np.zeros(len(records)) if records.labels is None else records.labels
        rows = (labels if labels.ndim == 2 else labels[:, None]).tolist()
        keys = records.keys.take(np.arange(len(records)))
        lines = [
            b"%d\t%s\t%s\n" % (number, "\t".join(map(str, row)).encode(), key.translate(_BLANKS))
            for number, row, key in zip(numbers, rows, keys)
        ]
        return {f"{stem}.idx": b"".join(index), f"{stem}.lst": b"".join(lines)}


FORMAT = Format(
    name="recordio",
    title="RecordIO",
    suffixes=(".rec",),
    open=functools.partial(TableStore, read=read_recordio),
    writer=RecordIOWriter,
    options=frozenset({"shards"}),
    ranged=_open_ranged,
    apart=Apart(writer=RecordIOWriter, name=RecordIOWriter.shard_name),
    companions=("{stem}.idx", "{stem}.lst"),
)
