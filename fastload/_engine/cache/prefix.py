"""The first operations of a transform, as far as they are the same in every epoch, and the rest.

Where a chain starts with operations without random numbers (Resize and CenterCrop at evaluation), a
cache can keep their result, and later epochs start from it. Pillow's results are uint8, so nothing
is lost in between.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import ClassVar, NamedTuple

import numpy as np

from ..._base.value_class import value_class
from ..._transforms.geometry.crop_geometry import Array, Frame, Geometry
from ..._transforms.geometry.draws import Op
from ..._transforms.plan import Plan, Views
from ..._transforms.sample_params import PER_SAMPLE, SampleParams

_NO_NUMBERS = np.empty((4, 0, 0))


@value_class()
class AppliedOp:
    """Stands for an operation that has been applied already.

    Random numbers belong to a position in the chain, so the later operations must keep theirs; and
    what this one promises about sizes must still hold for them.

    Attributes:
        least: every image is at least this wide and high.
        size: (h, w) of every image, or None where they differ.
    """

    least: tuple[int, int]
    size: tuple[int, int] | None
    blocks: ClassVar[int] = 0

    def apply(self, frame: Frame, u: Array) -> None:
        """Note what is known about the image."""
        frame.least = self.least
        if self.size is not None:
            frame.h = frame.box_h = frame.resized_h = self.size[0]
            frame.w = frame.box_w = frame.resized_w = self.size[1]


class Placed(NamedTuple):
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
        return Placed(*(each[which] for each in self))


class Prefix(NamedTuple):
    """The operations of geometry that a plan begins with and that draw no random numbers.

    Without any, the whole image is kept. ``filter`` and ``fill`` are the plan's.
    """

    ops: tuple[Op, ...]
    filter: int
    fill: tuple[int, int, int]

    @classmethod
    def of(cls, plan: Plan | Views) -> Prefix:
        """The prefix of a plan.

        Empty where several views, or masks and boxes, need the whole image.
        """
        if isinstance(plan, Views) or plan.joint is not None:
            plan = Plan()
        ops = tuple(itertools.takewhile(lambda op: not op.blocks, plan.ops))
        return cls(ops=ops, filter=plan.filter, fill=plan.fill)

    def rest(self, plan: Plan) -> Plan:
        """The plan for images to which the operations have been applied."""
        frame = Frame.of(np.empty((0, 2), np.int64), np.empty(0, np.int64))
        done = []
        for op in self.ops:
            op.apply(frame, _NO_NUMBERS)
            done.append(AppliedOp(frame.least, frame.size()))
        return dataclasses.replace(plan, ops=(*done, *plan.ops[len(done) :]))

    def place(self, sizes: np.ndarray, records: np.ndarray) -> Placed:
        """What is kept of images of ``sizes``, int32 (n, 2). Raises ``Refused``."""
        frame = Frame.of(sizes, records)
        for op in self.ops:
            op.apply(frame, _NO_NUMBERS)
        box, resized, window, _, size = np.split(frame.rows(), (4, 6, 8, 9), axis=1)
        return Placed(
            source=np.ascontiguousarray(sizes, np.int32),
            box=np.ascontiguousarray(box),
            resized=np.ascontiguousarray(resized),
            window=np.concatenate([window, size], axis=1),
        )


_Drawn = tuple[Geometry, SampleParams | None]


def merged(first: np.ndarray, drawn_first: _Drawn, drawn_second: _Drawn) -> _Drawn:
    """Join two parts of a batch: the first where ``first`` (bool (n,)), else the second.

    Both are of one plan, and their outputs have one size.
    """

    def column(name: str, a: object, b: object) -> Array:
        mine, theirs = getattr(a, name), getattr(b, name)
        joined: Array = np.empty((len(first), *mine.shape[1:]), mine.dtype)
        joined[first], joined[~first] = mine, theirs
        return joined

    (geometry, params), (others, others_params) = drawn_first, drawn_second
    box, resized, window, flip = (
        column(name, geometry, others) for name in ("box", "resized", "window", "flip")
    )
    whole = Geometry(box, resized, window, flip, geometry.out_h, geometry.out_w)
    if params is None:
        return whole, None
    columns = {name: column(name, params, others_params) for name in PER_SAMPLE}
    return whole, params._replace(**columns)
