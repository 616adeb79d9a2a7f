"""Loaders whose batches end on a GPU: the gpu-decode suite's.

In its toy run, and only there, they run without one (``work.device`` is "cpu"): DALI on
its CPU back end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from bench.loaders.base import Batch, Setting
from bench.loaders.dali import Dali
from bench.loaders.fastload import Lmdb
from bench.loaders.torch_dataloader import TorchPil
from bench.workload import Workload


def finished(device: str, batches: Iterator[Batch]) -> Iterator[Batch]:
    """``batches``; the epoch ends when the device has finished its work."""
    yield from batches
    if device != "cpu":
        torch.cuda.synchronize(device)


class _Fastload(Lmdb):
    decodes: dict[str, Any]

    def source(self, work: Workload) -> dict[str, Any]:
        self._device = work.device
        device = {} if work.device == "cpu" else {"device": work.device}
        return {**super().source(work), **device, **self.decodes}

    def epoch(self) -> Iterator[Batch]:
        yield from finished(self._device, super().epoch())


class FastloadDali(_Fastload):
    summary = "FastLoader on LMDB, decoded by DALI on the GPU"
    needs = ("fastload", "torchvision", "nvidia.dali")
    decodes = {"engine": "dali"}

    def settings(self, work: Workload) -> list[Setting]:
        return [{"num_workers": work.threads, "prefetch_factor": ahead} for ahead in (2, 3)]


class FastloadNative(_Fastload):
    summary = "FastLoader on LMDB, decoded by the CPU, copied as uint8 and finished on the GPU"
    decodes = {"engine": "native"}


class FastloadNativeDct(FastloadNative):
    summary = "the same from DCT records"
    store = "fastload-dct"
    encode = "dct"


class TorchPilCuda(TorchPil):
    summary = "torch DataLoader, Pillow, pinned memory, copied by the training loop"

    def options(self, work: Workload) -> dict[str, Any]:
        self._device = work.device
        return {**super().options(work), "pin_memory": work.device != "cpu"}

    def epoch(self) -> Iterator[Batch]:
        yield from finished(self._device, self._moved())

    def _moved(self) -> Iterator[Batch]:
        for images, labels in super().epoch():
            yield (
                images.to(self._device, non_blocking=True),
                labels.to(self._device, non_blocking=True),
            )


class DaliReader(Dali):
    summary = "NVIDIA DALI's own reader and pipeline over the files, decoded on the GPU"

    def open(self, work: Workload, setting: Setting) -> None:
        self._device = work.device
        super().open(work, setting)

    def epoch(self) -> Iterator[Batch]:
        yield from finished(self._device, super().epoch())
