"""LocalMaker: the batches of a user's Dataset, each made in this process, in ``next``.

There is no task, queue or thread between the consumer and the dataset. A loop over tiny samples
costs no more than with torch, because this is torch's iterator with another ``__next__``.

How it ends: when the sampler ends; for an iterable dataset, when its iterator ends. As in torch, a
batch that raises counts as consumed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch._C._autograd import _profiler_enabled
from torch.autograd.profiler import record_function
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter
from typing_extensions import override

from ..._base import randomness
from ..._base.machine import memory
from ..drawing import ENDED, IndexCounter, skip_counted
from ..epoch_plan import EpochPlan
from ..maker import Maker, Outcome, below
from ..progress import Position
from .fetch import Fetcher, Wanted

_Item = TypeVar("_Item")

_NOTHING = contextlib.nullcontext()
_NAME = f"enumerate(DataLoader)#{_SingleProcessDataLoaderIter.__name__}.__next__"

_Asked = tuple[list[Any], "list[int] | None"]
"""Indices, and how often each came before."""


class LocalMaker(_SingleProcessDataLoaderIter, Maker):
    """Makes the batches of one epoch.

    Args:
        plan: the epoch's. If the epoch is resumed, the start of the order is drawn now rather than
            with the first batch, and ``iter`` of an iterable dataset is called with the first batch
            rather than now.
        fetcher: makes the samples.
        reported: the length that an IterableDataset gave, or None.
    """

    def __init__(self, plan: EpochPlan, fetcher: Fetcher, *, reported: int | None) -> None:
        super().__init__(_LoaderView(plan, reported))
        config = plan.config
        self.base_seed = int(self._base_seed)
        self._dataset_kind = _DatasetKind.Iterable if config.iterable else _DatasetKind.Map
        self._index_sampler = config.index_sampler
        self._fetcher = fetcher
        self._repeats = IndexCounter(plan.times) if plan.repeats else None
        self._stamps = plan.measurements.stamps
        self._epoch = plan.progress.epoch
        self._drawn = self._given = 0  # index batches, and those in outcomes
        self._ended = self._closed = False
        memory.keep_freed()
        if fetcher.resumable is not None:
            workers = plan.progress.positions.workers
            workers += [] if workers else [Position()]
            # As in torch; a seed applies from the first batch.
            if not plan.resumed and not fetcher.seeds:
                fetcher.resumable.begin(self._epoch, 0)
                workers[0] = fetcher.position() or Position()
        if fetcher.iterable:
            return
        skip_counted(self._sampler_iter, plan.skip, self._repeats)
        if plan.resumed:
            self._sampler_iter = drawn(self._sampler_iter)

    def __next__(self) -> Outcome:
        if self._closed:
            raise StopIteration
        # record_function costs as much as a small batch, and only torch's profiler reads it.
        with record_function(_NAME) if _profiler_enabled() else _NOTHING:
            try:
                return self._read() if self._fetcher.iterable else self._drawn_next()
            except StopIteration:
                if self._fetcher.resumable is not None:
                    self._fetcher.resumable.finish(self._epoch)
                raise

    def _read(self) -> Outcome:
        """The next batch of an iterable dataset."""
        if self._ended:
            raise StopIteration
        outcome = self._make(None, None)
        if outcome.empty:
            outcome.taken = 0
            # Not raised here: what came with the end counts.
            self._ended = outcome.position is not None and outcome.position.ended
        return outcome

    def _drawn_next(self) -> Outcome:
        """The batch of the next indices of the sampler."""
        try:
            indices = next(self._sampler_iter)
            repeats = None if self._repeats is None else self._repeats.count(indices)
        except StopIteration:
            raise
        except Exception as error:  # noqa: BLE001 - raised at this batch
            return Outcome(error=below(error))
        self._drawn += 1
        outcome = self._make(indices, repeats)
        outcome.taken, self._given = self._drawn - self._given, self._drawn
        return outcome

    @override
    def close(self) -> None:
        self._closed = True

    def ask(self, indices: list[Any], repeats: list[int] | None) -> _Asked:
        """Of ``Remaker``."""
        return indices, repeats

    def answer(self, ticket: _Asked) -> Outcome:
        """Of ``Remaker``."""
        return self._make(*ticket)

    def _make(self, indices: Any, repeats: list[int] | None) -> Outcome:
        """The batch of ``indices``. Raises StopIteration at the end of an iterable dataset."""
        fetcher = self._fetcher
        # The generators of this process are the user's: their states are restored.
        state = randomness.get() if fetcher.seeds else None
        try:
            filled_ns = 0 if fetcher.deferral is None else self._stamps.spent_ns("fill")
            begin_ns = time.perf_counter_ns()
            outcome = fetcher.make(Wanted(indices, self._epoch, repeats, begin_ns))
            if outcome.empty:
                return outcome
            if self._pin_memory:
                outcome.batch = pin_memory(outcome.batch, self._pin_memory_device)  # type: ignore[no-untyped-call]
        except StopIteration:
            raise
        except Exception as error:  # noqa: BLE001 - raised at this batch
            return Outcome(error=below(error), position=fetcher.position())
        finally:
            if state is not None:
                randomness.put(state)
        assert outcome.clock is not None, "there is a batch"
        end_ns = time.perf_counter_ns()
        if fetcher.deferral is not None:
            # The core fills what was recorded after all else, which is a stage of its own.
            filled_ns = self._stamps.spent_ns("fill") - filled_ns
            end_ns = max(outcome.clock.fetched_ns, end_ns - filled_ns)
        outcome.clock = outcome.clock._replace(end_ns=end_ns)
        return outcome


class _LoaderView:
    """The attributes of a loader that torch's iterator reads."""

    _order: Callable[[], Iterator[Any]]

    # With this kind, torch's iterator does not use the dataset when it is made.
    _dataset_kind = _DatasetKind.Map

    def __init__(self, plan: EpochPlan, reported: int | None) -> None:
        vars(self).update(
            vars(plan.config),
            _order=plan.order(),
            _IterableDataset_len_called=reported,
            _auto_collation=plan.config.batched,
            generator=plan.seeding(),
            pin_memory=plan.config.pinned,
        )

    @property
    def _index_sampler(self) -> _LoaderView:
        return self

    def __iter__(self) -> Iterator[Any]:
        return self._order()


def drawn(order: Iterator[_Item]) -> Iterator[_Item]:
    """The same items; the first one is drawn now.

    Not itertools.chain, which calls ``iter(order)``: a user's iterator may start again then.
    """
    first = next(order, ENDED)

    def items() -> Iterator[_Item]:
        item = first
        while item is not ENDED:
            yield item
            item = next(order, ENDED)

    return items()
