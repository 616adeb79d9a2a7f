"""NVIDIA DALI's CPU pipeline: reader, decoder and augmentations on its own threads."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from torch.utils.dlpack import from_dlpack

from bench.loaders.base import Batch, Loader, Setting
from bench.workload import MEAN, STD, Workload


class Dali(Loader):
    """A pipeline whose batches come through DLPack: no copy, unlike those of its PyTorch plugin.

    The decoder's defaults are kept: they are faster than Pillow's choices and a little rougher
    (no smooth chroma upsampling).
    """

    summary = "NVIDIA DALI, CPU pipeline over the files"
    needs = ("nvidia.dali",)

    def settings(self, work: Workload) -> list[Setting]:
        return [
            {"num_threads": work.threads, "prefetch": prefetch, "mmap": mmap}
            for prefetch, mmap in ((2, False), (2, True), (4, True))
        ]

    def open(self, work: Workload, setting: Setting) -> None:
        samples, _ = work.samples()
        self._batches = len(samples) // work.batch
        self._nhwc = work.memory_format == "channels_last"
        self._pipeline = _pipeline(work, setting)
        self._pipeline.build()

    def epoch(self) -> Iterator[Batch]:
        """The pipeline's own batches: each is valid until the next one is asked for."""
        for _ in range(self._batches):
            outputs = self._pipeline.run()
            images, labels = (from_dlpack(output.as_tensor()) for output in outputs)
            if self._nhwc:
                images = images.permute(0, 3, 1, 2)
            yield images, labels.squeeze(1).long()

    def close(self) -> None:
        self._pipeline = None


def _pipeline(work: Workload, setting: Setting) -> Any:
    dali: Any = importlib.import_module("nvidia.dali")  # whose own types lack most of it
    fn, types = dali.fn, dali.types

    channels_last = work.memory_format == "channels_last"
    decodes = "cpu" if work.device == "cpu" else "mixed"

    @dali.pipeline_def(
        batch_size=work.batch,
        num_threads=setting["num_threads"],
        device_id=None if work.device == "cpu" else 0,
        prefetch_queue_depth=setting["prefetch"],
        seed=0,
    )
    def pipeline() -> Any:
        files, labels = fn.readers.file(
            file_root=work.images,
            random_shuffle=work.shuffled,
            initial_fill=1024,
            dont_use_mmap=not setting["mmap"],
        )
        mirror = fn.random.coin_flip() if work.recipe != "eval" else 0
        crop = {}
        if work.recipe == "train":
            images = fn.decoders.image_random_crop(
                files,
                device=decodes,
                random_aspect_ratio=[3 / 4, 4 / 3],
                random_area=[0.08, 1.0],
                num_attempts=10,
            )
            images = fn.resize(images, size=[work.size, work.size], antialias=False)
        elif work.recipe == "eval":
            images = fn.decoders.image(files, device=decodes)
            images = fn.resize(images, resize_shorter=work.resize, antialias=False)
            crop = {"crop": (work.size, work.size)}
        else:
            images = fn.decoders.image(files, device=decodes)
            places = [float(shift) for shift in range(-4, 5)]
            images = fn.slice(
                images,
                start=fn.cast(fn.random.uniform(values=places, shape=[2]), dtype=types.INT32),
                shape=[work.size, work.size],
                axes=[0, 1],
                out_of_bounds_policy="pad",
            )
        how = {"dtype": types.UINT8}
        if work.dtype == "float32":
            mean, std = ([255 * value for value in values] for values in (MEAN, STD))
            how = {"dtype": types.FLOAT, "mean": mean, "std": std}
        layout = "HWC" if channels_last else "CHW"
        images = fn.crop_mirror_normalize(
            images, output_layout=layout, mirror=mirror, **how, **crop
        )
        return images, labels if work.device == "cpu" else labels.gpu()

    return pipeline()
