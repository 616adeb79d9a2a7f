"""SPDL: a pipeline of threads, with its own FFmpeg decoder or with simplejpeg."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import torch

from bench.loaders.base import Batch, Loader, Setting
from bench.workload import Workload

Source = list[tuple[str, int]]


class Spdl(Loader):
    summary = "SPDL pipeline of threads: spdl.io (FFmpeg) or simplejpeg and OpenCV"
    needs = ("spdl.io", "spdl.pipeline", "simplejpeg", "cv2")

    def settings(self, work: Workload) -> list[Setting]:
        own = ["spdl.io"] if work.recipe == "train" and work.pixels != "raw" else []
        return [
            {"decoder": decoder, "concurrency": work.threads, "buffer": 3}
            for decoder in ["simplejpeg", *own]
        ]

    def open(self, work: Workload, setting: Setting) -> None:
        from bench.loaders import _opencv

        self._opencv = _opencv
        self._work, self._setting = work, setting
        self._samples, _ = work.samples()
        fill = {"spdl.io": self._decode_spdl, "simplejpeg": self._decode_simplejpeg}
        self._decode = fill[setting["decoder"]]

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

    def _decode_simplejpeg(self, source: Source) -> Batch:
        """A whole batch on one thread."""
        work = self._work
        images = self._opencv.empty(work, len(source))
        for (path, _), out in zip(source, images.numpy(), strict=True):
            self._opencv.write(self._opencv.augment(self._opencv.read(path), work), out)
        return images, torch.tensor([label for _, label in source])

    def _decode_spdl(self, source: Source) -> Batch:
        import spdl.io

        frames = []
        for path, _ in source:
            packets = spdl.io.demux_image(path)
            x, y, w, h = self._opencv.random_resized_crop(packets.width, packets.height)
            flip = "hflip," if random.random() < 0.5 else ""
            size = self._work.size
            steps = f"crop={w}:{h}:{x}:{y},{flip}scale={size}:{size}:flags=bilinear,format=rgb24"
            frames.append(spdl.io.decode_packets(packets, filter_desc=steps))
        pixels = spdl.io.to_numpy(spdl.io.convert_frames(frames))
        images = self._opencv.empty(self._work, len(source))
        for image, out in zip(pixels, images.numpy(), strict=True):
            self._opencv.write(np.ascontiguousarray(image), out)
        return images, torch.tensor([label for _, label in source])
