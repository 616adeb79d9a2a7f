"""gpu-transfer: a training step fed by FastLoader, and the same step on a batch that is there."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import click
import torch
from torch.utils.data import RandomSampler
from torchvision import transforms as v1
from torchvision.models import resnet50

from bench.report import Row, row
from bench.suites.base import Options, Suite, Variant, imagenet
from bench.workload import MEAN, STD, Workload
from fastload import FastLoader, PackedDataset, pack
from fastload._base.machine import cpu

_STEPS = 500
"""Fed steps that are timed, at least, over all rounds."""

_UNTIMED = 8
"""Steps before each measurement. While a step runs without the loader, the loader fills what it
may keep ahead: two batches on the device, one in flight, and two of the engine's. Fed with those
alone, a slow loader would look as fast as the step."""

_WARM_UP = 50

Batch = list[torch.Tensor]
Step = Callable[[Batch], object]


@dataclasses.dataclass(frozen=True)
class Case:
    """What one variant measures.

    Attributes:
        images: "jpeg", "dct" or "raw": how the store keeps them.
        batch: images per step.
        compiled: whether the network is compiled by torch.compile.
    """

    images: str
    batch: int
    compiled: bool

    @property
    def name(self) -> str:
        return f"{self.images}-{self.batch}-{'compiled' if self.compiled else 'eager'}"

    @property
    def loader(self) -> str:
        return "fastload-lmdb" if self.images == "jpeg" else f"fastload-lmdb-{self.images}"


_CASES = {
    case.name: case
    for images in ("jpeg", "dct", "raw")
    for compiled in (False, True)
    for batch in (256, 32)
    for case in [Case(images, batch, compiled)]
}


class GpuTransfer(Suite):
    name = "gpu-transfer"
    summary = "ResNet-50, bfloat16, channels_last: fed by FastLoader, and with no loader"
    variants = {
        name: Variant(pixels="raw" if case.images == "raw" else "jpeg")
        for name, case in _CASES.items()
    }

    def known(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(case.loader for case in _CASES.values()))

    def run(self, variant: str, options: Options) -> list[Row]:
        if not torch.cuda.is_available():
            raise click.ClickException("gpu-transfer: expected a CUDA device, found none")
        case = _CASES[variant]
        if case.loader not in options.loaders:
            return []
        work = imagenet(self.name, "train", variant, self.variants[variant], options)
        store = _packed(case, work, options)
        batch = 8 if options.toy else case.batch
        steps = 2 if options.toy else -(-_STEPS // options.rounds)
        device = torch.device("cuda", torch.cuda.current_device())
        # Not all CPUs: as FastLoader does by itself, where batches go to a device.
        threads = min(options.threads, cpu.available(device=True))
        network = resnet50()
        measured = speeds(
            store,
            # dynamic=False: the second batch size of a process would be compiled for any size.
            torch.compile(network, dynamic=False) if case.compiled else network,
            device,
            batch=batch,
            steps=steps,
            rounds=options.rounds,
            threads=threads,
        )
        facts = {**self.facts(work, options), "batch": batch, "device": _device()}
        facts["threads"] = threads
        return [
            row(
                suite=self.name,
                variant=variant,
                loader=case.loader,
                metric="speed of a step",
                unit="of its speed on a batch that is there",
                values=measured.shares,
                setting={"steps": steps, "untimed": _UNTIMED, "compiled": case.compiled},
                step_ms=round(1000 * statistics.median(measured.alone), 3),
                explain=measured.explain,
                **facts,
            )
        ]


class Speeds(NamedTuple):
    """What ``speeds`` found.

    Attributes:
        shares: by round, the speed of a fed step as a share of that of a step on a batch there.
        alone: by round, seconds of a step without a loader.
        explain: what the loader says of itself, line by line.
    """

    shares: list[float]
    alone: list[float]
    explain: list[str]


def _packed(case: Case, work: Workload, options: Options) -> Path:
    """The store of these images, packed where there is none yet."""
    path = Path(work.stores) / f"gpu-transfer-{case.images}-{Path(work.images).name}.lmdb"
    if options.fresh:
        path.unlink(missing_ok=True)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        pack(work.images, path, encode="dct" if case.images == "dct" else None)
    return path


def speeds(
    store: Path,
    network: torch.nn.Module,
    device: torch.device,
    *,
    batch: int,
    steps: int,
    rounds: int,
    threads: int,
    size: int = 224,
) -> Speeds:
    """``measured`` with a loader of ``store``."""
    transform = v1.Compose(
        [
            v1.RandomResizedCrop(size),
            v1.RandomHorizontalFlip(),
            v1.ToTensor(),
            v1.Normalize(MEAN, STD),
        ]
    )
    dataset = PackedDataset(str(store), transform=transform)
    # One epoch for all of it: where an epoch ends, a loader has nothing ahead.
    count = ((rounds + 1) * (_UNTIMED + steps) + 2 * _UNTIMED) * batch
    loader: FastLoader[Batch] = FastLoader(
        dataset,
        batch,
        sampler=RandomSampler(dataset, replacement=True, num_samples=count),
        drop_last=True,
        seed=0,
        dtype=torch.bfloat16,
        memory_format=torch.channels_last,
        num_workers=threads,
        device=device,
    )
    return measured(loader, network, device, steps=steps, rounds=rounds)


def measured(
    loader: FastLoader[Batch],
    network: torch.nn.Module,
    device: torch.device,
    *,
    steps: int,
    rounds: int,
) -> Speeds:
    """By round: the speed of a fed step as a share of that of a step on a batch that is there.

    In each round both are measured in turn, so that both meet the same clocks. The first
    ``_UNTIMED`` steps of each measurement are not timed.
    """
    step = _step(network, device)
    fed = iter(loader)
    there = repeat(next(fed))
    # Warm up: clocks, kernels, memory, and what the core remembers of each JPEG.
    _seconds(step, there, min(steps, _WARM_UP), device)
    _seconds(step, fed, min(steps, _WARM_UP), device)
    shares, alone = list[float](), list[float]()
    for _ in range(rounds):
        alone.append(_seconds(step, there, steps, device))
        shares.append(alone[-1] / _seconds(step, fed, steps, device))
    stats = loader.stats()
    told = [f"{name}: {stats[name]}" for name in ("bound", "why", "wait_share", "stages_s")]
    return Speeds(shares, alone, [*loader.explain().splitlines(), *told])


def _step(network: torch.nn.Module, device: torch.device) -> Step:
    """A training step on [images, labels]."""
    model = network.to(device=device, memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(batch: Batch) -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()

    return step


def _seconds(step: Step, batches: Iterator[Batch], steps: int, device: torch.device) -> float:
    """Seconds of a step, after those that are not timed."""
    for _ in range(_UNTIMED):
        step(next(batches))
    _synchronize(device)
    begin = time.perf_counter()
    for _ in range(steps):
        step(next(batches))
    _synchronize(device)
    return (time.perf_counter() - begin) / steps


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _device() -> str:
    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
