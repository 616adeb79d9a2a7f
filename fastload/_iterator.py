"""One epoch of a loader whose batches an engine fills.

How it runs
    The consumer (the thread of the training loop) draws the order, because samplers may be the
    user's code. It keeps ``prefetch`` index batches ahead in a queue. One producer thread turns
    them into tickets of the engine, waits for each in order, and passes the images on. At every
    ``next`` the consumer adds one index batch and takes one batch of images.
How it ends
    success    the order is exhausted: the producer ends after the last batch.
    failure    an error travels in the place of its batch and is raised at that ``next``; the
               batches after it can still be had, as in torch's DataLoader.
    early exit ``close`` (also when the iterator is dropped, and at interpreter exit) ends the
               queue, cancels what is being filled, and joins the producer.
With ``prefetch=0`` there is no thread: every batch is made inside ``next``.
"""

from __future__ import annotations

import _thread
import atexit
import collections
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from ._engine.decoder import Decoder, Ticket
from ._source import Source
from ._trace import Stamps

_live: weakref.WeakSet[BatchIterator] = weakref.WeakSet()


class BatchIterator(Iterator[Any]):
    """Iterates over the batches of one epoch.

    Args:
        source: what is read.
        decoder: what fills the batches.
        order: index batches (int64 arrays), iterated on the consumer's thread.
        assemble: (images, record numbers) -> the batch the caller gets.
        prefetch: batches ahead of the consumer; 0 works without a thread.
        seed, epoch: of the augmentation.
        stamps: where times are added up.
    """

    def __init__(
        self,
        *,
        source: Source,
        decoder: Decoder,
        order: Iterator[np.ndarray],
        assemble: Callable[[torch.Tensor, np.ndarray], Any],
        prefetch: int,
        seed: int,
        epoch: int,
        stamps: Stamps,
        length: int,
    ) -> None:
        self._source = source
        self._order = order
        self._assemble = assemble
        self._stamps = stamps
        self._length = length
        self._pipeline = _Pipeline(decoder, seed, epoch, stamps)
        self._ahead: collections.deque[np.ndarray] = collections.deque()
        self._prefetch = prefetch
        self._finalizer = weakref.finalize(self, _close_for_good, self._pipeline)
        self._finalizer.atexit = False  # _close_all does it, before the interpreter is torn down
        if prefetch:
            self._pipeline.start()
            for _ in range(prefetch):
                self._order_one()
        _live.add(self)

    def __len__(self) -> int:
        return self._length

    def __next__(self) -> Any:
        begin = time.perf_counter_ns()
        self._order_one()
        if not self._ahead:
            self.close()
            raise StopIteration
        records = self._ahead.popleft()
        images = self._pipeline.next(records)
        batch = self._assemble(images, records)
        self._stamps.batch(len(records), time.perf_counter_ns() - begin)
        return batch

    def close(self) -> None:
        """End this epoch now. Nothing runs and nothing is written afterwards."""
        self._pipeline.close()
        self._finalizer.detach()

    def _order_one(self) -> None:
        """Draw one more index batch, if there is one, and hand it to the producer."""
        indices = next(self._order, None)
        if indices is None:
            return
        begin = time.perf_counter_ns()
        records = self._source.lookup(indices)
        self._ahead.append(records)
        if self._prefetch:
            self._pipeline.put(records)
        self._stamps.stage("order", time.perf_counter_ns() - begin)


class _Pipeline:
    """The producer's side: no reference to the iterator, so that dropping the iterator ends it."""

    def __init__(self, decoder: Decoder, seed: int, epoch: int, stamps: Stamps) -> None:
        self._decoder = decoder
        self._seed = seed
        self._epoch = epoch
        self._stamps = stamps
        self._tasks: queue.SimpleQueue[np.ndarray | None] = queue.SimpleQueue()
        self._results: Any = None
        self._closing = threading.Event()
        decoder.acquire(self)

    def start(self) -> None:
        from prefetch_generator import BackgroundGenerator

        # Unbounded: the number of tasks bounds it, and a producer that never blocks on a full queue
        # can always be ended (with a bound, leaving early would leave it blocked for ever).
        self._results = BackgroundGenerator(self._produce(), max_prefetch=0)

    def put(self, records: np.ndarray) -> None:
        self._tasks.put(records)

    def next(self, records: np.ndarray) -> torch.Tensor:
        """The images of the next batch, which has ``records``."""
        if self._results is None:
            outcome = self._finish(self._submit(records))
        else:
            outcome = next(self._results)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def close(self) -> None:
        """End the producer. May be called again if it was interrupted."""
        self._closing.set()
        self._tasks.put(None)  # also to a thread whose start was interrupted
        if self._results is not None:
            if self._results is not threading.current_thread():
                self._results.join()
            while not self._results.queue.empty():  # let go of the slabs of batches nobody wants
                self._results.queue.get()
        self._decoder.release(self)

    def _produce(self) -> Iterator[torch.Tensor | BaseException]:
        """Fill batches in order, with as many in the engine at a time as were asked for."""
        tickets: collections.deque[Ticket | BaseException] = collections.deque()
        try:
            while not self._closing.is_set():
                while not tickets or not self._tasks.empty():
                    records = self._tasks.get()
                    if records is None or self._closing.is_set():
                        return
                    tickets.append(self._submit(records))
                yield self._finish(tickets.popleft())
        finally:
            for ticket in tickets:
                if isinstance(ticket, Ticket):
                    ticket.cancel()

    def _submit(self, records: np.ndarray) -> Ticket | BaseException:
        begin = time.perf_counter_ns()
        try:
            return self._decoder.submit(records, seed=self._seed, epoch=self._epoch)
        except Exception as error:  # noqa: BLE001 - raised in the consumer, at this batch
            return error
        finally:
            self._stamps.stage("prepare", time.perf_counter_ns() - begin)

    def _finish(self, ticket: Ticket | BaseException) -> torch.Tensor | BaseException:
        if isinstance(ticket, BaseException):
            return ticket
        try:
            images = ticket.result()
        except Exception as error:  # noqa: BLE001 - raised in the consumer, at this batch
            return error
        except BaseException:  # Ctrl-C while the caller's thread decodes: nothing may go on writing
            ticket.cancel()
            raise
        for name, nanoseconds in ticket.stages_ns().items():
            self._stamps.stage(name, nanoseconds)
        return images


def _close_for_good(pipeline: _Pipeline) -> None:
    """Close, although Ctrl-C arrives meanwhile: Python swallows what a finalizer raises."""
    try:
        pipeline.close()
    except KeyboardInterrupt:
        pipeline.close()
        _thread.interrupt_main()  # raised again where the program can see it


def _close_all() -> None:
    for iterator in list(_live):
        iterator.close()


atexit.register(_close_all)
