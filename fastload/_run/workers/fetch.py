"""Fetcher: makes the batches of a user's Dataset, in a worker process or in this one.

It does what torch's fetching does, sample for sample. In addition it handles bad samples
(``bad_samples/policy.py``), seeds random numbers by (seed, epoch, index), keeps the states of
iterable and stateful datasets, and collates batches straight into the slab of their task.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch._utils import ExceptionWrapper
from torch.utils.data import Dataset, IterableDataset, Subset, get_worker_info

from ..._base import randomness
from ..._base.machine import cpu
from ..._base.shared_slabs import Mapped
from ..._base.slabs import SlabRing
from ..._base.trace import Clock
from ..._sources import huggingface
from ..._sources.collate import Collate, ReadyBatch, collate
from ..._sources.deferred import thread_state
from ..._sources.deferred.needed import has_tensors
from ..._sources.joined import Joined
from ..._sources.packed import PackedDataset, fetch_samples
from ...hints import CheckCrc, OnError, OnErrorName
from ..bad_samples import policy
from ..bad_samples.policy import BadSample
from ..image_counts import Report
from ..progress import Position, Positions
from ..stateful import is_stateful
from .deferral import Deferral
from .placed_rows import PlacedRows, worth_placing
from .tasks import Outcome, Task
from .transport import Message, Packer, sweep, warm_collate

# If max_errors is a share, one batch of an iterable dataset is not refilled after so many bad
# samples: the stream may be endless, with every sample bad.
_MOST_BAD = 10_000

_ENDED = object()  # what ``next`` gives of an iterator that has ended


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


class Made(NamedTuple):
    """A batch that was made, or none.

    Attributes:
        samples: how many; None: there is no batch.
        batch: what ``collate`` gave of them.
        message: carries it to another process; None: it stays here.
        bad, missing, position: as in ``Outcome``.
        fetched_ns: when its samples were fetched.
        blocked_ns: as in ``Clock``.
        report: what became of its images; None: none were deferred.
    """

    samples: int | None
    batch: Any
    message: Message | None
    bad: Sequence[BadSample]
    missing: Sequence[int]
    position: Position | None
    fetched_ns: int = 0
    blocked_ns: int = 0
    report: Report | None = None


def _without_kept(made: Made) -> Made:
    """A batch that was made without deferring, with what its dataset had kept deferred made real.

    Another loader may have run the dataset before. What is sent to another process is real anyway.
    """
    if made.samples is None or made.message is not None or not thread_state.may_be_kept():
        return made
    from ..._sources.deferred.completion import materialised

    return made._replace(batch=materialised(made.batch))


class Fetcher(Dataset[Outcome]):
    """Turns tasks into outcomes. Runs in every worker process, or in this one.

    Args:
        dataset: the user's.
        collate_fn: applied to a list of samples, or to each sample if there are no batches.
        size: samples in a batch of an IterableDataset; None for single samples.
        batched: whether a task's indices are a list that makes a batch.
        drop_last: drop an incomplete last batch of an IterableDataset.
        on_error: as FastLoader's; with "refill", a batch that lacks a sample is not made.
        limit: ``max_errors``; after so many bad samples a batch of an iterable dataset is not
            refilled any more.
        seed: an int makes the random numbers a function of (seed, epoch, index) for each sample of
            a map-style dataset, and of (seed, epoch, worker, batch) for a batch of an iterable one.
        resume: where a dataset that is iterable or stateful resumes.
        every: the state of an iterable dataset is taken after every so many batches; 0: at its end.
        check_crc: as for FastLoader.
        warm: for batches made in this process: slabs that large ones are collated into; they
            outlive the epoch. None in a worker.
        waiting: measures how long the dataset's code waits.
        deferral: runs the dataset over deferred images; None: it never does. Only for a map-style
            dataset without a state: a batch may have to be made again.
        eager: whether no part of the dataset may defer images, either.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Collate,
        *,
        size: int | None,
        batched: bool,
        drop_last: bool,
        on_error: OnError = "raise",
        limit: float = 0,
        seed: int | None = None,
        resume: Positions | None = None,
        every: int = 1,
        check_crc: CheckCrc = "first",
        warm: SlabRing | None = None,
        waiting: cpu.Waiting,
        deferral: Deferral | None = None,
        eager: bool = False,
    ) -> None:
        self.dataset = dataset
        self._collate_fn = collate_fn
        self._size = size
        self.batched = batched
        self.iterable = isinstance(dataset, IterableDataset)
        self.stateful = not self.iterable and is_stateful(dataset)
        self.seeds = seed is not None
        self._drop_last = drop_last
        self._on_error = on_error
        self._refill = on_error == "refill"
        self._limit = limit if isinstance(limit, int) else _MOST_BAD
        self._seed = seed
        self._resume = resume  # None once an epoch has begun
        self._every = every
        self._check_crc: CheckCrc = check_crc
        self._joined = Joined()
        self._mapped: Mapped | None = None
        self._collate_warm = collate if warm is None else warm_collate(warm)
        self._places_rows: bool | None = None  # nobody knows before the first batch
        self.waiting = waiting
        self.deferral = None if self.iterable or self.stateful else deferral
        self._eager = eager
        self._eagerly = False  # the next batch is made again
        # For a dataset that is iterable or stateful:
        self._epoch: int | None = None
        self._position = Position()
        self._begun = False
        # For an iterable one:
        self._iterator: Iterator[Any] = iter(())
        self._drawn = 0  # samples read in this epoch, good and bad
        self._replayed_early: list[tuple[list[Any], list[BadSample]]] = []
        self._replaying = False  # reading batches that an earlier run consumed
        self._resumed = False  # a state was loaded, and no batch read since

    def __getitem__(self, task: Task) -> Outcome:
        info = get_worker_info()
        if task.idle:
            return Outcome(task.number, 0 if info is None else info.id, empty=True, idle=True)
        if info is None and (self._refill or self.iterable):
            # The error must wait for its turn: an earlier batch may be being refilled.
            try:
                return self._outcome(task, 0, None)
            except Exception as error:  # noqa: BLE001 - raised at this batch
                return Outcome(task.number, error=error, position=self.position())
        if info is None:
            return self._outcome(task, 0, None)
        try:
            if self._mapped is None:
                self._mapped = Mapped()
            if task.again:
                return self._again(task, info.id)
            memory = None if task.slot is None else self._mapped.memory(task.slot)
            return self._outcome(task, info.id, Packer(memory))
        except Exception:  # noqa: BLE001 - raised in the training process, at this batch
            sweep()
            where = f"in DataLoader worker process {info.id}"
            wrapped = ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]
            return Outcome(task.number, info.id, error=wrapped, position=self.position())

    def _outcome(self, task: Task, worker: int, packer: Packer | None) -> Outcome:
        # The generators of the training process are the user's: their states are restored.
        state = randomness.get() if self.seeds and packer is None else None
        begin_ns = time.perf_counter_ns()
        try:
            made = self.make(
                Wanted(
                    task.indices, task.epoch, task.repeats, begin_ns, worker, packer, task.number
                )
            )
        finally:
            if state is not None:
                randomness.put(state)
        position = made.position if made.position is None else made.position.delta()
        if made.samples is None:
            return Outcome(
                task.number,
                worker,
                bad=tuple(made.bad),
                position=position,
                missing=tuple(made.missing),
                empty=True,
            )
        return Outcome(
            task.number,
            worker,
            samples=made.samples,
            batch=made.batch if packer is None else None,
            message=made.message,
            bad=tuple(made.bad),
            position=position,
            clock=Clock(
                os.getpid(), begin_ns, made.fetched_ns, time.perf_counter_ns(), made.blocked_ns
            ),
            report=made.report,
        )

    def _again(self, task: Task, worker: int) -> Outcome:
        """Make a batch again without deferring, and then those after it; see ``Task.again``."""
        assert self.deferral is not None, "only batches with deferred images are made again"
        state = self.deferral.state_before(task.again[0].number)
        if state is not None:
            state.restore()
        made = []
        for n, one in enumerate(task.again):
            self._eagerly = not n
            try:
                made.append(self[one])
            finally:
                self._eagerly = False
        return Outcome(task.number, worker, empty=True, again=tuple(made))

    def make(self, wanted: Wanted) -> Made:
        """Fetch and collate one batch."""
        deferral, packer = self.deferral, wanted.packer
        if self._eager:
            with thread_state.eagerly():
                made = self._make(wanted)
            return _without_kept(made)
        if deferral is None or not (self._eagerly or deferral.due()):
            return _without_kept(self._make(wanted))
        if self._eagerly or deferral.idle():
            report = Report(again=int(self._eagerly))
            return self._made_eagerly(deferral, report, wanted)
        done = deferral.run(
            wanted.number,
            (self.dataset, self._collate_fn),
            lambda: self._make(wanted, pack=False),
            functools.partial(self._completed, deferral, packer),
        )
        if done is None:
            if packer is not None:
                wanted = wanted._replace(packer=packer.another())
            return self._made_eagerly(deferral, Report(again=1), wanted)
        made, (batch, message) = done
        return made._replace(batch=batch, message=message, report=deferral.report)  # type: ignore[no-any-return]

    def _made_eagerly(self, deferral: Deferral, report: Report, wanted: Wanted) -> Made:
        """The batch made without deferring. What the dataset kept deferred is made here."""
        with thread_state.eagerly():
            made = self._make(wanted, pack=False)
        if made.samples is None:
            return made._replace(report=report)
        batch = deferral.complete_or_raise(made.batch)
        message = None if wanted.packer is None else wanted.packer.pack(batch)
        return made._replace(batch=batch, message=message, report=report)

    @staticmethod
    def _completed(
        deferral: Deferral, packer: Packer | None, made: Made
    ) -> tuple[Any, Message | None]:
        """The batch with its deferred images made, or the message that carries them."""
        if made.samples is None:
            return None, None
        if packer is None:
            return deferral.complete(made.batch), None
        return None, packer.pack(deferral.complete_to_send(made.batch, packer))

    def _make(self, wanted: Wanted, *, pack: bool = True) -> Made:
        indices, epoch, repeats, begin_ns, worker, packer, _ = wanted
        waiting = self.waiting
        waiting.begin(begin_ns)
        position: Position | None = None
        missing: list[int] = []
        samples: Sequence[Any]
        if self.iterable:
            samples, bad, position = self.next_samples(epoch, worker)
        else:
            rows = self._rows_of(indices, packer)
            samples, bad, missing = self.samples(indices, epoch, repeats, worker, rows)
            position = self.position() if self.stateful else None
        if missing or (not len(samples) and (bad or self.iterable)):
            return Made(None, None, None, bad, missing, position)
        fetched_ns = time.perf_counter_ns()
        blocked_ns = waiting.end(begin_ns, fetched_ns)
        if packer is not None and self._places_rows is None and self.batched:
            self._places_rows = self._collate_fn is collate and worth_placing(samples)
        batch = self.collate(samples, packer)
        message = None if packer is None or not pack else packer.pack(batch)
        count = len(samples) if self.batched else 1
        return Made(count, batch, message, bad, missing, position, fetched_ns, blocked_ns)

    def collate(self, samples: Sequence[Any], packer: Packer | None = None) -> Any:
        """The batch of ``samples``; without batches, the collated single sample."""
        collated: Any = samples if self.batched else samples[0]
        if self._collate_fn is not collate or type(collated) is ReadyBatch:
            if not (thread_state.THREAD.deferring and has_tensors()):
                return self._collate_fn(collated)
            from ..._sources.deferred.tensor import filling_rows

            with filling_rows(collated):
                return self._collate_fn(collated)
        if packer is not None:
            return packer.collate(collated)
        return self._collate_warm(collated)

    # --- map-style ------------------------------------------------------------------------------

    def _rows_of(self, indices: Any, packer: Packer | None) -> PlacedRows | None:
        """The rows of the batch, if the samples are copied to them one by one."""
        if not self._places_rows or packer is None or self._on_error != "raise":
            return None
        return packer.rows(len(indices))

    def samples(
        self,
        wanted: Any,
        epoch: int,
        repeats: list[int] | None,
        worker: int = 0,
        rows: PlacedRows | None = None,
    ) -> tuple[Sequence[Any], list[BadSample], list[int]]:
        """The samples of a task, the bad ones, and the places to refill.

        Args:
            wanted: ``indices`` of the task.
            epoch, repeats: of the task.
            worker: id of this worker.
            rows: where to copy large tensors to; None: nowhere yet.
        """
        if not self.stateful:
            return self._samples(wanted, epoch, repeats, rows)
        if self._epoch != epoch:
            self.begin(epoch, worker)
        made = self._samples(wanted, epoch, repeats, rows)
        self._position = Position(state=self._state())
        return made

    def _samples(
        self, wanted: Any, epoch: int, repeats: list[int] | None, rows: PlacedRows | None
    ) -> tuple[Sequence[Any], list[BadSample], list[int]]:
        indices = wanted if self.batched else [wanted]
        seeds: list[int] | None = None
        if self._seed is not None:
            seeds = randomness.sample_seeds(self._seed, epoch, indices, repeats)
        # Checked as in torch: a dataset may have __getitems__ = None.
        many = getattr(self.dataset, "__getitems__", None) if self.batched else None
        if many or (self.batched and self._join(self.dataset, indices, seeds) is not None):
            if self._on_error == "raise":
                return self._make_samples(indices, seeds), [], []
            try:
                return self._make_samples(indices, seeds), [], []
            except Exception:  # noqa: BLE001, S110 - making each sample alone shows which is bad
                pass
        deferral = self.deferral
        if deferral is None or not thread_state.THREAD.deferring:
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
        if seeds is None and self._on_error == "raise":
            dataset = self.dataset  # the common case, in as few steps as in torch
            return [dataset[index] for index in announced], [], []
        good: dict[int, Any] = {}
        bad: list[BadSample] = []
        actions: dict[int, OnErrorName] = {}
        for i, index in enumerate(announced):
            if self._on_error == "raise":
                good[i] = self._make_sample(i, index, seeds)
                continue
            try:
                good[i] = self._make_sample(i, index, seeds)
            except Exception as error:
                actions[i] = policy.action_for(self._on_error, index, error)
                if actions[i] == "raise":
                    raise
                bad.append(policy.bad_sample(index, error, actions[i]))
        missing = list(actions) if self._refill else []
        if not bad or missing:
            return list(good.values()), bad, missing
        return [good[i] for i in policy.kept(list(good), len(indices), actions)], bad, []

    def _join(
        self, dataset: object, indices: list[Any], seeds: list[int] | None
    ) -> PackedDataset | None:
        return self._joined.of(dataset, indices, seeded=seeds is not None)

    def _make_samples(self, indices: list[Any], seeds: list[int] | None) -> Sequence[Any]:
        """The samples ``indices``, made together."""
        if seeds:
            randomness.seed_all(seeds[0])
        dataset: Any = self.dataset
        inner = indices
        while type(dataset) is Subset:
            dataset, inner = dataset.dataset, [dataset.indices[i] for i in inner]
        if type(dataset) is not PackedDataset:
            dataset = self._join(dataset, inner, seeds)
        samples: Sequence[Any]
        if dataset is None:
            samples = self.dataset.__getitems__(indices)
        else:
            samples = fetch_samples(dataset, inner, seeds=seeds, check_crc=self._check_crc)
        return samples

    def _make_sample(self, i: int, index: Any, seeds: list[int] | None) -> Any:
        """The sample ``index``, at place ``i`` of a task, made alone."""
        if seeds is not None:
            randomness.seed_all(seeds[i])
        return self.dataset[index]

    # --- iterable -------------------------------------------------------------------------------

    def next_samples(self, epoch: int, worker: int) -> tuple[list[Any], list[BadSample], Position]:
        """The next samples of this worker's iterator (none at its end), bad ones, the position."""
        if self._epoch != epoch:
            self.begin(epoch, worker)
        return *(
            self._replayed_early.pop() if self._replayed_early else self._next_batch(worker)
        ), self._position

    def begin(self, epoch: int, worker: int) -> None:
        """Bring the dataset and its iterator to the start of ``epoch``, or to where it resumes."""
        self._epoch = epoch
        self._drawn = 0
        self._begun = False
        self._replayed_early.clear()
        self._bring_to_start(worker)
        self._begun = True

    def finish_epoch(self, epoch: int) -> None:
        """End ``epoch``: a stateful dataset that made nothing in it is brought to its end too."""
        if self.stateful and self._epoch != epoch:
            self.begin(epoch, 0)

    def position(self) -> Position | None:
        """Position of this worker's dataset; None if the epoch could not begin."""
        return self._position if self._begun else None

    def _bring_to_start(self, worker: int) -> None:
        resume, self._resume = self._resume, None
        now, before = Position(), Position()
        if resume is not None:
            now, before = resume.of(worker)
            if resume.epoch != self._epoch:  # that epoch had no more batches for this worker
                now, before = Position(), before if now.state is None else now
        self._position = now
        if self._seed is not None and self.iterable and not now.ended:
            randomness.seed_all(randomness.batch_seed(self._seed, self._epoch or 0, worker, 0))
        if now.ended:
            self._load_end(now)
            self._iterator = iter(())
            return
        if now.state is None and before.state is not None:
            self._load_end(before)
        self._load(now.state or {})
        if self.iterable:
            self._replay(worker, now)
        else:
            self._position = Position(state=self._state())

    def _load(self, state: Mapping[str, Any]) -> None:
        """Load ``state`` into the dataset and a new iterator over it."""
        self._resumed = bool(state)
        if "dataset" in state:
            self.dataset.load_state_dict(state["dataset"])
        if self.iterable:
            self._iterator = iter(self.dataset)
        if "iterator" in state:
            self._iterator.load_state_dict(state["iterator"])  # type: ignore[attr-defined]

    def _load_end(self, position: Position) -> None:
        """Bring the dataset to the end of an epoch, which was at ``position``."""
        if position.state is None or huggingface.keeps_loaded_state(self.dataset):
            return
        self._load(position.state)
        if not (self.iterable and position.batches) or is_stateful(self._iterator):
            return
        # Loading an end state has one of two effects. Some datasets give an empty iterator, and the
        # next ``iter`` starts the new epoch: that iterator must be exhausted here. Others start the
        # new epoch at once: then nothing may be taken from it, so the state is loaded again.
        drawn = randomness.get()
        try:
            more = next(self._iterator, _ENDED)
        except Exception:  # noqa: BLE001 - raised again when the sample is asked for
            more = None
        finally:
            randomness.put(drawn)
        if more is not _ENDED:
            self._iterator = iter(())  # closes a generator before the state is loaded again
            self._load(position.state)

    def _replay(self, worker: int, now: Position) -> None:
        """Get to ``now`` by reading the batches before it, or those after its state.

        Errors on the way are ignored, as they were raised and handled in the run before. A batch
        that raised right after the state is read again.
        """
        batches, failed = now.batches, now.failed if now.state is None else 0
        self._position = Position()
        if now.state is not None:
            self._position = Position(batches - now.since_state, now.state)
        self._replaying = True
        try:
            while not self._position.ended and (
                self._position.batches < batches or self._position.failed < failed
            ):
                try:
                    drawn = self._next_batch(worker)
                except Exception:
                    if self._position.failed > now.failed:
                        raise  # this error is new
                    continue
                if self._position.batches > batches:  # a batch that raised before is good now
                    self._replayed_early.append(drawn)
                    return
        finally:
            self._replaying = False
        if now.state is not None:
            self._position = now
        elif not batches and not failed and is_stateful(self._iterator):
            # A generator has not run yet, so the dataset may still have its state of the epoch
            # before.
            self._position = Position(state=self._state())

    def _next_batch(self, worker: int) -> tuple[list[Any], list[BadSample]]:
        try:
            return self._read_batch(worker)
        except Exception:
            self._position = self._position._replace(failed=self._position.failed + 1)
            raise
        finally:
            if self._resumed and huggingface.keeps_loaded_state(self.dataset):
                self.dataset.load_state_dict(None)  # otherwise all later epochs would start there
            self._resumed = False

    def _read_batch(self, worker: int) -> tuple[list[Any], list[BadSample]]:
        position = self._position
        if position.ended:
            return [], []
        if self._seed is not None and position.batches:
            randomness.seed_all(
                randomness.batch_seed(self._seed, self._epoch or 0, worker, position.batches)
            )
        if self._on_error == "raise":
            return self._read_batch_or_raise(), []
        samples: list[Any] = []
        bad: list[BadSample] = []
        actions: dict[int, OnErrorName] = {}
        good: list[int] = []
        ended, wanted = False, 1 if self._size is None else self._size
        for i in itertools.count():
            done = len(good) if self._refill and len(bad) <= self._limit else i
            if done >= wanted:
                break
            try:
                sample = self._read_sample(bad, actions, i)
            except StopIteration:
                ended = True
                break
            if i not in actions:
                good.append(i)
                samples.append(sample)
        count = len(good) + len(actions)
        full = len(good) if self._refill else count
        if self._drop_last and self._size is not None and full < wanted:
            samples, good = [], []
        if actions and samples:
            place = {i: n for n, i in enumerate(good)}
            samples = [samples[place[i]] for i in policy.kept(good, count, actions)]
        self._advance(count > 0, ended)
        return samples, bad

    def _read_batch_or_raise(self) -> list[Any]:
        """The samples of the next batch; any bad sample raises."""
        size = self._size
        samples: list[Any] = []
        iterator = self._iterator  # not islice, which calls iter(iterator)
        with contextlib.suppress(StopIteration):
            for _ in range(1 if size is None else size):
                samples.append(next(iterator))
        count = len(samples)
        ended = count < (1 if size is None else size)
        if ended and self._drop_last and size is not None:
            samples = []
        self._advance(count > 0, ended)
        return samples

    def _advance(self, some: bool, ended: bool) -> None:
        """Update the position after a batch was read; ``some``: it had at least one sample."""
        last = self._position
        batches = last.batches + some
        due = self._every and not self._replaying and batches % self._every == 0
        if ended or due:
            self._position = Position(batches, self._state(), ended, last.failed)
        else:
            self._position = last._replace(batches=batches, since_state=last.since_state + some)

    def _read_sample(self, bad: list[BadSample], actions: dict[int, OnErrorName], i: int) -> Any:
        self._drawn += 1
        try:
            return next(self._iterator)
        except StopIteration:
            raise
        except Exception as error:
            index = self._drawn - 1
            actions[i] = policy.action_for(self._on_error, index, error)
            # A generator that raised has ended: skipping would lose all samples after this one.
            if actions[i] == "raise" or getattr(self._iterator, "gi_frame", self) is None:
                raise
            bad.append(policy.bad_sample(index, error, actions[i]))
            return None

    def _state(self) -> dict[str, Any] | None:
        """The states of the dataset and its iterator; None if neither has one."""
        parts: dict[str, object] = {"dataset": self.dataset}
        if self.iterable:
            parts["iterator"] = self._iterator
            if self._iterator is self.dataset:
                del parts["dataset"]
        # Copied, because it is sent later and may refer to objects that the dataset changes.
        states = {
            name: copy.deepcopy(part.state_dict())
            for name, part in parts.items()
            if is_stateful(part)
        }
        return states or None
