"""What torchvision makes of a workload, to compare every loader's output with.

Made once per workload in a process of its own: TensorFlow and torchvision end each other's process
when both are loaded (two copies of LLVM).
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from bench.workload import Workload

_IMAGES = 256


def make(work: Workload) -> Path:
    """The reference as an .npz file: made now, or by an earlier run.

    It holds "mean" and "std" of the pixels per channel (0 to 1), and for "eval" the first batch as
    "images" (n, 3, size, size) uint8 with its "labels".
    """
    key = [work.images, work.recipe, work.size, work.resize, work.batch]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]
    path = Path(work.stores) / f"reference-{digest}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "bench.reference", str(path), json.dumps(work.to_json())]
        root = Path(__file__).resolve().parent.parent
        subprocess.run(command, check=True, cwd=root)
    return path


def _main(path: str, text: str) -> None:
    import dataclasses

    import torch
    from PIL import Image

    from bench.loaders._torchvision import transforms_v1

    work = dataclasses.replace(Workload.from_json(json.loads(text)), dtype="uint8")
    torch.manual_seed(0)
    transform = transforms_v1(work)
    samples, _ = work.samples()
    chosen = samples[:_IMAGES] if not work.shuffled else samples[:: 1 + len(samples) // _IMAGES]
    total, squares, images = np.zeros(3), np.zeros(3), []
    for file, _ in chosen:
        image = transform(Image.open(file).convert("RGB")).numpy()
        total += (image / 255).mean(axis=(1, 2))
        squares += ((image / 255) ** 2).mean(axis=(1, 2))
        if not work.shuffled and len(images) < work.batch:
            images.append(image)
    mean = total / len(chosen)
    found = {"mean": mean, "std": np.sqrt(squares / len(chosen) - mean**2)}
    if images:
        found["images"] = np.stack(images)
        found["labels"] = np.array([label for _, label in chosen[: len(images)]])
    partial = Path(f"{path}.partial.npz")
    np.savez(partial, **found)
    partial.rename(path)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2])
