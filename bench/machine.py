"""The machine on which the figures were measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from fastload import _native
from fastload._run.tuned_file import cpu_name
from fastload._version import __version__

_PACKAGES = ("torch", "torchvision", "pillow", "numpy", "lmdb")


def choose(simd: str) -> bool:
    """Have fastload use an instruction set, here and in new processes; False: it cannot."""
    core = _native.load()
    if core is None or not core.set_simd(simd):
        return False
    os.environ["FASTLOAD_SIMD"] = simd
    return True


def describe() -> dict[str, Any]:
    """CPU, instruction set in use, memory, system and commit, as plain values."""
    return {
        "cpu": cpu_name(),
        "instruction_set": _instruction_set(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "commit": commit(),
    }


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that all loaders share."""
    versions = {"python": platform.python_version(), "fastload": __version__}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _instruction_set() -> str:
    """The one that fastload uses, and the best one where it was told to use another."""
    core = _native.load()
    if core is None:
        return "none: Python code"
    used = core.simd()
    core.set_simd("")
    best = core.simd()
    core.set_simd(used)
    return used if used == best else f"{used}, as told, of a processor with {best}"


def commit(folder: Path = Path(__file__).parent) -> str:
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"
