"""Resumable: a dataset that has a position, because it is iterable or has a state of its own.

A checkpoint keeps the position of each worker's copy. To resume, a copy loads the last state that
was sent, and draws again what came after it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from torch.utils.data import IterableDataset

from ..._base import randomness
from ..._base.own_generators import OwnSeeds
from ..._sources import huggingface
from ...hints import OnError, OnErrorName
from ..bad_samples import policy
from ..bad_samples.policy import BadSample
from ..drawing import ENDED
from ..progress import Position, Positions, is_stateful, state_of

# If max_errors is a share, one batch of an iterable dataset is not refilled after so many bad
# samples: the stream may be endless, with every sample bad.
_MOST_BAD = 10_000

Announced: TypeAlias = "Callable[[Sequence[Any]], contextlib.AbstractContextManager[Iterable[Any]]]"


class Resumable:
    """The copy of a dataset in one process, and where it is.

    Args:
        dataset: the user's; iterable, or with a state.
        size: samples in a batch of an IterableDataset; None for single samples.
        drop_last: drop an incomplete last batch of an IterableDataset.
        on_error: as FastLoader's.
        limit: ``max_errors``; after so many bad samples a batch is not refilled any more.
        seed: an int makes the random numbers of a batch of an iterable dataset a function of (seed,
            epoch, worker, batch).
        resume: the epoch that it resumes, and where; None: it begins.
        every: the state of an iterable dataset is taken after every so many batches; 0: at its end.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        size: int | None,
        drop_last: bool,
        on_error: OnError,
        limit: float,
        seed: int | None,
        resume: tuple[int, Positions] | None,
        every: int,
    ) -> None:
        self.iterable = isinstance(dataset, IterableDataset)
        self._dataset = dataset
        self.size = size
        self._drop_last = drop_last
        self._on_error = on_error
        self._refill = on_error == "refill"
        self._limit = limit if isinstance(limit, int) else _MOST_BAD
        self._seed = seed
        self._own_seeds = OwnSeeds(dataset)
        self._resume = resume  # None once an epoch has begun
        self._every = every
        self._epoch: int | None = None
        self._position = Position()
        self._begun = False
        # For an iterable one:
        self._iterator: Iterator[Any] = iter(())
        self._drawn = 0  # samples read in this epoch, good and bad
        self._replayed_early: list[tuple[list[Any], list[BadSample]]] = []
        self._replaying = False  # reading batches that an earlier run consumed
        self._resumed = False  # a state was loaded, and no batch read since
        self._announced: Announced | None = None

    def position(self) -> Position | None:
        """Where the dataset is; None if the epoch could not begin."""
        return self._position if self._begun else None

    def reach(self, epoch: int, worker: int) -> None:
        """Begin ``epoch``, unless it has begun."""
        if self._epoch != epoch:
            self.begin(epoch, worker)

    def begin(self, epoch: int, worker: int) -> None:
        """Bring the dataset and its iterator to the start of ``epoch``, or to where it resumes."""
        self._epoch = epoch
        self._drawn = 0
        self._begun = False
        self._replayed_early.clear()
        self._bring_to_start(worker)
        self._begun = True

    def finish(self, epoch: int) -> None:
        """End ``epoch``: a map-style dataset that made nothing in it is brought to its end too."""
        if not self.iterable:
            self.reach(epoch, 0)

    def note(self) -> Position:
        """The position of a map-style dataset after it has made more samples."""
        self._position = Position(state=self._state())
        return self._position

    def next_samples(
        self, epoch: int, worker: int, announced: Announced | None
    ) -> tuple[list[Any], list[BadSample], Position]:
        """The next samples of an iterable one (none at its end), bad ones, and the position.

        ``announced`` is given their places in the batch, and gives them one by one.
        """
        self.reach(epoch, worker)
        self._announced = announced
        try:
            samples, bad = (
                self._replayed_early.pop() if self._replayed_early else self._next_batch(worker)
            )
        finally:
            self._announced = None
        return samples, bad, self._position

    def _bring_to_start(self, worker: int) -> None:
        resume, self._resume = self._resume, None
        now, before = Position(), Position()
        if resume is not None:
            epoch, positions = resume
            now, before = positions.of(worker)
            if epoch != self._epoch:  # that epoch had no more batches for this worker
                now, before = Position(), before if now.state is None else now
        self._position = now
        if self._seed is not None and self.iterable and not now.ended:
            self._seed_batch(worker, 0)
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
            self._dataset.load_state_dict(state["dataset"])
        if self.iterable:
            self._iterator = iter(self._dataset)
        if "iterator" in state:
            self._iterator.load_state_dict(state["iterator"])  # type: ignore[attr-defined]

    def _load_end(self, position: Position) -> None:
        """Bring the dataset to the end of an epoch, which was at ``position``."""
        if position.state is None or huggingface.keeps_loaded_state(self._dataset):
            return
        self._load(position.state)
        if not (self.iterable and position.batches) or is_stateful(self._iterator):
            return
        # Loading an end state has one of two effects. Some datasets give an empty iterator, and the
        # next ``iter`` starts the new epoch: that iterator must be exhausted here. Others start the
        # new epoch at once: then nothing may be taken from it, so the state is loaded again.
        drawn = randomness.get()
        try:
            more = next(self._iterator, ENDED)
        except Exception:  # noqa: BLE001 - raised again when the sample is asked for
            more = None
        finally:
            randomness.put(drawn)
        if more is not ENDED:
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
            if self._resumed and huggingface.keeps_loaded_state(self._dataset):
                self._dataset.load_state_dict(None)  # otherwise all later epochs would start there
            self._resumed = False

    def _seed_batch(self, worker: int, number: int) -> None:
        assert self._seed is not None, "asked before"
        seed = randomness.batch_seed(self._seed, self._epoch or 0, worker, number)
        self._own_seeds.seed_all(seed)

    def _read_batch(self, worker: int) -> tuple[list[Any], list[BadSample]]:
        position = self._position
        if position.ended:
            return [], []
        if self._seed is not None and position.batches:
            self._seed_batch(worker, position.batches)
        if self._on_error == "raise":
            return self._read_batch_or_raise(), []
        samples: list[Any] = []
        bad: list[BadSample] = []
        actions: dict[int, OnErrorName] = {}
        good: list[int] = []
        ended, wanted = False, 1 if self.size is None else self.size
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
        if self._drop_last and self.size is not None and full < wanted:
            samples, good = [], []
        if actions and samples:
            place = {i: n for n, i in enumerate(good)}
            samples = [samples[place[i]] for i in policy.kept(good, count, actions)]
        self._advance(count > 0, ended)
        return samples, bad

    def _read_batch_or_raise(self) -> list[Any]:
        """The samples of the next batch; any bad sample raises."""
        size = self.size
        samples: list[Any] = []
        iterator = self._iterator  # not islice, which calls iter(iterator)
        announced = self._announced or contextlib.nullcontext
        with contextlib.suppress(StopIteration), announced(range(size or 1)) as places:
            for _ in places:
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
        parts: dict[str, object] = {"dataset": self._dataset}
        if self.iterable:
            parts["iterator"] = self._iterator
            if self._iterator is self._dataset:
                del parts["dataset"]
        states = {name: state_of(part) for name, part in parts.items() if is_stateful(part)}
        return states or None
