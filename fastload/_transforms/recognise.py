"""Reads a torchvision transform: what it does to the geometry, and what it does to the values.

``recognise`` takes a chain apart into operations of ``_geometry`` and a table. The table says what
becomes of each level of each channel (ToTensor, Normalize, casts). It is made by running the user's
own transforms on a ramp of all 256 levels, so it is torch's arithmetic, bit for bit. Only exact
types are recognised; a subclass may do anything.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .geometry import draws
from .pixels.augmentations import UNREADABLE, Stop, kind_of, name_of
from .plan import Plan
from .python_suffix import Part, Parts, Tail
from .reader import Reader
from .settings import remember, remembered, settings_of
from .targets.joint import Joint
from .views import Views

__all__ = ["Plan", "Unrecognised", "Views", "recognise"]


@dataclasses.dataclass(frozen=True)
class Unrecognised:
    """Why a transform, or the end of it, has to stay in Python.

    Attributes:
        reason: in words that tell the user what to change.
        halves: the chain in two, the first of which an engine can do; None: it knows nothing of
            the chain.
    """

    reason: str
    halves: Parts | None = None


def recognise(
    transform: Any, mode: str = "RGB", joint: Joint | None = None
) -> Plan | Views | Unrecognised:
    """The plan of a torchvision transform, or why there is none.

    Args:
        transform: anything; None means the decoded image as a uint8 tensor (3, h, w), a list of
            transforms one view of the image for each.
        mode: of the PIL images that it is given: "RGB", or "L" for gray ones. The engines take
            these for RGB with three equal channels (see Note [Gray images]).
        joint: fields that move along with the image. A chain that an engine cannot do wholly then
            stays whole in Python.
    """
    if isinstance(transform, (list, tuple)):
        return _views(transform, mode)
    settings = None if joint is not None else settings_of(transform, mode)
    known = None if settings is None else remembered(transform, settings)
    if known is not None:
        return known
    found = _chain(transform, mode, joint)
    if isinstance(found, Plan) and settings is not None:
        remember(transform, settings, found)
    if isinstance(found, Unrecognised) and (joint is not None or mode != "RGB"):
        return Unrecognised(found.reason)
    if isinstance(found, Unrecognised) and found.halves is not None:
        if not found.halves.each[0].plan.steps:
            return Unrecognised(found.reason)
    return found


def _views(transforms: Sequence[Any], mode: str) -> Views | Unrecognised:
    """The plans of several chains, each of which gives a view; engines can begin all of them."""
    if not transforms:
        return Unrecognised("the list of transforms is empty; expected one for each view")
    found = [_chain(transform, mode) for transform in transforms]
    plans = [one for one in found if isinstance(one, Plan)]
    if len(plans) == len(found):
        return Views(tuple(plans))
    parts = []
    reasons = []
    for number, one in enumerate(found):
        if isinstance(one, Plan):
            parts.append(Part(one))
        else:
            assert one.halves is not None
            parts.append(one.halves.each[0])
            reasons.append(f"view {number}: {one.reason}")
    return Unrecognised("; ".join(reasons), Parts(tuple(parts), views=True))


def _chain(transform: Any, mode: str, joint: Joint | None = None) -> Plan | Unrecognised:
    if transform is None:
        return Plan(steps=("uint8 tensor of the whole image",), joint=joint)
    if "torchvision.transforms" not in sys.modules and not isinstance(transform, torch.nn.Module):
        reason = f"{name_of(transform)} is not a torchvision transform"
        return Unrecognised(reason, _begun([transform], 0))
    try:
        leaves = list(_leaves(transform))
    except UNREADABLE as error:
        reason = f"{name_of(transform)}: a setting cannot be read ({error})"
        return Unrecognised(reason, _begun([transform], 0))
    reader = Reader(mode, joint)
    read = 0
    try:
        for leaf in leaves:
            reader.read(leaf)
            read += 1
        return reader.plan()
    except (Stop, draws.Unfit) as stop:
        return Unrecognised(str(stop), _begun(leaves, read))


def _begun(leaves: list[Any], most: int) -> Parts:
    """The longest beginning, of ``most`` transforms at most, that engines can do; and the rest."""
    part = Part(Plan(), Tail(tuple(leaves), None))
    for count in range(most, 0, -1):
        reader = Reader()
        try:
            for leaf in leaves[:count]:
                reader.read(leaf)
            part = Part(reader.plan(whole=False), Tail(tuple(leaves[count:]), reader.tensor))
            break
        except (Stop, draws.Unfit):  # a frame that does not end, a dtype that nobody writes
            continue
    return Parts((part,), views=False)


def _leaves(transform: Any) -> Iterator[Any]:
    """The transforms that do something, in order, out of any nest of Compose and Sequential."""
    try:
        kind = kind_of(transform)
    except Stop:  # whoever reads it says why
        yield transform
        return
    if kind == "Compose":
        children: Sequence[Any] = transform.transforms
    elif kind == "Sequential":
        children = list(transform.children())
    elif kind in ("ImageClassification", "ObjectDetection", "SemanticSegmentation"):
        children = _preset(kind, transform)
    else:
        yield transform
        return
    for child in children:
        yield from _leaves(child)


def _preset(kind: str, preset: Any) -> list[Any]:
    """What ``forward`` of the class ``kind`` in torchvision.transforms._presets does, in steps."""
    from torchvision import transforms as v1

    steps: list[Any] = []
    if kind != "ObjectDetection" and preset.resize_size is not None:
        resize = preset.resize_size
        steps.append(v1.Resize(resize, preset.interpolation, antialias=preset.antialias))
    if kind == "ImageClassification":
        steps.append(v1.CenterCrop(preset.crop_size))
    steps += [v1.PILToTensor(), v1.ConvertImageDtype(torch.float)]
    if kind != "ObjectDetection":
        steps.append(v1.Normalize(preset.mean, preset.std))
    return steps
