"""As much of torch.cuda as the transfer stage's CUDA class uses, made of queues that run late.

What runs on it is ``fastload.cuda.Cuda`` itself, but for the two operations on memory that need a
device. Streams run what is put into them when they are let, in any order that events allow; a copy
reads and writes when it runs; memory goes back to the stream that it was allocated in, as torch's
does. Contexts are counted as CUDA 12 makes them: ``cudaSetDevice`` makes one.
"""

from __future__ import annotations

import collections
import contextlib
import random
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from fake_device import raw
from fastload._base.devices import accelerator, cuda
from fastload._base.slabs import SlabRing


class FakeCuda:
    """Two devices; device 0 is current.

    Attributes:
        contexts: devices that a context was made on.
        threads: that called any of this.
        registered: pinned memory, address -> bytes.
        capturing: whether the current stream is being captured.
        fails: whether cudaHostRegister does.
        full: whether torch's allocator of pinned memory is refused any.
        pageable: copies out of memory that was not pinned.
        error: whether there is one that the next kernel would report.
        ended: what is let go of from now on, calls nothing.
    """

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.device = 0
        self.contexts, self.threads = set[int](), set[int]()
        self.registered: dict[int, int] = {}
        self.capturing = self.fails = self.full = self.error = self.ended = False
        self.pageable = 0
        self.host = list[torch.Tensor]()  # what torch's allocator of pinned memory has given out
        self.streams: list[Stream] = []
        self.default = [Stream(self, index) for index in range(2)]
        self.current = list(self.default)

    def called(self) -> None:
        self.threads.add(threading.get_ident())

    def run(self, steps: int) -> int:
        """Run so many operations; returns how many there were."""
        for step in range(steps):
            streams = self.random.sample(self.streams, len(self.streams))
            ready = (s for s in streams if s.queue and s.queue[0]())
            stream = next(ready, None)
            if stream is None:
                return step
            stream.queue.popleft()
        return steps

    def synchronize(self) -> None:
        while self.run(1):
            pass
        assert not any(stream.queue for stream in self.streams)

    # --- torch.cuda -------------------------------------------------------------------------------

    def set_device(self, index: int) -> None:
        self.contexts.add(index)
        self.device = index

    @contextlib.contextmanager
    def device_context(self, device: torch.device) -> Iterator[None]:
        before = self.device
        self.set_device(device.index)
        yield
        self.device = before  # torch makes no context for that

    @contextlib.contextmanager
    def stream_context(self, stream: Stream) -> Iterator[None]:
        before, there = self.current[self.device], self.current[stream.device.index]
        self.set_stream(stream)
        yield
        if before.device != stream.device:
            self.set_stream(there)
        self.set_stream(before)

    def set_stream(self, stream: Stream) -> None:
        self.called()
        if stream.device.index != self.device:
            self.set_device(stream.device.index)
        self.current[stream.device.index] = stream

    def current_stream(self, device: torch.device) -> Stream:
        self.called()
        return self.current[device.index]

    def is_capturing(self) -> bool:
        self.called()
        return self.capturing

    # --- cudart -----------------------------------------------------------------------------------

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        self.called()
        assert flags == 1, "expected cudaHostRegisterPortable"
        end = address + nbytes
        assert not any(a < end and address < a + n for a, n in self.registered.items())
        if self.fails:
            self.error = True
            return 712  # cudaErrorHostMemoryAlreadyRegistered
        self.registered[address] = nbytes
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        self.called()
        nbytes = self.registered.pop(address)
        for stream in self.streams:
            for operation in stream.queue:
                source = getattr(operation, "source", None)
                assert source is None or not address <= source < address + nbytes
        return 0

    def holds(self, address: int) -> bool:
        return any(a <= address < a + n for a, n in self.registered.items())


class Stream:
    def __init__(self, cuda: FakeCuda, index: int) -> None:
        self.cuda = cuda
        self.device = torch.device("cuda", index)
        self.queue = collections.deque[Callable[[], bool]]()
        self.pool = SlabRing(10**6)  # reused at once: what is recorded is kept by ``recorded``
        cuda.streams.append(self)
        self.cuda_stream = len(cuda.streams)
        self.stream_id = 2 * self.cuda_stream + 1  # torch's own have odd numbers

    def wait_event(self, event: Event) -> None:
        self.cuda.called()
        reached = event.recorded
        if reached is not None:
            self.queue.append(lambda: bool(reached))

    def wait_stream(self, other: Stream) -> None:
        event = Event(self.cuda)
        event.record(other)
        self.wait_event(event)

    def recorded(self, tensor: torch.Tensor) -> None:
        """As ``tensor.record_stream(self)``: its memory is not given out again before what this
        stream holds when the tensor is let go of."""
        memory = [tensor.detach()]

        def let_go() -> None:
            self.launch(memory.clear)

        weakref.finalize(tensor, let_go).atexit = False

    def launch(self, work: Callable[[], object]) -> None:
        self.queue.append(lambda: (work(), True)[1])


class Event:
    def __init__(self, cuda: FakeCuda, *, enable_timing: bool = False, blocking: bool = False):
        self.cuda, self.timed = cuda, enable_timing
        self.recorded: list[int] | None = None  # holds something when the stream has got there

    def record(self, stream: Stream) -> None:
        self.cuda.called()
        reached = self.recorded = []
        stream.queue.append(lambda: (reached.append(1), True)[1])

    def query(self) -> bool:
        self.cuda.called()
        self.cuda.run(self.cuda.random.randrange(3))
        return self.recorded is None or bool(self.recorded)

    def synchronize(self) -> None:
        self.cuda.called()
        while self.recorded is not None and not self.recorded:
            assert self.cuda.run(1), "the host waits for what never comes"

    def elapsed_time(self, end: Event) -> float:
        assert self.timed and end.timed and self.recorded and end.recorded
        return 0.001


class OnFakeCuda(cuda.Cuda):
    """``Cuda`` itself, with memory of the host's for the device's."""

    now: FakeCuda

    def __init__(self, device: torch.device) -> None:
        self.fake = self.now
        super().__init__(device)

    def __del__(self) -> None:
        if not self.fake.ended:
            super().__del__()

    def capturing(self) -> bool:
        return not self.fake.ended and super().capturing()

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        like = torch.empty_like(tensor, device="meta")
        stream = self.fake.current_stream(self.device)
        assert self.fake.device == self.device.index
        return stream.pool.lease(tuple(like.shape), like.dtype, like.stride())[0]

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        stream, to, data = self.fake.current_stream(self.device), raw(target), raw(source)
        if not self.fake.holds(source.data_ptr()):
            self.fake.pageable += 1
            data = data.copy()  # pageable memory is read before the call returns

        def copying() -> bool:
            np.copyto(to, data)
            return True

        copying.source = source.data_ptr()  # type: ignore[attr-defined]
        stream.queue.append(copying)

    def _forget_error(self) -> None:
        self.fake.error = False

    def _holds(self, tensor: torch.Tensor) -> bool:
        return True

    def hand_over(self, mark: Any, tensors: Callable[[], Iterable[torch.Tensor]]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.Tensor, "record_stream", _record_stream)
            super().hand_over(mark, tensors)

    def pinned_memory(self, nbytes: int) -> torch.Tensor | None:
        if self.fake.full:
            cuda._refused("allocate", nbytes, "out of memory")
            return None
        memory = torch.empty(nbytes, dtype=torch.uint8)
        self.fake.host.append(memory)
        self.fake.registered[memory.data_ptr()] = nbytes
        return memory

    def pinned(self, tensor: torch.Tensor) -> bool:
        return False

    def memory(self) -> dict[str, float]:
        return {}


def _record_stream(tensor: torch.Tensor, stream: Stream) -> None:
    if tensor.layout != torch.strided or tensor.is_nested:  # as torch says
        raise NotImplementedError("Could not run 'aten::record_stream' with arguments from ...")
    stream.recorded(tensor)


@contextlib.contextmanager
def fake_cuda(seed: int = 0) -> Iterator[FakeCuda]:
    """torch.cuda is a ``FakeCuda``, and loaders take devices for ``OnFakeCuda``."""
    fake = FakeCuda(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "Event", lambda **given: Event(fake, **given))
        patch.setattr(cuda, "Stream", lambda device: Stream(fake, device.index))
        patch.setattr(cuda, "cudart", lambda: fake)
        patch.setattr(OnFakeCuda, "now", fake, raising=False)
        patch.setattr(torch.cuda, "device", fake.device_context)
        patch.setattr(torch.cuda, "stream", fake.stream_context)
        patch.setattr(torch.cuda, "current_stream", fake.current_stream)
        patch.setattr(cuda, "_refusals", {})
        patch.setattr(torch.cuda, "is_current_stream_capturing", fake.is_capturing)
        patch.setattr(accelerator, "check", lambda device: None)
        patch.setattr(accelerator, "make", OnFakeCuda)
        yield fake
        fake.ended = True
