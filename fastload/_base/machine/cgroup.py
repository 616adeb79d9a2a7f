"""The control groups whose limits apply to this process.

The limits of all parent groups apply too. The group of a Slurm job or a systemd unit is not at the
root. Source: cgroups(7), ``/proc/self/cgroup``.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def groups(root: Path, membership: Path, controller: str = "") -> list[Path]:
    """Folders of this process's group and its parents, for ``controller`` of version 1, "" for 2.

    Some may not exist: a container does not see the groups outside it.
    """
    inner = Path(_path(membership, controller).strip("/"))
    base = root / controller if controller else root
    return [base / inner, *(base / above for above in inner.parents)]


def _path(membership: Path, controller: str) -> str:
    """This process's group for ``controller`` ("": version 2); "/" if it is unknown."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return "/"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return "/"
