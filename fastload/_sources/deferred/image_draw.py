"""DeferredDraw: what ``ImageDraw.Draw`` gives for a deferred image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import ImageColor
from PIL.ImageDraw import ImageDraw

from .stand_in import StandIn

if TYPE_CHECKING:
    from .image import DeferredImage

_FARTHEST = 1 << 24  # pixels from the image to a corner that is recorded


class DeferredDraw(ImageDraw, metaclass=StandIn):
    """Rectangles of one colour are recorded. For all else the image is made, and Pillow draws."""

    stands_for = ImageDraw

    def __init__(self, image: DeferredImage) -> None:
        vars(self)["_deferred"] = image

    def begin(self) -> None:
        """Become what Pillow would have given."""
        image = vars(self).pop("_deferred", None)
        if image is not None:
            image._draw = None
            object.__setattr__(self, "__class__", ImageDraw)
            ImageDraw.__init__(self, image)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.begin()
        return getattr(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        self.begin()
        setattr(self, name, value)

    def __delattr__(self, name: str) -> None:
        self.begin()
        delattr(self, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.begin()
        return self.__reduce_ex__(protocol)

    def rectangle(self, xy: Any, fill: Any = None, outline: Any = None, width: int = 1) -> None:
        # A method that was bound before ``begin`` may be called after it.
        image: DeferredImage | None = vars(self).get("_deferred")
        color = fill
        if isinstance(fill, str) and image is not None:
            color = ImageColor.getcolor(fill, image.mode)
        corners = None if color is None or outline is not None else _corners(xy)
        if image is None or corners is None or not image.draw_rectangle(corners, color):
            DeferredDraw.begin(self)
            ImageDraw.rectangle(self, xy, fill, outline, width)


def _corners(xy: Any) -> tuple[int, int, int, int] | None:
    """Left, top, right and bottom as Pillow takes them; None: it may refuse them."""
    if type(xy) not in (list, tuple):
        return None
    if len(xy) == 2 and all(type(corner) in (list, tuple) for corner in xy):
        xy = [*xy[0], *xy[1]]
    if len(xy) != 4 or not all(
        isinstance(number, (int, float, np.integer, np.floating)) for number in xy
    ):
        return None
    left, top, right, bottom = map(float, xy)
    if not -_FARTHEST < left <= right < _FARTHEST or not -_FARTHEST < top <= bottom < _FARTHEST:
        return None
    return int(left), int(top), int(right), int(bottom)
