"""States in which a program may be when it first calls a function that fastload exchanges.

As a script, given the name of one, it prints as JSON what is left out while the program is in that
state, and after the next epoch has begun, when it no longer is.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import cv2
import numpy as np
import PIL.Image
import PIL.ImageFile
import torch
import torchvision.io  # noqa: F401 - as a program does that reads with it
from torch.nn.modules import module as torch_module
from torchvision import transforms
from torchvision.transforms import functional, v2

import releases


@contextlib.contextmanager
def _set(holder: Any, name: str, value: Any) -> Iterator[None]:
    before = holder.__dict__[name]
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


@contextlib.contextmanager
def _called(set_state: Callable[[Any], Any], value: Any, before: Any) -> Iterator[None]:
    set_state(value)
    try:
        yield
    finally:
        set_state(before)


@contextlib.contextmanager
def _warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@contextlib.contextmanager
def _a_hook_of_all_modules() -> Iterator[None]:
    def refuse(*args: Any) -> None:
        raise AssertionError("a module was called that is not the program's")

    hook = torch_module.register_module_forward_pre_hook(refuse)
    try:
        yield
    finally:
        hook.remove()


@contextlib.contextmanager
def _no_threads() -> Iterator[None]:
    def refused(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("can't start new thread")

    with _set(threading.Thread, "start", refused):
        yield


REPLACING = (
    "a function replaced", "v2's function replaced", "a draw replaced", "a jitter's draw replaced"
)  # fmt: skip
"""States in which a function is rightly left out: it does what the program says."""

WITHOUT_THREADS = "no threads"

STATES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "nothing special": contextlib.nullcontext,
    "float64": lambda: _called(torch.set_default_dtype, torch.float64, torch.float32),
    "float16": lambda: _called(torch.set_default_dtype, torch.float16, torch.float32),
    "few pixels": lambda: _set(PIL.Image, "MAX_IMAGE_PIXELS", 50),
    "hardly a pixel": lambda: _set(PIL.Image, "MAX_IMAGE_PIXELS", 1),
    "any number of pixels": lambda: _set(PIL.Image, "MAX_IMAGE_PIXELS", None),
    "truncated images": lambda: _set(PIL.ImageFile, "LOAD_TRUNCATED_IMAGES", True),
    "deterministic": lambda: _called(torch.use_deterministic_algorithms, True, False),
    "another device": lambda: torch.device("meta"),
    "inference": torch.inference_mode,
    "no gradients": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "warnings are errors": _warnings_are_errors,
    "NumPy raises": lambda: np.errstate(all="raise"),
    "one thread of torch's": lambda: _called(torch.set_num_threads, 1, torch.get_num_threads()),
    "no thread of OpenCV's": lambda: _called(cv2.setNumThreads, 0, cv2.getNumThreads()),
    "OpenCV without its fast code": lambda: _called(cv2.setUseOptimized, False, True),
    "no numbers below the least": lambda: _called(torch.set_flush_denormal, True, False),
    "a hook of all modules": _a_hook_of_all_modules,
    "a function replaced": lambda: _set(functional, "hflip", lambda image: image),
    "v2's function replaced": lambda: _set(v2.functional, "adjust_hue", lambda image, by: image),
    "a draw replaced": lambda: _set(
        transforms.RandomCrop, "get_params", staticmethod(lambda image, size: (0, 0, *size))
    ),
    "a jitter's draw replaced": lambda: _set(
        transforms.ColorJitter,
        "get_params",
        staticmethod(lambda *ranges: (torch.arange(4), None, None, None, None)),
    ),
    "no temporary folder": lambda: _set(tempfile, "tempdir", "/nonexistent"),
    WITHOUT_THREADS: _no_threads,
}


def _look(name: str) -> dict[str, Any]:
    from fastload._run.workers.deferral import begin_epoch
    from fastload._sources.deferred import guarded
    from fastload._sources.deferred.patches import patch

    with STATES[name]():
        begin_epoch()
        meanwhile = releases.unexpected(guarded.left_out())
    begin_epoch()
    afterwards = releases.unexpected(guarded.left_out())
    return {"meanwhile": meanwhile, "afterwards": afterwards + patch.MISSING + guarded._OPEN}


if __name__ == "__main__":
    print(json.dumps(_look(sys.argv[1]), default=repr))
