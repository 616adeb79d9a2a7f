"""A device made of two queues, which runs what is put into them late and in any order it may.

Copies out of pinned memory read it when they run, as a device does; its allocator gives memory out
again as soon as the host lets go of it, as torch's does within a stream. So whoever lets go of
memory too early, or shows a batch too early, gets wrong values.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fastload._base.slabs import SlabRing

Operation = Callable[[], bool]  # False: not yet


def raw(tensor: torch.Tensor) -> np.ndarray:
    """The bytes that ``tensor`` lies in, without keeping them from being given out again."""
    if not tensor.nbytes:
        return np.empty(0, np.uint8)
    pointer = ctypes.cast(tensor.data_ptr(), ctypes.POINTER(ctypes.c_uint8))
    return np.ctypeslib.as_array(pointer, (tensor.nbytes,))


class FakeMark:
    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.reached = False
        self.tick = 0

    def reach(self) -> bool:
        self.reached, self.tick = True, self._device.ticks
        return True

    def done(self) -> bool:
        self._device.run(self._device.random.randrange(3))
        return self.reached

    def wait(self) -> None:
        self._device.waits += 1
        while not self.reached:
            assert self._device.run(1), "the host waits for what never comes"

    def since(self, earlier: Any) -> int:
        return 1000 * (self.tick - earlier.tick)

    def at_ns(self) -> int:
        return 1 + 1000 * self.tick


class FakeDevice:
    """Implements ``Accelerator`` in host memory.

    Args:
        seed: of the order in which it runs what it was given.
        late: False runs everything at once, for code that reads what was copied.
    """

    device = torch.device("cpu")

    def __init__(self, seed: int = 0, *, late: bool = True) -> None:
        self.random = random.Random(seed)
        self.late = late
        self.side_stream = collections.deque[Operation]()
        self.caller_stream = collections.deque[Operation]()
        self.allocator, self.host = SlabRing(10**6), SlabRing(10**6)
        self.allocator.steady = True  # as torch's allocator, which gives nothing back by itself
        self.pins: dict[int, np.ndarray] = {}
        self.waits = self.ticks = self.copies = 0
        self.seeds: list[int] = []
        self.interrupt_at: int | None = None
        self.threads = set[int]()  # in which it was called

    # --- the device's side ------------------------------------------------------------------------

    def run(self, steps: int) -> int:
        """Run so many operations, of any stream that can go on; returns how many there were."""
        for step in range(steps):
            streams = [self.side_stream, self.caller_stream]
            self.random.shuffle(streams)
            if not any(stream and stream[0]() and (stream.popleft(), True) for stream in streams):
                return step
            self.ticks += 1
        return steps

    def launch(self, work: Callable[[], object]) -> None:
        """The caller puts ``work`` into his stream."""
        self.caller_stream.append(lambda: (work(), True)[1])

    def synchronize(self) -> None:
        while self.run(1):
            pass
        assert not self.side_stream
        assert not self.caller_stream

    def raw(self, tensor: torch.Tensor) -> np.ndarray:
        return raw(tensor)

    # --- Accelerator ------------------------------------------------------------------------------

    def pin(self, memory: np.ndarray) -> bool:
        self.threads.add(threading.get_ident())
        self.pins[memory.ctypes.data] = memory  # kept: a copy that comes too late reads garbage
        return True

    def pinned_like(self, tensor: torch.Tensor) -> torch.Tensor:
        like = torch.empty_like(tensor, device="meta")
        made = self.host.lease(tuple(like.shape), like.dtype, like.stride())[0]
        memory = self.host.memory_at(made.data_ptr())
        assert memory is not None
        self.pin(memory)
        return made

    def pinned(self, tensor: torch.Tensor) -> bool:
        return False

    def capturing(self) -> bool:
        return False

    def follow(self) -> None:
        mark = FakeMark(self)
        self.caller_stream.append(mark.reach)
        self.side_stream.append(lambda: mark.reached)

    def side(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        like = torch.empty_like(tensor, device="meta")
        return self.allocator.lease(tuple(like.shape), like.dtype, like.stride())[0]

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.threads.add(threading.get_ident())
        self.copies += 1
        if self.copies == self.interrupt_at:
            raise KeyboardInterrupt
        if target.stride() != source.stride():  # expanded: torch makes a dense copy first
            source = torch.empty_like(source).copy_(source)
        begin, data = source.data_ptr(), self.raw(source)
        known = any(at <= begin < at + memory.nbytes for at, memory in self.pins.items())
        if not known:
            data = data.copy()  # pageable memory is read before the call returns
        to = self.raw(target)
        self.side_stream.append(lambda: (np.copyto(to, data), True)[1])
        if not self.late:
            self.synchronize()

    def adopt(self, tensor: torch.Tensor) -> None:
        raise AssertionError("no tensor of the tests is on the device before")

    def mark(self, *, timed: bool = False) -> FakeMark:
        self.threads.add(threading.get_ident())
        mark = FakeMark(self)
        self.side_stream.append(mark.reach)
        return mark

    def hand_over(self, mark: FakeMark, tensors: Any) -> None:
        assert all(isinstance(tensor, torch.Tensor) for tensor in tensors())
        self.caller_stream.append(lambda: mark.reached)

    def random_state(self) -> torch.Tensor:
        return torch.tensor(self.seeds[-1:], dtype=torch.int64)

    def set_random_state(self, state: torch.Tensor) -> None:
        self.seeds += [-1]

    def seed(self, seed: int) -> None:
        self.seeds += [seed]

    def memory(self) -> dict[str, float]:
        return {"gpu_MB": 1.0, "pinned_MB": sum(m.nbytes for m in self.pins.values()) / 1e6}
