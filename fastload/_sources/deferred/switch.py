"""Switching deferring on: within ``deferring``, on this thread, what is opened comes deferred.

Functions of other libraries are redirected for the whole process, when a thread defers for the
first time (``redirect.py`` says how and why). Those of a library that the program has not imported
yet follow when it has: fastload imports neither torchvision nor OpenCV for this.

Imported late
    What is imported within a batch is exchanged before the next one. Until then its functions make
    deferred objects real, as all do that are not exchanged. Only torchvision's v2 would take them
    for something else, such as those that a dataset has kept. So its functions are exchanged while
    it is imported (``late_import.py``). Nothing is proven there, since a proof runs on another
    thread, which might wait for that import: what nothing is deferred without proves itself at its
    first call.

Rest
    While nobody in this process defers, the functions have their own codes again, so that what is
    made eagerly costs what it costs without fastload. Who defers batch after batch holds them
    (``hold``) until it says otherwise (``release``) or is gone. Once images were opened deferred, a
    dataset may have kept some: then the functions that would take those for something else stay
    redirected. So do OpenCV's, which only look at a flag, and are replaced by name.
"""

from __future__ import annotations

import os
import sys
import weakref

from ..._base.fork_lock import ForkLock
from . import guarded, redirect
from .late_import import LateImport
from .patches import patch, pillow
from .thread_state import THREAD, forget, may_be_kept

_LOCK = ForkLock()
_INSTALLED: set[tuple[str, ...]] = set()


class _Use:
    """Who needs the functions redirected in this process.

    Attributes:
        threads: how many threads are within ``deferring``; as often as each has entered it.
        holders: who defers batch after batch.
        rests: whether the functions have their own codes.
    """

    def __init__(self) -> None:
        self.threads = 0
        self.holders: weakref.WeakSet[object] = weakref.WeakSet()
        self.rests = False


_USE = _Use()


class deferring:
    """A context in which this thread's images are deferred. It may be entered within itself."""

    def __enter__(self) -> None:
        with _LOCK:
            _USE.threads += 1
        try:
            install()
        except BaseException:  # such as Ctrl-C; then __exit__ is not called
            with _LOCK:
                _USE.threads -= 1
            raise
        self._before = THREAD.deferring
        THREAD.deferring = not patch.MISSING

    def __exit__(self, *error: object) -> None:
        THREAD.deferring = self._before
        with _LOCK:
            _USE.threads = max(0, _USE.threads - 1)  # a child may leave what its parent has entered
        forget()


def install() -> None:
    """Redirect the functions, if they are not. A forked child has it from its parent."""
    if _USE.rests:
        with _LOCK:
            redirect.wake()
            _USE.rests = False
    if len(_INSTALLED) == len(_LIBRARIES) and not patch.UNPROVEN:
        return
    if patch.UNPROVEN or any(map(_lacks, _LIBRARIES)):
        with _LOCK:
            _exchange()
            patch.prove_needed()
            _LATE.watch(_V2 not in _INSTALLED)


def _lacks(needed: tuple[str, ...]) -> bool:
    """Whether the functions of a library that the program has imported are to be exchanged."""
    return needed not in _INSTALLED and all(name in sys.modules for name in needed)


def _exchange() -> None:
    for needed, exchange_library in _LIBRARIES.items():
        if _lacks(needed):
            exchange_library()
            _INSTALLED.add(needed)


def _imported_late() -> None:
    """v2 is being imported. See Imported late."""
    # Who has the lock exchanges its functions, now or before the next batch.
    if not _LOCK.acquire(blocking=False):
        return
    try:
        if not _USE.rests:
            _exchange()
        elif may_be_kept():
            _exchange()
            redirect.rest(everything=False)
    finally:
        _LOCK.release()


def hold(holder: object) -> None:
    """Keep the functions redirected between the batches of ``holder``, while that is alive."""
    if holder not in _USE.holders:
        with _LOCK:
            _USE.holders.add(holder)


def release(holder: object) -> None:
    """Note that ``holder`` does not defer for now, and let the functions rest if nobody does."""
    with _LOCK:
        _USE.holders.discard(holder)
        if not (_USE.rests or _USE.threads or _USE.holders):
            redirect.rest(everything=not may_be_kept())
            _USE.rests = True


def left_out() -> list[str]:
    """What stays as it is in other libraries, when all has proved itself that can."""
    if not _INSTALLED:
        return guarded.left_out()
    with _LOCK:
        _USE.threads += 1
    try:
        install()  # a proof calls others of the functions, too
        return guarded.left_out()
    finally:
        with _LOCK:
            _USE.threads = max(0, _USE.threads - 1)
        release(_USE)


def try_again() -> None:
    """Have what is left out prove itself anew: see Note [The program's state] of ``guarded.py``."""
    with _LOCK:
        if guarded.may_try_again():
            patch.MISSING.clear()
            patch.UNPROVEN.clear()
            _INSTALLED.clear()
    install()


def uninstall() -> None:
    """Put back what ``install`` has redirected, everywhere in this process.

    What is deferred already stays so, and is made when somebody asks for its values.
    """
    with _LOCK:
        redirect.put_back()
        if ("cv2",) in _INSTALLED:
            from .patches import opencv

            opencv.put_back()
        patch.MISSING.clear()
        patch.UNPROVEN.clear()
        _INSTALLED.clear()
        _LATE.watch(False)
        _USE.rests = False


def _in_forked_child() -> None:
    # Of the loaders and threads of its parent, none runs here.
    _USE.threads = 0
    _USE.holders = weakref.WeakSet()


os.register_at_fork(after_in_child=_in_forked_child)


def _pillow() -> None:
    patch.exchange(pillow.PATCHES)


def _torchvision() -> None:
    from .patches import torch, torchvision

    patch.exchange([*torchvision.PATCHES, *torch.PATCHES])


def _torchvision_v2() -> None:
    from .patches import torchvision_v2

    patch.exchange(torchvision_v2.PATCHES)
    torchvision_v2.add_kernels()


def _opencv() -> None:
    from .patches import opencv

    opencv.replace_all()


def _albumentations() -> None:
    from .patches import albumentations

    patch.exchange(albumentations.PATCHES)


_V2 = ("torchvision.transforms.v2",)

_LIBRARIES = {
    ("PIL.Image",): _pillow,
    ("cv2",): _opencv,
    ("torchvision.transforms",): _torchvision,
    _V2: _torchvision_v2,
    ("albumentations.pytorch", "torchvision.transforms"): _albumentations,
}
"""By what the program has to have imported: exchanges its functions."""

_LATE = LateImport(*_V2, _imported_late)
