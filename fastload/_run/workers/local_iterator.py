"""LocalIterator: an epoch of a user's Dataset in this process, each batch made in ``next``.

There is no task, queue or thread between the consumer and the dataset. A loop over tiny samples
costs no more than with torch, because this is torch's iterator with another ``__next__``.

How it ends: when the sampler ends; for an iterable dataset, when its iterator ends. As in torch, a
batch that raises counts as consumed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from torch._C._autograd import _profiler_enabled
from torch.autograd.profiler import record_function
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter

from ..._base import randomness
from ..._base.trace import Clock
from ..config import LoaderConfig
from ..epoch_plan import EpochPlan
from ..progress import Position
from .fetch import Fetcher, Wanted
from .tasks import ENDED, IndexCounter, drawn
from .worker_iterator import warn_of_length

_NO_BATCH = object()  # all samples were skipped, or there are no more

_NAME = f"enumerate(DataLoader)#{_SingleProcessDataLoaderIter.__name__}.__next__"


class LocalIterator(_SingleProcessDataLoaderIter):
    """Iterates over the batches of one epoch.

    Args:
        config: the loader's.
        fetcher: makes the samples.
        plan: the epoch's. If the epoch is resumed, the start of the order is drawn now rather than
            with the first batch, and ``iter`` of an iterable dataset is called with the first batch
            rather than now.
        reported: the length that an IterableDataset gave, or None.
    """

    def __init__(
        self, config: LoaderConfig, fetcher: Fetcher, plan: EpochPlan, *, reported: int | None
    ) -> None:
        super().__init__(_LoaderView(config, plan, reported))
        self._dataset_kind = _DatasetKind.Iterable if config.iterable else _DatasetKind.Map
        self._index_sampler = config.index_sampler
        self._fetcher = fetcher
        self._repeats = IndexCounter(plan.times) if plan.repeats else None
        self._progress = progress = plan.progress
        self._bad = plan.bad
        self._stamps = plan.stamps
        self._images = plan.images
        self._samples = 0
        self._process = os.getpid()
        self._closed = False
        if fetcher.resumable is not None:
            progress.workers = progress.workers or [Position()]
            # As in torch; a seed applies from the first batch.
            if not plan.resumed and not fetcher.seeds:
                fetcher.resumable.begin(progress.epoch, 0)
                progress.workers[0] = fetcher.position() or Position()
        if fetcher.iterable:
            return
        for _ in range(plan.skip):
            indices: Any = next(self._sampler_iter, ENDED)
            if indices is ENDED:
                break  # a damaged state may have any number
            if self._repeats is not None:
                self._repeats.count(indices)
        if plan.resumed:
            self._sampler_iter = drawn(self._sampler_iter)

    def __next__(self) -> Any:
        # record_function costs as much as a small batch, and only torch's profiler reads it.
        if _profiler_enabled():
            with record_function(_NAME):
                return self._next()
        return self._next()

    def _next(self) -> Any:
        asked_ns = time.perf_counter_ns()
        batch = _NO_BATCH
        if self._closed:
            raise StopIteration
        try:
            while batch is _NO_BATCH:
                batch = self._batch(asked_ns)
        except StopIteration:
            if not self._progress.ended:
                self._progress.ended = True
                if self._fetcher.resumable is not None:
                    self._fetcher.resumable.finish(self._progress.epoch)
                self._bad.report(self._progress.epoch, self._samples)
            self._stamps.ended(asked_ns)
            raise
        self._num_yielded += 1
        reported: int | None = self._IterableDataset_len_called
        if reported is not None and self._num_yielded > reported:
            warn_of_length(self._dataset, reported, self._num_yielded)
        return batch

    def ready(self) -> bool:
        """As in BatchStream: each batch is made in ``next``."""
        return True

    def close(self) -> None:
        """As in BatchStream."""
        self._closed = True

    def _batch(self, asked_ns: int) -> Any:
        """The next batch, or ``_NO_BATCH``. Raises StopIteration at the end."""
        fetcher, progress = self._fetcher, self._progress
        try:
            indices = None if fetcher.iterable else next(self._sampler_iter)
            # The generators of this process are the user's: their states are restored.
            state = randomness.get() if fetcher.seeds else None
            try:
                filled_ns = self._stamps.spent_ns("fill")
                begin_ns = time.perf_counter_ns()
                repeats = None if self._repeats is None else self._repeats.count(indices)
                made = fetcher.make(Wanted(indices, progress.epoch, repeats, begin_ns))
            finally:
                if state is not None:
                    randomness.put(state)
            empty = made.samples is None
            batch = _NO_BATCH if empty else made.batch
            if self._pin_memory and not empty:
                batch = pin_memory(batch, self._pin_memory_device)  # type: ignore[no-untyped-call]
        except StopIteration:
            raise
        except Exception:
            progress.batch()
            reached = fetcher.position()
            if reached is not None:
                progress.workers[0] = reached
            raise
        position, bad, count = made.position, made.bad, made.samples or 0
        if position is not None:
            progress.workers[0] = position
        if not (fetcher.iterable and empty):
            progress.batch()
        self._samples += count + len(bad)
        if bad:
            self._bad.add(bad, self._samples)
        if made.report is not None:
            self._images.add(made.report)
        if not empty:
            # The core fills what was recorded after all else, which is a stage of its own.
            filled_ns = self._stamps.spent_ns("fill") - filled_ns
            end_ns = max(made.fetched_ns, time.perf_counter_ns() - filled_ns)
            self._stamps.worker(
                Clock(self._process, begin_ns, made.fetched_ns, end_ns, made.blocked_ns)
            )
            self._stamps.batch(count, asked_ns)
        elif position is not None and position.ended:
            raise StopIteration
        return batch


class _LoaderView:
    """The attributes of a loader that torch's iterator reads."""

    # With this kind, torch's iterator does not use the dataset when it is made.
    _dataset_kind = _DatasetKind.Map

    def __init__(self, config: LoaderConfig, plan: EpochPlan, reported: int | None) -> None:
        self._config = config
        self._order = plan.order(config)
        self._IterableDataset_len_called = reported
        self.generator = plan.seeding(config)
        self.pin_memory = config.pinned

    @property
    def _auto_collation(self) -> bool:
        return self._config.batched

    @property
    def _index_sampler(self) -> _LoaderView:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(self._order())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)
