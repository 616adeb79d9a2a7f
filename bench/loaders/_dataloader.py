"""What loaders built on torch's DataLoader have in common: its best settings, and its epochs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from bench.loaders._torchvision import mixed
from bench.loaders.base import Batch, Loader, Setting
from bench.workload import Workload


class DataLoaderBase(Loader):
    """torch's DataLoader around ``dataset(work)``, one worker process per thread."""

    def settings(self, work: Workload) -> list[Setting]:
        return [
            {"num_workers": work.threads, "prefetch_factor": prefetch, "persistent_workers": True}
            for prefetch in (2, 4)
        ]

    def dataset(self, work: Workload) -> Any:
        raise NotImplementedError

    def options(self, work: Workload) -> dict[str, Any]:
        """Further arguments of the DataLoader."""
        return {"batch_size": work.batch, "shuffle": work.shuffled, "drop_last": True}

    def open(self, work: Workload, setting: Setting) -> None:
        self._channels_last = work.memory_format == "channels_last"
        options = self.options(work)
        if work.recipe == "train-mixup":
            options["collate_fn"] = _Mixed(work)
        self._loader = DataLoader(self.dataset(work), **options, **setting)

    def epoch(self) -> Iterator[Batch]:
        for images, labels in self._loader:
            if self._channels_last:
                images = images.contiguous(memory_format=torch.channels_last)
            yield images, labels


class _Mixed:
    """The collate function that torchvision's documentation gives for MixUp and CutMix."""

    def __init__(self, work: Workload) -> None:
        self._mix = mixed(work)

    def __call__(self, samples: list[Any]) -> Any:
        return self._mix(*default_collate(samples))
