"""FFCV, whose own file format is decoded by its C library inside compiled Python.

Its own writer would compress the images again. Here it stores the bytes of the files, so that all
loaders decode the same bytes. It is fastest with channels_last, which not every model uses, so both
layouts are measured. Batches are in its own buffers and are overwritten later.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bench.loaders.base import Loader, Setting
from bench.workload import MEAN, STD, Workload


class Ffcv(Loader):
    """NCHW as the other loaders, through one more copy."""

    summary = "FFCV, NCHW output"
    needs = ("ffcv",)
    store = "ffcv"

    def pack(self, work: Workload, folder: Path) -> None:
        from ffcv.fields import IntField, RGBImageField
        from ffcv.writer import DatasetWriter

        image = RGBImageField(write_mode="raw") if work.pixels == "raw" else _kept_jpeg_field()
        fields = {"image": image, "label": IntField()}
        samples, _ = work.samples()
        writer = DatasetWriter(str(folder / "images.beton"), fields, num_workers=work.threads)
        writer.from_indexed_dataset(_Files(samples, work.pixels), chunksize=50)

    def settings(self, work: Workload) -> list[Setting]:
        return [
            {"num_workers": work.threads, "batches_ahead": ahead, "os_cache": cached}
            for cached in (True, False)
            for ahead in (3, 6)
        ]

    def refusal(self, work: Workload) -> str | None:
        kept = work.pixels in ("jpeg", "raw")
        return None if kept else "stores JPEG or pixels: see the raw suites"

    def open(self, work: Workload, setting: Setting) -> None:
        from ffcv.fields.basics import IntDecoder
        from ffcv.fields.rgb_image import RGBImageField
        from ffcv.loader import Loader as FfcvLoader
        from ffcv.loader import OrderOption
        from ffcv.transforms import Squeeze, ToTensor

        self._loader = FfcvLoader(
            str(self.store_folder(work) / "images.beton"),
            batch_size=work.batch,
            order=OrderOption.RANDOM if work.shuffled else OrderOption.SEQUENTIAL,
            drop_last=True,
            pipelines={
                "image": _pipeline(work, (self.layout or work.memory_format) == "channels_last"),
                "label": [IntDecoder(), ToTensor(), Squeeze()],
            },
            custom_fields={"image": RGBImageField} if work.pixels == "jpeg" else {},
            **setting,
        )


class FfcvChannelsLast(Ffcv):
    summary = "FFCV, channels_last output (NHWC in memory), the fastest it does"
    layout = "channels_last"

    def refusal(self, work: Workload) -> str | None:
        if work.memory_format == "channels_last":
            return "the same as ffcv here"
        return super().refusal(work)


def _pipeline(work: Workload, channels_last: bool) -> list[Any]:
    from ffcv.fields.rgb_image import (
        CenterCropRGBImageDecoder,
        RandomResizedCropRGBImageDecoder,
        SimpleRGBImageDecoder,
    )
    from ffcv.transforms import (
        NormalizeImage,
        RandomHorizontalFlip,
        RandomTranslate,
        ToTensor,
        ToTorchImage,
    )

    size = (work.size, work.size)
    steps: list[Any] = {
        "train": lambda: [RandomResizedCropRGBImageDecoder(size), RandomHorizontalFlip()],
        "eval": lambda: [CenterCropRGBImageDecoder(size, ratio=work.size / work.resize)],
        "small": lambda: [
            SimpleRGBImageDecoder(),
            RandomHorizontalFlip(),
            RandomTranslate(padding=4),
        ],
    }[work.recipe]()
    if work.dtype == "float32":
        steps.append(NormalizeImage(255 * np.array(MEAN), 255 * np.array(STD), np.float32))
    return [*steps, ToTensor(), ToTorchImage(channels_last=channels_last)]


def _kept_jpeg_field() -> Any:
    """An RGBImageField that takes a JPEG file's bytes as they are; read as FFCV's own field."""
    import io

    from ffcv.fields import rgb_image
    from PIL import Image

    class KeptJpeg(rgb_image.RGBImageField):
        def encode(self, destination: Any, data: np.ndarray, malloc: Any) -> None:
            picture = Image.open(io.BytesIO(data.tobytes()))
            destination["mode"] = rgb_image.IMAGE_MODES["jpg"]
            destination["height"], destination["width"] = picture.height, picture.width
            destination["data_ptr"], storage = malloc(data.nbytes)
            storage[:] = data

    return KeptJpeg(write_mode="jpg")


class _Files:
    def __init__(self, samples: list[tuple[str, int]], pixels: str) -> None:
        self._samples, self._pixels = samples, pixels

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        path, label = self._samples[index]
        if self._pixels == "raw":
            return np.asarray(Image.open(path).convert("RGB")), label
        return np.frombuffer(Path(path).read_bytes(), np.uint8), label
