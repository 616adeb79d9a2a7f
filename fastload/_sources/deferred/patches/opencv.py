"""What fastload exchanges in OpenCV, where it is imported.

Its functions are not written in Python, so they have no code that could be exchanged. They are
replaced by name instead, in cv2 and wherever a module of the program has imported them from it.
References that are not globals of a module, such as a default argument, stay OpenCV's own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...._base.rebind import rebind
from .. import agreement, opencv
from ..guarded import Function, GuardedFunction, leave_out
from ..thread_state import THREAD
from .patch import Patch
from .proof import Proof, path_of


class Redirected:
    """A function of OpenCV's that asks the core first.

    An object and not a function: as a class attribute it must not become a method, just as what it
    stands for does not.
    """

    def __init__(self, patch: Patch, original: Function) -> None:
        name, ours = patch.names[0], patch.ours(original)
        self._original = original
        self._ours: Function = GuardedFunction(
            name, ours, _declined, lambda: patch.proof(original, ours), self._settle
        )
        self.__name__ = self.__qualname__ = original.__name__
        self.__doc__ = original.__doc__
        self.__module__ = "cv2"

    def _settle(self, called: Function) -> None:
        self._ours = called
        if called is _declined:
            rebind({self: self._original})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if THREAD.deferring:
            pixels = self._ours(*args, **kwargs)
            if pixels is not None:
                THREAD.batch.read += 1
                return pixels
        return self._original(*args, **kwargs)

    def __repr__(self) -> str:
        return repr(self._original)

    def __reduce__(self) -> str:
        return self.__name__  # the name in cv2, as of the original


def _declined(*args: Any, **kwargs: Any) -> None:
    """What the core makes of an image, if it must make none."""


def _decodes(call: Callable[[Function, bytes], Any]) -> Proof:
    """The proof that ``call(original, data)`` gives the core's pixels of a JPEG."""

    def theirs(original: Function, data: bytes) -> np.ndarray:
        pixels: np.ndarray = call(original, data)
        return pixels[..., ::-1] if pixels.ndim == 3 else pixels

    return lambda original, ours: agreement.fault(lambda data: theirs(original, data))


_UNCHANGED: Final = -1


def _of_file(imread: Function, data: bytes) -> Any:
    with path_of(data) as path:
        return imread(Path(path), _UNCHANGED)  # which old releases refuse, and ours takes


def _of_bytes(imdecode: Function, data: bytes) -> Any:
    return imdecode(np.frombuffer(data, np.uint8), _UNCHANGED)


_WHY: Final = "the core decodes JPEGs faster, and without the interpreter's lock"
_KEPT_BY: Final = "Albumentations over cv2.imread (any-dataset, albumentations)"

PATCHES: Final = [
    Patch(
        names=("cv2.imread",),
        ours=lambda original: opencv.imread,
        why=_WHY,
        kept_by=_KEPT_BY,
        proof=_decodes(_of_file),
    ),
    Patch(
        names=("cv2.imdecode",),
        ours=lambda original: opencv.imdecode,
        why=_WHY,
        kept_by=_KEPT_BY,
        proof=_decodes(_of_bytes),
    ),
]
"""OpenCV's functions that are replaced."""


def replace_all() -> None:
    """Replace them, until one of them fails its proof."""
    cv2, replaced = sys.modules["cv2"], {}
    for patch in PATCHES:
        (name,) = patch.names
        original = getattr(cv2, name.partition(".")[2], None)
        if original is None:
            leave_out(name, "this release has no such function")
        elif not isinstance(original, Redirected):
            replaced[original] = Redirected(patch, original)
    rebind(replaced)


def put_back() -> None:
    """Undo ``replace_all``, wherever a module refers to ours by now."""
    cv2 = sys.modules["cv2"]
    functions = [getattr(cv2, patch.names[0].partition(".")[2], None) for patch in PATCHES]
    rebind(
        {function: function._original for function in functions if isinstance(function, Redirected)}
    )
