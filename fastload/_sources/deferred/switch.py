"""Switching deferring on: within ``deferring``, on this thread, what is opened comes deferred.

Functions of other libraries are redirected for the whole process, when a thread defers for the
first time (``redirect.py`` says how and why), and stay so until ``uninstall``. Those of a library
that the program has not imported yet follow when it has: fastload imports neither torchvision nor
OpenCV for this.
"""

from __future__ import annotations

import sys
from types import TracebackType

from ..._base.fork_lock import ForkLock
from .patches import patch, pillow
from .redirect import put_back
from .thread_state import THREAD, forget
from .trial import may_try_again

_LOCK = ForkLock()
_INSTALLED: set[tuple[str, ...]] = set()


class deferring:
    """A context in which this thread's images are deferred. It may be entered within itself."""

    def __enter__(self) -> None:
        install()
        self._before = THREAD.deferring
        THREAD.deferring = not patch.MISSING

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
    for needed, part in _PARTS.items():
        if needed not in _INSTALLED and all(name in sys.modules for name in needed):
            with _LOCK:
                if needed not in _INSTALLED:
                    part()
                    _INSTALLED.add(needed)


def try_again() -> None:
    """Have what is left out prove itself anew: see Note [The program's state] of ``trial.py``."""
    with _LOCK:
        if may_try_again():
            patch.MISSING.clear()
            _INSTALLED.clear()
    install()


def uninstall() -> None:
    """Put back what ``install`` has redirected, everywhere in this process.

    What is deferred already stays so, and is made when somebody asks for its values.
    """
    with _LOCK:
        put_back()
        if ("cv2",) in _INSTALLED:
            from .patches import opencv

            opencv.put_back()
        patch.MISSING.clear()
        _INSTALLED.clear()


def _pillow() -> None:
    patch.exchange(pillow.PATCHES)


def _torchvision() -> None:
    from .patches import torch, torchvision

    patch.exchange([*torchvision.PATCHES, *torch.PATCHES])
    torchvision.add_kernels()


def _opencv() -> None:
    from .patches import opencv

    opencv.replace_all()


def _albumentations() -> None:
    from .patches import albumentations

    patch.exchange(albumentations.PATCHES)


_PARTS = {
    ("PIL.Image",): _pillow,
    ("cv2",): _opencv,
    ("torchvision.transforms",): _torchvision,
    ("albumentations.pytorch", "torchvision.transforms"): _albumentations,
}
"""By what the program has to have imported: exchanges its functions."""
