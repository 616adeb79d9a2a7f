"""Lines for ``FastLoader.explain()`` about ``decode="scaled"``: its effect, used or not."""

from __future__ import annotations

import numpy as np

from .._sources.source import Source
from .._transforms import sample_params
from .._transforms.scaled import scales
from ..errors import DataError, UsageError
from ..storage.base import RAW

_LOOKED_AT = 64  # number of images whose headers explain() reads
_WORTH_MENTIONING = 0.25  # share of the samples from which it is suggested


def explain(source: Source) -> list[str]:
    """Lines for ``FastLoader.explain()``: how many images are decoded smaller, or could be."""
    share = _share(source)
    if any(plan.scaled and not source.tensors for plan in source.plan.each):
        how_many = "" if share is None else f", about {share:.0%} of the samples"
        return [f"decode: scaled, to 1/2, 1/4 or 1/8 where a JPEG is large enough{how_many}"]
    if share is None or share < _WORTH_MENTIONING:
        return []
    return [
        f"faster: decode='scaled' would decode about {share:.0%} of the samples at half their size "
        "or less; the pixels differ a little (docs/performance.md has the gain)"
    ]


def _share(source: Source) -> float | None:
    """The share of samples that "scaled" decodes smaller; None if it is not known."""
    if source.tensors:
        return None
    records = np.unique(np.linspace(0, len(source) - 1, _LOOKED_AT).astype(np.int64))
    records = source.lookup(records) if len(source) else records[:0]
    records = records[source.store.kinds(records) != RAW]
    sizes = source.store.sizes(records)
    sized = sizes.min(axis=1, initial=1) > 0
    if not sized.any():
        return None
    shares = []
    for plan in source.plan.each:
        drawn = {"seed": 0, "epoch": 0, "indices": records[sized]}
        try:
            geometry, _ = sample_params.draw(plan, sizes[sized], **drawn)
        except (DataError, UsageError):  # raised again in the loop
            return None
        shares.append((scales(geometry.box, geometry.resized, plan.filter) > 1).mean())
    return float(np.mean(shares))
