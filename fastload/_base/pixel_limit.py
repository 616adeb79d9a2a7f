"""Pillow's limit of pixels, ``PIL.Image.MAX_IMAGE_PIXELS``: every way to decode keeps to it.

Pillow warns when it opens an image with more pixels, and refuses one with more than twice as many
as a decompression bomb. With None there is no limit. A user may set it at any time. Whoever decodes
without Pillow asks here, and leaves what is above the limit to Pillow, which warns or refuses.
"""

from __future__ import annotations

import warnings

UNLIMITED = 2**63 - 1

REFUSED = (
    "refused as a decompression bomb: {error} Set PIL.Image.MAX_IMAGE_PIXELS higher if the image "
    "is genuine"
)
"""The message of the error about an image that Pillow, or ``check``, refuses."""


def most_pixels() -> int:
    """The most pixels of an image that Pillow opens without a warning; UNLIMITED: any."""
    import PIL.Image

    limit = PIL.Image.MAX_IMAGE_PIXELS
    return UNLIMITED if limit is None else int(min(limit, UNLIMITED))


def set_most_pixels(most: int) -> None:
    """Give Pillow the limit that ``most_pixels`` was in another process."""
    import PIL.Image

    PIL.Image.MAX_IMAGE_PIXELS = None if most == UNLIMITED else most


def is_within(width: int, height: int) -> bool:
    """Whether Pillow opens an image of this size without a warning."""
    return width * height <= most_pixels()


def check(width: int, height: int) -> None:
    """Warn or refuse as Pillow does, of an image that Pillow does not open.

    Raises:
        PIL.Image.DecompressionBombError: it has more than twice as many pixels as the limit.
    """
    import PIL.Image

    pixels, most = width * height, most_pixels()
    if pixels <= most:
        return
    if pixels > 2 * most:
        raise PIL.Image.DecompressionBombError(
            f"{width} x {height} pixels are more than twice the limit of {most}."
        )
    warnings.warn(
        f"{width} x {height} pixels are more than the limit of {most}: this could be a "
        "decompression bomb",
        PIL.Image.DecompressionBombWarning,
        stacklevel=2,
    )
