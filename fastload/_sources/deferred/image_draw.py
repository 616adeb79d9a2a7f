"""DeferredDraw: what ``ImageDraw.Draw`` gives for a deferred image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import ImageColor
from PIL.ImageDraw import ImageDraw

if TYPE_CHECKING:
    from .image import DeferredImage

_FARTHEST = 1 << 24  # pixels from the image to a corner that is recorded


class DeferredDraw(ImageDraw):
    """Rectangles of one colour are recorded. For all else the image is made, and Pillow draws."""

    def __init__(self, image: DeferredImage) -> None:
        vars(self)["_deferred"] = image

    def _begin(self) -> None:
        """Become what Pillow would have given."""
        image = vars(self).pop("_deferred")
        object.__setattr__(self, "__class__", ImageDraw)
        ImageDraw.__init__(self, image)

    def __getattr__(self, name: str) -> Any:
        self._begin()
        return getattr(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        self._begin()
        setattr(self, name, value)

    def rectangle(self, xy: Any, fill: Any = None, outline: Any = None, width: int = 1) -> None:
        image = self._deferred
        color = ImageColor.getcolor(fill, image.mode) if isinstance(fill, str) else fill
        corners = None if color is None or outline is not None else _corners(xy)
        if corners is None or not image.draw_rectangle(corners, color):
            self._begin()
            self.rectangle(xy, fill, outline, width)


def _corners(xy: Any) -> tuple[int, int, int, int] | None:
    """Left, top, right and bottom as Pillow takes them; None: it may refuse them."""
    if type(xy) not in (list, tuple):
        return None
    if len(xy) == 2 and all(type(one) in (list, tuple) for one in xy):
        xy = [*xy[0], *xy[1]]
    if len(xy) != 4 or not all(isinstance(one, (int, float, np.number)) for one in xy):
        return None
    left, top, right, bottom = map(float, xy)
    if not -_FARTHEST < left <= right < _FARTHEST or not -_FARTHEST < top <= bottom < _FARTHEST:
        return None
    return int(left), int(top), int(right), int(bottom)
