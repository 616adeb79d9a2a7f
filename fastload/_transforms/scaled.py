"""``decode="scaled"``: decode JPEGs at 1/2, 1/4 or 1/8 of their size if that is large enough.

libjpeg computes a smaller image from the low frequencies of each 8 x 8 block (its "scaled IDCT") in
a fraction of the time. The resize still gets at least twice the pixels of its result, and its box
is the same part of the image, up to fractions of a pixel. docs/performance.md has the pixel
difference and the speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


def scales(
    box: npt.NDArray[np.int32], resized: npt.NDArray[np.int32], filter: int
) -> npt.NDArray[np.int64]:
    """(n,): the factor 8, 4, 2 or 1 by which each image may be decoded smaller, if it is a JPEG.

    The largest factor at which ``box`` is still twice as wide and high as ``resized``. 1 with
    the nearest ``filter``, which picks single pixels, and with torch's integer filters, whose
    boxes have no fractions of a pixel. The same as ``scale_of`` in image/placement.h.
    """
    room = np.floor_divide(box[:, 2:], 2 * resized.astype(np.int64)).min(axis=1)
    factors = np.select([room >= 8, room >= 4, room >= 2], [8, 4, 2], 1)
    return factors if 1 <= filter <= 5 else np.ones_like(factors)
