"""TFRecord: reader and writer of ``NAME.tfrecord``. The layout is in SPECIFICATION.md.

A record is a tf.train.Example with the feature names of TF-Slim's ImageNet; the image is the last
feature, so that the others lie together before it. Everything else lies in the sidecar.

Files that other programs wrote are scanned when they are opened: the image and its columns are
found by TF-Slim's names, then by those of TensorFlow Datasets and of common scripts. Every other
feature is a field: equally many numbers in every record become an array, lists of different lengths
JSON, one byte string bytes.

    record       u64 length | u32 masked CRC32C of the length | data | u32 masked CRC32C of the data

Source: tensorflow's ``tensorflow/core/lib/io/record_writer.h``; the mask is that of
``tensorflow/core/lib/hash/crc32c.h``.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ...errors import StoreError
from .._columns import Columns
from .._crc import crc32c, crc32c_blocks
from .._fields import (
    RESERVED,
    Blobs,
    FieldColumn,
    encode_text,
    field_column,
    label_column,
    numbered_keys,
)
from .._mapped import Mapped, MappedFiles
from .._probe import image_format
from ..base import DCT, ENCODED, RAW, Batch
from ..registry import Apart, Format
from ..stream import SHARD, STORE, StreamWriter, open_ranged, read_stream
from ..table import Framing, Table, TableStore
from . import _example
from ._example import to_varint

NAME = "tfrecord"
# image/format of records that only fastload reads
OWN_FORMATS = {RAW: b"fastload-raw", DCT: b"fastload-dct"}

_IMAGES = (b"image/encoded", b"image", b"image_raw", b"jpeg", b"jpg")
_LABELS = (b"image/class/label", b"label")
_KEYS = (b"image/filename", b"filename", b"file_name")
_TEXT, _CODEC = b"image/class/text", b"image/format"
_HEIGHT, _WIDTH = b"image/height", b"image/width"
_KNOWN = {_CODEC, _HEIGHT, _WIDTH, b"image/colorspace", b"image/channels"}

_SAMPLED = 100  # examples from which the names of features are taken
_MAX_FEATURES = 200
_MAX_CLASSES = 1_000_000
_CHUNK = 1 << 16  # records looked at together: arrays that stay in the cache

HEAD, TAIL = 12, 4  # bytes before and after the data of a record
_LENGTH = struct.Struct("<Q")
_Crc = TypeVar("_Crc", int, np.ndarray)


def masked(crc: _Crc) -> _Crc:
    """A CRC32C, or an array of these, as TFRecord stores it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def head(nbytes: int) -> bytes:
    """The bytes before ``nbytes`` bytes of data."""
    length = _LENGTH.pack(nbytes)
    return length + masked(crc32c(length)).to_bytes(4, "little")


def frames(data: Mapped, path: str) -> tuple[np.ndarray, np.ndarray]:
    """Offset and length (int64) of the data of every record of a whole file."""
    end, unpack = len(data), _LENGTH.unpack_from
    at, count, parts = 0, 0, []
    while at < end:
        offsets: list[int] = []
        while at < end and len(offsets) < _CHUNK:  # to find a damaged length soon
            offsets.append(at)
            if end - at < HEAD + TAIL:
                break
            at += unpack(data, at)[0] + (HEAD + TAIL)
        cut = at > end or end - offsets[-1] < HEAD + TAIL
        begin = np.array(offsets[:-1] if cut else offsets, np.int64)
        _check_lengths(data, begin, count, path)
        count += len(begin)
        if cut:
            raise _truncated(data, offsets[-1], count, path)
        parts.append(begin)
    begin = np.concatenate(parts) if parts else np.empty(0, np.int64)
    return begin + HEAD, np.diff(begin, append=end) - (HEAD + TAIL)


def check(data: Mapped, begin: int, end: int) -> tuple[int, list[tuple[int, str]]]:
    """As ``Framing.check``; behind a damaged length no frame can be found."""
    wrong: list[tuple[int, str]] = []
    view = memoryview(data)
    while begin < end:
        length = _LENGTH.unpack(view[begin : begin + 8])[0] if len(view) - begin > 8 else 0
        tail = begin + HEAD + length
        if view[begin : begin + HEAD] != head(length) or tail + TAIL > len(view):
            what = "expected the length of a TFRecord and its checksum, found other bytes"
            return len(view), [*wrong, (begin, what)]
        expected = int.from_bytes(view[tail : tail + TAIL], "little")
        found = masked(crc32c(view[begin + HEAD : tail]))
        if found != expected:
            what = f"expected the masked CRC32C {expected:08x} of a TFRecord, found {found:08x}"
            wrong.append((begin, what))
        begin = tail + TAIL
    return begin, wrong


def _truncated(data: Mapped, at: int, record: int, path: str) -> StoreError:
    rest = len(data) - at
    if rest < HEAD:
        what = f"the file is truncated: expected the {HEAD} bytes that start a record, found {rest}"
    else:
        length = _LENGTH.unpack_from(data, at)[0]
        if data[at : at + HEAD] != head(length):
            return _damaged(at, record, path)
        nbytes = HEAD + length + TAIL
        what = f"the file is truncated: expected a record of {nbytes} bytes, found {rest}"
    return StoreError(
        f"{what}; copy it again or pack it again", path=path, record=record, offset=at
    )


def _damaged(at: int, record: int, path: str) -> StoreError:
    return StoreError(
        "expected the length of a TFRecord and its checksum, found other bytes: this is not a "
        "TFRecord file, or it is damaged; copy it again or pack it again",
        path=path,
        record=record,
        offset=at,
    )


def _check_lengths(data: Mapped, begin: np.ndarray, first: int, path: str) -> None:
    """Compare the CRC32C of each length with the stored one; ``first``: number of the record."""
    if not len(begin):
        return
    heads = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), HEAD)[begin]
    crc = crc32c_blocks(np.ascontiguousarray(heads[:, :8]).data, 8)
    wrong = np.flatnonzero(np.ascontiguousarray(heads[:, 8:]).view("<u4")[:, 0] != masked(crc))
    if len(wrong):
        raise _damaged(int(begin[wrong[0]]), first + int(wrong[0]), path)


def scan(files: Sequence[str]) -> Table:
    """The table of TFRecord files, read from start to end."""
    return _Scan(files).table()


_BROKEN = (
    "expected a tf.train.Example, found other bytes: the record is damaged, or holds something else"
)


class _Scan:
    """The examples of ``files``, in order, and the columns that their features make."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = list(files)
        self._data = MappedFiles(files)
        parts = [frames(self._data[number], path) for number, path in enumerate(files)]
        self._begin, self._length = map(np.concatenate, zip(*parts))
        counts = [len(begin) for begin, _ in parts]
        self._file = np.repeat(np.arange(len(files), dtype=np.int32), counts)
        ends = np.cumsum(counts).tolist()
        self._rows = [slice(end - count, end) for end, count in zip(ends, counts)]  # of each file
        self._names = self._feature_names()
        self._found = self._find()
        self._used = set(_KNOWN)  # what becomes no field

    def _feature_names(self) -> list[bytes]:
        names: dict[bytes, None] = {}
        for file, rows in enumerate(self._rows):
            some = slice(rows.start, min(rows.start + _SAMPLED, rows.stop))
            data, begin, length = self._data[file], self._begin[some], self._length[some]
            broken, found = _example.names(data, begin, length)
            if broken >= 0:
                raise self._error(some.start + broken, _BROKEN, rows.start)
            names |= dict.fromkeys(found)
        if len(names) > _MAX_FEATURES:
            raise StoreError(
                f"expected examples of at most {_MAX_FEATURES} features, found {len(names)}",
                path=self._files[0],
            )
        return list(names)

    def _find(self) -> _example.FeaturePlaces:
        # Allocated as a whole, because joining parts would take a third of the time.
        found = _example.FeaturePlaces.none(len(self._file), len(self._names))
        for file, rows in enumerate(self._rows):
            for first in range(rows.start, rows.stop, _CHUNK):
                some = slice(first, min(first + _CHUNK, rows.stop))
                data, begin, length = self._data[file], self._begin[some], self._length[some]
                broken = _example.find(data, begin, length, self._names, found.rows(some))
                if broken >= 0:
                    raise self._error(first + broken, _BROKEN, rows.start)
        return found

    def table(self) -> Table:
        offset, nbytes = self._images()
        labels = self._labels()
        kinds = self._kinds()
        keys = self._keys()
        classes = self._classes(labels)
        fields, left_out = self._fields()
        shown = None
        if labels is None:  # see Note [Labels that are none]
            named = [feature for feature in (*_LABELS, _TEXT) if self._is_there(feature)]
            shown = tuple(filter(fields.__contains__, map(_field_name, named))) if named else None
        return Table(
            format=NAME,
            files=self._files,
            file=self._file,
            offset=offset,
            nbytes=nbytes,
            keys=keys,
            labels=labels,
            # Only raw pixels need the sizes; image files may have been resized since.
            sizes=self._sizes() if (kinds == RAW).any() else None,
            kinds=kinds,
            fields=fields,
            classes=classes,
            sample_fields=shown,
            metadata={"features left out": left_out} if left_out else {},
        )

    def _column(self, *names: bytes) -> int | None:
        return next((self._names.index(name) for name in names if name in self._names), None)

    def _error(self, row: int, message: str, first: int = 0) -> StoreError:
        """About the record ``row``, which is numbered from the record ``first`` on."""
        path, offset = self._files[int(self._file[row])], int(self._begin[row])
        return StoreError(message, path=path, record=row - first, offset=offset)

    def _images(self) -> tuple[np.ndarray, np.ndarray]:
        column = self._column(*_IMAGES)
        if column is None:
            if not len(self._file):
                return np.empty(0, np.int64), np.empty(0, np.int64)
            names = ", ".join(name.decode("utf-8", "replace") for name in self._names[:20])
            raise self._error(0, f"expected a feature image/encoded, found {names or 'none'}")
        single = self._single(column, _example.BYTES)
        if not single.all():
            row = int(np.flatnonzero(~single)[0])
            name = self._names[column].decode()
            raise self._error(row, f"expected one value in the feature {name}, found none or more")
        self._used.add(self._names[column])
        return self._found.offset[:, column].copy(), self._found.nbytes[:, column].copy()

    def _single(self, column: int, kind: int) -> np.ndarray:
        """Which records have exactly one value, of ``kind``."""
        single: np.ndarray = self._found.kind[:, column] == kind
        single &= self._found.count[:, column] == 1
        return single

    def _bytes(self, column: int, rows: Sequence[int] | np.ndarray) -> list[bytes]:
        """The values of a feature with one value in each of ``rows``."""
        begin = self._found.offset[rows, column]
        end = begin + self._found.nbytes[rows, column]
        places = zip(self._file[rows].tolist(), begin.tolist(), end.tolist())
        return [bytes(self._data[file][at:stop]) for file, at, stop in places]

    def _numbers(self, column: int) -> np.ndarray | list[Any] | None:
        """(n,) or (n, k) if all records have equally many; else a list of lists; None for bytes."""
        features, count = self._found, self._found.count[:, column]
        kinds = features.kind[:, column]
        present = kinds[kinds != 0]
        if not len(present) or (present != present[0]).any() or present[0] == _example.BYTES:
            return None
        kind = int(present[0])
        if bool((count == 1).all()):
            return _example.as_numbers(features.first[:, column], kind)
        ends = np.cumsum(count, dtype=np.int64)
        parts = []
        for file, rows in enumerate(self._rows):
            places = features.offset[rows, column], features.nbytes[rows, column]
            total = int(count[rows].sum())
            parts.append(_example.numbers(self._data[file], kind, *places, total))
        values = np.concatenate(parts)
        if bool((count == count[0]).all()):
            return values.reshape(len(count), -1)
        return [row.tolist() for row in np.split(values, ends[:-1])]

    def _labels(self) -> np.ndarray | None:
        column = self._column(*_LABELS)
        numbers = None if column is None else self._numbers(column)
        if column is None or not isinstance(numbers, np.ndarray):
            return None  # text, or of different lengths: a field
        if not bool((self._found.count[:, column] > 0).all()):
            return None  # not in every record
        self._used.add(self._names[column])
        return label_column(numbers)

    def _is_there(self, name: bytes) -> bool:
        column = self._column(name)
        return column is not None and bool((self._found.count[:, column] > 0).any())

    def _kinds(self) -> np.ndarray:
        kinds = np.full(len(self._file), ENCODED, np.uint8)
        column = self._column(_CODEC)
        if column is not None:
            own = {value: kind for kind, value in OWN_FORMATS.items()}
            length = self._found.nbytes[:, column]
            rows = np.flatnonzero(self._single(column, _example.BYTES) & (length == 12))
            kinds[rows] = [own.get(value, ENCODED) for value in self._bytes(column, rows)]
        return kinds

    def _sizes(self) -> np.ndarray:
        sizes = np.zeros((len(self._file), 2), np.int32)
        for side, name in enumerate((_WIDTH, _HEIGHT)):
            column = self._column(name)
            if column is not None:
                single = self._single(column, _example.INT64)
                sizes[:, side] = np.where(single, self._found.first[:, column], 0).clip(0, 1 << 24)
        return sizes

    def _keys(self) -> Blobs:
        column = self._column(*_KEYS)
        if column is not None and bool(self._single(column, _example.BYTES).all()):
            keys = self._bytes(column, np.arange(len(self._file)))
            if len(set(keys)) == len(keys):
                self._used.add(self._names[column])
                return Blobs.of(keys)
        return numbered_keys(len(self._file))

    def _classes(self, labels: np.ndarray | None) -> list[str]:
        column = self._column(_TEXT)
        if column is None or labels is None or labels.dtype != np.int64 or labels.ndim != 1:
            return []
        distinct, rows = np.unique(labels, return_index=True)
        if not len(distinct) or distinct[0] < 0 or distinct[-1] >= _MAX_CLASSES:
            return []
        if not self._single(column, _example.BYTES)[rows].all():
            return []
        classes = [""] * (int(distinct[-1]) + 1)
        for label, text in zip(distinct.tolist(), self._bytes(column, rows)):
            classes[label] = text.decode("utf-8", "replace")
        self._used.add(_TEXT)
        return classes

    def _fields(self) -> tuple[dict[str, FieldColumn], list[str]]:
        """A field for every other feature, and the names of those that cannot be fields."""
        fields: dict[str, FieldColumn] = {}
        left_out = []
        for column, feature in enumerate(self._names):
            if feature in self._used:
                continue
            name = _field_name(feature)
            numbers = self._numbers(column)
            if not name or not name.isprintable() or len(name) > 100 or name in fields:
                left_out.append(feature.decode("utf-8", "replace"))
            elif isinstance(numbers, np.ndarray):
                fields[name] = field_column(name, numbers)
            elif numbers is not None:
                rows = [json.dumps(row).encode() for row in numbers]
                fields[name] = field_column(name, rows, "json")
            elif (single := self._single(column, _example.BYTES)).any() and bool(
                (single | (self._found.count[:, column] == 0)).all()
            ):
                values = iter(self._bytes(column, np.flatnonzero(single)))
                given = [next(values) if there else b"" for there in single.tolist()]
                fields[name] = field_column(name, given)
            else:
                left_out.append(feature.decode("utf-8", "replace"))
        return fields, left_out


def _field_name(feature: bytes) -> str:
    name = feature.decode("utf-8", "replace").removeprefix("image/").replace("/", ".")
    return f"feature.{name}" if name in RESERVED else name


def read_tfrecord(path: str) -> Table:
    """The table of TFRecord files."""
    framing = Framing(sums_records=True, check=check)
    return read_stream(path, NAME, mark=_mark_of, scan=scan, framing=framing)


class TFRecordWriter(StreamWriter):
    """Writes TFRecord files, each with an index ``NAME.tfrecord.idx``."""

    format = NAME

    def frames(self, first: int, batch: Batch) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """The features before the image; the checksum of the record."""
        before, after = [], []
        labels, fields = self._labels(batch), _fields(batch)
        formats = [_format(_format_of(*pair)) for pair in zip(batch.data, batch.kinds.tolist())]
        keys = [encode_text(key) for key in batch.keys]
        rows = zip(batch.data, formats, labels, batch.sizes.tolist(), keys)
        for i, (data, format_, label, size, key) in enumerate(rows):
            parts = [
                _COMMON, format_, label, _size(*size), _filename(len(key)), key,
                *[column[i] for column in fields], _image(len(data)),
            ]  # fmt: skip
            features = b"".join(parts)
            example = _message(len(features) + len(data)) + features
            if first + i == 0:
                example = _MARKS[SHARD if self._sharded else STORE] + example
            before.append(_head(len(example) + len(data)) + example)
            crc = crc32c(data, crc32c(example))
            after.append(masked(crc).to_bytes(TAIL, "little"))
        return before, after

    def _labels(self, batch: Batch) -> list[bytes]:
        if batch.labels is None:
            return [b""] * len(batch.keys)
        labels = label_column(batch.labels)
        made: dict[object, bytes] = {}
        out = []
        values = labels.tolist() if labels.ndim == 1 else map(tuple, labels.tolist())
        for label, value in zip(labels, values):
            if value not in made:
                numbers = np.atleast_1d(label)
                made[value] = _example.entry(b"image/class/label", numbers)
                if label.ndim == 0 and label.dtype == np.int64 and 0 <= label < len(self._classes):
                    text = encode_text(self._classes[int(label)])
                    made[value] += _example.entry(b"image/class/text", text)
            out.append(made[value])
        return out

    def extras(self, name: str, records: Columns) -> Mapping[str, bytes]:
        """The index that tfrecord2idx writes: offset and length of each record, one per line."""
        assert records.places is not None  # a stream's records have them
        begin, end = records.places[:, 1].tolist(), records.places[:, 3].tolist()
        lines = [b"%d %d\n" % (a, b - a) for a, b in zip(begin, end)]
        return {f"{name}.idx": b"".join(lines)}


# Marks a file that was written with a sidecar: an unknown field before the features of the store's
# first Example, which every protobuf reader skips.
_MARK_FIELD = 4005
_MARKS = {
    what: b"".join((to_varint(_MARK_FIELD << 3 | 2), to_varint(len(what)), what))
    for what in (STORE, SHARD)
}


def _mark_of(begin: bytes) -> bytes | None:
    return next((what for what, made in _MARKS.items() if begin[HEAD:].startswith(made)), None)


_COMMON = _example.entry(b"image/colorspace", b"RGB") + _example.entry(b"image/channels", [3])


# Lengths and sizes repeat, so the bytes made of them are cached, a few MB at most.
_cached = functools.lru_cache(maxsize=1 << 14)


@_cached
def _size(width: int, height: int) -> bytes:
    if width <= 0 or height <= 0:
        return b""  # unknown
    return _example.entry(b"image/height", [height]) + _example.entry(b"image/width", [width])


_format = _cached(functools.partial(_example.entry, b"image/format"))
_filename = _cached(functools.partial(_example.entry_head, b"image/filename"))
_image = _cached(functools.partial(_example.entry_head, b"image/encoded"))
_head = _cached(head)


@_cached
def _message(nbytes: int) -> bytes:
    return b"\x0a" + to_varint(nbytes)


def _format_of(data: bytes | memoryview, kind: int) -> bytes:
    if kind != ENCODED:
        return OWN_FORMATS[kind]
    return image_format(data).upper().encode()


def _fields(batch: Batch) -> list[list[bytes]]:
    """The features of each field: numbers as a list, other values as one byte string."""
    columns = []
    for name, values in batch.fields.items():
        feature = encode_text(name)
        plain = values if isinstance(values, np.ndarray) else map(bytes, values)
        columns.append([_example.entry(feature, value) for value in plain])
    return columns


FORMAT = Format(
    name="tfrecord",
    title="TFRecord",
    suffixes=(".tfrecord", ".tfrecords"),
    open=functools.partial(TableStore, read=read_tfrecord),
    writer=TFRecordWriter,
    options=frozenset({"shards"}),
    ranged=functools.partial(open_ranged, format=NAME, read=read_tfrecord),
    companions=("{path}.idx",),
    apart=Apart(writer=TFRecordWriter, name=TFRecordWriter.shard_name),
)
