"""Batches of any structure: find and replace the tensors in dicts, lists, tuples and dataclasses.

Objects with a ``to`` method (PackedSequence, BatchEncoding, graphs) move themselves to a device, so
their contents are not visited.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence
from typing import Any

import torch


def rebuilt(
    batch: Any, tensor: Callable[[torch.Tensor], object], movable: Callable[[Any], object]
) -> Any:
    """``batch`` with ``tensor(t)`` for each tensor and ``movable(x)`` for each object with ``to``.

    Containers are copied and keep their type; those of ``batch`` are not modified. Everything else
    (numbers, strings, NumPy arrays) is passed on as the same object.

    Example:
        >>> rebuilt({"x": torch.ones(2), "key": "a"}, torch.neg, lambda x: x)
        {'x': tensor([-1., -1.]), 'key': 'a'}
    """

    def walk(part: Any) -> Any:
        return rebuilt(part, tensor, movable)

    if isinstance(batch, torch.Tensor):
        return tensor(batch)
    kind = type(batch)
    if kind is list:
        return [walk(part) for part in batch]
    if kind is tuple:
        return tuple([walk(part) for part in batch])
    if kind is dict:
        return {key: walk(part) for key, part in batch.items()}
    if batch is None or isinstance(batch, (str, bytes, int, float, type)):
        return batch
    if callable(getattr(batch, "to", None)):
        return movable(batch)
    if isinstance(batch, Mapping):
        parts = {key: walk(part) for key, part in batch.items()}
        if not isinstance(batch, MutableMapping):
            return kind(parts)
        clone: Any = copy.copy(batch)
        clone.update(parts)
        return clone
    if isinstance(batch, tuple):
        parts_ = [walk(part) for part in batch]
        return kind(*parts_) if hasattr(batch, "_fields") else kind(parts_)
    if dataclasses.is_dataclass(batch):
        clone = copy.copy(batch)  # not replace(): there may be fields that __init__ does not take
        for field in dataclasses.fields(batch):
            if hasattr(batch, field.name):
                object.__setattr__(clone, field.name, walk(getattr(batch, field.name)))
        return clone
    if isinstance(batch, MutableSequence) and not isinstance(batch, bytearray):
        clone = copy.copy(batch)
        for i, part in enumerate(batch):
            clone[i] = walk(part)
        return clone
    return batch


def tensors(batch: object) -> list[torch.Tensor]:
    """The tensors in ``batch``, in the order in which ``rebuilt`` visits them."""
    found: list[torch.Tensor] = []
    rebuilt(batch, lambda tensor: found.append(tensor), lambda other: other)
    return found


def plain(tensor: torch.Tensor) -> bool:
    """Whether bytes, shape and strides describe the tensor completely."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not tensor.is_nested
        and not tensor.is_quantized
        and not tensor.requires_grad
        and not tensor.is_conj()
        and not tensor.is_neg()
    )
