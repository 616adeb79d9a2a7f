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

Note [Gray images]
    Resizing, cutting, mirroring and affine maps do the same to each channel, so that of an RGB
    image with equal channels they leave one, and any of the three is what they make of the gray
    image. Operations of which that is not plain (``_ON_GRAY``) are not recognised on gray images.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from fastload import _erasing, _geometry
from fastload._augmentations import Stop, filter_of, kind_of, name_of, pixel_op
from fastload._crops import GEOMETRY
from fastload._geometry import Op
from fastload._pixels import PixelOp
from fastload._plan import BILINEAR, STORED, Plan, Stage, as_numpy
from fastload._tail import Part, Parts, Tail
from fastload._views import Views

__all__ = ["Plan", "Unrecognised", "Views", "recognise"]

# resample.h's Filter by torchvision's names
_FILTERS = {
    "nearest": 0,
    "nearest-exact": 0,  # on PIL images torchvision takes Pillow's one nearest for both
    "box": 1,
    "bilinear": 2,
    "hamming": 3,
    "bicubic": 4,
    "lanczos": 5,
}


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


def recognise(transform: Any, mode: str = "RGB") -> Plan | Views | Unrecognised:
    """The plan of a torchvision transform, or why there is none.

    Args:
        transform: anything; None means the decoded image as a uint8 tensor (3, h, w), a list of
            transforms one view of the image for each.
        mode: of the PIL images that it is given: "RGB", or "L" for gray ones. The engines take
            these for RGB with three equal channels (see Note [Gray images]).
    """
    if isinstance(transform, (list, tuple)):
        return _views(transform, mode)
    found = _chain(transform, mode)
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


def _chain(transform: Any, mode: str) -> Plan | Unrecognised:
    if transform is None:
        return Plan(steps=("uint8 tensor of the whole image",))
    if "torchvision.transforms" not in sys.modules and not isinstance(transform, torch.nn.Module):
        reason = f"{name_of(transform)} is not a torchvision transform"
        return Unrecognised(reason, _begun([transform], 0))
    leaves = list(_leaves(transform))
    reader = _Reader(mode)
    read = 0
    try:
        for leaf in leaves:
            reader.read(leaf)
            read += 1
        return reader.plan()
    except (Stop, _geometry.Unfit) as stop:
        return Unrecognised(str(stop), _begun(leaves, read))


def _begun(leaves: list[Any], most: int) -> Parts:
    """The longest beginning, of ``most`` transforms at most, that engines can do; and the rest."""
    part = Part(Plan(), Tail(tuple(leaves), None))
    for count in range(most, 0, -1):
        reader = _Reader()
        try:
            for leaf in leaves[:count]:
                reader.read(leaf)
            part = Part(reader.plan(whole=False), Tail(tuple(leaves[count:]), reader.tensor))
            break
        except (Stop, _geometry.Unfit):  # a frame that does not end, a dtype that nobody writes
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


class _Frame:
    """A frame of geometry while it is read."""

    def __init__(self, start: tuple[int, int] | None) -> None:
        self.start = start  # (h, w) of the images before it, where it is known
        self.ops: list[Op] = []
        self.fills: list[Callable[[], tuple[int, int, int]]] = []
        self.filter: int | None = None

    @property
    def size(self) -> tuple[int, int] | None:
        """(h, w) behind it, where it is known."""
        return _geometry.fit(self.ops, self.start).size

    def settings(self) -> dict[str, Any]:
        """What a Plan and a Stage have of it. Raises Unfit and Stop."""
        fit = _geometry.fit(self.ops, self.start)
        return {
            "ops": tuple(self.ops),
            "filter": BILINEAR if self.filter is None else self.filter,
            "fill": (0, 0, 0) if fit.padding is None else self.fills[fit.padding](),
        }


class _Reader:
    """Collects a plan, one transform after the other."""

    def __init__(self, mode: str = "RGB") -> None:
        from PIL import Image

        levels = np.arange(256, dtype=np.uint8).repeat(len(mode))
        # 256 x 1 pixels that hold every level once; becomes a tensor when the chain makes one
        self._ramp: Any = Image.frombytes(mode, (256, 1), levels.tobytes())
        self._frame = _Frame(None)
        self._frames = [self._frame]
        self._pixels: list[list[PixelOp]] = [[]]  # before each frame
        self._erased: list[tuple[_Rectangle, torch.Tensor]] = []  # and its values
        self._steps: list[str] = []

    @property
    def _is_tensor(self) -> bool:
        return isinstance(self._ramp, torch.Tensor)

    @property
    def _channels(self) -> int:
        return len(self._ramp) if self._is_tensor else len(self._ramp.getbands())

    def read(self, transform: Any) -> None:
        """Take in one transform. Raises Stop where it is not one of those below."""
        kind = kind_of(transform)
        if kind in _TO_TENSOR or kind in _ON_TENSOR:
            self._values(kind, transform)
        elif kind in GEOMETRY:
            self._geometry(kind, transform)
        elif kind in ("RandomErasing", "timm.RandomErasing"):
            self._erase(kind, transform)
        elif kind == "RGB":
            if not self._is_tensor:
                self._ramp = self._ramp.convert("RGB")
            elif self._channels == 1:
                raise Stop("RGB comes after the image is a tensor of one channel; put it before")
        elif kind != "Identity":
            self._operation(kind, transform)

    def _values(self, kind: str, transform: Any) -> None:
        if not self._is_tensor and kind not in _TO_TENSOR:
            raise Stop(f"{kind} comes before the image is a tensor; put ToTensor before it")
        try:
            ramp = transform(self._ramp)
            erased = [(where, transform(values)) for where, values in self._erased]
        except Exception as error:  # the user's own chain fails so on every image
            raise Stop(f"{kind} itself fails: {error}") from error
        if not isinstance(ramp, torch.Tensor) or tuple(ramp.shape) != (self._channels, 1, 256):
            raise Stop(f"{kind} does not give a tensor of as many channels as the images have")
        if self._is_tensor and self._ramp.is_floating_point() and not ramp.is_floating_point():
            # out of range the result is the processor's, and differs between its instructions
            most = 1 if getattr(transform, "scale", True) else 255
            for values in (self._ramp, *(values for _, values in self._erased)):
                if not bool(((values >= 0) & (values <= most)).all()):
                    raise Stop(f"{kind} casts values outside of 0 to {most} to {ramp.dtype}")
        changed = not self._is_tensor or self._ramp.dtype != ramp.dtype
        self._steps.append(_words(transform) + f" -> {ramp.dtype}" * changed)
        self._ramp, self._erased = ramp, erased

    def _geometry(self, kind: str, transform: Any) -> None:
        op = GEOMETRY[kind](transform)
        if self._erased:
            raise Stop(f"{kind} comes after RandomErasing; put it before")
        resizes = isinstance(op, (_geometry.Resize, _geometry.RandomResizedCrop))
        if resizes and self._is_tensor:
            raise Stop(
                f"{kind} comes after the image is a tensor, and torch resizes tensors with "
                "other rounding than PIL images; put it before ToTensor or ToImage"
            )
        ramp = self._ramp.clone() if self._is_tensor else self._ramp
        if self._frame.ops or self._pixels[-1]:
            try:
                _geometry.fit([*self._frame.ops, op], self._frame.start)
            except _geometry.Unfit:
                self._next_frame()  # which raises it again if no frame can do it
        self._frame.ops.append(op)
        self._frame.fills.append(lambda: _fill_level(kind, transform, ramp))
        if resizes:
            self._frame.filter = _filter(kind, transform)
        self._steps.append(_words(transform))

    def _next_frame(self) -> None:
        self._frame = _Frame(self._frame.size)
        self._frames.append(self._frame)
        self._pixels.append([])

    def _operation(self, kind: str, transform: Any) -> None:
        op = pixel_op(transform)
        if op is None:
            raise Stop(f"{kind} is not a transform fastload knows")
        if self._is_tensor:
            raise Stop(
                f"{kind} comes after the image is a tensor, where torch computes it with other "
                "rounding than on a PIL image; put it before ToTensor or ToImage"
            )
        if self._channels == 1:
            if kind not in _ON_GRAY:
                raise Stop(f"{kind} on gray images; put Grayscale(3) before it, which gives three")
            if len(np.atleast_1d(getattr(transform, "fill", None) or 0)) > 1:
                raise Stop(f"{kind} with several values for fill, on images of one channel")
            if kind == "Grayscale":
                self._ramp = self._ramp.convert("RGB")
        if len(self._frames) == 1 or self._frame.ops:
            self._next_frame()
        self._pixels[-1].append(op)
        self._steps.append(_words(transform))

    def _erase(self, kind: str, transform: Any) -> None:
        if not self._is_tensor:
            raise Stop("RandomErasing comes before the image is a tensor; put ToTensor before it")
        rectangle, value = (_timm_erasing if kind.startswith("timm.") else _erasing_of)(transform)
        if value is None:
            if not self._ramp.is_floating_point():
                raise Stop("RandomErasing with value='random' on integers; scale them to floats")
            values = torch.from_numpy(_erasing.quantiles())
            values = values.expand(self._channels, 1, _erasing.QUANTILES)
        else:
            if len(value) not in (1, self._channels):
                raise Stop(f"RandomErasing with value={value}: expected one, or one a channel")
            values = torch.tensor(value).reshape(-1, 1, 1).expand(self._channels, 1, 1)
            if not self._ramp.is_floating_point() and not ((values >= 0) & (values <= 255)).all():
                raise Stop(f"RandomErasing with value={value} on levels of 0 to 255")
        p, scale, ratio = rectangle
        if not (0 <= p <= 1 and 0 <= scale[0] <= scale[1] and 0 < ratio[0] <= ratio[1]):
            raise Stop(f"RandomErasing with p={p}, scale={scale}, ratio={ratio}")
        typed = values.to(self._ramp.dtype).contiguous().as_subclass(type(self._ramp))
        self._erased.append((rectangle, typed))
        self._steps.append(_words(transform))

    @property
    def tensor(self) -> type[torch.Tensor] | None:
        """The type of the image as it stands; None: a PIL image."""
        return type(self._ramp) if self._is_tensor else None

    def plan(self, *, whole: bool = True) -> Plan:
        """The plan of what was read. ``whole``: nothing follows, so it has to end in a tensor."""
        levels = torch.arange(256, dtype=torch.uint8).expand(3, 256)
        if self._is_tensor:
            table = self._ramp.as_subclass(torch.Tensor).detach()
            table = table.reshape(self._channels, 256).expand(3, 256)
        elif whole:
            raise Stop("the samples are PIL images; end the transforms with ToTensor or ToImage")
        else:
            table = levels
        if table.dtype not in STORED:
            raise Stop(f"the samples are of {table.dtype}, which no engine writes")
        identity = table.dtype == torch.uint8 and torch.equal(table, levels)
        frames = [frame.settings() for frame in self._frames]
        return Plan(
            **frames[0],
            stages=tuple(
                Stage(tuple(pixels), **settings)
                for pixels, settings in zip(self._pixels[1:], frames[1:], strict=True)
            ),
            lut=None if identity else as_numpy(table),
            dtype=table.dtype,
            channels=self._channels,
            size=self._frame.size,
            erasing=tuple(
                _erasing.Erase(
                    *rectangle,
                    as_numpy(_three(values.as_subclass(torch.Tensor).detach())),
                )
                for rectangle, values in self._erased
            ),
            steps=tuple(self._steps),
        )


def _three(values: torch.Tensor) -> torch.Tensor:
    """Values (channels, 1, k) as (3, k)."""
    return values.reshape(len(values), -1).expand(3, -1)


def _ends(values: Any) -> tuple[float, float]:
    low, high = (float(end) for end in values)
    return low, high


_Rectangle = tuple[float, tuple[float, float], tuple[float, float]]
"""Probability, range of the area, range of height / width."""


def _erasing_of(transform: Any) -> tuple[_Rectangle, list[float] | None]:
    """What torchvision's RandomErasing erases, and with which values; None: with noise."""
    value = transform.value
    rectangle = float(transform.p), _ends(transform.scale), _ends(transform.ratio)
    if value is None or value == "random":
        return rectangle, None
    return rectangle, [float(v) for v in ([value] if isinstance(value, (int, float)) else value)]


def _timm_erasing(transform: Any) -> tuple[_Rectangle, list[float] | None]:
    """The same for timm's, which is called on single samples too."""
    if transform.min_count != 1 or transform.max_count != 1 or transform.rand_color:
        raise Stop("timm's RandomErasing with several rectangles or mode='rand'")
    if str(transform.device) != "cpu":
        raise Stop(f"timm's RandomErasing with device={transform.device}; 'cpu' is recognised")
    low, high = np.exp(np.array(transform.log_aspect_ratio)).tolist()
    area = float(transform.min_area), float(transform.max_area)
    rectangle = float(transform.probability), area, (low, high)
    return rectangle, None if transform.per_pixel else [0.0]


def _words(transform: Any) -> str:
    """The transform as it prints itself, in one line."""
    return " ".join(str(transform).split())


def _filter(kind: str, transform: Any) -> int:
    """resample.h's Filter of a transform that resizes."""
    name = filter_of(transform)
    if name not in _FILTERS:
        raise Stop(f"{kind} with interpolation {name!r}; {', '.join(_FILTERS)} are recognised")
    return _FILTERS[name]


def _fill_level(kind: str, transform: Any, ramp: Any) -> tuple[int, int, int]:
    """The level of each channel that padding has. See Note [Padding on a tensor]."""
    if getattr(transform, "padding_mode", "constant") != "constant":
        raise Stop(f"{kind} with padding_mode={transform.padding_mode!r}; constant is recognised")
    if isinstance(getattr(transform, "fill", 0), dict):
        raise Stop(f"{kind} with a fill for each type; one number or (r, g, b) is recognised")
    padded_size = (3, 258)  # the ramp and one pixel around it, so that nothing is left to chance
    if kind == "CenterCrop":
        pad = type(transform)(padded_size)
    elif kind == "Pad":
        pad = type(transform)(1, fill=transform.fill)
    else:
        pad = type(transform)(padded_size, padding=1, fill=transform.fill)
    try:
        padded = pad(ramp)
    except Exception as error:  # the user's own chain fails so on every image that is padded
        raise Stop(f"{kind} itself fails: {error}") from error
    if isinstance(padded, torch.Tensor):
        values, table = padded[:, 0, 0], ramp.reshape(len(ramp), 256)
    else:
        values = torch.tensor(padded.getpixel((0, 0))).reshape(-1)
        table = torch.arange(256).expand(len(values), 256)
    equal = table == values.reshape(-1, 1)
    if not bool(equal.any(dim=1).all()):
        raise Stop(
            f"{kind} pads with a value that no pixel can have at that point of the chain; put it "
            "before ToTensor and Normalize"
        )
    red, green, blue = (int(channel.nonzero()[0]) for channel in equal.expand(3, 256))
    return red, green, blue


_TO_TENSOR = frozenset({"ToTensor", "PILToTensor", "ToImage"}) | {
    f"timm.{name}" for name in ("ToTensor", "MaybeToTensor", "MaybePILToTensor")
}
# See Note [Gray images].
_ON_GRAY = frozenset(
    {"RandomVerticalFlip", "RandomRotation", "RandomAffine", "RandomInvert", "Grayscale"}
)
_ON_TENSOR = frozenset({"ConvertImageDtype", "ToDtype", "Normalize", "ToPureTensor"})
