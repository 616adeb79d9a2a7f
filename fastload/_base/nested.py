"""Batches of any structure: find and replace the tensors in dicts, lists, tuples and dataclasses.

Objects with a ``to`` method (PackedSequence, graphs) move themselves to a device, so their contents
are not visited. Those of a UserDict are, though it may have one (transformers' BatchEncoding): that
would copy its tensors out of memory that is not pinned.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
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

    def walk(value: Any) -> Any:
        return rebuilt(value, tensor, movable)

    if isinstance(batch, torch.Tensor):
        return tensor(batch)
    kind = type(batch)
    if kind is list:
        return [walk(element) for element in batch]
    if kind is tuple:
        return tuple([walk(element) for element in batch])
    if kind is dict:
        return {key: walk(value) for key, value in batch.items()}
    if batch is None or isinstance(batch, (str, bytes, int, float, type)):
        return batch
    if callable(getattr(batch, "to", None)) and not isinstance(batch, UserDict):
        return movable(batch)
    if isinstance(batch, Mapping):
        items = {key: walk(value) for key, value in batch.items()}
        if not isinstance(batch, MutableMapping):
            return kind(items)
        clone: Any = copy.copy(batch)
        clone.update(items)
        return clone
    if isinstance(batch, tuple):
        elements = [walk(element) for element in batch]
        return kind(*elements) if hasattr(batch, "_fields") else kind(elements)
    if dataclasses.is_dataclass(batch):
        clone = copy.copy(batch)  # not replace(): there may be fields that __init__ does not take
        for field in dataclasses.fields(batch):
            if hasattr(batch, field.name):
                object.__setattr__(clone, field.name, walk(getattr(batch, field.name)))
        return clone
    if isinstance(batch, MutableSequence) and not isinstance(batch, bytearray):
        clone = copy.copy(batch)
        for i, element in enumerate(batch):
            clone[i] = walk(element)
        return clone
    return batch


def tensors(batch: object) -> list[torch.Tensor]:
    """The tensors in ``batch``, in the order in which ``rebuilt`` visits them."""
    visited: list[torch.Tensor] = []
    rebuilt(batch, lambda tensor: visited.append(tensor), lambda other: other)
    return visited


def all_tensors(batch: object) -> list[torch.Tensor]:
    """The tensors in ``batch``, those inside objects that move themselves included.

    For what concerns memory, not structure: nothing is copied, and a tensor may come twice.
    """
    visited = list[torch.Tensor]()
    _look(batch, visited, {})
    return visited


def _look(value: Any, visited: list[torch.Tensor], seen: dict[int, object]) -> None:
    """Append the tensors in ``value``; ``seen`` keeps by their ids the objects looked at.

    Not a function within ``all_tensors``: that would be in a circle with itself, which keeps what
    was found until the next garbage collection.
    """
    if isinstance(value, torch.Tensor):
        visited.append(value)
        return
    if value is None or isinstance(value, (str, bytes, int, float, type)) or id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, Mapping):
        inner = list(value.values())
    elif isinstance(value, (tuple, MutableSequence)) and not isinstance(value, bytearray):
        inner = list(value)
    else:
        inner = []
    if dataclasses.is_dataclass(value):
        inner += [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    elif callable(getattr(value, "to", None)):
        inner += getattr(value, "__dict__", {}).values()
    for other in inner:
        _look(other, visited, seen)


def memory_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors that hold the values and the structure of ``tensor``; often itself.

    A sparse or nested tensor has no memory of its own: torch refuses to record a stream on it.
    """
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:  # a wrapper, such as a jagged tensor
        names, _ = flatten()
        return [dense for name in names for dense in memory_of(getattr(tensor, name))]
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor.values()] if tensor.is_nested else [tensor]


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
