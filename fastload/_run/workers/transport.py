"""How a batch travels from a worker process: its structure pickled, its tensors in a slab.

Torch's way makes a file in shared memory for every tensor of every batch, copies into it, sends its
descriptor through a socket, and maps it on the other side: fresh pages each time, on both sides. A
slab stays mapped, so a batch costs the writing of warm memory and a short message.

Tensors that a slab cannot hold as they are (on a device, sparse, of a subclass, with gradients,
strided in odd ways, or larger than what is left) travel torch's way inside the same message, and so
does everything where the worker cannot reach the slab. Whatever pickle can carry is a batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import io
import math
import operator
import os
import pickle
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from ..._base.nested import plain
from ..._base.slabs import SlabRing
from .columns import SMALL_NBYTES, Columns

_ALIGNMENT = 64  # bytes; a cache line, and any dtype's

# A tensor that is in shared memory already is sent as it is from this size on: copying it would
# take longer than passing its descriptor.
_SHARED_NBYTES = 1 << 20

# As long as there is no slab, up to so much of a batch is sent with the message: a pipe takes it
# faster than a file of shared memory is made, and it arrives even if its worker dies.
_INLINE_NBYTES = 1 << 18

# Where torch's files of shared memory lie. With less than so much room there, as in a container
# with Docker's 64 MB, batches go with their messages until there are slabs: slower, but a full file
# system would end the epoch.
_SHARED_FILES = "/dev/shm"
_SHORT_NBYTES = 1 << 30

_PLAIN = {torch.Tensor}
_dtype = operator.attrgetter("dtype")

# Where a tensor lies: byte offset, shape, strides in elements, dtype.
_Place = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]


@dataclasses.dataclass(frozen=True)
class Message:
    """A batch on its way.

    Attributes:
        data: pickled; tensors in the slab, or in ``inline``, are named by their places.
        inline: stands for the slab where there was none.
        nbytes: what its tensors take in a slab that holds all of them.
        placed: how many of its tensors are in the slab.
        left: how many can be in none.
    """

    data: bytes
    nbytes: int
    placed: int
    left: int
    inline: bytes | None = None


class Packer:
    """Puts one batch into ``memory`` (uint8, 1-D), or into its message where that is None."""

    def __init__(self, memory: np.ndarray | None) -> None:
        self._slab = memory is not None
        self._memory = _inline() if memory is None else memory
        self._end = 0
        self._nbytes = 0
        self._left = 0
        self._places: dict[int, tuple[torch.Tensor, _Place]] = {}

    def collate(self, samples: Any) -> Any:
        """torch's default_collate, with the tensors stacked in the slab."""
        return Columns(self._stack)(samples)

    def pack(self, batch: Any) -> Message:
        """The message that carries ``batch``."""
        stream = io.BytesIO()
        _BatchPickler(stream, self._place).dump(batch)
        inline = None if self._slab else self._memory[: self._end].tobytes()
        placed = len(self._places)
        return Message(stream.getvalue(), self._nbytes, placed, self._left, inline)

    def _stack(self, samples: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> Any:
        first = samples[0]
        # Samples that do not fit together are left to torch: the error is to be its own.
        if plain(first) and all(
            isinstance(sample, torch.Tensor)
            and sample.shape == first.shape
            and not sample.requires_grad
            for sample in samples
        ):
            shape = (len(samples), *first.shape)
            out = self._reserve(shape, _contiguous(shape), first.dtype)
            if out is not None:
                return torch.stack(list(samples), 0, out=out)
        return default_collate_fn_map[torch.Tensor](samples, collate_fn_map=collate_fn_map)

    def _place(self, tensor: torch.Tensor) -> _Place | None:
        """Where ``tensor`` lies in the slab, copied if need be; None: it travels torch's way."""
        strides = _dense_strides(tensor) if plain(tensor) else None
        if strides is None:
            self._left += 1
            return None
        known = self._places.get(id(tensor))
        nbytes = tensor.numel() * tensor.element_size()
        self._nbytes += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        if known is not None:
            return known[1]
        if nbytes >= _SHARED_NBYTES and tensor.is_shared():  # type: ignore[no-untyped-call]
            self._left += self._slab
            return None
        copy = self._reserve(tuple(tensor.shape), strides, tensor.dtype)
        if copy is None:
            return None
        copy.copy_(tensor)
        _, place = self._places[id(tensor)] = tensor, self._places.pop(id(copy))[1]
        return place

    def _reserve(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor | None:
        """An uninitialised tensor in the slab, or None where there is no room left."""
        nbytes = math.prod(shape) * dtype.itemsize
        offset = self._end
        if not nbytes or offset + nbytes > len(self._memory):
            return None
        self._end = -(-(offset + nbytes) // _ALIGNMENT) * _ALIGNMENT
        tensor = _tensor(self._memory, (offset, shape, strides, dtype))
        self._places[id(tensor)] = tensor, (offset, shape, strides, dtype)
        return tensor


def _inline() -> np.ndarray:
    """Memory for a batch that goes with its message; pages that are not written do not exist."""
    try:
        found = os.statvfs(_SHARED_FILES)
        if found.f_bavail * found.f_frsize < _SHORT_NBYTES:
            return np.empty(_SHORT_NBYTES, np.uint8)
    except (OSError, MemoryError):
        return np.empty(_INLINE_NBYTES, np.uint8)  # no such files here, or a limit on addresses
    return np.empty(_INLINE_NBYTES, np.uint8)


def sweep() -> None:
    """Remove what torch left behind where it could not share a tensor of this process.

    A file whose space cannot be had keeps its name. With descriptors for handles no other has one:
    torch removes the name before it writes.
    """
    strategy = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
    if strategy != "file_descriptor":
        return
    for name in glob.glob(f"{_SHARED_FILES}/torch_{os.getpid()}_*"):
        with contextlib.suppress(FileNotFoundError):
            os.remove(name)


def unpack(message: Message, memory: np.ndarray | None, *, copy: bool = False) -> Any:
    """The batch that ``message`` carries; its tensors keep ``memory`` alive, or are copies."""
    if message.inline is not None:
        memory, copy = np.frombuffer(bytearray(message.inline), np.uint8), False
    return _BatchUnpickler(io.BytesIO(message.data), memory, copy=copy).load()


def warm_collate(ring: SlabRing) -> Callable[[Any], Any]:
    """torch's default_collate for this process: large tensors are stacked in slabs of ``ring``."""

    def stack(samples: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> Any:
        first = samples[0]
        if (
            type(first) is torch.Tensor
            and first.numel() * first.element_size() * len(samples) >= SMALL_NBYTES
            and plain(first)
            and set(map(type, samples)) == _PLAIN
            and set(map(_dtype, samples)) == {first.dtype}
        ):
            shape = (len(samples), *first.shape)
            out, _ = ring.lease(shape, first.dtype, _contiguous(shape))
            with contextlib.suppress(RuntimeError):  # one needs gradients, or has another shape
                return torch.stack(samples, 0, out=out)  # type: ignore[arg-type]
        return default_collate_fn_map[torch.Tensor](samples, collate_fn_map=collate_fn_map)

    return Columns(stack)


class _BatchPickler(ForkingPickler):
    """Names the tensors that ``place`` finds a place for; torch's reductions carry the others."""

    def __init__(self, stream: io.BytesIO, place: Callable[[torch.Tensor], _Place | None]) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self._place = place

    def persistent_id(self, value: Any) -> _Place | None:
        """The place of a tensor in the slab; None for what is pickled."""
        return self._place(value) if isinstance(value, torch.Tensor) else None


class _BatchUnpickler(pickle.Unpickler):
    """Makes tensors over the slab. What it reads was pickled by a worker of this process."""

    def __init__(self, stream: io.BytesIO, memory: np.ndarray | None, *, copy: bool) -> None:
        super().__init__(stream)
        self._memory = memory
        self._copy = copy
        self._made: dict[_Place, torch.Tensor] = {}

    def persistent_load(self, place: _Place) -> torch.Tensor:
        """The tensor at ``place``; one place is one tensor."""
        if place not in self._made:
            assert self._memory is not None, "a worker wrote into a slab that it was not given"
            tensor = _tensor(self._memory, place)
            self._made[place] = tensor.clone() if self._copy else tensor
        return self._made[place]


def _tensor(memory: np.ndarray, place: _Place) -> torch.Tensor:
    """The tensor at ``place``: a storage of just its bytes, which keeps ``memory`` alive."""
    offset, shape, strides, dtype = place
    nbytes = math.prod(shape) * dtype.itemsize
    # By way of a memoryview: NumPy would let a slice refer to the mapped file, not to ``memory``.
    part = np.frombuffer(memory.data[offset : offset + nbytes], np.uint8)
    storage = torch.from_numpy(part).untyped_storage()
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape, strides)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def _dense_strides(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Its strides where it fills a block of memory; None where it has gaps or overlaps itself."""
    if tensor.is_contiguous():
        return _contiguous(tuple(tensor.shape))
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size > 1 and stride != expected:
            return None
        expected *= size
    return tuple(tensor.stride())
