"""``Plan``: what an engine does to each image (geometry, operations on pixels, a table lookup)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from .._base import philox
from .._base.value_class import value_class
from ..errors import UsageError

if TYPE_CHECKING:
    import numpy.typing as npt  # 20 ms

    from .geometry.draws import Op
    from .pixels.erasing import Erase
    from .pixels.pixel_op import PixelOp
    from .targets.joint import Joint

STORED: dict[torch.dtype, np.dtype[np.generic]] = {
    torch.uint8: np.dtype(np.uint8),
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(np.uint16),
}
"""The dtypes that an engine writes, and how NumPy holds them: bfloat16 as its bit patterns."""

_VIEW = 0x7669_6577  # stream of the views' keys, which no order and no transform uses

BILINEAR = 2
"""resample.h's number of the filter that torchvision takes by default."""


class PixelStage(NamedTuple):
    """Operations on pixels, and the frame of geometry after them.

    Attributes:
        pixels: the operations, in order.
        ops, filter, fill, mask_fill: as in ``Plan``, for the image that results from ``pixels``.
    """

    pixels: tuple[PixelOp, ...] = ()
    ops: tuple[Op, ...] = ()
    filter: int = BILINEAR
    fill: tuple[int, int, int] = (0, 0, 0)
    mask_fill: int = 0


@value_class(eq=False)
class Plan:
    """What to do to each image: a frame of geometry, further stages, then a table lookup.

    Attributes:
        ops: geometry, in order; drawn by ``sample_params.draw``.
        filter: filter of the resize, numbered as ``Filter`` in resample/resample.h.
        fill: level of each channel (R, G, B) where the window reaches outside the image.
        stages: the stages between this first frame of geometry and the table.
        lut: (3, 256) in the output's dtype, by channel and level; bfloat16 as uint16 bit patterns.
            None: the levels themselves, uint8.
        dtype: dtype of the output: torch.uint8, float32, float16 or bfloat16.
        channels: channels of the output: 3, or 1 for gray images, which the engines process as
            three equal channels.
        size: (h, w) of the output, or None if it depends on the image.
        erasing: rectangles that are erased in the result.
        scaled: whether a JPEG that is much larger than needed may be decoded at reduced size.
        steps: what happens, for ``explain()``.
        joint: the fields that are transformed with the images, or None.
        mask_fill: as ``fill``, for masks.
    """

    ops: tuple[Op, ...] = ()
    filter: int = BILINEAR
    fill: tuple[int, int, int] = (0, 0, 0)
    stages: tuple[PixelStage, ...] = ()
    lut: npt.NDArray[np.generic] | None = None
    dtype: torch.dtype = torch.uint8
    channels: int = 3
    size: tuple[int, int] | None = None
    erasing: tuple[Erase, ...] = ()
    scaled: bool = False
    steps: tuple[str, ...] = ()
    joint: Joint | None = None
    mask_fill: int = 0

    @property
    def split(self) -> str:
        """Where the parts of the plan run, for ``explain()``."""
        operations = sum(len(stage.pixels) for stage in self.stages)
        frames = 1 + len([stage for stage in self.stages if stage.ops])
        descriptions = [
            f"{frames} crop-and-resize step{'s' * (frames > 1)}",
            f"{operations} operation{'s' * (operations > 1)} on pixels" * (operations > 0),
            "1 table of output values" * (self.lut is not None),
            f"{len(self.erasing)} erasing" * bool(self.erasing),
        ]
        return "everything runs in the engine: " + ", ".join(filter(None, descriptions))

    @property
    def fixed_size(self) -> bool:
        """Whether all outputs have the same size, so that any images can form a batch."""
        return self.size is not None

    @property
    def drawn_size(self) -> bool:
        """Whether the output size is random, so that images rarely form a batch."""
        return self.size is None and any(op.resizes for stage in self.stages for op in stage.pixels)

    @property
    def each(self) -> tuple[Plan, ...]:
        """The plans of all views, as ``Views`` has them: this one."""
        return (self,)

    @property
    def nbytes(self) -> int | None:
        """Bytes of an output image, or None if that depends on the image."""
        if self.size is None:
            return None
        return self.channels * self.size[0] * self.size[1] * self.dtype.itemsize

    @property
    def random(self) -> bool:
        """Whether the output depends on random numbers."""
        ops = [*self.ops, *(op for stage in self.stages for op in stage.ops)]
        pixels = (op for stage in self.stages for op in stage.pixels)
        return bool(
            any(op.blocks for op in ops) or any(op.numbers for op in pixels) or self.erasing
        )

    @property
    def stored(self) -> np.dtype[np.generic]:
        """The NumPy dtype that an output is stored in; uint16 stands for bfloat16."""
        return STORED[self.dtype]

    def lut_bytes(self) -> npt.NDArray[np.uint8] | None:
        """The table as a 1-D uint8 view, for the core; None without a table."""
        return None if self.lut is None else self.lut.reshape(-1).view(np.uint8)

    def erased_bytes(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]] | None:
        """``kinds`` and ``values`` of the core's ``erase``; None if nothing is erased."""
        if not self.erasing:
            return None
        rows = []
        for fill in self.erasing:
            row = np.ascontiguousarray(fill.values).reshape(-1).view(np.uint8)
            rows.append(np.pad(row, (0, -len(row) % 4)))
        kinds = np.array([2 if fill.bits else fill.noise for fill in self.erasing], np.uint8)
        return kinds, np.concatenate(rows)

    def levels_of(self, images: torch.Tensor) -> torch.Tensor:
        """uint8: the levels whose values in the table are nearest to ``images`` (c, h, w).

        The inverse of the table; exact if no two levels have the same value.
        """
        if self.lut is None:
            return images
        table = as_torch(self.lut, self.dtype).double()[: self.channels]
        levels = []
        for values, channel in zip(table, images.double(), strict=True):
            ordered, order = values.sort(stable=True)
            between = (ordered[1:] + ordered[:-1]) / 2
            levels.append(order[torch.bucketize(channel, between)])
        return torch.stack(levels).to(torch.uint8)

    def same_as(self, other: object) -> bool:
        """Whether both give the same output for any image and the same random numbers."""
        if self is other:
            return True
        if not isinstance(other, Plan):
            return False
        mine, theirs = self.lut_bytes(), other.lut_bytes()
        if mine is None or theirs is None:
            same_table = mine is theirs
        else:
            same_table = np.array_equal(mine, theirs)
        same_erasing = len(self.erasing) == len(other.erasing) and all(
            mine.same_as(theirs) for mine, theirs in zip(self.erasing, other.erasing, strict=True)
        )
        return (
            same_table
            and same_erasing
            and all(
                getattr(self, name) == getattr(other, name)
                for name in (
                    "ops",
                    "filter",
                    "fill",
                    "stages",
                    "dtype",
                    "channels",
                    "size",
                    "joint",
                    "mask_fill",
                    "scaled",
                )
            )
        )

    def levels(self) -> Plan:
        """The plan up to uint8 levels, if the device stage does the rest."""
        return dataclasses.replace(self, lut=None, dtype=torch.uint8, erasing=())

    def with_decode(self, decode: str) -> Plan:
        """The plan for FastLoader's argument ``decode``."""
        scaled = decode == "scaled"
        return self if scaled == self.scaled else dataclasses.replace(self, scaled=scaled)

    def with_output(self, dtype: torch.dtype | None = None) -> Plan:
        """The plan with its result cast to ``dtype``, as ``Tensor.to`` casts.

        Raises UsageError for a dtype that no engine writes, and for uint8 if the transform gives
        floating point: that would truncate normalised values to a few integers.
        """
        if dtype is None or dtype == self.dtype:
            return self
        if dtype not in STORED:
            names = ", ".join(map(str, STORED))
            raise UsageError(f"dtype: expected one of {names}, got {dtype}")
        if dtype == torch.uint8:
            raise UsageError(
                f"dtype=torch.uint8: the transform gives {self.dtype}, whose values would be "
                "truncated to integers; end the transform with PILToTensor instead of ToTensor "
                "and Normalize, and normalise on the device"
            )
        if self.lut is None:
            table = torch.arange(256, dtype=torch.uint8, device="cpu").expand(3, 256)
        else:
            table = as_torch(self.lut, self.dtype)
        erasing = tuple(
            dataclasses.replace(
                erase, values=as_numpy(as_torch(erase.values, self.dtype).to(dtype))
            )
            for erase in self.erasing
        )
        return dataclasses.replace(
            self,
            lut=as_numpy(table.to(dtype)),
            erasing=erasing,
            dtype=dtype,
            steps=(*self.steps, f"cast to {dtype}"),
        )


@value_class(eq=False)
class Views:
    """Several views of each image: a plan for each, with independent random numbers.

    View 0 gets the numbers that its chain would get alone. The others use Philox keys that are
    drawn from Philox for (seed, view). So views differ from each other, and none depends on how
    many there are.
    """

    each: tuple[Plan, ...]

    @property
    def random(self) -> bool:
        """Whether any view depends on random numbers."""
        return any(plan.random for plan in self.each)

    @property
    def nbytes(self) -> int | None:
        """Bytes of all views of an image, or None if that depends on the image."""
        sizes = [plan.nbytes for plan in self.each]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def same_as(self, other: object) -> bool:
        """Whether both give the same output for any image and the same random numbers."""
        return (
            type(other) is Views
            and len(self.each) == len(other.each)
            and all(map(Plan.same_as, self.each, other.each))
        )

    def with_output(self, dtype: torch.dtype | None = None) -> Views:
        """All plans, cast to ``dtype``. Raises UsageError as ``Plan.with_output``."""
        return Views(tuple(plan.with_output(dtype) for plan in self.each))

    def with_decode(self, decode: str) -> Views:
        """All plans, for FastLoader's argument ``decode``."""
        return Views(tuple(plan.with_decode(decode) for plan in self.each))


def seed_of(seed: int, view: int) -> int:
    """The seed for the random numbers of a view."""
    if view == 0:
        return seed
    words = philox.words(seed, 0, np.array([view], np.int64), [_VIEW])[:, :, 0, 0]
    return int(words[0, 0]) << 32 | int(words[0, 1])


def as_numpy(table: torch.Tensor) -> npt.NDArray[np.generic]:
    """The table as a read-only array in the dtype given by ``STORED``."""
    if table.dtype == torch.bfloat16:
        stored = table.contiguous().view(torch.int16).numpy().view(np.uint16)
    else:
        stored = table.contiguous().numpy()
    stored = np.array(stored)
    stored.flags.writeable = False
    return stored


def as_torch(table: npt.NDArray[np.generic], dtype: torch.dtype) -> torch.Tensor:
    """The inverse of ``as_numpy``: a copy of the table as a tensor of ``dtype``."""
    if dtype == torch.bfloat16:
        return torch.from_numpy(table.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(table.copy())
