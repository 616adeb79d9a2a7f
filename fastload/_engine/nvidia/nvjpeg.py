"""nvJPEG, with which DALI decodes on a GPU: which one DALI finds, and its version.

DALI asks for it by its name. Folders in ``LD_LIBRARY_PATH`` come before that of the installed
package, so an older toolkit's could be taken. What this process has loaded comes before both: so
the installed package's is loaded here.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
from pathlib import Path

_MAJOR, _MINOR = 0, 1  # MAJOR_VERSION and MINOR_VERSION in CUDA's library_types.h


@functools.cache
def version() -> tuple[int, int]:
    """Major and minor version of the nvJPEG that DALI finds; (0, 0) if there is none.

    Loads it into this process.
    """
    cuda = str(importlib.import_module("nvidia.dali").__cuda_version__)[:2]
    name = f"libnvjpeg.so.{cuda}"
    for folder in importlib.import_module("nvidia").__path__:
        for path in sorted(Path(folder).glob(f"*/lib/{name}")):
            with contextlib.suppress(OSError):  # it cannot be loaded: DALI looks elsewhere, too
                ctypes.CDLL(str(path))
    try:
        library = ctypes.CDLL(name)
    except OSError:
        return 0, 0
    return _property(library, _MAJOR), _property(library, _MINOR)


def _property(library: ctypes.CDLL, number: int) -> int:
    found = ctypes.c_int()
    failed = library.nvjpegGetProperty(number, ctypes.byref(found))
    return 0 if failed else found.value
