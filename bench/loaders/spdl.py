"""SPDL: a pipeline of threads. simplejpeg was faster in it than its own FFmpeg decoder."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import torch

from bench.loaders.base import Batch, Loader, Setting
from bench.workload import Workload

Source = list[tuple[str, int]]


class Spdl(Loader):
    summary = "SPDL pipeline of threads, simplejpeg and OpenCV"
    needs = ("spdl.pipeline", "simplejpeg", "cv2")

    def settings(self, work: Workload) -> list[Setting]:
        return [{"concurrency": work.threads, "buffer": 3}]

    def open(self, work: Workload, setting: Setting) -> None:
        self._work, self._setting = work, setting
        self._samples, _ = work.samples()

    def epoch(self) -> Iterator[Batch]:
        from spdl.pipeline import PipelineBuilder

        order = list(self._samples)
        if self._work.shuffled:
            random.shuffle(order)
        pipeline = (
            PipelineBuilder()
            .add_source(order)
            .aggregate(self._work.batch, drop_last=True)
            .pipe(
                self._decode,
                concurrency=self._setting["concurrency"],
                output_order="completion" if self._work.shuffled else "input",
            )
            .add_sink(self._setting["buffer"])
            .build(num_threads=self._setting["concurrency"])
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    def _decode(self, source: Source) -> Batch:
        """A whole batch on one thread."""
        from bench.loaders import _opencv

        images = _opencv.empty(self._work, len(source))
        for (path, _), out in zip(source, images.numpy(), strict=True):
            _opencv.finish(Path(path).read_bytes(), self._work, out)
        return images, torch.tensor([label for _, label in source])
