"""torch's DataLoader with simplejpeg and OpenCV in its workers."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

from bench.loaders._dataloader import DataLoaderBase
from bench.workload import Workload


class TorchSimplejpeg(DataLoaderBase):
    summary = "torch DataLoader, files decoded by simplejpeg, resized by OpenCV"
    needs = ("simplejpeg", "cv2")
    install = "simplejpeg, opencv-python-headless"

    def dataset(self, work: Workload) -> Any:
        return _Files(work)


class _Files(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, work: Workload) -> None:
        from bench.loaders import _opencv

        self._opencv = _opencv
        self._work = work
        self._samples, _ = work.samples()
        _opencv.setup()

    def __getstate__(self) -> dict[str, Any]:  # a module does not pickle
        return {"work": self._work}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["work"])  # type: ignore[misc]

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self._samples[index]
        with open(path, "rb") as file:
            return self._opencv.sample(file.read(), self._work), label
