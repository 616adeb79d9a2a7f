"""A sampling profiler for a dataset's code, in the script's process and in the workers it forks.

A thread in each process samples the stack of the fetching thread a hundred times a second. Each
sample is attributed to one function: the user's innermost one, or the torchvision transform that it
called.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

from torch.utils.data._utils import fetch

from ..._base.whole_file import whole_file
from .observation import FunctionSeen
from .places import Places, place

_EVERY_S = 0.01
_WRITTEN_EVERY = 20  # samples, because a worker may be killed without notice

_Key = tuple[str, str, bool]  # place and name of a function; whether it is torchvision's


@dataclasses.dataclass
class Profiler:
    """Samples one thread of this process at a time, and of each process forked later.

    Each process writes its samples into ``folder``; ``places`` distinguishes the user's code.
    """

    places: Places
    folder: Path
    _pid: int = 0
    _thread: int = 0
    _depth: int = 0
    _looks: int = 0
    _lines: dict[_Key, Counter[str]] = dataclasses.field(default_factory=dict)

    def enter(self) -> None:
        """The calling thread starts to fetch samples."""
        if self._pid != os.getpid():  # after a fork: no thread, and the parent's counts
            self._pid, self._looks, self._lines, self._depth = os.getpid(), 0, {}, 0
            threading.Thread(target=self._run, name="fastload-profiler", daemon=True).start()
        self._thread = threading.get_ident()
        self._depth += 1

    def leave(self) -> None:
        """The calling thread has fetched its samples."""
        self._depth -= 1

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(_EVERY_S):
            if self._depth <= 0:
                continue
            self._look(sys._current_frames().get(self._thread))
            if self._looks % _WRITTEN_EVERY == 0:
                self.write()

    def _look(self, frame: FrameType | None) -> None:
        self._looks += 1
        place = attributed(frame, self.places)
        if place is not None:
            key, line = place
            self._lines.setdefault(key, Counter())[line] += 1

    def write(self) -> None:
        """Write the samples of this process so far."""
        if self._pid != os.getpid():
            return
        rows = [[*key, dict(lines)] for key, lines in list(self._lines.items())]
        with whole_file(self.folder / f"{self._pid}.profile") as file:
            file.write(json.dumps({"looks": self._looks, "rows": rows}).encode())


def attributed(frame: FrameType | None, places: Places) -> tuple[_Key, str] | None:
    """The function to which a stack is attributed, and the line that runs in it.

    Code called by a torchvision transform is attributed to the transform, other code to the user's
    function that called it. None if there is neither, or if Pillow decodes an image, which is
    counted separately.
    """
    transform = ""
    while frame is not None:
        code = frame.f_code
        if code.co_filename == fetch.__file__:
            break  # the callers are torch's loader and the user's training loop
        if places.mine(code.co_filename):
            line = place(code.co_filename, frame.f_lineno)
            if transform:
                return (line, transform, True), line
            return (place(code.co_filename, code.co_firstlineno), _name(frame), False), line
        if code.co_name == "load" and code.co_filename.endswith("ImageFile.py"):
            return None
        if not transform:
            transform = _transform(frame, code)
        frame = frame.f_back
    return (("", transform, True), "") if transform else None


def _transform(frame: FrameType, code: CodeType) -> str:
    """The class of the torchvision transform whose method a frame runs, or ""."""
    if "torchvision/transforms" not in code.co_filename.replace(os.sep, "/"):
        return ""
    own = frame.f_locals.get("self")
    name = type(own).__name__
    return "" if own is None or name in ("Compose", "RandomApply", "Sequential") else name


def _name(frame: FrameType) -> str:
    if sys.version_info >= (3, 11):
        return frame.f_code.co_qualname
    own = frame.f_locals.get("self")
    name = frame.f_code.co_name
    return name if own is None else f"{type(own).__name__}.{name}"


def functions(folder: Path) -> Iterator[FunctionSeen]:
    """The functions sampled in all processes, each with its share of the time; longest first."""
    looks = 0
    lines: dict[_Key, Counter[str]] = {}
    for path in sorted(folder.glob("*.profile")):
        content = json.loads(path.read_text(encoding="utf-8"))
        looks += content["looks"]
        for where, name, theirs, counts in content["rows"]:
            lines.setdefault((where, name, theirs), Counter()).update(counts)
    for (where, name, theirs), counts in sorted(lines.items(), key=lambda item: -item[1].total()):
        line, most = counts.most_common(1)[0]
        yield FunctionSeen(
            name=name,
            where=where,
            torchvision=theirs,
            line=line,
            looks=looks,
            share=counts.total() / looks,
            line_share=most / counts.total(),
        )
