"""What was observed in a training script: plain figures, sent from its process as JSON."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

_WARM_UP = 2  # first batches of a run, in which memory is allocated and kernels are chosen


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaterialisedSeen:
    """Code of the dataset that asks for the pixels of a deferred image."""

    function: str  # what it calls
    where: str  # ``file:line`` of the call
    images: float  # share of the images that were opened; above 1 if it asks for parts of one
    share: float  # part of the time for a batch that it takes


@dataclasses.dataclass(frozen=True, kw_only=True)
class FastSeen:
    """The trial of FastLoader in a loader's place."""

    native: bool  # whether an engine reads the dataset
    defers: bool = False  # whether its own code runs, over images that are decoded later
    reason: str = ""  # why no engine reads it
    # What has images decoded earlier, the longest time first.
    materialised: list[MaterialisedSeen] = dataclasses.field(default_factory=list)
    batch_s: float = 0.0  # time for a batch, without a training step
    error: float = 0.0  # standard error of ``batch_s``, relative to it
    ahead: bool = True  # whether it prefetches batches while the step runs


@dataclasses.dataclass(frozen=True, kw_only=True)
class FunctionSeen:
    """A function in which the dataset's code spends time, by the profiler's samples of it."""

    name: str  # with its class; or of the torchvision transform
    where: str  # ``file:line`` of its definition; for a torchvision transform, of the call
    torchvision: bool
    line: str  # ``file:line`` of the line in it that was sampled most often
    looks: int  # number of samples
    share: float  # of these samples, in this function
    line_share: float  # of the function's samples, at ``line``


@dataclasses.dataclass(kw_only=True)
class LoaderSeen:
    """One DataLoader of the script, and the loop over it. Places are ``file:line``, "" if unknown.

    ``num_workers``, ``batch_size``, ``pin_memory`` and ``persistent_workers`` are its attributes.
    """

    kind: str = ""  # class name of the loader
    made: str = ""  # where the user's code created it
    looped: str = ""  # where it loops over it
    called: str = ""  # where it calls the model in the loop
    dataset: str = ""  # class name of its dataset
    batches: int = 0  # per epoch; 0 if unknown
    # The sampler's epoch at the start of each; none without ``set_epoch`` or without shuffling.
    epochs: list[int] = dataclasses.field(default_factory=list)
    samples: int = 0  # length of the dataset; 0 if it has none
    num_workers: int = 0
    batch_size: int = 1
    pin_memory: bool = False
    persistent_workers: bool = False
    shuffled: bool = False  # whether the order is random
    # Waiting time for each batch except the first of an epoch.
    waits_s: list[float] = dataclasses.field(default_factory=list)
    steps_s: list[float] = dataclasses.field(default_factory=list)  # between two batches
    starts_s: list[float] = dataclasses.field(default_factory=list)  # wait for an epoch's first
    # Wait and step together, for each batch except the first of an epoch.
    laps_s: list[float] = dataclasses.field(default_factory=list)
    images: int = 0  # samples in all batches
    batch_nbytes: int = 0  # of the tensors in a batch
    # Of the first tensor with four dimensions; empty without one.
    image_shape: list[int] = dataclasses.field(default_factory=list)
    image_dtype: str = ""
    image_shapes: int = 0  # different ones, without the last batch of an epoch
    backwards: int = 0  # calls of ``backward`` in the loop
    forwards: int = 0  # calls of the outermost module; below, how many of them were
    grad: int = 0  # with gradients
    train_mode: int = 0  # in training mode
    autocast: int = 0  # under autocast
    channels_last: int = 0  # with channels_last images
    # Calls of ``item``, ``tolist``, ``cpu`` and ``numpy`` on tensors in the loop, by place, without
    # those of torch itself, for instance of an optimiser.
    items: dict[str, int] = dataclasses.field(default_factory=dict)
    held: str = ""  # Python objects of the dataset whose pages workers copy
    network_s: float = 0.0  # in which the making of batches waited for remote bytes
    remote_nbytes: int = 0
    remote_requests: int = 0
    remote_hit_nbytes: int = 0  # that were in the cache instead
    fast: FastSeen | None = None  # trial of FastLoader in its place; None if it was not tried

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
    """What was observed in the whole script."""

    loaders: list[LoaderSeen] = dataclasses.field(default_factory=list)  # by their first use
    cpus: int = 1  # that the script may use
    cuda: bool = False  # whether there is a CUDA device
    memory_nbytes: int = 0  # available
    benchmark: bool = False  # ``torch.backends.cudnn.benchmark``
    convolutions: bool = False  # whether the model has any
    running: float = 0.0  # mean number of running threads of the script
    process_threads: int = 1  # torch's threads per operation, in the worker processes
    growth_nbytes: float = 0.0  # of all workers together, per batch; 0 if the run is too short
    fetch_s: float = 0.0  # in the dataset's code, summed over processes
    fetch_cpu_s: float = 0.0  # part of it spent computing or waiting for a free CPU
    fetched: int = 0  # samples
    loads: int = 0  # images decoded by Pillow, the time, and their pixels
    load_s: float = 0.0
    load_pixels: int = 0
    resizes: int = 0  # whole images that were resized to a smaller size, and the time
    resize_s: float = 0.0
    opens: int = 0  # files the dataset opened for reading, and their size
    open_nbytes: int = 0
    # The functions of the dataset's code by their time, longest first.
    functions: list[FunctionSeen] = dataclasses.field(default_factory=list)
    # Settings that the script makes only with CUDA, see ``sources.py``.
    cuda_only: list[str] = dataclasses.field(default_factory=list)
    error: str = ""  # how the script failed
    error_where: str = ""  # ``file:line`` of the script's code at which it failed

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
