"""torch's default_collate in fewer steps, for the types that most datasets give.

A batch is collated column by column. For each column, torch makes several checks, and converts
numbers one by one (30 us for 128 ints). If all samples of a column have the same common type, it is
one step here. All other columns are collated by torch's function, so results and errors are the
same as torch's.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data._utils import collate as torchs
from torch.utils.data._utils.collate import default_collate_fn_map

from ...errors import COLOR, FIXED_SIZE, advise

# If all samples of a column have one of these types, torch makes a tensor of this dtype.
_NUMBERS: Mapping[type, torch.dtype] = {
    int: torch.int64,
    float: torch.float64,
    bool: torch.bool,
    np.int64: torch.int64,
    np.int32: torch.int32,
    np.float64: torch.float64,
    np.float32: torch.float32,
}

_DTYPES: Mapping[np.dtype[Any], torch.dtype] = {
    np.dtype(kind): dtype for kind, dtype in _NUMBERS.items()
} | {np.dtype(np.uint8): torch.uint8, np.dtype(np.float16): torch.float16}

_NUMPYS = {dtype: kind for kind, dtype in _DTYPES.items()}

SMALL_NBYTES = 1 << 20
"""Smaller columns are made by NumPy; malloc has warm memory for them."""

# For fewer numbers, torch is as fast.
_MANY = 8

_shape = operator.attrgetter("shape")
_strides = operator.attrgetter("strides")

CollateTable: TypeAlias = Mapping[type | tuple[type, ...], Callable[..., Any]]
"""Functions that collate a column, by type: torch's ``default_collate_fn_map``."""

# torch's table as it is if no user has changed it. A user may also register torch's own functions
# for other types (collate_str_fn returns its argument unchanged).
_TORCHS: CollateTable = {
    torch.Tensor: torchs.collate_tensor_fn,
    np.ndarray: torchs.collate_numpy_array_fn,
    (np.bool_, np.number, np.object_): torchs.collate_numpy_scalar_fn,
    float: torchs.collate_float_fn,
    int: torchs.collate_int_fn,
    str: torchs.collate_str_fn,
    bytes: torchs.collate_str_fn,
}


def torch_stack(
    samples: Sequence[torch.Tensor], *, collate_fn_map: CollateTable | None = None
) -> torch.Tensor:
    """torch's own way of stacking the tensors of a column."""
    table: CollateTable = default_collate_fn_map
    stacked: torch.Tensor = table[torch.Tensor](samples, collate_fn_map=collate_fn_map)
    return stacked


Stack: TypeAlias = Callable[..., torch.Tensor]
"""Stacks the tensors of a column; called like the functions of torch's table."""


def in_columns(samples: Any, stack: Stack) -> Any:
    """The batch of ``samples``. ``stack`` is not used if a user has changed torch's table."""
    if not is_torchs_table() or type(samples) not in (list, tuple) or not samples:
        return torchs.default_collate(samples)  # type: ignore[no-untyped-call]
    return _column(samples, stack)


def _column(samples: Sequence[Any], stack: Stack) -> Any:
    kind = type(samples[0])
    if kind is torch.Tensor:
        return _stacked(samples, stack)
    if kind is str or kind is bytes:
        return samples
    if kind in _NUMBERS and len(samples) >= _MANY:
        made = _numbers(samples, kind)
        if made is not None:
            return made
    elif kind is dict:
        keys = list(samples[0])
        return {key: _column([sample[key] for sample in samples], stack) for key in keys}
    elif kind is np.ndarray:
        made = _arrays(samples)
        if made is not None:
            return made
    elif (kind is tuple or kind is list) and _same_length(samples):
        # a list of columns for both, as in torch
        return [_column(column, stack) for column in zip(*samples)]
    try:
        return torchs.collate(samples, collate_fn_map={**_TORCHS, torch.Tensor: stack})
    except TypeError as error:
        if is_pillow(samples[0]):
            advise(error, "transform=T.ToTensor()")
        raise


def _stacked(samples: Sequence[torch.Tensor], stack: Stack) -> torch.Tensor:
    try:
        return stack(samples, collate_fn_map=_TORCHS)
    except RuntimeError as error:
        line = _line_for(samples)
        if line is not None:
            advise(error, line)
        raise


def _line_for(samples: Sequence[torch.Tensor]) -> str | None:
    """The line to type for images that cannot be stacked; None: they are no images, or alike."""
    if any(sample.is_nested for sample in samples):
        return None  # it has no shape
    shapes = {sample.shape for sample in samples}
    if len(shapes) == 1 or any(len(shape) != _OF_IMAGE for shape in shapes):
        return None
    channels = {shape[0] for shape in shapes}
    if not channels <= _CHANNELS:
        return None
    return FIXED_SIZE if len(channels) == 1 else COLOR


_OF_IMAGE = 3  # channels, height, width
_CHANNELS = frozenset((1, 2, 3, 4))  # gray, with alpha, colours, with alpha


def is_torchs_table() -> bool:
    """Whether the user has not changed how torch collates."""
    return default_collate_fn_map == _TORCHS


def is_pillow(sample: object) -> bool:
    """Whether ``sample`` is an image of Pillow's, or one that is deferred."""
    image = getattr(sys.modules.get("PIL.Image"), "Image", None)
    return image is not None and isinstance(sample, image)


def _numbers(samples: Sequence[Any], kind: type) -> torch.Tensor | None:
    """One tensor of numbers; None if they are not all of the type ``kind``."""
    if set(map(type, samples)) != {kind}:
        return None
    dtype = _NUMBERS[kind]
    try:
        values = np.array(samples, _NUMPYS[dtype])
    except OverflowError:
        return None  # torch raises its own error
    return _owned(values, dtype)


def _arrays(samples: Sequence[Any]) -> torch.Tensor | None:
    """One tensor of small arrays of one shape and dtype; None for all others."""
    first = samples[0]
    # Large arrays are better stacked by torch, with several threads and into warm memory.
    if not 0 < first.nbytes * len(samples) < SMALL_NBYTES or not first.ndim:
        return None
    dtype = _DTYPES.get(first.dtype)
    if dtype is None or not first.flags.writeable or set(map(type, samples)) != {np.ndarray}:
        return None
    # torch refuses arrays that differ in shape, have negative strides, or are fields of packed
    # records.
    if len(set(map(_shape, samples))) > 1:
        return None
    strides = {stride for each in set(map(_strides, samples)) for stride in each}
    if min(strides) < 0 or any(stride % first.itemsize for stride in strides):
        return None
    try:
        values = np.concatenate(samples, dtype=first.dtype, casting="no")
    except TypeError:
        return None  # they differ in dtype
    return _owned(values.reshape(len(samples), *first.shape), dtype)


def _owned(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """A copy on torch's default device, in memory that torch owns and can resize."""
    return torch.empty(values.shape, dtype=dtype).copy_(torch.from_numpy(values))


def _same_length(samples: Sequence[Any]) -> bool:
    """Whether all samples have the same length."""
    try:
        return len(set(map(len, samples))) == 1
    except TypeError:
        return False
