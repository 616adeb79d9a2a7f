"""EpochPlan: the order, the seeds and the error policy of one epoch, from which batch on."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import RandomSampler

from .._base.trace import Stamps
from ..errors import UsageError
from ..hints import OnError
from . import order as _order
from . import shard as _shard
from .bad_samples.policy import BadSamples
from .bad_samples.refill import Refill
from .config import LoaderConfig
from .cursor import EpochCursor, generators, replicas, stateful_sampler
from .order import SEQUENTIAL, Batches
from .progress import Progress
from .route import EngineRoute, Route, TorchRoute
from .shard import Shard


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """One epoch that is about to be iterated over.

    Attributes:
        route: who makes its batches.
        progress: counts them.
        known: the index batches that are left, where they are known already; else the sampler is
            asked.
        skip: how many index batches of the sampler to skip.
        resumed: whether another iteration began it.
        padding: how many of this rank's samples repeat others.
        repeats: whether an index may come more than once, and that matters.
        on_error: what becomes of bad samples, as far as this epoch allows it.
        refill: where batches are filled up from, or None.
        stamps: where times are added up.
        bad: where bad samples are counted.
    """

    route: Route
    progress: Progress
    known: Batches | None
    skip: int
    resumed: bool
    padding: int
    repeats: bool
    on_error: OnError
    refill: Refill | None
    stamps: Stamps
    bad: BadSamples
    _generators: tuple[torch.Generator, ...]

    def order(self, config: LoaderConfig) -> Callable[[], Iterable[Any]]:
        """What gives the iterator over the epoch's indices when called."""
        known, refill = self.known, self.refill
        if known is None and refill is not None:
            assert config.batch_size is not None
            return functools.partial(_all_drawn, config.sampler, config.batch_size, refill)
        if known is None:
            return functools.partial(_order.index_lists, config.index_sampler)
        if refill is not None:
            refill.order = lambda: known.indices
        if config.batch_sampler is None:
            return lambda: (int(batch[0]) for batch in known)
        return lambda: map(np.ndarray.tolist, known)

    def seeding(self, config: LoaderConfig) -> torch.Generator | None:
        """What torch draws the workers' seed from; None: its default generator.

        Workers that persist keep the seed of the run that is resumed: then the loader's generator,
        from which the order comes, has to stay where it is.
        """
        if self.progress.base_seed is None:
            return config.generator
        return torch.Generator().manual_seed(self.progress.base_seed)

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Within it, torch's generators stand where they stood when the epoch was begun.

        The global one is put back afterwards: it is the user's.
        """
        if not self.resumed:
            yield
            return
        own = torch.default_generator.get_state()
        for generator, state in zip(self._generators, self.progress.generators):
            if generator is not torch.default_generator or self.progress.begun:
                generator.set_state(state)
        try:
            yield
        finally:
            if self.progress.begun:
                torch.default_generator.set_state(own)
            self.progress.begin()


def plan(
    config: LoaderConfig, cursor: EpochCursor, route: Route, stamps: Stamps, *, number: int
) -> EpochPlan:
    """Plan epoch ``number``, or what is left of it where ``cursor`` has a state to resume.

    Raises:
        UsageError: the loader cannot resume that state, or its route cannot do what is asked.
    """
    resume, cursor.resume = cursor.resume, None
    if resume is not None and resume.epoch != number:
        resume = None  # another epoch was chosen since the state was loaded
    if isinstance(route, TorchRoute) and config.on_error != "raise":
        raise UsageError(
            f"on_error={config.on_error!r} needs in_order=True, and a dataset that is no "
            "DataPipe: there torch's own iterator runs, which raises what is raised"
        )
    shard = config.part()
    progress = cursor.blank(config, number, shard)
    progress.unordered = isinstance(route, TorchRoute)
    on_error = _possible(config, shard)
    known, padding, skip = None, 0, 0
    if resume is not None:
        _check(resume, progress, iterable=config.iterable)
        _take_over(config, progress, resume)
        if not config.iterable and progress.length is None:
            skip = resume.batches
    if progress.length is not None:
        progress.first = 0 if resume is None else resume.first
        lazy = type(config.sampler) in SEQUENTIAL and not isinstance(route, EngineRoute)
        if resume is not None or shard is not None or on_error == "refill" or not lazy:
            order = _shard.order(config.own_sampler)
            if on_error != "refill" and progress.refilled:
                order = order[: -progress.refilled]
            part, padding = (shard or Shard()).part(
                order, progress.first, drop_last=config.drop_last
            )
            known = Batches(part, config.batch_size or 1, config.drop_last)
            progress.length = len(part)
    refill = None
    if on_error == "refill" and not config.iterable:
        assert config.batch_size is not None, "single samples are skipped instead"
        refill = Refill(
            config.batch_size,
            drop_last=config.drop_last,
            limit=config.max_errors,
            spent=progress.refilled,
        )
    return EpochPlan(
        route=route,
        progress=progress,
        known=known,
        skip=skip,
        resumed=resume is not None,
        padding=padding,
        repeats=_repeats(config),
        on_error=on_error,
        refill=refill,
        stamps=stamps,
        bad=BadSamples(config.max_errors, progress.length),
        _generators=generators(config),
    )


def _take_over(config: LoaderConfig, progress: Progress, resume: Progress) -> None:
    """Let ``progress`` stand where ``resume`` does, and the user's sampler too."""
    progress.batches = resume.batches
    progress.refilled = resume.refilled
    progress.generators = resume.generators or progress.generators
    progress.base_seed = resume.base_seed
    progress.begun = resume.begun
    progress.workers, progress.before = list(resume.workers), list(resume.before)
    progress.turn = resume.turn
    progress.sampler = resume.sampler
    sampler = stateful_sampler(config)
    if resume.sampler is not None and sampler is not None:
        sampler.load_state_dict(resume.sampler)


def _repeats(config: LoaderConfig) -> bool:
    """Whether it matters, and may be, that an index comes more than once in an epoch."""
    if config.seed is None or config.iterable:
        return False
    sampler = config.sampler
    once = type(sampler) is RandomSampler and not sampler.replacement
    return not (config.own_order or once)


def _check(resume: Progress, now: Progress, *, iterable: bool) -> None:
    """Raise UsageError where an iteration like ``now`` cannot resume ``resume``."""
    facts: dict[str, tuple[int | None, int | None]] = {
        "seed": (resume.seed, now.seed),
        "number of samples": (resume.total, now.total),
    }
    if now.length is None and resume.begun and not iterable:
        # What the sampler gave is counted in batches, and only it knows its order.
        facts["batch_size"] = resume.batch_size, now.batch_size
        facts["world_size"] = resume.world_size, now.world_size
    for name, (then, here) in facts.items():
        if then != here:
            raise UsageError(
                f"the state was saved with another {name}: expected {then}, got {here}; make the "
                "loader as it was made then, or begin the epoch anew with set_epoch"
            )


def _possible(config: LoaderConfig, shard: Shard | None) -> OnError:
    """``on_error``; in the place of "refill" what comes next to it, where that is impossible.

    Single samples can only be skipped. Where there are several ranks, all have to come to the
    same number of batches, or the others wait for one for ever: no epoch may get shorter.
    """
    if config.on_error != "refill":
        return config.on_error
    ranks = [shard or Shard(), _shard.distributed() or Shard()]
    if max(replicas(config), *(one.world_size for one in ranks)) > 1:
        return "replace"
    return "skip" if config.batch_size is None else "refill"


def _all_drawn(sampler: Any, size: int, refill: Refill) -> Iterator[list[Any]]:
    """The batches of a sampler whose order is known as a whole when the first one is wanted."""
    indices = _order.all_of(sampler)
    refill.order = lambda: indices
    for begin in range(0, len(indices), size):
        yield indices[begin : begin + size]
