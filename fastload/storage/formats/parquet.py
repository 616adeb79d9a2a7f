"""Parquet files as a store: encoded images are read where they lie in decoded row groups.

A row group is the smallest part of a Parquet file that can be read, so records are "elsewhere": in
files that have to be decoded, a row group at a time, into memory. ``spans`` does that for the row
groups of its records, ``ahead`` in advance, and ``_row_groups.py`` keeps them while there is room.
"""

from __future__ import annotations

import collections
import contextlib
import glob
import itertools
import os
import re
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import StoreError, StoreNotFoundError, UsageError
from .. import _row_groups
from .._arrow_columns import Images
from .._row_groups import ColumnChunk, Pins
from .._schema_store import SchemaStore
from .._shards import data_files
from ..base import BLOCK_NBYTES, Fetch, Spans
from ..column_options import DEFAULT, ColumnOptions
from ..held import Held
from ..registry import Format, Need
from ._parquet_file import ParquetFiles, check_group_sizes

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX = ".parquet"
_SPLIT = re.compile(
    r"(?<![a-z])(train|training|test|testing|val|valid|validation|dev|eval)(?![a-z])"
)
_SAME_SPLIT = {"training": "train", "testing": "test", "valid": "val", "validation": "val"}
# Of a folder of images, in which Hugging Face's imagefolder keeps what belongs to them.
_METADATA = "metadata.parquet"
_DEEPEST = 2  # folders below a folder of Parquet files that may hold more of them
_FEWEST = 8  # a row group stays in memory for a batch that takes more than one of so many rows


class ParquetStore(SchemaStore):
    """The rows of Parquet files; a record is a row's image.

    Args:
        path: a file, a pattern, a folder of files, or a list of these; all files have the same
            columns.
        options: which column holds the images, and how much memory row groups may take; without a
            limit they share the one of this process.
        fetch: what to ask for before bytes of the files are read; None: they are all there.
    """

    format = "parquet"
    remote = True
    mapped = False

    def __init__(
        self,
        path: str | Sequence[str],
        *,
        options: ColumnOptions = DEFAULT,
        fetch: Fetch | None = None,
    ) -> None:
        self._sources = [path] if isinstance(path, str) else list(path)
        self.path = ", ".join(self._sources)
        self._fetch = fetch
        self._options = options
        self._open()

    def _open(self) -> None:
        paths = [file for path in self._sources for file in _files_of(path)]
        files = self._parquet = ParquetFiles(self.path, paths, self._fetch)
        self._read_schema(files.schema, self._options.column)
        files.image = self._image
        self._offset, self._stored, self._decoded = files.chunks(self._image)
        check_group_sizes(files, self._decoded, self._groups.limit)
        self._forget_sizes(len(self))
        weakref.finalize(self, _forget, files)

    # --- columns ----------------------------------------------------------------------------------

    def _has_nulls(self, name: str) -> bool | None:
        return self._parquet.has_nulls(name)

    def _whole(self, name: str) -> pa.ChunkedArray:
        return self._parquet.read(name, range(len(self._parquet)))

    def _given(self, name: str, indices: np.ndarray) -> list[Any]:
        groups, rows = self._located(indices)
        values: list[Any] = [None] * len(indices)
        for group in np.unique(groups).tolist():
            with self._pinned(name, group) as chunk:
                column = self._groups.wait(chunk)
                for at in np.flatnonzero(groups == group).tolist():
                    values[at] = column[int(rows[at])].as_py()
        return values

    # --- records ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self._parquet.first[-1])

    @property
    def files(self) -> Sequence[str]:
        return self._parquet.paths

    def _located(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The row group of each record, and its row there: int64 (n,) each."""
        first = self._parquet.first
        indices = np.asarray(indices, np.int64)
        groups = np.searchsorted(first, indices, side="right") - 1
        return groups, indices - first[groups]

    def places(self, indices: np.ndarray) -> Spans:
        """Where the row group of each record begins, and a mean length: decoding tells more."""
        groups, _ = self._located(indices)
        rows = np.diff(self._parquet.first)[groups]
        return Spans(
            file=self._parquet.file[groups].astype(np.int32),
            offset=self._offset[groups],
            nbytes=self._stored[groups] // np.maximum(rows, 1),
        )

    def spans(self, indices: np.ndarray) -> Spans:
        """Places in ``Spans.memory``, which is the memory of row groups."""
        groups, rows = self._located(indices)
        n = len(groups)
        file, offset = np.zeros(n, np.int32), np.zeros(n, np.int64)
        nbytes = np.zeros(n, np.int64)
        memory: list[np.ndarray] = []
        held = Pins(self._groups)
        order = np.argsort(groups, kind="stable")
        edges = np.flatnonzero(np.diff(groups[order], prepend=-1, append=-1)).tolist()
        pieces = [order[begin:end] for begin, end in itertools.pairwise(edges)]
        wanted = iter(int(groups[mine[0]]) for mine in pieces)
        begun: collections.deque[ColumnChunk] = collections.deque()
        try:
            for mine in pieces:
                # The next ones are decoded by threads meanwhile.
                for group in itertools.islice(wanted, _row_groups.THREADS - len(begun)):
                    begun.append(self._pin(self._image, group))
                images: Images = self._groups.wait(begun[0])
                its = rows[mine]
                if self._groups.roomy() or len(its) * _FEWEST > len(images.file):
                    file[mine] = -1 - len(memory) - images.file[its]
                    offset[mine], nbytes[mine] = images.offset[its], images.nbytes[its]
                    memory.extend(images.buffers)
                    held.add(begun.popleft())
                else:
                    file[mine] = -1 - len(memory)
                    copied, offset[mine], nbytes[mine] = _copied(images, its)
                    memory.append(copied)
                    self._groups.unpin(begun.popleft())
        finally:
            for chunk in begun:
                self._groups.unpin(chunk)
        return Spans(file=file, offset=offset, nbytes=nbytes, held=held, memory=memory)

    def ahead(self, indices: np.ndarray, *, urgency: float, blocks: bool = False) -> Held | None:
        """Row groups are decoded as a whole in any case."""
        held = Pins(self._groups)
        for group in np.unique(self._located(indices)[0]).tolist():
            chunk = self._groups.pin(
                self._parquet,
                (self._image, group),
                int(self._decoded[group]),
                urgency=urgency,
                ahead=True,
            )
            if chunk is None:
                held.release()
                return None
            held.add(chunk)
        return held

    def _pin(self, name: str, group: int) -> ColumnChunk:
        nbytes = int(self._decoded[group]) if name == self._image else 0
        chunk = self._groups.pin(self._parquet, (name, group), nbytes)
        assert chunk is not None, "only what is ahead may find no room"
        return chunk

    @contextlib.contextmanager
    def _pinned(self, name: str, group: int) -> Any:
        chunk = self._pin(name, group)
        try:
            yield chunk
        finally:
            self._groups.unpin(chunk)

    def expect(
        self, indices: np.ndarray, positions: np.ndarray, *, length: int, blocks: bool = False
    ) -> None:
        self._parquet.expect(self._located(indices)[0], np.asarray(positions, np.int64))

    def passed(self, position: int) -> None:
        self._parquet.passed(position)

    def check_window(self, blocks: int) -> None:
        """The row groups of a window fit into half of the memory."""
        block = np.stack([self._parquet.file, self._offset // BLOCK_NBYTES], axis=1)
        which = np.unique(block, axis=0, return_inverse=True)[1].reshape(-1)
        nbytes = np.sort(np.bincount(which, self._decoded))[::-1]
        room = self._groups.limit // 2
        fitting = int(np.searchsorted(np.cumsum(nbytes), room, side="right"))
        if nbytes[:blocks].sum() > room:
            raise UsageError(
                f"shuffle_window: expected blocks whose row groups fit into {room} bytes of "
                f"memory, which are at most {fitting} here, got {blocks}: choose a smaller window, "
                "or write the files with smaller row groups"
            )

    def read_through(self, fetch: Fetch) -> None:
        self._fetch = self._parquet.fetch = fetch

    def hint(self, *, windowed: bool) -> str | None:
        total, limit = int(self._decoded.sum()), self._groups.limit
        if windowed or total <= limit // 2:
            return None
        return (
            f"with shuffle=True a row group is decoded for almost every record, as the row groups "
            f"have {total} bytes and {limit // 2} fit into memory; give shuffle_window=16 and a "
            "seed, or pack it (`fastload pack`)"
        )

    def _headers(self, indices: np.ndarray) -> Spans:
        groups, _ = self._located(indices)
        try:
            return self.spans(indices)
        except StoreError:
            good = np.isin(
                groups, [group for group in np.unique(groups).tolist() if self._readable(group)]
            )
        spans = self.spans(indices[good])
        # Where a row group is damaged: no bytes, after the others.
        memory = [*(spans.memory or ()), np.zeros(1, np.uint8)]
        file = np.full(len(indices), -len(memory), np.int32)
        offset, nbytes = np.zeros(len(indices), np.int64), np.zeros(len(indices), np.int64)
        file[good], offset[good], nbytes[good] = spans.file, spans.offset, spans.nbytes
        return Spans(file=file, offset=offset, nbytes=nbytes, held=spans.held, memory=memory)

    def _readable(self, group: int) -> bool:
        """Whether a row group can be decoded; ``spans`` says what is wrong with it."""
        try:
            with self._pinned(self._image, group) as chunk:
                self._groups.wait(chunk)
        except StoreError:
            return False
        return True

    def close(self) -> None:
        self._groups.drop(self._parquet)

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self._sources, "options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ParquetStore.__init__(self, state["paths"], options=state["options"])


def _copied(images: Images, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The bytes of some images, one after the other, and where each begins and how long it is."""
    nbytes = images.nbytes[rows]
    ends = np.cumsum(nbytes)
    data = np.zeros(max(1, int(nbytes.sum())), np.uint8)
    places = zip(
        images.file[rows].tolist(), images.offset[rows].tolist(), nbytes.tolist(), ends.tolist()
    )
    for file, offset, length, end in places:
        data[end - length : end] = images.buffers[file][offset : offset + length]
    return data, ends - nbytes, nbytes


def _forget(files: ParquetFiles) -> None:
    _row_groups.of_process().drop(files)


def _files_of(path: str) -> list[str]:
    """The files of the store ``path``, in order."""
    if not os.path.isdir(path):
        return data_files(path)
    files = _below(path)
    if not files:
        raise StoreNotFoundError(f"expected Parquet files ({SUFFIX}) in the folder", path=path)
    splits: dict[str, str] = {}
    for file in files:
        for word in _SPLIT.findall(os.path.relpath(file, path).lower()):
            splits.setdefault(_SAME_SPLIT.get(word, word), file)
    if len(splits) > 1:
        some = os.path.relpath(next(iter(splits.values())), path)
        pattern = os.path.join(path, re.sub(r"\d+", "*", some, count=1))
        raise UsageError(
            f"{path!r}: expected the Parquet files of one split, found {', '.join(splits)}: give "
            f"a pattern for the files of one, such as {pattern!r}"
        )
    return files


def _below(folder: str) -> list[str]:
    """The Parquet files in a folder, and in folders in it, sorted."""
    levels = ["*/" * depth + f"*{SUFFIX}" for depth in range(_DEEPEST + 1)]
    files = [
        file
        for level in levels
        for file in glob.glob(os.path.join(glob.escape(folder), level))
        if os.path.isfile(file) and os.path.basename(file) != _METADATA
    ]
    return sorted(files)


def is_folder(path: str) -> bool:
    """Whether a folder holds Parquet files, in itself or in a folder called ``data``."""
    for folder in (path, os.path.join(path, "data")):
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            names = (entry.name for entry in entries if entry.is_file())
            if any(name.endswith(SUFFIX) and name != _METADATA for name in names):
                return True
    return False


def open_ranged(path: str, need: Need, options: ColumnOptions = DEFAULT) -> ParquetStore:
    """The store ``path`` of files of which nothing is there yet: ``Format.ranged``."""

    def fetch(ranges: Sequence[tuple[str, int, int]]) -> None:
        need(ranges)

    return ParquetStore(path, options=options, fetch=fetch)


FORMAT = Format(
    name="parquet",
    title="Parquet",
    suffixes=(SUFFIX,),
    open=ParquetStore,
    recognise=is_folder,
    folders=True,
    ranged=open_ranged,
    columns=True,
)
