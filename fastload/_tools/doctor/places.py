"""Finds the file and line in the user's own code at which something happens."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from types import FrameType

import torch

_INSTALLED = ("site-packages", "dist-packages")
_OTHERS = tuple(
    os.path.join(os.path.realpath(folder), "")
    for folder in (
        sysconfig.get_path("stdlib"),
        os.path.dirname(torch.__file__),
        Path(__file__).resolve().parents[2],  # fastload
    )
)


class Places:
    """Distinguishes the user's code, which is all in the folder of ``script``, from libraries."""

    def __init__(self, script: str) -> None:
        self._folder = os.path.join(os.path.dirname(os.path.abspath(script)), "")
        self.mine = functools.cache(self._is_mine)

    def _is_mine(self, filename: str) -> bool:
        """Whether a file of code is the user's own."""
        if filename.startswith("<"):
            return False
        if filename.startswith(self._folder):
            filename = filename[len(self._folder) :]
        elif os.path.realpath(filename).startswith(_OTHERS):
            return False
        return not any(name in Path(filename).parts for name in _INSTALLED)

    def of(self, frame: FrameType | None) -> str:
        """``file:line`` of the innermost frame of the user's code, from ``frame`` outwards."""
        while frame is not None:
            if self.mine(frame.f_code.co_filename):
                return place(frame.f_code.co_filename, frame.f_lineno)
            frame = frame.f_back
        return ""

    def calling(self) -> str:
        """The same for the code that called the caller."""
        return self.of(sys._getframe(2))

    def raising(self, error: BaseException) -> str:
        """``file:line`` of the innermost line of the user's code in a traceback, or ""."""
        places = [
            place(frame.f_code.co_filename, line)
            for frame, line in traceback.walk_tb(error.__traceback__)
            if self.mine(frame.f_code.co_filename)
        ]
        return places[-1] if places else ""

    def files(self) -> list[str]:
        """The files of the user's imported modules, without the script."""
        names = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        return [name for name in names if isinstance(name, str) and self.mine(name)]


def place(filename: str, line: int) -> str:
    """``file:line``, with the file relative to the working directory if it is inside."""
    below = os.path.relpath(filename)
    return f"{filename if below.startswith(os.pardir) else below}:{line}"
