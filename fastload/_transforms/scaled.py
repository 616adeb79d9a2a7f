"""``decode="scaled"``: JPEGs decoded at 1/2, 1/4 or 1/8 of their size where that is enough.

libjpeg makes a smaller image out of the low frequencies of each 8 x 8 block (its "scaled IDCT"),
in a fraction of the time. The resize then has at least twice the pixels it needs to go on with, and
its box is the same part of the image, to fractions of a pixel. docs/performance.md has the
difference and the gain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


GAIN = "1.3 times as fast for files of 12 megapixels to 224x224, 1.9 times for DCT records"
"""What was measured, see docs/performance.md."""


def scales(
    box: npt.NDArray[np.int32], resized: npt.NDArray[np.int32], filter: int
) -> npt.NDArray[np.int64]:
    """(n,): 8, 4, 2 or 1, the part of its size that a JPEG is decoded at, if it is one.

    The smallest part at which the box is still twice as wide and as high as what it is resized to.
    1 with the nearest filter, which picks pixels, and with torch's, which know no fractions of a
    pixel. image/placement.h's ``scale_of``.

    Args:
        box, resized: as in ``Geometry``.
        filter: of the resize, as resample/resample.h numbers them.
    """
    room = np.floor_divide(box[:, 2:], 2 * resized.astype(np.int64)).min(axis=1)
    found = np.select([room >= 8, room >= 4, room >= 2], [8, 4, 2], 1)
    return found if 1 <= filter <= 5 else np.ones_like(found)
