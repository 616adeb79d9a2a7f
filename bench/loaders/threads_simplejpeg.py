"""A plain thread pool with simplejpeg and OpenCV, which both release the GIL.

Forty lines that users write when DataLoader's processes are too slow: samples are written straight
into batch buffers that are used in turn, and a few batches are always in flight.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.loaders.base import Batch, Loader, Setting
from bench.workload import Workload


class ThreadsSimplejpeg(Loader):
    summary = "a thread pool, files decoded by simplejpeg, resized by OpenCV"
    needs = ("simplejpeg", "cv2")

    def settings(self, work: Workload) -> list[Setting]:
        return [
            {"threads": work.threads, "batches_ahead": ahead, "buffers": "reused", "chunk": chunk}
            for ahead in (2, 4)
            for chunk in ((1, 8) if work.size > 64 else (32, 128))
        ]

    def open(self, work: Workload, setting: Setting) -> None:
        from bench.loaders import _opencv

        self._finish = _opencv.finish
        self._work = work
        self._samples, _ = work.samples()
        self._labels = torch.tensor([label for _, label in self._samples])
        self._pool = ThreadPoolExecutor(setting["threads"])
        self._ahead, self._chunk = setting["batches_ahead"], setting["chunk"]
        self._buffers = [_opencv.empty(work, work.batch) for _ in range(self._ahead + 1)]

    def epoch(self) -> Iterator[Batch]:
        order = list(range(len(self._samples)))
        if self._work.shuffled:
            random.shuffle(order)
        size = self._work.batch
        batches = [order[at : at + size] for at in range(0, len(order) - size + 1, size)]
        pending: collections.deque[tuple[list[Future[None]], torch.Tensor, list[int]]]
        pending = collections.deque()
        for number, batch in enumerate(batches):
            if len(pending) == self._ahead:
                yield self._finished(*pending.popleft())
            buffer = self._buffers[number % len(self._buffers)]
            pixels = buffer.numpy()
            starts = range(0, size, self._chunk)
            jobs = [
                self._pool.submit(self._fill, batch[at : at + self._chunk], pixels[at:])
                for at in starts
            ]
            pending.append((jobs, buffer, batch))
        while pending:
            yield self._finished(*pending.popleft())

    def _fill(self, indices: list[int], out: np.ndarray) -> None:
        for index, slot in zip(indices, out, strict=False):
            self._finish(Path(self._samples[index][0]).read_bytes(), self._work, slot)

    def _finished(self, jobs: list[Future[None]], buffer: torch.Tensor, batch: list[int]) -> Any:
        for job in jobs:
            job.result()
        return buffer, self._labels[batch]

    def close(self) -> None:
        self._pool.shutdown()
