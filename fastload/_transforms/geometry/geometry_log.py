"""The log of geometry operations on a batch, step by step, to apply them to masks and boxes.

The normal form (``crop_geometry.py``) is enough for pixels. Masks and boxes need every step (boxes
are clamped after each crop). So the steps are logged while the operations are applied, for all
samples at once, and then applied to the masks and boxes.

The arithmetic is torchvision's (transforms/v2/functional/_geometry.py and _meta.py, the kernels of
``Mask``, ``BoundingBoxes`` and ``KeyPoints``), in float32.

Note [Masks]
    A mask is resized by nearest neighbour, and every step treats rows and columns separately. So it
    is enough to know, for each row and column of the result, which source row or column it is, or
    that it is padding. This is computed backwards from the result, for all samples at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .crop_geometry import Array, Length

if TYPE_CHECKING:
    import numpy.typing as npt

_PADDING = -1


class LoggedCrop(NamedTuple):
    """A crop to w x h pixels from (x, y); pixels outside the image get the level ``fill`` in a
    mask.

    All are int64 (n,); before_w and before_h are the image's size before the crop. torchvision
    uses anchor_x and anchor_y for boxes: they differ from x and y for a CenterCrop that pads an
    odd number of pixels.
    """

    x: Array
    y: Array
    w: Array
    h: Array
    before_w: Array
    before_h: Array
    anchor_x: Array
    anchor_y: Array
    fill: int


class LoggedResize(NamedTuple):
    """A resize from before_w x before_h to w x h. All are int64 (n,)."""

    w: Array
    h: Array
    before_w: Array
    before_h: Array


class LoggedMirror(NamedTuple):
    """A flip, left to right or ``vertical``, of the samples where ``which`` (bool, (n,))."""

    which: Array
    w: Array
    h: Array
    vertical: bool = False


class LoggedSanitize(NamedTuple):
    """Removes boxes that are too small or not inside the image (``Sanitize``)."""

    min_size: float
    min_area: float
    w: Array
    h: Array


LogEntry = LoggedCrop | LoggedResize | LoggedMirror | LoggedSanitize


class GeometryLog:
    """The steps that were applied to a batch of n samples.

    Attributes:
        steps: in order.
        fill: level of a mask's padding in the next crop.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self.steps: list[LogEntry] = []
        self.fill = 0

    def crop(
        self,
        x: Length,
        y: Length,
        w: Length,
        h: Length,
        before: tuple[Length, Length],
        *,
        centred: bool,
    ) -> None:
        """Log a crop of images of size ``before`` = (w, h)."""
        x, y, w, h, before_w, before_h = map(self._each, (x, y, w, h, *before))
        anchor_x, anchor_y = x, y
        if centred:
            anchor_x, anchor_y = (
                np.rint((whole - cut) / 2).astype(np.int64)
                for whole, cut in ((before_w, w), (before_h, h))
            )
        self.steps.append(LoggedCrop(x, y, w, h, before_w, before_h, anchor_x, anchor_y, self.fill))

    def resize(self, w: Length, h: Length, before: tuple[Length, Length]) -> None:
        """Log a resize of images of size ``before`` = (w, h)."""
        w, h, before_w, before_h = map(self._each, (w, h, *before))
        self.steps.append(LoggedResize(w=w, h=h, before_w=before_w, before_h=before_h))

    def mirror(self, which: Array, w: Length, h: Length, *, vertical: bool = False) -> None:
        """Log a flip of the samples where ``which``."""
        if which.any():
            w, h = self._each(w), self._each(h)
            self.steps.append(LoggedMirror(which=which, w=w, h=h, vertical=vertical))

    def clean(self, min_size: float, min_area: float, w: Length, h: Length) -> None:
        """Log that boxes are sanitised."""
        w, h = self._each(w), self._each(h)
        self.steps.append(LoggedSanitize(min_size=min_size, min_area=min_area, w=w, h=h))

    def _each(self, length: Length) -> Array:
        return np.broadcast_to(np.asarray(length, np.int64), (self._n,))


class MaskLines(NamedTuple):
    """The source of each row, or each column, of the resulting masks.

    Attributes:
        source: int64 (n, length): row or column of the source.
        step: int64 (n, length): index of the step that padded it, or -1 if it is from the source.
    """

    source: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]


def mask_lines(steps: list[LogEntry], n: int, length: int, *, rows: bool) -> MaskLines:
    """The ``length`` rows (if not ``rows``: columns) of n masks. See Note [Masks]."""
    source = np.broadcast_to(np.arange(length, dtype=np.int64), (n, length))
    step = np.full((n, length), _PADDING, np.int64)
    for number in range(len(steps) - 1, -1, -1):
        entry = steps[number]
        if isinstance(entry, LoggedMirror) and entry.vertical == rows:
            side = (entry.h if rows else entry.w)[:, None]
            source = np.where(entry.which[:, None], side - 1 - source, source)
        elif isinstance(entry, LoggedResize):
            before, after = (entry.before_h, entry.h) if rows else (entry.before_w, entry.w)
            # torch's nearest_neighbor_compute_source_index, in float32 as there
            scale = before.astype(np.float32) / after.astype(np.float32)
            nearest = np.floor(source.astype(np.float32) * scale[:, None]).astype(np.int64)
            source = np.minimum(nearest, before[:, None] - 1)
        elif isinstance(entry, LoggedCrop):
            start, before = (entry.y, entry.before_h) if rows else (entry.x, entry.before_w)
            source = source + start[:, None]
            outside = (source < 0) | (source >= before[:, None])
            if outside.any():
                step = np.where(outside & (step < 0), number, step)
                source = np.clip(source, 0, before[:, None] - 1)
    return MaskLines(source, step)


def move_mask(
    source: npt.NDArray[np.generic],
    i: int,
    rows: MaskLines,
    columns: MaskLines,
    steps: list[LogEntry],
    out: npt.NDArray[np.generic],
) -> None:
    """Transform mask ``i`` of a batch from ``source`` (h, w) into ``out`` (out_h, out_w)."""
    np.take(source[rows.source[i]], columns.source[i], axis=1, out=out, mode="clip")
    padded = np.concatenate([rows.step[i], columns.step[i]])
    for number in np.unique(padded[padded >= 0]).tolist():  # in order: later padding covers earlier
        entry = steps[number]
        assert isinstance(entry, LoggedCrop)
        out[rows.step[i] == number] = entry.fill
        out[:, columns.step[i] == number] = entry.fill
