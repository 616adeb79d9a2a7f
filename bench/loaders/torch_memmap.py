"""Raw pixels in one mapped file, cropped and resized by OpenCV in torch's workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from bench.loaders._dataloader import DataLoaderBase
from bench.workload import Workload


class TorchMemmap(DataLoaderBase):
    summary = "torch DataLoader over a memory-mapped file of pixels, OpenCV"
    needs = ("cv2", "simplejpeg")
    store = "memmap"

    def refusal(self, work: Workload) -> str | None:
        return None if work.pixels == "raw" else "holds raw pixels, which the raw suites measure"

    def pack(self, work: Workload, folder: Path) -> None:
        from PIL import Image

        rows = []
        with open(folder / "pixels", "wb") as file:
            for path, label in work.samples()[0]:
                pixels = np.asarray(Image.open(path).convert("RGB"))
                rows.append((file.tell(), pixels.shape[1], pixels.shape[0], label))
                file.write(pixels.tobytes())
        np.save(folder / "index.npy", np.array(rows, dtype=np.int64))

    def dataset(self, work: Workload) -> Any:
        return _Pixels(work, self.store_folder(work))


class _Pixels(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, work: Workload, folder: Path) -> None:
        from bench.loaders import _opencv

        _opencv.setup()
        self._work = work
        self._pixels = np.memmap(folder / "pixels", dtype=np.uint8, mode="r")
        self._index = np.load(folder / "index.npy")

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from bench.loaders import _opencv

        at, width, height, label = self._index[index]
        pixels = self._pixels[at : at + 3 * width * height].reshape(height, width, 3)
        return _opencv.sample(np.asarray(pixels), self._work), int(label)
