"""The transfer stage: moves batches to the device while the caller computes.

How it runs
    Everything happens on the consumer's thread, inside ``next``; the device works asynchronously.
    There is one side stream for the loader's life. ``next`` takes batches from the inner stream
    until ``ahead`` of them are on the device or in flight, in addition to the one it returns. But
    if it has a batch to return, it does not wait for one that is not ready.
    For each batch, the side stream first waits for an event that marks everything the caller has
    queued so far (``follow``): memory that the caller has freed may be reused for the copies. Then
    come the copies, the device stage, ``batch_transform``, and a mark. When the batch is returned,
    the caller's stream waits for the mark (``hand_over``), so the caller only sees complete ones.
    Until the mark after its copies is done, a *transfer in flight* owns the host memory: the batch
    itself, and what it was staged in. Only then may an engine fill its slab again.
    At most ``ahead + 1`` transfers are in flight when ``next`` starts; if there are more, the host
    waits for the oldest. A copy waits for the caller's earlier steps, so the host is at most
    ``ahead + 3`` steps ahead of the device, and neither host nor device memory grows.
What is pinned
    Slabs, when a batch first arrives in one: the engine's, and the shared memory that workers
    collate into. Other tensors are first copied into pinned memory of torch's, but for small ones.
    None of it is handed out: the caller gets device memory.
How it ends
    success    the inner stream is exhausted: batches in flight are returned, then StopIteration.
    failure    an error of the inner stream or of ``batch_transform`` takes the place of its batch;
               the batches after it can still be taken. Copies that had started are a transfer in
               flight like any other.
    cancel     an exception from outside (Ctrl-C) while a batch is being moved loses that batch; its
               copies are a transfer in flight like any other.
    early exit ``close``, or dropping the iterator, waits for all transfers in flight; then their
               host memory is freed.
    capture    while a CUDA graph is captured, CUDA must not be queried: ``next`` raises, and the
               transfers of an iterator that is dropped are waited for by the next ``next`` of any
               iterator.
    fork       a child has no device: ``next`` raises there, and dropping the iterator does nothing.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import functools
import os
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from ..._base import nested
from ..._base.devices.accelerator import Accelerator, Mark
from ..._base.devices.mover import Mover
from ..._base.trace import Stamps
from ..maker import Maker, Outcome, Stage, below, check_process

if TYPE_CHECKING:
    from .delivery import Finisher

_SAMPLED = 16  # without a timeline, only one in so many batches is timed


# Transfers in flight whose iterator was dropped while a CUDA graph was captured.
_orphaned = list["_InFlight"]()

# Settled when the interpreter exits, while torch's modules are still whole.
_alive: weakref.WeakSet[_InFlight] = weakref.WeakSet()


class _InFlight:
    """Owns host memory until the copies from it are done. Deleting it waits for all of them."""

    def __init__(self, accelerator: Accelerator | None) -> None:
        self._accelerator = accelerator
        self._pid = os.getpid()
        self._transfers = collections.deque[tuple[Mark, list[object], Callable[[], None] | None]]()
        _alive.add(self)

    def __len__(self) -> int:
        return len(self._transfers)

    def add(self, mark: Mark, held: list[object], done: Callable[[], None] | None) -> None:
        """Keep ``held`` until ``mark`` is done, and call ``done`` then."""
        self._transfers.append((mark, held, done))

    def settle(self, most: int = 0) -> None:
        """Free what is done, and wait until at most ``most`` transfers are left."""
        if not self._transfers or os.getpid() != self._pid:
            return
        if self._accelerator is not None and self._accelerator.capturing():
            return
        self.free(most)

    def free(self, most: int) -> None:
        """As ``settle``, in a process and at a time that may ask the device."""
        while self._transfers:
            mark, _, done = self._transfers[0]
            if not mark.done():
                if len(self._transfers) <= most:
                    return
                mark.wait()
            self._transfers.popleft()
            if done is not None:
                done()

    def __del__(self) -> None:
        self.settle()
        if self._transfers and os.getpid() == self._pid:
            _orphaned.append(self)


def _settle_all() -> None:
    for in_flight in list(_alive):
        in_flight.settle()


atexit.register(_settle_all)


@contextlib.contextmanager
def _no_inference_mode() -> Iterator[None]:
    """Within it, new tensors support autograd.

    A batch that is moved while the caller is in inference mode may be used for training later.
    """
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


class Delivery(Stage):
    """The batches of a maker, moved to the device by ``mover`` and finished for the caller.

    Without a mover they stay in host memory. ``number`` is that of the first batch in the epoch.
    """

    def __init__(
        self, maker: Maker, mover: Mover | None, finisher: Finisher, stamps: Stamps, number: int
    ) -> None:
        super().__init__(maker)
        self._mover = mover
        self._finisher = finisher
        self._stamps = stamps
        self._number = number
        self._given = number  # of the batches that were taken: those in outcomes
        self._ahead = 0 if mover is None else mover.ahead
        self._ready = collections.deque[tuple[Outcome, Mark | None]]()
        self._late: Exception | None = None  # what the maker raised after those
        self._in_flight = _InFlight(None if mover is None else mover.accelerator)
        self._ended = False
        self._moved = self._timed = 0  # batches moved; the value of that when one was last timed
        self._pid = os.getpid()

    def settle(self) -> None:
        """Wait until at most ``ahead + 1`` transfers are left: the device is at earlier steps."""
        if self._mover is None:
            return
        check_process(self._pid)
        self._mover.accelerator.follow()  # first, because it raises while a graph is captured
        while _orphaned:
            _orphaned.pop().settle()
        self._in_flight.free(self._ahead + 1)

    def ready(self) -> bool:
        return bool(self._ready) or self._ended or self._maker.ready()

    def __next__(self) -> Outcome:
        while self._wants():
            self._pull()
        if not self._ready:
            if self._late is None:
                raise StopIteration
            late, self._late = self._late, None
            try:
                raise late
            finally:
                del late  # its traceback refers to this frame: a cycle that keeps the maker alive
        outcome, mark = self._ready.popleft()
        if self._mover is not None and mark is not None:
            batch = outcome.batch
            self._mover.accelerator.hand_over(mark, lambda: nested.all_tensors(batch))
        return outcome

    def close(self) -> None:
        """End this epoch now; then no copy is in flight (unless a graph is being captured)."""
        self._ended = True
        self._ready.clear()
        self._maker.close()
        self._in_flight.settle()

    def _wants(self) -> bool:
        """Whether to take one more batch now."""
        if self._ended or self._late is not None or len(self._ready) > self._ahead:
            return False
        if not self._ready:
            return True
        if self._ready[-1][0].error is not None:
            return False  # raise it first: the maker may end after it
        return self._maker.ready()

    def _pull(self) -> None:
        """Take one more batch, and start to move it."""
        try:
            outcome = next(self._maker)
        except StopIteration:
            self._ended = True
            return
        except Exception as error:  # noqa: BLE001 - raised after the batches before it
            self._late = below(error)
            return
        self._number += outcome.taken
        mark = None
        if outcome.error is None and not outcome.empty:
            item, number = outcome.batch, self._number - 1
            try:
                if self._mover is None:
                    moved = self._finisher.to_move(item)
                    outcome.batch = self._finisher.finish(item, moved, number)
                else:
                    mark, outcome.batch = self._move(self._mover, item, number)
            except Exception as error:  # noqa: BLE001 - raised in place of its batch
                outcome.batch, outcome.error = None, below(error)
        outcome.taken, self._given = self._number - self._given, self._number
        self._ready.append((outcome, mark))

    def _move(self, mover: Mover, item: Any, number: int) -> tuple[Mark, Any]:
        accelerator, stamps, held = mover.accelerator, self._stamps, list[object]()
        self._moved += 1
        weight = self._moved - self._timed
        timed = stamps.timeline is not None or self._moved == 1 or weight >= _SAMPLED
        marks = list[Mark]()
        try:
            with _no_inference_mode(), accelerator.side():
                begin = time.perf_counter_ns()
                staged = mover.stage(self._finisher.to_move(item), held)
                stamps.stage("staging", begin)
                if timed:
                    marks.append(accelerator.mark(timed=True))
                begin = time.perf_counter_ns()
                moved = mover.copied(staged)
                stamps.stage("move", begin)
                if timed:
                    marks.append(accelerator.mark(timed=True))
                batch = self._finisher.finish(item, moved, number)
        finally:
            mark = accelerator.mark(timed=timed)
            record: Callable[[], None] | None = None
            if len(marks) == 2:
                self._timed = self._moved
                record = functools.partial(
                    _record_times, accelerator, stamps, weight, [*marks, mark]
                )
            self._in_flight.add(mark, held, record)
        return mark, batch


def _record_times(accelerator: Accelerator, stamps: Stamps, weight: int, marks: list[Mark]) -> None:
    """Add the device times of a batch, as an estimate for ``weight`` batches.

    ``marks``: before its copies, behind them, and where it is finished.
    """
    began, copied, finished = marks
    copy_ns, device_ns = copied.since(began), finished.since(copied)
    stamps.work({"copy": weight * copy_ns, "device": weight * device_ns})
    if stamps.timeline is None:
        return
    track, at_ns = f"{accelerator.device} side stream", copied.at_ns()
    stamps.timeline.track(track, "copy", at_ns - copy_ns, at_ns)
    stamps.timeline.track(track, "device", at_ns, at_ns + device_ns)
    stamps.count(**accelerator.memory())
