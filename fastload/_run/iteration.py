"""EpochIterator: what ``iter`` of a FastLoader gives.

An epoch begins with ``iter``, as in torch: that is when random numbers are drawn and workers start.
But trainers may ask for the iterator before they say which epoch comes: Lightning does when it
resumes after the end of an epoch. Where another epoch was chosen before the first batch, the one
that was begun ends, torch's generators go back to where they stood, and the other one begins.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from .._base.timeline import Timeline
from .._base.trace import Observed, Stamps
from . import engine_run, epoch, route
from .config import LoaderConfig
from .cursor import EpochCursor, generators
from .delivery import delivery
from .epoch import EpochPlan
from .measured import Measured
from .resources import Resources
from .route import EngineRoute, TorchRoute
from .stream import BatchStream


@dataclasses.dataclass(frozen=True, kw_only=True)
class Iteration:
    """What the iterator over an epoch needs of its loader, which it must not keep alive.

    Attributes:
        config: the arguments as they stand.
        resources: what the loader keeps.
        cursor: which epoch it is at.
        timeline: where the epoch is written down, or None.
        length: batches of the epoch, where the loader divides it among ranks; else None.
        reported: the length that an IterableDataset gave when it was asked, or None.
        torchs: gives torch's own iterator; None when the loader is gone.
    """

    config: LoaderConfig
    resources: Resources
    cursor: EpochCursor
    timeline: Timeline | None
    length: int | None
    reported: int | None
    torchs: Callable[[], Iterator[Any] | None]


class Iterable(Protocol):
    """A loader that can be iterated over once more."""

    def _iteration(self) -> Iteration: ...


class EpochIterator(BatchStream):
    """The batches of one epoch; of another one, if that is chosen before the first batch.

    It has the attributes of the stream inside, so that what torch's iterators have is found here
    too where torch's machinery runs.

    Args:
        iteration: the epoch; it does not refer to the loader.
    """

    def __init__(self, iteration: Iteration) -> None:
        self._stream: BatchStream = _Ended()
        self._begin(iteration)

    def _reset(self, loader: Iterable, first_iter: bool = False) -> None:
        """Begin the next epoch: what torch calls where an iterator persists with its workers."""
        self.close()
        self._begin(loader._iteration())

    def _begin(self, iteration: Iteration) -> None:
        self._iteration = iteration
        resources, cursor = iteration.resources, iteration.cursor
        self._before = resources.inner, resources.torchs, cursor.base_seed
        self._states = [generator.get_state() for generator in generators(iteration.config)]
        self._stream = _stream(iteration)
        assert cursor.progress is not None
        self._begun = cursor.progress
        self._waits = True  # for its first batch
        self._process = os.getpid()

    def __next__(self) -> Any:
        if self._waits:
            self._settle()
        return next(self._stream)

    def _settle(self) -> None:
        """See which epoch the first batch is to be of."""
        self._waits = False
        if os.getpid() != self._process:
            return
        iteration, cursor = self._iteration, self._iteration.cursor
        if not cursor.another(iteration.config, self._begun):
            cursor.settle(iteration.config, self._begun)
            return
        self.close()
        resources = iteration.resources
        inner, torchs, base_seed = self._before
        if resources.inner is not inner or resources.torchs is not torchs:
            resources.end_workers()  # they were seeded with what was drawn
        if cursor.resume is None:
            cursor.base_seed = base_seed
        own = torch.default_generator.get_state()
        for generator, state in zip(generators(iteration.config), self._states):
            generator.set_state(state)
        try:
            self._stream = _stream(iteration)
        finally:
            torch.default_generator.set_state(own)  # the user's

    def __len__(self) -> int:
        return len(self._stream)

    def ready(self) -> bool:
        """As in BatchStream."""
        return self._stream.ready()

    def close(self) -> None:
        """As in BatchStream; its worker processes end, unless they persist."""
        self._stream.close()
        self._stream = _Ended()

    def __getattr__(self, name: str) -> Any:
        if name == "_stream":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._stream, name)

    def __reduce__(self) -> Any:
        return self._stream.__reduce__()


class _Ended(BatchStream):
    """The batches of an epoch that was closed: there are no more."""

    def __next__(self) -> Any:
        raise StopIteration

    def __len__(self) -> int:
        return 0

    def ready(self) -> bool:
        return True

    def close(self) -> None:
        pass


def _stream(iteration: Iteration) -> BatchStream:
    """Begin the next epoch."""
    config, resources, cursor = iteration.config, iteration.resources, iteration.cursor
    number = cursor.begin(config)
    stamps = Stamps(iteration.timeline)
    found = route.find(config)
    plan = epoch.plan(config, cursor, found, stamps, number=number)
    cursor.progress = plan.progress
    native = isinstance(found, EngineRoute)
    resources.measured = Measured(native=native, stamps=stamps, bad=plan.bad, padding=plan.padding)
    with plan.drawing():
        return delivery.deliver(config, resources, cursor, plan, _made(iteration, plan))


def _made(iteration: Iteration, plan: EpochPlan) -> BatchStream:
    """The batches as their route makes them, in host memory."""
    config, resources, cursor = iteration.config, iteration.resources, iteration.cursor
    if isinstance(plan.route, EngineRoute):
        return engine_run.stream(
            config, resources, cursor, plan, plan.route.source, length=iteration.length
        )
    if isinstance(plan.route, TorchRoute):
        found = iteration.torchs()
        return _Ended() if found is None else Observed(found, plan.stamps)
    from .workers import run

    return run.stream(config, resources, cursor, plan, reported=iteration.reported)
