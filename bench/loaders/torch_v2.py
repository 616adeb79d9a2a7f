"""torch's DataLoader over ImageFolder, transforms v2 on uint8 tensors, decoded by torchvision."""

from __future__ import annotations

from typing import Any

from bench.loaders._dataloader import DataLoaderBase
from bench.loaders._torchvision import transforms_v2
from bench.loaders.base import Setting
from bench.workload import Workload


class TorchV2(DataLoaderBase):
    summary = "torch DataLoader, ImageFolder, torchvision transforms v2 on tensors"
    needs = ("torchvision", "PIL")
    user_imports = ("torchvision.datasets", "torchvision.transforms.v2")

    def settings(self, work: Workload) -> list[Setting]:
        decoders = ("torchvision", "pillow") if work.pixels == "jpeg" else ("pillow",)
        usual = super().settings(work)
        return [{**setting, "decoder": decoder} for decoder in decoders for setting in usual]

    def open(self, work: Workload, setting: Setting) -> None:
        rest = dict(setting)
        self._decoder = rest.pop("decoder")
        super().open(work, rest)

    def dataset(self, work: Workload) -> Any:
        from torchvision.datasets import ImageFolder

        transform = transforms_v2(work)
        if self._decoder == "pillow":
            return ImageFolder(work.images, transform=transform)
        return ImageFolder(work.images, transform=transform, loader=_decode)


def _decode(path: str) -> Any:
    from torchvision.io import ImageReadMode, decode_image

    return decode_image(path, mode=ImageReadMode.RGB)
