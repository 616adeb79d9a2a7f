"""Base of the writers of array formats: images of one size, and no resuming.

An HDF5, .pth, N5 or Zarr store whose writer was killed is started again, because these formats
describe their data at the end. Until ``commit`` everything lies in ``NAME.partial``, which no
reader opens (``_partial.py``); the next writer empties it.
"""

from __future__ import annotations

import abc
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...errors import UsageError
from .._columns import Columns, RecordColumns, join
from .._sums import sums_of
from .._writer import PartialWriter, WriterOptions
from ..base import RAW, Batch
from ..table import Table, TableStore

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ArrayWriter(PartialWriter):
    """Base of the writers that store images as one array. See ``open_writer`` for the arguments.

    A format implements ``_begin``, called before the first record, when the size of the images is
    known; ``_write``, called with the records in order; and ``_close``, which finishes.
    """

    format: ClassVar[str]
    version: ClassVar[int] = 1
    _resumes: ClassVar[bool] = False
    only_raw: ClassVar[bool] = True  # the format has no place for image files

    def __init__(self, path: str | os.PathLike[str], **options: Unpack[WriterOptions]) -> None:
        self._raw: bool | None = None
        self._sums: dict[str, int] = {}  # checksums of the columns, known when they are written
        self._size: tuple[int, int] | None = None  # of all images, in a store of raw pixels
        begun = {"format": f"fastload-{self.format}", "version": self.version}
        super().__init__(path, begun, **options)

    def _resume(self) -> None:
        self._partial.clear()  # what an interrupted run left

    def _add(self, batch: Batch, columns: Columns) -> None:
        for name in columns.fields:
            _check_name(name)
        raw = bool((batch.kinds == RAW).all())
        size = self._one_size(columns) if raw else None
        if not raw and (self.only_raw or self._raw):
            raise UsageError(
                f"{self.path!r}: expected raw pixels, found image files: pack with encode='raw'"
                + ("" if self.only_raw else ", or image files only")
            )
        if raw and self._raw is False:
            raise UsageError("expected image files only, or raw pixels only, found both")
        with self._writing():
            if self._raw is None:
                self._raw, self._size = raw, size
                self._begin()
            self._write(batch.data)
        self._columns.append(columns)

    def _one_size(self, columns: Columns) -> tuple[int, int]:
        check_one_size(self.path, (self._columns or [columns])[0], columns)
        width, height = columns.sizes[0].tolist()
        nbytes = width * height * 3
        wrong = np.flatnonzero(columns.nbytes != nbytes)
        if len(wrong) or min(width, height) < 1:
            raise UsageError(
                f"expected {width} x {height} x 3 bytes of pixels, found "
                f"{int(columns.nbytes[wrong[0]]) if len(wrong) else 0}"
            )
        return width, height

    def sync(self) -> None:
        """Does nothing: a store of this format is started again after a crash."""

    def header(self, columns: Sequence[str]) -> dict[str, Any]:
        """The store's description, JSON-able; a reader refuses it without these ``columns``."""
        schema = self._schema
        fields = schema.fields if schema is not None else ()
        return {
            "format": f"fastload-{self.format}",
            "version": self.version,
            "metadata": self._metadata,
            "fields": [field.as_json() for field in fields],
            "columns": sorted(columns),
            "crc32c": self._sums,
        }

    def commit(self) -> None:
        columns = join(self._columns, labelled=bool(self._classes))
        self._sums = sums_of(columns, self._classes)
        with self._writing():
            name = self._close(columns)
            finished = TableStore(self._partial.file(name), self.read)  # opened as a reader would
            assert len(finished) == len(columns)
            self._partial.publish([(name, self.path)])
        self._closed = True

    def abort(self, *, keep_partial: bool = True) -> None:
        """Nothing is kept, because nothing could be resumed."""
        super().abort(keep_partial=False)

    @staticmethod
    @abc.abstractmethod
    def read(path: str) -> Table:
        """The table of a finished store."""

    @abc.abstractmethod
    def _begin(self) -> None:
        """Open the output; ``_raw`` and ``_size`` are known."""

    @abc.abstractmethod
    def _write(self, data: Sequence[bytes | memoryview]) -> None:
        """Add the bytes of some records."""

    @abc.abstractmethod
    def _close(self, columns: Columns) -> str:
        """Write ``columns``, sync, and return the name that the store has in the partial."""


def check_one_size(path: str, first: RecordColumns, other: RecordColumns) -> None:
    """Raise UsageError for raw pixels of several sizes, which the store ``path`` cannot hold."""
    for part in (first, other):
        if part.sizes is None or part.kinds is None or (part.kinds != RAW).any():
            return
    assert first.sizes is not None and other.sizes is not None  # as looked at above
    differing = np.flatnonzero((other.sizes != first.sizes[0]).any(axis=1))
    if len(differing):
        found = [f"{w} x {h}" for w, h in (first.sizes[0], other.sizes[differing[0]])]
        raise UsageError(
            f"expected images of one size for the raw pixels of {os.path.basename(path)!r}, found "
            f"{' and '.join(found)} pixels: give resize='224x224', or pack into .lmdb, which holds "
            "any sizes"
        )


def _check_name(name: str) -> None:
    if name.startswith((".", "__")) or len(name.encode()) > 200:
        raise UsageError(
            f"expected a field name that does not start with a dot or two underscores, of at most "
            f"200 bytes, for this format; got {name!r}"
        )


def to_json(header: Mapping[str, Any]) -> bytes:
    """``header`` as JSON in ASCII, so that undecodable file names are escaped."""
    return json.dumps(header, indent=1).encode("ascii")
