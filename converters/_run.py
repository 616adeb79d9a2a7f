"""What one run of ``pack`` writes, and how: threads read and encode samples in chunks, in order."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import threading
import time
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np

from .._base.in_order import in_order
from .._base.progress_bar import Progress
from .._version import __version__
from ..errors import DataError, DecodeError, UsageError
from ..storage import Writer
from ..storage.remote.options import RemoteOptions
from ._chunk import Chunk, read_chunk
from ._encoders import Encoder
from ._report import Skipped
from ._source import PackSource, Sample

_Part = tuple[np.ndarray, "list[Sample | DataError] | None"]

# Files a thread reads at a time: 7 MB of photos. More small files, so that the work per chunk does
# not matter, if a gatherer limits their bytes.
_CHUNK = 64
_CHUNK_MOST = 1024
_CHUNK_NBYTES = 4 << 20
_SYNC_S = 5.0  # the most work that a kill can lose


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackJob:
    """Which records of the source, ascending, into which store, maybe at a URL.

    Equal ``settings`` (JSON-able) resume unfinished work.
    """

    path: str
    indices: np.ndarray
    settings: dict[str, Any]
    remote: RemoteOptions

    def metadata(self, source: PackSource) -> dict[str, Any]:
        """What the store says about its making."""
        joint = {"joint": dict(source.joint)} if source.joint else {}
        return {"fastload": __version__, **self.settings, **joint, **source.noted}


class Run:
    """Reads, encodes and writes; counts progress and lists what was skipped."""

    def __init__(
        self,
        source: PackSource,
        encoder: Encoder,
        on_error: str,
        workers: int,
        progress: Progress | None,
    ) -> None:
        self._source = source
        self._encoder = encoder
        self._raise = on_error == "raise"
        self._workers = workers
        self._progress = progress
        self._writing = False  # during a call of the writer
        self._synced = time.monotonic()
        self._done = 0
        self._nbytes = 0
        self.skipped: list[Skipped] = []
        self.kept: collections.Counter[str] = collections.Counter()

    def fill(self, writer: Writer, indices: np.ndarray) -> None:
        """Write the records ``indices`` of the source that ``writer`` does not have yet."""
        missing = self._after_resume(writer, indices)
        try:
            for chunk in self._chunks(missing):
                self._take(writer, chunk)
        except DataError:
            writer.sync()  # so that the next run can resume
            raise
        except KeyboardInterrupt:
            if not self._writing:  # an interrupted write may be incomplete
                writer.sync()
            raise

    def _take(self, writer: Writer, chunk: Chunk) -> None:
        for index, reason in chunk.failed:
            path = self._source.where(index)
            if self._raise:
                raise DecodeError(
                    f"{reason}. To pack the others, give on_error='skip'",
                    path=path,
                    record=index,
                    offset=self._source.offset(index),
                )
            self.skipped.append(Skipped(path=path, reason=reason, record=index))
        if chunk.data:
            self._writing = True
            writer.extend(chunk.batch(self._source))
            self._writing = False
        self.kept += chunk.kept
        self._nbytes += sum(map(len, chunk.data))
        self._report(len(chunk.data) + len(chunk.failed))
        if time.monotonic() - self._synced > _SYNC_S:
            self._writing = True
            writer.sync()
            self._writing = False
            self._synced = time.monotonic()

    def _report(self, done: int) -> None:
        self._done += done
        if self._progress is not None:
            known = len(self._source) - len(self._source.faults)
            total = None if self._source.streamed else known
            self._progress(self._done, total, self._nbytes)

    def _after_resume(self, writer: Writer, indices: np.ndarray) -> np.ndarray:
        """The part of ``indices`` that is left to do."""
        self._synced = time.monotonic()
        there = writer.keys()
        if not there:
            self._report(0)
            return indices
        keys = [self._source.key(index) for index in indices.tolist()]
        end = keys.index(there[-1]) + 1
        have = dict(zip(there, writer.checksums().tolist(), strict=True))
        touched = []
        for index, key in zip(indices[:end].tolist(), keys, strict=False):
            if key not in have:
                path = self._source.where(index)
                reason = "skipped in the interrupted run"
                self.skipped.append(Skipped(path=path, reason=reason, record=index))
            elif self._source.changed(index, writer.started_ns):
                touched.append(index)
        self._compare(writer, have, np.array(touched, np.int64))
        self._nbytes += writer.nbytes
        self._report(end)
        return indices[end:]

    def _compare(self, writer: Writer, have: dict[str, int], indices: np.ndarray) -> None:
        """Raise UsageError if these samples now give other records than ``writer`` has.

        Their files are newer than the unfinished work: they were copied or changed.
        """
        for chunk in self._chunks(indices) if len(indices) else ():
            changed = [index for index, _ in chunk.failed]
            for index, crc in zip(chunk.indices.tolist(), chunk.crc32c.tolist(), strict=True):
                if crc != have[self._source.key(index)]:
                    changed.append(index)
            if changed:
                raise UsageError(
                    f"{self._source.where(changed[0])!r} has changed since "
                    f"{writer.path + '.partial'!r} was started: delete that folder to start again"
                )

    def _parts(self, indices: np.ndarray, *, grows: bool) -> Generator[_Part, None, None]:
        """``indices`` in pieces, each with its samples if a thread may not read them itself.

        The user's code runs only in the calling thread. ``grows``: longer pieces of small samples.
        """
        if self._source.streamed:
            at, stream = 0, self._source.stream()
            while some := list(itertools.islice(stream, _CHUNK)):
                yield np.arange(at, at + len(some)), some
                at += len(some)
            return
        for part in self._source.ahead(self._divided(indices, grows=grows)):
            yield part, None if self._source.concurrent else list(self._source.read(part))

    def _divided(self, indices: np.ndarray, *, grows: bool) -> Iterator[np.ndarray]:
        at = 0
        while at < len(indices):
            count = _CHUNK
            if grows and self._nbytes:
                few = _CHUNK_NBYTES * self._done // self._nbytes
                count = min(max(few, _CHUNK), _CHUNK_MOST)
            yield indices[at : at + count]
            at += count

    def _chunks(self, indices: np.ndarray) -> Iterator[Chunk]:
        """Chunks in order; the threads prefetch a few chunks."""
        gatherer = self._source.gatherer() if self._encoder.as_is else None
        stop = threading.Event()

        def read(part: _Part) -> Chunk:
            return read_chunk(self._source, part[0], self._encoder, stop, part[1], gatherer)

        def left(chunk: Chunk) -> _Part | None:
            return (chunk.left, None) if len(chunk.left) else None

        with (
            # Closed: what is fetched ahead is not wanted any more.
            contextlib.closing(self._parts(indices, grows=gatherer is not None)) as parts,
            in_order(read, parts, self._workers, "fastload-pack", stop, left) as chunks,
        ):
            yield from chunks
