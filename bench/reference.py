"""torchvision's output for a workload, to compare every loader's with."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bench.workload import Workload

_IMAGES = 256


def make(work: Workload) -> Path:
    """The reference as an .npz file: made now, or by an earlier run.

    It holds "mean" and "std" of the pixels per channel (0 to 1), and for "eval" the first batch as
    "images" (n, 3, size, size) uint8 with its "labels".

    Never made in a loader's process: TensorFlow and torchvision end a process that loads both (two
    copies of LLVM).
    """
    key = [work.images, work.recipe, work.size, work.resize, work.batch]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]
    path = Path(work.stores) / f"reference-{digest}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(f"{path}.partial.npz")
        np.savez(partial, **_compute(dataclasses.replace(work, dtype="uint8")))
        partial.rename(path)
    return path


def _compute(work: Workload) -> dict[str, Any]:
    import torch

    from bench.loaders._torchvision import transforms_v1

    transform = transforms_v1(work)

    def output(path: str) -> np.ndarray:
        with Image.open(path) as picture:
            pixels: np.ndarray = transform(picture.convert("RGB")).numpy()
        return pixels

    samples, _ = work.samples()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        some = [output(path) / 255 for path, _ in samples[:: 1 + len(samples) // _IMAGES]]
    mean = np.mean([image.mean(axis=(1, 2)) for image in some], axis=0)
    power = np.mean([(image**2).mean(axis=(1, 2)) for image in some], axis=0)
    expected = {"mean": mean, "std": np.sqrt(power - mean**2)}
    if not work.shuffled:
        expected["images"] = np.stack([output(path) for path, _ in samples[: work.batch]])
        expected["labels"] = np.array([label for _, label in samples[: work.batch]])
    return expected
