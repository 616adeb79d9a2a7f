"""What a process holds that outlives a function: threads, children, shared memory, descriptors.

Python threads only: the native pool is made once per process and kept, as torch keeps its own.
Linux: read from /proc, so that nothing has to be installed.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import threading
import time
from multiprocessing import resource_tracker
from pathlib import Path

SHM = Path("/dev/shm")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Held:
    """Descriptions of what is held, by kind. A description that comes back is the same thing."""

    threads: frozenset[str]
    children: frozenset[str]
    shared_memory: frozenset[str]
    descriptors: frozenset[str]

    def since(self, before: Held) -> list[str]:
        """One line for each thing that is held now and was not held ``before``."""
        return [
            f"  {field.name}: {thing}"
            for field in dataclasses.fields(self)
            for thing in sorted(getattr(self, field.name) - getattr(before, field.name))
        ]


def snapshot(before: Held | None = None) -> Held:
    """Return what this process holds now.

    Of shared memory that is all there is, whoever holds it; where ``before`` is given, only what
    was not there then and is ours: to find out whose it is, the maps of every process are read.
    """
    # Python's own helper process stays once it is started: start it before anything is counted.
    # Its command line is ours until it has called exec, so it is known by its number.
    resource_tracker.ensure_running()
    tracker = str(resource_tracker._resource_tracker._pid)  # type: ignore[attr-defined]
    gc.collect()
    return Held(
        threads=frozenset(f"{t.name} ({t.ident})" for t in threading.enumerate()),
        children=frozenset(child for child in _children() if child.split()[0] != tracker),
        shared_memory=_names() if before is None else _ours(_names() - before.shared_memory),
        descriptors=frozenset(_descriptors()),
    )


def threads_end(count: int, *, timeout_s: float = 30) -> bool:
    """Whether at most ``count`` threads are left; those that were told to end get time for it."""
    deadline = time.monotonic() + timeout_s
    while threading.active_count() > count and time.monotonic() < deadline:
        time.sleep(0.01)
    return threading.active_count() <= count


def wait_for(before: Held, *, timeout_s: float) -> list[str]:
    """Return what is held beyond ``before``, once nothing is or ``timeout_s`` has passed.

    What comes and goes meanwhile is not left behind: names in /dev/shm are everybody's, and a
    semaphore of a neighbour's has one for the moment in which it is made.
    """
    left = snapshot(before).since(before)
    deadline = time.monotonic() + timeout_s  # behind the first look: there is a second one
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        now = set(snapshot(before).since(before))
        left = [line for line in left if line in now]
    return left


def _children(process: str = "self") -> list[str]:
    """The processes that ``process`` started, and those that they did."""
    found = []
    for pid in _children_of(process):
        command = _read(Path("/proc") / pid / "cmdline").replace("\0", " ")
        found += [f"{pid} {command[:120]}", *_children(pid)]
    return found


def _children_of(process: str) -> list[str]:
    try:
        tasks = list(Path(f"/proc/{process}/task").iterdir())
    except FileNotFoundError:
        return []  # it has ended
    return [pid for task in tasks for pid in _read(task / "children").split()]


def _names() -> frozenset[str]:
    """Entries of /dev/shm, whoever holds them."""
    return frozenset(entry.name for entry in SHM.iterdir()) if SHM.is_dir() else frozenset()


def _ours(names: frozenset[str]) -> frozenset[str]:
    """Those ``names`` in /dev/shm that are ours, or that nobody outside of our family holds."""
    if not names:
        return names
    family = {str(os.getpid()), *(child.split()[0] for child in _children())}
    others = {p.name for p in Path("/proc").iterdir() if p.name.isdigit()} - family
    # What torch makes says who made it.
    names = frozenset(name for name in names if not _maker(name) & others)
    # By inode: a semaphore is made under another name, which its maker's maps keep showing.
    inodes = {name: str(entry) for name in names if (entry := _inode(SHM / name))}
    for process in others:
        if not inodes:
            break
        maps = _read(Path("/proc") / process / "maps").splitlines()
        mapped = {
            parts[4]
            for line in maps
            if len(parts := line.split(None, 5)) > 5 and str(SHM) in parts[5]
        }
        inodes = {name: inode for name, inode in inodes.items() if inode not in mapped}
    return frozenset(inodes)


def _inode(path: Path) -> int:
    """Its number; 0 where it is gone."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def _maker(name: str) -> set[str]:
    """The process in a name that torch gave, such as torch_1234_567_0."""
    return set(name.split("_")[1:2]) if name.startswith("torch_") else set()


def descriptors_in(folder: Path) -> list[str]:
    """This process's descriptors of files in ``folder``; other tests' may close meanwhile."""
    return [line for line in _descriptors() if f"-> {folder.resolve()}/" in line]


def _descriptors() -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append(f"{entry.name} -> {entry.readlink()}")
        except FileNotFoundError:
            continue  # the descriptor that listed the folder
    return found


def _read(path: Path) -> str:
    """Text of a /proc file; empty where its process has ended."""
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
