"""Parquet files as a store: encoded images are read where they lie in decoded row groups.

A row group is the smallest part of a Parquet file that can be read, so the store is ``remote``: a
row group at a time has to be decoded into memory. ``spans`` does that for those of its records,
``ahead`` in advance, and ``_row_groups.py`` keeps them while there is room.
https://parquet.apache.org/docs/file-format/ describes the format; pyarrow alone reads it.
"""

from __future__ import annotations

import collections
import contextlib
import glob
import io
import itertools
import math
import os
import re
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import StoreError, StoreNotFoundError, UsageError, install, needed
from .. import _row_groups
from .._arrow_columns import ImagePlaces, images_in
from .._column_store import ColumnStore
from .._read import open_regular, pread_all
from .._row_groups import ColumnChunk, DecodedColumn, Key, Pins
from .._shards import data_files
from .._spans import Held
from ..base import BLOCK_NBYTES, Fetch, Spans
from ..column_options import DEFAULT, ColumnOptions
from ..registry import Format

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_ROWS = 2**32
_MOST_NBYTES = 2**31 - 1
"""Of the images of a row group: Arrow counts the bytes of a struct's strings with 32 bits."""


class ParquetFiles:
    """The row groups of a list of files with the same columns, numbered from the first file on.

    ``fetch`` is asked before bytes of the files are read; None: they are all there.

    Attributes:
        schema: of the first file, with its metadata.
        file, number: int64 (groups,), the file of each row group, and its number there.
        first: int64 (groups + 1,), the row at which each begins, and the number of all rows.
    """

    def __init__(self, path: str, files: Sequence[str], fetch: Fetch | None = None) -> None:
        self.path, self.paths, self.fetch = path, list(files), fetch
        self._parquet = needed(
            "pyarrow.parquet",
            f"{path!r} is a Parquet file; reading it needs pyarrow: {install('parquet')}",
        )
        self._stamps = [self._stamp(file) for file in self.paths]
        self._footers = [self._footer(file) for file in self.paths]
        self.schema: pa.Schema = self._footers[0].schema.to_arrow_schema()
        for file, footer in zip(self.paths[1:], self._footers[1:]):
            self._check_same(file, footer.schema.to_arrow_schema())
        counts = [footer.num_row_groups for footer in self._footers]
        self.file = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        self.number = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])
        rows = [group.num_rows for group in self._row_groups()]
        if any(count < 0 for count in rows) or sum(rows) > _MOST_ROWS:
            raise StoreError("a row group has an impossible number of rows", path=path)
        self.first = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)]).astype(np.int64)
        self.image = ""
        self._uses: tuple[np.ndarray, np.ndarray] | None = None
        self._now = 0

    # --- what files have --------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.file)

    def _stamp(self, file: str) -> tuple[int, int]:
        """What changes when a file is replaced; nothing of a remote one."""
        if self.fetch is not None:
            return 0, 0
        try:
            os.close(open_regular(file))
            status = os.stat(file)
        except OSError as error:
            raise StoreError(f"cannot read the file: {error.strerror}", path=file) from error
        return status.st_size, status.st_mtime_ns

    def _footer(self, file: str) -> Any:  # pyarrow has no types
        try:
            with self._opened(file) as source:
                return self._parquet.read_metadata(source)
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(
                f"expected a Parquet file, found none, or one that is truncated: {_said(error)}",
                path=file,
            ) from error

    def _check_same(self, file: str, schema: pa.Schema) -> None:
        if schema.equals(self.schema):
            return
        for name in dict.fromkeys([*self.schema.names, *schema.names]):
            types = [
                [str(field.type) for field in each_schema if field.name == name]
                for each_schema in (self.schema, schema)
            ]
            if types[0] != types[1]:
                first, other = (", ".join(each) or "no such column" for each in types)
                raise UsageError(
                    f"expected files with the same columns, found {name!r} as {first} in "
                    f"{self.paths[0]!r} and as {other} in {file!r}"
                )

    def _row_groups(self) -> Iterator[Any]:
        for file, number in zip(self.file.tolist(), self.number.tolist()):
            yield self._footers[file].row_group(number)

    def leaves(self, name: str) -> list[int]:
        """The numbers of the Parquet columns that the column ``name`` consists of."""
        schema = self._footers[0].schema
        return [
            number
            for number in range(len(schema))
            if (path := schema.column(number).path) == name or path.startswith(f"{name}.")
        ]

    def chunks(self, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where the row groups have the column ``name``: offset, bytes, and bytes when decoded.

        int64 (groups,) each; the offset is in the file, and of the first byte.
        """
        table = np.zeros((3, len(self)), np.int64)
        leaves = self.leaves(name)
        for at, group in enumerate(self._row_groups()):
            begin, end, decoded = math.inf, 0, 0
            for leaf in leaves:
                chunk = group.column(leaf)
                places = (chunk.dictionary_page_offset, chunk.data_page_offset)
                start = min((place for place in places if place), default=0)
                begin = min(begin, start)
                end = max(end, start + chunk.total_compressed_size)
                decoded += chunk.total_uncompressed_size
            file = int(self.file[at])
            size = self._stamps[file][0] or end
            if not leaves or not 0 < begin <= end <= size or decoded < 0:
                raise StoreError(
                    f"the footer places row group {self.number[at]} of the column {name!r} outside "
                    "the file: it was truncated, or is damaged",
                    path=self.paths[file],
                )
            table[:, at] = begin, end - begin, decoded
        return table[0], table[1], table[2]

    def has_nulls(self, name: str) -> bool | None:
        """Whether a column of numbers has nulls; None: the files do not say."""
        leaves = self.leaves(name)
        statistics = [
            group.column(leaf).statistics for group in self._row_groups() for leaf in leaves
        ]
        if any(each is None or not each.has_null_count for each in statistics):
            return None
        return bool(sum(each.null_count for each in statistics) > 0)

    # --- reading ----------------------------------------------------------------------------------

    def decode(self, key: Key) -> DecodedColumn:
        name, group = key
        assert isinstance(group, int)
        column = self.read(name, [group])
        if name != self.image:
            return DecodedColumn(column, column.nbytes)
        images = images_in(column)
        return DecodedColumn(images, sum(buffer.nbytes for buffer in images.buffers))

    def read(self, name: str, groups: Sequence[int]) -> pa.ChunkedArray:
        import pyarrow as pa

        chunks: list[Any] = []
        files = self.file[list(groups)].tolist()
        for file in dict.fromkeys(files):
            path = self.paths[file]
            its = [group for group, other in zip(groups, files) if other == file]
            numbers = [int(self.number[group]) for group in its]
            if self._stamp(path) != self._stamps[file]:
                raise StoreError("the file changed after it was opened: open it again", path=path)
            try:
                with self._opened(path) as source:
                    opened = self._parquet.ParquetFile(source, metadata=self._footers[file])
                    table = opened.read_row_groups(numbers, columns=[name], use_threads=False)
            except StoreError:
                raise
            except Exception as error:
                raise StoreError(
                    f"cannot read the column {name!r} of row group {numbers[0]}: {_said(error)}",
                    path=path,
                    record=int(self.first[groups[files.index(file)]]),
                ) from error
            expected = sum(self._footers[file].row_group(number).num_rows for number in numbers)
            column = table.column(name)
            if len(column) != expected:
                raise StoreError(
                    f"expected {expected} rows of the column {name!r}, found {len(column)}: the "
                    "file is damaged",
                    path=path,
                )
            chunks.extend(column.chunks)
        return pa.chunked_array(chunks, self.schema.field(name).type)

    def _opened(self, path: str) -> Any:  # a file object as pyarrow takes it
        import pyarrow as pa

        if self.fetch is None:
            return pa.OSFile(path)  # not mapped: a map of a truncated file kills the process
        return pa.PythonFile(_FetchedFile(path, self.fetch), mode="r")

    # --- the running epoch ------------------------------------------------------------------------

    def expect(self, groups: np.ndarray, positions: np.ndarray) -> None:
        """An epoch begins that uses ``groups`` (int64) at these positions (int64, ascending)."""
        order = np.argsort(groups, kind="stable")
        starts = np.searchsorted(groups[order], np.arange(len(self) + 1))
        self._uses, self._now = (positions[order], starts), 0

    def passed(self, position: int) -> None:
        self._now = position

    def next_use(self, rows: int | bytes) -> float:
        if self._uses is None:
            return math.inf
        group = int(rows)
        positions, starts = self._uses
        its = positions[starts[group] : starts[group + 1]]
        at = int(np.searchsorted(its, self._now))
        return float(its[at]) if at < len(its) else math.inf


class _FetchedFile(io.FileIO):
    """A sparse file whose ranges are fetched when they are read."""

    def __init__(self, path: str, fetch: Fetch) -> None:
        super().__init__(path, opener=open_regular)
        self._path, self._fetch = path, fetch

    def read(self, size: int | None = -1) -> bytes:
        begin = self.tell()
        remaining = max(0, os.fstat(self.fileno()).st_size - begin)
        nbytes = remaining if size is None or size < 0 else min(size, remaining)
        if not nbytes:
            return b""
        held = self._fetch([(self._path, begin, nbytes)])
        try:
            data = pread_all(self.fileno(), nbytes, begin)
        finally:
            if held is not None:
                held.release()
        self.seek(begin + len(data))
        return data


def _said(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


SUFFIX = ".parquet"
_SPLIT = re.compile(
    r"(?<![a-z])(train|training|test|testing|val|valid|validation|dev|eval)(?![a-z])"
)
_SAME_SPLIT = {"training": "train", "testing": "test", "valid": "val", "validation": "val"}
# Of a folder of images, in which Hugging Face's imagefolder keeps what belongs to them.
_METADATA = "metadata.parquet"
_DEEPEST = 2  # folders below a folder of Parquet files that may hold more of them
_FEWEST = 8  # a row group stays in memory for a batch that takes more than one of so many rows


class ParquetStore(ColumnStore):
    """The rows of Parquet files; a record is a row's image.

    ``path``: a file, a pattern, a folder of files, or a list of these; all files have the same
    columns. Without a limit in ``options``, row groups share that of this process. ``fetch``: what
    to ask for before bytes of the files are read; None: they are all there.
    """

    format = "parquet"
    remote = True
    mapped = False

    def __init__(
        self,
        path: str | Sequence[str],
        fetch: Fetch | None = None,
        *,
        options: ColumnOptions = DEFAULT,
    ) -> None:
        self._sources = [path] if isinstance(path, str) else list(path)
        self.path = ", ".join(self._sources)
        self._options = options
        paths = [file for path in self._sources for file in _files_of(path)]
        files = self._parquet = ParquetFiles(self.path, paths, fetch)
        self._read_schema(files.schema, self._options.column)
        files.image = self._image
        self._offset, self._stored, self._decoded = files.chunks(self._image)
        self._check_group_sizes()
        self._forget_sizes(len(self))
        weakref.finalize(self, lambda: _row_groups.of_process().drop(files))

    def _check_group_sizes(self) -> None:
        """Raise StoreError for a row group whose images need too much memory to be read."""
        files, decoded = self._parquet, self._decoded
        most = min(self._groups.limit // 2, _MOST_NBYTES)
        if not len(decoded) or int(decoded.max()) <= most:
            return
        group = int(decoded.argmax())
        rows = int(files.first[group + 1] - files.first[group])
        fitting = max(1, int(rows * min(most, 64 << 20) / int(decoded[group])))
        path = files.paths[int(files.file[group])]
        name = os.path.basename(path)
        raise StoreError(
            f"row group {int(files.number[group])} has {int(decoded[group])} bytes of images, and "
            f"at most {most} can be read at once, because a row group is read as a whole: write "
            "the file again with smaller ones (pyarrow.parquet.write_table("
            f"pyarrow.parquet.read_table({name!r}), 'smaller.parquet', row_group_size={fitting})), "
            "or pack it where there is more memory",
            path=path,
        )

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
                images: ImagePlaces = self._groups.wait(begun[0])
                its, path = rows[mine], self.shown(int(self._parquet.file[groups[mine[0]]]))
                images.check_bytes(its, indices[mine], self._image, path)
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
    def _pinned(self, name: str, group: int) -> Iterator[ColumnChunk]:
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
        self._parquet.fetch = fetch

    def hint(self, *, windowed: bool) -> str | None:
        total, limit = int(self._decoded.sum()), self._groups.limit
        if windowed or total <= limit // 2:
            return None
        return (
            f"with shuffle=True a row group is decoded for almost every record, as the row groups "
            f"have {total} bytes and {limit // 2} fit into memory; give shuffle_window=16 and a "
            "seed, or pack it (`fastload pack`)"
        )

    def _readable(self, indices: np.ndarray) -> np.ndarray:
        groups, rows = self._located(indices)
        good = np.zeros(len(rows), bool)
        for group in np.unique(groups).tolist():
            mine = groups == group
            with contextlib.suppress(StoreError), self._pinned(self._image, group) as chunk:
                good[mine] = self._groups.wait(chunk).have_bytes(rows[mine])
        return good

    def close(self) -> None:
        self._groups.drop(self._parquet)

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self._sources, "options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ParquetStore.__init__(self, state["paths"], options=state["options"])


def _copied(images: ImagePlaces, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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


def _files_of(path: str) -> list[str]:
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


FORMAT = Format(
    name="parquet",
    title="Parquet",
    suffixes=(SUFFIX,),
    open=ParquetStore,
    recognise=is_folder,
    folders=True,
    ranged=ParquetStore,
    columns=True,
)
