"""Parquet files through pyarrow: which row groups they have, and the columns of one.

https://parquet.apache.org/docs/file-format/ describes the format; pyarrow alone reads it.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import StoreError, UsageError, install, needed
from .._read import open_regular, pread_all
from .._row_groups import DecodedColumn, Key
from .._schema_store import images_in
from ..base import Fetch

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
        stamps = [self._stamp(file) for file in self.paths]
        self._stamps = stamps
        self._footers = [self._footer(file) for file in self.paths]
        self.schema: pa.Schema = self._footers[0].schema.to_arrow_schema()
        for file, footer in zip(self.paths[1:], self._footers[1:]):
            self._check_same(file, footer.schema.to_arrow_schema())
        counts = [footer.num_row_groups for footer in self._footers]
        self.file = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        self.number = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])
        rows = [
            footer.row_group(number).num_rows
            for footer, count in zip(self._footers, counts)
            for number in range(count)
        ]
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
        """What changes when a file is replaced; nothing of one that is elsewhere."""
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
        for at, (file, number) in enumerate(zip(self.file.tolist(), self.number.tolist())):
            group = self._footers[file].row_group(number)
            begin, end, decoded = math.inf, 0, 0
            for leaf in leaves:
                chunk = group.column(leaf)
                places = (chunk.dictionary_page_offset, chunk.data_page_offset)
                start = min((place for place in places if place), default=0)
                begin = min(begin, start)
                end = max(end, start + chunk.total_compressed_size)
                decoded += chunk.total_uncompressed_size
            size = self._stamps[file][0] or end
            if not leaves or not 0 < begin <= end <= size or decoded < 0:
                raise StoreError(
                    f"the footer places row group {number} of the column {name!r} outside the "
                    "file: it was truncated, or is damaged",
                    path=self.paths[file],
                )
            table[:, at] = begin, end - begin, decoded
        return table[0], table[1], table[2]

    def has_nulls(self, name: str) -> bool | None:
        """Whether a column of numbers has nulls; None: the files do not say."""
        total = 0
        for file, number in zip(self.file.tolist(), self.number.tolist()):
            group = self._footers[file].row_group(number)
            for leaf in self.leaves(name):
                statistics = group.column(leaf).statistics
                if statistics is None or not statistics.has_null_count:
                    return None
                total += statistics.null_count
        return total > 0

    # --- reading ----------------------------------------------------------------------------------

    def decode(self, key: Key) -> DecodedColumn:
        name, group = key
        assert isinstance(group, int)
        column = self.read(name, [group])
        if name != self.image:
            return DecodedColumn(column, column.nbytes)
        path, first = self.paths[int(self.file[group])], int(self.first[group])
        images = images_in(column, name, path, lambda row: first + row)
        return DecodedColumn(images, sum(buffer.nbytes for buffer in images.buffers))

    def read(self, name: str, groups: Sequence[int]) -> pa.ChunkedArray:
        """The column ``name`` of row groups, in their order."""
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
        left = max(0, os.fstat(self.fileno()).st_size - begin)
        nbytes = left if size is None or size < 0 else min(size, left)
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


def check_group_sizes(files: ParquetFiles, decoded: np.ndarray, limit: int) -> None:
    """Raise StoreError for a row group whose images need too much memory to be read.

    ``decoded``: int64 (groups,), bytes of the images of each; ``limit``: bytes of all in memory.
    """
    most = min(limit // 2, _MOST_NBYTES)
    if not len(decoded) or int(decoded.max()) <= most:
        return
    group = int(decoded.argmax())
    rows = int(files.first[group + 1] - files.first[group])
    fitting = max(1, int(rows * min(most, 64 << 20) / int(decoded[group])))
    name = os.path.basename(files.paths[int(files.file[group])])
    raise StoreError(
        f"row group {int(files.number[group])} has {int(decoded[group])} bytes of images, and at "
        f"most {most} can be read at once, because a row group is read as a whole: write the file "
        f"again with smaller ones (pyarrow.parquet.write_table(pyarrow.parquet.read_table({name!r})"
        f", 'smaller.parquet', row_group_size={fitting})), or pack it where there is more memory",
        path=files.paths[int(files.file[group])],
    )


def _said(error: Exception) -> str:
    """What pyarrow said, on one line."""
    return " ".join(str(error).split()) or type(error).__name__
