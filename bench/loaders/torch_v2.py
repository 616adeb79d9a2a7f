"""torch's DataLoader over ImageFolder, transforms v2 on uint8 tensors, decoded by torchvision."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

from bench.loaders._dataloader import DataLoaderBase
from bench.loaders._torchvision import transforms_v2
from bench.loaders.base import Setting
from bench.workload import Workload


class TorchV2(DataLoaderBase):
    summary = "torch DataLoader, ImageFolder, torchvision transforms v2 on tensors"
    needs = ("torchvision", "PIL")
    user_imports = ("torchvision.datasets", "torchvision.transforms.v2")

    def settings(self, work: Workload) -> list[Setting]:
        decoders = ("pillow",) if work.pixels == "raw" else ("torchvision", "pillow")
        usual = super().settings(work)
        return [{**setting, "decoder": decoder} for decoder in decoders for setting in usual]

    def open(self, work: Workload, setting: Setting) -> None:
        rest = dict(setting)
        self._decoder = rest.pop("decoder")
        super().open(work, rest)

    def dataset(self, work: Workload) -> Any:
        from torchvision.datasets import ImageFolder

        transform = transforms_v2(work)
        if work.masks:
            return _Masked(work, transform, self._decoder)
        if self._decoder == "pillow":
            return ImageFolder(work.images, transform=transform)
        return ImageFolder(work.images, transform=transform, loader=_decode)


class _Masked(Dataset[Any]):
    """Images with their masks, as users write it."""

    def __init__(self, work: Workload, transform: Any, decoder: str) -> None:
        samples, _ = work.samples()
        self._paths = [(path, work.mask_of(path)) for path, _ in samples]
        self._transform = transform
        self._decoder = decoder

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Any:
        from PIL import Image
        from torchvision.io import ImageReadMode, decode_image
        from torchvision.tv_tensors import Mask

        image_path, mask_path = self._paths[index]
        if self._decoder == "pillow":
            with Image.open(image_path) as picture, Image.open(mask_path) as drawn:
                image, mask = self._transform(picture.convert("RGB"), Mask(drawn))
        else:
            drawn_mask = Mask(decode_image(mask_path, mode=ImageReadMode.GRAY))
            image, mask = self._transform(_decode(image_path), drawn_mask)
        return image, mask[0]


def _decode(path: str) -> Any:
    from torchvision.io import ImageReadMode, decode_image

    return decode_image(path, mode=ImageReadMode.RGB)
