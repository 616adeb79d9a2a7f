"""The beginning of a transform that is the same for an image in every epoch, and what comes after.

A chain that begins with operations without random numbers (Resize and CenterCrop at evaluation) can
have their result kept: a later epoch goes on from there. Pillow's results are uint8, so stopping in
between changes nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import ClassVar

import numpy as np

from ..._transforms.geometry.crop_geometry import Array, Frame
from ..._transforms.geometry.draws import Geometry, Op
from ..._transforms.plan import Plan
from ..._transforms.sample_params import SampleParams
from ..._transforms.views import Views

_NO_NUMBERS = np.empty((4, 0, 0))


@dataclasses.dataclass(frozen=True)
class Done:
    """Takes the place of an operation whose result is there already.

    Random numbers belong to a position in the chain, so the others must keep theirs; and what the
    operation promises of sizes must still hold for them.

    Attributes:
        least: every image is at least this wide and high.
        size: (h, w) of every image, or None where they differ.
    """

    least: tuple[int, int]
    size: tuple[int, int] | None
    blocks: ClassVar[int] = 0

    def apply(self, frame: Frame, u: Array) -> None:
        """Only note what is known of the image."""
        frame.least = self.least
        if self.size is not None:
            frame.h = frame.box_h = frame.resized_h = self.size[0]
            frame.w = frame.box_w = frame.resized_w = self.size[1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placed:
    """What is kept of n images, in pixels.

    Attributes:
        source: int32 (n, 2): width and height of the image.
        box, resized: as in ``Geometry``.
        window: int32 (n, 4): x and y in the resized box, width and height of what is kept.
    """

    source: np.ndarray
    box: np.ndarray
    resized: np.ndarray
    window: np.ndarray

    def part(self, which: slice | np.ndarray) -> Placed:
        """Of some of the images."""
        return Placed(
            source=self.source[which],
            box=self.box[which],
            resized=self.resized[which],
            window=self.window[which],
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prefix:
    """The operations of geometry that a plan begins with and that draw no random numbers.

    Attributes:
        ops: none of them: the whole image is kept.
        filter, fill: of the plan, for these.
    """

    ops: tuple[Op, ...]
    filter: int
    fill: tuple[int, int, int]

    @classmethod
    def of(cls, plan: Plan | Views) -> Prefix:
        """The prefix of a plan.

        Nothing where several plans, or masks and boxes, go on from the whole image.
        """
        if isinstance(plan, Views) or plan.joint is not None:
            plan = Plan()
        ops = tuple(itertools.takewhile(lambda op: not op.blocks, plan.ops))
        return cls(ops=ops, filter=plan.filter, fill=plan.fill)

    def rest(self, plan: Plan) -> Plan:
        """The plan for images that the operations were done to."""
        frame = Frame(np.empty((0, 2), np.int64), np.empty(0, np.int64))
        done = []
        for op in self.ops:
            op.apply(frame, _NO_NUMBERS)
            done.append(Done(frame.least, frame.size()))
        return dataclasses.replace(plan, ops=(*done, *plan.ops[len(done) :]))

    def place(self, sizes: np.ndarray, records: np.ndarray) -> Placed:
        """What is kept of images of ``sizes`` (int32 (n, 2)). Raises as ``_geometry.draw``."""
        frame = Frame(sizes, records)
        for op in self.ops:
            op.apply(frame, _NO_NUMBERS)
        box, resized, window, _, size = frame.columns()
        return Placed(
            source=np.ascontiguousarray(sizes, np.int32),
            box=box,
            resized=resized,
            window=np.concatenate([window, size], axis=1),
        )


_Drawn = tuple[Geometry, SampleParams | None]


def merged(first: np.ndarray, one: _Drawn, other: _Drawn) -> _Drawn:
    """What was drawn for a batch in two parts: ``one`` where ``first`` (bool (n,)), else ``other``.

    Both of one plan and with outputs of one size.
    """

    def column(name: str, a: object, b: object) -> Array:
        mine, theirs = getattr(a, name), getattr(b, name)
        both: Array = np.empty((len(first), *mine.shape[1:]), mine.dtype)
        both[first], both[~first] = mine, theirs
        return both

    (geometry, params), (others, others_params) = one, other
    box, resized, window, flip = (
        column(name, geometry, others) for name in ("box", "resized", "window", "flip")
    )
    whole = Geometry(box, resized, window, flip, geometry.out_h, geometry.out_w)
    if params is None:
        return whole, None
    parts = {
        name: column(name, params, others_params)
        for name in ("first_size", "codes", "values", "frames", "boxes", "keys")
    }
    return whole, dataclasses.replace(params, **parts)
