"""What a thread does with images at the moment: whether it defers them, and what it had to make.

Everything is per thread: a thread that did not ask for deferred images never gets one.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    import torch
    from PIL.Image import Image

    from ..._engine.cache.opened import OpenedCache
    from .recording import Opened, Operation, Recording
    from .within import Making


class Cause(NamedTuple):
    """What materialised deferred objects.

    Attributes:
        function: what was called: "Image.getpixel", "Tensor.numpy" ...; or what became a tensor
            that only Pillow can make: "to_image" + OF_MODE + "I;16".
        file, line: of the user's that called it: the first outside of fastload and the libraries.
        count, ns: how many objects, and nanoseconds that making them took.
    """

    function: str
    file: str
    line: int
    count: int  # type: ignore[assignment] # not the method of a tuple
    ns: int


class MadeAhead(Protocol):
    """What makes pixels before they are asked for: ``ahead.py``, which imports this module."""

    def take(self, recording: Recording) -> np.ndarray | None:
        """The memory of the pixels that are asked for; None: they were not made."""

    def note_asked(self, recording: Recording) -> None:
        """Note that they were asked for."""


class Images(NamedTuple):
    """What became of images, as in ``Report`` (``_run/measurements.py``)."""

    opened: int = 0
    given: int = 0
    deferred: int = 0
    read: int = 0
    causes: tuple[Cause, ...] = ()

    def and_of(self, more: Images) -> Images:
        """These and ``more``."""
        return Images(*map(operator.add, self, more))


_FAILED_ON_OTHERS = [0]  # on other threads, which do not defer


class BatchContext:
    """What is known of a batch while its samples are made.

    Args:
        cache: of the images that ``single.py`` decodes; None: there is none.
        fill: makes a DeferredBatch that the user's code looks into, until that has run; None: each
            row is replayed.
        checks: whether images are checked where their pixels are needed first, because the batch
            cannot be made again.
        unmade: images whose pixels somebody asked for and nobody has made, by ``id``. What is
            not in the batch in the end is decoded then, as the user's code would have seen what is
            wrong with it. None: nobody will look.

    Attributes:
        opened: how many images were deferred.
        given: how many of them were given as arrays.
        read: how many images the core decoded for another library.
        failed: whether an image could not be made for the user's code, on the batch's thread.
        over: whether it is made, so that who still has its images has kept them.
        hits, misses: of the cache.
        chains: of each of torchvision's ``Compose``, how it is recorded.
    """

    def __init__(
        self,
        cache: OpenedCache | None = None,
        fill: Callable[[Any], torch.Tensor] | None = None,
        *,
        checks: bool = False,
        unmade: dict[int, Opened] | None = None,
    ) -> None:
        self.cache = cache
        self.fill = fill
        self.checks = checks
        self.unmade = unmade
        self.opened = self.given = self.read = 0
        self.failed = self.over = False
        self.hits = self.misses = 0
        self.chains: dict[Any, Any] = {}
        self.inner = Images()
        self._failed_before = _FAILED_ON_OTHERS[0]

    def has_failed(self) -> bool:
        """Whether an image could not be made so far, here or on a thread that was given one."""
        return self.failed or _FAILED_ON_OTHERS[0] != self._failed_before


class KeptPixels(NamedTuple):
    """Pixels of an image: uint8 (h, w, 3), what ``operations`` make of it in mode "RGB"."""

    opened: Opened
    operations: tuple[Operation, ...]
    pixels: np.ndarray


class _ThreadState(threading.local):
    deferring: bool | None = None
    decoded: tuple[Opened, Image] | None = None
    last: Opened | None = None
    times_asked = 0
    several = False
    shared: tuple[Operation, ...] = ()
    shared_before: tuple[Operation, ...] = ()
    kept: KeptPixels | None = None
    ahead: MadeAhead | None = None
    once_ns = 0
    making: Making | None = None

    def __init__(self) -> None:
        self.batch = BatchContext()
        self.causes: dict[tuple[str, str, int], tuple[int, int]] = {}


THREAD = _ThreadState()
"""The state of this thread.

batch: that it makes; of no batch where it makes none.
deferring: whether what it opens is deferred; None: nobody has said.
decoded: the image that it replayed last, while it defers: several views decode it once.
last, times_asked: the image of which ``single.py`` made something last, and how often it did.
several: whether it made something of the image before more than once.
shared: the operations that all it made of that image begins with.
shared_before: the same of the last one before of which it made more than one thing.
kept: what ``single.py`` keeps of an image.
ahead: what makes pixels ahead of the samples that ask for them.
making: the batch that it makes for no sample of another one, deferring or not; None: it makes none.
once_ns: CPU time of this process that went into proofs which the thread waited for.
"""

_OPENED: list[bool] = []  # not empty once a dataset has, in this process or one that it came of


@contextlib.contextmanager
def batch(context: BatchContext) -> Iterator[None]:
    """In here this thread makes a batch, which has a context of its own.

    It may be within another one, whose dataset iterates over a loader of its own.
    """
    before, THREAD.batch = THREAD.batch, context
    try:
        yield
    finally:
        THREAD.batch = before
        context.unmade = context.fill = None  # an image that is kept has the context, too
        context.over = True


def note_made(opened: Opened) -> None:
    """Note that the pixels of an image were made, so that it is not damaged."""
    unmade = THREAD.batch.unmade
    if unmade:
        unmade.pop(id(opened), None)


def note_opened() -> None:
    """Note that a dataset has opened images deferred, and may keep some for another loader."""
    if not _OPENED:
        _OPENED.append(True)


def may_be_kept() -> bool:
    """Whether a dataset of this process may have kept deferred images of an earlier batch."""
    return bool(_OPENED)


def note_failure() -> None:
    """Note that an image could not be made for the user's code."""
    if THREAD.deferring:
        THREAD.batch.failed = True
    else:
        _FAILED_ON_OTHERS[0] += 1


def _in_forked_child() -> None:
    # The user's code forked while it made a sample. Nobody there completes what is deferred, and no
    # thread makes anything ahead.
    if THREAD.deferring:
        THREAD.deferring = None
    THREAD.ahead = THREAD.making = None


os.register_at_fork(after_in_child=_in_forked_child)

OF_MODE = " of mode "
"""In the name of a cause: no code of the user asked, but the image has no bytes as channels."""

MOST_CAUSES = 1000  # a loader that never asks must not collect without end


class eagerly:
    """A context in which this thread opens images as without fastload."""

    def __enter__(self) -> None:
        self._before, THREAD.deferring = THREAD.deferring, False

    def __exit__(self, *error: object) -> None:
        THREAD.deferring = self._before


@contextlib.contextmanager
def cause(function: str) -> Iterator[None]:
    """A context: ``function`` asked for what is made in it, and its time counts as that cause's."""
    begin = time.perf_counter_ns()
    try:
        yield
    except Exception:
        note_failure()
        raise
    finally:
        elapsed_ns = time.perf_counter_ns() - begin
        key = (function, *_caller())
        causes = THREAD.causes
        if key in causes or len(causes) < MOST_CAUSES:
            count, ns = causes.get(key, (0, 0))
            causes[key] = count + 1, ns + elapsed_ns


def forget() -> None:
    """Let go of the images that this thread has decoded."""
    THREAD.decoded = THREAD.last = THREAD.kept = None


def materialised() -> list[Cause]:
    """What this thread materialised since it last asked, the most expensive first."""
    causes, THREAD.causes = THREAD.causes, {}
    listed = [Cause(*key, *value) for key, value in causes.items()]
    return sorted(listed, key=lambda cause: -cause.ns)


def _caller() -> tuple[str, int]:
    libraries = _libraries()
    frame = sys._getframe(2)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if not name.startswith(libraries) and not name.startswith("<"):
            break
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


@functools.cache
def _libraries() -> tuple[str, ...]:
    names = ("fastload", "torch", "torchvision", "PIL", "numpy", "cv2", "albumentations",
             "albucore", "datasets", "contextlib")  # fmt: skip
    files = [getattr(sys.modules.get(name), "__file__", None) for name in names]
    return tuple(
        f if f.endswith("contextlib.py") else os.path.dirname(f) + os.sep for f in files if f
    )
