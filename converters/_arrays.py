"""Requirements of formats that store images as one array: raw pixels of one size."""

from __future__ import annotations

import numpy as np

from .._printable import printable
from ..errors import UsageError
from ..hints import Encoding
from ..storage import find_by_suffix, known_formats
from ._resize import Resize
from ._source import PackSource


def encoding_for(path: str, encode: Encoding | None, default: Encoding) -> Encoding:
    """The encoding of a store at ``path``: ``encode``, or what its format holds, or ``default``."""
    form = find_by_suffix(path)
    if form is None or form.pixels != "only":
        return default if encode is None else encode
    if encode not in (None, "raw"):
        others = [one for one in known_formats() if one.writer is not None and one.pixels != "only"]
        *suffixes, last = (one.suffixes[0] for one in others)
        raise UsageError(
            f"{form.suffixes[0]} stores hold raw pixels only, got encode={encode!r}: give "
            f"encode='raw', or choose {', '.join(suffixes)} or {last}"
        )
    return "raw"


def check_sizes(
    path: str, source: PackSource, encoding: str, resize: Resize | None, *, exif: bool
) -> None:
    """Check the sizes of all images before anything is written, if the format needs one size.

    Those of a source that does not know them are checked while packing. ``exif``: the orientation
    is applied, which may swap width and height.
    """
    form = find_by_suffix(path)
    if form is None or form.pixels == "any" or encoding != "raw":
        return
    if resize is not None and resize.mode in ("exact", "crop"):
        return
    sizes = source.sizes()
    if sizes is None:
        return
    every = np.arange(len(source), dtype=np.int64)
    sized = every[(sizes > 0).all(axis=1)]  # files that are not images are found when they are read
    sides = np.sort(sizes[sized], axis=1) if exif else sizes[sized]
    different, first = np.unique(sides, axis=0, return_index=True)
    targets: dict[tuple[int, int], int] = {}
    for (width, height), at in zip(different.tolist(), sized[first].tolist(), strict=True):
        size = (width, height) if resize is None else resize.target(width, height)
        targets.setdefault(size, at)
        if len(targets) > 1:
            (mine, one), (other, two) = targets.items()
            names = printable(source.keys[one]), printable(source.keys[two])
            raise UsageError(
                f"{form.suffixes[0]} stores hold raw pixels of one size only, found "
                f"{mine[0]} x {mine[1]} ({names[0]}) and {other[0]} x {other[1]} ({names[1]}): "
                "give resize='crop:224' or resize='224x224', or choose .lmdb, which holds any sizes"
            )
