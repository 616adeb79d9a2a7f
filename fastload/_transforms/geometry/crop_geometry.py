"""The normal form of geometry: one box, one resize, one window, one flip for each sample.

Note [Composing]
    ``Frame`` is the state of the images after some operations, in that normal form. A crop moves
    the window. A resize first turns the window into the box, so there can be only one resize, and
    the window must lie inside the image: resampling padding is not in the form. Nor is a flip
    before a resize, because Pillow's weights are symmetric only up to rounding. A crop that may
    reach outside requires that nothing was cropped since the resize: otherwise pixels that were
    already cut off would reappear where torchvision has padding. Operations that do not fit raise
    ``Unfit``. Whether they fit does not depend on the images, so an empty batch is enough to check.

    A number that all samples have in common is an int, and the frame computes with it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

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
        position: of the sample in the batch that was drawn.
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
        refused = Refused(self.message, path=path, record=record, offset=offset)
        refused.position = position
        return refused


class Unfit(UsageError):
    """Operations that cannot be expressed as one box, one resize, one window and one flip."""


class Geometry(NamedTuple):
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

    @classmethod
    def of(cls, frames: npt.NDArray[np.int32], out_w: int, out_h: int) -> Geometry:
        """That of samples of this size, and of ``Frame.rows``."""
        box, resized, window = frames[:, :4].copy(), frames[:, 4:6].copy(), frames[:, 6:8].copy()
        return cls(box, resized, window, frames[:, 8].astype(np.uint8), out_h, out_w)

    def part(self, which: slice | npt.NDArray[np.int64]) -> Geometry:
        """Of some of the samples."""
        box, resized = self.box[which], self.resized[which]
        return Geometry(box, resized, self.window[which], self.flip[which], self.out_h, self.out_w)


def scales(
    box: npt.NDArray[np.int32], resized: npt.NDArray[np.int32], filter: int
) -> npt.NDArray[np.int64]:
    """(n,): the factor 8, 4, 2 or 1 by which ``decode="scaled"`` decodes each image smaller.

    libjpeg computes a smaller image from the low frequencies of each 8 x 8 block (its "scaled
    IDCT") in a fraction of the time. This is the largest factor at which ``box`` is still twice as
    wide and high as ``resized``. It is 1 with the nearest ``filter``, which picks single pixels,
    and with torch's integer filters, whose boxes have no fractions of a pixel. The same as
    ``scale_of`` in image/placement.h; docs/performance.md has the pixel difference and the speed.
    """
    room = np.floor_divide(box[:, 2:], 2 * resized.astype(np.int64)).min(axis=1)
    factors = np.select([room >= 8, room >= 4, room >= 2], [8, 4, 2], 1)
    return factors if 1 <= filter <= 5 else np.ones_like(factors)


class Frame:
    """The state of a batch's images in normal form. See Note [Composing].

    They are ``w`` x ``h`` pixels large at the start; ``indices`` names each in errors. ``log``
    records each step, for masks and boxes.
    """

    def __init__(
        self, w: Length, h: Length, indices: Sequence[int] | Array, log: GeometryLog | None = None
    ) -> None:
        self.log = log
        self.indices = indices
        self.x: Length = 0  # the box in the source
        self.y: Length = 0
        self.box_w = self.resized_w = self.w = w
        self.box_h = self.resized_h = self.h = h  # w, h: of the window, the image's current size
        self.left: Length = 0  # the window in the resized box
        self.top: Length = 0
        self.flipped: Array | bool = False  # bool (n,), or all of them
        # lower bounds of width and height for any source
        self.least = (w if isinstance(w, int) else 1, h if isinstance(h, int) else 1)
        self.resampled = self.cut = self.outside = False

    @classmethod
    def of(
        cls, sizes: Array, indices: Sequence[int] | Array, log: GeometryLog | None = None
    ) -> Frame:
        """The images of these sizes, (n, 2)."""
        w, h = np.asarray(sizes, np.int64).T
        return cls(w, h, indices, log)

    @property
    def untouched(self) -> bool:
        """Whether it is all of the images, as they are, or mirrored."""
        return not (self.cut or self.outside or self.resampled)

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
        x = self.unmirrored(x, w)
        self.left, self.top = self.left + x, self.top + y
        self.w, self.h = w, h
        self.least = (w if isinstance(w, int) else 1, h if isinstance(h, int) else 1)
        self.cut = True

    def unmirrored(self, x: Length, w: Length) -> Length:
        """Where a part of width ``w`` begins, from ``x`` on, without the flip."""
        if self.flipped is False:
            return x
        mirrored = self.w - x - w
        return mirrored if self.flipped is True else np.where(self.flipped, mirrored, x)

    def resize(self, w: Length, h: Length, *, least: int = 1) -> None:
        """Resize to w x h, which are at least ``least`` for any source."""
        if self.flipped is not False:
            raise Unfit("resizes after a flip; put the flip last, which has the same distribution")
        self._settle("resizes")
        w, h = (side if np.ndim(side) else int(side) for side in (w, h))
        if self.log is not None:
            self.log.resize(w, h, (self.w, self.h))
        self.resized_w = self.w = w
        self.resized_h = self.h = h
        self.least = (w if isinstance(w, int) else least, h if isinstance(h, int) else least)
        self.resampled = True

    def flip(self, which: Array | Literal[True] = True) -> None:
        """Flip the samples where ``which`` is true, left to right."""
        if self.log is not None:
            self.log.mirror(np.asarray(which), self.w, self.h)
        self.flipped = self.flipped ^ which

    def _settle(self, action: str) -> None:
        """Turn the window into the box, so that the resized box is the whole image again."""
        if self.resampled and (self.cut or action == "resizes"):
            raise Unfit(f"{action} an image that was already resized" + " and cropped" * self.cut)
        if self.outside:
            raise Unfit(f"{action} an image that may be padded already")
        if self.cut:
            self.narrow()

    def narrow(self) -> None:
        """Make the window the box. Nothing was resized or padded."""
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
        position = int(np.argmax(np.broadcast_to(wrong, (n,)))) if n else 0
        w, h = (int(side if isinstance(side, int) else side[position]) for side in (self.w, self.h))
        message = message.format(w=w, h=h)
        if not n:
            raise Unfit(message)
        raise Refused(message).of(position, record=int(self.indices[position]))

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
                other = int(others.argmax())
                raise DataError(
                    f"expected images of one size in a batch, got {int(w[other])}x{int(h[other])} "
                    f"here and {size[1]}x{size[0]} in record {int(self.indices[0])}; end the "
                    "transforms with a crop or a resize to a fixed (h, w), or use engine='torch' "
                    f"and a collate_fn for images of several sizes{type_next(FIXED_SIZE)}",
                    record=int(self.indices[other]),
                )
        return Geometry.of(self.rows(), size[1], size[0])

    def rows(self) -> npt.NDArray[np.int32]:
        """int32 (n, 11): box (x, y, w, h), resized (w, h), window (x, y), flip, size (w, h)."""
        columns = (
            self.x, self.y, self.box_w, self.box_h, self.resized_w, self.resized_h,
            self.left, self.top, self.flipped, self.w, self.h,
        )  # fmt: skip
        table = np.empty((len(self.indices), len(columns)), np.int32)
        for k, column in enumerate(columns):
            table[:, k] = column
        return table

    def sides(self) -> tuple[Array, Array]:
        """Current width and height of the images, int64 (n,)."""
        n = len(self.indices)
        w, h = (np.broadcast_to(np.asarray(side, np.int64), (n,)) for side in (self.w, self.h))
        return w, h
