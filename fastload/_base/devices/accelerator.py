"""What the transfer stage needs of a device, and the devices there are.

Everything that talks to a device's runtime is here, behind ``Accelerator``, so that the transfer
stage's order of events is tested against a device that is made of nothing but queues.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Protocol

import numpy as np
import torch

from ...errors import UsageError


class Mark(Protocol):
    """A point in the side stream: all that was put there before it."""

    def done(self) -> bool:
        """Whether the device has got there."""

    def wait(self) -> None:
        """Return when it has."""

    def since(self, earlier: Mark) -> int:
        """Nanoseconds from ``earlier`` to this mark; both were timed, and are done."""

    def at_ns(self) -> int:
        """When it was done, by perf_counter_ns; it was timed, and is done."""


class Accelerator(Protocol):
    """A device with a side stream of its own, in which copies run beside the caller's work.

    Attributes:
        device: with its index.
        overlaps: whether copies run beside what the host does; else they are done when asked for.
    """

    device: torch.device
    overlaps: bool

    def pin(self, memory: np.ndarray) -> bool:
        """Let the device read ``memory`` by itself from now on; False where it cannot.

        Asked again, it costs nothing. It ends by itself when the array goes.
        """

    def pinned(self, tensor: torch.Tensor) -> bool:
        """Whether somebody else has pinned the tensor's memory."""

    def capturing(self) -> bool:
        """Whether a graph is being captured here: then the device must not be asked anything."""

    def follow(self) -> None:
        """What comes into the side stream from now on starts after all that the caller has put
        into his stream until now."""

    def side(self) -> contextlib.AbstractContextManager[Any]:
        """Within it, operations and allocations on the device belong to the side stream."""

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory on the device for a tensor of this shape, dtype and order of dimensions."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy to the device, in the side stream. Both have to stay until a later mark is done."""

    def adopt(self, tensor: torch.Tensor) -> None:
        """A tensor that is on the device already goes to the caller: its memory is another's."""

    def mark(self, *, timed: bool = False) -> Mark:
        """A mark behind all that is in the side stream."""

    def hand_over(self, mark: Mark, tensors: Any) -> None:
        """What the caller puts into his stream from now on starts after ``mark``.

        ``tensors()`` gives the tensors that he gets.
        """

    def random_state(self) -> torch.Tensor:
        """Of the device's global generator."""

    def set_random_state(self, state: torch.Tensor) -> None:
        """Put it back."""

    def seed(self, seed: int) -> None:
        """Seed the device's global generator."""

    def memory(self) -> dict[str, float]:
        """Counters for a timeline: MB in use on the device, and pinned here."""


def make(device: torch.device) -> Accelerator | None:
    """The accelerator for ``device``; None for the CPU.

    Raises UsageError where torch does not find the device.
    """
    if device.type == "cpu":
        return None
    check(device)
    if device.type == "cuda":
        from .cuda import Cuda

        return Cuda(device)
    return Plain(device)


def check(device: torch.device) -> None:
    """Raise UsageError where torch does not find ``device``."""
    if device.type == "cpu":
        return
    if device.type not in ("cuda", "mps", "xpu"):
        raise UsageError(f"device: expected cpu, cuda, mps or xpu, got {str(device)!r}")
    # of torch.mps, only torch.backends knows whether it is there
    module = getattr(torch.backends if device.type == "mps" else torch, device.type, None)
    count = 0
    if module is not None and module.is_available():
        count = 1 if device.type == "mps" else module.device_count()
    if (device.index or 0) >= count:
        raise UsageError(
            f"device={str(device)!r}: torch {torch.__version__} finds "
            f"{count or 'no'} {device.type} device{'s' * (count != 1)} here; take device=None to "
            "get batches in host memory"
        )


class Done:
    """The mark of a device that has done everything when it was asked for."""

    def __init__(self) -> None:
        self._at_ns = time.perf_counter_ns()

    def done(self) -> bool:
        """Always."""
        return True

    def wait(self) -> None:
        """Nothing to wait for."""

    def since(self, earlier: Mark) -> int:
        """As in the contract."""
        return self._at_ns - earlier.at_ns()

    def at_ns(self) -> int:
        """As in the contract."""
        return self._at_ns


class Plain:
    """Apple's and Intel's devices: copies in the caller's own stream, ended when they return."""

    overlaps = False

    def __init__(self, device: torch.device) -> None:
        self._module: Any = getattr(torch, device.type)
        index: Any = device.index
        if index is None:
            index = 0 if device.type == "mps" else self._module.current_device()
        self.device = torch.device(device.type, index)

    def pin(self, memory: np.ndarray) -> bool:
        """Not here."""
        return False

    def pinned(self, tensor: torch.Tensor) -> bool:
        """Not here."""
        return False

    def capturing(self) -> bool:
        """Not here."""
        return False

    def follow(self) -> None:
        """There is one stream."""

    def side(self) -> contextlib.AbstractContextManager[Any]:
        """There is one stream."""
        return contextlib.nullcontext()

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """As in the contract."""
        return torch.empty_like(tensor, device=self.device, pin_memory=False)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """As in the contract."""
        target.copy_(source)

    def adopt(self, tensor: torch.Tensor) -> None:
        """There is one stream."""

    def mark(self, *, timed: bool = False) -> Mark:
        """As in the contract."""
        return Done()

    def hand_over(self, mark: Mark, tensors: Any) -> None:
        """There is one stream."""

    def random_state(self) -> torch.Tensor:
        """As in the contract."""
        where = () if self.device.type == "mps" else (self.device,)
        state: torch.Tensor = self._module.get_rng_state(*where)
        return state

    def set_random_state(self, state: torch.Tensor) -> None:
        """As in the contract."""
        where = () if self.device.type == "mps" else (self.device,)
        self._module.set_rng_state(state, *where)

    def seed(self, seed: int) -> None:
        """As in the contract."""
        if self.device.type == "mps":
            self._module.manual_seed(seed)
        else:
            self._module.default_generators[self.device.index].manual_seed(seed)

    def memory(self) -> dict[str, float]:
        """Not counted here."""
        return {}
