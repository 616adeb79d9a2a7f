"""Snapshots of a transform's settings, to reuse its plan as long as they stay the same.

A transform is read again in every epoch, because the user may have changed it. Comparing its
settings takes a tenth of the time of reading it.
"""

from __future__ import annotations

import enum
import weakref

import torch

from .plan import Plan
from .transform_class import METHODS

# Modules of classes that keep all state in ``__dict__``; other objects of torch have some in C++.
_MODULES = (
    "torchvision.transforms.",
    "timm.data.",
    "torch.nn.modules.",
    "fastload._transforms.buckets.",
)

_PLAIN = frozenset({type(None), bool, int, float, str, torch.dtype})
_MOST_VALUES = 64  # of a tensor, such as the mean of Normalize
# Attributes and methods of a policy's class that hold its tables.
_TABLES = ("_augmentation_space", "_AUGMENTATION_SPACE", "_PARTIAL_AUGMENTATION_SPACE")
_DEPTH = 16  # nesting of transforms; one that contains itself has no end

_read: weakref.WeakKeyDictionary[object, tuple[object, Plan]] = weakref.WeakKeyDictionary()


class _Opaque(Exception):
    """A transform has state that cannot be compared."""


def settings_of(transform: object, mode: str) -> object:
    """The settings of ``transform`` now, to be compared by ``==``; None if they cannot be.

    Only transforms of torchvision, timm and fastload and modules of torch are examined, and of
    their attributes only plain values, small tensors, and containers and transforms of these.
    """
    try:
        return mode, torch.get_default_dtype(), _state(transform, _DEPTH)
    except _Opaque:
        return None


def remembered(transform: object, settings: object) -> Plan | None:
    """The plan that was remembered for ``transform`` with these settings, or None."""
    try:
        entry = _read.get(transform)
    except TypeError:  # unhashable, or it does not support weak references
        return None
    return entry[1] if entry is not None and entry[0] == settings else None


def remember(transform: object, settings: object, plan: Plan) -> None:
    """Remember ``plan`` as long as ``transform`` lives and has these settings."""
    try:
        _read[transform] = settings, plan
    except TypeError:  # as above
        return


def _state(value: object, depth: int) -> object:
    kind = type(value)
    if kind in _PLAIN:
        return kind, value  # with its type, because 1 == True
    if not depth:
        raise _Opaque
    if isinstance(value, (tuple, list)) and kind in (tuple, list, torch.Size):
        return kind, [_state(item, depth - 1) for item in value]
    if kind is set and not value:
        return kind
    if isinstance(value, dict):
        return kind, [(_state(key, depth - 1), _state(value[key], depth - 1)) for key in value]
    if isinstance(value, enum.Enum):
        return kind, value.name
    if isinstance(value, torch.Tensor):
        from .._base.nested import plain  # transforms without Normalize mostly have no tensor

        if not plain(value) or value.numel() > _MOST_VALUES:
            raise _Opaque
        return value.dtype, value.tolist()
    attributes = getattr(value, "__dict__", None)
    if not f"{kind.__module__}.".startswith(_MODULES) or type(attributes) is not dict:
        raise _Opaque
    its = [getattr(kind, name, None) for name in (*METHODS, *_TABLES)]
    tables = [dict(table) if isinstance(table, dict) else table for table in its]
    return kind, tables, [*attributes], [_state(each, depth - 1) for each in attributes.values()]
