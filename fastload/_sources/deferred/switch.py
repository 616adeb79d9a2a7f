"""Switching deferring on: within ``deferring``, on this thread, what is opened comes deferred.

Functions of other libraries are redirected for the whole process, when a thread defers for the
first time (``redirect.py`` says how and why), and stay so until ``uninstall``. Those of a library
that the program has not imported yet follow when it has: fastload imports neither torchvision nor
OpenCV for this.
"""

from __future__ import annotations

import sys
import threading
from types import TracebackType

import PIL.Image

from .from_array import from_array
from .openers import opener
from .redirect import put_back, redirect
from .thread_state import THREAD, forget

_LOCK = threading.Lock()
_INSTALLED: set[str] = set()


class deferring:
    """A context in which this thread's images are deferred. It may be entered within itself."""

    def __enter__(self) -> None:
        install()
        self._before = THREAD.deferring
        THREAD.deferring = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        THREAD.deferring = self._before
        forget()


def install() -> None:
    """Redirect the functions, if they are not. A forked child has it from its parent."""
    if len(_INSTALLED) == len(_PARTS):
        return
    for library, part in _PARTS.items():
        if library in sys.modules and library not in _INSTALLED:
            with _LOCK:
                if library not in _INSTALLED:
                    part()
                    _INSTALLED.add(library)


def uninstall() -> None:
    """Put back what ``install`` has redirected, everywhere in this process.

    What is deferred already stays so, and is made when somebody asks for its values.
    """
    with _LOCK:
        put_back()
        if "cv2" in _INSTALLED:
            from . import opencv

            opencv.put_back()
        _INSTALLED.clear()


def _pillow() -> None:
    redirect((PIL.Image.open, opener), (PIL.Image.fromarray, from_array))


def _torchvision() -> None:
    from . import hooks, torchvision_io, torchvision_transforms

    hooks.redirect_all()
    torchvision_io.redirect_all()
    torchvision_transforms.redirect_all()


def _opencv() -> None:
    from . import opencv

    opencv.redirect_all()


_PARTS = {"PIL.Image": _pillow, "cv2": _opencv, "torchvision.transforms": _torchvision}
"""By what the program has to have imported: redirects its functions."""
