"""Grain: a source, shuffle, map and batch on threads. Its worker processes were slower."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from bench.loaders.base import Batch, Loader, Setting, record
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
        dataset = dataset.map(functools.partial(_read, Finish(work))).to_iter_dataset(options)
        self._loader = dataset.batch(work.batch, drop_remainder=True, batch_fn=_stack)
        self._channels_last = work.memory_format == "channels_last"

    def epoch(self) -> Iterator[Batch]:
        for pixels, labels in self._loader:
            images = torch.from_numpy(pixels)
            if self._channels_last:
                images = images.contiguous(memory_format=torch.channels_last)
            yield images, torch.from_numpy(labels)


def _read(finish: Any, sample: tuple[str, int]) -> tuple[np.ndarray, int]:
    image, label = finish(record(sample))
    return image.numpy(), label


def _stack(samples: Any) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.stack([image for image, _ in samples]),
        np.array([label for _, label in samples], dtype=np.int64),
    )
