"""``decode="scaled"``: JPEGs decoded at 1/2, 1/4 or 1/8 of their size where that is enough.

libjpeg makes a smaller image out of the low frequencies of each 8 x 8 block (its "scaled IDCT"),
in a fraction of the time. The resize then has at least twice the pixels it needs to go on with, and
its box is the same part of the image, to fractions of a pixel. docs/performance.md has the
difference and the gain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import DataError, UsageError
from ..storage.base import RAW
from . import sample_params
from .views import Views

if TYPE_CHECKING:
    import numpy.typing as npt

    from .._sources.source import Source
    from .plan import Plan

_LOOKED_AT = 64  # images whose headers explain() reads
_WORTH_A_WORD = 0.25  # share of the samples from which on it says so

GAIN = "1.3 times as fast for files of 12 megapixels to 224x224, 1.9 times for DCT records"
"""What was measured, see docs/performance.md."""


def scales(
    box: npt.NDArray[np.int32], resized: npt.NDArray[np.int32], filter: int
) -> npt.NDArray[np.int64]:
    """(n,): 8, 4, 2 or 1, the part of its size that a JPEG is decoded at, if it is one.

    The smallest part at which the box is still twice as wide and as high as what it is resized to.
    1 with the nearest filter, which picks pixels, and with torch's, which know no fractions of a
    pixel. image.h's ``scale_of``.

    Args:
        box, resized: as in ``Geometry``.
        filter: of the resize, as resample.h numbers them.
    """
    room = np.floor_divide(box[:, 2:], 2 * resized.astype(np.int64)).min(axis=1)
    found = np.select([room >= 8, room >= 4, room >= 2], [8, 4, 2], 1)
    return found if 1 <= filter <= 5 else np.ones_like(found)


def explain(source: Source) -> list[str]:
    """Lines for ``FastLoader.explain()``: what is decoded smaller, or could be."""
    share = _share(source)
    if any(plan.scaled and not source.tensors for plan in _plans(source)):
        known = "" if share is None else f", about {share:.0%} of the samples"
        return [f"decode: scaled, to 1/2, 1/4 or 1/8 where a JPEG is large enough{known}"]
    if share is None or share < _WORTH_A_WORD:
        return []
    return [
        f"faster: decode='scaled' would decode about {share:.0%} of the samples at half their size "
        f"or less: {GAIN}; nearly the same pixels (docs/performance.md)"
    ]


def _share(source: Source) -> float | None:
    """The share of samples that "scaled" decodes smaller; None where that is not known."""
    if source.tensors:
        return None
    records = np.unique(np.linspace(0, len(source) - 1, _LOOKED_AT).astype(np.int64))
    records = source.lookup(records) if len(source) else records[:0]
    records = records[source.store.kinds(records) != RAW]
    sizes = source.store.sizes(records)
    known = sizes.min(axis=1, initial=1) > 0
    if not known.any():
        return None
    shares = []
    for plan in _plans(source):
        drawn = {"seed": 0, "epoch": 0, "indices": records[known]}
        try:
            geometry, _ = sample_params.draw(plan, sizes[known], **drawn)
        except (DataError, UsageError):  # the loop will say so
            return None
        shares.append((scales(geometry.box, geometry.resized, plan.filter) > 1).mean())
    return float(np.mean(shares))


def _plans(source: Source) -> tuple[Plan, ...]:
    return source.plan.each if isinstance(source.plan, Views) else (source.plan,)
