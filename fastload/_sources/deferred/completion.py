"""Completion: replaces deferred tensors and images by plain ones, wherever they are in a batch.

The core fills deferred batches and tensors (``batch.py``). Everything else in a batch is left as it
is.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import types
from collections.abc import Callable, MutableMapping, MutableSequence, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import torch

from . import single
from .batch import BatchDecoder, Filling
from .image import DeferredImage
from .lowering import may_lower
from .needed import has_tensors
from .recording import Recording
from .switch import deferring
from .thread_state import THREAD

if TYPE_CHECKING:
    from .tensor import Deferred

Shape: TypeAlias = "tuple[int, ...]"

Row: TypeAlias = "Recording | torch.Tensor"
"""One image of a batch: what was recorded, or a tensor that is made already."""

# An object of the user's class may refer to a whole dataset, which is not searched.
_MOST_OWNED = 4096

# How deep objects of the user's classes are searched for deferred ones.
_DEEPEST = 8


class DeferredObjects:
    """The deferred objects of a batch, each once, by ``id``."""

    def __init__(self) -> None:
        self._tensors: frozenset[type] = frozenset()
        if has_tensors():
            from .tensor import KINDS

            self._tensors = KINDS
        self.images: dict[int, DeferredImage] = {}
        self.tensors: dict[int, Deferred] = {}

    def __bool__(self) -> bool:
        return bool(self.images or self.tensors)

    def add(self, value: Any) -> Any:
        """Note ``value`` if it is deferred; returns it."""
        kind = type(value)
        if isinstance(value, DeferredImage):
            self.images[id(value)] = value
        elif kind in self._tensors:
            self.tensors[id(value)] = value
        return value

    def check_others(self) -> None:
        """Decode the images whose pixels were asked for, and that are not among these.

        Raises:
            What the library that opened one raises: it is damaged, or its file changed.
        """
        unmade = THREAD.batch.unmade
        if not unmade:
            return
        present = {id(image._opened) for image in self.images.values()}
        for tensor in self.tensors.values():
            present.update(map(id, tensor.opened()))
        for key in unmade.keys() - present:
            single.checked(unmade[key])

    def rows(self) -> int:
        return sum(map(rows_of, self.tensors.values()))

    def sizes(self) -> list[int] | None:
        """Bytes of each of the tensors; None where one is of a type of its own."""
        tensors = self.tensors.values()
        if any(tensor.stands_for is not torch.Tensor for tensor in tensors):
            return None
        return [math.prod(tensor.shape) * tensor.dtype.itemsize for tensor in tensors]

    def completed(self, batch: Any, decoder: BatchDecoder) -> Any:
        """``batch``, in which they were found, with plain tensors and images in their places.

        Raises:
            Damaged, or what Pillow raises: an image cannot be made.
        """
        if not self:
            return batch
        self.materialise_shared()
        decoder.memory.begin_batch()
        for tensor in self.tensors.values():
            if tensor.row_of is not None:  # it is to be a view of the batch that is made here
                tensor.row_of.materialise(lambda batch: fill(decoder, batch).result())
        with decoder.together():
            filled = {key: fill(decoder, tensor) for key, tensor in self.tensors.items()}
        results: dict[int, object] = {
            key: self.tensors[key].with_attributes(filling.result())
            for key, filling in filled.items()
        }
        results |= {key: image.materialise() for key, image in self.images.items()}
        return replaced(batch, lambda part: results.get(id(part), part))

    def materialise_shared(self) -> None:
        """Make what the core cannot of images of which it is wanted several times.

        One image after the other, so that each is decoded once.
        """
        opened = [id(image) for tensor in self.tensors.values() for image in tensor.opened()]
        if len(set(opened)) == len(opened):
            return
        by_image: dict[int, list[tuple[Deferred, int]]] = {}
        for tensor in self.tensors.values():
            rows: Sequence[object] = getattr(tensor, "rows", None) or (
                getattr(tensor, "recording", None),
            )
            for index, row in enumerate(rows):
                if isinstance(row, Recording) and not may_lower(row):
                    by_image.setdefault(id(row.opened), []).append((tensor, index))
        with deferring():
            for alike in by_image.values():
                if len(alike) > 1:
                    for tensor, index in alike:
                        tensor.materialise_row(index)


def fill(decoder: BatchDecoder, tensor: Deferred) -> Filling:
    kind, shape, strides, dtype, rows = layout_and_rows(tensor)
    if rows is None:
        return Filling(decoder, tensor.materialise())
    return start(decoder, kind, shape, strides, dtype, rows)


def layout_and_rows(
    tensor: Deferred,
) -> tuple[type[torch.Tensor], Shape, Shape, torch.dtype, list[Row] | None]:
    """Type, shape, strides and dtype of what a deferred tensor stands for, and its rows.

    The rows are None where it is materialised already, and where it has to be by itself.
    """
    from .tensor import DeferredBatch, DeferredTensor

    with torch._C.DisableTorchFunctionSubclass():  # these are the wrapper's own
        strides = tuple(tensor.stride())
    rows: list[Row] | None = None
    if isinstance(tensor, DeferredBatch):
        rows = list(tensor.rows) or None
    elif isinstance(tensor, DeferredTensor) and tensor.row_of is None and not tensor.has_gaps:
        recording = tensor.recording
        rows = None if recording is None else [recording]
    return tensor.stands_for, tuple(tensor.shape), strides, tensor.dtype, rows


def start(
    decoder: BatchDecoder,
    kind: type[torch.Tensor],
    shape: Shape,
    strides: Shape,
    dtype: torch.dtype,
    rows: list[Row],
) -> Filling:
    """Start to fill a tensor of this kind, shape and strides (in elements) with ``rows``."""
    images, steps = shape, strides
    if len(shape) != 4:
        images, steps = (len(rows), *shape[-3:]), (math.prod(shape[-3:]), *strides[-3:])
    filling = decoder.begin(images, steps, dtype)
    if images is not shape:
        # A tensor of its own, not a view of the batch.
        batch = filling.tensor
        filling.tensor = torch.empty(0, dtype=dtype, device="cpu").set_(
            batch.untyped_storage(), batch.storage_offset(), shape, strides
        )
        if kind is not torch.Tensor:
            filling.tensor = filling.tensor.as_subclass(kind)
    next_row = 0
    for recorded, run in itertools.groupby(rows, lambda row: isinstance(row, Recording)):
        together = list(run)
        if recorded:
            filling.add(next_row, cast("list[Recording]", together))
        else:
            for index, row in enumerate(cast("list[torch.Tensor]", together), next_row):
                filling.put(index, row)
        next_row += len(together)
    return filling


def rows_of(tensor: Any) -> int:
    return len(getattr(tensor, "rows", (tensor,)))


def materialised(batch: Any) -> Any:
    """``batch`` with each deferred object made by itself.

    Raises:
        What Pillow raises: an image cannot be made.
    """
    deferred = DeferredObjects()
    replaced(batch, deferred.add)
    if not deferred:
        return batch
    results: dict[int, object] = {
        key: tensor.with_attributes(tensor.materialise())
        for key, tensor in deferred.tensors.items()
    }
    results |= {key: image.materialise() for key, image in deferred.images.items()}
    return replaced(batch, lambda part: results.get(id(part), part))


def replaced(batch: Any, swap: Callable[[Any], Any]) -> Any:
    """``batch`` with ``swap(part)`` in the place of each of its parts.

    Lists, dicts and objects are changed in place, so that whoever else refers to them sees the
    same; tuples and other containers that cannot be changed are made again where a part differs.
    """
    return _walked(batch, swap, set(), 0, math.inf)


def _walked(node: Any, swap: Callable[[Any], Any], seen: set[int], depth: int, most: float) -> Any:
    """``replaced`` of a part; ``seen`` has the ids of those that were looked at.

    Not a function within ``replaced``: that would be in a circle with itself, which keeps the batch
    until the next garbage collection.
    """
    kind = type(node)
    if kind in _ATOMS:
        return node
    new = swap(node)
    if new is not node or isinstance(node, torch.Tensor) or id(node) in seen:
        return new
    seen.add(id(node))
    if depth == _DEEPEST:
        return node
    depth += 1
    if isinstance(node, tuple):
        elements = [_walked(each, swap, seen, depth, most) for each in node]
        if all(map(operator.is_, elements, node)):
            return node
        return kind(*elements) if hasattr(node, "_fields") else kind(elements)
    if isinstance(node, MutableMapping):
        if len(node) <= most:
            for key, value in list(node.items()):
                new = _walked(value, swap, seen, depth, most)
                if new is not value:
                    node[key] = new
    elif isinstance(node, MutableSequence):
        if len(node) <= most and not isinstance(node, bytearray):
            for i, value in enumerate(node):
                new = _walked(value, swap, seen, depth, most)
                if new is not value:
                    node[i] = new
    elif isinstance(node, (set, frozenset)):
        members = [_walked(each, swap, seen, depth, most) for each in node]
        if not all(map(operator.is_, members, node)):
            if isinstance(node, frozenset):
                return kind(members)
            node.clear()
            node.update(members)
    elif isinstance(node, np.ndarray):
        if node.dtype == object and node.size <= most:
            for i, value in enumerate(node.flat):
                new = _walked(value, swap, seen, depth, most)
                if new is not value:
                    node.flat[i] = new
    elif kind is types.MappingProxyType:
        items = {key: _walked(value, swap, seen, depth, most) for key, value in node.items()}
        if not all(map(operator.is_, items.values(), node.values())):
            return kind(items)
    elif not isinstance(node, type) and not callable(node):
        for name, value in _attributes(node):
            new = _walked(value, swap, seen, depth, _MOST_OWNED)
            if new is not value:
                object.__setattr__(node, name, new)
    return node


def _attributes(node: object) -> list[tuple[str, Any]]:
    """The attributes of an object, those in slots too."""
    kind: Any = type(node)
    slots = ((name, getattr(node, name, None)) for name in _slots(kind))
    return [*getattr(node, "__dict__", {}).items(), *slots]


@functools.lru_cache(1024)
def _slots(kind: type) -> tuple[str, ...]:
    return tuple(
        name
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for name, value in vars(base).items()
        if isinstance(value, types.MemberDescriptorType)
    )


_ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes, torch.Tensor))
