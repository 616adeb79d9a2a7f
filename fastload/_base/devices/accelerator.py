"""``Accelerator``, what the transfer stage needs of a device; ``cuda.py`` implements it.

Only these modules call a device's runtime, so that the order of events in the transfer stage can be
tested on a fake device made of queues. To other devices than CUDA's, tensors move themselves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
import torch

from ...errors import UsageError


class Mark(Protocol):
    """A point in the side stream, reached when all work enqueued before it is done."""

    def done(self) -> bool:
        """Whether the device has reached it."""

    def wait(self) -> None:
        """Block until the device has reached it."""

    def since(self, earlier: Mark) -> int:
        """Nanoseconds from ``earlier`` to this mark; both must be timed and done."""

    def at_ns(self) -> int:
        """When the device reached it, by perf_counter_ns; it must be timed and done."""


class Accelerator(Protocol):
    """A device with a side stream, in which copies overlap with the caller's work.

    Attributes:
        device: with its index.
    """

    device: torch.device

    def pin(self, memory: np.ndarray) -> bool:
        """Pin ``memory``; False if the device cannot. A second call costs nothing.

        The memory is unpinned when the array is freed.
        """

    def pinned_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Pinned memory of the runtime's own, for a tensor of this shape, dtype and order.

        It may be freed while a copy from it runs.
        """

    def pinned(self, tensor: torch.Tensor) -> bool:
        """Whether somebody else has pinned the tensor's memory."""

    def capturing(self) -> bool:
        """Whether this thread is capturing a graph: then the device must not be queried."""

    def follow(self) -> None:
        """Order the side stream after all work that the caller's stream holds now."""

    def side(self) -> contextlib.AbstractContextManager[object]:
        """A context in which operations and allocations on the device use the side stream."""

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory on the device for a tensor of this shape, dtype and order of dimensions."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy to the device, in the side stream. Keep both tensors until a later mark is done."""

    def adopt(self, tensor: torch.Tensor) -> None:
        """Prepare a tensor that is on the device already, in memory of another stream, for use."""

    def mark(self, *, timed: bool = False) -> Mark:
        """A mark after all work that the side stream holds now."""

    def hand_over(self, mark: Mark, tensors: Callable[[], Iterable[torch.Tensor]]) -> None:
        """Order later work of the caller's stream, which receives ``tensors()``, after ``mark``."""

    def random_state(self) -> torch.Tensor:
        """State of the device's global generator."""

    def set_random_state(self, state: torch.Tensor) -> None:
        """Restore the state of the device's global generator."""

    def seed(self, seed: int) -> None:
        """Seed the device's global generator."""

    def memory(self) -> dict[str, float]:
        """Counters for a timeline: MB in use on the device, and MB pinned here."""


def make(device: torch.device) -> Accelerator | None:
    """The accelerator for ``device``; None for what is no CUDA device.

    Raises UsageError if torch does not find the device.
    """
    check(device)
    if device.type != "cuda":
        return None
    from .cuda import Cuda

    return Cuda(device)


def check(device: torch.device) -> None:
    """Raise UsageError if torch does not find ``device``."""
    if device.type == "cpu":
        return
    if device.type not in ("cuda", "mps", "xpu"):
        raise UsageError(f"device: expected cpu, cuda, mps or xpu, got {str(device)!r}")
    # torch.mps has no is_available; torch.backends.mps has
    module = getattr(torch.backends if device.type == "mps" else torch, device.type, None)
    count = 0
    if module is not None and module.is_available():
        count = 1 if device.type == "mps" else module.device_count()
    if (device.index or 0) >= count:
        raise UsageError(
            f"device={str(device)!r}: torch {torch.__version__} finds "
            f"{count or 'no'} {device.type} device{'s' * (count != 1)} here; use device=None to "
            "get batches in host memory"
        )
