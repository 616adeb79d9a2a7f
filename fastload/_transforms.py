"""Reads a torchvision transform: what it does to the geometry, and what it does to the values.

``recognise`` takes a chain apart into operations of ``_geometry`` and a table. The table says what
becomes of each level of each channel (ToTensor, Normalize, casts). It is made by running the user's
own transforms on a ramp of all 256 levels, so it is torch's arithmetic, bit for bit. Only exact
types are recognised; a subclass may do anything.

Note [Padding on a tensor]
    A crop that pads may come before or after ToTensor and Normalize. A plan applies its table last,
    so its fill is a level. Which one is found out by letting the user's own transform pad the ramp:
    the level whose value in the table so far is the value that came out, in each channel. Where
    there is none (zero after Normalize, mostly), the chain is not recognised.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from fastload import _geometry
from fastload._geometry import Op
from fastload._plan import BILINEAR, STORED, Plan, as_numpy

__all__ = ["Plan", "Unrecognised", "recognise"]

# resample.h's Filter by torchvision's names. Nearest is missing: Pillow's is another algorithm.
_FILTERS = {"box": 1, "bilinear": 2, "hamming": 3, "bicubic": 4, "lanczos": 5}
_PILLOW_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


@dataclasses.dataclass(frozen=True)
class Unrecognised:
    """Why a transform has to stay in Python, in words that tell the user what to change."""

    reason: str


class _Stop(Exception):
    """Ends the recognition; its message is the reason."""


def recognise(transform: Any) -> Plan | Unrecognised:
    """The plan of a torchvision transform, or why there is none.

    Args:
        transform: anything; None means the decoded image as a uint8 tensor (3, h, w).
    """
    if transform is None:
        return Plan(steps=("uint8 tensor of the whole image",))
    if "torchvision.transforms" not in sys.modules and not isinstance(transform, torch.nn.Module):
        return Unrecognised(f"{_name(transform)} is not a torchvision transform")
    reader = _Reader()
    try:
        for leaf in _leaves(transform):
            reader.read(leaf)
        return reader.plan()
    except (_Stop, _geometry.Unfit) as stop:
        return Unrecognised(str(stop))


def _name(transform: Any) -> str:
    kind = type(transform)
    return getattr(transform, "__name__", None) or f"{kind.__module__}.{kind.__qualname__}"


def _is(transform: Any, module: str, name: str) -> bool:
    """Whether the type is exactly ``module.name``, of a module that the user has imported."""
    return type(transform) is getattr(sys.modules.get(module), name, None)


_MODULES = ("torchvision.transforms", "torchvision.transforms.v2", "torch.nn")


def _kind(transform: Any) -> str:
    """The name of a transform of torchvision or torch.nn; raises _Stop for anything else."""
    name = type(transform).__name__
    if _is(transform, "torchvision.transforms._presets", name):
        return name
    if not any(_is(transform, module, name) for module in _MODULES):
        raise _Stop(f"{_name(transform)} is not a transform fastload knows")
    state = vars(transform)
    if "forward" in state or state.get("_forward_hooks") or state.get("_forward_pre_hooks"):
        raise _Stop(f"this {name} has a hook or a forward of its own")
    return name


def _leaves(transform: Any) -> Iterator[Any]:
    """The transforms that do something, in order, out of any nest of Compose and Sequential."""
    kind = _kind(transform)
    if kind == "Compose":
        children: Sequence[Any] = transform.transforms
    elif kind == "Sequential":
        children = list(transform.children())
    elif kind == "ImageClassification":
        children = _preset(transform)
    else:
        yield transform
        return
    for child in children:
        yield from _leaves(child)


def _preset(preset: Any) -> list[Any]:
    """What ``torchvision.transforms._presets.ImageClassification.forward`` does, step by step."""
    from torchvision import transforms as v1

    return [
        v1.Resize(preset.resize_size, preset.interpolation, antialias=preset.antialias),
        v1.CenterCrop(preset.crop_size),
        v1.PILToTensor(),
        v1.ConvertImageDtype(torch.float),
        v1.Normalize(preset.mean, preset.std),
    ]


class _Reader:
    """Collects a plan, one transform after the other."""

    def __init__(self) -> None:
        from PIL import Image

        levels = np.arange(256, dtype=np.uint8).repeat(3)
        # 256 x 1 pixels that hold every level once; becomes a tensor when the chain makes one
        self._ramp: Any = Image.frombytes("RGB", (256, 1), levels.tobytes())
        self._ops: list[Op] = []
        self._fills: list[Callable[[], tuple[int, int, int]]] = []
        self._filter: int | None = None
        self._steps: list[str] = []

    @property
    def _is_tensor(self) -> bool:
        return isinstance(self._ramp, torch.Tensor)

    def read(self, transform: Any) -> None:
        """Take in one transform. Raises _Stop where it is not one of those below."""
        kind = _kind(transform)
        if kind in _TO_TENSOR or kind in _ON_TENSOR:
            self._values(kind, transform)
        elif kind in _GEOMETRY:
            self._geometry(kind, transform)
        elif kind != "Identity":
            raise _Stop(f"{kind} is not a transform fastload knows")

    def _values(self, kind: str, transform: Any) -> None:
        if not self._is_tensor and kind not in _TO_TENSOR:
            raise _Stop(f"{kind} comes before the image is a tensor; put ToTensor before it")
        try:
            ramp = transform(self._ramp)
        except Exception as error:  # the user's own chain fails so on every image
            raise _Stop(f"{kind} itself fails: {error}") from error
        if not isinstance(ramp, torch.Tensor) or tuple(ramp.shape) != (3, 1, 256):
            raise _Stop(f"{kind} does not give a tensor of three channels")
        if self._is_tensor and self._ramp.is_floating_point() and not ramp.is_floating_point():
            # out of range the result is the processor's, and differs between its instructions
            most = 1 if getattr(transform, "scale", True) else 255
            if not bool(((self._ramp >= 0) & (self._ramp <= most)).all()):
                raise _Stop(f"{kind} casts values outside of 0 to {most} to {ramp.dtype}")
        changed = not self._is_tensor or self._ramp.dtype != ramp.dtype
        self._steps.append(_words(transform) + f" -> {ramp.dtype}" * changed)
        self._ramp = ramp

    def _geometry(self, kind: str, transform: Any) -> None:
        op = _GEOMETRY[kind](transform)
        if isinstance(op, (_geometry.Resize, _geometry.RandomResizedCrop)):
            if self._is_tensor:
                raise _Stop(
                    f"{kind} comes after the image is a tensor, and torch resizes tensors with "
                    "other rounding than PIL images; put it before ToTensor or ToImage"
                )
            self._filter = _filter(kind, transform)
        ramp = self._ramp.clone() if self._is_tensor else self._ramp
        self._ops.append(op)
        self._fills.append(lambda: _fill_level(kind, transform, ramp))
        self._steps.append(_words(transform))

    def plan(self) -> Plan:
        if not self._is_tensor:
            raise _Stop("the samples are PIL images; end the transforms with ToTensor or ToImage")
        fit = _geometry.fit(self._ops)
        table = self._ramp.as_subclass(torch.Tensor).detach().reshape(3, 256)
        if table.dtype not in STORED:
            raise _Stop(f"the samples are of {table.dtype}, which no engine writes")
        levels = torch.arange(256, dtype=torch.uint8).expand(3, 256)
        identity = table.dtype == torch.uint8 and torch.equal(table, levels)
        return Plan(
            ops=tuple(self._ops),
            filter=BILINEAR if self._filter is None else self._filter,
            fill=(0, 0, 0) if fit.padding is None else self._fills[fit.padding](),
            lut=None if identity else as_numpy(table),
            dtype=table.dtype,
            size=fit.size,
            steps=tuple(self._steps),
        )


def _words(transform: Any) -> str:
    """The transform as it prints itself, in one line."""
    return " ".join(str(transform).split())


def _filter(kind: str, transform: Any) -> int:
    """resample.h's Filter of a transform that resizes."""
    chosen = transform.interpolation
    name = _PILLOW_FILTERS.get(chosen) if isinstance(chosen, int) else chosen
    name = getattr(name, "value", name)
    if name not in _FILTERS:
        raise _Stop(f"{kind} with interpolation {name!r}; {', '.join(_FILTERS)} are recognised")
    return _FILTERS[name]


def _fill_level(kind: str, transform: Any, ramp: Any) -> tuple[int, int, int]:
    """The level of each channel that padding has. See Note [Padding on a tensor]."""
    if getattr(transform, "padding_mode", "constant") != "constant":
        raise _Stop(f"{kind} with padding_mode={transform.padding_mode!r}; constant is recognised")
    if isinstance(getattr(transform, "fill", 0), dict):
        raise _Stop(f"{kind} with a fill for each type; one number or (r, g, b) is recognised")
    padded_size = (3, 258)  # the ramp and one pixel around it, so that nothing is left to chance
    if kind == "CenterCrop":
        pad = type(transform)(padded_size)
    else:
        pad = type(transform)(padded_size, padding=1, fill=transform.fill)
    try:
        padded = pad(ramp)
    except Exception as error:  # the user's own chain fails so on every image that is padded
        raise _Stop(f"{kind} itself fails: {error}") from error
    if isinstance(padded, torch.Tensor):
        values, table = padded[:, 0, 0], ramp.reshape(3, 256)
    else:
        values = torch.tensor(padded.getpixel((0, 0)))
        table = torch.arange(256).expand(3, 256)
    equal = table == values.reshape(3, 1)
    if not bool(equal.any(dim=1).all()):
        raise _Stop(
            f"{kind} pads with a value that no pixel can have at that point of the chain; put it "
            "before ToTensor and Normalize"
        )
    red, green, blue = (int(channel.nonzero()[0]) for channel in equal)
    return red, green, blue


def _pair(size: Any) -> tuple[int, int]:
    """(h, w) of an int or a sequence of one or two."""
    sides = [size] if isinstance(size, int) else list(size)
    if len(sides) not in (1, 2) or not all(isinstance(side, int) and side > 0 for side in sides):
        raise _Stop(f"size {size} is not one or two positive integers")
    return sides[0], sides[-1]


def _range(name: str, value: Any) -> tuple[float, float]:
    low, high = (float(end) for end in value)
    if not 0 < low <= high:
        raise _Stop(f"RandomResizedCrop with {name}={tuple(value)}: expected 0 < least <= most")
    return low, high


def _random_resized_crop(transform: Any) -> Op:
    return _geometry.RandomResizedCrop(
        _pair(transform.size),
        _range("scale", transform.scale),
        _range("ratio", transform.ratio),
    )


def _resize(transform: Any) -> Op:
    size, max_size = transform.size, transform.max_size
    if isinstance(size, (list, tuple)) and len(size) == 1:
        size = size[0]
    if size is None or isinstance(size, int):
        if max_size is not None and (max_size < 1 or (size is not None and max_size <= size)):
            raise _Stop(f"Resize with max_size={max_size} not above size={size}")
        if size is not None:
            _pair(size)
        return _geometry.Resize(size, max_size)
    if max_size is not None:
        raise _Stop("Resize with max_size and two sizes; torchvision refuses it too")
    return _geometry.Resize(_pair(size))


def _center_crop(transform: Any) -> Op:
    return _geometry.CenterCrop(_pair(transform.size))


def _random_crop(transform: Any) -> Op:
    return _geometry.RandomCrop(
        _pair(transform.size), _padding(transform), bool(transform.pad_if_needed)
    )


def _padding(transform: Any) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of a RandomCrop."""
    padding = transform.padding
    if padding is None:
        return (0, 0, 0, 0)
    sides = [padding] if isinstance(padding, int) else list(padding)
    if not all(isinstance(side, int) and side >= 0 for side in sides):
        raise _Stop(f"RandomCrop with padding={padding}; integers from zero up are recognised")
    if len(sides) == 4 and _is(transform, "torchvision.transforms.v2", "RandomCrop"):
        left, right, top, bottom = sides  # v2 keeps them in torch's order
        return left, top, right, bottom
    if len(sides) not in (1, 2, 4):
        raise _Stop(f"RandomCrop with padding={padding}: expected 1, 2 or 4 integers")
    left, top, right, bottom = (sides * 4)[:4]
    return left, top, right, bottom


def _flip(transform: Any) -> Op:
    return _geometry.RandomHorizontalFlip(float(transform.p))


_TO_TENSOR = frozenset({"ToTensor", "PILToTensor", "ToImage"})
_ON_TENSOR = frozenset({"ConvertImageDtype", "ToDtype", "Normalize", "ToPureTensor"})
_GEOMETRY: dict[str, Callable[[Any], Op]] = {
    "RandomResizedCrop": _random_resized_crop,
    "Resize": _resize,
    "CenterCrop": _center_crop,
    "RandomCrop": _random_crop,
    "RandomHorizontalFlip": _flip,
}
