"""The parameters of each sample of a batch: geometry, operations on pixels, erased rectangles.

``draw`` draws them from a ``Plan``.

Note [Positions]
    Random numbers are drawn for (seed, epoch, index, position). Geometry operations have the
    positions from 0, in order, whatever is between them; operations on pixels those from 4096;
    rectangles those from 8192. So adding a colour transform does not change the crops of a run.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from .._base import philox
from .geometry import draws
from .geometry.crop_geometry import Array, Frame, Geometry, Refused, most_made
from .geometry.geometry_log import GeometryLog
from .pixels import operations
from .pixels.erasing import NUMBERS, Drawn
from .plan import Plan

if TYPE_CHECKING:
    import numpy.typing as npt

_PIXELS, _ERASING = 4096, 8192
_MAX_TURNED = 65535  # pixels of a side of a rotated image; pixels/pixels.cpp


@dataclasses.dataclass(frozen=True)
class SampleParams:
    """The parameters of n samples after the first frame of geometry.

    See Note [Stages] in pixels/sample_params.h.

    Attributes:
        first_size: int32 (n, 2): width and height of the first frame.
        codes: int32 (n, slots), values: float64 (n, slots, width): operations on pixels.
        frames: int32 (n, frames, 11): box (x, y, w, h), resized (w, h), window (x, y), flip,
            size (w, h).
        settings: int32 (frames, 5): slots before the frame, filter, fill (r, g, b).
        boxes: int32 (n, e, 4): x, y, width, height of each erased rectangle; width 0: none.
        keys: uint64 (n, e): the random key of the noise in it.
    """

    first_size: npt.NDArray[np.int32]
    codes: npt.NDArray[np.int32]
    values: npt.NDArray[np.float64]
    frames: npt.NDArray[np.int32]
    settings: npt.NDArray[np.int32]
    boxes: npt.NDArray[np.int32]
    keys: npt.NDArray[np.uint64]

    def part(self, which: slice | npt.NDArray[np.int64]) -> SampleParams:
        """The parameters of some of the samples."""
        names = ("first_size", "codes", "values", "frames", "boxes", "keys")
        return dataclasses.replace(self, **{name: getattr(self, name)[which] for name in names})

    def stages(self) -> tuple[npt.NDArray[np.generic], ...] | None:
        """The core's ``BatchSpec.stages``; None if there is only the first frame."""
        if not len(self.settings):
            return None
        return self.first_size, self.codes, self.values, self.frames, self.settings

    def erase(
        self, kinds: npt.NDArray[np.uint8], values: npt.NDArray[np.uint8]
    ) -> tuple[npt.NDArray[np.generic], ...]:
        """The core's ``BatchSpec.erase``, with ``Plan.erased_bytes``."""
        return self.boxes, self.keys, kinds, values


def draw(
    plan: Plan,
    sizes: Array,
    *,
    seed: int,
    epoch: int,
    indices: npt.NDArray[np.int64],
    repeats: npt.NDArray[np.int64] | None = None,
    log: GeometryLog | None = None,
) -> tuple[Geometry, SampleParams | None]:
    """The first frame of a batch, and the parameters after it (None: there are none).

    Arguments and errors are those of ``geometry.draws.draw``. ``Geometry.out_h`` and ``out_w`` are
    the size of the finished samples.
    """
    given = {"seed": seed, "epoch": epoch, "indices": indices, "repeats": repeats}
    if log is not None:
        log.fill = plan.mask_fill
    if not plan.stages and not plan.erasing:
        return draws.draw(plan.ops, sizes, log=log, **given), None  # type: ignore[arg-type]
    counters = draws.counters(indices, repeats)
    numbers = _Numbers(seed, epoch, counters)
    frame = Frame(sizes, indices, log=log)
    draws.check_sizes(frame)
    draws.apply(plan.ops, frame, seed, epoch, counters, position=0)
    frame.refuse_large()
    first = frame
    position, pixel_position = len(plan.ops), _PIXELS
    slots: list[operations.Slots] = []
    frames, settings = [], []
    for stage in plan.stages:
        before = len(slots)
        w, h = frame.sides()
        for op in stage.pixels:
            drawn = op.draw(numbers.uniform(pixel_position, op.numbers), w, h)
            _refuse_blur(frame, drawn, w, h)
            slots.append(drawn)
            pixel_position += 1
            if log is not None:
                _note_mirrors(log, drawn[0], w, h)
            w, h = operations.sides_after(drawn, w, h)
            if operations.resizes(op):
                _refuse_large(frame, w, h)
        if log is not None:
            log.fill = stage.mask_fill
        fixed = None if any(map(operations.resizes, stage.pixels)) else frame.size()
        frame = Frame(np.stack([w, h], axis=1), indices, fixed, log)
        draws.apply(stage.ops, frame, seed, epoch, counters, position=position)
        frame.refuse_large()
        position += len(stage.ops)
        frames.append(np.concatenate(frame.columns(), axis=1))
        count = sum(codes.shape[1] for codes, _ in slots[before:])
        settings.append([count, stage.filter, *stage.fill])
    geometry = frame.finish()
    box, resized, window, flip, size = first.columns()
    geometry = Geometry(
        box,
        resized,
        window,
        np.ascontiguousarray(flip[:, 0], np.uint8),
        geometry.out_h,
        geometry.out_w,
    )
    codes, values = operations.joined(slots, len(indices))
    erased = _rectangles(plan, numbers, len(indices), geometry.out_w, geometry.out_h)
    params = SampleParams(
        first_size=size,
        codes=codes,
        values=values,
        frames=np.stack(frames, axis=1) if frames else np.zeros((len(indices), 0, 11), np.int32),
        settings=np.array(settings, np.int32).reshape(-1, 5),
        boxes=erased.boxes,
        keys=erased.keys,
    )
    return geometry, params


def output_sizes(plan: Plan, sizes: Array) -> npt.NDArray[np.int64] | None:
    """Width and height of what ``draw`` makes of images of ``sizes``: int64 (n, 2).

    (0, 0) where it refuses an image, or the size is not known. None: the size is random.
    """
    if plan.drawn_size:
        return None
    # Few different sizes stand for many images.
    few, which = np.unique(np.asarray(sizes, np.int64), axis=0, return_inverse=True)
    found = np.zeros_like(few)
    left = np.flatnonzero(few.min(axis=1, initial=1) > 0)
    while len(left):
        try:
            found[left] = _sizes_after(plan, few[left])
            break
        except Refused as refused:
            left = np.delete(left, refused.position)
    return found[which.reshape(-1)]


def _sizes_after(plan: Plan, sizes: Array) -> npt.NDArray[np.int64]:
    """The same. Raises Refused for the first image that is refused."""
    n = len(sizes)
    if plan.size is not None:
        return np.tile(np.array(plan.size[::-1], np.int64), (n, 1))
    frame = Frame(sizes, np.arange(n))
    for ops in (plan.ops, *(stage.ops for stage in plan.stages)):
        frame = Frame(np.stack(frame.sides(), axis=1), np.arange(n))
        for op in ops:
            op.apply(frame, np.zeros((4, op.blocks, n)))
        frame.refuse_large()
    return np.stack(frame.sides(), axis=1)


def coverage(plan: Plan, sizes: Array) -> tuple[int, int, int] | None:
    """Pixels of the resized images, pixels of these that crops cut off, and pixels of padding.

    All are sums over images of ``sizes``, (n, 2). None: the plan gives one size, a random one, or
    does it in several steps.
    """
    if plan.size is not None or plan.drawn_size or any(stage.ops for stage in plan.stages):
        return None
    few, counts = np.unique(np.asarray(sizes, np.int64), axis=0, return_counts=True)
    made = output_sizes(plan, few)
    assert made is not None, "it is not random"
    few, counts = few[made.all(axis=1)], counts[made.all(axis=1)]
    frame = Frame(few, np.arange(len(few)))
    for op in plan.ops:
        op.apply(frame, np.zeros((4, op.blocks, len(few))))
    _, resized, window, _, size = (column.astype(np.int64) for column in frame.columns())
    common = np.minimum(window + size, resized) - np.maximum(window, 0)
    shared = common.clip(0).prod(axis=1)
    each = resized.prod(axis=1), resized.prod(axis=1) - shared, size.prod(axis=1) - shared
    all_resized, cut, padded = (int((pixels * counts).sum()) for pixels in each)
    return all_resized, cut, padded


def rectangles(
    plan: Plan,
    width: int,
    height: int,
    *,
    seed: int,
    epoch: int,
    indices: npt.NDArray[np.int64],
    repeats: npt.NDArray[np.int64] | None = None,
) -> Drawn:
    """The rectangles that ``draw`` draws for finished samples of ``width`` x ``height``.

    The other arguments are those of ``geometry.draws.draw``.
    """
    numbers = _Numbers(seed, epoch, draws.counters(indices, repeats))
    return _rectangles(plan, numbers, len(indices), width, height)


def _rectangles(plan: Plan, numbers: _Numbers, n: int, width: int, height: int) -> Drawn:
    boxes = np.zeros((n, len(plan.erasing), 4), np.int32)
    keys = np.zeros((n, len(plan.erasing)), np.uint64)
    for e, fill in enumerate(plan.erasing):
        u = numbers.uniform(_ERASING + e, NUMBERS)
        boxes[:, e] = fill.boxes(u.T, width, height)
        keys[:, e] = numbers.key(_ERASING + e)
    return Drawn(boxes, keys)


class _Numbers:
    """The random numbers of a batch."""

    def __init__(self, seed: int, epoch: int, counters: npt.NDArray[np.int64]) -> None:
        self._seed, self._epoch, self._counters = seed, epoch, counters

    def uniform(self, position: int, count: int) -> Array:
        """(count, n)."""
        if not count:
            return np.empty((0, len(self._counters)))
        drawn = philox.uniform(self._seed, self._epoch, self._counters, position, count)
        return np.transpose(drawn)

    def key(self, position: int) -> npt.NDArray[np.uint64]:
        """(n,): a 64-bit key for each sample, from a separate block."""
        block = position * philox.BLOCKS_PER_POSITION + philox.BLOCKS_PER_POSITION - 1
        words = philox.words(self._seed, self._epoch, self._counters, [block])
        key: npt.NDArray[np.uint64] = words[0, 0, 0] | words[0, 1, 0] << np.uint64(32)
        return key


def _note_mirrors(log: GeometryLog, codes: Array, w: Array, h: Array) -> None:
    """Log the flips among the operations on pixels; joint plans have no other that move pixels."""
    for slot in codes.T:
        log.mirror(slot == operations.MIRROR, w, h)
        log.mirror(slot == operations.UPSIDE_DOWN, w, h, vertical=True)


def _refuse_large(frame: Frame, w: Array, h: Array) -> None:
    """Refuse rotated images that are too large: a rotated strip can have any number of pixels."""
    frame.refuse(
        (w > _MAX_TURNED) | (h > _MAX_TURNED) | (w * h > most_made()),
        f"RandomRotation with expand=True gives more than {most_made()} pixels, or a side above "
        f"{_MAX_TURNED}, for this {{w}}x{{h}} image; resize first, or leave the image out",
    )


def _refuse_blur(frame: Frame, slots: operations.Slots, w: Array, h: Array) -> None:
    codes, values = slots
    blurred = codes == operations.BLUR
    if not blurred.any():
        return
    over = (values[:, :, 0] >= w[:, None]) | (values[:, :, 1] >= h[:, None])
    frame.refuse(
        (blurred & over).any(axis=1),
        "GaussianBlur needs an image larger than half its kernel, got {w}x{h} pixels, which torch "
        "cannot pad by reflection; resize first, or use a smaller kernel",
    )
