"""Making the batches of a user's Dataset: in a worker process, or in the one that trains.

The same as torch's own fetching, sample for sample, and besides: the bad samples of ``_on_error``,
random numbers that are a function of (seed, epoch, index), the states of iterable datasets, and
batches that are collated straight into the slab that the task brings.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from ..._base.machine import cpu
from ..._base.shared_slabs import Mapped
from ..._base.slabs import SlabRing
from ..._base.trace import Clock
from ..._sources import huggingface
from ..._sources.collate import ReadyBatch, collate
from ...hints import OnError, OnErrorName
from ..bad_samples import policy
from ..bad_samples.policy import BadSample
from ..progress import Position, Positions
from . import randomness
from .hybrid_samples import HybridSamples
from .tasks import Outcome, Task
from .transport import Packer, sweep, warm_collate

# Bad samples of an iterable dataset after which one batch is not filled up any more, where
# max_errors is a share: the stream may be endless, and all of it bad.
_HOPELESS = 10_000

_NOTHING = object()  # of an iterator that has ended


class Fetcher(Dataset[Outcome]):
    """Turns tasks into outcomes. Runs in every worker process, or in this one.

    Args:
        dataset: the user's.
        collate_fn: applied to a list of samples, or to each where there are no batches.
        size: samples in a batch of an IterableDataset; None for single samples.
        batched: whether a task's indices are those of a batch.
        drop_last: of an IterableDataset, a last batch that is smaller.
        on_error: see ``_on_error``; with "refill" a batch that lacks a sample is not made.
        limit: ``max_errors``, at which an iterable dataset is read on no further.
        seed: with an int, random numbers of a map-style dataset's samples are a function of (seed,
            epoch, index), those of an iterable one's batches of (seed, epoch, worker, batch).
        resume: where a dataset that is iterable or has a state of its own resumes.
        every: after how many batches the state of an iterable dataset is taken; 0: at its end.
        hybrid: what makes the samples instead of the dataset, where an engine can begin them.
        warm: in this process, slabs that large batches are collated into. They outlive an epoch.
        waiting: tells how much of its time the dataset's code waits.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any],
        *,
        size: int | None,
        batched: bool,
        drop_last: bool,
        on_error: OnError = "raise",
        limit: float = 0,
        seed: int | None = None,
        resume: Positions | None = None,
        every: int = 1,
        hybrid: HybridSamples | None = None,
        warm: SlabRing | None = None,
        waiting: cpu.Waiting,
    ) -> None:
        self.dataset = dataset
        self._collate_fn = collate_fn
        self._size = size
        self.batched = batched
        self.iterable = isinstance(dataset, IterableDataset)
        self.stateful = not self.iterable and _stateful(dataset)
        self.seeds = seed is not None
        self._drop_last = drop_last
        self._on_error = on_error
        self._refill = on_error == "refill"
        self._limit = limit if isinstance(limit, int) else _HOPELESS
        self._seed = seed
        self._resume = resume  # until an epoch was begun
        self._every = every
        self._hybrid = hybrid
        self._mapped: Mapped | None = None
        self._collate_warm = collate if warm is None else warm_collate(warm)
        self.waiting = waiting
        # of a dataset that is iterable or has a state of its own
        self._epoch: int | None = None
        self._position = Position()
        self._begun = False
        # of an iterable one
        self._iterator: Iterator[Any] = iter(())
        self._drawn = 0  # samples, good and bad
        self._early: list[tuple[list[Any], list[BadSample]]] = []
        self._again = False  # what is drawn was drawn before
        self._resumed = False  # and nothing has been drawn since

    def __getitem__(self, task: Task) -> Outcome:
        info = get_worker_info()
        if task.idle:
            return Outcome(task.number, 0 if info is None else info.id, empty=True, idle=True)
        if info is None and (self._refill or self.iterable):
            # An error waits for its turn behind a batch that is being filled up.
            try:
                return self._outcome(task, 0, None)
            except Exception as error:  # noqa: BLE001 - raised at this batch
                return Outcome(task.number, error=error, position=self.stands())
        if info is None:
            return self._outcome(task, 0, None)
        try:
            if self._mapped is None:
                self._mapped = Mapped()
            memory = None if task.slot is None else self._mapped.memory(task.slot)
            return self._outcome(task, info.id, Packer(memory))
        except Exception:  # noqa: BLE001 - raised in the training process, at this batch
            sweep()
            where = f"in DataLoader worker process {info.id}"
            wrapped = ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]
            return Outcome(task.number, info.id, error=wrapped, position=self.stands())

    def _outcome(self, task: Task, worker: int, packer: Packer | None) -> Outcome:
        # Random numbers of the training process are the user's own.
        state = randomness.get() if self.seeds and packer is None else None
        waiting, begin_ns = self.waiting, time.perf_counter_ns()
        waiting.begin(begin_ns)
        try:
            position: Position | None = None
            missing: list[int] = []
            if self.iterable:
                samples, bad, position = self.next_samples(task.epoch, worker)
            else:
                samples, bad, missing = self.samples(task.indices, task.epoch, task.repeats, worker)
                position = self.stands() if self.stateful else None
            if position is not None:
                position = position.news()
            if missing or (not len(samples) and (bad or self.iterable)):
                return Outcome(
                    task.number,
                    worker,
                    bad=tuple(bad),
                    position=position,
                    missing=tuple(missing),
                    empty=True,
                )
            fetched_ns = time.perf_counter_ns()
            blocked_ns = waiting.end(begin_ns, fetched_ns)
            batch = self.collate(samples, packer)
        finally:
            if state is not None:
                randomness.put(state)
        count = len(samples) if self.batched else 1
        message = None if packer is None else packer.pack(batch)
        end_ns = time.perf_counter_ns()
        return Outcome(
            task.number,
            worker,
            samples=count,
            batch=batch if packer is None else None,
            message=message,
            bad=tuple(bad),
            position=position,
            clock=Clock(os.getpid(), begin_ns, fetched_ns, end_ns, blocked_ns),
        )

    def collate(self, samples: Any, packer: Packer | None = None) -> Any:
        """The batch of ``samples``, or where there are no batches, what is made of the one."""
        if not self.batched:
            samples = samples[0]
        if self._collate_fn is not collate or type(samples) is ReadyBatch:
            return self._collate_fn(samples)
        if packer is not None:
            return packer.collate(samples)
        return self._collate_warm(samples)

    # --- map-style ------------------------------------------------------------------------------

    def samples(
        self, wanted: Any, epoch: int, repeats: list[int] | None, worker: int = 0
    ) -> tuple[Any, list[BadSample], list[int]]:
        """The samples of a task, those that could not be made, and places to be filled up.

        Args:
            wanted, epoch, repeats: as ``Task`` has them.
            worker: who makes them.
        """
        if not self.stateful:
            return self._samples(wanted, epoch, repeats)
        if self._epoch != epoch:
            self.begin(epoch, worker)
        made = self._samples(wanted, epoch, repeats)
        self._position = Position(state=self._state())
        return made

    def _samples(
        self, wanted: Any, epoch: int, repeats: list[int] | None
    ) -> tuple[Any, list[BadSample], list[int]]:
        indices = wanted if self.batched else [wanted]
        seeds: list[int] | None = None
        if self._seed is not None:
            seeds = randomness.sample_seeds(self._seed, epoch, indices, repeats)
        # As torch asks for it: a dataset may have __getitems__ = None.
        many = getattr(self.dataset, "__getitems__", None) if self.batched else None
        if many or self._hybrid is not None:
            if self._on_error == "raise":
                return self._many(indices, epoch, repeats, seeds), [], []
            try:
                return self._many(indices, epoch, repeats, seeds), [], []
            except Exception:  # noqa: BLE001, S110 - each sample by itself shows which it is
                pass
        elif seeds is None and self._on_error == "raise":
            dataset = self.dataset  # the plain case, in as few steps as torch's
            return [dataset[index] for index in indices], [], []
        good: dict[int, Any] = {}
        bad: list[BadSample] = []
        actions: dict[int, OnErrorName] = {}
        for i, index in enumerate(indices):
            if self._on_error == "raise":
                good[i] = self._one_of(i, index, epoch, repeats, seeds)
                continue
            try:
                good[i] = self._one_of(i, index, epoch, repeats, seeds)
            except Exception as error:
                actions[i] = policy.action_for(self._on_error, index, error)
                if actions[i] == "raise":
                    raise
                bad.append(policy.bad_sample(index, error, actions[i]))
        missing = list(actions) if self._refill else []
        if not bad or missing:
            return list(good.values()), bad, missing
        return [good[i] for i in policy.kept(list(good), len(indices), actions)], bad, []

    def _many(
        self, indices: list[Any], epoch: int, repeats: list[int] | None, seeds: list[int] | None
    ) -> Any:
        """The samples ``indices``, all that a task has or a part of them, made together."""
        if self._hybrid is not None:
            return self._hybrid(indices, seed=self._seed, epoch=epoch, repeats=repeats, seeds=seeds)
        if seeds:
            randomness.seed_all(seeds[0])
        return self.dataset.__getitems__(indices)

    def _one_of(
        self,
        i: int,
        index: Any,
        epoch: int,
        repeats: list[int] | None,
        seeds: list[int] | None,
    ) -> Any:
        """The sample ``index``, at place ``i`` of a task, made by itself."""
        seed = None if seeds is None else seeds[i : i + 1]
        if self._hybrid is not None:
            before = None if repeats is None else repeats[i : i + 1]
            return self._many([index], epoch, before, seed)[0]
        if seed is not None:
            randomness.seed_all(seed[0])
        return self.dataset[index]

    # --- iterable -------------------------------------------------------------------------------

    def next_samples(self, epoch: int, worker: int) -> tuple[list[Any], list[BadSample], Position]:
        """The next samples of this worker's iterator, none when it has ended; where it stands."""
        if self._epoch != epoch:
            self.begin(epoch, worker)
        return *(self._early.pop() if self._early else self._draw(worker)), self._position

    def begin(self, epoch: int, worker: int) -> None:
        """Bring the dataset and its iterator to where ``epoch`` begins, or resumes."""
        self._epoch = epoch
        self._drawn = 0
        self._begun = False
        self._early.clear()
        self._begin(worker)
        self._begun = True

    def settle(self, epoch: int) -> None:
        """``epoch`` has ended: a dataset that made nothing of it is to come to its end, too."""
        if self.stateful and self._epoch != epoch:
            self.begin(epoch, 0)

    def stands(self) -> Position | None:
        """Where this worker's dataset stands; None where it never got there."""
        return self._position if self._begun else None

    def _begin(self, worker: int) -> None:
        resume, self._resume = self._resume, None
        now, before = Position(), Position()
        if resume is not None:
            now, before = resume.of(worker)
            if resume.epoch != self._epoch:  # of that one no batch was left for this worker
                now, before = Position(), before if now.state is None else now
        self._position = now
        if self._seed is not None and self.iterable and not now.ended:
            randomness.seed_all(randomness.batch_seed(self._seed, self._epoch or 0, worker, 0))
        if now.ended:
            self._end(now)
            self._iterator = iter(())
            return
        if now.state is None and before.state is not None:
            self._end(before)
        self._start(now.state or {})
        if self.iterable:
            self._draw_again(worker, now)
        else:
            self._position = Position(state=self._state())

    def _start(self, state: Mapping[str, Any]) -> None:
        """Bring the dataset, and its new iterator, to where ``state`` was taken."""
        self._resumed = bool(state)
        if "dataset" in state:
            self.dataset.load_state_dict(state["dataset"])
        if self.iterable:
            self._iterator = iter(self.dataset)
        if "iterator" in state:
            self._iterator.load_state_dict(state["iterator"])  # type: ignore[attr-defined]

    def _end(self, position: Position) -> None:
        """Bring the dataset to where an epoch of it ended, at ``position``."""
        if position.state is None or huggingface.forgets(self.dataset):
            return
        self._start(position.state)
        if not (self.iterable and position.batches) or _stateful(self._iterator):
            return
        # There one generator has nothing more to give before the next begins anew; another begins
        # anew at once, and must not have given anything yet.
        drawn = randomness.get()
        try:
            more = next(self._iterator, _NOTHING)
        except Exception:  # noqa: BLE001 - raised again when the sample is asked for
            more = None
        finally:
            randomness.put(drawn)
        if more is not _NOTHING:
            self._iterator = iter(())  # what a generator does when it is closed comes first
            self._start(position.state)

    def _draw_again(self, worker: int, now: Position) -> None:
        """Come to ``now``: by drawing what lies before it, or behind its state.

        What raised on the way raises again, and was dealt with by whoever went on. What raised
        right behind a state is asked for again.
        """
        batches, failed = now.batches, now.failed if now.state is None else 0
        self._position = Position()
        if now.state is not None:
            self._position = Position(batches - now.since, now.state)
        self._again = True
        try:
            while not self._position.ended and (
                self._position.batches < batches or self._position.failed < failed
            ):
                try:
                    drawn = self._draw(worker)
                except Exception:
                    if self._position.failed > now.failed:
                        raise  # it did not the first time
                    continue
                if self._position.batches > batches:  # what raised before did not now
                    self._early.append(drawn)
                    return
        finally:
            self._again = False
        if now.state is not None:
            self._position = now
        elif not batches and not failed and _stateful(self._iterator):
            # A generator has not begun yet, and its dataset's state may be of the epoch before.
            self._position = Position(state=self._state())

    def _draw(self, worker: int) -> tuple[list[Any], list[BadSample]]:
        try:
            return self._drawn_now(worker)
        except Exception:
            self._position = self._position._replace(failed=self._position.failed + 1)
            raise
        finally:
            if self._resumed and huggingface.forgets(self.dataset):
                self.dataset.load_state_dict(None)  # or every later epoch would begin there too
            self._resumed = False

    def _drawn_now(self, worker: int) -> tuple[list[Any], list[BadSample]]:
        position = self._position
        if position.ended:
            return [], []
        if self._seed is not None and position.batches:
            randomness.seed_all(
                randomness.batch_seed(self._seed, self._epoch or 0, worker, position.batches)
            )
        if self._on_error == "raise":
            return self._draw_all(), []
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
                sample = self._one(bad, actions, i)
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
        self._drew(count > 0, ended)
        return samples, bad

    def _draw_all(self) -> list[Any]:
        """The samples of a batch where any that is bad raises."""
        size = self._size
        samples: list[Any] = []
        iterator = self._iterator  # not islice: that asks it for its iterator again
        with contextlib.suppress(StopIteration):
            for _ in range(1 if size is None else size):
                samples.append(next(iterator))
        count = len(samples)
        ended = count < (1 if size is None else size)
        if ended and self._drop_last and size is not None:
            samples = []
        self._drew(count > 0, ended)
        return samples

    def _drew(self, some: bool, ended: bool) -> None:
        """Note where the iterator stands after ``some`` samples were drawn."""
        last = self._position
        batches = last.batches + some
        due = self._every and not self._again and batches % self._every == 0
        if ended or due:
            self._position = Position(batches, self._state(), ended, last.failed)
        else:
            self._position = last._replace(batches=batches, since=last.since + some)

    def _one(self, bad: list[BadSample], actions: dict[int, OnErrorName], i: int) -> Any:
        self._drawn += 1
        try:
            return next(self._iterator)
        except StopIteration:
            raise
        except Exception as error:
            index = self._drawn - 1
            actions[i] = policy.action_for(self._on_error, index, error)
            # A generator that raised has ended: to skip would be to lose all that follows.
            if actions[i] == "raise" or getattr(self._iterator, "gi_frame", self) is None:
                raise
            bad.append(policy.bad_sample(index, error, actions[i]))
            return None

    def _state(self) -> dict[str, Any] | None:
        """What the dataset and its iterator are to resume from; None where neither has a state."""
        parts = {"dataset": self.dataset}
        if self.iterable:
            parts["iterator"] = self._iterator
            if self._iterator is self.dataset:
                del parts["dataset"]
        # A copy: it leaves this process later, and what it is made of may be the dataset's own.
        states = {
            name: copy.deepcopy(part.state_dict())
            for name, part in parts.items()
            if _stateful(part)
        }
        return states or None


def _stateful(part: Any) -> bool:
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")
