"""gpu-transfer: a training step fed by FastLoader, and the same step on a batch that is there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import click
import torch
from torch.utils.data import RandomSampler
from torchvision import transforms as v1
from torchvision.models import resnet50

from bench.report import Row, row
from bench.suites.base import Options, Suite, Variant, imagenet
from bench.workload import MEAN, STD
from fastload import FastLoader, PackedDataset, pack

_STEPS = 50


class GpuTransfer(Suite):
    name = "gpu-transfer"
    summary = (
        "ResNet-50, bfloat16, channels_last: fed from memory by FastLoader, and with no loader"
    )
    variants = {"resnet50": Variant()}

    def known(self) -> tuple[str, ...]:
        return ("fastload-lmdb-raw",)

    def run(self, variant: str, options: Options) -> list[Row]:
        if not torch.cuda.is_available():
            raise click.ClickException("gpu-transfer: expected a CUDA device, found none")
        work = imagenet(self.name, "train", variant, Variant(pixels="raw"), options)
        batch = 8 if options.toy else 256
        path = Path(work.stores) / f"gpu-transfer-{Path(work.images).name}.lmdb"
        if options.fresh:
            path.unlink(missing_ok=True)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            pack(work.images, path)
        transform = v1.Compose(
            [
                v1.RandomResizedCrop(224),
                v1.RandomHorizontalFlip(),
                v1.ToTensor(),
                v1.Normalize(MEAN, STD),
            ]
        )
        steps = 2 if options.toy else _STEPS
        dataset = PackedDataset(str(path), transform=transform)
        # One epoch for all of it: where an epoch ends, a loader has nothing ahead.
        count = ((options.rounds + 1) * steps + 1) * batch
        loader: FastLoader[Any] = FastLoader(
            dataset,
            batch,
            sampler=RandomSampler(dataset, replacement=True, num_samples=count),
            drop_last=True,
            seed=0,
            dtype=torch.bfloat16,
            memory_format=torch.channels_last,
            num_workers=options.threads,
            device="cuda",
        )
        step = _step()
        fed = iter(loader)
        there = next(fed)
        _seconds(step, repeat(there), steps)
        _seconds(step, fed, steps)
        shares = []
        for _ in range(options.rounds):  # in turn, so that both meet the same clocks
            alone = _seconds(step, repeat(there), steps)
            shares.append(alone / _seconds(step, fed, steps))
        facts = {**self.facts(work, options), "batch": batch, "device": _device()}
        return [
            row(
                suite=self.name,
                variant=variant,
                loader="fastload-lmdb-raw",
                metric="speed of a step",
                unit="of its speed on a batch that is there",
                values=shares,
                setting={"steps": steps},
                **facts,
            )
        ]


def _step() -> Any:
    """A training step on [images, labels]."""
    model = resnet50().cuda().to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(batch: list[torch.Tensor]) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()

    return step


def _seconds(step: Any, batches: Iterator[Any], steps: int) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        step(next(batches))
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def _device() -> str:
    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
