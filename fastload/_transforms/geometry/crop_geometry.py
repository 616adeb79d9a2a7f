"""The normal form of geometry: one box, one resize, one window, one flip for each sample.

Note [Composing]
    ``Frame`` is the state of the images after some operations, in that normal form. A crop moves
    the window. A resize first turns the window into the box, so there can be only one resize, and
    the window must lie inside the image: resampling padding is not in the form. Nor is a flip
    before a resize, because Pillow's weights are symmetric only up to rounding. A crop that may
    reach outside requires that nothing was cropped since the resize: otherwise pixels that were
    already cut off would reappear where torchvision has padding. Operations that do not fit raise
    ``Unfit``. Whether they fit does not depend on the images, so an empty batch is enough to check.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._base.pixel_limit import UNLIMITED, most_pixels
from ...errors import FIXED_SIZE, DataError, UsageError, type_next

if TYPE_CHECKING:
    import numpy.typing as npt

    from .geometry_log import GeometryLog

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]  # NDArray, whose import takes 20 ms
_MOST_PIXELS = 1 << 28

Length = int | Array
"""A width or height: one int for all samples, or an int64 array (n,)."""


def most_made() -> int:
    """The most pixels of an image whose size depends on its source.

    A resized thin strip could be enormous. Whoever allows Pillow larger images may have them.
    """
    return max(_MOST_PIXELS, min(2 * most_pixels(), UNLIMITED))


class Refused(DataError):
    """A sample for which the operations have no result, as in torchvision.

    Attributes:
        position: position of the sample in the batch that was drawn.
    """

    position: int = 0

    def of(
        self,
        position: int,
        *,
        path: str | None = None,
        record: int | None = None,
        offset: int | None = None,
    ) -> Refused:
        """The same error for the sample at ``position``, with its place."""
        found = Refused(self.message, path=path, record=record, offset=offset)
        found.position = position
        return found


class Unfit(UsageError):
    """Operations that cannot be expressed as one box, one resize, one window and one flip."""


@dataclasses.dataclass(frozen=True)
class Geometry:
    """The normal form of n samples, in pixels, x before y.

    Attributes:
        box: int32 (n, 4): x, y, width, height of the box, which lies inside the source image.
        resized: int32 (n, 2): width and height to which the box is resized.
        window: int32 (n, 2): x and y of the window in the resized box; it may reach outside.
        flip: uint8 (n,): 1 if the window is mirrored left to right.
        out_h, out_w: size of the window, the same for the whole batch.
    """

    box: npt.NDArray[np.int32]
    resized: npt.NDArray[np.int32]
    window: npt.NDArray[np.int32]
    flip: npt.NDArray[np.uint8]
    out_h: int
    out_w: int


class Frame:
    """The state of a batch's images in normal form. See Note [Composing]."""

    def __init__(
        self,
        sizes: Array,
        indices: Array,
        fixed: tuple[int, int] | None = None,
        log: GeometryLog | None = None,
    ) -> None:
        size = np.asarray(sizes, np.int64)
        self.log = log  # records each step, for masks and boxes
        self.indices = indices
        self.x: Length = 0  # the box in the source
        self.y: Length = 0
        self.box_w: Length = size[:, 0]
        self.box_h: Length = size[:, 1]
        if fixed is not None:  # (h, w): every image has this size
            self.box_h, self.box_w = fixed
        self.resized_w: Length = self.box_w
        self.resized_h: Length = self.box_h
        self.left: Length = 0  # the window in the resized box
        self.top: Length = 0
        self.w: Length = self.box_w  # size of the window: the image's current size
        self.h: Length = self.box_h
        self.flipped: Array | None = None  # bool (n,)
        # lower bounds of width and height for any source
        self.least = (1, 1) if fixed is None else (fixed[1], fixed[0])
        self.resampled = self.cut = self.outside = False

    def crop(
        self,
        x: Length,
        y: Length,
        w: Length,
        h: Length,
        *,
        inside: bool,
        centred: bool = False,
    ) -> None:
        """Keep w x h pixels from (x, y).

        ``inside``: they are known to lie inside the image. ``centred``: it is a central crop.
        """
        if self.log is not None:
            self.log.crop(x, y, w, h, (self.w, self.h), centred=centred)
        if not inside:
            self._settle("pads")
            self.outside = True
        if self.flipped is not None:
            x = np.where(self.flipped, self.w - x - w, x)
        self.left, self.top = self.left + x, self.top + y
        self.w, self.h = w, h
        self.least = (w if isinstance(w, int) else 1, h if isinstance(h, int) else 1)
        self.cut = True

    def resize(self, w: Length, h: Length, *, least: int = 1) -> None:
        """Resize to w x h, which are at least ``least`` for any source."""
        if self.flipped is not None:
            raise Unfit("resizes after a flip; put the flip last, which has the same distribution")
        self._settle("resizes")
        w, h = (side if np.ndim(side) else int(side) for side in (w, h))
        if self.log is not None:
            self.log.resize(w, h, (self.w, self.h))
        self.resized_w = self.w = w
        self.resized_h = self.h = h
        self.least = (w if isinstance(w, int) else least, h if isinstance(h, int) else least)
        self.resampled = True

    def flip(self, which: Array) -> None:
        """Flip the samples where ``which`` is true, left to right."""
        if self.log is not None:
            self.log.mirror(which, self.w, self.h)
        self.flipped = which if self.flipped is None else self.flipped ^ which

    def _settle(self, what: str) -> None:
        """Turn the window into the box, so that the resized box is the whole image again."""
        if self.resampled and (self.cut or what == "resizes"):
            raise Unfit(f"{what} an image that was already resized" + " and cropped" * self.cut)
        if self.outside:
            raise Unfit(f"{what} an image that may be padded already")
        if self.cut:
            self.x, self.y = self.x + self.left, self.y + self.top
            self.box_w = self.resized_w = self.w
            self.box_h = self.resized_h = self.h
            self.left = self.top = 0
            self.cut = False

    def refuse(self, wrong: Array | np.bool_ | bool, message: str) -> None:
        """Raise Refused for the first sample where ``wrong``; {w} and {h} give its current size."""
        if not np.any(wrong):
            return
        n = len(self.indices)
        at = int(np.argmax(np.broadcast_to(wrong, (n,)))) if n else 0
        w, h = (int(side if isinstance(side, int) else side[at]) for side in (self.w, self.h))
        message = message.format(w=w, h=h)
        if not n:
            raise Unfit(message)
        raise Refused(message).of(at, record=int(self.indices[at]))

    def refuse_large(self) -> None:
        """Raise Refused for an image whose current size has too many pixels."""
        if self.size() is None:
            w, h = self.sides()
            self.refuse(
                w * h > most_made(),
                f"expected an image of at most {most_made()} pixels, got {{w}}x{{h}}; end the "
                "transforms with a crop, or leave the image out",
            )

    def size(self) -> tuple[int, int] | None:
        """(h, w) of the images if it is the same for any source, else None."""
        return (self.h, self.w) if isinstance(self.h, int) and isinstance(self.w, int) else None

    def finish(self) -> Geometry:
        """The normal form as int32 arrays. Raises DataError if the sizes of the samples differ."""
        n = len(self.indices)
        size = self.size()
        self.refuse_large()
        if size is None:
            w, h = (np.broadcast_to(side, (n,)) for side in (self.w, self.h))
            if n == 0:
                raise UsageError("expected at least one sample, got none: no output size is known")
            size = int(h[0]), int(w[0])
            others = (w != w[0]) | (h != h[0])
            if others.any():  # not Refused: no single sample is at fault, so none may be skipped
                at = int(others.argmax())
                raise DataError(
                    f"expected images of one size in a batch, got {int(w[at])}x{int(h[at])} here "
                    f"and {size[1]}x{size[0]} in record {int(self.indices[0])}; end the transforms "
                    "with a crop or a resize to a fixed (h, w), or use engine='torch' and a "
                    f"collate_fn for images of several sizes{type_next(FIXED_SIZE)}",
                    record=int(self.indices[at]),
                )
        box, resized, window, flip, _ = self.columns()
        return Geometry(box, resized, window, np.ascontiguousarray(flip[:, 0], np.uint8), *size)

    def columns(self) -> tuple[npt.NDArray[np.int32], ...]:
        """int32 (n, ...): box (4), resized (2), window (2), flip (1), and current size (2)."""
        box, resized, window, flip, size = (
            np.zeros((len(self.indices), width), np.int32) for width in (4, 2, 2, 1, 2)
        )
        box[:, 0], box[:, 1], box[:, 2], box[:, 3] = self.x, self.y, self.box_w, self.box_h
        resized[:, 0], resized[:, 1] = self.resized_w, self.resized_h
        window[:, 0], window[:, 1] = self.left, self.top
        if self.flipped is not None:
            flip[:, 0] = self.flipped
        size[:, 0], size[:, 1] = self.w, self.h
        return box, resized, window, flip, size

    def sides(self) -> tuple[Array, Array]:
        """Current width and height of the images, int64 (n,)."""
        n = len(self.indices)
        w, h = (np.broadcast_to(np.asarray(side, np.int64), (n,)) for side in (self.w, self.h))
        return w, h
