"""``pack(..., ray=...)``: Ray tasks write the shards, this process the manifest.

A task writes one of the ``shards``, of consecutive samples of the source. The bytes are those that
one machine writes: what a shard depends on beside its own records is the index of its first record
in the store, and the store's first key. Where samples are left out, a shard has fewer records,
while one machine would move up those that follow.

A finished shard is a folder (``storage/shard_set.py``, ``_url_shards.py``), which a later run
finds. If a machine dies, Ray starts its tasks again on another one. Tasks write where all machines
see it, so only reports travel to this process.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .._base import ray_cluster
from .._base.progress_bar import Progress
from ..errors import FastloadError, StoreError, UsageError
from ..hints import Compression, OnPackError
from ..storage._local import is_url
from ..storage._shards import Sharding, ShardStart
from ..storage._writer import PartialWriter
from ..storage.shard_set import FinishedShard, ShardPlace, ShardSet, format_apart
from ._encoders import Encoder
from ._report import PackedPart, Skipped, no_images
from ._run import PackJob, Run
from ._source import PackSource
from ._url_shards import UrlShardSet

_RETRIES = 8  # of a task whose process or machine died
_TELL_EVERY_S = 0.5  # the progress of a task
_LOOK_EVERY_S = 1.0  # at the progress of all
_IN_FLIGHT = 2  # tasks that wait or run, for each CPU of the cluster


@dataclasses.dataclass(frozen=True, kw_only=True)
class Common:
    """What all tasks need. Every process that runs tasks gets it once.

    ``encoder`` makes the encoder, whose functions cannot be sent.
    """

    source: PackSource
    encoder: Callable[[], Encoder]
    on_error: OnPackError
    workers: int


def check(
    path: str, source: PackSource, sharding: Sharding, compression: Compression | None
) -> None:
    """Raise UsageError unless tasks can write shards of ``source`` into the store ``path``."""
    format_apart(path)
    if compression is not None:
        raise UsageError("expected shards or a compression, got both: compress single files")
    if source.streamed:
        raise UsageError(
            f"ray: {source.path} is read from start to end, so it cannot be divided among tasks: "
            "pack it on one machine"
        )
    if sharding.shards is None:
        raise UsageError(
            "ray: expected shards=... (--shards) with it, because each task writes one of them"
        )


class RayTasks:
    """Runs the tasks of one call of ``pack``: ``total`` records of all stores."""

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
        self._board = None
        if progress is not None:
            board = ray.remote(ProgressBoard).options(num_cpus=0, max_restarts=-1)
            self._board = board.remote()
        self._told: dict[str, tuple[int, int]] = {}  # task -> its records and bytes
        self._done: dict[str, tuple[int, int]] = {}  # the same of finished tasks

    def write(self, jobs: Sequence[PackJob], sharding: Sharding) -> tuple[list[PackedPart], Noted]:
        """Write the stores of ``jobs``. Raises DecodeError if all of their samples are left out."""
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
            made = [self._made(*one) for one in begun]
            finished = [shard for _, of_store in made for shard in of_store]
            noted = Noted.of(finished)
            if noted.skipped and not any(shard.records for shard in finished):
                for shards, _, _ in begun:
                    shards.close(keep=False)
                raise no_images(noted.skipped)
            parts = []
            for (shards, job, _), (resumed, of_store) in zip(begun, made):
                nbytes = sum(shard.nbytes for shard in of_store)
                parts.append(PackedPart.of(job.path, shards.commit(of_store), nbytes, resumed))
            return parts, noted

    def _made(
        self, shards: ShardSet | UrlShardSet, job: PackJob, sharding: Sharding
    ) -> tuple[int, list[FinishedShard]]:
        """All shards of a store, and how many of their records an earlier run has written."""
        key = self._common.source.key(int(job.indices[0])) if len(job.indices) else ""
        count = sharding.shards
        assert count is not None  # ``check`` was called
        bounds = [-(-number * len(job.indices) // count) for number in range(count + 1)]
        places = [
            shards.place(number, count, ShardStart(first=start, first_key=key))
            for number, start in enumerate(bounds[:-1])
        ]
        parts = [job.indices[start:stop] for start, stop in itertools.pairwise(bounds)]
        there = [place.found() for place in places]
        made = self._run(job, places, parts)
        resumed = sum(
            old.records for old, new in zip(there, made) if old is not None and old == new
        )
        return resumed, made

    def _run(
        self, job: PackJob, places: Sequence[ShardPlace], parts: Sequence[np.ndarray]
    ) -> list[FinishedShard]:
        """What ``encode`` returns for each of ``places``, whose shard is of the samples ``parts``.

        Raises the first error of a task, after the others have ended.
        """
        ray = self._ray
        metadata = job.metadata(self._common.source)
        remote = ray.remote(encode).options(
            num_cpus=self._common.workers, max_retries=_RETRIES, scheduling_strategy="SPREAD"
        )
        made: list[FinishedShard | None] = [None] * len(places)
        running: dict[Any, int] = {}
        waiting = iter(range(len(places)))
        try:
            while True:
                room = max(_IN_FLIGHT * int(ray.cluster_resources().get("CPU", 1)), 4)
                for number in itertools.islice(waiting, max(0, room - len(running))):
                    given = [self._reference], metadata, places[number], parts[number], self._board
                    running[remote.remote(*given)] = number
                if not running:
                    return [one for one in made if one is not None]
                ready, _ = ray.wait(list(running), num_returns=1, timeout=_LOOK_EVERY_S)
                for reference in ready:
                    number = running.pop(reference)
                    shard = made[number] = _result(ray, reference, places[number])
                    self._done[_name(places[number])] = len(parts[number]), shard.nbytes
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
        progress = {**self._told, **self._done}
        done = sum(records for records, _ in progress.values())
        self._progress(done, self._total, sum(nbytes for _, nbytes in progress.values()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noted:
    """What tasks note about their shards: ``skipped`` and ``kept`` of ``PackReport``."""

    skipped: list[Skipped]
    kept: collections.Counter[str]

    @classmethod
    def of(cls, shards: Sequence[FinishedShard]) -> Noted:
        noted = cls(skipped=[], kept=collections.Counter())
        for shard in shards:
            noted.skipped.extend(Skipped(**file) for file in shard.noted["skipped"])
            noted.kept.update(shard.noted["kept"])
        return noted

    def to_json(self) -> dict[str, Any]:
        return {
            "skipped": [dataclasses.asdict(file) for file in self.skipped],
            "kept": dict(self.kept.most_common()),
        }


# --- tasks: these run on any machine --------------------------------------------------------------


def encode(
    common: list[Any],
    metadata: Mapping[str, Any],
    place: ShardPlace,
    indices: np.ndarray,
    board: Any | None,
) -> FinishedShard:
    """Task: the shard at ``place``, of the samples ``indices``.

    ``common`` is a reference to ``Common``, in a list, so that Ray does not fetch it for every
    task. ``board`` is told about progress.
    """
    shared = _shared(common[0])
    source = shared.source
    there = place.found()
    if there is not None:
        if not any(source.changed(index, there.begun_ns) for index in indices.tolist()):
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


def _name(place: ShardPlace) -> str:
    """Of a task on the board."""
    return f"{place.store} {place.number}"


@functools.lru_cache(maxsize=1)
def _shared(reference: Any) -> Common:
    """The object of ``reference``, which this process fetches once."""
    common = ray_cluster.get(reference)
    assert isinstance(common, Common)
    return common


class ProgressBoard:
    """An actor that the tasks tell how far they are."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, int]] = {}

    def tell(self, task: str, done: int, nbytes: int) -> None:
        """A task has done so many records. One that was started again tells anew."""
        self._told[task] = done, nbytes

    def read(self) -> dict[str, tuple[int, int]]:
        return self._told


def _result(ray: Any, reference: Any, place: ShardPlace) -> FinishedShard:
    try:
        made = ray.get(reference)
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
    assert isinstance(made, FinishedShard)
    return made
