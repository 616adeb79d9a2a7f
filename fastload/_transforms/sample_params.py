"""The parameters of each sample of a batch: geometry, operations on pixels, erased rectangles.

``draw`` draws them from a ``Plan``. Those that were recorded, and so are known, come from
``_sources/deferred/lowering.py``. Both put them together in ``built``.

Note [Positions]
    Random numbers are drawn for (seed, epoch, index, position). Geometry operations have the
    positions from 0, in order, whatever is between them; operations on pixels those from 4096;
    rectangles those from 8192. So adding a colour transform does not change the crops of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .geometry.crop_geometry import Array, Frame, Geometry, Refused, most_made

if TYPE_CHECKING:  # many transforms only crop, resize and flip
    import numpy.typing as npt

    from .geometry.draws import Numbers
    from .geometry.geometry_log import GeometryLog
    from .pixels import operations
    from .pixels.erasing import ErasedBoxes
    from .plan import Plan

_PIXELS, _ERASING = 4096, 8192
_MAX_TURNED = 65535  # pixels of a side of a rotated image; pixels/pixels.cpp


PER_SAMPLE = ("first_size", "codes", "values", "frames", "boxes", "keys")
"""The attributes of ``SampleParams`` with a row for each sample."""


class SampleParams(NamedTuple):
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
        rows = {name: getattr(self, name)[which] for name in PER_SAMPLE}
        return self._replace(**rows)

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


FrameLook = tuple[int, tuple[int, int, int]]
"""What a frame has for all samples: its filter, and the fill (r, g, b)."""


class SampleGroup(NamedTuple):
    """Samples ``which`` of a batch have the same frames, and operations on pixels between them.

    ``slots`` are those before each frame but the first one.
    """

    which: int | slice | npt.NDArray[np.int64]
    frames: Sequence[Frame]
    slots: Sequence[Sequence[operations.Slots]]


def built(
    n: int,
    size: tuple[int, int],
    groups: Sequence[SampleGroup],
    looks: Sequence[FrameLook],
    erased: ErasedBoxes,
) -> tuple[Geometry, SampleParams | None]:
    """The first frame of ``n`` samples, and the parameters after it (None: there are none).

    ``size`` is width and height of the finished samples. Of ``groups``, those with fewer frames
    than others get some that do nothing. ``looks`` are of the frames after the first one,
    ``erased`` the rectangles.
    """
    from .pixels import operations

    frames = np.empty((n, 1 + len(looks), 11), np.int32)
    frames[:] = (0, 0, *size, *size, 0, 0, 0, *size)
    counts, width = [0] * len(looks), 0
    for group in groups:
        for k, slots in enumerate(group.slots):
            counts[k] = max(counts[k], sum(some.shape[1] for some, _ in slots))
            width = max(width, *(some.shape[2] for _, some in slots), 0)
    codes, values = operations.empty(n, sum(counts), width)
    for which, some, between in groups:
        for k, frame in enumerate(some):
            frames[which, k] = frame.rows()
        begin = 0
        for count, slots in zip(counts, between, strict=False):
            start = begin
            for part_codes, part_values in slots:
                end = start + part_codes.shape[1]
                codes[which, start:end] = part_codes
                values[which, start:end, : part_values.shape[2]] = part_values
                start = end
            begin += count
    geometry = Geometry.of(frames[:, 0], *size)
    if not looks and not erased.boxes.shape[1]:
        return geometry, None
    settings = [[count, filter, *fill] for count, (filter, fill) in zip(counts, looks, strict=True)]
    return geometry, SampleParams(
        first_size=np.ascontiguousarray(frames[:, 0, 9:]),
        codes=codes,
        values=values,
        frames=np.ascontiguousarray(frames[:, 1:]),
        settings=np.array(settings, np.int32).reshape(-1, 5),
        boxes=erased.boxes,
        keys=erased.keys,
    )


def draw(
    plan: Plan, sizes: Array, numbers: Numbers, log: GeometryLog | None = None
) -> tuple[Geometry, SampleParams | None]:
    """The first frame of a batch, and the parameters after it (None: there are none).

    ``sizes`` are int32 (n, 2), width and height of each source image in pixels, at least 1. ``log``
    records each step of geometry. ``Geometry.out_h`` and ``out_w`` are the size of the finished
    samples.

    Raises:
        DataError: an image has no size or is too small for a RandomCrop, or the results differ in
            size. Names the record.
        Unfit: the operations have no normal form (``draws.fit`` checks this beforehand).
    """
    from .geometry import draws

    if log is not None:
        log.fill = plan.mask_fill
    indices = numbers.indices
    frame = Frame.of(sizes, indices, log)
    frame.refuse(
        np.less(frame.w, 1) | np.less(frame.h, 1),
        "the size of this image is unknown or not positive: got {w}x{h} pixels",
    )
    draws.apply(plan.ops, frame, numbers, position=0)
    if not plan.stages and not plan.erasing:
        return frame.finish(), None
    from .pixels import operations

    frame.refuse_large()
    frames, slots = [frame], []
    position, pixel_position = len(plan.ops), _PIXELS
    for stage in plan.stages:
        drawn = []
        w, h = frame.sides()
        for op in stage.pixels:
            drawn.append(op.draw(numbers.uniform(pixel_position, op.numbers), w, h))
            _refuse_blur(frame, drawn[-1], w, h)
            pixel_position += 1
            if log is not None:
                _note_mirrors(log, drawn[-1][0], w, h)
            w, h = operations.sides_after(drawn[-1], w, h)
            if op.resizes:
                _refuse_large(frame, w, h)
        if log is not None:
            log.fill = stage.mask_fill
        resized = any(op.resizes for op in stage.pixels)
        frame = Frame(*((w, h) if resized else (frame.w, frame.h)), indices, log)
        draws.apply(stage.ops, frame, numbers, position=position)
        frame.refuse_large()
        position += len(stage.ops)
        frames.append(frame)
        slots.append(drawn)
    last = frame.finish()
    size = last.out_w, last.out_h
    looks = [(stage.filter, stage.fill) for stage in plan.stages]
    erased = rectangles(plan, numbers, *size)
    return built(len(indices), size, [SampleGroup(slice(None), frames, slots)], looks, erased)


def output_sizes(plan: Plan, sizes: Array) -> npt.NDArray[np.int64] | None:
    """Width and height of what ``draw`` makes of images of ``sizes``: int64 (n, 2).

    (0, 0) where it refuses an image, or the size is not known. None: the size is random.
    """
    if plan.drawn_size:
        return None
    # Few different sizes stand for many images.
    few, which = np.unique(np.asarray(sizes, np.int64), axis=0, return_inverse=True)
    new_sizes = np.zeros_like(few)
    unrefused = np.flatnonzero(few.min(axis=1, initial=1) > 0)
    while len(unrefused):
        try:
            new_sizes[unrefused] = _sizes_after(plan, few[unrefused])
            break
        except Refused as refused:
            unrefused = np.delete(unrefused, refused.position)
    return new_sizes[which.reshape(-1)]


def _sizes_after(plan: Plan, sizes: Array) -> npt.NDArray[np.int64]:
    """As ``output_sizes``, but raises Refused for the first image that is refused."""
    n = len(sizes)
    if plan.size is not None:
        return np.tile(np.array(plan.size[::-1], np.int64), (n, 1))
    frame = Frame.of(sizes, np.arange(n))
    for ops in (plan.ops, *(stage.ops for stage in plan.stages)):
        frame = Frame(*frame.sides(), np.arange(n))
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
    new_sizes = output_sizes(plan, few)
    assert new_sizes is not None, "it is not random"
    few, counts = few[new_sizes.all(axis=1)], counts[new_sizes.all(axis=1)]
    frame = Frame.of(few, np.arange(len(few)))
    for op in plan.ops:
        op.apply(frame, np.zeros((4, op.blocks, len(few))))
    rows = frame.rows().astype(np.int64)
    resized, window, size = rows[:, 4:6], rows[:, 6:8], rows[:, 9:]
    common = np.minimum(window + size, resized) - np.maximum(window, 0)
    shared = common.clip(0).prod(axis=1)
    each = resized.prod(axis=1), resized.prod(axis=1) - shared, size.prod(axis=1) - shared
    all_resized, cut, padded = (int((pixels * counts).sum()) for pixels in each)
    return all_resized, cut, padded


def rectangles(plan: Plan, numbers: Numbers, width: int, height: int) -> ErasedBoxes:
    """The rectangles that are erased in finished samples of ``width`` x ``height``."""
    from .pixels.erasing import NUMBERS, ErasedBoxes

    n = len(numbers.indices)
    boxes = np.zeros((n, len(plan.erasing), 4), np.int32)
    keys = np.zeros((n, len(plan.erasing)), np.uint64)
    for e, fill in enumerate(plan.erasing):
        u = numbers.uniform(_ERASING + e, NUMBERS)
        boxes[:, e] = fill.boxes(u.T, width, height)
        keys[:, e] = numbers.key(_ERASING + e)
    return ErasedBoxes(boxes, keys)


def _note_mirrors(log: GeometryLog, codes: Array, w: Array, h: Array) -> None:
    """Log the flips among the operations on pixels; joint plans have no other that move pixels."""
    from .pixels import operations

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
    from .pixels import operations

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
