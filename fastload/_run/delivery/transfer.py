"""The transfer stage: batches on the device, copied beside the caller's work.

How it runs
    Everything happens on the consumer's thread, within ``next``; the device works by itself. There
    is one side stream for the loader's life. ``next`` takes batches from the iterator behind until
    ``ahead`` of them are on the device or on their way there besides the one it returns; but it
    does not wait for a batch that is not ready while it has one to return.
    For each batch, in the side stream: first, an event says that whatever the caller has put into
    his stream so far is done (``follow``), as memory that he has let go of may be written to; then
    come the copies, the device stage, ``batch_transform``, and a mark. When the batch is returned,
    the caller's stream waits for its mark (``hand_over``): he sees it only when it is whole.
    Host memory belongs to a *flight* until the mark behind its copies is done: the batch itself,
    and the slab that it was staged in. Only then may an engine fill its slab again.
    At most ``ahead + 1`` flights are under way when ``next`` begins; beyond that the host waits for
    the oldest. A copy waits for the caller's earlier steps, so the host is at most ``ahead + 3``
    steps ahead of the device, and neither host nor device memory grows.
What is pinned
    Slabs, once, when a batch first comes in one: those of the engine, those of shared memory that
    workers collate into, and for any other batch our own, into which it is copied first. None of
    them leaves this stage: the caller gets device memory. Small batches are not staged.
How it ends
    success    the iterator behind is exhausted: what is under way is returned, then StopIteration.
    failure    an error behind, or in ``batch_transform``, travels in the place of its batch; those
               after it can still be had. Copies of it that had begun are a flight like others.
    cancel     an exception from outside (Ctrl-C) while a batch is being moved loses that batch; its
               copies are a flight like others.
    early exit ``close``, or dropping the iterator, waits until every flight has ended; then its
               host memory may go.
    capture    of a CUDA graph: nobody may ask CUDA anything then, so ``next`` raises, and flights
               of an iterator that is let go of are waited for by the next one that is used.
    fork       a child has no device: there ``next`` raises, and letting go does nothing.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from ..._base import nested
from ..._base.devices.accelerator import Accelerator, Mark
from ..._base.devices.mover import Mover
from ..._base.trace import Stamps
from ...errors import UsageError
from ..producer import below
from ..stream import BatchStream

_SAMPLED = 16  # without a timeline, the copies of one batch in so many are timed


# What went while a graph was captured, with copies under way.
_left = list["_Flights"]()


class _Flights:
    """Host memory that copies read from, until they are done. Its end waits for all of them."""

    def __init__(self, accelerator: Accelerator | None) -> None:
        self._accelerator = accelerator
        self._pid = os.getpid()
        self._flying = collections.deque[tuple[Mark, list[Any], Callable[[], None] | None]]()

    def __len__(self) -> int:
        return len(self._flying)

    def add(self, mark: Mark, held: list[Any], landed: Callable[[], None] | None) -> None:
        """Keep ``held`` until ``mark`` is done, and call ``landed`` then."""
        self._flying.append((mark, held, landed))

    def settle(self, most: int = 0) -> None:
        """Let go of what is done; wait until at most ``most`` flights are left."""
        if not self._flying or os.getpid() != self._pid:
            return
        if self._accelerator is not None and self._accelerator.capturing():
            return
        while self._flying:
            mark, _, landed = self._flying[0]
            if not mark.done():
                if len(self._flying) <= most:
                    return
                mark.wait()
            self._flying.popleft()
            if landed is not None:
                landed()

    def __del__(self) -> None:
        self.settle()
        if self._flying and os.getpid() == self._pid:
            _left.append(self)


@dataclasses.dataclass
class _Landing:
    """A batch on the device or on its way there, or the error in its place."""

    note: Any
    samples: int = 0
    batch: Any = None
    mark: Mark | None = None
    error: Exception | None = None


class Finisher(Protocol):
    """What a loader makes of what the iterator behind gave, and what it wants to know."""

    def to_move(self, item: Any) -> Any:
        """What of it goes to the device."""

    def finish(self, item: Any, moved: Any, number: int) -> Any:
        """The caller's batch; ``number`` counts batches within the epoch. In the side stream."""

    def note(self) -> tuple[int, Any]:
        """The number of the batch that was just taken, and how far the iterator behind has come."""

    def returned(self, note: Any) -> None:
        """The batch that ``note`` was made behind, or its error, goes to the caller now."""


@contextlib.contextmanager
def _ordinary() -> Iterator[None]:
    """Within it, tensors are made that gradients can be taken with.

    A batch that is moved while the caller is in inference mode may reach him when he trains.
    """
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


class Delivery(Iterator[Any]):
    """The batches of ``inner`` as the caller gets them: on the device, finished.

    Args:
        inner: gives batches in host memory.
        mover: to the device; None leaves batches in host memory.
        finisher: what else is done with them.
        stamps: where times are added up.
    """

    def __init__(
        self, inner: BatchStream, mover: Mover | None, finisher: Finisher, stamps: Stamps
    ) -> None:
        self._inner = inner
        self._mover = mover
        self._finisher = finisher
        self._stamps = stamps
        self._taken = stamps.held = []
        self._ahead = 0 if mover is None else mover.ahead
        self._ready = collections.deque[_Landing]()
        self._flights = _Flights(None if mover is None else mover.accelerator)
        self._ended = False
        self._moved = self._timed = 0  # batches so far; how many there were when one was timed
        self._pid = os.getpid()

    def __len__(self) -> int:
        return len(self._inner)

    def ready(self) -> bool:
        """As in BatchStream."""
        return bool(self._ready) or self._ended or self._inner.ready()

    def __next__(self) -> Any:
        if self._mover is not None:
            if os.getpid() != self._pid:
                raise UsageError(
                    "the iterator is of the process before the fork; make one in this one"
                )
            self._mover.accelerator.follow()  # first: it refuses where a graph is captured
            while _left:
                _left.pop().settle()
            # The loop's own time: what is waited for is its earlier steps.
            self._flights.settle(self._ahead + 1)
        begin = time.perf_counter_ns()
        while self._wants():
            self._pull()
        if not self._ready:
            self._finisher.returned(self._finisher.note()[1])
            self._stamps.exhausted(begin)
            raise StopIteration
        landing = self._ready.popleft()
        self._finisher.returned(landing.note)
        if landing.error is not None:
            try:
                raise landing.error
            finally:
                del landing  # its traceback holds this frame: the cycle would keep what is behind
        batch, mark = landing.batch, landing.mark
        if self._mover is not None and mark is not None:
            self._mover.accelerator.hand_over(mark, lambda: nested.tensors(batch))
        self._stamps.handed(landing.samples, begin)
        return batch

    def close(self) -> None:
        """End this epoch now; afterwards no copy is under way (but while a graph is captured)."""
        self._ended = True
        self._ready.clear()
        self._inner.close()
        self._flights.settle()

    def _wants(self) -> bool:
        """Whether to take one more batch now."""
        if self._ended or len(self._ready) > self._ahead:
            return False
        if not self._ready:
            return True
        if self._ready[-1].error is not None:
            return False  # raised first: it may be the last thing that the iterator behind does
        return self._inner.ready()

    def _pull(self) -> None:
        """Take one more batch, and begin to move it."""
        try:
            item = next(self._inner)
        except StopIteration:
            self._ended = True
            return
        except Exception as error:  # noqa: BLE001 - raised at its batch; those before it come first
            self._ready.append(_Landing(self._finisher.note()[1], error=below(error)))
            return
        samples = self._taken.pop()
        number, note = self._finisher.note()
        landing = _Landing(note, samples)
        try:
            if self._mover is None:
                landing.batch = self._finisher.finish(item, self._finisher.to_move(item), number)
            else:
                landing.mark, landing.batch = self._move(self._mover, item, number)
        except Exception as error:  # noqa: BLE001 - as above
            landing.error = below(error)
        self._ready.append(landing)

    def _move(self, mover: Mover, item: Any, number: int) -> tuple[Mark, Any]:
        accelerator, stamps, held = mover.accelerator, self._stamps, list[Any]()
        self._moved += 1
        weight = self._moved - self._timed
        timed = (
            stamps.timeline is not None
            or not accelerator.overlaps
            or self._moved == 1
            or weight >= _SAMPLED
        )
        landed: Callable[[Mark], None] | None = None
        try:
            with _ordinary(), accelerator.side():
                begin = time.perf_counter_ns()
                staged = mover.stage(self._finisher.to_move(item), held)
                stamps.stage("staging", begin)
                began = accelerator.mark(timed=timed)
                begin = time.perf_counter_ns()
                moved = mover.copied(staged)
                stamps.stage("move", begin)
                copied = accelerator.mark(timed=timed)
                batch = self._finisher.finish(item, moved, number)
            if timed:
                self._timed = self._moved
                landed = functools.partial(_landed, accelerator, stamps, weight, began, copied)
        finally:
            mark = accelerator.mark(timed=timed)
            self._flights.add(mark, held, landed and functools.partial(landed, mark))
        return mark, batch

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __reduce__(self) -> Any:
        return self._inner.__reduce__()  # torch's says that it cannot be pickled


def _landed(
    accelerator: Accelerator, stamps: Stamps, weight: int, began: Mark, copied: Mark, mark: Mark
) -> None:
    """Add up what a batch took on the device, and what ``weight - 1`` others like it took."""
    copy_ns, device_ns = copied.since(began), mark.since(copied)
    stamps.work({"copy": weight * copy_ns, "device": weight * device_ns})
    if stamps.timeline is None:
        return
    track, at_ns = f"{accelerator.device} side stream", copied.at_ns()
    stamps.timeline.track(track, "copy", at_ns - copy_ns, at_ns)
    stamps.timeline.track(track, "device", at_ns, at_ns + device_ns)
    stamps.count(**accelerator.memory())
