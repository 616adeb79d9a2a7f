"""The ``resize`` argument of ``pack``: new sizes of images, with torchvision's arithmetic."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    from PIL import Image

_MAX_SIDE = 65535


@dataclasses.dataclass(frozen=True)
class Resize:
    """A target size in pixels.

    Attributes:
        mode: "shorter": the shorter side becomes ``side``, as torchvision's ``Resize(side)`` does;
            smaller images are enlarged too. "longest": the longer side becomes ``side`` if it is
            longer; nothing is enlarged. "crop": as "shorter", then the square in the middle, as
            torchvision's ``CenterCrop(side)``. "exact": width and height become ``side`` and
            ``height``, whatever the shape of the image.
        height: for "exact"; else 0.
    """

    side: int
    mode: str = "shorter"
    height: int = 0

    @classmethod
    def parse(cls, text: str | int) -> Resize:
        """From ``256``, ``"256"``, ``"longest:256"``, ``"crop:224"`` or ``"320x240"``."""
        mode, colon, rest = str(text).rpartition(":")
        sides = rest.split("x")
        good = all(s.isascii() and s.isdigit() and 1 <= int(s) <= _MAX_SIDE for s in sides)
        if good and len(sides) == 1 and mode in ("longest", "crop") and colon:
            return cls(int(rest), mode)
        if good and not colon and len(sides) <= 2:
            return cls(int(rest)) if len(sides) == 1 else cls(int(sides[0]), "exact", int(sides[1]))
        raise UsageError(
            f"resize: expected a side of 1 to {_MAX_SIDE} pixels, such as 256, longest:256 or "
            f"crop:224, or WIDTHxHEIGHT, such as 320x240; got {text!r}"
        )

    def __str__(self) -> str:
        if self.mode == "exact":
            return f"{self.side}x{self.height}"
        return str(self.side) if self.mode == "shorter" else f"{self.mode}:{self.side}"

    def target(self, width: int, height: int) -> tuple[int, int]:
        """The new (width, height) of an image."""
        if self.mode == "exact":
            return self.side, self.height
        return (self.side, self.side) if self.mode == "crop" else self._scaled(width, height)

    def _scaled(self, width: int, height: int) -> tuple[int, int]:
        """The other side is rounded down, as by torchvision."""
        short, long = sorted((width, height))
        if self.mode == "longest":
            if long <= self.side:
                return width, height
            new_short, new_long = max(1, int(self.side * short / long)), self.side
        else:
            new_short, new_long = self.side, int(self.side * long / short)
        return (new_short, new_long) if width <= height else (new_long, new_short)

    def apply(self, image: Image.Image) -> Image.Image:
        """``image`` in its new size, by Pillow's antialiased bilinear filter."""
        from PIL import Image

        exact = self.mode == "exact"
        size = (self.side, self.height) if exact else self._scaled(*image.size)
        if size != image.size:
            image = image.resize(size, Image.Resampling.BILINEAR)
        if self.mode != "crop":
            return image
        left, top = (round((side - self.side) / 2.0) for side in image.size)
        return image.crop((left, top, left + self.side, top + self.side))
