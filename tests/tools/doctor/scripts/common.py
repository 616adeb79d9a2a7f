"""What the scripts share: a small network, a training loop, and datasets that take their time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
torch.backends.cudnn.benchmark = True
torch.set_num_threads(1)


class Ready(Dataset[Any]):
    """uint8 images in memory; a sample computes for ``busy_s`` and waits for ``wait_s``."""

    def __init__(self, count: int = 512, *, busy_s: float = 0, wait_s: float = 0) -> None:
        self.images = torch.zeros(8, 3, 112, 112, dtype=torch.uint8)
        self.count, self.busy_s, self.wait_s = count, busy_s, wait_s

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        end = time.thread_time() + self.busy_s
        while time.thread_time() < end:
            pass
        if self.wait_s:
            time.sleep(self.wait_s)
        return self.images[index % 8], index % 10


class Files(Ready):
    """Samples that read a file each, from a disk that takes ``wait_s``."""

    def __init__(self, count: int, nbytes: int, wait_s: float) -> None:
        super().__init__(count, wait_s=wait_s)
        self.names = [FOLDER / f"{nbytes}-{number}" for number in range(min(count, 50))]
        for name in self.names:
            name.write_bytes(bytes(nbytes))

    def __getitem__(self, index: int) -> Any:
        with open(self.names[index % len(self.names)], "rb") as file:
            np.frombuffer(file.read(), np.uint8)
        return super().__getitem__(index)


class Network(nn.Module):
    """Normalises uint8 images by itself; ``work`` is how long a step takes at least."""

    def __init__(self, work_s: float) -> None:
        super().__init__()
        self.work_s = work_s
        self.convolution = nn.Conv2d(3, 4, 3, stride=8)
        self.head = nn.Linear(4, 10)

    def forward(self, images: torch.Tensor) -> Any:
        time.sleep(self.work_s)
        few = images[:, :, ::8, ::8]  # a step takes little of the CPU that the workers need
        return self.head(self.convolution(few.float() / 255).mean((2, 3)))


def loader(dataset: Any, **changed: Any) -> DataLoader[Any]:
    """A loader with everything as it should be, but for ``changed``."""
    healthy: dict[str, Any] = {
        "batch_size": 32,
        "shuffle": True,
        "num_workers": 2,
        "persistent_workers": True,
        "pin_memory": True,
        "drop_last": True,
    }
    return DataLoader(dataset, **{**healthy, **changed})


def train(
    batches: Any,
    *,
    epochs: int = 3,
    work_s: float = 0.02,
    autocast: bool = True,
    each: Callable[[Any], Any] = lambda loss: None,
    after: Callable[[Any], Any] = lambda network: None,
) -> None:
    """Train; ``each`` gets the loss of each step, ``after`` the network after each epoch."""
    network = Network(work_s).to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(network.parameters(), 0.01)
    for _ in range(epochs):
        network.train()
        for images, labels in batches:
            images = images.to(memory_format=torch.channels_last)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = nn.functional.cross_entropy(network(images), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            each(loss)
        after(network)


def evaluate(
    network: Any, batches: Any, *, eval_mode: bool = True, gradients: bool = False
) -> None:
    """Run the network over ``batches``."""
    if eval_mode:
        network.eval()
    with torch.inference_mode(mode=not gradients):
        for images, _ in batches:
            network(images.to(memory_format=torch.channels_last))
