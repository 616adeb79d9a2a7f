"""The whole dataset as one tensor in memory, augmented a batch at a time by torch itself.

A usual shortcut for CIFAR. No workers: torch's own threads do the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from bench.loaders.base import Batch, Loader, Setting
from bench.workload import MEAN, STD, Workload


class TorchArray(Loader):
    summary = "the whole set as one tensor, cropped and flipped batchwise by torch indexing"
    needs = ("PIL",)
    store = "array"

    def refusal(self, work: Workload) -> str | None:
        if work.pixels == "raw" and work.recipe == "small":
            return None
        return "needs small raw images of one size"

    def pack(self, work: Workload, folder: Path) -> None:
        from PIL import Image

        samples, _ = work.samples()
        pixels = np.stack([np.asarray(Image.open(path).convert("RGB")) for path, _ in samples])
        np.savez(folder / "all.npz", pixels=pixels, labels=[label for _, label in samples])

    def settings(self, work: Workload) -> list[Setting]:
        return [{"threads": work.threads, "normalise": "once"}]

    def open(self, work: Workload, setting: Setting) -> None:
        torch.set_num_threads(setting["threads"])
        self._work = work
        with np.load(self.store_folder(work) / "all.npz") as stored:
            pixels = torch.from_numpy(stored["pixels"]).permute(0, 3, 1, 2)
            self._labels = torch.from_numpy(stored["labels"]).long()
        mean, std = (torch.tensor(value).view(3, 1, 1) for value in (MEAN, STD))
        # Normalised and padded once: 12 bytes a pixel fit into memory at this size only.
        whole = torch.empty(len(pixels), 3, work.size + 8, work.size + 8)
        whole[:] = (0 - mean) / std
        whole[:, :, 4:-4, 4:-4] = (pixels.float() / 255 - mean) / std
        layout = torch.channels_last if work.memory_format == "channels_last" else None
        self._whole = whole.contiguous(memory_format=layout) if layout else whole

    def epoch(self) -> Iterator[Batch]:
        size, batch = self._work.size, self._work.batch
        order = torch.randperm(len(self._whole))
        side = torch.arange(size)
        for at in range(0, len(order) - batch + 1, batch):
            chosen = order[at : at + batch]
            rows = torch.randint(0, 9, (batch, 1)) + side
            columns = torch.randint(0, 9, (batch, 1)) + side
            flip = torch.rand(batch) < 0.5
            columns[flip] = columns[flip].flip(1)
            # One gather does crop and flip; channels stay where they are.
            images = self._whole.permute(0, 2, 3, 1)[
                chosen[:, None, None], rows[:, :, None], columns[:, None, :]
            ].permute(0, 3, 1, 2)
            if self._work.memory_format == "contiguous":
                images = images.contiguous()
            yield images, self._labels[chosen]

    def close(self) -> None:
        del self._whole
