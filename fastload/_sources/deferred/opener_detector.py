"""OpenerDetector: sees whether code opens images that could be deferred, and exchanges nothing.

A profile function sees calls of this thread. It is gone with the first one that opens an image. A
sample that calls many small functions takes twice as long in it.
"""

from __future__ import annotations

import sys
from types import FrameType, FunctionType
from typing import Any, Final

_OPENERS: Final = (
    "PIL.Image.open",
    "PIL.Image.fromarray",
    "torchvision.io.read_image",
    "torchvision.io.decode_image",
    "torchvision.io.decode_jpeg",
    "torchvision.transforms.functional.to_tensor",  # of an array
    "torchvision.transforms.functional.pil_to_tensor",
    "fastload._engine.pillow.decode_record",
)

_OF_OPENCV: Final = ("imread", "imdecode")


class OpenerDetector:
    """A context that sees what its thread calls.

    Attributes:
        seen: whether that has opened an image; or a profiler of the program's runs, and nobody
            knows.
    """

    seen = False

    def __enter__(self) -> OpenerDetector:
        self._codes = {id(function.__code__) for function in _functions()}
        yappi = sys.modules.get("yappi")  # whose profile function Python does not show
        self.seen = sys.getprofile() is not None or bool(yappi and yappi.is_running())
        if not self.seen:
            sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        if sys.getprofile() == self._note:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            opens = id(frame.f_code) in self._codes
        else:
            opens = event == "c_call" and called.__name__ in _OF_OPENCV
        if opens:
            self.seen = True
            sys.setprofile(None)


def _functions() -> list[FunctionType]:
    """The functions of ``_OPENERS`` whose modules the program has imported."""
    split = (name.rpartition(".") for name in _OPENERS)
    functions = (getattr(sys.modules.get(module), function, None) for module, _, function in split)
    return [function for function in functions if isinstance(function, FunctionType)]
