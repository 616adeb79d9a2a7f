"""The control groups whose limits apply to this process.

The limits of all parent groups apply too. The group of a Slurm job or a systemd unit is not at the
root. Source: cgroups(7), ``/proc/self/cgroup``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")

_Limit = TypeVar("_Limit", bound=float)


def least(
    of_version_2: Callable[[Path], _Limit | None],
    of_version_1: Callable[[Path], _Limit | None],
    controller: str,
) -> _Limit | None:
    """The least limit that a group's folder has; None: none has one.

    Args:
        of_version_2, of_version_1: read it from a folder; None: it has none.
        controller: of version 1, which has the limit.
    """
    limits = []
    for read, name in (of_version_2, ""), (of_version_1, controller):
        for folder in _groups(name):
            limit = read(folder)
            if limit is not None:
                limits.append(limit)
    return min(limits, default=None)


def _groups(controller: str) -> list[Path]:
    """Folders of this process's group and its parents, for ``controller`` of version 1, "" for 2.

    Some may not exist: a container does not see the groups outside it.
    """
    inner = Path(_path(controller).strip("/"))
    base = ROOT / controller if controller else ROOT
    return [base / inner, *(base / above for above in inner.parents)]


def _path(controller: str) -> str:
    """This process's group for ``controller`` ("": version 2); "/" if it is unknown."""
    try:
        lines = MEMBERSHIP.read_text().splitlines()
    except OSError:
        return "/"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return "/"
