"""What a cache folder holds, for ``fastload cache``."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os

from .._durable import remove
from .._read import read_regular
from .area import DiskArea
from .blocks import recount
from .cache import cache_for, let_go
from .options import RemoteOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class CachedObject:
    """An object in the cache: URL without credentials, size, and what it takes on the disk."""

    url: str
    nbytes: int
    cached_nbytes: int


def contents(folder: str) -> list[CachedObject]:
    """The objects in the cache ``folder``, by URL; none if there is no such folder."""
    objects = os.path.join(folder, "objects")
    cached = []
    for name in os.listdir(objects) if os.path.isdir(objects) else ():
        place = os.path.join(objects, name)
        # It is being made or deleted, or it is something else.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            about = json.loads(read_regular(os.path.join(place, "about.json"), 1 << 16))
            taken = sum(entry.stat().st_blocks * 512 for entry in os.scandir(place))
            cached.append(
                CachedObject(
                    url=str(about["url"]), nbytes=int(about["nbytes"]), cached_nbytes=taken
                )
            )
    return sorted(cached, key=lambda one: one.url)


def clear(folder: str) -> tuple[int, int]:
    """Delete the objects that no running process uses: how many were deleted, how many kept."""
    if not os.path.isdir(os.path.join(folder, "objects")):
        return 0, 0
    cache = cache_for(RemoteOptions(cache_dir=folder))
    area = cache.area
    assert isinstance(area, DiskArea), "this cache is on a disk"
    try:
        with area.mutex():
            unused = area.others()
            for name in unused:
                with contextlib.suppress(OSError):  # it counts as kept
                    area.drop(name)
            recount(area)
            remaining = area.names()
            if not remaining:
                with contextlib.suppress(OSError):
                    remove(os.path.join(folder, "mirrors"))
    finally:
        let_go(cache)
    return len(unused) - sum(name in unused for name in remaining), len(remaining)
