"""PartialWriter: base of the writers of all formats, over the partial store and its journal."""

from __future__ import annotations

import abc
import contextlib
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypedDict

import numpy as np

from ..errors import StoreError
from ._columns import Columns, Schema, of_batch
from ._fields import encode_text
from ._partial import Partial
from .base import Batch, Writer

KEPT = "; what was written is kept"  # in the errors of a writer that can resume
_FULL_NBYTES = 1 << 20  # a disk with less room is full


class WriterOptions(TypedDict, total=False):
    """The options that every writer has: see ``open_writer``."""

    classes: Sequence[str]
    metadata: Mapping[str, Any] | None
    settings: Mapping[str, Any] | None


class PartialWriter(Writer):
    """Counts and checks records on their way into ``NAME.partial``. Arguments as ``open_writer``'s.

    ``layout``: the format and its options, for the partial's settings; ``mark`` as of ``Partial``.
    """

    _resumes: ClassVar[bool] = True  # synced records need not be written again

    def __init__(
        self,
        path: str | os.PathLike[str],
        layout: Mapping[str, object],
        *,
        classes: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        mark: str | None = None,
    ) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._classes = list(classes)
        for name in self._classes:
            encode_text(name)  # refused before anything is written
        self._metadata = dict(metadata or {})
        settings = {**layout, "classes": self._classes, **(settings or {})}
        try:
            self._partial = Partial(self.path, settings, mark=mark)
        except OSError as error:
            raise write_failed(error, f"{self.path}.partial") from error
        self._columns: list[Columns] = []  # of what is not in the journal yet
        self._closed = False
        try:
            self._resume()
        except BaseException:
            self._partial.close()
            raise

    @abc.abstractmethod
    def _resume(self) -> None:
        """Continue after the journal, if what is there is what it says; else StoreError."""

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Errors of the system say what becomes of the work."""
        try:
            yield
        except OSError as error:
            raise self._failed(error) from error

    @property
    def _schema(self) -> Schema | None:
        parts = self._partial.chunks or self._columns
        return Schema.of(parts[0].labels, parts[0].fields) if parts else None

    def extend(self, batch: Batch) -> None:
        if not batch.keys:
            return
        columns = of_batch(batch)
        schema = Schema.of(columns.labels, columns.fields)
        (self._schema or schema).admit(schema)
        self._add(batch, columns)

    @abc.abstractmethod
    def _add(self, batch: Batch, columns: Columns) -> None:
        """Write records, at least one, which may follow the existing ones."""

    def _failed(self, error: Exception) -> StoreError:
        kept = KEPT if self._resumes and len(self) else ""
        return write_failed(error, self._partial.folder, kept)

    @property
    def _pending_records(self) -> int:
        return sum(map(len, self._columns))

    def __len__(self) -> int:
        return sum(map(len, self._partial.chunks)) + self._pending_records

    @property
    def nbytes(self) -> int:
        return sum(int(chunk.nbytes.sum()) for chunk in [*self._partial.chunks, *self._columns])

    @property
    def started_ns(self) -> int:
        return self._partial.started_ns

    def keys(self) -> list[str]:
        chunks = [part.all_keys() for part in [*self._partial.chunks, *self._columns]]
        return [key for chunk in chunks for key in chunk]

    def checksums(self) -> np.ndarray:
        parts = [part.crc32c for part in [*self._partial.chunks, *self._columns]]
        return np.concatenate([np.empty(0, np.uint32), *parts])

    def abort(self, *, keep_partial: bool = True) -> None:
        if self._closed:
            return
        self._closed = True
        self._release()
        self._partial.close(remove=not keep_partial)

    def _release(self) -> None:
        """Release the data before the partial is closed."""


# The place does not take files: a missing or read-only folder, or a file system of the kernel's.
_REFUSED = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)


def write_failed(error: Exception, folder: str, kept: str = "") -> StoreError:
    """The error for a store in ``folder`` that could not be written; ``kept`` is said about it."""
    if getattr(error, "errno", None) in _REFUSED:
        change = "choose a folder in which files can be made"
    else:
        full = "the disk is full: make" if _full(error, folder) else "if the disk is full make"
        change = f"{full} room, and run the same command again"
    return StoreError(f"writing failed: {error}{kept}; {change}", path=folder)


def _full(error: Exception, folder: str) -> bool:
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return True
    try:  # libraries report "input/output error"
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _FULL_NBYTES
