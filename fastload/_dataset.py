"""PackedDataset: a packed store as a map-style dataset."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from . import _cpu
from ._buffers import SlabRing
from ._collate import ReadyBatch, label_batch, samples_of
from ._engine import make_decoder
from ._engine.decoder import Decoder
from ._transforms import Plan, recognise
from .errors import UsageError
from .storage import open_store
from .storage.base import Store


class PackedDataset(Dataset[Any]):
    """The images of a packed store, with torchvision's interface.

    A sample is ``(image, label)``, or the image alone where the store has no labels. Without a
    transform the image is a uint8 tensor (3, height, width), RGB. Works in torch's own DataLoader
    too, where ``__getitems__`` decodes a whole batch natively.

    Example:
        >>> dataset = PackedDataset("imgs.lmdb", transform=train_tf)
        >>> image, label = dataset[0]

    Args:
        path: a store that ``fastload pack`` wrote, or an open ``Store``.
        transform: as for torchvision's ImageFolder. What fastload recognises runs in the native
            core; any other callable gets a PIL image.
        target_transform: called with each label.
        seed: with an int, augmentation is a pure function of (seed, epoch, index); with None each
            batch draws a seed from torch's global generator.

    Attributes:
        store: the open store.
        classes: class names.
        class_to_idx: class name -> label.

    Raises:
        StoreNotFoundError: nothing lies under ``path``.
        StoreError: the store is damaged, unfinished, or of an unknown version.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Store,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        self.store = path if isinstance(path, Store) else open_store(os.fspath(path))
        self.transform = transform
        self.target_transform = target_transform
        self.seed = seed
        self.classes = list(self.store.classes)
        self.class_to_idx = {name: label for label, name in enumerate(self.classes)}
        # Shared memory, so that persistent workers see the epoch that the main process sets.
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()
        self._made: tuple[object, Plan, Decoder] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that augmentation is drawn for; seen by running workers too."""
        self._epoch[0] = epoch

    @functools.cached_property
    def targets(self) -> list[int]:
        """The label of every sample, or an empty list in a store without labels."""
        labels = self.store.labels
        return [] if labels is None else list(labels.tolist())

    @functools.cached_property
    def samples(self) -> list[tuple[str, int]]:
        """(key, label) of every sample; the label is -1 in a store without labels."""
        keys = self.store.keys(np.arange(len(self), dtype=np.int64))
        return list(zip(keys, self.targets or [-1] * len(keys), strict=True))

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, index: int) -> Any:
        """Sample ``index``; negative indices count from the end. Raises IndexError beyond it."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples ``indices``, decoded as one batch: a list that carries the batch."""
        records = np.array([self._position(index) for index in indices], dtype=np.int64)
        labels = self.store.labels
        picked = None if labels is None else labels[records]
        decoder = self._decoder()
        if decoder is None:
            return self._through_python(records, picked)
        seed, epoch = self._draw()
        if not decoder.plan.fixed_size and not self._same_size(records):
            images = [decoder.submit(records[i : i + 1], seed=seed, epoch=epoch).result()[0]
                      for i in range(len(records))]
            return self._pair(images, picked)
        batch = decoder.submit(records, seed=seed, epoch=epoch).result()
        samples = samples_of(batch, picked, self.target_transform)
        if picked is None:
            return ReadyBatch(samples, batch)
        if self.target_transform is not None:  # its results are in `samples`; not called twice
            return samples
        return ReadyBatch(samples, [batch, label_batch(picked, None)])

    def _position(self, index: int) -> int:
        n = len(self.store)
        position = operator.index(index)
        if not -n <= position < n:
            raise IndexError(f"index {position} is out of range for a dataset of {n} samples")
        return position % n

    def _same_size(self, records: np.ndarray) -> bool:
        sizes = self.store.sizes(records)
        return bool((sizes == sizes[:1]).all())

    def _draw(self) -> tuple[int, int]:
        if self.seed is None:
            return int(torch.empty((), dtype=torch.int64).random_().item()), 0
        return self.seed, int(self._epoch[0])

    def _decoder(self) -> Decoder | None:
        """The decoder of this process, or None where the transform has to run in Python."""
        if self._made is None or self._made[0] is not self.transform:
            plan = recognise(self.transform)
            if not isinstance(plan, Plan):
                return None
            # A worker process is one of many: it decodes on its own thread.
            threads = 0 if get_worker_info() is not None else _cpu.available()
            decoder = make_decoder("auto", self.store, plan, threads=threads, ring=SlabRing(2))
            self._made = (self.transform, plan, decoder)
        return self._made[2]

    def _through_python(self, records: np.ndarray, labels: np.ndarray | None) -> list[Any]:
        from ._engine.python import decode_record

        if self.transform is None:
            raise UsageError("a PackedDataset without a transform is always decoded natively")
        images = [self.transform(decode_record(self.store, int(record))) for record in records]
        return self._pair(images, labels)

    def _pair(self, images: list[Any], labels: np.ndarray | None) -> list[Any]:
        if labels is None:
            return images
        targets: list[Any] = labels.tolist()
        if self.target_transform is not None:
            targets = [self.target_transform(label) for label in targets]
        return list(zip(images, targets, strict=True))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}

    def __repr__(self) -> str:
        return (
            f"PackedDataset({self.store.path!r}, {len(self)} samples, {len(self.classes)} classes)"
        )
