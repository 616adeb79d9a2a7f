"""Fetcher: makes the batches of a user's Dataset. ``task_fetcher.py`` has that of a worker process.

It does what torch's fetching does, sample for sample. In addition it handles bad samples
(``bad_samples/policy.py``), seeds random numbers by (seed, epoch, index), and collates batches
straight into the slab of their task. ``resumable.py`` has what concerns iterable and stateful
datasets.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import ConcatDataset, Subset

from ..._base import randomness
from ..._base.derived import derived
from ..._base.machine import cpu
from ..._base.own_generators import OwnSeeds
from ..._base.slabs import SlabRing
from ..._base.trace import Clock
from ..._base.value_class import value_class
from ..._sources.collate import Collate, ReadyBatch, collate
from ..._sources.deferred import thread_state
from ..._sources.deferred.needed import has_tensors
from ..._sources.deferred.within import InnerIterators, Making
from ..._sources.kinds import is_packed_itself
from ...hints import OnError, OnErrorName
from ..bad_samples import policy
from ..bad_samples.policy import BadSample
from ..maker import Outcome
from ..measurements import Report
from ..progress import Position
from .choice import Choice
from .deferral import Deferral
from .placed_rows import PlacedRows, SlabBatch, WarmBatch, worth_placing

if TYPE_CHECKING:
    from ..._sources.joined import Joined
    from ..._sources.packed import PackedDataset
    from .resumable import Resumable
    from .transport import Packer


class Wanted(NamedTuple):
    """A batch that is to be made.

    Attributes:
        indices, epoch, repeats: as in ``Task``.
        begin_ns: when its making begins (perf_counter_ns).
        worker: id of this worker.
        packer: packs it for another process; None: it stays here.
        number: of the task; None: there is none.
    """

    indices: Any
    epoch: int
    repeats: list[int] | None
    begin_ns: int
    worker: int = 0
    packer: Packer | None = None
    number: int | None = None


def _without_kept(outcome: Outcome) -> Outcome:
    """A batch that was made without deferring, with what its dataset had kept deferred made real.

    Another loader may have run the dataset before.
    """
    kept = thread_state.may_be_kept() and not outcome.empty
    if not kept or _is_plain(outcome.batch):
        return outcome
    from ..._sources.deferred.completion import materialised

    outcome.batch = materialised(outcome.batch)
    return outcome


def _is_plain(part: Any, depth: int = 2) -> bool:
    """Whether it is a batch of the usual form, in which nothing is deferred."""
    kind = type(part)
    if kind is torch.Tensor or kind in _ATOMS:
        return True
    if kind is dict:
        part = part.values()
    elif kind is not list and kind is not tuple:
        return False
    return depth > 0 and all(_is_plain(one, depth - 1) for one in part)


_ATOMS = frozenset((type(None), bool, int, float, str, bytes))


@value_class(frozen=False, kw_only=True, eq=False)
class Fetcher:
    """Makes batches in the process that has it.

    Attributes:
        dataset: the user's.
        collate_fn: applied to a list of samples, or to each sample if there are no batches.
        resumable: where the dataset is; None: it is map-style, without a state.
        batched: whether a task's indices are a list that makes a batch.
        on_error: as FastLoader's; with "refill", a batch that lacks a sample is not made.
        seed: an int makes the random numbers of each sample of a map-style dataset a function of
            (seed, epoch, index).
        warm: for batches made in this process: slabs that large ones are collated into; they
            outlive the epoch. None in a worker.
        large: bytes of a tensor of a batch, from which on it is made in a slab.
        waiting: measures how long the dataset's code waits.
        deferral: runs the dataset over deferred images; None: it never does.
        eager: whether no part of the dataset may defer images, either.
    """

    dataset: Any
    collate_fn: Collate
    resumable: Resumable | None
    batched: bool
    on_error: OnError
    seed: int | None
    warm: SlabRing | None
    large: int
    waiting: cpu.Waiting
    deferral: Deferral | None
    eager: bool

    # nobody knows before the first batch
    _places_rows: bool | None = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        # Not properties: asked for each batch.
        self.iterable = self.resumable is not None and self.resumable.iterable
        self.seeds = self.seed is not None
        self._inner = InnerIterators()

    @derived
    def _own_seeds(self) -> OwnSeeds:
        return OwnSeeds(self.dataset)

    @derived
    def _joined(self) -> Joined:
        from ..._sources.joined import Joined

        return Joined()

    def position(self) -> Position | None:
        """Where the dataset is; None if it has no position, or the epoch could not begin."""
        return None if self.resumable is None else self.resumable.position()

    def make(self, wanted: Wanted) -> Outcome:
        """Fetch and collate one batch. With a packer, a ``Message`` takes the batch's place."""
        thread = thread_state.THREAD
        if thread.making is not None:
            return self._make_chosen(wanted)
        making = thread.making = Making(self._inner, self.deferral)
        try:
            made = self._make_chosen(wanted)
        finally:
            thread.making = None
        making.end()
        return made

    def _make_chosen(self, wanted: Wanted) -> Outcome:
        """The batch, over deferred images or not, as the choice of the dataset's way says."""
        deferral, packer = self.deferral, wanted.packer
        if self.eager:
            with thread_state.eagerly():
                return self._make_as_torch(wanted)
        if deferral is None:
            return self._make_as_torch(wanted)
        count = self._count(wanted.indices)
        choice = deferral.choice
        if deferral.passes(count):
            outcome = self._make_undeferred(choice, wanted)
            if choice.measures:
                report = choice.passed(outcome.samples)
                outcome.report = report if packer is None else None  # not worth sending
            return outcome
        if not choice.defers(count):
            return deferral.run_eagerly(lambda: self._make_undeferred(choice, wanted))
        done: Outcome | None = deferral.run(
            wanted.number,
            (self.dataset, self.collate_fn),
            functools.partial(self._fetch, wanted, pack=False),
            functools.partial(self._complete, deferral, packer),
        )
        if done is None:
            if packer is not None:
                wanted = wanted._replace(packer=packer.another())
            return self.make_again(wanted)
        return done

    def _count(self, indices: Any) -> int:
        """About how many samples the batch of these indices has."""
        if self.resumable is not None and self.resumable.iterable:
            return self.resumable.size or 1
        try:
            return len(indices) if self.batched else 1
        except TypeError:
            return 1  # a batch sampler of the user's may give an iterator

    def _make_undeferred(self, choice: Choice, wanted: Wanted) -> Outcome:
        """The batch made without deferring: as by DataLoader, unless that was found cheaper."""
        if choice.eager:
            return self._make_eagerly(wanted)
        return self._make_as_torch(wanted)

    def _make_as_torch(self, wanted: Wanted) -> Outcome:
        """The batch made without deferring. What is sent to another process is real anyway."""
        outcome = self._fetch(wanted)
        return outcome if wanted.packer is not None else _without_kept(outcome)

    def make_again(self, wanted: Wanted) -> Outcome:
        """The batch made without deferring, since something was wrong with it."""
        outcome = self._make_eagerly(wanted)
        outcome.report = Report(again=1)
        return outcome

    def _make_eagerly(self, wanted: Wanted) -> Outcome:
        """The batch made without deferring. What the dataset kept deferred is made here."""
        with thread_state.eagerly():
            outcome = _without_kept(self._fetch(wanted, pack=False))
        if not outcome.empty and wanted.packer is not None:
            outcome.batch = wanted.packer.pack(outcome.batch)
        return outcome

    @staticmethod
    def _complete(deferral: Deferral, packer: Packer | None, outcome: Outcome) -> Outcome:
        """``outcome`` with its deferred images made, or the message that carries them."""
        if outcome.empty:
            return outcome
        if packer is None:
            outcome.batch = deferral.complete(outcome.batch)
        else:
            outcome.batch = packer.pack(deferral.complete_to_send(outcome.batch, packer))
        return outcome

    def _fetch(self, wanted: Wanted, *, pack: bool = True) -> Outcome:
        """The batch: its samples from the dataset, collated, and packed if it has a packer."""
        indices, epoch, repeats, begin_ns, worker, packer, _ = wanted
        place: SlabBatch | None = packer if self.warm is None else WarmBatch(self.warm, self.large)
        waiting = self.waiting
        waiting.begin(begin_ns)
        position: Position | None = None
        missing: list[int] = []
        samples: Sequence[Any]
        resumable = self.resumable
        if resumable is not None and resumable.iterable:
            announced = None if self.deferral is None else self.deferral.announced
            samples, bad, position = resumable.next_samples(epoch, worker, announced)
        else:
            if resumable is not None:
                resumable.reach(epoch, worker)
            rows = self._rows_of(indices, place)
            samples, bad, missing = self._samples(indices, epoch, repeats, rows)
            if resumable is not None:
                position = resumable.note()
        if missing or (not len(samples) and (bad or self.iterable)):
            return Outcome(empty=True, bad=bad, missing=missing, position=position)
        fetched_ns = time.perf_counter_ns()
        clock = Clock(
            os.getpid(), begin_ns, fetched_ns, fetched_ns, waiting.end(begin_ns, fetched_ns)
        )
        if self._places_rows is None and self.batched:
            self._places_rows = self.collate_fn is collate and worth_placing(samples, self.large)
        batch = self._collated(samples, place)
        if packer is not None and pack:
            batch = packer.pack(batch)
        count = len(samples) if self.batched else 1
        return Outcome(batch, count, bad=bad, position=position, clock=clock)

    def _collated(self, samples: Sequence[Any], place: SlabBatch | None) -> Any:
        """The batch of ``samples``; without batches, the collated single sample."""
        collated: Any = samples if self.batched else samples[0]
        if self.collate_fn is not collate or type(collated) is ReadyBatch:
            if not (thread_state.THREAD.deferring and has_tensors()):
                return self.collate_fn(collated)
            from ..._sources.deferred.tensor_functions import filling_rows

            with filling_rows(collated):
                return self.collate_fn(collated)
        return collate(collated) if place is None else place.collate(collated)

    def _rows_of(self, indices: Any, place: SlabBatch | None) -> PlacedRows | None:
        """The rows of the batch, if the samples are copied to them one by one."""
        if not self._places_rows or place is None or self.on_error != "raise":
            return None
        return place.rows(len(indices))

    def _samples(
        self, wanted: Any, epoch: int, repeats: list[int] | None, rows: PlacedRows | None
    ) -> tuple[Sequence[Any], list[BadSample], list[int]]:
        """The samples of a task of a map-style dataset, the bad ones, and the places to refill.

        Args:
            wanted: ``indices`` of the task.
            epoch, repeats: of the task.
            rows: where to copy large tensors to; None: nowhere yet.
        """
        indices = wanted if self.batched else [wanted]
        seeds: list[int] | None = None
        if self.seed is not None:
            seeds = randomness.sample_seeds(self.seed, epoch, indices, repeats)
        # Checked as in torch: a dataset may have __getitems__ = None.
        many = getattr(self.dataset, "__getitems__", None) if self.batched else None
        joined = None
        if self.batched and not many:
            joined = self._joined_of(self.dataset, indices, seeds)
        if many or joined is not None:
            if self.on_error == "raise":
                return self._make_samples(indices, seeds), [], []
            try:
                return self._make_samples(indices, seeds), [], []
            except Exception:  # noqa: BLE001, S110 - making each sample alone shows which is bad
                pass
        deferral = self.deferral
        if deferral is None or not (thread_state.THREAD.deferring or deferral.watch):
            return self._one_by_one(indices, indices, seeds, rows)
        with deferral.announced(indices) as announced:
            return self._one_by_one(indices, announced, seeds, rows)

    def _one_by_one(
        self,
        indices: Sequence[Any],
        announced: Iterable[Any],
        seeds: list[int] | None,
        rows: PlacedRows | None,
    ) -> tuple[Sequence[Any], list[BadSample], list[int]]:
        """The samples ``indices``, made in their order as ``announced`` gives them."""
        if rows is not None:
            made = [
                rows.add(self._make_sample(i, index, seeds)) for i, index in enumerate(announced)
            ]
            return made, [], []
        if seeds is None and self.on_error == "raise":
            dataset = self.dataset  # the common case, in as few steps as in torch
            return [dataset[index] for index in announced], [], []
        good: dict[int, Any] = {}
        bad: list[BadSample] = []
        actions: dict[int, OnErrorName] = {}
        for i, index in enumerate(announced):
            if self.on_error == "raise":
                good[i] = self._make_sample(i, index, seeds)
                continue
            try:
                good[i] = self._make_sample(i, index, seeds)
            except Exception as error:
                actions[i] = policy.action_for(self.on_error, index, error)
                if actions[i] == "raise":
                    raise
                bad.append(policy.bad_sample(index, error, actions[i]))
        missing = list(actions) if self.on_error == "refill" else []
        if not bad or missing:
            return list(good.values()), bad, missing
        return [good[i] for i in policy.kept(list(good), len(indices), actions)], bad, []

    def _make_samples(self, indices: list[Any], seeds: list[int] | None) -> Sequence[Any]:
        """The samples ``indices``, made together."""
        if seeds:
            self._own_seeds.seed_all(seeds[0])
        dataset: Any = self.dataset
        inner = indices
        while type(dataset) is Subset:
            dataset, inner = dataset.dataset, [dataset.indices[i] for i in inner]
        packed: PackedDataset | None
        if is_packed_itself(dataset):
            packed = dataset
        else:
            packed = self._joined_of(dataset, inner, seeds)
        samples: Sequence[Any]
        if packed is None:
            samples = self.dataset.__getitems__(indices)
        else:
            from ..._sources.packed import fetch_samples

            samples = fetch_samples(packed, inner, seeds=seeds)
        return samples

    def _joined_of(
        self, dataset: object, indices: list[Any], seeds: list[int] | None
    ) -> PackedDataset | None:
        """One dataset of the stores of a ConcatDataset or a Mix; None: it is no such one."""
        if not isinstance(dataset, ConcatDataset):
            return None
        return self._joined.of(dataset, indices, seeded=seeds is not None)

    def _make_sample(self, i: int, index: Any, seeds: list[int] | None) -> Any:
        """The sample ``index``, at place ``i`` of a task, made alone."""
        if seeds is not None:
            self._own_seeds.seed_all(seeds[i])
        return self.dataset[index]
