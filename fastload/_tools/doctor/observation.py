"""What was seen of a training script: plain figures, which travel from its process as JSON."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

_WARM_UP = 2  # batches of a run: memory is taken and kernels are chosen for the first time


@dataclasses.dataclass(frozen=True, kw_only=True)
class FastSeen:
    """What FastLoader would do in a loader's place.

    Attributes:
        native: whether it reads the dataset by itself.
        reason: why not.
        batch_s: how long it needs for a batch, with nothing else to do.
        error: standard error of that, relative to it.
        ahead: whether it makes batches while the step runs.
    """

    native: bool
    reason: str = ""
    batch_s: float = 0.0
    error: float = 0.0
    ahead: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class FunctionSeen:
    """A function in which the dataset's code spends time.

    Attributes:
        name: of the function, with its class; or of the torchvision transform.
        where: ``file:line`` of its definition, of a torchvision transform of the call.
        torchvision: whether it is a transform of torchvision's.
        line: of the line in it that ran most often.
        looks: how often the profiler looked at the dataset's code.
        share: of these looks, in this function.
        line_share: of these looks in the function, at that line.
    """

    name: str
    where: str
    torchvision: bool
    line: str
    looks: int
    share: float
    line_share: float


@dataclasses.dataclass(kw_only=True)
class LoaderSeen:
    """One DataLoader of the script, and the loop over it.

    Attributes:
        kind: class name of the loader.
        made: ``file:line`` in the user's code where it was made; "" unknown; of the loop over it
        looped: where it begins, called: where the model is called.
        dataset: class name of its dataset.
        batches: of an epoch; 0 where it is not known.
        epochs: the epoch that its sampler was told, at the start of each epoch of the loop; empty
            for a sampler that need not be told, or does not shuffle.
        samples: length of the dataset; 0 where it has none.
        num_workers, batch_size, pin_memory, persistent_workers: as the loader has them.
        shuffled: whether the order is random.
        waits_s: how long the loop waited for each batch.
        steps_s: how long it took between two batches.
        starts_s: how long it waited for the first batch of each epoch; these are not in waits_s.
        laps_s: wait and step together, for each batch but the first of an epoch.
        images: samples in all batches together.
        batch_nbytes: of the tensors in a batch.
        image_shape, image_dtype: of the first tensor with four dimensions; empty without one.
        image_shapes: how many different ones there were, the last batch of an epoch left out.
        backwards: calls of ``backward`` in the loop.
        forwards: calls of the outermost module in the loop; of these
        grad, train_mode, autocast, channels_last: with gradients, in training mode, under autocast,
            with channels_last images.
        items: calls of ``item``, ``tolist``, ``cpu`` and ``numpy`` on tensors in the loop, by
            place; not those of torch itself, such as an optimiser's.
        held: Python objects of the dataset that workers come to copy, in words; or "".
        fast: FastLoader in its place; None where that was not tried.
    """

    kind: str = ""
    made: str = ""
    looped: str = ""
    called: str = ""
    dataset: str = ""
    batches: int = 0
    epochs: list[int] = dataclasses.field(default_factory=list)
    samples: int = 0
    num_workers: int = 0
    batch_size: int = 1
    pin_memory: bool = False
    persistent_workers: bool = False
    shuffled: bool = False
    waits_s: list[float] = dataclasses.field(default_factory=list)
    steps_s: list[float] = dataclasses.field(default_factory=list)
    starts_s: list[float] = dataclasses.field(default_factory=list)
    laps_s: list[float] = dataclasses.field(default_factory=list)
    images: int = 0
    batch_nbytes: int = 0
    image_shape: list[int] = dataclasses.field(default_factory=list)
    image_dtype: str = ""
    image_shapes: int = 0
    backwards: int = 0
    forwards: int = 0
    grad: int = 0
    train_mode: int = 0
    autocast: int = 0
    channels_last: int = 0
    items: dict[str, int] = dataclasses.field(default_factory=dict)
    held: str = ""
    fast: FastSeen | None = None

    @property
    def wait_s(self) -> float:
        """Mean wait for a batch in the midst of an epoch."""
        return statistics.fmean(self.waits_s) if self.waits_s else 0.0

    @property
    def step_s(self) -> float:
        """Mean time between two batches."""
        return statistics.fmean(self.steps_s) if self.steps_s else 0.0

    @property
    def waiting(self) -> float:
        """Share of the loop's time that it waits for data."""
        total = self.wait_s + self.step_s
        return self.wait_s / total if total else 0.0

    @property
    def trains(self) -> bool:
        """Whether this is a training loop: most of its steps go backward."""
        return self.backwards * 2 > len(self.steps_s)

    @property
    def start_s(self) -> float:
        """How much longer than any other the first batch of an epoch lets the loop wait.

        Of the later epochs where there were some: loading libraries is not part of an epoch.
        """
        starts = self.starts_s[1:] or self.starts_s
        return max(0.0, statistics.median(starts) - self.wait_s) if starts else 0.0

    def rates(self, blocks: int = 1) -> list[float]:
        """Images/s of a whole epoch, once from each of some blocks of the batches that were seen.

        The start of an epoch counts for as much of it as it has in a whole one: a run that is ended
        after some steps has seen a start, but only few of the steps that follow it.
        """
        laps = self.laps_s[_WARM_UP:] or self.laps_s
        if not laps:  # epochs of one batch
            seconds = sum(self.starts_s) + sum(self.steps_s)
            return [self.images / seconds] if seconds else []
        seen = len(self.steps_s)
        start = self.start_s / (self.batches or seen)
        size = max(1, -(-len(laps) // blocks))
        parts = [laps[begin : begin + size] for begin in range(0, len(laps), size)]
        return [self.images / seen / (statistics.fmean(part) + start) for part in parts]


@dataclasses.dataclass(kw_only=True)
class Observation:
    """What was seen of the whole script.

    Attributes:
        loaders: in the order of their first use.
        cpus: that the script may use.
        cuda: whether there is a CUDA device.
        memory_nbytes: available.
        benchmark: ``torch.backends.cudnn.benchmark``.
        convolutions: whether the model has some.
        running: threads of the script that were running at a time, on average.
        process_threads: torch's threads within an operation, in the worker processes.
        growth_nbytes: by which the worker processes together grew with each batch, once they ran
            for long enough to tell.
        fetch_s: time in the dataset's code, added up over processes; of that
        fetch_cpu_s: computing, or waiting for a free CPU.
        fetched: samples.
        loads, load_s, load_pixels: images that Pillow decoded, its time, their pixels.
        resizes, resize_s: images that were resized whole to one and the same size, and the time.
        opens, open_nbytes: files the dataset opened for reading, and their size.
        functions: in which the dataset's code spends its time, longest first.
        cuda_only: settings that the script's text makes where there is CUDA, see ``sources.py``.
        error: how the script failed, or ""; error_where: at which ``file:line`` of its own code.
    """

    loaders: list[LoaderSeen] = dataclasses.field(default_factory=list)
    cpus: int = 1
    cuda: bool = False
    memory_nbytes: int = 0
    benchmark: bool = False
    convolutions: bool = False
    running: float = 0.0
    process_threads: int = 1
    growth_nbytes: float = 0.0
    fetch_s: float = 0.0
    fetch_cpu_s: float = 0.0
    fetched: int = 0
    loads: int = 0
    load_s: float = 0.0
    load_pixels: int = 0
    resizes: int = 0
    resize_s: float = 0.0
    opens: int = 0
    open_nbytes: int = 0
    functions: list[FunctionSeen] = dataclasses.field(default_factory=list)
    cuda_only: list[str] = dataclasses.field(default_factory=list)
    error: str = ""
    error_where: str = ""

    @property
    def training(self) -> LoaderSeen | None:
        """The training loop's loader: the one with most batches."""
        found = [loader for loader in self.loaders if loader.trains and loader.steps_s]
        return max(found, key=lambda loader: len(loader.steps_s), default=None)

    @property
    def evaluations(self) -> list[LoaderSeen]:
        """Loaders of loops that never go backward, but run the model."""
        return [one for one in self.loaders if one.forwards and not one.backwards]

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Observation:
        """What ``dataclasses.asdict`` gave."""
        loaders = []
        for loader in content.pop("loaders"):
            fast = loader.pop("fast")
            loaders.append(LoaderSeen(**loader, fast=FastSeen(**fast) if fast else None))
        functions = [FunctionSeen(**function) for function in content.pop("functions")]
        return cls(loaders=loaders, functions=functions, **content)
