"""What was observed in a training script: plain figures, sent from its process as JSON."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

_WARM_UP = 2  # first batches of a run, in which memory is allocated and kernels are chosen


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaterialisedSeen:
    """Code of the dataset that asks for the pixels of a deferred image.

    Attributes:
        function, where: what it calls, and the call's ``file:line``.
        images: for how many of the images that were opened, as a share; more than 1 if it asks for
            several parts of one.
        share: part of the time for a batch that it takes.
    """

    function: str
    where: str
    images: float
    share: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class FastSeen:
    """The trial of FastLoader in a loader's place.

    Attributes:
        native: whether an engine reads the dataset.
        defers: whether the dataset's own code runs, over images that are decoded later.
        reason: why no engine reads it.
        materialised: what has them decoded earlier, the longest time first.
        batch_s: time for a batch, without a training step.
        error: standard error of ``batch_s``, relative to it.
        ahead: whether it prefetches batches while the step runs.
    """

    native: bool
    defers: bool = False
    reason: str = ""
    materialised: list[MaterialisedSeen] = dataclasses.field(default_factory=list)
    batch_s: float = 0.0
    error: float = 0.0
    ahead: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class FunctionSeen:
    """A function in which the dataset's code spends time.

    Attributes:
        name: with its class; or of the torchvision transform.
        where: ``file:line`` of its definition; for a torchvision transform, of the call.
        line: ``file:line`` of the line in it that was sampled most often.
        looks: number of the profiler's samples of the dataset's code.
        share: share of these samples in this function.
        line_share: share of the function's samples at ``line``.
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
        made: ``file:line`` in the user's code where the loader was created; "" if unknown.
        looped: ``file:line`` of the loop over it.
        called: ``file:line`` of the call of the model in the loop.
        dataset: class name of its dataset.
        batches: batches per epoch; 0 if unknown.
        epochs: the sampler's epoch at the start of each epoch of the loop; empty for a sampler
            without ``set_epoch``, or one that does not shuffle.
        samples: length of the dataset; 0 if it has none.
        num_workers, batch_size, pin_memory, persistent_workers: attributes of the loader.
        shuffled: whether the order is random.
        waits_s: waiting time for each batch except the first of an epoch.
        steps_s: time between two batches, for each.
        starts_s: waiting time for the first batch of each epoch.
        laps_s: wait and step together, for each batch except the first of an epoch.
        images: number of samples in all batches.
        batch_nbytes: size of the tensors in a batch.
        image_shape, image_dtype: of the first tensor with four dimensions; empty without one.
        image_shapes: number of different shapes, without the last batch of an epoch.
        backwards: number of calls of ``backward`` in the loop.
        forwards: number of calls of the outermost module in the loop.
        grad, train_mode, autocast, channels_last: how many of these calls were with gradients, in
            training mode, under autocast, with channels_last images.
        items: number of calls of ``item``, ``tolist``, ``cpu`` and ``numpy`` on tensors in the
            loop, by place; without those of torch itself, for instance of an optimiser.
        held: Python objects of the dataset whose pages workers copy; or "".
        network_s: time in which the making of batches waited for remote bytes.
        remote_nbytes, remote_requests: remote bytes, and the requests for them.
        remote_hit_nbytes: bytes that were in the cache instead.
        fast: trial of FastLoader in its place; None if it was not tried.
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
    network_s: float = 0.0
    remote_nbytes: int = 0
    remote_requests: int = 0
    remote_hit_nbytes: int = 0
    fast: FastSeen | None = None

    @property
    def wait_s(self) -> float:
        """Mean wait for a batch, without the first of an epoch."""
        return statistics.fmean(self.waits_s) if self.waits_s else 0.0

    @property
    def step_s(self) -> float:
        """Mean time between two batches."""
        return statistics.fmean(self.steps_s) if self.steps_s else 0.0

    @property
    def waiting(self) -> float:
        """Share of the loop's time spent waiting for data."""
        total = self.wait_s + self.step_s
        return self.wait_s / total if total else 0.0

    @property
    def trains(self) -> bool:
        """Whether this is a training loop: most of its steps call ``backward``."""
        return self.backwards * 2 > len(self.steps_s)

    @property
    def start_s(self) -> float:
        """How much longer than for other batches the loop waits for the first one of an epoch.

        If there are several epochs, without the first, in which libraries are loaded.
        """
        starts = self.starts_s[1:] or self.starts_s
        return max(0.0, statistics.median(starts) - self.wait_s) if starts else 0.0

    def rates(self, blocks: int = 1) -> list[float]:
        """Images/s of a whole epoch, estimated from each of ``blocks`` parts of the batches.

        The start of an epoch is weighted as in a whole epoch, because a run that is stopped early
        has observed a start but only few of the following steps.
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
    """What was observed in the whole script.

    Attributes:
        loaders: in the order of their first use.
        cpus: number of CPUs that the script may use.
        cuda: whether there is a CUDA device.
        memory_nbytes: available memory.
        benchmark: ``torch.backends.cudnn.benchmark``.
        convolutions: whether the model has any.
        running: mean number of running threads of the script.
        process_threads: torch's threads per operation, in the worker processes.
        growth_nbytes: growth of all worker processes together per batch; 0 if the run is too short.
        fetch_s: time in the dataset's code, summed over processes.
        fetch_cpu_s: part of ``fetch_s`` spent computing or waiting for a free CPU.
        fetched: number of samples.
        loads, load_s, load_pixels: images decoded by Pillow, the time, and their pixels.
        resizes, resize_s: whole images that were resized to a smaller size, and the time.
        opens, open_nbytes: files the dataset opened for reading, and their size.
        functions: the functions of the dataset's code by their time, longest first.
        cuda_only: settings that the script makes only with CUDA, see ``sources.py``.
        error: how the script failed, or "".
        error_where: ``file:line`` of the script's code at which it failed, or "".
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
        training = [loader for loader in self.loaders if loader.trains and loader.steps_s]
        return max(training, key=lambda loader: len(loader.steps_s), default=None)

    @property
    def evaluations(self) -> list[LoaderSeen]:
        """Loaders of loops that run the model, but never call ``backward``."""
        return [loader for loader in self.loaders if loader.forwards and not loader.backwards]

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Observation:
        """The inverse of ``dataclasses.asdict``."""
        loaders = []
        for loader in content.pop("loaders"):
            fast = loader.pop("fast")
            if fast:
                parts = [MaterialisedSeen(**part) for part in fast.pop("materialised")]
                fast = FastSeen(**fast, materialised=parts)
            loaders.append(LoaderSeen(**loader, fast=fast or None))
        functions = [FunctionSeen(**function) for function in content.pop("functions")]
        return cls(loaders=loaders, functions=functions, **content)
