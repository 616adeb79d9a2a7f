"""torch's default_collate in fewer steps, for samples of the types that most datasets give.

A batch is made column by column. What torch does for each column by way of several checks and, for
numbers, an element-wise conversion (30 us for 128 ints) is one step here where all samples are
plainly of the same type. Whatever is not, torch's own function collates: the results, and the
errors, are its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import collate as torchs
from torch.utils.data._utils.collate import default_collate_fn_map

# Types of which torch makes one tensor of numbers, if all samples of a column have that type.
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
"""Columns of fewer bytes than this are made at once; malloc has warm memory for them."""

# Fewer numbers than this torch converts as fast.
_MANY = 8

_shape = operator.attrgetter("shape")
_strides = operator.attrgetter("strides")

# torch's table unless somebody has put in something of his own, torch's functions for other types
# among it (collate_str_fn leaves what it gets as it is).
_TORCHS: Mapping[Any, Callable[..., Any]] = {
    torch.Tensor: torchs.collate_tensor_fn,
    np.ndarray: torchs.collate_numpy_array_fn,
    (np.bool_, np.number, np.object_): torchs.collate_numpy_scalar_fn,
    float: torchs.collate_float_fn,
    int: torchs.collate_int_fn,
    str: torchs.collate_str_fn,
    bytes: torchs.collate_str_fn,
}


class Columns:
    """Collates like default_collate, with the tensors stacked by ``stack``.

    Args:
        stack: called as the functions of torch's table are; None: torch's own. What somebody has
            put into torch's table comes before it.
    """

    def __init__(self, stack: Callable[..., Any] | None = None) -> None:
        self._stack = stack or torchs.collate_tensor_fn
        self._table = {**_TORCHS, torch.Tensor: self._stack}

    def __call__(self, samples: Any) -> Any:
        """The batch of ``samples``."""
        own = default_collate_fn_map != _TORCHS
        if own or type(samples) not in (list, tuple) or not samples:
            return torchs.default_collate(samples)  # type: ignore[no-untyped-call]
        return self._column(samples)

    def _column(self, samples: Any) -> Any:
        kind = type(samples[0])
        if kind is torch.Tensor:
            return self._stack(samples, collate_fn_map=self._table)
        if kind is str or kind is bytes:
            return samples
        if kind in _NUMBERS and len(samples) >= _MANY:
            made = _numbers(samples, kind)
            if made is not None:
                return made
        elif kind is dict:
            keys = list(samples[0])
            return {key: self._column([sample[key] for sample in samples]) for key in keys}
        elif kind is np.ndarray:
            made = _arrays(samples)
            if made is not None:
                return made
        elif (kind is tuple or kind is list) and _as_long(samples):
            # a list of columns for either, as in torch
            return [self._column(column) for column in zip(*samples)]
        return torchs.collate(samples, collate_fn_map=self._table)


def _numbers(samples: Any, kind: type) -> torch.Tensor | None:
    """One tensor of numbers that all are of the type ``kind``; None where they are not."""
    if set(map(type, samples)) != {kind}:
        return None
    dtype = _NUMBERS[kind]
    try:
        values = np.array(samples, _NUMPYS[dtype])
    except OverflowError:
        return None  # torch has words of its own for it
    return _owned(values, dtype)


def _arrays(samples: Any) -> torch.Tensor | None:
    """One tensor of small arrays that plainly fit together; None where they may not."""
    first = samples[0]
    # Large ones are better stacked by torch, on several threads, and into memory that is warm.
    if not 0 < first.nbytes * len(samples) < SMALL_NBYTES or not first.ndim:
        return None
    dtype = _DTYPES.get(first.dtype)
    if dtype is None or not first.flags.writeable or set(map(type, samples)) != {np.ndarray}:
        return None
    # torch refuses arrays that differ in shape, run backwards, or are fields of packed records
    if len(set(map(_shape, samples))) > 1:
        return None
    strides = {stride for each in set(map(_strides, samples)) for stride in each}
    if min(strides) < 0 or any(stride % first.itemsize for stride in strides):
        return None
    try:
        values = np.concatenate(samples, dtype=first.dtype, casting="no")
    except TypeError:
        return None  # of several dtypes
    return _owned(values.reshape(len(samples), *first.shape), dtype)


def _owned(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """A copy in memory of torch's own, which can be resized, on its default device."""
    return torch.empty(values.shape, dtype=dtype).copy_(torch.from_numpy(values))


def _as_long(samples: Any) -> bool:
    """Whether all samples are of one length."""
    try:
        return len(set(map(len, samples))) == 1
    except TypeError:
        return False
