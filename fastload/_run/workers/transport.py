"""Message: how a worker process sends a batch. The structure is pickled, tensors are in a slab.

torch makes a file of shared memory for every tensor of every batch, copies into it, sends its
descriptor through a socket, and maps it in the other process: new pages each time, in both. A slab
stays mapped, so sending a batch costs a write to warm memory and a short message.

Some tensors cannot be placed in a slab: those on a device, sparse ones, subclasses, those that
require gradients, those with gaps in memory, or larger than the room left. They are sent in torch's
way inside the same message, as is everything if the worker has no access to the slab. A batch may
be anything that can be pickled.

A deferred tensor (``deferral.py``) is sent as what was recorded, some hundred bytes for an image;
bytes that came from no file are placed in the slab. The other process fills the tensor.
"""

from __future__ import annotations

import contextlib
import glob
import io
import math
import os
import pickle
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from ..._base.nested import plain
from ..._sources.deferred.needed import has_tensors
from .placed_rows import PlacedRows, SlabBatch, contiguous

if TYPE_CHECKING:
    from ..._sources.deferred.completion import Row, Shape
    from ..._sources.deferred.recording import Opened, Operation

_ALIGNMENT = 64  # bytes; a cache line, enough for any dtype

# A tensor of at least this size that is in shared memory already is sent as it is: copying it would
# take longer than sending its descriptor.
_SHARED_NBYTES = 1 << 20

# While there is no slab, up to so many bytes of a batch are sent inside the message. A pipe is
# faster than making a file of shared memory, and the batch arrives even if the worker dies.
_INLINE_NBYTES = 1 << 18

# Where torch makes its files of shared memory. If less than so many bytes are free there, as in a
# container with Docker's 64 MB, whole batches are sent inside messages until there are slabs. That
# is slower, but a full file system would end the epoch.
_SHARED_FILES = "/dev/shm"
_SHORT_NBYTES = 1 << 30

# A tensor in a slab: byte offset, shape, strides in elements, dtype.
_Place = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]

_OpenedFields = tuple[Any, ...]  # of an Opened; in the place of its data, a position in ``tensors``
_RecordedRow: TypeAlias = "tuple[int, tuple[Operation, ...], tuple[int, int], str]"


class _Content(NamedTuple):
    """A deferred tensor, as it is sent.

    Attributes:
        facts: kind, shape, strides and dtype, as ``completion.start`` takes them.
        rows: pickled: what was opened that this message has not had yet, as tuples of fields; and
            the rows: for a recording the number of what was opened in this message, operations,
            size and mode; for a tensor that is made already its position in ``tensors``.
        tensors: those tensors, and bytes that came from no file.
    """

    facts: tuple[type[torch.Tensor], Shape, Shape, torch.dtype]
    rows: bytes
    tensors: list[torch.Tensor]


class _Recorded(NamedTuple):
    """The place of a deferred tensor in a message.

    Attributes:
        number: its own in this message.
        content: None: it came before in this message.
    """

    number: int
    content: _Content | None


Fill: TypeAlias = Callable[..., torch.Tensor]
"""Called like ``completion.start`` without its decoder; returns a tensor that is complete later."""


class Message(NamedTuple):
    """A batch in transit.

    Attributes:
        data: the pickled batch; tensors in the slab or in ``inline`` are replaced by their places.
        nbytes: size of a slab that holds all tensors that can be placed.
        placed: number of tensors in the slab.
        unplaced: number of tensors that cannot be placed in any slab.
        inline: takes the place of the slab if there was none.
        recorded: number of deferred tensors.
    """

    data: bytes
    nbytes: int
    placed: int
    unplaced: int
    inline: bytes | None = None
    recorded: int = 0


class Packer(SlabBatch):
    """Packs one batch into ``memory`` (uint8, 1-D), or into its message if that is None."""

    def __init__(self, memory: np.ndarray | None) -> None:
        self._given = memory
        self._slab = memory is not None
        self._memory = _inline() if memory is None else memory
        self._end = 0
        self._nbytes = 0
        self._unplaced = 0
        self._places: dict[int, tuple[torch.Tensor, _Place]] = {}
        self._recorded: dict[int, _Recorded] = {}
        self._opened: dict[int, tuple[int, Opened]] = {}
        self._leased = False

    def has_room(self, nbytes: Sequence[int]) -> bool:
        """Whether ``lease`` has room in the slab for tensors of these sizes, one after the other.

        If not, a later batch is given a slab that has.
        """
        needed = sum(-(-each // _ALIGNMENT) * _ALIGNMENT for each in nbytes)
        if self._slab and self._end + needed <= len(self._memory):
            return True
        self._nbytes += needed
        return False

    def lease(
        self, shape: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...]
    ) -> tuple[torch.Tensor, np.ndarray]:
        """A tensor in the slab, and its bytes: to be filled, and sent without another copy.

        As ``SlabRing.lease``; there has to be room for it.
        """
        begin = self._end
        tensor = self._reserve(shape, strides, dtype)
        assert tensor is not None, "there is room"
        self._leased = True
        return tensor, self._memory[begin : begin + math.prod(shape) * dtype.itemsize]

    def begin_batch(self) -> None:
        """Nothing: the slab is for one batch."""

    def another(self) -> Packer:
        """One for the same memory, to pack the batch anew."""
        return Packer(self._given)

    def rows(self, count: int) -> PlacedRows | None:
        if self._slab:
            self._placed_rows = PlacedRows(
                count, lambda shape, dtype: self._reserve(shape, contiguous(shape), dtype)
            )
        return self._placed_rows

    def pack(self, batch: Any) -> Message:
        """The message that carries ``batch``."""
        stream = io.BytesIO()
        _BatchPickler(stream, self._in_place_of).dump(batch)
        inline = None if self._slab else self._memory[: self._end].tobytes()
        return Message(
            stream.getvalue(),
            self._nbytes,
            len(self._places),
            self._unplaced,
            inline,
            len(self._recorded),
        )

    def _in_place_of(self, tensor: torch.Tensor) -> _Place | _Recorded | None:
        """What is pickled in the place of ``tensor``; None: itself."""
        if type(tensor) is torch.Tensor or not has_tensors():
            return self._place(tensor)
        from ..._sources.deferred.completion import layout_and_rows
        from ..._sources.deferred.tensor import DeferredBatch, DeferredRow, DeferredTensor

        if not isinstance(tensor, (DeferredBatch, DeferredTensor, DeferredRow)):
            return self._place(tensor)
        known = self._recorded.get(id(tensor))
        if known is not None:
            return known._replace(content=None)
        kind, shape, strides, dtype, rows = layout_and_rows(tensor)
        if rows is None:
            return self._place(tensor.materialise())
        tensors: list[torch.Tensor] = []
        opened: list[_OpenedFields] = []
        sent = self._rows(rows, opened, tensors)
        # Pickled apart: this pickler would ask for a place of each small part.
        data = pickle.dumps((opened, sent), pickle.HIGHEST_PROTOCOL)
        content = _Content((kind, shape, strides, dtype), data, tensors)
        found = self._recorded[id(tensor)] = _Recorded(len(self._recorded), content)
        return found

    def _rows(
        self, rows: list[Row], opened: list[_OpenedFields], tensors: list[torch.Tensor]
    ) -> list[int | _RecordedRow]:
        """Rows as they are sent. What the core cannot make is made here, in this process."""
        from ..._sources.deferred.lowering import may_lower
        from ..._sources.deferred.replay import replay

        sent: list[int | _RecordedRow] = []
        for row in rows:
            if not isinstance(row, torch.Tensor):
                if may_lower(row):
                    number = self._number(row.opened, opened, tensors)
                    sent.append((number, *row[1:]))
                    continue
                made = replay(row)
                assert isinstance(made, torch.Tensor), "a row is a tensor"
                row = made
            sent.append(len(tensors))
            tensors.append(row)
        return sent

    def _number(self, one: Opened, opened: list[_OpenedFields], tensors: list[torch.Tensor]) -> int:
        """The number of what was opened in this message, which it is added to."""
        known = self._opened.get(id(one))
        if known is None:
            data = None
            if one.data is not None:
                data = len(tensors)
                tensors.append(torch.frombuffer(bytearray(one.data), dtype=torch.uint8))
            opened.append((one.path, data, *one[2:]))
            known = self._opened[id(one)] = len(self._opened), one
        return known[0]

    def _stacked(self, samples: Sequence[torch.Tensor]) -> torch.Tensor | None:
        first = samples[0]
        if plain(first) and set(map(type, samples)) == {torch.Tensor}:
            shape = (len(samples), *first.shape)
            out = self._reserve(shape, contiguous(shape), first.dtype)
            if out is not None:
                with contextlib.suppress(RuntimeError, TypeError):  # torch raises its own
                    return torch.stack(list(samples), 0, out=out)
        return None

    def _place(self, tensor: torch.Tensor) -> _Place | None:
        """The place of ``tensor``, copied to the slab if needed; None: it is sent as by torch."""
        strides = _dense_strides(tensor) if plain(tensor) else None
        if strides is None:
            self._unplaced += 1
            return None
        known = self._places.get(id(tensor))
        nbytes = tensor.numel() * tensor.element_size()
        self._nbytes += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        if known is not None:
            return known[1]
        if self._leased:  # perhaps as a part of a batch
            begin = tensor.data_ptr() - self._memory.ctypes.data
            if 0 <= begin and begin + nbytes <= self._end:
                place = begin, tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype
                self._places[id(tensor)] = tensor, place
                return place
        if nbytes >= _SHARED_NBYTES and tensor.is_shared():  # type: ignore[no-untyped-call]
            # Without room, torch has stacked it there: a later batch is given a larger slab.
            self._unplaced += self._slab and self._end + nbytes <= len(self._memory)
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
        """An uninitialised tensor in the slab; None if there is no room left."""
        nbytes = math.prod(shape) * dtype.itemsize
        offset = self._end
        if not nbytes or offset + nbytes > len(self._memory):
            return None
        self._end = -(-(offset + nbytes) // _ALIGNMENT) * _ALIGNMENT
        tensor = _tensor(self._memory, (offset, shape, strides, dtype))
        self._places[id(tensor)] = tensor, (offset, shape, strides, dtype)
        return tensor


def _inline() -> np.ndarray:
    """Memory for a batch that is sent inside its message; only pages written take memory."""
    try:
        found = os.statvfs(_SHARED_FILES)
        if found.f_bavail * found.f_frsize < _SHORT_NBYTES:
            return np.empty(_SHORT_NBYTES, np.uint8)
    except (OSError, MemoryError):
        pass  # no such files here, or a limit on address space
    return np.empty(_INLINE_NBYTES, np.uint8)


def sweep() -> None:
    """Remove the files that torch left when it could not share a tensor of this process.

    If there is no space for such a file, torch leaves it under its name. With the sharing strategy
    "file_descriptor" no other file has a name, because torch removes it before it writes.
    """
    strategy = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
    if strategy != "file_descriptor":
        return
    for name in glob.glob(f"{_SHARED_FILES}/torch_{os.getpid()}_*"):
        with contextlib.suppress(FileNotFoundError):
            os.remove(name)


def unpack(
    message: Message, memory: np.ndarray | None, *, copy: bool = False, fill: Fill | None = None
) -> Any:
    """The batch in ``message``; its tensors keep ``memory`` alive, or are copies with ``copy``.

    ``fill`` starts to make what was recorded.
    """
    if message.inline is not None:
        memory, copy = np.frombuffer(bytearray(message.inline), np.uint8), False
    return _BatchUnpickler(io.BytesIO(message.data), memory, copy=copy, fill=fill).load()


class _BatchPickler(ForkingPickler):
    """Replaces tensors by what ``place`` returns; torch pickles the others."""

    def __init__(
        self, stream: io.BytesIO, place: Callable[[torch.Tensor], _Place | _Recorded | None]
    ) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self._place = place

    def persistent_id(self, value: object) -> _Place | _Recorded | None:
        """What a tensor is replaced by; None for a value that is pickled."""
        return self._place(value) if isinstance(value, torch.Tensor) else None

    def reducer_override(self, value: object) -> Any:
        """Before Python 3.14, torch's arrays arrive writeable, native and without gaps."""
        older = pickle.DEFAULT_PROTOCOL < 5  # which torch uses, and which keeps none of these
        if older and type(value) is np.ndarray:
            if not (value.flags.writeable and value.dtype.isnative and value.flags.forc):
                return value.__reduce__()
        return NotImplemented


class _BatchUnpickler(pickle.Unpickler):
    """Makes tensors over the slab. It reads only what a worker of this process has pickled."""

    def __init__(
        self, stream: io.BytesIO, memory: np.ndarray | None, *, copy: bool, fill: Fill | None
    ) -> None:
        super().__init__(stream)
        self._memory = memory
        self._copy = copy
        self._fill = fill
        self._made: dict[_Place, torch.Tensor] = {}
        self._filled: dict[int, torch.Tensor] = {}
        self._opened: list[Opened] = []

    def persistent_load(self, place: _Place | _Recorded) -> torch.Tensor:
        """The tensor at ``place``; the same place gives the same tensor object."""
        if isinstance(place, _Recorded):
            return self._recorded(place)
        if place not in self._made:
            assert self._memory is not None, "a worker wrote into a slab that it was not given"
            tensor = _tensor(self._memory, place)
            self._made[place] = tensor.clone() if self._copy else tensor
        return self._made[place]

    def _recorded(self, recorded: _Recorded) -> torch.Tensor:
        """A tensor that is being filled."""
        if recorded.content is not None:
            assert self._fill is not None, "only workers send what was recorded"
            facts, data, tensors = recorded.content
            self._filled[recorded.number] = self._fill(*facts, self._rows(data, tensors))
        return self._filled[recorded.number]

    def _rows(self, data: bytes, tensors: list[torch.Tensor]) -> list[Row]:
        """The rows of a deferred tensor. Those of one image share what was opened, as they did."""
        from ..._sources.deferred.recording import Opened, Recording

        opened, rows = pickle.loads(data)  # noqa: S301 - of a worker of this process
        for path, at, *others in opened:
            # in the slab, which it keeps alive
            content = None if at is None else tensors[at].numpy().data
            self._opened.append(Opened(path, content, *others))
        known = self._opened
        return [
            tensors[row] if isinstance(row, int) else Recording(known[row[0]], *row[1:])
            for row in rows
        ]


def _tensor(memory: np.ndarray, place: _Place) -> torch.Tensor:
    """The tensor at ``place``. Its storage is exactly its bytes, and keeps ``memory`` alive."""
    offset, shape, strides, dtype = place
    nbytes = math.prod(shape) * dtype.itemsize
    # Through a memoryview, because the base of a NumPy slice is the mapped file, not ``memory``.
    part = np.frombuffer(memory.data[offset : offset + nbytes], np.uint8)
    storage = torch.from_numpy(part).untyped_storage()
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape, strides)


def _dense_strides(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The strides of a tensor that fills a block of memory; None if it has gaps or overlaps."""
    if tensor.is_contiguous():
        return tuple(tensor.stride())  # which of a side of one are anything
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size > 1 and stride != expected:
            return None
        expected *= size
    return tuple(tensor.stride())
