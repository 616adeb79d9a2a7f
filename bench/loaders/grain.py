"""Grain: a source, shuffle, map and batch on threads. Its worker processes were slower."""

from __future__ import annotations

from typing import Any

import torch

from bench.loaders.base import Loader, Setting, record
from bench.workload import Workload


class Grain(Loader):
    summary = "Grain MapDataset over the files, simplejpeg and OpenCV"
    needs = ("grain", "simplejpeg", "cv2")

    def settings(self, work: Workload) -> list[Setting]:
        return [{"read_threads": work.threads, "prefetch": ahead * work.batch} for ahead in (2, 4)]

    def open(self, work: Workload, setting: Setting) -> None:
        import grain

        from bench.loaders._opencv import Finish

        samples, _ = work.samples()
        dataset: Any = grain.MapDataset.source(samples).seed(0)
        if work.shuffled:
            dataset = dataset.shuffle()
        options = grain.ReadOptions(
            num_threads=setting["read_threads"], prefetch_buffer_size=setting["prefetch"]
        )
        dataset = dataset.map(record).map(Finish(work)).to_iter_dataset(options)
        self._loader = dataset.batch(work.batch, drop_remainder=True, batch_fn=_stack)
        self._channels_last = work.memory_format == "channels_last"


def _stack(samples: Any) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = zip(*samples)
    return torch.stack(images), torch.tensor(labels)
