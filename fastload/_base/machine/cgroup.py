"""The control groups of this process, whose limits bind it.

A group is bound by the limits of those above it too. That of a Slurm job or a systemd unit is not
at the root. Source: cgroups(7), ``/proc/self/cgroup``.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def groups(root: Path, membership: Path, controller: str = "") -> list[Path]:
    """Folders of this process's group and of all above it: of version 1's ``controller``, or of 2.

    Folders that a container does not see are among them.
    """
    inner = Path(_path(membership, controller).strip("/"))
    base = root / controller if controller else root
    return [base / inner, *(base / above for above in inner.parents)]


def _path(membership: Path, controller: str) -> str:
    """This process's group under ``controller``, "" for version 2; "/" where it is unknown."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return "/"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return "/"
