"""The training of the demo, with measurements of the loader."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence

import torch
from torch import nn

SIZE = 224  # side of the network's input in pixels


MOST_S = 60.0
"""Time limit of one training, so that the demo ends in minutes on any machine."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """The measurements of one training.

    Attributes:
        images: number of images trained on.
        seconds: time from requesting the first batch to the end of the last step.
        wait_s: part of ``seconds`` spent waiting for the loader.
        first_batch_s: time from a loader that has not started to its first batch.
        losses: loss of each step, in order.
    """

    images: int
    seconds: float
    wait_s: float
    first_batch_s: float
    losses: list[float]

    @property
    def images_per_s(self) -> float:
        return self.images / self.seconds

    @property
    def wait_share(self) -> float:
        return self.wait_s / self.seconds

    def loss(self, *, last: bool) -> float:
        """Mean loss of the first or the last quarter of the steps."""
        steps = max(1, len(self.losses) // 4)
        part = self.losses[-steps:] if last else self.losses[:steps]
        return sum(part) / len(part)


def network(classes: int) -> nn.Module:
    """A network that is small enough for the loader to limit the speed.

    A training step takes 0.16 ms per image on one core. (n, 3, 224, 224) float32 -> (n, classes).
    The initial weights are always the same.
    """
    torch.manual_seed(0)
    return nn.Sequential(
        nn.AvgPool2d(8),
        nn.Conv2d(3, 16, kernel_size=3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


def first_batch(loader: Iterable[object]) -> float:
    """Seconds until a loader that has not started yields a batch."""
    start = time.perf_counter()
    for _ in loader:
        break
    return time.perf_counter() - start


def train(
    loader: Iterable[Sequence[torch.Tensor]], *, classes: int, epochs: int, device: torch.device
) -> Training:
    """Train a new network from ``loader`` for at most ``MOST_S`` seconds."""
    waited_first = first_batch(loader)
    model = network(classes).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    images, wait_s = 0, 0.0
    losses: list[torch.Tensor] = []
    start = time.perf_counter()
    for _ in range(epochs):
        batches = iter(loader)
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            wait_s += time.perf_counter() - asked
            if batch is None or time.perf_counter() - start > MOST_S:
                break
            pixels, labels = (part.to(device, non_blocking=True) for part in batch)
            loss = nn.functional.cross_entropy(model(pixels), labels)
            optimizer.zero_grad()
            torch.autograd.backward([loss])
            optimizer.step()
            losses.append(loss.detach())
            images += len(labels)
        del batches
    values = torch.stack(losses).tolist()  # waits for the device
    return Training(
        images=images,
        seconds=time.perf_counter() - start,
        wait_s=wait_s,
        first_batch_s=waited_first,
        losses=values,
    )
