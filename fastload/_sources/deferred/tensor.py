"""DeferredTensor: the tensor of an image that is not decoded yet; DeferredBatch: several, stacked.

Both pass for a tensor: they have its shape, dtype and strides. Operations of ``operations.py`` are
recorded; every other function of torch gets the real tensor. An operation in place changes what was
recorded, for everything that shares the memory.

Note [Filled by rows]
    Many a ``collate_fn`` allocates a batch of zeros and copies each image to its row (timm's
    ``fast_collate``, torchvision's ``cat_list``), or to a part of it, which pads images of several
    sizes (DETR's ``nested_tensor_from_tensor_list``, torchvision's ``batch_images``). Such a batch
    is deferred, too: ``blank`` makes it where ``filling_rows`` sees a ``torch.zeros`` in whose rows
    a deferred image fits, or where one of them is asked for ``new``. Its rows, and boxes in them,
    are views. A deferred image that is copied to one is noted there, with a border of the batch's
    value if there is nothing else in that row. Anything else makes the whole batch real, and the
    views are then views of that.

Note [Parts]
    A part of a tensor, ``x[..., 2:9, 3:9]``, shares its memory. What gives new values of a part is
    recorded, as are those of ``x``. What changes either of them in place makes ``x``, and the part
    is then a view of it. So does a second part: to decode an image once and to cut is less work
    than to decode it for each part.

Note [Rows of a batch]
    Ten crops of an image are stacked, taken apart to be normalised, and stacked again. What is
    taken out of a batch that is not made yet is a view of it, as a part is of a tensor: new values
    of a row are recorded, and what changes it in place makes the batch. Batches of one shape are
    stacked, too: (samples, crops, channels, height, width), with a row for every crop.
"""

from __future__ import annotations

import contextvars
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torchvision import tv_tensors

from ..._base.named import named
from . import single
from .composed import border_level
from .lowering import TABLED
from .operations import (
    LEVEL_OPERATIONS,
    TENSOR_OPERATIONS,
    Layout,
    channels,
    dtype_name,
    layout,
    shape_and_strides,
)
from .recording import Opened, Operation, Recording
from .replay import replay
from .slots import Size
from .stand_in import StandIn
from .thread_state import cause, note_made

if TYPE_CHECKING:
    from .image import DeferredImage

Handler: TypeAlias = "Callable[..., Any]"
Box: TypeAlias = "tuple[int, int, int, int]"
Strides: TypeAlias = "tuple[int, int, int]"

BATCHES: contextvars.ContextVar[Callable[[DeferredBatch], torch.Tensor] | None] = (
    contextvars.ContextVar("fastload deferred batches", default=None)
)
"""Makes the tensor of a batch whose rows are recordings. Without it each row is replayed."""

_CAST = frozenset(
    getattr(torch, name)
    for name in ("float16", "bfloat16", "float32", "float64", "uint8", "int32", "int64")
)


class Memory:
    """What several tensors share: what was recorded, or the real tensor.

    Attributes:
        gaps: the strides, in elements, where there are gaps between the rows, or the channels are
            one in memory; None: the usual ones.
        whole: what this is a part or a row of; None: neither. See Note [Parts] and Note [Rows of a
            batch].
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
        self.whole: _View | None = None
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

    def as_told(self, made: torch.Tensor) -> torch.Tensor:
        """What the core made, with the strides that were told."""
        one = self.gaps is not None and self.gaps[0] == 0
        return made[:1].clone().expand(self.shape) if one else made

    @property
    def real(self) -> torch.Tensor | None:
        """The real tensor; None: it is not made yet."""
        if self._real is None and self.whole is not None:
            self._real = self.whole.real
        return self._real

    def _real_or_none(self) -> torch.Tensor | None:
        return self.real

    def materialise(self) -> torch.Tensor:
        """The real tensor. It is made once."""
        real = self.real
        if real is None:
            if self.whole is not None:
                real = self.whole.materialise()
            else:
                recording = self.recording()
                with torch.inference_mode(False):  # in which it may be asked for, and recorded not
                    made = single.tensor(recording, self.layout)
                    real = self._replayed(recording) if made is None else self.as_told(made)
            self._real = real
        return real

    def _replayed(self, recording: Recording) -> torch.Tensor:
        """By Pillow and torch, in the strides that were told before.

        Those of what is resized depend on whether it is a part of another tensor, and of what
        is replayed nothing is.
        """
        made = cast(torch.Tensor, replay(recording))
        if made.stride() == self.strides:
            return made
        told = torch.empty_strided(self.shape, self.strides, dtype=made.dtype, device="cpu")
        return told.copy_(made)

    def recording(self) -> Recording:
        return Recording(self.opened, self.operations, self.size, self.mode)

    def then(self, *operations: Operation, mine: bool = False) -> Memory:
        """New memory: this after these operations; ``mine``: nobody else has this one, so it is."""
        size, layout = self.size, self.layout
        for name, *arguments in operations:
            known = TENSOR_OPERATIONS[name]
            if known.size is not None:
                size = known.size(size, *arguments)
            if known.layout is not None:
                layout = known.layout(layout, *arguments)
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
        """As ``gaps``, of a part of this size."""
        strides = self.strides
        _, closed = shape_and_strides(size, self.mode, self.layout.contiguous)
        return None if closed == strides else strides

    def part(self, box: Box) -> Memory:
        """A part of this memory: the box x, y, w, h."""
        part = self.then(("part", *box))
        x, y, w, h = box
        part.gaps = self.gaps_within((w, h))
        part.whole = _View(self, (slice(None), slice(y, y + h), slice(x, x + w)))
        self.has_part = True
        return part


class _View(NamedTuple):
    """A part of a tensor, or a row of a batch: what indexing gives."""

    whole: Memory | DeferredBatch
    at: int | tuple[slice, ...]

    @property
    def real(self) -> torch.Tensor | None:
        """The real view; None: what it shows is not made yet."""
        whole = self.whole._real_or_none()
        return None if whole is None else whole[self.at]

    def materialise(self) -> torch.Tensor:
        """The real view."""
        return self.whole.materialise()[self.at]


class _Kind(StandIn, torch._C._TensorMeta):
    """The class of such classes, and of torch's."""


class Deferred(torch.Tensor, metaclass=_Kind):
    """What the two kinds of tensor without values have in common."""

    stands_for: type[torch.Tensor] = torch.Tensor

    _view: torch.Tensor | None = None  # the real one, where that is a view of a memory's
    _OWN = frozenset(("_view",))  # attributes; others are the user's

    @staticmethod
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """What programs mean that call ``type(x)(...)``: nothing deferred."""
        return cls.stands_for(*args, **kwargs)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass  # __new__ did it, or that of ``stands_for``

    def materialise(self) -> torch.Tensor:
        """The real tensor. It is made once.

        Raises:
            FileChanged: a file changed since it was opened.
            Whatever Pillow raises for a damaged body.
        """
        raise NotImplementedError

    def _real_or_none(self) -> torch.Tensor | None:
        raise NotImplementedError

    # Properties, since torch asks __torch_function__ for these on every access.

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        real = self._real_or_none()
        if real is not None:
            return real.shape
        with torch._C.DisableTorchFunction():
            return super().shape

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        real = self._real_or_none()
        if real is not None:
            return real.dtype
        with torch._C.DisableTorchFunction():
            return super().dtype

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return len(self.shape)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        real = self._real_or_none()
        return _CPU if real is None else real.device

    @property
    def layout(self) -> torch.layout:  # type: ignore[override]
        return torch.strided

    @property
    def requires_grad(self) -> bool:
        real = self._real_or_none()
        return False if real is None else real.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.materialise().requires_grad = value

    @property
    def is_nested(self) -> bool:  # type: ignore[override]
        return False

    @property
    def row_of(self) -> DeferredBatch | None:
        """The batch of which this is a view; None: it is none."""
        return None

    def given(self, real: torch.Tensor) -> torch.Tensor:
        """``real``, with the attributes that the user's code has given this."""
        for name in vars(self).keys() - self._OWN:
            setattr(real, name, vars(self)[name])
        return real

    def _viewed(self, view: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The real view, made once: its shape and gradient are its own."""
        if self._view is None:
            self._view = view()
        return self._view

    def opened(self) -> list[Opened]:
        """The images that are not made yet."""
        raise NotImplementedError

    def materialise_row(self, place: int) -> None:
        """As that of a batch, of which this is the only row."""
        self.materialise()

    def as_subclass(self, kind: Any) -> Any:
        """As of any tensor. torch does not ask __torch_function__ for this."""
        return _eagerly(torch.Tensor.as_subclass, (self, kind), {})

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self.materialise())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.given(self.materialise()).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        real = self.given(self.materialise())
        return cast(torch.Tensor, real.__deepcopy__(memo))  # type: ignore[no-untyped-call]

    def __dir__(self) -> list[str]:
        return dir(torch.Tensor)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        handler = _HANDLERS.get(func)
        if handler is not None:
            try:
                result = handler(*args, **(kwargs or {}))
            except TypeError:  # other arguments than it knows: torch takes them, or says why not
                result = NotImplemented
            if result is not NotImplemented:
                return result
        return _eagerly(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        # What reaches torch's C++ without Python's overrides, such as torch.tensor(image).
        return _eagerly(func, args, kwargs or {})


class DeferredTensor(Deferred):
    """The tensor of an image that is not decoded yet: (channels, height, width), on the CPU."""

    __slots__ = ("_memory",)  # most have no dict
    _memory: Memory

    @staticmethod
    def __new__(cls, *args: Any, **kwargs: Any) -> DeferredTensor:
        if len(args) == 1 and isinstance(args[0], Recording):
            return cls._of(Memory.of(args[0]))
        return cast(DeferredTensor, cls.stands_for(*args, **kwargs))

    @classmethod
    def _of(cls, memory: Memory) -> DeferredTensor:
        shape, strides, dtype = memory.shape, memory.strides, memory.layout.dtype
        if strides[0] > 1 and memory.gaps is None:  # the usual ones: torch is faster without them
            made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype)
        else:
            made = torch.Tensor._make_wrapper_subclass(cls, shape, strides=strides, dtype=dtype)
        _without_data(made)
        made._memory = memory
        return made

    @property
    def recording(self) -> Recording | None:
        """None: it is materialised."""
        memory = self._memory
        return None if memory.real is not None else memory.recording()

    def materialise(self) -> torch.Tensor:
        return self._memory.materialise()

    @property
    def has_gaps(self) -> bool:
        """Whether there are gaps between its rows, which belong to another tensor."""
        return self._memory.gaps is not None

    @property
    def row_of(self) -> DeferredBatch | None:
        view = self._memory.whole
        return view.whole if view and isinstance(view.whole, DeferredBatch) else None

    def opened(self) -> list[Opened]:
        return [self._memory.opened]

    def as_subclass(self, kind: Any) -> Any:
        """As of any tensor: another one of the same memory."""
        for deferred in (DeferredTensor, DeferredTVImage):
            if deferred == kind:  # which it is to what it stands for, too
                if self._memory.real is None:
                    return deferred._of(self._memory)
                kind = deferred.stands_for
        return super().as_subclass(kind)

    def _real_or_none(self) -> torch.Tensor | None:
        return self._memory.real


# Where a release has no such function, nobody knows, and torch gets the real image.
_returns_subclass: Callable[[], bool] = named(
    "torchvision.tv_tensors._torch_function_helpers._must_return_subclass"
) or (lambda: True)


class DeferredTVImage(DeferredTensor, tv_tensors.Image):  # type: ignore[misc]
    """The same, as torchvision's v2 transforms mark an image."""

    stands_for = tv_tensors.Image

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if _returns_subclass():  # tv_tensors.set_return_type("TVTensor")
            return _eagerly(func, args, kwargs or {})
        return super().__torch_function__(func, types, args, kwargs)

    def materialise(self) -> torch.Tensor:
        """As of any deferred tensor; it shares the memory of those that are not marked."""
        real = super().materialise()
        return self._viewed(lambda: cast(torch.Tensor, real.as_subclass(tv_tensors.Image)))

    def _real_or_none(self) -> torch.Tensor | None:
        return self._memory.real if self._view is None else self._view


class DeferredUnsqueezed(DeferredTensor):
    """A view of a deferred tensor with a dimension of one in front: (1, channels, height, width).

    Most functions get the real one.
    """

    @classmethod
    def _of(cls, memory: Memory) -> DeferredUnsqueezed:
        shape, strides, dtype = memory.shape, memory.strides, memory.layout.dtype
        made = torch.Tensor._make_wrapper_subclass(
            cls, (1, *shape), strides=(shape[0] * strides[0], *strides), dtype=dtype
        )
        _without_data(made)
        made._memory = memory
        return made

    def materialise(self) -> torch.Tensor:
        real = super().materialise()
        return self._viewed(lambda: real.unsqueeze(0))

    as_subclass = Deferred.as_subclass

    def _real_or_none(self) -> torch.Tensor | None:
        return None if self._memory.real is None else self.materialise()


class DeferredBatch(Deferred):
    """Deferred tensors of one shape and dtype, or such batches, stacked along a new dimension.

    Attributes:
        rows: what was recorded, or a copy of a tensor that is made already. What is done in place
            to a row later does not show here. Of stacked batches, those of all of them.
    """

    rows: tuple[Recording | torch.Tensor, ...]
    _real: torch.Tensor | None
    _blank_row: torch.Tensor | None = None  # those of ``blank`` that nothing was copied to
    _OWN = Deferred._OWN | {"_blank_row", "_real", "rows"}

    @classmethod
    def _of(
        cls,
        rows: tuple[Recording | torch.Tensor, ...],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        strides: tuple[int, ...],
    ) -> DeferredBatch:
        made = torch.Tensor._make_wrapper_subclass(cls, shape, strides=strides, dtype=dtype)
        _without_data(made)
        made.rows = rows
        made._real = None
        return made

    def materialise(
        self, make: Callable[[DeferredBatch], torch.Tensor] | None = None
    ) -> torch.Tensor:
        """The real tensor, made once: by ``make``, or by what ``BATCHES`` says."""
        if self._real is None:
            make = make or BATCHES.get()
            with torch.inference_mode(False):  # as of a single tensor
                self._real = self.replay() if make is None else make(self)
            for row in self.rows:
                if isinstance(row, Recording):
                    note_made(row.opened)
            self.rows = ()
        return self._real

    @classmethod
    def blank(cls, shape: tuple[int, ...], dtype: torch.dtype, value: float = 0) -> DeferredBatch:
        """A batch (rows, channels, height, width) of ``value``. See Note [Filled by rows]."""
        made = cls._of((), shape, dtype, _contiguous_strides(shape))
        made.fill_rows(value)
        return made

    def fill_rows(self, value: float) -> None:
        """Set every row to ``value``, of a batch that ``blank`` made."""
        count, *shape = self.shape
        self._blank_row = torch.full((), value, dtype=self.dtype, device="cpu").expand(shape)
        self.rows = (self._blank_row,) * count

    def opened(self) -> list[Opened]:
        return [row.opened for row in self.rows if isinstance(row, Recording)]

    def set_row(self, place: int, row: Recording | torch.Tensor) -> None:
        self.rows = (*self.rows[:place], row, *self.rows[place + 1 :])

    def materialise_row(self, place: int) -> None:
        """Make one row, with Pillow and torch."""
        row = self.rows[place]
        if not isinstance(row, torch.Tensor):
            self.set_row(place, cast(torch.Tensor, replay(row)))

    def replay(self) -> torch.Tensor:
        made = torch.empty_strided(self.shape, _strides(self), dtype=self.dtype, device="cpu")
        rows = [
            row if isinstance(row, torch.Tensor) else cast(torch.Tensor, replay(row))
            for row in self.rows
        ]
        torch.stack(rows, out=made.view(-1, *self.shape[-3:]))
        return made

    def _real_or_none(self) -> torch.Tensor | None:
        return self._real


class DeferredRow(Deferred):
    """A view of the row at ``place`` of a batch that is filled by rows, or of a box in that row."""

    batch: DeferredBatch
    place: int
    box: Box

    _OWN = Deferred._OWN | {"batch", "place", "box"}

    @staticmethod
    def __new__(cls, batch: DeferredBatch, place: int, box: Box | None = None) -> DeferredRow:
        _, c, height, width = batch.shape
        box = box or (0, 0, width, height)
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            (c, box[3], box[2]),
            strides=_contiguous_strides((c, height, width)),
            dtype=batch.dtype,
        )
        _without_data(made)
        made.batch = batch
        made.place = place
        made.box = box
        return made

    @property
    def row_of(self) -> DeferredBatch:
        return self.batch

    def opened(self) -> list[Opened]:
        return self.batch.opened()

    def materialise(self) -> torch.Tensor:
        """The same part of the real batch, a view."""
        real = self.batch.materialise()
        return self._viewed(lambda: self._part_of(real))

    def copy(self, source: Memory) -> bool:
        """Note a copy of ``source``, of the same shape and dtype; whether that can be noted."""
        x, y, w, h = self.box
        _, _, height, width = self.batch.shape
        border = x, y, width - x - w, height - y - h
        if any(border):
            blank = self.batch._blank_row
            if blank is None or self.batch.rows[self.place] is not blank:
                return False
            value = blank[0, 0, 0].item()
            if not _known_by_equality(value):
                return False
            source = source.then(("border", *border, value))
        elif not source.layout.contiguous:
            source = source.then(("contiguous",))
        self.batch.set_row(self.place, source.recording())
        return True

    def _part_of(self, batch: torch.Tensor) -> torch.Tensor:
        x, y, w, h = self.box
        return batch[self.place, :, y : y + h, x : x + w]

    def _real_or_none(self) -> torch.Tensor | None:
        return None if self.batch._real is None else self.materialise()


class filling_rows(TorchFunctionMode):
    """A context in which zeros of the size of deferred images are a batch to fill by rows.

    ``samples`` are collated in it.
    """

    def __init__(self, samples: Any) -> None:
        super().__init__()
        self._samples = samples

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        blank = None
        if func is torch.zeros:
            blank = self._blank(args, 0.0, **(kwargs or {}))
        elif func is torch.full:
            blank = self._full(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if blank is None else blank

    def _full(self, size: Any, fill_value: Any, **kwargs: Any) -> DeferredBatch | None:
        if type(fill_value) is int and kwargs.get("dtype") is None:
            return None  # integers of 64 bits
        if type(fill_value) not in (int, float):
            return None
        return self._blank((size,), fill_value, **kwargs)

    def _blank(self, size: Any, value: float, **kwargs: Any) -> DeferredBatch | None:
        dtype = kwargs.pop("dtype", None)
        device = kwargs.pop("device", None)
        shape = _sizes(size)
        if kwargs or shape is None or torch.device(device or torch.empty(0).device) != _CPU:
            return None
        if not any(pending(part) and _holds(shape, part) for part in _parts(self._samples)):
            return None
        return DeferredBatch.blank(shape, dtype or torch.get_default_dtype(), value)


# How deep samples are searched for deferred tensors: sample, views, view.
_DEPTH = 3


def _parts(samples: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """The tensors in samples."""
    if isinstance(samples, torch.Tensor):
        yield samples
    elif depth >= 0 and isinstance(samples, (tuple, list, dict)):
        for part in samples.values() if isinstance(samples, dict) else samples:
            yield from _parts(part, depth - 1)


def _sizes(size: Sequence[Any]) -> tuple[int, ...] | None:
    """The shape of a batch of images that ``size`` says, as torch.zeros takes it; None: another."""
    if len(size) == 1 and isinstance(size[0], (tuple, list)):
        size = size[0]
    if len(size) != _RANK or not all(type(n) is int and n > 0 for n in size):
        return None
    return tuple(size)


_RANK = 4  # of a batch of images


def _holds(shape: tuple[int, ...], image: DeferredTensor) -> bool:
    """Whether an image fits in the rows of a batch of this shape."""
    c, h, w = image.shape
    return shape[1] == c and shape[2] >= h and shape[3] >= w


def known_values(values: Sequence[float]) -> tuple[float, ...] | None:
    """These values, which may be recorded; None: one of them is not known by equality."""
    return tuple(values) if all(map(_known_by_equality, values)) else None


def _known_by_equality(value: float) -> bool:
    """Whether equal values are this value, which is not so for nan and -0.0."""
    return value == value and (value != 0 or math.copysign(1, value) > 0)


@functools.lru_cache(64)
def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(torch.empty(shape, device="meta").stride())


KINDS: frozenset[type] = frozenset(
    {DeferredTensor, DeferredTVImage, DeferredUnsqueezed, DeferredBatch, DeferredRow}
)


def some_deferred(tensors: Sequence[object]) -> bool:
    """Whether one of these is deferred."""
    return not KINDS.isdisjoint(map(type, tensors))


_CPU = torch.device("cpu")


def _without_data(tensor: torch.Tensor) -> None:
    """Have torch raise where C++ takes the address of what is not there, as ``to_dlpack`` does."""
    torch._C._set_throw_on_mutable_data_ptr(tensor)


def plain(value: torch.Tensor) -> torch.Tensor:
    """The tensor itself, materialised if it is deferred."""
    return value.materialise() if isinstance(value, Deferred) else value


def _row(tensor: torch.Tensor) -> Recording | torch.Tensor:
    """What a batch keeps of a tensor."""
    if pending(tensor):
        return cast(DeferredTensor, tensor)._memory.recording()
    return plain(tensor).clone()


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    if isinstance(tensor, Deferred) and tensor._real_or_none() is not None:
        tensor = tensor.materialise()
    with torch._C.DisableTorchFunction():  # of what is deferred they are the wrapper's own
        return tuple(tensor.stride())


@functools.lru_cache(64)
def _joined_strides(
    join: Callable[[list[torch.Tensor]], torch.Tensor],
    parts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...],
    dtype: torch.dtype,
    times: int = 1,
) -> tuple[int, ...]:
    """Strides of what ``join`` (torch's stack or cat) makes, ``times`` over, of (shape, strides).

    torch decides: rows of pixels may stay rows of pixels, and cat does not always as stack does.
    """
    rows = [torch.empty_strided(*part, dtype=dtype, device="meta") for part in parts]
    return tuple(join(rows * times).stride())


def _eagerly(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What ``func`` makes of the real tensors."""
    wrappers: dict[int, Deferred] = {}
    result = func(*_made(tuple(args), func, wrappers), **_made(dict(kwargs), func, wrappers))
    # What works in place returns the tensor that it was given, or several.
    if type(result) in (list, tuple):
        return _with_parts(result, [wrappers.get(id(part), part) for part in result])
    return wrappers.get(id(result), result) if isinstance(result, torch.Tensor) else result


def _made(value: Any, func: Callable[..., Any], wrappers: dict[int, Deferred]) -> Any:
    """``value`` with real tensors, which ``func`` asks for; ``wrappers`` gets theirs, by their ids.

    Not a function within ``_eagerly``: that would be in a circle with itself, which keeps the
    tensors until the next garbage collection.
    """
    if isinstance(value, Deferred):
        if value._real_or_none() is None:
            with cause(_name(func)):
                made = value.materialise()
        else:
            made = value.materialise()
        wrappers[id(made)] = value
        return made
    if isinstance(value, (list, tuple)):
        return _with_parts(value, [_made(part, func, wrappers) for part in value])
    if type(value) is dict:
        return {key: _made(part, func, wrappers) for key, part in value.items()}
    return value


def _with_parts(container: Any, parts: list[Any]) -> Any:
    """A list or tuple like ``container``, with these parts; itself, if they are the same."""
    if all(map(operator.is_, parts, container)):
        return container
    if isinstance(container, list):
        return parts
    return type(container)(*parts) if hasattr(container, "_fields") else tuple(parts)


def _name(func: Callable[..., Any]) -> str:
    name = getattr(func, "__name__", str(func))
    owner = getattr(func, "__self__", None)
    if name == "__get__" and owner is not None:
        name = getattr(owner, "__name__", name)
    return f"Tensor.{name}"


# What torch's functions do with a deferred tensor where that needs no values. NotImplemented: they
# get the real one.


def pending(value: Any) -> bool:
    """Whether this is a deferred tensor of one image that is not materialised."""
    kind = type(value)
    return (kind is DeferredTensor or kind is DeferredTVImage) and value._memory.real is None


def _unsqueezed(value: Any) -> bool:
    return type(value) is DeferredUnsqueezed and value._memory.real is None


def like(tensor: DeferredTensor, memory: Memory, marked: bool = False) -> DeferredTensor:
    """A tensor of that memory; itself, if it is its own, unless it is a v2 image: as v2 gives it.

    ``marked``: a v2 image stays one. Most functions of torch give a plain tensor.
    """
    if memory is tensor._memory and type(tensor) is DeferredTensor:
        return tensor
    return (type(tensor) if marked else DeferredTensor)._of(memory)


def record(tensor: DeferredTensor, operation: Operation, marked: bool = False) -> DeferredTensor:
    """A new tensor: this one after an operation. ``marked``: a v2 image stays one."""
    return like(tensor, tensor._memory.then(operation), marked)


class Draft:
    """A tensor between two transforms of a chain: of its end alone one is made, which takes long.

    Attributes:
        memory, kind: those of the tensor.
        tensor: itself, where it was given; None: nobody has it.
    """

    __slots__ = ("kind", "memory", "tensor")

    def __init__(
        self, memory: Memory, kind: type[DeferredTensor], tensor: DeferredTensor | None = None
    ) -> None:
        self.memory = memory
        self.kind = kind
        self.tensor = tensor


def draft(value: Any) -> Any:
    """The draft of a deferred tensor that is not materialised; anything else stays."""
    return Draft(value._memory, type(value), value) if pending(value) else value


def finished(value: Any) -> Any:
    """The tensor of a draft; anything else stays."""
    if type(value) is not Draft:
        return value
    return value.kind._of(value.memory) if value.tensor is None else value.tensor


def record_in_place(tensor: DeferredTensor, operation: Operation) -> DeferredTensor:
    """The same tensor after an operation that changes neither shape nor dtype.

    Its memory must be ``alone``.
    """
    memory = tensor._memory
    memory.operations += (operation,)
    return tensor


def _ending(name: str) -> tuple[tuple[Operation], Layout]:
    after = TENSOR_OPERATIONS[name].layout
    assert after is not None
    return ((name,),), after(None)


_ENDINGS = {name: _ending(name) for name in ("to_tensor", "to_image")}


def of_image(image: DeferredImage, name: str) -> Memory:
    """The memory of the tensor that "to_tensor" or "to_image" makes of an image."""
    operation, layout = _ENDINGS[name]
    return Memory(image._opened, image._operations + operation, image._size, image._mode, layout)


def _size(tensor: Any, dim: Any = None) -> Any:
    shape = tensor.shape
    return shape if dim is None else shape[dim] if type(dim) is int else NotImplemented


def _stride(tensor: Any, dim: Any = None) -> Any:
    if not pending(tensor):
        return NotImplemented
    strides = _strides(tensor)
    return strides if dim is None else strides[dim] if type(dim) is int else NotImplemented


def _is_floating_point(tensor: Any) -> Any:
    return tensor.dtype.is_floating_point


def _is_contiguous(tensor: Any, **kwargs: Any) -> Any:
    if not pending(tensor) or kwargs:
        return NotImplemented
    return _contiguous_already(tensor)


def _contiguous_already(tensor: DeferredTensor) -> bool:
    memory = tensor._memory
    c, h, w = tensor.shape
    return memory.gaps is None and (memory.layout.contiguous or c == 1 or h * w == 1)


def _requires_grad(tensor: Any, requires_grad: Any = True) -> Any:
    return tensor if requires_grad is False and pending(tensor) else NotImplemented


def _to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    if not pending(tensor) or len(args) + len(kwargs) != 1:
        return NotImplemented
    target = args[0] if args else kwargs.get("dtype", kwargs.get("device"))
    if isinstance(target, torch.dtype):
        if target == tensor._memory.layout.dtype:
            return tensor
        if target in _CAST:
            return record(tensor, ("to_dtype", dtype_name(target), False), marked=True)
    elif target == "cpu" or target == _CPU:
        return tensor
    return NotImplemented


def _cast_to(dtype: torch.dtype) -> Handler:
    def handler(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        made = NotImplemented if args or kwargs else _to(tensor, dtype)
        return made if made is NotImplemented else like(made, made._memory)

    return handler


def _contiguous(tensor: Any, **kwargs: Any) -> Any:
    if not pending(tensor) or kwargs:
        return NotImplemented
    if _contiguous_already(tensor):
        return like(tensor, tensor._memory)
    return record(tensor, ("contiguous",))


def _clone(marked: bool) -> Handler:
    def handler(tensor: Any, **kwargs: Any) -> Any:
        if not pending(tensor) or kwargs:
            return NotImplemented
        return like(tensor, tensor._memory.copy(), marked)

    return handler


def _with_number(name: str, commutes: bool = False, in_place: bool = False) -> Handler:
    def handler(tensor: Any, other: Any, **kwargs: Any) -> Any:
        if commutes and type(tensor) in (int, float):
            tensor, other = other, tensor
        if not pending(tensor) or kwargs or type(other) not in (int, float):
            return NotImplemented
        dtype = tensor._memory.layout.dtype
        if not dtype.is_floating_point:
            to_float = name == "div" and dtype == torch.uint8 and not in_place
            if not to_float or torch.get_default_dtype() != torch.float32:
                return NotImplemented
        if not in_place:
            return record(tensor, (name, other))
        if not tensor._memory.alone:
            return NotImplemented
        return like(record_in_place(tensor, (name, other)), tensor._memory)

    return handler


def _times(in_place: bool = False) -> Handler:
    by_number = _with_number("mul", commutes=True, in_place=in_place)

    def handler(tensor: Any, other: Any, **kwargs: Any) -> Any:
        if not in_place and type(tensor) is torch.Tensor:
            tensor, other = other, tensor
        if type(other) is torch.Tensor and pending(tensor) and not kwargs:
            return _masked(tensor, other, in_place)
        return by_number(tensor, other, **kwargs)

    return handler


def _masked(image: DeferredTensor, mask: torch.Tensor, in_place: bool) -> Any:
    """``image`` times a mask of zeros and ones, as Cutout is written."""
    memory = image._memory
    c, h, w = image.shape
    if mask.dtype != memory.layout.dtype or mask.dtype not in _MASKS:
        return NotImplemented
    # Of others torch would have to say how the product lies in memory.
    if not memory.layout.contiguous or memory.gaps or c == 1 or min(h, w) < LEAST_SIDE:
        return NotImplemented
    if in_place and not memory.alone:
        return NotImplemented
    boxes = _zeros_of(mask, (c, h, w))
    if boxes is None:
        return NotImplemented
    made = like(image, memory if in_place else memory.copy())
    for x, y, width, height in boxes:
        record_in_place(made, ("erase", y, x, height, width, None))
    return made


_MASKS = frozenset((torch.float32, torch.float16))

_MOST_RECTANGLES = 16  # of zeros in a mask


def _zeros_of(mask: torch.Tensor, shape: tuple[int, ...]) -> list[Box] | None:
    """The rectangles of zeros in a mask of zeros and ones; None: it is none for this shape."""
    c, h, w = shape
    if mask.device != _CPU or mask.requires_grad or mask.is_neg() or mask.ndim not in (2, 3):
        return None
    if mask.shape[-2:] != (h, w) or mask.stride()[-2:] != (w, 1):
        return None
    if mask.ndim == 3:
        alike = len(mask) == 1 or (len(mask) == c and mask.stride(0) == 0)
        if not alike and (mask.stride(0) != h * w or not bool((mask == mask[0]).all())):
            return None
        mask = mask[0]
    values = mask.numpy()
    zeros = values == 0
    if not (zeros | (values == 1)).all() or np.signbit(values).any():
        return None
    return _rectangles(zeros)


def _rectangles(where: np.ndarray) -> list[Box] | None:
    """Rectangles that together are ``where``, bool (h, w); None: there are too many."""
    rows, columns = np.flatnonzero(where.any(1)), np.flatnonzero(where.any(0))
    if not len(rows):
        return []
    top, left = int(rows[0]), int(columns[0])
    part = where[top : int(rows[-1]) + 1, left : int(columns[-1]) + 1]
    changes = (np.flatnonzero((part[1:] != part[:-1]).any(1)) + 1).tolist()
    edges = [0, *changes, len(part)]  # of rows that are alike
    found: list[Box] = []
    for first, last in itertools.pairwise(edges):
        ends = np.flatnonzero(np.diff(part[first].astype(np.int8), prepend=0, append=0)).tolist()
        if len(found) + len(ends) // 2 > _MOST_RECTANGLES:
            return None
        for start, end in zip(ends[::2], ends[1::2], strict=True):
            found.append((left + start, top + first, end - start, last - first))
    return found


def _stack(tensors: Any, dim: Any = 0, **kwargs: Any) -> Any:
    if dim != 0 or kwargs or not isinstance(tensors, (tuple, list)):
        return NotImplemented
    alike = _alike(tensors)
    if alike is not None:
        return alike
    if any(map(_whole_batch, tensors)):
        return _stacked(tensors)
    if not any(map(pending, tensors)):
        return NotImplemented
    looks = [look for look in map(_look, tensors) if look is not None]
    shape, _, dtype = looks[0]
    if len(looks) < len(tensors):
        return NotImplemented
    if not all(look[0] == shape and look[2] == dtype for look in looks):
        return NotImplemented
    rows = tuple(map(_row, tensors))
    strides = _joined_strides(torch.stack, tuple(look[:2] for look in looks), dtype)
    return DeferredBatch._of(rows, (len(rows), *shape), dtype, strides)


def _alike(tensors: Sequence[Any]) -> DeferredBatch | None:
    """The stack of deferred tensors of one shape and dtype, which most are; None: these are others.

    It takes half of the time: 1.5 % of an image of 32x32. What lies in memory as rows of pixels and
    what does not often come together, in any order: torch is asked about one of each.
    """
    looks: dict[Any, Memory] = {}
    recordings = []
    for tensor in tensors:
        if not pending(tensor):
            return None
        memory = tensor._memory
        looks.setdefault((memory.size, memory.mode, memory.layout, memory.gaps), memory)
        recordings.append(memory.recording())
    if len({(memory.shape, memory.layout.dtype) for memory in looks.values()}) != 1:
        return None
    count, memory = len(recordings), tensors[0]._memory
    shape, dtype = memory.shape, memory.layout.dtype
    parts = tuple((shape, memory.strides) for memory in looks.values())
    strides = _joined_strides(torch.stack, parts, dtype, times=count if len(parts) == 1 else 1)
    return DeferredBatch._of(tuple(recordings), (count, *shape), dtype, strides)


def _look(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype] | None:
    """Shape, strides and dtype of what may be a row of a new batch; None: it may not."""
    if pending(tensor):
        memory = tensor._memory
        return memory.shape, memory.strides, memory.layout.dtype
    if not isinstance(tensor, torch.Tensor) or isinstance(tensor, DeferredBatch):
        return None
    if tensor.device != _CPU or tensor.requires_grad:
        return None
    return tuple(tensor.shape), _strides(tensor), tensor.dtype


def _whole_batch(value: Any) -> bool:
    """Whether it is a batch of recordings (rows, channels, height, width)."""
    return (
        isinstance(value, DeferredBatch)
        and value._real is None
        and value._blank_row is None
        and value.ndim == _RANK
        and {Recording}.issuperset(map(type, value.rows))
    )


def _stacked(batches: Sequence[Any]) -> Any:
    """The stack of batches, some of which are made already."""
    first = next(batch for batch in batches if _whole_batch(batch))
    shape, dtype = first.shape, first.dtype
    strides = _contiguous_strides(shape)
    rows: list[Recording | torch.Tensor] = []
    for batch in batches:
        if _whole_batch(batch):
            alike, added = batch, batch.rows
        else:
            alike = plain(batch)
            if type(alike) is not torch.Tensor or alike.device != _CPU or alike.requires_grad:
                return NotImplemented
            added = alike.clone()
        if (alike.shape, alike.dtype) != (shape, dtype) or _strides(alike) != strides:
            return NotImplemented
        rows += added
    stacked = (len(batches), *shape)
    return DeferredBatch._of(tuple(rows), stacked, dtype, _contiguous_strides(stacked))


def _cat(tensors: Any, dim: Any = 0, **kwargs: Any) -> Any:
    if dim != 0 or kwargs or not isinstance(tensors, (tuple, list)) or not tensors:
        return NotImplemented
    first = tensors[0]
    if pending(first):
        thrice = len(tensors) == 3 and all(tensor is first for tensor in tensors)
        return _repeat(first, 3, 1, 1) if thrice else NotImplemented
    for tensor in tensors:
        if not (_unsqueezed(tensor) or _is_pending_batch(tensor) or _has_rows(tensor)):
            return NotImplemented
        if tensor.shape[1:] != first.shape[1:] or tensor.dtype != first.dtype:
            return NotImplemented
    rows: list[Recording | torch.Tensor] = []
    for tensor in tensors:
        if _unsqueezed(tensor):
            rows.append(tensor._memory.recording())
        else:
            rows += tensor.rows if isinstance(tensor, DeferredBatch) else tensor.clone()
    strides = _joined_strides(
        torch.cat, tuple((tuple(tensor.shape), _strides(tensor)) for tensor in tensors), first.dtype
    )
    joined = (sum(map(len, tensors)), *first.shape[1:])
    return DeferredBatch._of(tuple(rows), joined, first.dtype, strides)


def _is_pending_batch(value: object) -> bool:
    return isinstance(value, DeferredBatch) and value._real is None


def _has_rows(tensor: object) -> bool:
    """Whether it is a tensor with values, of which a batch can take each row."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device == _CPU
        and tensor.layout is torch.strided
        and tensor.ndim > 0
        and not tensor.requires_grad
    )


def _unsqueeze(tensor: Any, dim: Any) -> Any:
    if not pending(tensor) or type(dim) is not int or dim not in (0, -len(tensor.shape) - 1):
        return NotImplemented
    return DeferredUnsqueezed._of(tensor._memory)


def _squeeze(tensor: Any, dim: Any = None) -> Any:
    if not _unsqueezed(tensor) or type(dim) is not int or dim not in (0, -len(tensor.shape)):
        return NotImplemented
    return DeferredTensor._of(tensor._memory)


def _expand(tensor: Any, *size: Any, **kwargs: Any) -> Any:
    """To the shape that it has already."""
    if not pending(tensor) or kwargs:
        return NotImplemented
    wanted = size[0] if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
    if len(wanted) != len(tensor.shape):
        return NotImplemented
    if not all(type(n) is int and n in (-1, m) for n, m in zip(wanted, tensor.shape, strict=True)):
        return NotImplemented
    return DeferredTensor._of(tensor._memory)


def _expand_as(tensor: Any, other: Any) -> Any:
    plain = pending(tensor) or type(tensor) is torch.Tensor
    return tensor.expand(other.shape) if plain else NotImplemented


# What is done to each value, whatever its channel.
_BY_VALUE = frozenset(("normalize", "to_dtype", "mul", "div", "add", "sub"))


def _repeat(tensor: Any, *sizes: Any, **kwargs: Any) -> Any:
    """A gray image in three channels: that of the image in RGB."""
    wanted = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    if not pending(tensor) or kwargs or wanted != (3, 1, 1) or tensor._memory.mode != "L":
        return NotImplemented
    opened, operations, size, _ = tensor._memory.recording()
    # Of one pixel, torch makes other strides here than ToTensor does.
    if ("to_tensor",) not in operations or size == (1, 1):
        return NotImplemented
    at = operations.index(("to_tensor",))
    for name, *arguments in operations[at + 1 :]:
        several = any(isinstance(one, tuple) and len(one) > 1 for one in arguments)
        if name not in _BY_VALUE or several:
            return NotImplemented
    in_colour = (*operations[:at], ("convert", "RGB"), *operations[at:])
    return DeferredTensor(Recording(opened, in_colour, size, "RGB"))


def _reshape(tensor: Any, *shape: Any, **kwargs: Any) -> Any:
    """To the shape of an image, or with a dimension of one in front: a view."""
    if not (pending(tensor) or _unsqueezed(tensor)) or kwargs:
        return NotImplemented
    wanted = tuple(shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape)
    image = tensor.shape[-3:]
    if wanted == image:
        return DeferredTensor._of(tensor._memory)
    return DeferredUnsqueezed._of(tensor._memory) if wanted == (1, *image) else NotImplemented


def _pad(tensor: Any, pad: Any, mode: Any = "constant", value: Any = None) -> Any:
    if not (pending(tensor) or _unsqueezed(tensor)):
        return NotImplemented
    if mode != "constant" or type(value) not in (int, float, type(None)):
        return NotImplemented
    if not isinstance(pad, (tuple, list)) or len(pad) not in (2, 4, 6):
        return NotImplemented
    if not all(type(n) is int and n >= 0 for n in pad):
        return NotImplemented
    left, right, top, bottom, *others = (*pad, 0, 0)[: max(4, len(pad))]
    if any(others):
        return NotImplemented
    made = bordered(tensor._memory, left, top, right, bottom, 0 if value is None else value)
    kind = DeferredUnsqueezed if _unsqueezed(tensor) else DeferredTensor
    return NotImplemented if made is None else kind._of(made)


def bordered(
    memory: Memory, left: int, top: int, right: int, bottom: int, value: float
) -> Memory | None:
    """New memory, with a border of one value; None: it is not recorded."""
    # Of these ``shape_and_strides`` cannot say the strides.
    if channels(memory.mode) == 1 or min(memory.size) < LEAST_SIDE:
        return None
    if not (left or top or right or bottom):
        return memory.copy()
    stored = _stored(value, memory.layout.dtype) if _known_by_equality(value) else None
    return None if stored is None else memory.then(("border", left, top, right, bottom, stored))


@functools.lru_cache(64)
def _stored(value: float, dtype: torch.dtype) -> float | None:
    """What a tensor of this dtype has where ``value`` is stored; None: not known by equality."""
    try:
        stored: float = torch.full((), value, dtype=dtype, device="cpu").item()
    except RuntimeError:  # the dtype has no such value
        return None
    return stored if _known_by_equality(stored) else None


# Those of a batch that is filled by rows, and of its rows.


def _to_fill(value: Any) -> bool:
    return isinstance(value, DeferredBatch) and value._blank_row is not None and value._real is None


def _row_to_fill(value: Any) -> bool:
    return isinstance(value, DeferredRow) and value.batch._real is None


def _new(tensor: Any, *size: Any, **kwargs: Any) -> Any:
    shape = _sizes(size)
    if not pending(tensor) or shape is None or kwargs or not _holds(shape, tensor):
        return NotImplemented
    return DeferredBatch.blank(shape, tensor.dtype)


def _new_full(tensor: Any, size: Any, value: Any, **kwargs: Any) -> Any:
    return _fill(_new(tensor, size, **kwargs), value)


def _fill(batch: Any, value: Any) -> Any:
    if not _to_fill(batch) or type(value) not in (int, float):
        return NotImplemented
    batch.fill_rows(value)
    return batch


def _unbind(batch: Any, dim: Any = 0) -> Any:
    if dim != 0:
        return NotImplemented
    if _to_fill(batch):
        return tuple(DeferredRow(batch, place) for place in range(len(batch.rows)))
    if not _whole_batch(batch):
        return NotImplemented
    rows = tuple(_row_of(batch, place) for place in range(len(batch.rows)))
    return NotImplemented if any(row is NotImplemented for row in rows) else rows


def _iter(batch: Any) -> Any:
    rows = _unbind(batch)
    return NotImplemented if rows is NotImplemented else iter(rows)


def _row_of(batch: DeferredBatch, place: int) -> Any:
    """A row of a batch of recordings. See Note [Rows of a batch]."""
    memory = Memory.of(cast(Recording, batch.rows[place]))
    strides = _strides(batch)[1:]
    if memory.strides != strides:
        memory = memory.then(("contiguous",))
        if memory.strides != strides:
            return NotImplemented
    memory.whole = _View(batch, place)
    return DeferredTensor._of(memory)


def _part(tensor: DeferredTensor, index: Any) -> Any:
    """A part of a tensor. See Note [Parts]."""
    memory = tensor._memory
    if memory.has_part or not movable(memory):
        return NotImplemented
    box = _box(index, tensor.shape)
    if box is None or min(box[2:]) < LEAST_SIDE:
        return NotImplemented
    return DeferredTensor._of(memory.part(box))


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


def _flip(tensor: Any, *dims: Any, **kwargs: Any) -> Any:
    if kwargs.keys() == {"dims"} and not dims:
        dims, kwargs = (kwargs["dims"],), {}
    if len(dims) == 1 and type(dims[0]) in (tuple, list):
        dims = tuple(dims[0])
    if not pending(tensor) or kwargs or len(dims) != 1 or not movable(tensor._memory):
        return NotImplemented
    (dim,) = dims
    if type(dim) is not int or dim not in (-1, -2, 1, 2):
        return NotImplemented
    return record(tensor, ("mirror", dim in (-2, 1)))


def _ordered(tensor: DeferredTensor, index: list[Any]) -> Any:
    """The three channels in any order: those of the image, as nothing tells them apart since."""
    memory, places = tensor._memory, channel_order(index)
    if places is None or memory.mode != "RGB" or not memory.layout.contiguous or memory.gaps:
        return NotImplemented
    if min(tensor.shape) < LEAST_SIDE:
        return NotImplemented
    made = next(k for k, (name, *_) in enumerate(memory.operations) if name in TENSOR_OPERATIONS)
    if not all(_alike_in_channels(operation) for operation in memory.operations[made:]):
        return NotImplemented
    order: Operation = ("order", *places)
    operations = (*memory.operations[:made], order, *memory.operations[made:])
    moved = Memory(memory.opened, operations, memory.size, memory.mode, memory.layout)
    return DeferredTensor._of(moved)


def channel_order(index: Any) -> tuple[int, ...] | None:
    """Which of three channels each one comes from; None: torch has to say."""
    numbers = type(index) is torch.Tensor and index.dtype in _INDICES and index.device == _CPU
    given = index.tolist() if numbers else index
    if type(given) not in (list, tuple) or len(given) != 3:
        return None
    if not all(type(c) is int and -3 <= c < 3 for c in given):
        return None
    return tuple(c % 3 for c in given)


_INDICES = frozenset((torch.int32, torch.int64))


def _alike_in_channels(operation: Operation) -> bool:
    name, *values = operation
    if name == "normalize":
        return all(len(set(one)) == 1 for one in cast("list[tuple[float, ...]]", values))
    if name == "look_up":
        table = cast(bytes, values[0])
        return table == table[: len(table) // 3] * 3
    return name not in ("erase", "fill") and name not in LEVEL_OPERATIONS


def _get(tensor: Any, index: Any) -> Any:
    if pending(tensor):
        if index is None:
            return _unsqueeze(tensor, 0)
        return _ordered(tensor, index) if type(index) is list else _part(tensor, index)
    if _unsqueezed(tensor):
        return _squeeze(tensor, 0) if type(index) is int and index in (0, -1) else NotImplemented
    if type(index) is int and _whole_batch(tensor) and -len(tensor) <= index < len(tensor):
        return _row_of(tensor, index % len(tensor))
    if _row_to_fill(tensor):
        row, part = tensor, index
    elif _to_fill(tensor):
        place, *rest = index if type(index) is tuple else (index,)
        if type(place) is not int or not -len(tensor) <= place < len(tensor):
            return NotImplemented
        row, part = DeferredRow(tensor, place % len(tensor)), tuple(rest)
    else:
        return NotImplemented
    box = _box(part, row.shape)
    if box is None:
        return NotImplemented
    x, y, w, h = box
    left, top, _, _ = row.box
    return DeferredRow(row.batch, row.place, (left + x, top + y, w, h))


def _box(index: Any, shape: tuple[int, ...]) -> Box | None:
    """The box x, y, w, h that an index takes of (channels, h, w); None: it takes anything else."""
    box = _span(index, shape)
    return None if box is None or not all(box[2:]) else box


def _span(index: Any, shape: tuple[int, ...]) -> Box | None:
    """The same, of a box that may be empty."""
    indices = index if type(index) is tuple else (index,)
    if indices and indices[0] is Ellipsis:
        indices = (slice(None),) * (len(shape) + 1 - len(indices)) + indices[1:]
    if len(indices) > len(shape):
        return None
    taken = [(0, n) for n in shape]
    for axis, one in enumerate(indices):
        if type(one) is not slice or one.step not in (None, 1):
            return None
        if not all(
            kind in (int, type(None)) or issubclass(kind, np.integer)
            for kind in (type(one.start), type(one.stop))
        ):
            return None
        taken[axis] = one.indices(shape[axis])[:2]
    channels, (top, bottom), (left, right) = taken
    if channels != (0, shape[0]):
        return None
    return left, top, max(0, right - left), max(0, bottom - top)


def _assign(tensor: DeferredTensor, index: Any, value: Any) -> Any:
    """One value, or one for each channel, for a box of all channels or of one."""
    memory, shape = tensor._memory, tensor.shape
    if not memory.alone:
        return NotImplemented
    indices = index if type(index) is tuple else (index,)
    channel = None
    if indices and type(indices[0]) is int and shape[0] > 1:
        channel, *others = indices
        if not -shape[0] <= channel < shape[0]:
            return NotImplemented
        channel %= shape[0]
        indices = slice(None), *others
    box = _span(indices, shape)
    if box is None:
        return NotImplemented
    values = _constants(value, memory.layout.dtype, shape[0] if channel is None else None)
    if values is None:
        return NotImplemented
    x, y, w, h = box
    if w == 0 or h == 0:
        return None
    if channel:  # those before it have to have been assigned, too
        *before, (name, *given) = memory.operations
        if name != "fill" or given[:4] != [y, x, h, w]:
            return NotImplemented
        filled = cast("tuple[float, ...]", given[4])
        if len(filled) != channel:
            return NotImplemented
        memory.operations = tuple(before)
        values = (*filled, *values)
    name = "erase" if channel in (None, shape[0] - 1) else "fill"
    record_in_place(tensor, (name, y, x, h, w, values))
    return None


def _constants(value: Any, dtype: torch.dtype, count: int | None) -> tuple[float, ...] | None:
    """What is stored where ``value`` is assigned; None: it is no constant, or not known.

    ``count``: of the channels, which may have a value each; None: to one of them.
    """
    if type(value) is torch.Tensor:
        shapes = ((),) if count is None else ((), (1,), (1, 1, 1), (count, 1, 1))
        if tuple(value.shape) not in shapes or value.dtype not in (torch.float32, torch.uint8):
            return None
        if value.device != _CPU or value.requires_grad or dtype not in _ASSIGNED:
            return None
        return known_values(value.flatten().tolist())
    if dtype == torch.uint8:
        return (value,) if type(value) is int and 0 <= value <= _WHITE else None
    if dtype not in _ASSIGNED or type(value) not in (int, float, np.float64):
        return None
    try:
        return known_values([torch.full((), value, dtype=dtype, device="cpu").item()])
    except (RuntimeError, OverflowError):  # the dtype has no such value
        return None


_WHITE = 255
_ASSIGNED = frozenset((torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.uint8))


def _set(tensor: Any, index: Any, value: Any) -> Any:
    if pending(tensor):
        return _assign(tensor, index, value)
    row = _get(tensor, index)
    if row is NotImplemented or _copy(row, value) is NotImplemented:
        return NotImplemented
    return None


def _copy(row: Any, source: Any, non_blocking: Any = False) -> Any:
    if not _row_to_fill(row) or not pending(source) or source.shape != row.shape:
        return NotImplemented
    source = _to(source, row.dtype)
    if source is NotImplemented:
        return NotImplemented
    return row if row.copy(source._memory) else NotImplemented


def _handlers() -> Iterator[tuple[Handler, tuple[Callable[..., Any], ...]]]:
    """What does it for a deferred tensor, and torch's functions."""
    x = torch.Tensor
    yield _size, (x.size,)
    yield _stride, (x.stride,)
    yield (lambda tensor: len(tensor.shape)), (x.dim, x.ndimension)
    yield (lambda tensor: tensor.shape.numel()), (x.numel, x.nelement, torch.numel)
    yield _is_floating_point, (x.is_floating_point, torch.is_floating_point)
    yield _is_contiguous, (x.is_contiguous,)
    yield _requires_grad, (x.requires_grad_,)
    yield _to, (x.to,)
    yield _cast_to(torch.float32), (x.float,)
    yield _cast_to(torch.float16), (x.half,)
    yield _cast_to(torch.bfloat16), (x.bfloat16,)
    yield _cast_to(torch.float64), (x.double,)
    yield _contiguous, (x.contiguous,)
    yield _clone(marked=True), (x.clone,)
    yield _clone(marked=False), (torch.clone,)  # of a v2 image it gives no image
    yield _times(), (x.mul, x.__mul__, x.__rmul__, torch.mul)
    yield _times(in_place=True), (x.mul_, x.__imul__)
    yield _with_number("div"), (x.div, x.__truediv__, torch.div)
    yield _with_number("div", in_place=True), (x.div_, x.__itruediv__)
    yield _with_number("add"), (x.add, x.__add__, x.__radd__)
    yield _with_number("add", commutes=True), (torch.add,)
    yield _with_number("add", in_place=True), (x.add_, x.__iadd__)
    yield _with_number("sub"), (x.sub, x.__sub__, torch.sub)
    yield _with_number("sub", in_place=True), (x.sub_, x.__isub__)
    yield _stack, (torch.stack,)
    yield _cat, (torch.cat,)
    yield _unsqueeze, (x.unsqueeze, torch.unsqueeze)
    yield _squeeze, (x.squeeze, torch.squeeze)
    yield _reshape, (x.reshape, torch.reshape)
    yield _expand, (x.expand,)
    yield _expand_as, (x.expand_as,)
    yield _repeat, (x.repeat,)
    yield _pad, (torch.nn.functional.pad,)
    yield _new, (x.new, x.new_zeros)
    yield _new_full, (x.new_full,)
    yield _fill, (x.fill_,)
    yield (lambda batch: _fill(batch, 0)), (x.zero_,)
    yield _unbind, (x.unbind, torch.unbind)
    yield _iter, (x.__iter__,)
    yield _flip, (x.flip, torch.flip)
    yield _get, (x.__getitem__,)
    yield _set, (x.__setitem__,)
    yield _copy, (x.copy_,)


_HANDLERS: dict[Callable[..., Any], Handler] = {
    function: handler for handler, functions in _handlers() for function in functions
}
