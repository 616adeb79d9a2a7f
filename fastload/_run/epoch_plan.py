"""EpochPlan: the order, seeds and error policy of one epoch, and the batch that it starts at."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from .._base.indices import repeats_within
from .._base.timeline import active
from .._base.trace import Stamps
from .._sources.kinds import fetched
from ..errors import UsageError
from ..hints import OnError
from . import accelerate, drawing
from . import shard as _shard
from .bad_samples.policy import BadSamples
from .config import LoaderConfig
from .cursor import EpochCursor, generators, replicas, stateful_sampler
from .drawing import IndexCounter
from .measurements import Measurements
from .order import Batches
from .progress import Progress, Unsaved
from .route import EngineRoute, Route, TorchRoute
from .shard import Shard

if TYPE_CHECKING:
    from .bad_samples.refill import Refill


class EpochPlan(NamedTuple):
    """One epoch that is about to be iterated over.

    Attributes:
        config: the loader's arguments as it begins.
        shard: this process's rank, if the loader divides the epoch among ranks.
        known: the remaining index batches, if they are known in advance; else None, and the sampler
            is iterated.
        times: how often each sample of this rank came before in the epoch; None: this is counted.
        skip: how many index batches of the sampler to skip.
        resumed: whether the epoch resumes a checkpoint.
        repeats: whether indices may repeat and their random numbers depend on it.
        on_error: how bad samples are handled, as far as this epoch allows it.
        refill: gives the samples that refill batches, or None.
    """

    config: LoaderConfig
    route: Route
    shard: Shard | None
    progress: Progress
    known: Batches | None
    times: np.ndarray | None
    skip: int
    resumed: bool
    repeats: bool
    on_error: OnError
    refill: Refill | None
    measurements: Measurements

    def order(self) -> Callable[[], Iterator[Any]]:
        """A function that begins the epoch: its indices, in the form that the sampler has.

        Do not call ``iter`` of what it returns: a user's iterator may start again then.
        """
        config, known, refill = self.config, self.known, self.refill
        if refill is not None and self.repeats:
            refill.times = functools.partial(self._times_of, refill)
        if known is None and refill is not None:
            assert config.batch_size is not None and config.sampler is not None
            return functools.partial(_all_drawn, config.sampler, config.batch_size, refill)
        if known is None:
            return functools.partial(drawing.index_lists, config.index_sampler)
        if refill is not None:
            refill.order = lambda: known.indices
        if config.batch_sampler is None:
            return lambda: (int(batch[0]) for batch in known)
        return lambda: map(np.ndarray.tolist, known)

    def _times_of(self, refill: Refill) -> Sequence[int] | np.ndarray:
        """How often each index of the order that is refilled came before."""
        if self.times is not None:
            return self.times
        order = refill.order()
        return IndexCounter().count(list(order)) or [0] * len(order)

    def seeding(self) -> torch.Generator | None:
        """The generator that torch draws the workers' seed from; None: its default generator.

        If persistent workers are resumed, they get the seed that they had. It must not be drawn
        from the loader's generator, which the order is drawn from.
        """
        if self.progress.base_seed is None:
            return self.config.generator
        return torch.Generator().manual_seed(self.progress.base_seed)

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Within it, torch's generators have the states from the start of the epoch resumed.

        Afterwards the global generator, which is the user's, gets its own state back.
        """
        users_state = torch.default_generator.get_state()
        for generator, state in zip(generators(self.config), self.progress.generators):
            if generator is not torch.default_generator or self.progress.order_drawn:
                _set_state(generator, state)
        try:
            yield
        finally:
            if self.progress.order_drawn:
                torch.default_generator.set_state(users_state)
            self.progress.mark_drawn()


def _set_state(generator: torch.Generator, state: torch.Tensor) -> None:
    try:
        generator.set_state(state)
    except RuntimeError as error:  # of another device's generator, or damaged
        raise UsageError(
            f"load_state_dict: the state of a generator does not fit this one ({error}): use "
            "another checkpoint"
        ) from error


def plan(
    config: LoaderConfig,
    cursor: EpochCursor,
    route: Route,
    *,
    number: int,
    states: Sequence[torch.Tensor],
) -> EpochPlan:
    """Plan epoch ``number``, or the rest of it if ``cursor`` has a state to resume.

    Raises UsageError if the loader cannot resume that state, or its route lacks what is asked
    for.
    """
    resume, cursor.resume = cursor.resume, None
    if resume is not None and resume.epoch != number:
        resume = None  # another epoch was chosen since the state was loaded
    shard = config.part()
    if isinstance(route, TorchRoute):
        _check_torch(config, shard)
    progress = cursor.at_start(config, number, shard, states)
    progress.unordered = isinstance(route, TorchRoute)
    on_error = config.on_error
    if on_error == "refill":
        on_error = _instead_of_refill(config, shard)
    known: Batches | None = None
    times, padding, skip = None, 0, 0
    if resume is not None:
        divided = progress.length is None and resume.order_drawn and not config.iterable
        resume.facts.check(progress.facts, divided=divided)
        _restore(config, progress, resume)
        if not config.iterable and progress.length is None:
            skip = resume.batches
    if progress.length is not None:
        progress.first = 0 if resume is None else resume.first
        # What is lazy is drawn by torch's own samplers, unless a part of it is wanted.
        drawn = config.order.lazy and not isinstance(route, EngineRoute)
        if not drawn or resume is not None or shard is not None or on_error == "refill":
            part = config.order.part(
                config.division(shard)._replace(
                    first=progress.first,
                    spent=0 if on_error == "refill" else progress.refilled,
                ),
                functools.partial(_records, route),
            )
            known, times, padding = part.batches, part.times, part.padding
            progress.length = part.length
    elif config.epochs.known and config.epochs.repeats:
        # accelerate divides its batches: the same as above, for the samples that this rank takes.
        order = config.epochs.permutation()
        taken = accelerate.places(config.batch_sampler, len(order))
        times = None if taken is None else repeats_within(_records(route, order))[taken]
    samples = progress.length
    if progress.facts.grouping is not None and known is not None:
        samples = len(known.indices)
    refill = None
    if on_error == "refill" and not config.iterable:
        from .bad_samples.refill import Refill

        assert config.batch_size is not None, "for single samples on_error is 'skip' by now"
        refill = Refill(
            config.batch_size,
            drop_last=config.drop_last,
            limit=config.max_errors,
            spent=progress.refilled,
            number=skip,
        )
    return EpochPlan(
        config=config,
        route=route,
        shard=shard,
        progress=progress,
        known=known,
        times=times,
        skip=skip,
        resumed=resume is not None,
        # Random numbers depend on the repetition.
        repeats=config.seed is not None and not config.iterable and config.order.repeats,
        on_error=on_error,
        refill=refill,
        measurements=Measurements(
            native=isinstance(route, EngineRoute),
            stamps=Stamps(active()),
            bad=BadSamples(config.max_errors, samples),
            remote=fetched(config.dataset),
            padding=padding,
        ),
    )


def _check_torch(config: LoaderConfig, shard: Shard | None) -> None:
    """Raise UsageError for what torch's own iterator cannot do."""
    if config.on_error != "raise":
        raise UsageError(
            f"on_error={config.on_error!r} needs in_order=True and a dataset that is no DataPipe: "
            "otherwise torch's own iterator runs, which raises every error"
        )
    if shard is not None and shard.world_size > 1:
        raise UsageError(
            "shard: expected in_order=True and a dataset that is no DataPipe: otherwise torch's "
            "own iterator runs, which would read every sample on every rank; pass a "
            "DistributedSampler"
        )


def _restore(config: LoaderConfig, progress: Progress, resume: Progress) -> None:
    """Bring ``progress`` and the user's sampler to where ``resume`` was saved."""
    progress.batches = resume.batches
    progress.refilled = resume.refilled
    progress.generators = resume.generators or progress.generators
    progress.base_seed = resume.base_seed
    progress.order_drawn = resume.order_drawn
    progress.positions = resume.positions.copied()
    progress.sampler = resume.sampler
    sampler = stateful_sampler(config)
    if sampler is not None and not isinstance(resume.sampler, (Unsaved, type(None))):
        sampler.load_state_dict(resume.sampler)


def _records(route: Route, order: np.ndarray) -> np.ndarray:
    """What ``order`` may repeat: records where an engine reads them, else indices."""
    return route.source.lookup(order) if isinstance(route, EngineRoute) else order


def _instead_of_refill(config: LoaderConfig, shard: Shard | None) -> OnError:
    """The closest alternative to "refill" where that is impossible.

    Single samples can only be skipped. Several ranks need equal numbers of batches, or a rank would
    wait for the others forever, so no rank's epoch may get shorter: bad samples are replaced.
    """
    ranks = [shard or Shard(), _shard.distributed() or Shard()]
    if max(replicas(config), *(one.world_size for one in ranks)) > 1:
        return "replace"
    return "skip" if config.batch_size is None else "refill"


def _all_drawn(sampler: Iterable[Any], size: int, refill: Refill) -> Iterator[list[Any]]:
    """The batches of ``sampler``, whose whole order is drawn when the first one is asked for."""
    indices = drawing.all_indices(sampler)
    refill.order = lambda: indices
    for begin in range(0, len(indices), size):
        yield indices[begin : begin + size]
