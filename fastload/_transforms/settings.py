"""The settings of a transform at one moment, to see whether any of them changed since.

Every epoch asks what a transform does, as its user may have set it otherwise meanwhile. Comparing
its settings takes a tenth of the time that reading it takes.
"""

from __future__ import annotations

import enum
import weakref
from typing import Any

import torch

from .._base.nested import plain
from .override_check import METHODS
from .plan import Plan

# Classes that keep all they know in ``__dict__``; other objects of torch have it in C++.
_MODULES = ("torchvision.transforms.", "timm.data.", "torch.nn.modules.")

_PLAIN = frozenset({type(None), bool, int, float, str, torch.dtype})
_MOST_VALUES = 64  # of a tensor, such as the mean of Normalize
# What a class of policies knows, beside its methods.
_TABLES = ("_augmentation_space", "_AUGMENTATION_SPACE", "_PARTIAL_AUGMENTATION_SPACE")
_DEPTH = 16  # of transforms in transforms: one that holds itself has no end

_read: weakref.WeakKeyDictionary[Any, tuple[Any, Plan]] = weakref.WeakKeyDictionary()


class _Opaque(Exception):
    """There is something in a transform of which only reading it can tell what it does."""


def settings_of(transform: Any, mode: str) -> Any:
    """What ``transform`` is now, to be compared; None where that cannot be told.

    Only torchvision's and timm's transforms and torch's modules are looked into, and of their
    attributes only plain values, small tensors, and containers and transforms of these.
    """
    try:
        return mode, torch.get_default_dtype(), _state(transform, _DEPTH)
    except _Opaque:
        return None


def remembered(transform: Any, settings: Any) -> Plan | None:
    """The plan of ``transform`` as it was read when it had these settings; None: it was not."""
    try:
        known = _read.get(transform)
    except TypeError:  # no weak reference to it can be made, or it is unhashable
        return None
    return known[1] if known is not None and known[0] == settings else None


def remember(transform: Any, settings: Any, plan: Plan) -> None:
    """Keep ``plan`` for as long as ``transform`` is there, and its settings are these."""
    try:
        _read[transform] = settings, plan
    except TypeError:  # as above
        return


def _state(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return kind, value  # with its type, as 1 == True
    if not depth:
        raise _Opaque
    if kind in (tuple, list, torch.Size) or (kind is set and not value):
        return kind, [_state(part, depth - 1) for part in value]
    if isinstance(value, dict):
        return kind, [(_state(key, depth - 1), _state(value[key], depth - 1)) for key in value]
    if isinstance(value, enum.Enum):
        return kind, value.name
    if isinstance(value, torch.Tensor):
        if not plain(value) or value.numel() > _MOST_VALUES:
            raise _Opaque
        return value.dtype, value.tolist()
    attributes = getattr(value, "__dict__", None)
    if not f"{kind.__module__}.".startswith(_MODULES) or type(attributes) is not dict:
        raise _Opaque
    its = [getattr(kind, name, None) for name in (*METHODS, *_TABLES)]
    tables = [dict(part) if isinstance(part, dict) else part for part in its]
    return kind, tables, [*attributes], [_state(each, depth - 1) for each in attributes.values()]
