"""``split="val=0.1"``: assigning records to stores by a hash of their keys."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence

import numpy as np

from ..errors import UsageError


def parse(split: str) -> dict[str, float]:
    """Names and shares from ``"val=0.1"`` or ``"val=0.1,test=0.05"``."""
    parts: dict[str, float] = {}
    for item in split.split(","):
        match = re.fullmatch(r"([A-Za-z0-9_]+)=(0?\.\d+)", item.strip())
        if match is None or match[1] in parts:
            raise UsageError(f"split: expected NAME=SHARE, such as val=0.1, got {split!r}")
        parts[match[1]] = float(match[2])
    if not 0 < sum(parts.values()) < 1:
        raise UsageError(f"split: expected shares above 0 and together below 1, got {split!r}")
    return parts


def assign(keys: Sequence[str], shares: Sequence[float]) -> np.ndarray:
    """The part of each key: int64 (n,), 0 for the rest, else 1 + position of the share.

    It depends only on the key and the shares, so adding or removing images moves no others.
    """
    points = np.array(
        [
            int.from_bytes(hashlib.blake2b(os.fsencode(key), digest_size=8).digest(), "little")
            for key in keys
        ],
        np.uint64,
    )
    bounds = np.cumsum(shares)
    position = np.searchsorted(bounds, points.astype(np.float64) / 2.0**64, side="right")
    return np.where(position < len(bounds), position + 1, 0)


def named(split: str | None) -> str | None:
    """The name of an existing part of the source: ``split`` without a share; else None."""
    if split is not None and not isinstance(split, str):
        raise UsageError(f"split: expected NAME=SHARE, such as 'val=0.1', got {split!r}")
    return split if split is not None and re.fullmatch(r"[\w.-]+", split) else None


def paths(destination: str, split: str | None) -> list[str]:
    """The paths of the parts: ``imgs.lmdb``, ``imgs-val.lmdb``; without a split, the first."""
    stem, suffix = os.path.splitext(destination)
    names = [] if split is None else parse(split)
    return [destination, *(f"{stem}-{name}{suffix}" for name in names)]
