"""CUDA for the transfer stage: a side stream, events in both directions, memory registered once."""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import mmap
import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from ...errors import UsageError
from .. import callers, nested
from .accelerator import Accelerator, Mark

# Without types in torch: calling them is an error for mypy --strict.
Event: Any = torch.cuda.Event
cudart: Any = torch.cuda.cudart


# Registered memory whose ``Cuda`` was freed while a graph was being captured: as ``Cuda._gone``.
_left = collections.deque[tuple[int, object]]()


def side_stream(device: torch.device) -> torch.cuda.Stream:
    """A stream of torch's, of high priority, so that its work runs beside the default stream's.

    Streams share eight hardware queues (CUDA's ``CUDA_DEVICE_MAX_CONNECTIONS``), and work in one
    queue runs in the order in which it was submitted. torch makes streams of four priorities in
    turn, so every second one of the lowest may share the default stream's queue. That fits what an
    H100 did with such streams: with two of four loaders, copies ran between the steps (1.0 ms of
    64), not beside them. Streams of high priority have not been measured.
    """
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


class on_stream:
    """A context in which work and allocations of this thread use ``stream``.

    torch.cuda.stream makes 110 calls in Python for each use. And by itself it restores the previous
    device in a way that creates a CUDA context there (half a gigabyte), even if nothing uses it: a
    new thread starts with GPU 0, also in the process of another GPU. So where the stream's device
    is not the current one, the device's context encloses the stream's.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._before: torch.cuda.Stream | None = None
        self._device: Any = None  # torch's context

    def __enter__(self) -> None:
        device = self._stream.device.index
        if torch.cuda.current_device() != device:
            self._device = torch.cuda.device(device)
            self._device.__enter__()
        self._before = torch.cuda.current_stream(device)
        torch.cuda.set_stream(self._stream)

    def __exit__(self, *error: object) -> None:
        assert self._before is not None
        torch.cuda.set_stream(self._before)
        if self._device is not None:
            self._device.__exit__(None, None, None)


_refusal: str | None = None


def refusal() -> str | None:
    """Why CUDA has refused to pin memory of ours in this process; None: it has not."""
    return _refusal


def _refused(nbytes: int, error: str) -> None:
    """Note a refusal, and warn about the first one in this process."""
    global _refusal
    if _refusal is not None:
        return
    _refusal = error
    warnings.warn(
        f"CUDA refused to pin {nbytes / 1e6:,.1f} MB of fastload's memory ({error}): batches are "
        "copied once more, into pinned memory that torch allocates. Check the limit on locked "
        "memory (ulimit -l) and how much memory is free",
        stacklevel=callers.stacklevel(),
    )


def _record(tensors: Iterable[torch.Tensor], stream: torch.cuda.Stream) -> None:
    """Let torch's allocator wait for ``stream`` before it reuses the memory of ``tensors``."""
    for tensor in tensors:
        for memory in nested.memory_of(tensor):
            if memory.device == tensor.device:  # a nested tensor's sizes may be on the host
                memory.record_stream(stream)


@functools.cache
def _keep_in_children() -> None:
    """Keep forked children, workers among them, from collecting their parent's garbage.

    There may be batches in it. To free memory on which a stream is recorded, torch calls CUDA: a
    child cannot, and would die.
    """
    os.register_at_fork(after_in_child=gc.freeze)


class _CudaMark(Mark):
    def __init__(self, stream: torch.cuda.Stream, timed: bool, clock: _Clock) -> None:
        # blocking: a waiting host thread leaves its core to the threads that decode
        self.event = Event(enable_timing=timed, blocking=True)
        self.event.record(stream)
        self._clock = clock

    def done(self) -> bool:
        return bool(self.event.query())

    def wait(self) -> None:
        self.event.synchronize()

    def since(self, earlier: Mark) -> int:
        assert isinstance(earlier, _CudaMark)
        return int(earlier.event.elapsed_time(self.event) * 1e6)

    def at_ns(self) -> int:
        return self._clock.at_ns(self.event)


class _Clock:
    """Converts events to the host's clock, relative to an event whose time is known."""

    # CUDA reports differences as float32 milliseconds: a resolution of 4 us after a minute.
    _LASTS_NS = 60_000_000_000

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._zero: Event | None = None
        self._zero_ns = 0

    def at_ns(self, event: Event) -> int:
        if self._zero is None or time.perf_counter_ns() - self._zero_ns > self._LASTS_NS:
            self._zero = Event(enable_timing=True)
            self._zero.record(self._stream)
            self._zero.synchronize()
            self._zero_ns = time.perf_counter_ns()
        # negative if the event came before
        return self._zero_ns + int(self._zero.elapsed_time(event) * 1e6)


class Cuda(Accelerator):
    """A CUDA device with one side stream, created once.

    The memory of batches comes from torch's caching allocator and belongs to the side stream. The
    caller may free it at any time and in any thread: ``hand_over`` records the caller's stream on
    it, so the allocator neither reuses nor unmaps it before the work that this stream holds when
    the memory is freed. ``follow`` alone would not be enough: it orders the side stream after what
    the caller's stream holds when ``next`` begins. Another thread may queue a step and free its
    batch after that, and ``torch.cuda.empty_cache`` with expandable segments waits only for streams
    that were recorded. The price is a few more batches of device memory, as memory is reused only
    after the device has caught up; ``transfer.py`` bounds how far the host runs ahead.
    """

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", index)
        self._side = side_stream(self.device)
        self._clock = _Clock(self._side)
        self._caller: torch.cuda.Stream | None = None  # the caller's current stream
        self._pins: dict[int, bool] = {}  # address -> whether it could be pinned
        self._pinned_nbytes = 0
        # To be unregistered: the address, and the object that keeps the memory mapped until then.
        self._gone: collections.deque[tuple[int, object]] = collections.deque()
        self._pid = os.getpid()
        _keep_in_children()

    @override
    def pin(self, memory: np.ndarray) -> bool:
        """By ``cudaHostRegister``, which pins memory of any size.

        torch's own pinned memory comes in powers of two: up to twice as much for a batch.
        """
        address = memory.ctypes.data
        if address not in self._pins:
            base: object = memory.base
            base = base.obj if isinstance(base, memoryview) else base
            error = self._registered(memory, base)
            self._pins[address] = error is None
            self._pinned_nbytes += memory.nbytes * self._pins[address]
            gone = weakref.finalize(memory, self._unpin, address, memory.nbytes, base)
            gone.atexit = False  # the end of the process unregisters it
            if error is not None:
                _refused(memory.nbytes, error)
        return self._pins[address]

    def _registered(self, memory: np.ndarray, base: object) -> str | None:
        """Pin ``memory``, which is in the map ``base``; returns why that is refused, or None."""
        if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTFORK"):
            # After a fork the pages would be copied on the first write, which would move them
            # while the device copies from them.
            try:
                base.madvise(mmap.MADV_DONTFORK)
            except OSError as error:
                return f"its system: {error}"
        with torch.cuda.device(self.device):
            status = int(cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 1))
        if not status:
            return None
        # The runtime would report its last error for the caller's next kernel. Launching one
        # clears it.
        with contextlib.suppress(RuntimeError):
            torch.empty(1, device=self.device).add_(1)
        return f"CUDA error {status}"

    @override
    def pinned_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Torch's allocator notes in which streams it was copied."""
        with torch.cuda.device(self.device):
            return torch.empty_like(tensor, pin_memory=True)

    def _unpin(self, address: int, nbytes: int, base: object) -> None:
        # Runs in any thread, but only the consumer's may call CUDA: ``follow`` unregisters it.
        if self._pins.pop(address) and os.getpid() == self._pid:
            self._pinned_nbytes -= nbytes
            self._gone.append((address, base))

    def _unregister(self) -> None:
        """Unregister the memory that was freed."""
        for gone in (self._gone, _left):
            while gone:
                address, base = gone.popleft()
                with torch.cuda.device(self.device):
                    cudart().cudaHostUnregister(address)
                del base  # the memory must stay mapped until here

    # A default argument, because at interpreter exit the module's globals may be cleared before
    # this is called.
    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if ending() or os.getpid() != self._pid:
            return
        if (self._gone or _left) and self.capturing():
            _left.extend(self._gone)
        else:
            self._unregister()

    @override
    def pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    @override
    def capturing(self) -> bool:
        if torch.cuda.current_device() == self.device.index:
            return bool(torch.cuda.is_current_stream_capturing())
        with torch.cuda.device(self.device):
            return bool(torch.cuda.is_current_stream_capturing())

    @override
    def follow(self) -> None:
        if self.capturing():
            raise UsageError(
                "a batch was requested while a CUDA graph is being captured: get it before the "
                "capture, and copy it into the tensor that the graph reads"
            )
        self._unregister()
        self._caller = torch.cuda.current_stream(self.device.index)
        self._side.wait_stream(self._caller)

    @override
    def side(self) -> contextlib.AbstractContextManager[object]:
        return on_stream(self._side)

    @override
    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, device=self.device, pin_memory=False)

    @override
    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def _holds(self, tensor: torch.Tensor) -> bool:
        return tensor.device == self.device

    @override
    def adopt(self, tensor: torch.Tensor) -> None:
        """The transfer in flight holds it until this stream is done with it."""
        if self._caller is not None:
            self._side.wait_stream(self._caller)  # the work that fills it may still run there

    @override
    def mark(self, *, timed: bool = False) -> Mark:
        return _CudaMark(self._side, timed, self._clock)

    @override
    def hand_over(self, mark: Mark, tensors: Callable[[], Iterable[torch.Tensor]]) -> None:
        assert isinstance(mark, _CudaMark)
        current = torch.cuda.current_stream(self.device.index)
        current.wait_event(mark.event)
        _record([tensor for tensor in tensors() if self._holds(tensor)], current)

    @override
    def random_state(self) -> torch.Tensor:
        return torch.cuda.default_generators[self.device.index].get_state()

    @override
    def set_random_state(self, state: torch.Tensor) -> None:
        torch.cuda.default_generators[self.device.index].set_state(state)

    @override
    def seed(self, seed: int) -> None:
        torch.cuda.default_generators[self.device.index].manual_seed(seed)

    @override
    def memory(self) -> dict[str, float]:
        return {
            "gpu_MB": torch.cuda.memory_allocated(self.device) / 1e6,
            "pinned_MB": self._pinned_nbytes / 1e6,
        }
