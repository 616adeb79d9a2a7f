"""torch's DataLoader over torchvision's ImageFolder, Pillow and the first kind of transforms."""

from __future__ import annotations

from typing import Any

from bench.loaders._dataloader import DataLoaderBase
from bench.loaders._torchvision import transforms_v1
from bench.workload import Workload


class TorchPil(DataLoaderBase):
    summary = "torch DataLoader, ImageFolder, Pillow, torchvision transforms"
    needs = ("torchvision", "PIL")
    user_imports = ("torchvision.datasets", "torchvision.transforms")

    def refusal(self, work: Workload) -> str | None:
        return "the first kind of transforms moves no masks" if work.masks else None

    def dataset(self, work: Workload) -> Any:
        from torchvision.datasets import ImageFolder

        return ImageFolder(work.images, transform=transforms_v1(work))
