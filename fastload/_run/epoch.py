"""The beginning of an epoch: in which order, from which batch on, and which part is this rank's."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, RandomSampler

from .._sources.packed import PackedDataset
from ..errors import UsageError
from ..hints import OnError
from . import accelerate
from . import order as _sampler
from . import shard as _shard
from .bad_samples.refill import Refill
from .order import SEQUENTIAL, Batches, EpochSampler, SeededSampler
from .progress import Position, Progress
from .shard import Shard


@dataclasses.dataclass(frozen=True, kw_only=True)
class Epoch:
    """One epoch that is about to be iterated over.

    Attributes:
        progress: counts it.
        known: the index batches that are left, where this module made them; else the sampler is
            asked.
        skip: index batches of the sampler to leave out.
        resumed: whether it was begun by another iteration.
        padding: how many of this rank's samples repeat others.
        on_error: what becomes of bad samples, as far as this epoch allows it.
        refill: where batches are filled up from, or None.
    """

    progress: Progress
    known: Batches | None
    skip: int
    resumed: bool
    padding: int
    on_error: OnError
    refill: Refill | None
    _generators: tuple[torch.Generator, ...]

    def order(self, loader: Any) -> Callable[[], Any]:
        """What gives the iterator over the epoch's indices when called."""
        known, refill = self.known, self.refill
        if known is None and refill is not None:
            return functools.partial(_drawn_at_once, loader.sampler, loader.batch_size, refill)
        if known is None:
            sampler = loader._index_sampler  # not the loader: it owns what will hold this
            return functools.partial(_sampler.index_lists, sampler)
        if refill is not None:
            refill.order = lambda: known.indices
        if loader.batch_sampler is None:
            return lambda: (int(batch[0]) for batch in known)
        return lambda: map(np.ndarray.tolist, known)

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


def number(loader: Any) -> int:
    """The epoch that begins now."""
    sampler, epoch = loader._epoch_sampler(), coming(loader)
    if isinstance(sampler, EpochSampler):
        sampler.begin(epoch)
    else:
        now = told(loader)
        if now is not None:
            loader._sampler_epoch = now
    if loader.seed is not None and isinstance(loader.dataset, PackedDataset):
        loader.dataset.set_epoch(epoch)
    loader._next_epoch, loader._told = epoch + 1, False
    return epoch


def coming(loader: Any) -> int:
    """The epoch that would begin now; whoever set it last, on loader or sampler, decides."""
    sampler, epoch = loader._epoch_sampler(), int(loader._next_epoch)
    if accelerate.prepared(loader):
        return epoch
    if isinstance(sampler, EpochSampler):
        return sampler.coming(epoch)
    now = told(loader)
    return epoch if now is None or now == loader._sampler_epoch else now


def passed_over(loader: Any, progress: Progress) -> bool:
    """Whether another epoch was chosen before the first batch of this one."""
    return not (progress.since or progress.unordered) and another(loader, progress)


def another(loader: Any, begun: Progress) -> bool:
    """Whether loader or sampler were told another epoch than ``begun``, which began last.

    A state that was loaded since is another one, even of the same epoch: it is gone on with.
    """
    newest: Progress | None = loader._progress
    if newest is not begun:
        return False  # it is the iteration which began after it that is told
    if loader._resume is not None:
        return True
    epoch: int = loader._next_epoch if loader._told else begun.epoch
    if accelerate.prepared(loader):
        return epoch != begun.epoch
    sampler = loader._epoch_sampler()
    if isinstance(sampler, EpochSampler):
        return sampler.coming(epoch) != begun.epoch
    return epoch != begun.epoch or told(loader) != begun.sampler_epoch


def settle(loader: Any, begun: Progress) -> None:
    """``begun`` stays what it is; that its own epoch was chosen says nothing of the next one."""
    if loader._progress is begun:
        loader._next_epoch, loader._told = begun.epoch + 1, False
        if isinstance(loader._epoch_sampler(), EpochSampler):
            loader._epoch_sampler().forget()


def begin(loader: Any, epoch: int, resume: Progress | None, shard: Shard | None) -> Epoch:
    """Begin ``epoch`` of ``loader``, a FastLoader, or go on with ``resume``.

    Raises UsageError where ``loader`` cannot go on with it.
    """
    progress = blank(loader, epoch, shard)
    on_error = _possible(loader, shard)
    known, padding, skip = None, 0, 0
    if resume is not None:
        _check(resume, progress, iterable=isinstance(loader.dataset, IterableDataset))
        progress.batches = resume.batches
        progress.refilled = resume.refilled
        progress.generators = resume.generators or progress.generators
        progress.base_seed = resume.base_seed
        progress.begun = resume.begun
        progress.workers, progress.before = list(resume.workers), list(resume.before)
        progress.turn = resume.turn
        progress.sampler = resume.sampler
        if resume.sampler is not None:
            _stateful(loader).load_state_dict(resume.sampler)
        if not isinstance(loader.dataset, IterableDataset) and progress.length is None:
            skip = resume.batches
    if progress.length is not None:
        progress.first = 0 if resume is None else resume.first
        lazy = type(loader.sampler) in SEQUENTIAL and not loader._native
        if resume is not None or shard is not None or on_error == "refill" or not lazy:
            order = _shard.order(loader.sampler)
            if on_error != "refill" and progress.refilled:
                order = order[: -progress.refilled]
            part, padding = (shard or Shard()).part(
                order, progress.first, drop_last=loader.drop_last
            )
            known = Batches(part, loader.batch_size or 1, loader.drop_last)
            progress.length = len(part)
    refill = None
    if on_error == "refill" and not isinstance(loader.dataset, IterableDataset):
        refill = Refill(
            loader.batch_size,
            drop_last=loader.drop_last,
            limit=loader.max_errors,
            spent=progress.refilled,
        )
    return Epoch(
        progress=progress,
        known=known,
        skip=skip,
        resumed=resume is not None,
        padding=padding,
        on_error=on_error,
        refill=refill,
        _generators=generators(loader),
    )


def counts(loader: Any) -> bool:
    """Whether it matters, and may be, that an index comes more than once in an epoch."""
    if loader.seed is None or isinstance(loader.dataset, IterableDataset):
        return False
    sampler = loader.sampler
    once = type(sampler) is RandomSampler and not sampler.replacement
    return not (loader._own_order or once)


def blank(loader: Any, epoch: int, shard: Shard | None) -> Progress:
    """The progress of an epoch that nothing is consumed of."""
    sampler = loader.sampler
    # Beside a batch_sampler of the user's torch's loader has no batch_size, and a sampler that
    # nobody asks.
    ours = type(sampler) in (SeededSampler, *SEQUENTIAL) and (
        loader.batch_sampler is None or loader.batch_size is not None
    )
    stateful = _stateful(loader)
    persistent = loader.persistent_workers and loader.num_workers > 0
    world_size = shard.world_size if shard else _replicas(loader)
    return Progress(
        epoch=epoch,
        length=len(sampler) if ours else None,
        total=len(sampler) if ours else None,
        batch_size=loader.batch_size,
        world_size=world_size,
        seed=loader.seed,
        generators=[generator.get_state() for generator in generators(loader)],
        sampler=None if stateful is None else copy.deepcopy(stateful.state_dict()),
        sampler_epoch=told(loader),
        base_seed=loader._base_seed if persistent else None,
        before=_outlived(loader),
    )


def _outlived(loader: Any) -> list[Position]:
    """Where the datasets stood when the last epoch ended, if the next one finds them so.

    Those of workers that do not persist end with their epoch.
    """
    last: Progress | None = loader._progress
    count = loader.num_workers
    if last is None or (count and not loader.persistent_workers):
        return []
    known = last.workers if last.ended else last.before
    stateful = len(known) == max(count, 1) and any(position.state for position in known)
    return list(known) if stateful else []


def seeding(loader: Any, progress: Progress) -> torch.Generator | None:
    """What torch draws the workers' seed from.

    Workers that persist had theirs drawn before, in the run that goes on here too: the loader's
    generator, from which the order comes, has to stay where it is.
    """
    if progress.base_seed is None:
        return loader.generator  # type: ignore[no-any-return]
    return torch.Generator().manual_seed(progress.base_seed)


def tell(loader: Any, epoch: int | None) -> None:
    """Tell the user's sampler which epoch it had been told when a state was taken.

    A trainer may ask for the order of the epoch it goes on with before it says which one that is.
    """
    if isinstance(loader._epoch_sampler(), EpochSampler):
        loader._epoch_sampler().forget()  # what it was told before the state was loaded
    sampler = _keeper(loader)
    if sampler is not None and epoch is not None:
        sampler.set_epoch(epoch)
        loader._sampler_epoch = epoch


def told(loader: Any) -> int | None:
    """The epoch that the user's sampler was told; None where it keeps none."""
    epoch: int | None = getattr(_keeper(loader), "epoch", None)
    return epoch


def _keeper(loader: Any) -> Any:
    """The user's sampler that keeps an epoch; None for ours, which is told each time."""
    for part in (loader.batch_sampler, loader._epoch_sampler()):
        known = isinstance(getattr(part, "epoch", None), int) and hasattr(part, "set_epoch")
        if known and not isinstance(part, EpochSampler):
            return part
    return None


def _check(resume: Progress, now: Progress, *, iterable: bool) -> None:
    """Raise UsageError where an iteration like ``now`` cannot go on with ``resume``."""
    facts: dict[str, tuple[Any, Any]] = {
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


def _possible(loader: Any, shard: Shard | None) -> OnError:
    """``on_error``; in the place of "refill" what comes next to it, where that is impossible.

    Single samples can only be left out. Where there are several ranks, all have to come to the
    same number of batches, or the others wait for one for ever: no epoch may get shorter.
    """
    on_error: OnError = loader.on_error
    if on_error != "refill":
        return on_error
    ranks = [shard or Shard(), _shard.distributed() or Shard()]
    if max(_replicas(loader), *(one.world_size for one in ranks)) > 1:
        return "replace"
    return "skip" if loader.batch_size is None else "refill"


def _replicas(loader: Any) -> int:
    """Ranks that the user's sampler divides the epoch among, itself or inside a batch sampler."""
    for part in (loader.batch_sampler, loader._epoch_sampler()):
        if hasattr(part, "num_replicas"):
            return int(part.num_replicas)
    return 1


def _drawn_at_once(sampler: Any, size: int, refill: Refill) -> Iterator[list[Any]]:
    """The batches of a sampler whose order is known as a whole when the first one is wanted."""
    indices = _sampler.all_of(sampler)
    refill.order = lambda: indices
    for begin in range(0, len(indices), size):
        yield indices[begin : begin + size]


def _stateful(loader: Any) -> Any:
    """The user's sampler, where it has a state; None for the others and for torch's."""
    if isinstance(loader.dataset, IterableDataset):
        return None
    for part in (loader.batch_sampler, loader.sampler):
        if hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
            return part
    return None


def generators(loader: Any) -> tuple[torch.Generator, ...]:
    """torch's generators that the order may be drawn from: the loader's and the sampler's."""
    of_loader = loader.generator or torch.default_generator
    sampler = getattr(loader._epoch_sampler(), "generator", None) or torch.default_generator
    return (of_loader,) if sampler is of_loader else (of_loader, sampler)
