"""TFRecord: reader and writer of ``NAME.tfrecord``. The layout is in SPECIFICATION.md.

A record is a tf.train.Example with the feature names of TF-Slim's ImageNet; the image is the last
feature, so that the others lie together before it. Everything else lies in the sidecar. Files that
other programs wrote are scanned when they are opened (``_tfrecord_scan.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from .._columns import Columns
from .._crc import crc32c
from .._fields import encode_text, label_column
from .._signatures import image_format
from ..base import ENCODED, Batch
from ..registry import Apart, Format
from ..stream import SHARD, STORE, StreamWriter, open_ranged, read_stream
from ..table import Table, TableStore
from . import _example, _tfrecord_scan
from ._protobuf import to_varint
from ._tfrecord_frames import HEAD, TAIL, head, masked


def read_tfrecord(path: str) -> Table:
    """The table of TFRecord files."""
    return read_stream(path, _tfrecord_scan.NAME, mark=_mark_of, scan=_tfrecord_scan.scan)


class TFRecordWriter(StreamWriter):
    """Writes TFRecord files, each with an index ``NAME.tfrecord.idx``."""

    format = _tfrecord_scan.NAME

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
        """image/class/label and image/class/text of each record."""
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


@_cached
def _format(name: bytes) -> bytes:
    return _example.entry(b"image/format", name)


@_cached
def _filename(nbytes: int) -> bytes:
    return _example.entry_head(b"image/filename", nbytes)


@_cached
def _image(nbytes: int) -> bytes:
    return _example.entry_head(b"image/encoded", nbytes)


@_cached
def _message(nbytes: int) -> bytes:
    """The bytes before the features of an Example."""
    return b"\x0a" + to_varint(nbytes)


@_cached
def _head(nbytes: int) -> bytes:
    return head(nbytes)


def _format_of(data: bytes | memoryview, kind: int) -> bytes:
    if kind != ENCODED:
        return _tfrecord_scan.OWN_FORMATS[kind]
    return image_format(data).upper().encode()


def _fields(batch: Batch) -> list[list[bytes]]:
    """The features of each field: numbers as a list, other values as one byte string."""
    columns = []
    for name, values in batch.fields.items():
        feature = encode_text(name)
        if isinstance(values, np.ndarray):
            columns.append([_example.entry(feature, row) for row in values])
        else:
            columns.append([_example.entry(feature, bytes(value)) for value in values])
    return columns


FORMAT = Format(
    name="tfrecord",
    title="TFRecord",
    suffixes=(".tfrecord", ".tfrecords"),
    open=functools.partial(TableStore, read=read_tfrecord),
    writer=TFRecordWriter,
    options=frozenset({"shards"}),
    ranged=functools.partial(open_ranged, format=_tfrecord_scan.NAME, read=read_tfrecord),
    companions=("{path}.idx",),
    apart=Apart(writer=TFRecordWriter, name=TFRecordWriter.shard_name),
)
