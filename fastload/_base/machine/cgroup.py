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
        group = Path(_group(name).strip("/"))
        for inner in group, *group.parents:  # some may not exist: a container does not see them all
            limit = read(ROOT / name / inner)
            if limit is not None:
                limits.append(limit)
    return min(limits, default=None)


def _group(controller: str) -> str:
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
