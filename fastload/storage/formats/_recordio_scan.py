"""RecordIO files without a sidecar: their table from the headers and a .lst file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

import numpy as np

from ...errors import StoreError
from .._fields import Blobs, FieldColumn, field_column, label_column
from .._mapped import Mapped, MappedFiles
from .._read import open_regular
from ..base import ENCODED
from ..table import Table
from ._recordio_frames import HEADER, frames, headers

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
    walked = [_File(path, data, number) for number, path in enumerate(files)]
    counts = [len(file.header) for file in walked]
    header = np.concatenate([file.header for file in walked])
    labels, ragged = _labels(walked, header)
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
    """One file, walked."""

    def __init__(self, path: str, files: MappedFiles, number: int) -> None:
        self.path = path
        self._files, self._number = files, number
        places = frames(self.data, path)
        self.header = headers(self.data, places, path)
        before = HEADER.itemsize + 4 * self.header["flag"].astype(np.int64)
        self.labels = places.offset + HEADER.itemsize
        self.offset = places.offset + before
        self.nbytes = places.nbytes - before
        for record, pieces in places.split.items():
            self.offset[record] = places.frame[record] + SPLIT
            whole = sum(nbytes for _, nbytes in pieces) + 4 * (len(pieces) - 1)
            self.nbytes[record] = whole - before[record]
            if pieces[0][1] < before[record]:
                raise StoreError(
                    "expected the header and labels of a record in its first piece, found the "
                    "magic number of RecordIO among them",
                    path=path,
                    record=record,
                    offset=int(places.frame[record]),
                )

    @property
    def data(self) -> Mapped:
        return self._files[self._number]


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
    files: Sequence[_File], header: np.ndarray
) -> tuple[np.ndarray | None, dict[str, FieldColumn]]:
    """The labels; a field "labels" instead if records have different numbers of them."""
    flag = header["flag"]
    if not len(flag) or bool((flag == 0).all()):
        return _exact(header["label"]), {}
    if bool((flag == flag[0]).all()):
        width = int(flag[0])
        return _exact(np.concatenate([_vectors(file, width) for file in files])), {}
    rows = []
    for file in files:
        for at, width, label in zip(
            file.labels.tolist(), file.header["flag"].tolist(), file.header["label"].tolist()
        ):
            several = np.frombuffer(file.data[at : at + 4 * width], "<f4").tolist()
            rows.append(json.dumps(several if width else [label]).encode())
    return None, {"labels": field_column("labels", rows, "json")}


def _vectors(file: _File, width: int) -> np.ndarray:
    if not len(file.labels):
        return np.empty((0, width), np.float32)
    rows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(file.data, np.uint8), 4 * width)
    return np.ascontiguousarray(rows[file.labels]).view("<f4")


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
