"""Mover: copies batches of any structure to a device, out of pinned memory."""

from __future__ import annotations

import dataclasses
import sys

import torch

from .. import nested
from ..shared_slabs import SharedRing
from ..slabs import SlabRing
from .accelerator import Accelerator

PIN_FROM = 64 << 10
"""Tensors of at least so many bytes are staged in pinned memory. CUDA copies up to 64 KiB out of
pageable memory without blocking the host (its manual, "API synchronization behavior"), so that
staging smaller ones would gain nothing. An H100 took 0.13 to 0.3 ms for that, however busy."""


@dataclasses.dataclass(frozen=True)
class Staged:
    """A batch that is ready to be copied to the device.

    Attributes:
        sources: its tensors by id, as plain torch.Tensor; None for one that only its own ``to`` can
            move.
        staged: copies of plain tensors in pinned memory, by the ids of the plain tensors.
    """

    batch: object
    sources: dict[int, torch.Tensor | None]
    staged: dict[int, torch.Tensor]


class Mover:
    """Moves batches to a device. A loader keeps one for its life.

    Attributes:
        ahead: how many batches are kept on the device ahead of the caller's.
        rings: the slabs that batches may lie in.
    """

    def __init__(self, accelerator: Accelerator, ahead: int) -> None:
        self.accelerator = accelerator
        self.ahead = ahead
        self.rings: tuple[SlabRing | SharedRing, ...] = ()

    def stage(self, batch: object, held: list[object]) -> Staged:
        """``batch`` in pinned host memory, where it pays; the device is not asked.

        ``held`` gets the objects that must live until the copies to the device are done.
        """
        held.append(batch)
        # All tensors are collected before anything is copied, as they may share memory.
        sources = {id(tensor): _plain(tensor) for tensor in nested.tensors(batch)}
        staged = self._staged([plain for plain in sources.values() if plain is not None])
        held.append((sources, staged))
        return Staged(batch, sources, staged)

    def copied(self, staging: Staged) -> object:
        """The batch on the device. Call it within ``accelerator.side()``."""
        batch, sources, staged = staging.batch, staging.sources, staging.staged

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            plain = sources[id(tensor)]
            if tensor.device == self.accelerator.device and tensor.device.type != "cpu":
                self.accelerator.adopt(tensor)
                return tensor
            if plain is None:
                return tensor.to(self.accelerator.device)
            source = staged.get(id(plain), plain)
            target = self.accelerator.empty_like(source)
            self.accelerator.copy(target, source)
            return _like(target, tensor)

        return nested.rebuilt(batch, moved, lambda other: other.to(self.accelerator.device))

    def _staged(self, tensors: list[torch.Tensor]) -> dict[int, torch.Tensor]:
        """Copies, in pinned memory, of the tensors that are not pinned; by their ids."""
        large = [tensor for tensor in tensors if tensor.nbytes >= PIN_FROM]
        return {
            id(tensor): self.accelerator.pinned_like(tensor).copy_(tensor)
            for tensor in large
            if not self._pinned(tensor)
        }

    def _pinned(self, tensor: torch.Tensor) -> bool:
        for ring in self.rings:
            memory = ring.memory_at(tensor.data_ptr())
            if memory is not None:
                ring.steady = True  # keep pinned slabs, because pinning is expensive
                return self.accelerator.pin(memory)
        return self.accelerator.pinned(tensor)


def _plain(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor without a tv_tensors class; None if only its own ``to`` can move it."""
    kind = type(tensor)
    odd = tensor.is_nested or tensor.layout != torch.strided or tensor.requires_grad
    if tensor.device.type != "cpu" or odd:
        return None
    if kind is torch.Tensor and not tensor.is_quantized:
        return tensor
    return tensor.as_subclass(torch.Tensor) if _is_tv_tensor(tensor) else None


def _like(moved: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    if type(tensor) is torch.Tensor:
        return moved
    from torchvision import tv_tensors

    wrapped: torch.Tensor = tv_tensors.wrap(moved, like=tensor)
    return wrapped


def _is_tv_tensor(tensor: torch.Tensor) -> bool:
    # If the user's program has not imported torchvision, this cannot be one of its tensors.
    kind = getattr(sys.modules.get("torchvision.tv_tensors"), "TVTensor", None)
    return kind is not None and isinstance(tensor, kind)
