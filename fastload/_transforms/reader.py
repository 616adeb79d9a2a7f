"""Takes a chain of torchvision's transforms in, one after the other, and makes a plan of them.

The table of a plan is made by running the user's own transforms on a ramp of all 256 levels.

Note [Gray images]
    Resizing, cutting, mirroring and affine maps do the same to each channel, so that of an RGB
    image with equal channels they leave one, and any of the three is what they make of the gray
    image. Operations of which that is not plain (``_ON_GRAY``) are not recognised on gray images.

Note [Tensors]
    torchvision's v2 resizes uint8 tensors in integers, with 16-bit weights of which the core makes
    its own (kTorchBilinear in resample/resample.h); v1 does it in float32, whose sums have no fixed
    order. Where the processor has no AVX2 v2 takes floats for bilinear too: torchvision itself is
    asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .geometry import draws
from .geometry.crops import GEOMETRY
from .geometry.draws import Op
from .pixels import erasing
from .pixels.augmentations import UNREADABLE, V2, Stop, filter_of, is_of, kind_of, name_of, pixel_op
from .pixels.fills import Rectangle, erasing_of, fill_level, mask_fill, timm_erasing
from .pixels.operations import PixelOp, resizes
from .plan import BILINEAR, STORED, Plan, Stage, as_numpy
from .targets.boxes import FORMATS
from .targets.joint import Fellows, Joint, Sanitize

# resample/resample.h's Filter by torchvision's names
_FILTERS = {
    "nearest": 0,
    "nearest-exact": 0,  # on PIL images torchvision takes Pillow's one nearest for both
    "box": 1,
    "bilinear": 2,
    "hamming": 3,
    "bicubic": 4,
    "lanczos": 5,
}

# The same, of those that torch does in integers on tensors of levels
_TORCH_FILTERS = {"bilinear": 6, "bicubic": 7}


class _Frame:
    """A frame of geometry while it is read."""

    def __init__(self, start: tuple[int, int] | None) -> None:
        self.start = start  # (h, w) of the images before it, where it is known
        self.ops: list[Op] = []
        self.fills: list[Callable[[], tuple[int, int, int]]] = []
        self.mask_fills: list[Callable[[], int]] = []  # nothing without masks
        self.filter: int | None = None

    @property
    def size(self) -> tuple[int, int] | None:
        """(h, w) behind it, where it is known."""
        return draws.fit(self.ops, self.start).size

    def settings(self) -> dict[str, Any]:
        """What a Plan and a Stage have of it. Raises Unfit and Stop."""
        fit = draws.fit(self.ops, self.start)
        return {
            "ops": tuple(self.ops),
            "filter": BILINEAR if self.filter is None else self.filter,
            "fill": (0, 0, 0) if fit.padding is None else self.fills[fit.padding](),
            "mask_fill": 0
            if fit.padding is None or not self.mask_fills
            else self.mask_fills[fit.padding](),
        }


class Reader:
    """Collects a plan, one transform after the other."""

    def __init__(self, mode: str = "RGB", joint: Joint | None = None) -> None:
        from PIL import Image

        self._joint = joint
        self._fellows = None if joint is None else Fellows(joint)
        levels = np.arange(256, dtype=np.uint8).repeat(len(mode))
        # 256 x 1 pixels that hold every level once; becomes a tensor when the chain makes one
        self._ramp: Any = Image.frombytes(mode, (256, 1), levels.tobytes())
        self._frame = _Frame(None)
        self._frames = [self._frame]
        self._pixels: list[list[PixelOp]] = [[]]  # before each frame
        self._erased: list[tuple[Rectangle, torch.Tensor]] = []  # and its values
        self._steps: list[str] = []

    @property
    def _is_tensor(self) -> bool:
        return isinstance(self._ramp, torch.Tensor)

    @property
    def _channels(self) -> int:
        return len(self._ramp) if self._is_tensor else len(self._ramp.getbands())

    def read(self, transform: Any) -> None:
        """Take in one transform. Raises Stop where it is not one of those below."""
        try:
            self._read(transform)
        except draws.Unfit:  # a ValueError too, which knows better
            raise
        except UNREADABLE as error:
            raise Stop(f"{name_of(transform)}: a setting cannot be read ({error})") from error

    def _read(self, transform: Any) -> None:
        kind = kind_of(transform)
        if self._joint is not None and not is_of(transform, V2, kind):
            raise Stop(f"{kind} is not of {V2}, whose transforms alone move masks and boxes along")
        if self._fellows is not None and self._fellows.stay and kind in _MOVING:
            raise Stop(f"{kind} {self._fellows.stay}")
        if kind == "SanitizeBoundingBoxes":
            self._sanitise(transform)
        elif kind in _TO_TENSOR or kind in _ON_TENSOR:
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
            ramp = (
                transform(self._ramp)
                if self._fellows is None
                else self._fellows.through(transform, self._ramp)
            )
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
        resizes = isinstance(op, (draws.Resize, draws.RandomResizedCrop))
        if resizes:
            filter = self._tensor_filter(kind, transform) if self._is_tensor else None
        ramp = self._ramp.clone() if self._is_tensor else self._ramp
        if self._frame.ops or self._pixels[-1]:
            try:
                draws.fit([*self._frame.ops, op], self._frame.start)
            except draws.Unfit:
                self._next_frame()  # which raises it again if no frame can do it
        self._frame.ops.append(op)
        self._frame.fills.append(lambda: fill_level(kind, transform, ramp))
        self._note_mask(kind, transform)
        if resizes:
            self._frame.filter = _filter(kind, transform) if filter is None else filter
        self._steps.append(_words(transform))

    @property
    def _levels(self) -> bool:
        """Whether the image is a tensor of the levels themselves."""
        if not self._is_tensor or self._ramp.dtype != torch.uint8:
            return False
        levels = torch.arange(256, dtype=torch.uint8, device="cpu").expand(self._channels, 256)
        return torch.equal(self._ramp.as_subclass(torch.Tensor).reshape(-1, 256), levels)

    def _tensor_filter(self, kind: str, transform: Any) -> int:
        """resample.h's Filter of a transform that resizes a tensor. See Note [Tensors]."""
        if not self._levels or not is_of(transform, V2, kind):
            raise Stop(
                f"{kind} comes after the image is a tensor, and torch computes it in floating "
                "point; put it before ToTensor, or take v2's behind ToImage or PILToTensor"
            )
        name = filter_of(transform)
        if name not in _TORCH_FILTERS or not transform.antialias:
            raise Stop(
                f"{kind} with interpolation {name!r}, antialias={transform.antialias} on a tensor; "
                "bilinear and bicubic with antialias are recognised"
            )
        if not _in_integers(name):
            raise Stop(f"{kind} on a tensor, which torch resizes in floating point here")
        return _TORCH_FILTERS[name]

    def _note_mask(self, kind: str, transform: Any) -> None:
        if self._joint is None or not self._joint.named("mask"):
            return
        self._frame.mask_fills.append(lambda: mask_fill(kind, transform))
        if kind == "Resize" and filter_of(transform) == "nearest-exact":
            raise Stop("Resize with interpolation 'nearest-exact', which masks take part in")

    def _sanitise(self, transform: Any) -> None:
        if self._joint is None or len(self._joint.named(*FORMATS)) != 1:
            raise Stop("SanitizeBoundingBoxes needs one field of boxes: name it in joint=")
        labels = len(self._joint.named("labels"))
        getter = transform.labels_getter
        if (getter != "default" or labels != 1) and (getter is not None or labels):
            raise Stop(
                f"SanitizeBoundingBoxes with labels_getter={getter!r} and {labels} fields of "
                "labels in joint=; 'default' with one and None with none are recognised"
            )
        self._frame.ops.append(Sanitize(float(transform.min_size), float(transform.min_area)))
        self._frame.fills.append(lambda: (0, 0, 0))
        if self._joint.named("mask"):
            self._frame.mask_fills.append(lambda: 0)
        self._steps.append(_words(transform))

    def _next_frame(self) -> None:
        self._frame = _Frame(self._frame.size)
        self._frames.append(self._frame)
        self._pixels.append([])

    def _operation(self, kind: str, transform: Any) -> None:
        op = pixel_op(transform)
        if op is None:
            raise Stop(f"{kind} is not a transform fastload knows")
        if self._joint is not None:
            from .geometry import warps

            if warps.moves(op):
                raise Stop(
                    f"{kind} turns masks and boxes too; crops, resizes, pads and flips are "
                    "recognised where something moves along"
                )
        if self._erased:
            raise Stop(f"{kind} comes after RandomErasing; put it before")
        alike = (kind in _ALIKE and self._levels) or kind == "RandomVerticalFlip"
        if self._is_tensor and not alike:
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
        if resizes(op):
            self._frame.start = None
        self._steps.append(_words(transform))

    def _erase(self, kind: str, transform: Any) -> None:
        if not self._is_tensor:
            raise Stop("RandomErasing comes before the image is a tensor; put ToTensor before it")
        rectangle, value = (timm_erasing if kind.startswith("timm.") else erasing_of)(transform)
        if value is None:
            if not self._ramp.is_floating_point():
                raise Stop("RandomErasing with value='random' on integers; scale them to floats")
            values = torch.from_numpy(erasing.quantiles())
            values = values.expand(self._channels, 1, erasing.QUANTILES)
        else:
            if len(value) not in (1, self._channels):
                raise Stop(f"RandomErasing with value={value}: expected one, or one a channel")
            values = torch.tensor(value, device="cpu").reshape(-1, 1, 1)
            values = values.expand(self._channels, 1, 1)
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
        levels = torch.arange(256, dtype=torch.uint8, device="cpu").expand(3, 256)
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
                erasing.Erase(
                    *rectangle,
                    as_numpy(_three(values.as_subclass(torch.Tensor).detach())),
                )
                for rectangle, values in self._erased
            ),
            steps=tuple(self._steps),
            joint=None if self._fellows is None else self._fellows.joint,
        )


def _three(values: torch.Tensor) -> torch.Tensor:
    """Values (channels, 1, k) as (3, k)."""
    return values.reshape(len(values), -1).expand(3, -1)


def _words(transform: Any) -> str:
    """The transform as it prints itself, in one line."""
    return " ".join(str(transform).split())


def _filter(kind: str, transform: Any) -> int:
    """resample.h's Filter of a transform that resizes."""
    name = filter_of(transform)
    if name not in _FILTERS:
        raise Stop(f"{kind} with interpolation {name!r}; {', '.join(_FILTERS)} are recognised")
    return _FILTERS[name]


def _in_integers(name: str) -> bool:
    """Whether torchvision resizes uint8 tensors as such, on this machine."""
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2.functional import _geometry as theirs

    asked = getattr(theirs, "_do_native_uint8_resize_on_cpu", None)
    return asked is not None and bool(asked(InterpolationMode(name)))


_TO_TENSOR = frozenset({"ToTensor", "PILToTensor", "ToImage"}) | {
    f"timm.{name}" for name in ("ToTensor", "MaybeToTensor", "MaybePILToTensor")
}
# All that may move masks and boxes; groups may hold flips.
_MOVING = frozenset({*GEOMETRY, "SanitizeBoundingBoxes", "RandomVerticalFlip"}) | {
    "RandomApply",
    "RandomChoice",
    "RandomOrder",
}
# See Note [Gray images].
_ON_GRAY = frozenset(
    {"RandomVerticalFlip", "RandomRotation", "RandomAffine", "RandomInvert", "Grayscale"}
)
# Transforms that do the same to levels in a tensor as to a PIL image.
_ALIKE = frozenset({"RandomInvert", "RandomPosterize", "RandomSolarize"})
_ON_TENSOR = frozenset({"ConvertImageDtype", "ToDtype", "Normalize", "ToPureTensor"})
