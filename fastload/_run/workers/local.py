"""One epoch of a loader that runs the user's Dataset in this process, when a batch is asked for.

Nothing stands between the consumer and his dataset: no task, no queue, no thread. A loop over tiny
samples costs no more than torch's, whose iterator this is, with a ``__next__`` of its own.

How it ends: when the sampler does; of an iterable dataset, when its iterator does. A batch that
raises is behind us, as in torch.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch._C._autograd import _profiler_enabled
from torch.autograd.profiler import record_function
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter

from ..._base.trace import Clock, Stamps
from ..bad_samples.policy import BadSample, BadSamples
from ..delivery import delivery
from ..progress import Position, Progress
from . import randomness
from .epoch import too_long
from .fetch import Fetcher
from .tasks import Repeats, drawn

_NOTHING = object()  # in the place of a batch whose samples were all skipped

_NAME = f"enumerate(DataLoader)#{_SingleProcessDataLoaderIter.__name__}.__next__"


class LocalIterator(_SingleProcessDataLoaderIter):
    """Iterates over the batches of one epoch.

    Args:
        loader: a FastLoader; it is not kept.
        fetcher: makes its samples.
        order: gives the epoch's indices; called when torch would ask a sampler for its iterator.
        skip: how many of them are left out.
        repeats: whether it matters how often an index came before.
        generator: what torch draws the seed from that it does not need here.
        at_once: the beginning of the order is drawn now rather than with the first batch; an
            iterable dataset, which goes on with a state then, is asked for its iterator there.
        progress: is kept up to date.
        bad: samples that cannot be made are counted there.
        stamps: where times are added up.
    """

    def __init__(
        self,
        loader: Any,
        fetcher: Fetcher,
        order: Callable[[], Iterable[Any]],
        *,
        skip: int,
        repeats: bool,
        generator: torch.Generator | None,
        at_once: bool,
        progress: Progress,
        bad: BadSamples,
        stamps: Stamps,
    ) -> None:
        super().__init__(_View(loader, order, generator))
        self._dataset_kind = loader._dataset_kind
        self._index_sampler = loader._index_sampler
        self._fetcher = fetcher
        self._repeats = Repeats() if repeats else None
        self._progress = progress
        self._bad = bad
        self._stamps = stamps
        self._samples = 0
        self._process = os.getpid()
        if fetcher.iterable or fetcher.stateful:
            progress.workers = progress.workers or [Position()]
            if not at_once and not fetcher.seeds:  # as torch does; a seed is for the first batch
                fetcher.begin(progress.epoch, 0)
                progress.workers[0] = fetcher.stands() or Position()
        if fetcher.iterable:
            return
        for _ in range(skip):
            indices: Any = next(self._sampler_iter, [])
            if self._repeats is not None:
                self._repeats.of(indices)
        if at_once:
            self._sampler_iter = drawn(self._sampler_iter)

    def __next__(self) -> Any:
        # torch's record costs as much as a small batch, and only its profiler reads it.
        if _profiler_enabled():
            with record_function(_NAME):
                return self._next()
        return self._next()

    def _next(self) -> Any:
        asked_ns = time.perf_counter_ns()
        batch = _NOTHING
        try:
            while batch is _NOTHING:
                batch = self._batch(asked_ns)
        except StopIteration:
            if not self._progress.ended:
                self._progress.ended = True
                self._fetcher.settle(self._progress.epoch)
                self._bad.report(self._progress.epoch, self._samples)
            self._stamps.ended(asked_ns)
            raise
        self._num_yielded += 1
        reported: Any = self._IterableDataset_len_called
        if reported is not None and self._num_yielded > reported:
            warnings.warn(too_long(self._dataset, reported, self._num_yielded), stacklevel=3)
        return batch

    def _batch(self, asked_ns: int) -> Any:
        """The next batch, or ``_NOTHING``. Raises StopIteration at the end."""
        fetcher, progress = self._fetcher, self._progress
        try:
            indices = None if fetcher.iterable else next(self._sampler_iter)
            # Random numbers of this process are the user's own.
            state = randomness.get() if fetcher.seeds else None
            try:
                begin_ns = time.perf_counter_ns()
                samples, bad, position = self._fetch(indices, begin_ns)
                fetched_ns = time.perf_counter_ns()
                blocked_ns = fetcher.waiting.end(begin_ns, fetched_ns)
                empty = not len(samples) and (bad or fetcher.iterable)
                batch = _NOTHING if empty else fetcher.collate(samples)
            finally:
                if state is not None:
                    randomness.put(state)
            if self._pin_memory and not empty:
                batch = pin_memory(batch, self._pin_memory_device)  # type: ignore[no-untyped-call]
        except StopIteration:
            raise
        except Exception:
            progress.batch()
            stands = fetcher.stands()
            if stands is not None:
                progress.workers[0] = stands
            raise
        if position is not None:
            progress.workers[0] = position
        if not (fetcher.iterable and empty):
            progress.batch()
        count = 0 if empty else len(samples) if fetcher.batched else 1
        self._samples += count + len(bad)
        if bad:
            self._bad.add(bad, self._samples)
        if not empty:
            end_ns = time.perf_counter_ns()
            self._stamps.worker(Clock(self._process, begin_ns, fetched_ns, end_ns, blocked_ns))
            self._stamps.batch(count, asked_ns)
        elif position is not None and position.ended:
            raise StopIteration
        return batch

    def _fetch(self, indices: Any, begin_ns: int) -> tuple[Any, list[BadSample], Position | None]:
        """The samples of the next batch, those that could not be made, the dataset's position."""
        fetcher, epoch = self._fetcher, self._progress.epoch
        fetcher.waiting.begin(begin_ns)
        if fetcher.iterable:
            samples, bad, position = fetcher.next_samples(epoch, 0)
            return samples, bad, position
        repeats = None if self._repeats is None else self._repeats.of(indices)
        samples, bad, _ = fetcher.samples(indices, epoch, repeats)
        return samples, bad, fetcher.stands() if fetcher.stateful else None


class _View:
    """What torch's iterator is told of a loader."""

    # That of single indices, for which it asks nothing of the dataset when it is made.
    _dataset_kind = _DatasetKind.Map

    def __init__(
        self,
        loader: Any,
        order: Callable[[], Iterable[Any]],
        generator: torch.Generator | None,
    ) -> None:
        self._loader = loader
        self._order = order
        self.generator = generator
        self.pin_memory = loader.pin_memory and not delivery.accelerated(loader)

    @property
    def _index_sampler(self) -> _View:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(self._order())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
