"""Proofs: before ours is called for the first time, it and the original are asked for the same.

The original gets a tiny real image, ours a deferred one of the same pixels. What comes of the
deferred one is made by the core, as for a batch, and has to be the original's, bit for bit. So has
what both leave of torch's generator, if they draw.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import PIL.Image
import torch

from ...._base.value_class import value_class
from .. import single
from ..from_array import deferred_pixels
from ..guarded import Function
from ..image import waiting
from ..operations import Layout
from ..recording import Operation, Recording
from ..thread_state import THREAD

Proof: TypeAlias = "Callable[[Function, Function], str]"
"""``proof(original, ours)`` says what is wrong with ours; "": nothing."""

_SIZE: Final = (11, 9)
_PIXELS: Final[np.ndarray] = np.random.default_rng(0).integers(0, 256, (*_SIZE[::-1], 3), np.uint8)
_WHITE: Final = 255.0
_TO_UNIT: Final[tuple[Operation, ...]] = (("to_dtype", "float32", False), ("div", _WHITE))
OTHER: Final = "it gives other values than fastload's"


class ProofInputs:
    """What a function is tried on: real or deferred objects of the same values."""

    def __init__(self, deferred: bool, marks: bool = False) -> None:
        self._deferred = deferred
        self._marks = marks

    def marked(self) -> ProofInputs:
        """These inputs, with tensors that v2 takes for images."""
        return ProofInputs(self._deferred, marks=True)

    @property
    def array(self) -> np.ndarray:
        """The pixels, uint8 (h, w, 3)."""
        pixels: np.ndarray = _PIXELS.copy()
        return pixels

    @functools.cached_property
    def image(self) -> Any:
        """A PIL image, RGB: the same at every call, since some functions are given two of it."""
        if self._deferred:
            return deferred_pixels(_PIXELS.tobytes(), _SIZE)
        return PIL.Image.frombytes("RGB", _SIZE, _PIXELS.tobytes())

    @property
    def tensor(self) -> Any:
        """Its tensor, float32 (3, h, w) in [0, 1], whatever the default dtype."""
        levels = self._levels()
        if not self._deferred:
            return self._as_marked(levels.to(torch.float32).div(_WHITE))
        from ..tensor import record

        return self._as_marked(functools.reduce(record, _TO_UNIT, levels))

    @property
    def levels(self) -> Any:
        """Its tensor, uint8 (3, h, w)."""
        return self._as_marked(self._levels())

    def _levels(self) -> Any:
        if not self._deferred:
            return torch.from_numpy(self.array).permute(2, 0, 1)
        from ..memory import of_image
        from ..tensor import DeferredTensor

        return DeferredTensor._of(of_image(self.image, "to_image"))

    def _as_marked(self, tensor: Any) -> Any:
        if not self._marks:
            return tensor
        from torchvision import tv_tensors

        return tensor.as_subclass(tv_tensors.Image)


@functools.cache
def jpeg() -> bytes:
    """The image as a file."""
    file = io.BytesIO()
    PIL.Image.frombytes("RGB", _SIZE, _PIXELS.tobytes()).save(file, "JPEG")
    return file.getvalue()


@contextlib.contextmanager
def path_of(data: bytes) -> Iterator[str]:
    """A path where ``data`` is, also where no folder can be written to."""
    with open(os.memfd_create("fastload"), "w+b") as file:
        file.write(data)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


@value_class()
class Same:
    """The proof that ``call(function, inputs)`` gives the same for both.

    Attributes:
        call: the call.
        seeds: of torch's generator, if it draws: it is tried from each.
        marked: tensors are marked as v2 does.
    """

    call: Callable[[Function, ProofInputs], Any]
    seeds: tuple[int, ...] = ()
    marked: bool = False

    def __call__(self, original: Function, ours: Function) -> str:
        """What is wrong with ours."""
        for seed in self.seeds or (None,):
            if self._outcome(original, seed, False) != self._outcome(ours, seed, True):
                return OTHER
        return ""

    def _outcome(self, function: Function, seed: int | None, deferred: bool) -> tuple[Any, ...]:
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        THREAD.deferring = deferred
        try:
            result = self.call(function, ProofInputs(deferred, self.marked))
        finally:
            THREAD.deferring = False
        state = None if seed is None else torch.default_generator.get_state().numpy().tobytes()
        return (*values(result), state)


def values(out: Any) -> tuple[Any, ...]:
    """What can be compared of an image or a tensor, or of several."""
    if isinstance(out, list):
        return tuple(map(values, out))
    if waiting(out):
        layout = Layout(torch.uint8, contiguous=False)
        ended = Recording(out._opened, (*out._operations, ("to_image",)), out._size, out._mode)
        pixels = single.tensor(ended, layout, least_pixels=0)
        if pixels is not None:
            levels = pixels.permute(1, 2, 0).numpy()
            return "image", out._mode, out._size, levels.tobytes()
        out = out.materialise()
    if isinstance(out, PIL.Image.Image):
        return "image", out.mode, out.size, out.tobytes()
    if isinstance(out, torch.Tensor):
        kind = getattr(type(out), "stands_for", type(out))
        out = _in_core(out)
        return kind, out.dtype, out.shape, out.stride(), out.contiguous().numpy().tobytes()
    return (out,)


def _in_core(tensor: Any) -> torch.Tensor:
    """The real tensor, made by the core where that can make it."""
    memory, rows = getattr(tensor, "_memory", None), getattr(tensor, "rows", ())
    if rows:
        from ..tensor import DeferredTensor

        return torch.stack([_in_core(DeferredTensor(row)) for row in rows])
    if memory is not None and memory.real is None:
        decoded = single.tensor(memory.recording(), memory.layout, least_pixels=0)
        tensor = tensor.materialise() if decoded is None else memory.as_told(decoded)
    real: torch.Tensor = tensor.as_subclass(torch.Tensor)
    return real
