"""Samples of a store whose transform Python runs: over deferred images, if that is possible.

A FastLoader that defers gets deferred samples, and completes them when it has the batch. For
torch's own DataLoader, and for ``dataset[i]``, the samples are completed here, a batch at a time,
and are plain tensors and images.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from .. import _native
from .._base import randomness
from .._base.machine import cpu
from .._base.per_process import PerProcess
from .._base.slabs import SlabRing
from .deferred.needed import has_tensors, loaded

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..storage.base import Store
    from .deferred.batch import BatchDecoder

# Slabs of the batches of one process: one in use, and one being made.
_SLABS = 2

Make = Callable[["Image", int], Any]
"""The sample of an image, RGB, and of its position in the batch."""


def own_threads() -> int:
    """Threads of a dataset that decodes itself: only the caller's (0) in one of many workers."""
    return 0 if get_worker_info() is not None else cpu.available()


class PythonSamples:
    """Makes samples. It can be pickled; each process has its own threads."""

    def __init__(self) -> None:
        self._decoders: PerProcess[BatchDecoder] = PerProcess()

    def __call__(
        self, store: Store, records: np.ndarray, make: Make, *, check: bool = True
    ) -> torch.Tensor | list[Any]:
        """What ``make`` makes of each of ``records`` (int64, in range): a list, or one tensor.

        Args:
            store, records: what is read.
            make: the user's code. It may be called twice for a record, if an image of the batch is
                damaged, with the global generators in the same states.
            check: whether to verify checksums.

        Raises:
            DataError: a record cannot be read. What ``make`` raises is raised as it is.
        """
        from .deferred.thread_state import THREAD

        if THREAD.deferring:
            samples = _deferred(store, records, make)
            if samples is not None:
                return samples
        elif THREAD.deferring is None and _possible():
            completed = self._completed(store, records, make)
            if completed is not None:
                return completed
        from .._engine.pillow import decode_record

        return [
            make(decode_record(store, record, check=check), i)
            for i, record in enumerate(records.tolist())
        ]

    def _completed(
        self, store: Store, records: np.ndarray, make: Make
    ) -> torch.Tensor | list[Any] | None:
        """The samples, made of deferred images; None: they are to be made of decoded ones."""
        from .deferred.attempt import attempt
        from .deferred.completion import DeferredObjects, replaced
        from .deferred.thread_state import BatchContext, materialised

        def complete(samples: list[Any]) -> torch.Tensor | list[Any]:
            batch, deferred = _stacked(samples), DeferredObjects()
            replaced(batch, deferred.add)
            deferred.check_others()
            completed: torch.Tensor | list[Any] = deferred.completed(batch, self._decoder())
            return completed

        restore = functools.partial(randomness.put, randomness.get())
        try:
            return attempt(
                BatchContext(unmade={}), lambda: _deferred(store, records, make), complete, restore
            )
        finally:
            materialised()  # nobody is told why

    def _decoder(self) -> BatchDecoder:
        from .deferred.batch import BatchDecoder

        decoder = self._decoders.get()
        return decoder or self._decoders.put(BatchDecoder(own_threads(), SlabRing(_SLABS)))


def _deferred(store: Store, records: np.ndarray, make: Make) -> list[Any] | None:
    """The samples, of deferred images; None: of these records there are none."""
    from .deferred.record_images import record_images

    images = record_images(store, records)
    if images is None:
        return None
    return [make(image, i) for i, image in enumerate(images)]


def _possible() -> bool:
    """Whether images can be deferred in this process, by the user's wish and by what there is."""
    return os.environ.get("FASTLOAD_DEFER") != "0" and loaded() and _native.load() is not None


def _stacked(samples: Sequence[Any]) -> Any:
    """One deferred batch of the samples if they are deferred tensors of one kind; else a list."""
    if not has_tensors():
        return list(samples)
    from .deferred.tensor import DeferredTensor

    if all(type(sample) is DeferredTensor for sample in samples):
        if len({(sample.shape, sample.dtype) for sample in samples}) == 1:
            return torch.stack(list(samples))
    return list(samples)


class EveryView:
    """A list of transforms as one: a view of the image for each.

    Args:
        transforms: None gives the image's pixels: uint8 (3, h, w), RGB.
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any] | None]) -> None:
        self.transforms = tuple(transforms)

    def __call__(self, image: Image) -> list[Any]:
        """The views of ``image``, in order."""
        return [_levels(image) if view is None else view(image) for view in self.transforms]


def _levels(image: Image) -> torch.Tensor:
    """The pixels of an RGB image: uint8 (3, h, w)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
