"""``split="val=0.1"``: which records go into which store, by a hash of their keys."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence

import numpy as np

from ..errors import UsageError


def parse(split: str) -> dict[str, float]:
    """Names and shares out of ``"val=0.1"`` or ``"val=0.1,test=0.05"``.

    Raises:
        UsageError: not of this form, or the shares leave nothing for the training part.
    """
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
    """Part of each key: int64 (n,), 0 for what no share takes, else 1 + position of the share.

    A key's part depends on the key and the shares only: adding or removing other images moves none.
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
    """The name of a part that the source has already: ``split`` without a share."""
    return split if split is not None and re.fullmatch(r"[\w.-]+", split) else None


def paths(destination: str, split: str | None) -> list[str]:
    """Where the parts of ``split`` go; without one, ``destination``."""
    names = [] if split is None else parse(split)
    return [destination, *(path_of(destination, name) for name in names)]


def path_of(destination: str, name: str) -> str:
    """Where the part ``name`` goes: ``imgs.lmdb`` -> ``imgs-val.lmdb``."""
    stem, suffix = os.path.splitext(destination)
    return f"{stem}-{name}{suffix}"
