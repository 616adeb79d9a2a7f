"""``ChainReader``: reads a chain of torchvision transforms one by one and builds a ``Plan``.

The plan's table is made by running the user's own transforms on a ramp of all 256 levels.

Note [Gray images]
    The engines process a gray image as RGB with three equal channels. Resizing, cropping, flipping
    and affine maps treat all channels alike, so the channels stay equal and each is the result for
    the gray image. Only operations of which this is known (``_ON_GRAY``) are recognised on gray
    images.

Note [Tensors]
    torchvision's v2 resizes uint8 tensors in integers, with 16-bit weights, which the core
    reproduces (kTorchBilinear in resample/resample.h). v1 resizes them in float32, whose sums have
    no fixed order. On processors without AVX2, v2 uses floats for bilinear too, so torchvision is
    asked which it will use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .geometry import draws
from .geometry.crop_geometry import Unfit
from .geometry.crops import GEOMETRY
from .geometry.draws import Op
from .plan import BILINEAR, STORED, PixelStage, Plan, as_numpy
from .transform_class import (
    BUCKET_CROP,
    UNREADABLE,
    V2,
    Stop,
    Transform,
    filter_of,
    is_of,
    kind_of,
    name_of,
)

if TYPE_CHECKING:  # many transforms only crop, resize and flip
    from .pixels.erasing import Erase
    from .pixels.fills import Rectangle
    from .pixels.pixel_op import PixelOp
    from .targets.joint import Joint
    from .targets.moving import JointProbe

# torchvision's names of filters -> Filter in resample/resample.h
_FILTERS = {
    "nearest": 0,
    "nearest-exact": 0,  # on PIL images torchvision uses Pillow's nearest for both
    "box": 1,
    "bilinear": 2,
    "hamming": 3,
    "bicubic": 4,
    "lanczos": 5,
}

# The same for tensors of levels, which torch resizes in integers
_TORCH_FILTERS = {"bilinear": 6, "bicubic": 7}


class _Frame:
    """A frame of geometry, and the operations on pixels before it, while they are read."""

    def __init__(self, start: tuple[int, int] | None) -> None:
        self.start = start  # (h, w) of the images before it, if known
        self.pixels: list[PixelOp] = []
        self.ops: list[Op] = []
        self.fills: list[Callable[[], tuple[int, int, int]]] = []
        self.mask_fills: list[Callable[[], int]] = []  # empty without masks
        self.filter: int | None = None

    @property
    def size(self) -> tuple[int, int] | None:
        """(h, w) of the images after it, if known."""
        return draws.fit(self.ops, self.start).size

    def stage(self) -> PixelStage:
        """The frame as a stage of a plan. Raises Unfit and Stop."""
        fit = draws.fit(self.ops, self.start)
        fill, mask_fill = (0, 0, 0), 0
        if fit.padding is not None:
            fill = self.fills[fit.padding]()
            mask_fill = self.mask_fills[fit.padding]() if self.mask_fills else 0
        return PixelStage(
            tuple(self.pixels),
            tuple(self.ops),
            BILINEAR if self.filter is None else self.filter,
            fill,
            mask_fill,
        )


class ChainReader:
    """Builds a plan, one transform at a time.

    PIL images have the ``mode`` "RGB" at the start, or "L", if they are gray. The fields of
    ``joint`` are transformed with the images.
    """

    def __init__(self, mode: str = "RGB", joint: Joint | None = None) -> None:
        from PIL import Image

        self._joint = joint
        self._probe: JointProbe | None = None
        if joint is not None:
            from .targets.moving import JointProbe

            self._probe = JointProbe(joint)
        levels = np.arange(256, dtype=np.uint8).repeat(len(mode))
        # 256 x 1 pixels that hold every level once. A PIL image until the chain makes a tensor of
        # it (self._is_tensor), which no type checker can follow.
        self._ramp: Any = Image.frombytes(mode, (256, 1), levels.tobytes())
        self._frame = _Frame(None)
        self._frames = [self._frame]
        self._erased: list[tuple[Rectangle, torch.Tensor]] = []  # rectangles and their values
        self._steps: list[str] = []

    @property
    def _is_tensor(self) -> bool:
        return isinstance(self._ramp, torch.Tensor)

    @property
    def _channels(self) -> int:
        return len(self._ramp) if self._is_tensor else len(self._ramp.getbands())

    def read(self, transform: Transform) -> None:
        """Add one transform. Raises Stop if it is not recognised."""
        try:
            self._read(transform)
        except Unfit:  # a ValueError with a better message
            raise
        except UNREADABLE as error:
            raise Stop(f"{name_of(transform)}: a setting cannot be read ({error})") from error

    def _read(self, transform: Transform) -> None:
        kind = kind_of(transform)
        joint = kind == BUCKET_CROP or is_of(transform, V2, kind)
        if self._joint is not None and not joint:
            raise Stop(f"{kind} is not of {V2}: only these transform masks and boxes too")
        if self._probe is not None and self._probe.fixed and kind in _MOVING:
            raise Stop(f"{kind} {self._probe.fixed}")
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

    def _values(self, kind: str, transform: Transform) -> None:
        if not self._is_tensor and kind not in _TO_TENSOR:
            raise Stop(f"{kind} comes before the image is a tensor; put ToTensor before it")
        try:
            ramp = (
                transform(self._ramp)
                if self._probe is None
                else self._probe.through(transform, self._ramp)
            )
            erased = [(rectangle, transform(values)) for rectangle, values in self._erased]
        except Exception as error:  # the user's chain fails in the same way on every image
            raise Stop(f"{kind} itself fails: {error}") from error
        if not isinstance(ramp, torch.Tensor) or tuple(ramp.shape) != (self._channels, 1, 256):
            raise Stop(f"{kind} does not give a tensor with the same number of channels")
        if self._is_tensor and self._ramp.is_floating_point() and not ramp.is_floating_point():
            # casts of values out of range differ between processor instructions
            most = 1 if getattr(transform, "scale", True) else 255
            for values in (self._ramp, *(values for _, values in self._erased)):
                if not bool(((values >= 0) & (values <= most)).all()):
                    raise Stop(f"{kind} casts values outside 0 to {most} to {ramp.dtype}")
        changed = not self._is_tensor or self._ramp.dtype != ramp.dtype
        self._steps.append(_printed(transform) + f" -> {ramp.dtype}" * changed)
        self._ramp, self._erased = ramp, erased

    def _geometry(self, kind: str, transform: Transform) -> None:
        op = GEOMETRY[kind](transform)
        if self._erased:
            raise Stop(f"{kind} comes after RandomErasing; put it before")
        resizes = kind == BUCKET_CROP or isinstance(op, draws.RESIZING)
        if resizes:
            filter = self._tensor_filter(kind, transform) if self._is_tensor else None
        ramp = self._ramp.clone() if self._is_tensor else self._ramp
        if self._frame.ops or self._frame.pixels:
            try:
                draws.fit([*self._frame.ops, op], self._frame.start)
            except Unfit:
                self._next_frame()  # the next fit raises it again if no frame can do it
        self._frame.ops.append(op)

        def fill() -> tuple[int, int, int]:
            from .pixels.fills import fill_level

            return fill_level(kind, transform, ramp)

        self._frame.fills.append(fill)
        self._note_mask(kind, transform)
        if resizes:
            self._frame.filter = _filter(kind, transform) if filter is None else filter
        self._steps.append(_printed(transform))

    @property
    def _levels(self) -> bool:
        """Whether the image is a tensor of the unchanged levels."""
        if not self._is_tensor or self._ramp.dtype != torch.uint8:
            return False
        levels = torch.arange(256, dtype=torch.uint8, device="cpu").expand(self._channels, 256)
        return torch.equal(self._ramp.as_subclass(torch.Tensor).reshape(-1, 256), levels)

    def _tensor_filter(self, kind: str, transform: Transform) -> int:
        """Filter in resample/resample.h of a transform that resizes a tensor; Note [Tensors]."""
        if not self._levels or not is_of(transform, V2, kind):
            raise Stop(
                f"{kind} comes after the image is a tensor, and torch computes it in floating "
                "point; put it before ToTensor, or use v2's after ToImage or PILToTensor"
            )
        name = filter_of(transform)
        if name not in _TORCH_FILTERS or not transform.antialias:
            raise Stop(
                f"{kind} with interpolation {name!r}, antialias={transform.antialias} on a tensor; "
                "bilinear and bicubic with antialias are recognised"
            )
        from .in_integers import resizes_in_integers

        if not resizes_in_integers(name):
            raise Stop(f"{kind} on a tensor, which torch resizes in floating point on this machine")
        return _TORCH_FILTERS[name]

    def _note_mask(self, kind: str, transform: Transform) -> None:
        if self._joint is None or not self._joint.named("mask"):
            return
        from .pixels.fills import mask_fill

        self._frame.mask_fills.append(lambda: mask_fill(kind, transform))
        if kind in ("Resize", BUCKET_CROP) and filter_of(transform) == "nearest-exact":
            raise Stop(f"{kind} with interpolation 'nearest-exact', which applies to masks too")

    def _sanitise(self, transform: Transform) -> None:
        from .targets.joint import FORMATS
        from .targets.moving import Sanitize

        if self._joint is None or len(self._joint.named(*FORMATS)) != 1:
            raise Stop("SanitizeBoundingBoxes needs exactly one field of boxes in joint=")
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
        self._steps.append(_printed(transform))

    def _next_frame(self) -> None:
        self._frame = _Frame(self._frame.size)
        self._frames.append(self._frame)

    def _operation(self, kind: str, transform: Transform) -> None:
        from .pixels.augmentations import pixel_op

        op = pixel_op(transform)
        if op is None:
            raise Stop(f"{kind} is not a transform fastload knows")
        if self._joint is not None and op.moves:
            raise Stop(
                f"{kind} transforms masks and boxes too; with joint= only crops, resizes, pads "
                "and flips are recognised"
            )
        if self._erased:
            raise Stop(f"{kind} comes after RandomErasing; put it before")
        alike = (kind in _ALIKE and self._levels) or kind == "RandomVerticalFlip"
        if self._is_tensor and not alike:
            raise Stop(
                f"{kind} comes after the image is a tensor, where torch rounds differently than "
                "Pillow; put it before ToTensor or ToImage"
            )
        if self._channels == 1:
            if kind not in _ON_GRAY:
                raise Stop(f"{kind} on gray images; put Grayscale(3) before it, which gives three")
            if len(np.atleast_1d(getattr(transform, "fill", None) or 0)) > 1:
                raise Stop(f"{kind} with several values for fill, on images with one channel")
            if kind == "Grayscale":
                self._ramp = self._ramp.convert("RGB")
        if len(self._frames) == 1 or self._frame.ops:
            self._next_frame()
        self._frame.pixels.append(op)
        if op.resizes:
            self._frame.start = None
        self._steps.append(_printed(transform))

    def _erase(self, kind: str, transform: Transform) -> None:
        if not self._is_tensor:
            raise Stop("RandomErasing comes before the image is a tensor; put ToTensor before it")
        from .pixels.fills import erasing_of, timm_erasing

        rectangle, value = (timm_erasing if kind.startswith("timm.") else erasing_of)(transform)
        if value is None:
            if not self._ramp.is_floating_point():
                raise Stop("RandomErasing with value='random' on integers; scale them to floats")
            from .pixels import erasing

            values = torch.from_numpy(erasing.quantiles())
            values = values.expand(self._channels, 1, erasing.QUANTILES)
        else:
            if len(value) not in (1, self._channels):
                raise Stop(f"RandomErasing with value={value}: expected one, or one per channel")
            values = torch.tensor(value, device="cpu").reshape(-1, 1, 1)
            values = values.expand(self._channels, 1, 1)
            if not self._ramp.is_floating_point() and not ((values >= 0) & (values <= 255)).all():
                raise Stop(f"RandomErasing with value={value} on levels from 0 to 255")
        p, scale, ratio = rectangle
        if not (0 <= p <= 1 and 0 <= scale[0] <= scale[1] and 0 < ratio[0] <= ratio[1]):
            raise Stop(f"RandomErasing with p={p}, scale={scale}, ratio={ratio}")
        typed = values.to(self._ramp.dtype).contiguous().as_subclass(type(self._ramp))
        self._erased.append((rectangle, typed))
        self._steps.append(_printed(transform))

    def plan(self) -> Plan:
        """The plan of the transforms so far, which must end in a tensor."""
        levels = torch.arange(256, dtype=torch.uint8, device="cpu").expand(3, 256)
        if not self._is_tensor:
            raise Stop("the samples are PIL images; end the transforms with ToTensor or ToImage")
        table = self._ramp.as_subclass(torch.Tensor).detach()
        table = table.reshape(self._channels, 256).expand(3, 256)
        if table.dtype not in STORED:
            raise Stop(f"the samples have dtype {table.dtype}, which no engine writes")
        identity = table.dtype == torch.uint8 and torch.equal(table, levels)
        first, *stages = (frame.stage() for frame in self._frames)
        return Plan(
            ops=first.ops,
            filter=first.filter,
            fill=first.fill,
            mask_fill=first.mask_fill,
            stages=tuple(stages),
            lut=None if identity else as_numpy(table),
            dtype=table.dtype,
            channels=self._channels,
            size=self._frame.size,
            erasing=tuple(_erase_of(rectangle, values) for rectangle, values in self._erased),
            steps=tuple(self._steps),
            joint=None if self._probe is None else self._probe.joint,
        )


def _erase_of(rectangle: Rectangle, values: torch.Tensor) -> Erase:
    from .pixels.erasing import Erase

    plain = values.as_subclass(torch.Tensor).detach()
    return Erase(*rectangle, as_numpy(plain.reshape(len(plain), -1).expand(3, -1)))


def _printed(transform: Transform) -> str:
    """The transform as it prints itself, in one line."""
    return " ".join(str(transform).split())


def _filter(kind: str, transform: Transform) -> int:
    """Filter in resample/resample.h of a transform that resizes."""
    name = filter_of(transform)
    if name not in _FILTERS:
        raise Stop(f"{kind} with interpolation {name!r}; {', '.join(_FILTERS)} are recognised")
    return _FILTERS[name]


_TO_TENSOR = frozenset({"ToTensor", "PILToTensor", "ToImage"}) | {
    f"timm.{name}" for name in ("ToTensor", "MaybeToTensor", "MaybePILToTensor")
}
# All transforms that may change masks and boxes; groups may contain flips.
_MOVING = frozenset({*GEOMETRY, "SanitizeBoundingBoxes", "RandomVerticalFlip"}) | {
    "RandomApply",
    "RandomChoice",
    "RandomOrder",
}
# See Note [Gray images].
_ON_GRAY = frozenset(
    {"RandomVerticalFlip", "RandomRotation", "RandomAffine", "RandomInvert", "Grayscale"}
)
# Transforms that treat levels in a tensor as they treat a PIL image.
_ALIKE = frozenset({"RandomInvert", "RandomPosterize", "RandomSolarize"})
_ON_TENSOR = frozenset({"ConvertImageDtype", "ToDtype", "Normalize", "ToPureTensor"})
