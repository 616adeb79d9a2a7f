"""What torch's functions do with a deferred tensor where that needs no values.

Each handler takes a function's arguments. NotImplemented: torch gets the real tensor.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard, cast

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from .memory import (
    CPU,
    LEAST_SIDE,
    Box,
    Memory,
    View,
    bordered,
    channel_order,
    known_by_equality,
    known_values,
    movable,
)
from .operations import LEVEL_OPERATIONS, TENSOR_OPERATIONS, dtype_name
from .recording import Operation, Recording
from .tensor import (
    HANDLERS,
    DeferredBatch,
    DeferredRow,
    DeferredTensor,
    DeferredUnsqueezed,
    Handler,
    contiguous_strides,
    like,
    pending,
    plain,
    record,
    record_in_place,
    strides_of,
)

_CAST = frozenset(
    getattr(torch, name)
    for name in ("float16", "bfloat16", "float32", "float64", "uint8", "int32", "int64")
)


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
        blank = self._blank(func, args, dict(kwargs or {}))
        return func(*args, **(kwargs or {})) if blank is None else blank

    def _blank(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> DeferredBatch | None:
        """What ``zeros`` or ``full`` gives, deferred; None: torch gives it, or raises."""
        size: Any = args
        value: Any = 0.0
        if func is torch.full:
            names = ("size", "fill_value")[len(args) :]
            size, value, *more = *args, *(kwargs.pop(name, None) for name in names)
            if more:
                return None
        elif func is not torch.zeros:
            return None
        elif not args:
            size = kwargs.pop("size", None)
        dtype, device = kwargs.pop("dtype", None), kwargs.pop("device", None)
        long = type(value) is int and dtype is None  # integers of 64 bits
        if kwargs or long or type(value) not in (int, float):
            return None
        shape = _sizes(size)
        if shape is None or torch.device(device or torch.empty(0).device) != CPU:
            return None
        if not any(pending(x) and _holds(shape, x) for x in _tensors_in(self._samples)):
            return None
        return DeferredBatch.blank(shape, dtype or torch.get_default_dtype(), value)


# How deep samples are searched for deferred tensors: sample, views, view.
_DEPTH = 3


def _tensors_in(samples: Any, depth: int = _DEPTH) -> Iterator[Any]:
    if isinstance(samples, torch.Tensor):
        yield samples
    elif depth >= 0 and isinstance(samples, (tuple, list, dict)):
        for sample in samples.values() if isinstance(samples, dict) else samples:
            yield from _tensors_in(sample, depth - 1)


def _sizes(size: Any) -> tuple[int, ...] | None:
    """The shape of a batch of images that ``size`` says, as torch.zeros takes it; None: another."""
    if not isinstance(size, (tuple, list)):
        return None
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


def _row(tensor: torch.Tensor) -> Recording | torch.Tensor:
    """What a batch keeps as the row of a tensor: its recording, or a copy."""
    if pending(tensor):
        return cast(DeferredTensor, tensor)._memory.recording()
    return plain(tensor).clone()


@functools.lru_cache(64)
def _joined_strides(
    join: Callable[[list[torch.Tensor]], torch.Tensor],
    layouts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...],
    dtype: torch.dtype,
    times: int = 1,
) -> tuple[int, ...]:
    """Strides of what ``join`` (torch's stack or cat) makes, ``times`` over, of (shape, strides).

    torch decides: rows of pixels may stay rows of pixels, and cat does not always as stack does.
    """
    rows = [torch.empty_strided(*layout, dtype=dtype, device="meta") for layout in layouts]
    return tuple(join(rows * times).stride())


def _unsqueezed(value: Any) -> bool:
    return type(value) is DeferredUnsqueezed and value._memory.real is None


def _size(tensor: Any, dim: Any = None) -> Any:
    shape = tensor.shape
    return shape if dim is None else shape[dim] if type(dim) is int else NotImplemented


def _stride(tensor: Any, dim: Any = None) -> Any:
    if not pending(tensor):
        return NotImplemented
    strides = strides_of(tensor)
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
    elif target == "cpu" or target == CPU:
        return tensor
    return NotImplemented


def _cast_to(dtype: torch.dtype) -> Handler:
    def handler(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        converted = NotImplemented if args or kwargs else _to(tensor, dtype)
        return converted if converted is NotImplemented else like(converted, converted._memory)

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
        if commutes and _is_number(tensor):
            tensor, other = other, tensor
        if not pending(tensor) or kwargs or not _is_number(other):
            return NotImplemented
        dtype = tensor._memory.layout.dtype
        if not dtype.is_floating_point:
            to_float = name == "div" and dtype == torch.uint8 and not in_place
            if not to_float or torch.get_default_dtype() != torch.float32:
                return NotImplemented
        return _on_each_value(tensor, (name, other), in_place)

    return handler


def _is_number(value: Any) -> TypeGuard[float]:
    """Whether torch takes it for a number (NumPy's float64 is a float), known by equality."""
    return (type(value) is int or isinstance(value, float)) and known_by_equality(value)


def _on_each_value(tensor: DeferredTensor, operation: Operation, in_place: bool) -> Any:
    """``tensor`` after an operation on each value."""
    if not in_place:
        return record(tensor, operation)
    if not tensor._memory.alone:
        return NotImplemented
    return like(record_in_place(tensor, operation), tensor._memory)


def _clamp(in_place: bool = False) -> Handler:
    def handler(tensor: Any, min: Any = None, max: Any = None, **kwargs: Any) -> Any:
        numbers = all(bound is None or _is_number(bound) for bound in (min, max))
        if not pending(tensor) or kwargs or not numbers or min is max:
            return NotImplemented
        if not tensor._memory.layout.dtype.is_floating_point:
            return NotImplemented
        return _on_each_value(tensor, ("clamp", min, max), in_place)

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
    product = like(image, memory if in_place else memory.copy())
    for x, y, width, height in boxes:
        record_in_place(product, ("erase", y, x, height, width, None))
    return product


_MASKS = frozenset((torch.float32, torch.float16))

_MOST_RECTANGLES = 16  # of zeros in a mask


def _zeros_of(mask: torch.Tensor, shape: tuple[int, ...]) -> list[Box] | None:
    """The rectangles of zeros in a mask of zeros and ones; None: it is none for this shape."""
    c, h, w = shape
    if mask.device != CPU or mask.requires_grad or mask.is_neg() or mask.ndim not in (2, 3):
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


def _rectangles(mask: np.ndarray) -> list[Box] | None:
    """Rectangles that together are ``mask``, bool (h, w); None: there are too many."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return []
    top, left = int(rows[0]), int(columns[0])
    inner = mask[top : int(rows[-1]) + 1, left : int(columns[-1]) + 1]
    changes = (np.flatnonzero((inner[1:] != inner[:-1]).any(1)) + 1).tolist()
    edges = [0, *changes, len(inner)]  # of rows that are alike
    rectangles: list[Box] = []
    for first, last in itertools.pairwise(edges):
        ends = np.flatnonzero(np.diff(inner[first].astype(np.int8), prepend=0, append=0)).tolist()
        if len(rectangles) + len(ends) // 2 > _MOST_RECTANGLES:
            return None
        for start, end in zip(ends[::2], ends[1::2], strict=True):
            rectangles.append((left + start, top + first, end - start, last - first))
    return rectangles


def stack(tensors: Any, dim: Any = 0, **kwargs: Any) -> Any:
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
    layouts = tuple((shape, memory.strides) for memory in looks.values())
    strides = _joined_strides(torch.stack, layouts, dtype, times=count if len(layouts) == 1 else 1)
    return DeferredBatch._of(tuple(recordings), (count, *shape), dtype, strides)


def _look(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype] | None:
    """Shape, strides and dtype of what may be a row of a new batch; None: it may not."""
    if pending(tensor):
        memory = tensor._memory
        return memory.shape, memory.strides, memory.layout.dtype
    if not isinstance(tensor, torch.Tensor) or isinstance(tensor, DeferredBatch):
        return None
    if tensor.device != CPU or tensor.requires_grad:
        return None
    return tuple(tensor.shape), strides_of(tensor), tensor.dtype


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
    strides = contiguous_strides(shape)
    rows: list[Recording | torch.Tensor] = []
    for batch in batches:
        if _whole_batch(batch):
            alike, added = batch, batch.rows
        else:
            alike = plain(batch)
            if type(alike) is not torch.Tensor or alike.device != CPU or alike.requires_grad:
                return NotImplemented
            added = alike.clone()
        if (alike.shape, alike.dtype) != (shape, dtype) or strides_of(alike) != strides:
            return NotImplemented
        rows += added
    stacked = (len(batches), *shape)
    return DeferredBatch._of(tuple(rows), stacked, dtype, contiguous_strides(stacked))


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
        torch.cat,
        tuple((tuple(tensor.shape), strides_of(tensor)) for tensor in tensors),
        first.dtype,
    )
    joined = (sum(map(len, tensors)), *first.shape[1:])
    return DeferredBatch._of(tuple(rows), joined, first.dtype, strides)


def _is_pending_batch(value: object) -> bool:
    return isinstance(value, DeferredBatch) and value._real is None


def _has_rows(tensor: object) -> bool:
    """Whether it is a tensor with values, of which a batch can take each row."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device == CPU
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
    shape = size[0] if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
    if len(shape) != len(tensor.shape):
        return NotImplemented
    if not all(type(n) is int and n in (-1, m) for n, m in zip(shape, tensor.shape, strict=True)):
        return NotImplemented
    return DeferredTensor._of(tensor._memory)


def _expand_as(tensor: Any, other: Any) -> Any:
    is_tensor = pending(tensor) or type(tensor) is torch.Tensor
    return tensor.expand(other.shape) if is_tensor else NotImplemented


# What is done to each value, whatever its channel.
_BY_VALUE = frozenset(("normalize", "to_dtype", "mul", "div", "add", "sub", "rsub", "clamp"))


def _repeat(tensor: Any, *sizes: Any, **kwargs: Any) -> Any:
    """A gray image in three channels: that of the image in RGB."""
    repeats = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    if not pending(tensor) or kwargs or repeats != (3, 1, 1) or tensor._memory.mode != "L":
        return NotImplemented
    opened, operations, size, _ = tensor._memory.recording()
    # Of one pixel, torch makes other strides here than ToTensor does.
    if ("to_tensor",) not in operations or size == (1, 1):
        return NotImplemented
    position = operations.index(("to_tensor",))
    for name, *arguments in operations[position + 1 :]:
        several = any(isinstance(argument, tuple) and len(argument) > 1 for argument in arguments)
        if name not in _BY_VALUE or several:
            return NotImplemented
    in_colour = (*operations[:position], ("convert", "RGB"), *operations[position:])
    return DeferredTensor(Recording(opened, in_colour, size, "RGB"))


def _reshape(tensor: Any, *shape: Any, **kwargs: Any) -> Any:
    """To the shape of an image, or with a dimension of one in front: a view."""
    if not (pending(tensor) or _unsqueezed(tensor)) or kwargs:
        return NotImplemented
    sizes = tuple(shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape)
    image = tensor.shape[-3:]
    if sizes == image:
        return DeferredTensor._of(tensor._memory)
    return DeferredUnsqueezed._of(tensor._memory) if sizes == (1, *image) else NotImplemented


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
    memory = bordered(tensor._memory, left, top, right, bottom, 0 if value is None else value)
    kind = DeferredUnsqueezed if _unsqueezed(tensor) else DeferredTensor
    return NotImplemented if memory is None else kind._of(memory)


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
        return tuple(DeferredRow(batch, index) for index in range(len(batch.rows)))
    if not _whole_batch(batch):
        return NotImplemented
    rows = tuple(_row_of(batch, index) for index in range(len(batch.rows)))
    return NotImplemented if any(row is NotImplemented for row in rows) else rows


def _iter(batch: Any) -> Any:
    rows = _unbind(batch)
    return NotImplemented if rows is NotImplemented else iter(rows)


def _row_of(batch: DeferredBatch, index: int) -> Any:
    """A row of a batch of recordings. See Note [Rows of a batch] in tensor.py."""
    memory = Memory.of(cast(Recording, batch.rows[index]))
    strides = strides_of(batch)[1:]
    if memory.strides != strides:
        memory = memory.then(("contiguous",))
        if memory.strides != strides:
            return NotImplemented
    memory.whole = View(batch, index)
    return DeferredTensor._of(memory)


def _sliced(tensor: DeferredTensor, index: Any) -> Any:
    """A part of a tensor. See Note [Parts] in memory.py."""
    memory = tensor._memory
    if memory.has_part or not movable(memory):
        return NotImplemented
    box = _box(index, tensor.shape)
    if box is None or min(box[2:]) < LEAST_SIDE:
        return NotImplemented
    return DeferredTensor._of(memory.part(box))


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
    memory, channels = tensor._memory, channel_order(index)
    if channels is None or memory.mode != "RGB" or not memory.layout.contiguous or memory.gaps:
        return NotImplemented
    if min(tensor.shape) < LEAST_SIDE:
        return NotImplemented
    first = next(k for k, (name, *_) in enumerate(memory.operations) if name in TENSOR_OPERATIONS)
    if not all(_alike_in_channels(operation) for operation in memory.operations[first:]):
        return NotImplemented
    order: Operation = ("order", *channels)
    operations = (*memory.operations[:first], order, *memory.operations[first:])
    moved = Memory(memory.opened, operations, memory.size, memory.mode, memory.layout)
    return DeferredTensor._of(moved)


def _alike_in_channels(operation: Operation) -> bool:
    name, *values = operation
    if name == "normalize":
        return all(len(set(channels)) == 1 for channels in cast("list[tuple[float, ...]]", values))
    if name == "look_up":
        table = cast(bytes, values[0])
        return table == table[: len(table) // 3] * 3
    if name == "border_levels":
        return len(set(cast("tuple[int, ...]", values[-1]))) == 1
    return name not in ("erase", "fill") and name not in LEVEL_OPERATIONS


def _get(tensor: Any, index: Any) -> Any:
    if pending(tensor):
        if index is None:
            return _unsqueeze(tensor, 0)
        return _ordered(tensor, index) if type(index) is list else _sliced(tensor, index)
    if _unsqueezed(tensor):
        return _squeeze(tensor, 0) if type(index) is int and index in (0, -1) else NotImplemented
    if type(index) is int and _whole_batch(tensor) and -len(tensor) <= index < len(tensor):
        return _row_of(tensor, index % len(tensor))
    if _row_to_fill(tensor):
        row, inner = tensor, index
    elif _to_fill(tensor):
        indices = index if type(index) is tuple else (index,)
        row_index = indices[0] if indices else None
        if type(row_index) is not int or not -len(tensor) <= row_index < len(tensor):
            return NotImplemented
        row, inner = DeferredRow(tensor, row_index % len(tensor)), indices[1:]
    else:
        return NotImplemented
    box = _box(inner, row.shape)
    if box is None:
        return NotImplemented
    x, y, w, h = box
    left, top, _, _ = row.box
    return DeferredRow(row.batch, row.row_index, (left + x, top + y, w, h))


def _box(index: Any, shape: tuple[int, ...]) -> Box | None:
    """The box x, y, w, h that an index takes of (channels, h, w); None: it takes anything else."""
    box = _span(index, shape)
    return None if box is None or not all(box[2:]) else box


def _span(index: Any, shape: tuple[int, ...]) -> Box | None:
    """As ``_box``, but the box may be empty."""
    indices = index if type(index) is tuple else (index,)
    if indices and indices[0] is Ellipsis:
        indices = (slice(None),) * (len(shape) + 1 - len(indices)) + indices[1:]
    if len(indices) > len(shape):
        return None
    ranges = [(0, n) for n in shape]
    for axis, item in enumerate(indices):
        if type(item) is not slice or item.step not in (None, 1):
            return None
        if not all(
            kind in (int, type(None)) or issubclass(kind, np.integer)
            for kind in (type(item.start), type(item.stop))
        ):
            return None
        ranges[axis] = item.indices(shape[axis])[:2]
    channels, (top, bottom), (left, right) = ranges
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
        *before, (name, *arguments) = memory.operations
        if name != "fill" or arguments[:4] != [y, x, h, w]:
            return NotImplemented
        filled = cast("tuple[float, ...]", arguments[4])
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
        if value.device != CPU or value.requires_grad or dtype not in _ASSIGNED:
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
    """Each handler, and the functions of torch that it stands for."""
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
    yield _with_number("rsub"), (x.__rsub__, torch.rsub)
    yield _clamp(), (x.clamp, x.clip, torch.clamp, torch.clip)
    yield _clamp(in_place=True), (x.clamp_, x.clip_, torch.clamp_, torch.clip_)
    yield stack, (torch.stack,)
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


HANDLERS.update((function, handler) for handler, functions in _handlers() for function in functions)
