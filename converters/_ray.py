"""``pack(..., ray=...)``: Ray tasks write the shards, this process the manifest.

The bytes are those that one machine writes. What a shard depends on beside its own records is the
index of its first record in the store, the store's first key, and where the shards before it end:

1. Tasks write *pieces*, shards of consecutive samples of the source. With ``shards=N`` a piece has
   the samples of one shard. If no sample was left out, the pieces are the shards, and we are done.
2. Otherwise the pieces are right except for their ends: with ``shard_nbytes`` a shard ends where
   its bytes do, and a sample that is left out moves all that follow it. Now all lengths are known,
   so other tasks copy the records of the pieces into the shards.

A finished piece or shard is a folder (``storage/shard_set.py``, ``_url_shards.py``), which a later
run finds. If a machine dies, Ray starts its tasks again on another one. Tasks write where all
machines see it, so only reports travel to this process.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .._base import ray_cluster
from .._base.progress_bar import Progress
from ..errors import DecodeError, FastloadError, StoreError, UsageError
from ..hints import Compression, OnPackError
from ..storage._local import is_url
from ..storage._shards import Shard, Sharding, fill
from ..storage._writer import PartialWriter
from ..storage.shard_set import Made, ShardPlace, ShardSet, format_apart
from ._chunk import read_chunk
from ._encoders import Encoder, make_encoder
from ._job import Job
from ._report import PackedPart, Skipped
from ._run import Run
from ._source import Source
from ._store_source import StoreSource
from ._url_shards import UrlShardSet

# Many pieces, so that machines end together and a dead one costs little; but large ones, so that
# the time to open the source is negligible. Their number depends only on the records, so a run on
# more machines can resume.
_PIECES = 512
_PIECE_LEAST, _PIECE_MOST = 1024, 16384  # records
_RETRIES = 8  # of a task whose process or machine died
_TELL_EVERY_S = 0.5  # the progress of a task
_LOOK_EVERY_S = 1.0  # at the progress of all
_IN_FLIGHT = 2  # tasks that wait or run, for each CPU of the cluster


@dataclasses.dataclass(frozen=True, kw_only=True)
class Common:
    """What all tasks need. Every process that runs tasks gets it once.

    Attributes:
        source: of the samples.
        encoder: makes the encoder, whose functions cannot be sent.
        on_error, workers: as of ``pack``.
    """

    source: Source
    encoder: Callable[[], Encoder]
    on_error: OnPackError
    workers: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the tasks of one store did.

    Attributes:
        part: the store.
        skipped, kept: as in ``PackReport``.
    """

    part: PackedPart
    skipped: list[Skipped]
    kept: collections.Counter[str]


def check(path: str, source: Source, sharding: Sharding, compression: Compression | None) -> None:
    """Raise UsageError unless tasks can write shards of ``source`` into the store ``path``."""
    format_apart(path)
    if compression is not None:
        raise UsageError("expected shards or a compression, got both: compress single files")
    if source.streamed:
        raise UsageError(
            f"ray: {source.path} is read from start to end, so it cannot be divided among tasks: "
            "pack it on one machine"
        )
    if not sharding.wanted:
        raise UsageError(
            "ray: expected shards=... or shard_nbytes=... (--shards, --shard-size) with it, "
            "because each task writes whole shards"
        )


class Tasks:
    """Runs the tasks of one call of ``pack``.

    Args:
        ray: the module, connected to a cluster.
        common: what the tasks need.
        total: records of all stores.
        progress: called as ``pack`` calls it.
    """

    def __init__(self, ray: Any, common: Common, total: int, progress: Progress | None) -> None:
        self._ray = ray
        self._common = common
        self._total = total
        self._progress = progress
        self._reference = ray_cluster.put(common, f"ray: {common.source.path}")
        most = max(
            (node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]), default=0
        )
        if common.workers > most:
            raise UsageError(
                f"workers: expected at most {most:g}, the CPUs of the largest machine of the "
                f"cluster, got {common.workers}"
            )
        self._board = None if progress is None else _board(ray)
        self._told: dict[str, tuple[int, int]] = {}  # task -> its records and bytes
        self._done: dict[str, tuple[int, int]] = {}  # the same of finished tasks

    def write(self, jobs: Sequence[Job], sharding: Sharding) -> list[Outcome]:
        """Write the store of each job.

        Raises:
            DecodeError: a file that is not an image, with ``on_error="raise"``, or no images at
                all.
            StoreError, UsageError: as ``pack`` raises them.
        """
        leads = [self._lead(job.indices) for job in jobs]
        failed = next((reason for _, reason in leads if reason is not None), None)
        if failed is not None and all(
            lead == len(job.indices) for (lead, _), job in zip(leads, jobs)
        ):
            total = sum(len(job.indices) for job in jobs)
            raise DecodeError(
                f"none of {total} files is an image: {failed.reason}", path=failed.path
            )
        with contextlib.ExitStack() as stack:
            begun = []
            for job in jobs:
                divided = dataclasses.replace(sharding, total=len(job.indices))
                classes = list(self._common.source.classes)
                settings = {**divided.settings(), "classes": classes, **job.settings}
                shards = (
                    UrlShardSet(job.path, settings, job.remote)
                    if is_url(job.path)
                    else ShardSet(job.path, settings)
                )
                stack.callback(shards.close)
                begun.append((shards, job, divided))
            return [self._write(*one, lead) for one, (lead, _) in zip(begun, leads)]

    def _write(
        self, shards: ShardSet | UrlShardSet, job: Job, sharding: Sharding, lead: int
    ) -> Outcome:
        key = self._common.source.key(int(job.indices[lead])) if lead < len(job.indices) else ""
        bounds = _piece_bounds(len(job.indices), sharding)
        count = len(bounds) - 1
        places, parts = [], []
        for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
            shard = Shard(first=max(0, start - lead), first_key=key)
            places.append(shards.place("pieces", number, count, shard))
            parts.append({"indices": job.indices[start:stop]})
        there = [place.found() for place in places]
        pieces = self._run(job, encode, places, parts, shown=True)
        resumed = sum(
            old.records for old, new in zip(there, pieces) if old is not None and old == new
        )
        notes = [Noted.from_json(piece.noted) for piece in pieces]
        made = self._laid_out(job, shards, sharding, places, pieces, key)
        nbytes = sum(piece.nbytes for piece in pieces)
        return Outcome(
            part=PackedPart.of(job.path, shards.commit(made), nbytes, resumed),
            skipped=[one for note in notes for one in note.skipped],
            kept=sum((note.kept for note in notes), collections.Counter[str]()),
        )

    def _lead(self, indices: np.ndarray) -> tuple[int, Skipped | None]:
        """How many samples at the start are left out, and the first of them."""
        failed: Skipped | None = None
        if self._common.on_error == "raise":
            return 0, failed
        source, encoder, never = self._common.source, self._common.encoder(), threading.Event()
        for at in range(len(indices)):
            chunk = read_chunk(source, indices[at : at + 1], encoder, never)
            if len(chunk.indices):
                return at, failed
            index, reason = chunk.failed[0]
            failed = failed or Skipped(path=source.where(index), reason=reason, record=index)
        return len(indices), failed

    def _laid_out(
        self,
        job: Job,
        shards: ShardSet | UrlShardSet,
        sharding: Sharding,
        places: Sequence[ShardPlace],
        pieces: Sequence[Made],
        key: str,
    ) -> list[Made]:
        """The shards: the pieces themselves where they are right, else made of the pieces."""
        bounds = _shard_bounds(pieces, sharding)
        ends = np.cumsum([0, *(piece.records for piece in pieces)]).tolist()
        count = len(bounds) - 1
        plan = hashlib.blake2b(digest_size=8)
        for piece, place in zip(pieces, places):
            plan.update(f"{place.shard.first} {piece.records} {piece.digest}\n".encode())
        made: list[Made | None] = [None] * count
        wanted, arguments = [], []
        filled = [number for number, piece in enumerate(pieces) if piece.records]
        for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
            mine = ends[number : number + 2]
            same = sharding.shards is not None and [start, stop] == mine
            if same and (start == stop or places[number].shard.first == start):
                made[number] = pieces[number]
                continue
            shard = Shard(first=start, first_key=key)
            wanted.append(shards.place(f"shards-{plan.hexdigest()}", number, count, shard))
            used = [one for one in filled if ends[one] < stop and ends[one + 1] > start]
            paths = [pieces[one].path for one in used]
            offset = ends[used[0]] if used else 0
            arguments.append({"pieces": paths, "start": start - offset, "stop": stop - offset})
        copies = iter(self._run(job, lay_out, wanted, arguments, shown=False))
        return [next(copies) if one is None else one for one in made]

    def _run(
        self,
        job: Job,
        task: Callable[..., Made],
        places: Sequence[ShardPlace],
        arguments: Sequence[Mapping[str, Any]],
        *,
        shown: bool,
    ) -> list[Made]:
        """What ``task`` returns for each of ``places``, with its arguments.

        Raises the first error of a task, after the others have ended.
        """
        ray = self._ray
        metadata = job.metadata(self._common.source.noted)
        remote = ray.remote(task).options(
            num_cpus=self._common.workers, max_retries=_RETRIES, scheduling_strategy="SPREAD"
        )
        made: list[Made | None] = [None] * len(places)
        running: dict[Any, int] = {}
        waiting = iter(range(len(places)))
        try:
            while True:
                room = max(_IN_FLIGHT * int(ray.cluster_resources().get("CPU", 1)), 4)
                for number in _some(waiting, room - len(running)):
                    board = self._board if shown else None
                    given = [self._reference], metadata, places[number], board
                    running[remote.remote(*given, **arguments[number])] = number
                if not running:
                    return [one for one in made if one is not None]
                ready, _ = ray.wait(list(running), num_returns=1, timeout=_LOOK_EVERY_S)
                for reference in ready:
                    number = running.pop(reference)
                    found = made[number] = _result(ray, reference, places[number])
                    if shown:
                        samples = len(arguments[number]["indices"])
                        self._done[_name(places[number])] = samples, found.nbytes
                if shown:
                    self._show()
        finally:
            for reference in running:
                ray.cancel(reference, recursive=False)
            if running:  # they write in the folder that the caller may delete
                ray.wait(list(running), num_returns=len(running), timeout=30)

    def _show(self) -> None:
        if self._progress is None or self._board is None:
            return
        with contextlib.suppress(self._ray.exceptions.RayError):  # it is being started again
            self._told = self._ray.get(self._board.read.remote())
        known = {**self._told, **self._done}
        done = sum(records for records, _ in known.values())
        self._progress(done, self._total, sum(nbytes for _, nbytes in known.values()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noted:
    """What a task notes about its piece: ``skipped`` and ``kept`` of ``PackReport``."""

    skipped: list[Skipped]
    kept: collections.Counter[str]

    def to_json(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "skipped": [dataclasses.asdict(one) for one in self.skipped],
            "kept": dict(self.kept.most_common()),
        }

    @classmethod
    def from_json(cls, noted: Mapping[str, Any]) -> Noted:
        """The inverse of ``to_json``."""
        return cls(
            skipped=[Skipped(**one) for one in noted["skipped"]],
            kept=collections.Counter(noted["kept"]),
        )


# --- tasks: these run on any machine --------------------------------------------------------------


def encode(
    common: list[Any],
    metadata: Mapping[str, Any],
    place: ShardPlace,
    board: Any | None,
    *,
    indices: np.ndarray,
) -> Made:
    """Task: the piece at ``place``, of the samples ``indices``.

    Args:
        common: a reference to ``Common``, in a list, so that Ray does not fetch it for every task.
        metadata: of the store.
        place: of the piece.
        board: is told about progress; or None.
        indices: int64.
    """
    shared = _shared(common[0])
    source = shared.source
    there = place.found()
    if there is not None:
        if not _changed(source, indices, there.begun_ns):
            return there
        place.discard()
    told = 0.0

    def tell(done: int, total: int | None, nbytes: int) -> None:
        nonlocal told
        if board is not None and time.monotonic() - told > _TELL_EVERY_S:
            told = time.monotonic()
            board.tell.remote(_name(place), done, nbytes)

    def write(writer: PartialWriter) -> Mapping[str, Any]:
        run = Run(source, shared.encoder(), shared.on_error, shared.workers, tell)
        run.fill(writer, indices)
        return Noted(skipped=run.skipped, kept=run.kept).to_json()

    return place.make(write, classes=source.classes, metadata=metadata)


def lay_out(
    common: list[Any],
    metadata: Mapping[str, Any],
    place: ShardPlace,
    board: Any | None,
    *,
    pieces: Sequence[str],
    start: int,
    stop: int,
) -> Made:
    """Task: the shard at ``place``, of records of ``pieces``.

    Args:
        common, metadata, place, board: as of ``encode``.
        pieces: paths of pieces with records, in order.
        start, stop: which records, counted from the first of the first piece.
    """
    there = place.found()
    if there is not None:
        return there
    shared = _shared(common[0])

    def write(writer: PartialWriter) -> Mapping[str, Any]:
        if pieces:
            with place.opened(pieces) as store:
                run = Run(StoreSource(store), make_encoder("keep"), "raise", shared.workers, None)
                run.fill(writer, np.arange(start, stop))
        return {}

    return place.make(write, classes=shared.source.classes, metadata=metadata)


def _name(place: ShardPlace) -> str:
    """Of a task on the board."""
    return f"{place.store} {place.number}"


@functools.lru_cache(maxsize=1)
def _shared(reference: Any) -> Common:
    """The object of ``reference``, which this process fetches once."""
    found = ray_cluster.get(reference)
    assert isinstance(found, Common)
    return found


def _changed(source: Source, indices: np.ndarray, since_ns: int) -> bool:
    return source.identity is None and any(
        source.changed(index, since_ns) for index in indices.tolist()
    )


class Board:
    """An actor that the tasks tell how far they are."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, int]] = {}

    def tell(self, task: str, done: int, nbytes: int) -> None:
        """A task has done so many records. One that was started again tells anew."""
        self._told[task] = done, nbytes

    def read(self) -> dict[str, tuple[int, int]]:
        """Task -> its records and bytes."""
        return self._told


def _board(ray: Any) -> Any:
    return ray.remote(Board).options(num_cpus=0, max_restarts=-1).remote()


# --- the plan -------------------------------------------------------------------------------------


def _piece_bounds(total: int, sharding: Sharding) -> list[int]:
    """Where pieces of ``total`` samples begin, and the end."""
    if sharding.shards is not None:
        count = sharding.shards
        return [-(-number * total // count) for number in range(count + 1)]
    size = min(max(-(-total // _PIECES), _PIECE_LEAST), _PIECE_MOST)
    return [*range(0, total, size), total]


def _shard_bounds(pieces: Sequence[Made], sharding: Sharding) -> list[int]:
    """Where the shards of the records of ``pieces`` begin, and the end."""
    total = sum(piece.records for piece in pieces)
    if sharding.shards is not None:
        return [min(bound, total) for bound in _piece_bounds(sharding.total or 0, sharding)]
    assert sharding.shard_nbytes is not None  # ``check`` was called
    bounds, at, number, filled = [0], 0, 0, 0
    for piece in pieces:  # one by one: a set may have more records than fit in memory
        lengths = piece.lengths()
        room = sharding.shard_nbytes - piece.overhead
        numbers = fill(lengths, room, number=number, filled=filled)
        if not len(numbers):
            continue
        changes = np.flatnonzero(np.diff(numbers, prepend=number))
        bounds += [at + change for change in changes.tolist()]
        last = int(numbers[-1])
        filled = int(lengths[numbers == last].sum()) + (filled if last == number else 0)
        number, at = last, at + len(numbers)
    return [*bounds, total]


def _some(numbers: Iterator[int], most: int) -> Iterator[int]:
    for _, number in zip(range(most), numbers):
        yield number


def _result(ray: Any, reference: Any, place: ShardPlace) -> Made:
    """What a task returned.

    Raises:
        FastloadError: what the task raised, or that its process died too often.
    """
    try:
        found = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, FastloadError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        raise StoreError(
            f"the task that writes this shard was lost {_RETRIES + 1} times ({error}): see to its "
            "machines, and run the same command again",
            path=place.name,
        ) from error
    assert isinstance(found, Made)
    return found
