"""The native core: JPEG, PNG and WebP decode, exact resize and the thread pool, in C++.

``load()`` returns the extension module, or None if it was not built. Its functions are private to
fastload and described in ``_core.pyi``. The constants below are the results for one sample (PENDING
to CORRUPT) and the kinds of records (ENCODED, RAW, DCT).
"""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import shlex
import sys
import warnings
from pathlib import Path
from types import ModuleType

from .._version import DISTRIBUTION
from ..errors import MissingDependencyError, type_next

PENDING = -1
"""Not processed: the job was cancelled first."""
OK = 0
UNSUPPORTED = 1
"""Pillow decides: another format, a rare kind of JPEG or PNG, or a file that may be damaged."""
IO = 2
"""Reading failed; the sample's detail is an errno."""
TRUNCATED = 3
"""The span is not inside the file."""
CHECKSUM = 4
"""Checksum mismatch: CRC32C differs from the stored one."""
SIZE = 5
"""The image's size differs from the store's, or the box is not inside the image."""
CORRUPT = 6
"""A DCT record that violates its format."""

ENCODED = 0
RAW = 1
DCT = 2

PACKAGES = "g++ python3-dev libjpeg-dev libdeflate-dev libwebp-dev"
"""What the core is compiled with, as Debian and Ubuntu call it."""

_module: ModuleType | None = None
_reason = ""
_tried = False
_warned = False


def load() -> ModuleType | None:
    """The module ``fastload._native._core``, or None if it was not built.

    ``FASTLOAD_NO_NATIVE=1`` in the environment hides it; every call reads the variable.
    """
    global _module, _reason, _tried
    if os.environ.get("FASTLOAD_NO_NATIVE", "") not in ("", "0"):
        return None
    if not _tried:
        try:
            _module = importlib.import_module("fastload._native._core")
        except ImportError as error:
            _reason = str(error)
        _tried = True  # last, so that another thread waits in its own import meanwhile
    return _module


def libraries() -> str | None:
    """The libraries inside the core and the instruction set in use; None without the core.

    Example:
        >>> libraries()
        'libjpeg-turbo 3.2.0, libdeflate 1.25, libwebp 1.6.0, avx512'
    """
    core = load()
    if core is None:
        return None
    png, webp = core.png_version(), core.webp_version()
    names = [f"libjpeg-turbo {core.jpeg_version()}"]
    names += [f"libdeflate {png}"] * bool(png) + [f"libwebp {webp}"] * bool(webp)
    return ", ".join([*names, core.simd()])


def missing(need: str = "the native core is needed") -> MissingDependencyError:
    """The error for a function that needs the core; ``need`` says in words what needs it."""
    return MissingDependencyError(f"{need}, and {_absence()}")


def required(need: str = "the native core is needed") -> ModuleType:
    """The core. Raises ``missing(need)`` if it was not built."""
    core = load()
    if core is None:
        raise missing(need)
    return core


def warn_missing() -> None:
    """Warn, once per process, that FastLoader is torch's DataLoader without the core."""
    global _warned
    if _warned:
        return
    _warned = True
    warnings.warn(
        "fastload has no native core here, so FastLoader does what torch's DataLoader does, no "
        f"faster: {_absence()}",
        RuntimeWarning,
        stacklevel=2,
    )


def _absence() -> str:
    """Why the core is missing, and what to do."""
    if os.environ.get("FASTLOAD_NO_NATIVE", "") not in ("", "0"):
        return f"FASTLOAD_NO_NATIVE hides it{type_next('unset FASTLOAD_NO_NATIVE')}"
    root = Path(__file__).resolve().parents[2]
    installed = _installed(root)
    if installed is not None:
        return (
            f"Python imports the source folder {str(root)!r}, where it is not built, instead of "
            f"the installed package in {str(installed)!r}: start Python in another folder, or take "
            "this one out of PYTHONPATH"
        )
    source = shlex.quote(str(root)) if (root / "setup.py").exists() else DISTRIBUTION
    again = f"pip install --force-reinstall --no-deps --no-binary {DISTRIBUTION} {source}"
    return (
        f"{_reason or 'it was not built'}; it needs a C++17 compiler, Python's headers and "
        "libjpeg-turbo's, and for PNG and WebP files libdeflate's and libwebp's (below: as Debian "
        "and Ubuntu call them, as root); FASTLOAD_REQUIRE_NATIVE=1 shows what fails"
        + type_next(f"apt install -y {PACKAGES} && FASTLOAD_REQUIRE_NATIVE=1 {again}")
    )


def _installed(root: Path) -> Path | None:
    """The folder of ``sys.path`` with an installed core that the source tree ``root`` hides."""
    names = [f"_core{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES]
    for folder in map(Path, sys.path):
        place = folder / "fastload" / "_native"
        source = (folder / "setup.py").exists()
        if not source and folder.resolve() != root and any((place / n).exists() for n in names):
            return folder
    return None
