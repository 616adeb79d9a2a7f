"""What bench/gpu.sh measures on a GPU: each part in a minute, a line of JSON for each figure.

    python -m bench.gpu_lab RESULTS PART

RESULTS is a folder; the lines go into RESULTS/PART.jsonl, too. After ``LAB_UNTIL`` (seconds since
1970) a part leaves the rest out. ``LAB_TOY=1`` runs it at toy size, on the CPU where there is no
CUDA: that shows that it runs, and nothing else. Parts are the functions with a docstring in PARTS.
"""

from __future__ import annotations

import gzip
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils.data import DataLoader, RandomSampler
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.models import resnet50

from bench.data import Images, cache_folder
from bench.datasets import recipe
from bench.gpu_report import smi
from bench.loaders.dali import Dali
from bench.workload import Workload
from fastload import FastLoader, PackedDataset, pack

TOY = os.environ.get("LAB_TOY") == "1"
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")
CPUS = len(os.sched_getaffinity(0))
COUNT, SIZE = (48, 32) if TOY else (1200, 224)
BATCH = 4 if TOY else 256
TRAIN = recipe(v1.RandomResizedCrop(SIZE), v1.RandomHorizontalFlip())
KINDS: dict[str, Any] = {  # of stores: how they are packed
    "jpeg": {},
    "dct": {"encode": "dct"},
    "raw": {"encode": "raw", "resize": "256"},
}

_UNTIMED = 8
"""Steps before each measurement. While a step runs without the loader, the loader fills what it
may keep ahead: two batches on the device, one in flight, and two of the engine's. Fed with those
alone, a slow loader would look as fast as the step."""

_WARM_UP = 50

Batch = list[torch.Tensor]
Step = Callable[[Batch], object]

_lines: list[str] = []


def say(**found: object) -> None:
    """Print a line of JSON, and keep it."""
    _lines.append(json.dumps(found))
    print(_lines[-1], flush=True)


def left() -> float:
    """Seconds that the part may still take."""
    return float(os.environ.get("LAB_UNTIL", "inf")) - time.time()


def photos() -> Path:
    """A folder of the suites' images, made once."""
    return Images(cache_folder(), print).jpegs(COUNT)


def store(kind: str) -> Path:
    """A store of ``photos`` as JPEGs, DCT records or raw pixels, packed once."""
    path = cache_folder() / "stores" / f"lab-{kind}-{COUNT}.lmdb"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        pack(photos(), path, **KINDS[kind])
    return path


def loader_of(
    kind: str, batch: int = BATCH, batches: int = 20_000, **given: Any
) -> FastLoader[Any]:
    """One long epoch: where an epoch ends, nothing is ahead."""
    dataset = PackedDataset(str(store(kind)), transform=TRAIN)
    sampler = RandomSampler(dataset, replacement=True, num_samples=batches * batch)
    given = {"num_workers": max(1, CPUS - 2), "dtype": torch.bfloat16, **given}
    return FastLoader(
        dataset,
        batch,
        sampler=sampler,
        drop_last=True,
        seed=0,
        memory_format=torch.channels_last,
        **given,
    )


def on_device(**given: Any) -> dict[str, Any]:
    """``given``, with the device where there is one."""
    return {**given, "device": DEVICE} if CUDA else given


def rate(loader: Iterable[Sequence[torch.Tensor]], seconds: float) -> dict[str, float]:
    """Of a loop that does nothing: images a second, and CPU seconds for a thousand."""
    batches, images = iter(loader), 0
    for _ in range(6):
        next(batches)
    _synchronize()
    cpu, begin = time.process_time(), time.perf_counter()
    while time.perf_counter() - begin < (0.3 if TOY else seconds):
        images += len(next(batches)[0])
    _synchronize()
    took, spent = time.perf_counter() - begin, time.process_time() - cpu
    return {
        "images_per_s": round(images / took, 1),
        "cpu_s_per_1000": round(1e3 * spent / images, 3),
    }


# --- a step on batches of a loader, and on one that is there ------------------------------------


def timed(batches: Iterator[Batch], spent_ns: list[int]) -> Iterator[Batch]:
    """``batches``; ``spent_ns`` gets what each ``next`` took."""
    while True:
        begin = time.perf_counter_ns()
        batch = next(batches)
        spent_ns.append(time.perf_counter_ns() - begin)
        yield batch


def measured(
    batches: Iterator[Batch], network: torch.nn.Module, *, steps: int, rounds: int
) -> dict[str, Any]:
    """By round, the speed of a fed step as a share of that of a step on a batch that is there.

    In each round both are measured in turn, so that both meet the same clocks. The first
    ``_UNTIMED`` steps of each measurement are not timed. ``step_ms`` is of a step without a loader,
    ``next_ms`` of a ``next`` of the loader, the mean of the last round.
    """
    spent_ns: list[int] = []
    step, fed = _step(network), timed(batches, spent_ns)
    there = repeat(next(fed))
    # Warm up: clocks, kernels, memory, and what the core remembers of each JPEG.
    _seconds(step, there, min(steps, _WARM_UP))
    _seconds(step, fed, min(steps, _WARM_UP))
    shares, alone = list[float](), list[float]()
    for _ in range(rounds):
        alone.append(_seconds(step, there, steps))
        spent_ns.clear()
        shares.append(alone[-1] / _seconds(step, fed, steps))
    return {
        "shares": [round(share, 4) for share in shares],
        "step_ms": round(1e3 * statistics.median(alone), 3),
        "next_ms": round(statistics.mean(spent_ns) / 1e6, 3),
    }


def _step(network: torch.nn.Module) -> Step:
    """A training step on [images, labels]."""
    model = network.to(DEVICE).to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(batch: Batch) -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        optimiser.step()

    return step


def _seconds(step: Step, batches: Iterator[Batch], steps: int) -> float:
    """Seconds of a step, after those that are not timed."""
    for _ in range(_UNTIMED):
        step(next(batches))
    _synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        step(next(batches))
    _synchronize()
    return (time.perf_counter() - begin) / steps


def _synchronize() -> None:
    if CUDA:
        torch.cuda.synchronize(DEVICE)


# --- parts ----------------------------------------------------------------------------------------


def _took(call: Callable[[], object]) -> float:
    """Seconds until the device has done it, too."""
    _synchronize()
    begin = time.perf_counter()
    call()
    _synchronize()
    return time.perf_counter() - begin


def link() -> None:
    """What ``_base/devices`` assumes of the bus and the runtime, without a loader."""
    from fastload._base.devices.cuda import Cuda
    from fastload._base.slabs import _allocate

    asked = "pcie.link.gen.current,pcie.link.width.current,clocks.sm"
    say(link=smi(asked), memlock=resource.getrlimit(resource.RLIMIT_MEMLOCK))
    nbytes, device = 38_535_168, Cuda(DEVICE)  # 256 x 224 x 224 x 3
    target = torch.empty(nbytes, dtype=torch.uint8, device=DEVICE)

    def copies(source: torch.Tensor) -> None:
        for _ in range(10):
            target.copy_(source, non_blocking=True)

    # Of a slab's memory, as slabs see it.
    fresh, touched = (np.frombuffer(_allocate(nbytes), np.uint8) for _ in range(2))
    touched[::4096] = 1
    host: list[torch.Tensor] = []
    pinned: dict[str, Callable[[], object]] = {
        "fresh": lambda: device.pin(fresh),
        "touched": lambda: device.pin(touched),
        "torch's": lambda: host.append(torch.empty(nbytes, dtype=torch.uint8).pin_memory()),
    }
    pinning = {name: 1e3 * _took(pin) for name, pin in pinned.items()}
    say(pinning_ms=pinning, registered=torch.from_numpy(fresh).is_pinned())
    memory = {"registered": torch.from_numpy(fresh), "torch's": host[0]}
    memory["pageable"] = torch.empty(nbytes, dtype=torch.uint8)
    for name, source in memory.items():
        took = _took(partial(copies, source))
        say(copied_from=name, gb_per_s=round(10 * nbytes / took / 1e9, 1))


def smoke() -> None:
    """Batches on the device are the CPU's, bit for bit; ``explain()`` says what was hoped for."""
    for kind in KINDS:
        epochs = []
        for where in ({}, on_device()):
            torch.manual_seed(0)
            loader = loader_of(kind, 8 if TOY else 32, 6, num_workers=min(8, CPUS), **where)
            epochs.append([images.cpu() for images, _ in loader])
        same = len(epochs[1]) == 6 and all(map(torch.equal, *epochs))
        say(store=kind, same=same)
        assert same, f"{kind}: batches on {DEVICE} are not the CPU's"
    stage = loader.inspect().stage
    say(explain=loader.explain().splitlines(), one_kernel=stage and stage._look_up is not None)


def network(compiled: bool) -> torch.nn.Module:
    """ResNet-50, or something tiny at toy size."""
    torch.manual_seed(0)
    tiny = [torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
    made = torch.nn.Sequential(*tiny, torch.nn.Linear(4, 1000)) if TOY else resnet50()
    compiling: Any = torch.compile(made, dynamic=False) if compiled and not TOY else made
    return compiling


def fed(model: torch.nn.Module, kind: str, batch: int, **given: Any) -> None:
    """Say the speed of a step that is fed by a loader, as a share of that on a batch there."""
    steps, rounds = (2, 2) if TOY else (16 if batch == BATCH else 60, 3)
    loader = loader_of(kind, batch, **on_device(**given))
    speeds = measured(iter(loader), model, steps=steps, rounds=rounds)
    stats = loader.stats()
    say(
        store=kind,
        batch=batch,
        given={name: str(value) for name, value in given.items()},
        **speeds,
        **{name: stats[name] for name in ("bound", "why", "wait_share", "stages_s")},
    )


def warm() -> None:
    """Compile what ``fed_compiled`` needs into torch's cache on disk, while tests run."""
    step = _step(network(True))
    images = torch.randn(BATCH, 3, SIZE, SIZE, device=DEVICE, dtype=torch.bfloat16)
    batch = [images.contiguous(memory_format=torch.channels_last)]
    batch.append(torch.zeros(BATCH, dtype=torch.int64, device=DEVICE))
    say(seconds=[round(_took(lambda: step(batch)), 1) for _ in range(2)])


def fed_compiled() -> None:
    """The goal: 0.98. One compilation for the three stores."""
    model = network(True)
    for kind in KINDS:
        if left() > 35:
            fed(model, kind, BATCH)


def fed_eager() -> None:
    """The same, not compiled, by one loader after another: each has a side stream of its own."""
    model = network(False)
    copied(model)
    for _ in range(4):
        if left() > 12:
            fed(model, "jpeg", BATCH)


def copied(model: torch.nn.Module) -> None:
    """Say the speed of a step that is fed by copies out of pinned memory in its own stream."""
    images, labels = next(iter(loader_of("jpeg", pin_memory=CUDA)))
    speeds = measured(_moved(repeat([images, labels])), model, steps=2 if TOY else 16, rounds=2)
    say(loader="none: pinned batches", **speeds)


def fed_small() -> None:
    """Batch 32, where the host has least time."""
    fed(network(False), "jpeg", 2 if TOY else 32)


def fed_dali() -> None:
    """The step fed by DALI on the same GPU: decoding there takes time from the step."""
    fed(network(False), "jpeg", BATCH, engine="dali")


def fed_files() -> None:
    """What one import changes: the step fed from loose files by DataLoader, and by FastLoader."""
    dataset, model = ImageFolder(str(photos()), TRAIN), network(False)
    loaders: dict[str, tuple[type[DataLoader[Any]], dict[str, Any]]] = {
        "DataLoader": (DataLoader, {"pin_memory": CUDA}),
        "FastLoader": (FastLoader, {"pin_memory": CUDA}),
        "FastLoader, device": (FastLoader, on_device()),
    }
    for name, (kind, given) in loaders.items():
        if left() > 15:
            sampler = RandomSampler(dataset, replacement=True, num_samples=2_000 * BATCH)
            loader = kind(dataset, BATCH, sampler=sampler, num_workers=CPUS, **given)
            speeds = measured(_moved(loader), model, steps=2 if TOY else 20, rounds=2)
            say(loader=name, workers=CPUS, **speeds)


def _moved(loader: Iterable[Batch]) -> Iterator[Batch]:
    """Batches on the device, as training scripts move them."""
    for images, labels in loader:
        images = images.to(DEVICE, non_blocking=True, memory_format=torch.channels_last)
        yield [images, labels.to(DEVICE, non_blocking=True)]


def overlap() -> None:
    """Of each copy to the device: the share of its time in which another stream's kernel ran."""
    from torch.profiler import ProfilerActivity, profile

    batches = iter(loader_of("jpeg", **on_device()))
    step = _step(network(False))
    for _ in range(12):
        step(next(batches))
    _synchronize()
    with profile(activities=[ProfilerActivity.CUDA if CUDA else ProfilerActivity.CPU]) as found:
        for _ in range(8):
            step(next(batches))
        _synchronize()
    path = RESULTS / "overlap.trace.gz"
    found.export_chrome_trace(str(path))
    with gzip.open(path) as trace:
        events = [e for e in json.loads(trace.read())["traceEvents"] if e.get("ph") == "X"]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    for copy in events:
        if "HtoD" in copy["name"] and copy["args"]["bytes"] > 1 << 20:
            own = copy["args"]["stream"]
            others = [_span(e) for e in kernels if e["args"]["stream"] != own]
            gb_per_s = round(copy["args"]["bytes"] / copy["dur"] / 1e3, 1)
            say(copy_ms=copy["dur"] / 1e3, gb_per_s=gb_per_s, covered=_covered(_span(copy), others))


def _span(event: dict[str, Any]) -> tuple[float, float]:
    return event["ts"], event["ts"] + event["dur"]


def _covered(span: tuple[float, float], others: list[tuple[float, float]]) -> float:
    """The share of ``span`` that ``others`` cover."""
    covered, at = 0.0, span[0]
    for begin, end in sorted(others):
        begin, end = max(begin, at), min(end, span[1])
        if end > begin:
            covered, at = covered + end - begin, end
    return round(covered / max(span[1] - span[0], 1e-9), 3)


def threads() -> None:
    """The native decoder alone, on 1 to 16 threads: float32 in host memory."""
    counts = [n for n in (1, 2, 4, 8, 12, 16) if n <= CPUS]
    for kind in KINDS:
        for n in counts if kind == "jpeg" else counts[::2] + counts[-1:]:
            if left() > 5:
                loader = loader_of(kind, min(BATCH, 64), dtype=torch.float32, num_workers=n)
                say(store=kind, threads=n, **rate(loader, 2))


def to_device() -> None:
    """Decoded by the CPU, finished on the device; nothing trains."""
    for kind in KINDS:
        for n in sorted({max(1, CPUS - 2), CPUS}):
            if left() > 5:
                loader = loader_of(kind, **on_device(num_workers=n))
                say(store=kind, threads=n, **rate(loader, 2.5))


def dali() -> None:
    """DALI as fastload feeds it: whole images."""
    if left() > 6:
        say(**rate(loader_of("jpeg", **on_device(engine="dali")), 3))


def dali_boxes() -> None:
    """The same with boxes, which need an nvJPEG that is loaded before torchvision: LD_PRELOAD."""
    from fastload._engine.nvidia import dali as engine
    from fastload._engine.nvidia.dali_graph import PipelineOptions

    def of_boxes(**given: Any) -> PipelineOptions:
        return PipelineOptions(**{**given, "whole": False})

    with mock.patch.object(engine, "PipelineOptions", of_boxes):
        dali()


def dali_reader() -> None:
    """DALI's own reader and pipeline over the files: float32, decoded on the device."""
    work = Workload(
        suite="gpu",
        variant="dali",
        images=str(photos()),
        recipe="train",
        size=SIZE,
        resize=256,
        batch=BATCH,
        threads=max(1, CPUS - 2),
        memory_format="channels_last",
        device=DEVICE.type,
    )
    reader = Dali("dali")
    setting = reader.settings(work)[0]
    reader.open(work, setting)
    epochs = chain.from_iterable(reader.epoch() for _ in repeat(None))
    say(setting=setting, **rate(epochs, 3))


PARTS: dict[str, Callable[[], None]] = {
    part.__name__: part
    for part in (link, smoke, warm, fed_compiled, overlap, threads, to_device)
    + (fed_eager, fed_small, fed_files, dali, dali_boxes, dali_reader, fed_dali)
}


if __name__ == "__main__":
    RESULTS = Path(sys.argv[1])
    name = sys.argv[2]
    try:
        PARTS[name]()
    finally:
        (RESULTS / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in _lines))
