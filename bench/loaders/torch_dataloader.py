"""Loaders built on torch's DataLoader: its best settings, its epochs, and what is read by it.

An LMDB of JPEGs is what many training scripts have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from bench.loaders._torchvision import mixed, transforms_v1, transforms_v2
from bench.loaders.base import Loader, Setting
from bench.workload import Workload


class DataLoaderBase(Loader):
    """torch's DataLoader around ``dataset(work)``, one worker process per thread."""

    def settings(self, work: Workload) -> list[Setting]:
        return [
            {"num_workers": work.threads, "prefetch_factor": prefetch, "persistent_workers": True}
            for prefetch in (2, 4)
        ]

    def dataset(self, work: Workload) -> Any:
        raise NotImplementedError

    def options(self, work: Workload) -> dict[str, Any]:
        """Further arguments of the DataLoader."""
        return {"batch_size": work.batch, "shuffle": work.shuffled, "drop_last": True}

    def open(self, work: Workload, setting: Setting) -> None:
        self._channels_last = work.memory_format == "channels_last"
        options = self.options(work)
        if work.recipe == "train-mixup":
            options["collate_fn"] = _Mixed(work)
        self._loader = DataLoader(self.dataset(work), **options, **setting)


class _Mixed:
    """The collate function that torchvision's documentation gives for MixUp and CutMix."""

    def __init__(self, work: Workload) -> None:
        self._mix = mixed(work)

    def __call__(self, samples: list[Any]) -> Any:
        return self._mix(*default_collate(samples))


class TorchPil(DataLoaderBase):
    summary = "torch DataLoader, ImageFolder, Pillow, torchvision transforms"
    needs = ("torchvision", "PIL")
    user_imports = ("torchvision.datasets", "torchvision.transforms")

    def dataset(self, work: Workload) -> Any:
        from torchvision.datasets import ImageFolder

        return ImageFolder(work.images, transform=transforms_v1(work))


class TorchV2(DataLoaderBase):
    summary = "torch DataLoader, ImageFolder, torchvision transforms v2 on tensors"
    needs = ("torchvision", "PIL")
    user_imports = ("torchvision.datasets", "torchvision.transforms.v2")

    def dataset(self, work: Workload) -> Any:
        from torchvision.datasets import ImageFolder

        transform = transforms_v2(work)
        if work.pixels == "raw":  # torchvision decodes no BMP: Pillow does
            return ImageFolder(work.images, transform=transform)
        return ImageFolder(work.images, transform=transform, loader=_decode)


def _decode(path: str) -> Any:
    from torchvision.io import ImageReadMode, decode_image

    return decode_image(path, mode=ImageReadMode.RGB)


class TorchLmdb(DataLoaderBase):
    summary = "torch DataLoader over a plain LMDB of the files, simplejpeg and OpenCV"
    needs = ("lmdb", "simplejpeg", "cv2")
    store = "torch-lmdb"

    def refusal(self, work: Workload) -> str | None:
        return "an LMDB of files, not of pixels" if work.pixels == "raw" else None

    def pack(self, work: Workload, folder: Path) -> None:
        import lmdb

        samples, _ = work.samples()
        size = sum(Path(path).stat().st_size for path, _ in samples)
        with lmdb.open(str(folder), map_size=2 * size + (64 << 20)) as store:
            with store.begin(write=True) as transaction:
                for index, (path, label) in enumerate(samples):
                    value = label.to_bytes(4, "little") + Path(path).read_bytes()
                    transaction.put(index.to_bytes(8, "big"), value)

    def dataset(self, work: Workload) -> Any:
        return _Records(work, str(self.store_folder(work)))


class _Records(Dataset[tuple[torch.Tensor, int]]):
    """Opens the store in each worker, as LMDB requires."""

    def __init__(self, work: Workload, path: str) -> None:
        self._work, self._path = work, path
        self._count = len(work.samples()[0])
        self._store: Any = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from bench.loaders import _opencv

        if self._store is None:
            import lmdb

            self._store = lmdb.open(self._path, readonly=True, lock=False, readahead=False)
        with self._store.begin(buffers=True) as transaction:
            value = transaction.get(index.to_bytes(8, "big"))
            return _opencv.sample(bytes(value[4:]), self._work), int.from_bytes(value[:4], "little")
