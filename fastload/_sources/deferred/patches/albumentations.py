"""What fastload exchanges in Albumentations: the end of most of its pipelines.

``Normalize`` makes floats of bytes, and ``ToTensorV2`` a tensor of them. Both do it level by level,
so their tensor is deferred: a copy of the bytes, and a table of what ``Normalize`` makes of each
level, which ``Normalize`` itself has made. All before that runs as it is, on real arrays.

Note [From Normalize to ToTensorV2]
    ``Normalize`` is also called by itself, where its result has to be an array of floats. Only
    while a ``Compose`` runs whose last transform is ``ToTensorV2``, and the one before
    ``Normalize``, it gives the bytes, and notes that. Only that ``ToTensorV2`` gets them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Final

import albumentations
import numpy as np
import torch
from albumentations.pytorch import ToTensorV2

from ...._base import randomness
from ..from_array import deferred_pixels, may_defer, note_array
from ..guarded import Function
from ..memory import of_image
from ..redirect import holds
from ..tensor import DeferredTensor, record
from ..thread_state import THREAD
from .patch import Patch
from .proof import Proof, ProofInputs, Same

_RAMP: Final[np.ndarray] = np.arange(256, dtype=np.uint8).reshape(256, 1, 1).repeat(3, 2)

# Targets of several images at once, for which ``Normalize`` is called in other ways.
_SEVERAL: Final = frozenset(("images", "volume", "volumes"))


class _PipelineState(threading.local):
    """What this thread knows of the pipeline that it runs.

    Attributes:
        ending: the ``Normalize`` of the ``Compose`` that runs, if ``ToTensorV2`` follows.
        levels: what it was given and has given back, each with the table of its values.
    """

    ending: Any = None
    levels: tuple[tuple[np.ndarray, bytes], ...] = ()


_THREAD: Final = _PipelineState()


def _compose(original: Function) -> Function:
    def call(self: Any, force_apply: Any, args: Any, data: Any) -> Any:
        before = _THREAD.ending, _THREAD.levels
        _THREAD.ending, _THREAD.levels = _ending(self, data) if THREAD.deferring else None, ()
        try:
            result = original(self, *args, force_apply=force_apply, **data)
            assert not _THREAD.levels, "ToTensorV2 gets what Normalize gives"
            return result
        finally:
            _THREAD.ending, _THREAD.levels = before

    return call


def _ending(compose: Any, data: dict[str, Any]) -> Any:
    """The ``Normalize`` before the ``ToTensorV2`` that ends a ``Compose``; None: it ends otherwise.

    ``data``: what it is called with.
    """
    transforms = compose.transforms
    if type(compose) is not albumentations.Compose or len(transforms) < 2:
        return None
    if not _SEVERAL.isdisjoint(data):
        return None
    normalize, last = transforms[-2:]
    if type(normalize) is not albumentations.Normalize or type(last) is not ToTensorV2:
        return None
    if last.p < 1 or last.replay_mode or "apply" in {**vars(normalize), **vars(last)}:
        return None
    if not _SEVERAL.isdisjoint(getattr(normalize, "_additional_targets", {}).values()):
        return None
    return normalize if holds(ToTensorV2.apply) else None


def _normalize(original: Function) -> Function:
    def apply(self: Any, img: Any, **params: Any) -> Any:
        if self is not _THREAD.ending or not img.flags.c_contiguous or not may_defer(img):
            return original(self, img, **params)
        table = _table(original, self)  # each time, since its settings may change
        if table is None:
            return original(self, img, **params)
        note_array()
        levels = img.view()
        _THREAD.levels += ((levels, table),)
        return levels

    return apply


def _table(original: Function, normalize: Any) -> bytes | None:
    """What it makes of each level: float32 (3, 256); None: not such a table."""
    if getattr(normalize, "normalization", "standard") != "standard":
        return None
    values = original(normalize, _RAMP.copy())
    if values.dtype != np.float32 or values.shape != _RAMP.shape:
        return None
    return _once(values.transpose(2, 1, 0).tobytes())


@functools.lru_cache(8)
def _once(table: bytes) -> bytes:
    """An equal one that was made before, of which another process gets one for a whole batch."""
    return table


def _to_tensor(original: Function) -> Function:
    def apply(self: Any, img: Any, **params: Any) -> Any:
        for levels, table in _THREAD.levels:
            if levels is img:
                _THREAD.levels = tuple(noted for noted in _THREAD.levels if noted[0] is not img)
                return _deferred(levels, table)
        return original(self, img, **params)

    return apply


def _deferred(levels: np.ndarray, table: bytes) -> torch.Tensor:
    """The tensor of what ``Normalize`` makes of these bytes."""
    image = deferred_pixels(levels.tobytes(), (levels.shape[1], levels.shape[0]))
    tensor = DeferredTensor._of(of_image(image, "to_image"))
    return record(tensor, ("look_up", table))


# Proofs.


def _same(call: Callable[[Function, ProofInputs], Any]) -> Proof:
    """The proof of what may draw from any generator, and leaves them as they were."""

    def proof(original: Function, ours: Function) -> str:
        before = randomness.get()
        try:
            return Same(call)(original, ours)
        finally:
            randomness.put(before)

    return proof


def _normalized(apply: Function, inputs: ProofInputs) -> Any:
    normalize = albumentations.Normalize()
    if not THREAD.deferring:
        return torch.from_numpy(apply(normalize, inputs.array).transpose(2, 0, 1))
    _THREAD.ending = normalize
    apply(normalize, inputs.array)
    (levels,) = _THREAD.levels
    return _deferred(*levels)


def _tensor_of_table(apply: Function, inputs: ProofInputs) -> Any:
    table = np.random.default_rng(0).random((3, 256), np.float32)
    image = inputs.array
    if THREAD.deferring:
        _THREAD.levels = ((image, table.tobytes()),)
    else:
        image = np.stack([table[c][image[..., c]] for c in range(3)], axis=2)
    return apply(ToTensorV2(), image)


def _composed(call: Function, inputs: ProofInputs) -> Any:
    compose = albumentations.Compose([albumentations.Normalize(), ToTensorV2()])
    data = {"image": inputs.array, "mask": inputs.array[..., 0]}
    result = call(compose, False, (), data) if THREAD.deferring else call(compose, **data)
    return [result["image"], result["mask"]]


_WHY: Final = "its floats are made for the whole batch, where its tensor is stacked"
_KEPT_BY: Final = (
    "Albumentations over cv2.imread and over Pillow (any-dataset, albumentations, cv2)"
)

PATCHES: Final = [
    Patch(
        names=("albumentations.Normalize.apply",),
        ours=_normalize,
        why=_WHY,
        kept_by=_KEPT_BY,
        proof=_same(_normalized),
    ),
    Patch(
        names=("albumentations.pytorch.ToTensorV2.apply",),
        ours=_to_tensor,
        why=_WHY,
        kept_by=_KEPT_BY,
        proof=_same(_tensor_of_table),
    ),
    Patch(
        names=("albumentations.Compose.__call__",),
        ours=_compose,
        why="it says whether the one follows the other",
        kept_by=_KEPT_BY,
        proof=_same(_composed),
    ),
]
"""Albumentations' functions that are exchanged."""
