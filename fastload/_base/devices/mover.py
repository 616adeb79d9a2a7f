"""Batches to a device: which memory they are copied from, and in which structure they arrive."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, Protocol

import numpy as np
import torch

from .. import nested
from ..slabs import SlabRing
from .accelerator import Accelerator

PIN_FROM = 64 << 10
"""Bytes of a batch from which on it is staged in pinned memory. CUDA copies up to 64 KiB out of
pageable memory without letting the host wait (its manual, "API synchronization behavior"), so that
a copy in between would gain nothing. Not measured on a GPU yet."""

_ALIGNED = 512  # where tensors begin in a staging slab, as torch's allocators have it


class Slabs(Protocol):
    """Where slabs come from.

    Attributes:
        steady: whether free slabs stay, up to a number.
    """

    steady: bool

    def memory_at(self, address: int) -> np.ndarray | None:
        """The whole slab that ``address`` lies in; None where it is in none of these."""


@dataclasses.dataclass(frozen=True)
class Staged:
    """A batch whose tensors can be copied from where they are.

    Attributes:
        batch: in whatever structure.
        sources: its tensors as plain ones, by their ids; None: only its own ``to`` can move it.
        staged: copies of those in pinned memory, by the ids of the plain ones.
    """

    batch: Any
    sources: dict[int, torch.Tensor | None]
    staged: dict[int, torch.Tensor]


class Mover:
    """Moves batches to a device: what a loader keeps for its life.

    Args:
        accelerator: the device.
        rings: of the slabs that batches may lie in.
        ahead: batches ahead of the caller's, on the device.
    """

    def __init__(self, accelerator: Accelerator, ahead: int) -> None:
        self.accelerator = accelerator
        self.ahead = ahead if accelerator.overlaps else 0
        self.rings: tuple[Slabs, ...] = ()
        # as many as there may be flights, and the one that is being moved
        self._staging = SlabRing(self.ahead + 2)
        self._staging.steady = True
        self._largest = 0
        self.kept: Any = None
        """What a loader keeps with it, such as its device stage."""

    @property
    def staged(self) -> int:
        """Slabs allocated for batches that come in no slab; constant in the steady state."""
        return self._staging.allocations

    def move(self, batch: Any, held: list[Any]) -> Any:
        """``batch`` on the device, within ``accelerator.side()``.

        What has to stay until the copies are done is appended to ``held``.
        """
        return self.copied(self.stage(batch, held))

    def stage(self, batch: Any, held: list[Any]) -> Staged:
        """The first half of ``move``: the host's copies. The device has nothing to do with it."""
        held.append(batch)
        # Before anything is copied: it may be one of several parts that share their memory.
        sources = {id(tensor): _plain(tensor) for tensor in nested.tensors(batch)}
        staged = self._staged([plain for plain in sources.values() if plain is not None], held)
        held.append((sources, staged))
        return Staged(batch, sources, staged)

    def copied(self, staging: Staged) -> Any:
        """The other half: the copies to the device."""
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

    def _staged(self, tensors: list[torch.Tensor], held: list[Any]) -> dict[int, torch.Tensor]:
        """Copies in a pinned slab of those of ``tensors`` that are not pinned; by their ids."""
        if sum(tensor.nbytes for tensor in tensors) < PIN_FROM:
            return {}
        pageable = [tensor for tensor in tensors if not self._pinned(tensor)]
        nbytes = sum(-(-tensor.nbytes // _ALIGNED) * _ALIGNED for tensor in pageable)
        if not nbytes or not self.accelerator.overlaps:
            return {}
        # Never smaller than before, and with room: batches of text differ in size.
        if nbytes > self._largest:
            self._largest = nbytes + nbytes // 8
        slab, view = self._staging.lease((self._largest,), torch.uint8, (1,))
        memory = self._staging.memory_at(slab.data_ptr())
        del view
        if memory is None or not self.accelerator.pin(memory):
            return {}
        held.append(slab)
        staged, at = {}, 0
        for tensor in pageable:
            part = slab[at : at + tensor.nbytes].view(tensor.dtype)
            like = torch.empty_like(tensor, device="meta")
            staged[id(tensor)] = part.as_strided(like.shape, like.stride()).copy_(tensor)
            at += -(-tensor.nbytes // _ALIGNED) * _ALIGNED
        return staged

    def _pinned(self, tensor: torch.Tensor) -> bool:
        for ring in self.rings:
            memory = ring.memory_at(tensor.data_ptr())
            if memory is not None:
                ring.steady = True  # what is pinned stays so
                return self.accelerator.pin(memory)
        return self.accelerator.pinned(tensor)


def _plain(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor without the class of tv_tensors; None where only its own ``to`` can move it."""
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
    # If the user's program never imported torchvision, this is none of its tensors.
    module = sys.modules.get("torchvision.tv_tensors")
    return module is not None and isinstance(tensor, module.TVTensor)
