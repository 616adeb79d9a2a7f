"""``recognise``: a transform as a ``Plan``, or the reason why it must stay in Python.

A chain is split into geometry, operations on pixels, and a table. The table maps each level of each
channel to its output value (ToTensor, Normalize, casts). It is made by running the user's own
transforms on a ramp of all 256 levels, so it is torch's arithmetic, bit for bit. Only exact types
are recognised, because a subclass may do anything.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from ..errors import UsageError
from .geometry.crop_geometry import Unfit
from .plan import Plan, Views
from .reader import ChainReader
from .settings import remember, remembered, settings_of
from .transform_class import UNREADABLE, Stop, Transform, kind_of, name_of

if TYPE_CHECKING:
    from .targets.joint import Joint

__all__ = ["Plan", "Unrecognised", "Views", "recognise"]

# Those of torchvision's v1 that only call others, which may be v2's.
_CALL = ("Compose", "Lambda", "RandomApply", "RandomChoice", "RandomOrder")


class Unrecognised(NamedTuple):
    """Why a transform must stay in Python: ``reason`` says what the user could change."""

    reason: str


def recognise(
    transform: Transform, mode: str = "RGB", joint: Joint | None = None
) -> Plan | Views | Unrecognised:
    """The plan of a torchvision transform, or why there is none.

    Args:
        transform: anything. None: the decoded image as a uint8 tensor (3, h, w). A list of
            transforms: one view of the image for each.
        mode: mode of the PIL images that it gets: "RGB", or "L" for gray ones, which the engines
            process as RGB with three equal channels (see Note [Gray images]).
        joint: fields that are transformed with the image.

    Raises UsageError for ``joint`` and one of torchvision's v1 transforms, which take no fields.
    """
    if isinstance(transform, (list, tuple)):
        return _views(transform, mode)
    settings = None if joint is not None else settings_of(transform, mode)
    plan = None if settings is None else remembered(transform, settings)
    if plan is not None:
        return plan
    read = _chain(transform, mode, joint)
    if isinstance(read, Plan) and settings is not None:
        remember(transform, settings, read)
    return read


def _views(transforms: Sequence[Transform], mode: str) -> Views | Unrecognised:
    """The plans of several chains, one for each view."""
    if not transforms:
        return Unrecognised("the list of transforms is empty; expected one for each view")
    read = [_chain(transform, mode) for transform in transforms]
    plans = [plan for plan in read if isinstance(plan, Plan)]
    if len(plans) == len(read):
        return Views(tuple(plans))
    return Unrecognised(
        "; ".join(
            f"view {number}: {unread.reason}"
            for number, unread in enumerate(read)
            if isinstance(unread, Unrecognised)
        )
    )


def _chain(transform: Transform, mode: str, joint: Joint | None = None) -> Plan | Unrecognised:
    if transform is None:
        return Plan(steps=("uint8 tensor of the whole image",), joint=joint)
    if "torchvision.transforms" not in sys.modules and not isinstance(transform, torch.nn.Module):
        return Unrecognised(f"{name_of(transform)} is not a torchvision transform")
    try:
        leaves = list(_leaves(transform))
    except UNREADABLE as error:
        return Unrecognised(f"{name_of(transform)}: a setting cannot be read ({error})")
    if joint is not None:
        _check_fields_fit(leaves)
    reader = ChainReader(mode, joint)
    try:
        for leaf in leaves:
            reader.read(leaf)
        return reader.plan()
    except (Stop, Unfit) as stop:
        return Unrecognised(str(stop))


def _check_fields_fit(leaves: Sequence[Transform]) -> None:
    for leaf in map(type, leaves):
        if leaf.__module__ == "torchvision.transforms.transforms" and leaf.__name__ not in _CALL:
            raise UsageError(
                "joint: expected transforms of torchvision.transforms.v2, which move masks and "
                f"boxes, got v1's {leaf.__name__}: from torchvision.transforms import v2"
            )


def _leaves(transform: Transform) -> Iterator[Transform]:
    """The transforms in order, with nested Compose and Sequential flattened."""
    try:
        kind = kind_of(transform)
    except Stop:  # the reader raises it again, with the reason
        yield transform
        return
    if kind == "Compose":
        children: Sequence[Transform] = transform.transforms
    elif kind == "Sequential":
        children = list(transform.children())
    elif kind in ("ImageClassification", "ObjectDetection", "SemanticSegmentation"):
        children = _preset(kind, transform)
    else:
        yield transform
        return
    for child in children:
        yield from _leaves(child)


def _preset(kind: str, preset: Transform) -> list[Transform]:
    """The steps of ``forward`` of the class ``kind`` in torchvision.transforms._presets."""
    from torchvision import transforms as v1

    steps: list[Transform] = []
    if kind != "ObjectDetection" and preset.resize_size is not None:
        resize = preset.resize_size
        steps.append(v1.Resize(resize, preset.interpolation, antialias=preset.antialias))
    if kind == "ImageClassification":
        steps.append(v1.CenterCrop(preset.crop_size))
    steps += [v1.PILToTensor(), v1.ConvertImageDtype(torch.float)]
    if kind != "ObjectDetection":
        steps.append(v1.Normalize(preset.mean, preset.std))
    return steps
