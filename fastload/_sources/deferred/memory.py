"""Memory: what was recorded of a tensor, which several deferred tensors may share.

Note [Parts]
    A part of a tensor, ``x[..., 2:9, 3:9]``, shares its memory. What gives new values of a part is
    recorded, as are those of ``x``. What changes either of them in place makes ``x``, and the part
    is then a view of it. So does a second part: to decode an image once and to cut is less work
    than to decode it for each part.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, cast

import torch

from . import single
from .composed import border_level
from .lowering import TABLED
from .operations import (
    LEVEL_OPERATIONS,
    TENSOR_OPERATIONS,
    Layout,
    channels,
    layout,
    shape_and_strides,
)
from .recording import Opened, Operation, Recording
from .replay import replay
from .slots import Size

if TYPE_CHECKING:
    from .image import DeferredImage

Box: TypeAlias = "tuple[int, int, int, int]"
Strides: TypeAlias = "tuple[int, int, int]"

CPU: Final = torch.device("cpu")


class Memory:
    """What several tensors share: what was recorded, or the real tensor.

    Attributes:
        gaps: the strides, in elements, where there are gaps between the rows, or the channels are
            one in memory; None: the usual ones.
        whole: what this is a part or a row of; None: neither. See Note [Parts], and Note [Rows of a
            batch] in tensor.py.
        has_part: whether something is a part of it, or it of itself: its channels.
    """

    __slots__ = (
        "_real", "gaps", "has_part", "layout", "mode", "opened", "operations", "size", "whole",
    )  # fmt: skip

    def __init__(
        self,
        opened: Opened,
        operations: tuple[Operation, ...],
        size: Size,
        mode: str,
        layout: Layout,
    ) -> None:
        self.opened = opened
        self.operations = operations
        self.size = size
        self.mode = mode
        self.layout = layout
        self.gaps: Strides | None = None
        self.whole: View | None = None
        self.has_part = False
        self._real: torch.Tensor | None = None

    @classmethod
    def of(cls, recording: Recording) -> Memory:
        ended = layout(recording)
        assert ended is not None, "the recording ends in a tensor"
        return cls(*recording, ended)

    @property
    def shape(self) -> tuple[int, int, int]:
        return shape_and_strides(self.size, self.mode, self.layout.contiguous)[0]

    @property
    def strides(self) -> Strides:
        """In elements."""
        return self.gaps or shape_and_strides(self.size, self.mode, self.layout.contiguous)[1]

    @property
    def alone(self) -> bool:
        """Whether no other memory shows what is changed in this one."""
        return self.whole is None and not self.has_part

    def as_told(self, tensor: torch.Tensor) -> torch.Tensor:
        """The core's tensor, with the strides that the user's code was told."""
        one_channel = self.gaps is not None and self.gaps[0] == 0
        return tensor[:1].clone().expand(self.shape) if one_channel else tensor

    @property
    def real(self) -> torch.Tensor | None:
        """The real tensor; None: it is not made yet."""
        if self._real is None and self.whole is not None:
            self._real = self.whole.real
        return self._real

    def _real_or_none(self) -> torch.Tensor | None:
        return self.real

    def materialise(self) -> torch.Tensor:
        """Make the real tensor, once, and return it."""
        real = self.real
        if real is None:
            if self.whole is not None:
                real = self.whole.materialise()
            else:
                recording = self.recording()
                with torch.inference_mode(False):  # in which it may be asked for, and recorded not
                    tensor = single.tensor(recording, self.layout)
                    real = self._replayed(recording) if tensor is None else self.as_told(tensor)
            self._real = real
        return real

    def _replayed(self, recording: Recording) -> torch.Tensor:
        """Have Pillow and torch make it, in the strides that the user's code was told.

        Those of what is resized depend on whether it is a part of another tensor, and of what
        is replayed nothing is.
        """
        tensor = cast(torch.Tensor, replay(recording))
        if tensor.stride() == self.strides:
            return tensor
        told = torch.empty_strided(self.shape, self.strides, dtype=tensor.dtype, device="cpu")
        return told.copy_(tensor)

    def recording(self) -> Recording:
        return Recording(self.opened, self.operations, self.size, self.mode)

    def then(self, *operations: Operation, mine: bool = False) -> Memory:
        """New memory: this after these operations; ``mine``: nobody else has this one, so it is."""
        size, layout = self.size, self.layout
        for name, *arguments in operations:
            operation = TENSOR_OPERATIONS[name]
            if operation.size is not None:
                size = operation.size(size, *arguments)
            if operation.layout is not None:
                layout = operation.layout(layout, *arguments)
        operations = self.operations + operations
        if not mine:
            return Memory(self.opened, operations, size, self.mode, layout)
        self.operations, self.size, self.layout = operations, size, layout
        self.gaps = self.whole = None
        self.has_part = False
        return self

    def copy(self) -> Memory:
        """New memory of the same values."""
        return Memory(self.opened, self.operations, self.size, self.mode, self.layout)

    def gaps_within(self, size: Size) -> Strides | None:
        """The ``gaps`` of a part of this size."""
        strides = self.strides
        _, closed = shape_and_strides(size, self.mode, self.layout.contiguous)
        return None if closed == strides else strides

    def part(self, box: Box) -> Memory:
        """A part of this memory: the box x, y, w, h."""
        part = self.then(("part", *box))
        x, y, w, h = box
        part.gaps = self.gaps_within((w, h))
        part.whole = View(self, (slice(None), slice(y, y + h), slice(x, x + w)))
        self.has_part = True
        return part


class _Whole(Protocol):
    """What a view is of: another memory, or a batch."""

    def _real_or_none(self) -> torch.Tensor | None: ...

    def materialise(self) -> torch.Tensor: ...


class View(NamedTuple):
    """A part of a tensor, or a row of a batch: what indexing gives."""

    whole: _Whole
    key: int | tuple[slice, ...]

    @property
    def real(self) -> torch.Tensor | None:
        """The real view; None: what it shows is not made yet."""
        whole = self.whole._real_or_none()
        return None if whole is None else whole[self.key]

    def materialise(self) -> torch.Tensor:
        """The real view."""
        return self.whole.materialise()[self.key]


def _ending(name: str) -> tuple[tuple[Operation], Layout]:
    after = TENSOR_OPERATIONS[name].layout
    assert after is not None
    return ((name,),), after(None)


_ENDINGS = {name: _ending(name) for name in ("to_tensor", "to_image")}


def of_image(image: DeferredImage, name: str) -> Memory:
    """The memory of the tensor that "to_tensor" or "to_image" makes of an image."""
    operation, layout = _ENDINGS[name]
    return Memory(image._opened, image._operations + operation, image._size, image._mode, layout)


LEAST_SIDE = 2  # of what is cut, mirrored or resized: strides of a side of one mean nothing


def movable(memory: Memory) -> bool:
    """Whether the core cuts and mirrors it: nothing but a border of the image is over it yet."""
    if channels(memory.mode) == 1 or min(memory.size) < LEAST_SIDE:
        return False
    before: list[Operation] = []
    for operation in memory.operations:
        name = operation[0]
        if name in ("erase", "fill"):
            return False
        if name == "border" and border_level(before, cast(float, operation[-1])) is None:
            return False
        if name in TABLED:
            before.append(operation)
    return True


def holds_levels(memory: Memory) -> bool:
    """Whether it is of an RGB image's levels, cut, mirrored, resized or changed."""
    if memory.mode != "RGB" or memory.layout.dtype != torch.uint8 or not movable(memory):
        return False
    names = [name for name, *_ in memory.operations]
    return "to_image" in names and _MOVED >= set(names[names.index("to_image") :])


def holds_values(memory: Memory) -> bool:
    """Whether it is float32, an RGB image, cut and mirrored, whose values a table has."""
    if memory.mode != "RGB" or memory.layout.dtype != torch.float32 or not movable(memory):
        return False
    return not any(name in ("border", "resize_values") for name, *_ in memory.operations)


_MOVED = LEVEL_OPERATIONS.keys() | {
    "to_image", "contiguous", "part", "mirror", "resize_levels", "border",
    "border_levels",
}  # fmt: skip


def channel_order(index: Any) -> tuple[int, ...] | None:
    """Which of three channels each one comes from; None: torch has to say."""
    numbers = type(index) is torch.Tensor and index.dtype in _INDICES and index.device == CPU
    order = index.tolist() if numbers else index
    if type(order) not in (list, tuple) or len(order) != 3:
        return None
    if not all(type(c) is int and -3 <= c < 3 for c in order):
        return None
    return tuple(c % 3 for c in order)


_INDICES = frozenset((torch.int32, torch.int64))


def bordered(
    memory: Memory, left: int, top: int, right: int, bottom: int, value: float
) -> Memory | None:
    """New memory, with a border of one value; None: it is not recorded."""
    # Of these ``shape_and_strides`` cannot say the strides.
    if channels(memory.mode) == 1 or min(memory.size) < LEAST_SIDE:
        return None
    if not (left or top or right or bottom):
        return memory.copy()
    stored = _stored(value, memory.layout.dtype) if known_by_equality(value) else None
    return None if stored is None else memory.then(("border", left, top, right, bottom, stored))


@functools.lru_cache(64)
def _stored(value: float, dtype: torch.dtype) -> float | None:
    """What a tensor of this dtype has where ``value`` is stored; None: not known by equality."""
    try:
        stored: float = torch.full((), value, dtype=dtype, device="cpu").item()
    except RuntimeError:  # the dtype has no such value
        return None
    return stored if known_by_equality(stored) else None


def known_values(values: Sequence[float]) -> tuple[float, ...] | None:
    """These values, which may be recorded; None: one of them is not known by equality."""
    return tuple(values) if all(map(known_by_equality, values)) else None


def known_by_equality(value: float) -> bool:
    """Whether equal values are this value, which is not so for nan and -0.0."""
    return value == value and (value != 0 or math.copysign(1, value) > 0)
