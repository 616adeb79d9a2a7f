"""What was seen of a training script: plain figures, which travel from its process as JSON."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any


@dataclasses.dataclass(kw_only=True)
class LoaderSeen:
    """One DataLoader of the script, and the loop over it.

    Attributes:
        dataset: class name of its dataset.
        samples: length of the dataset; 0 where it has none.
        num_workers, batch_size, pin_memory, persistent_workers: as the loader has them.
        shuffled: whether the order is random.
        waits_s: how long the loop waited for each batch.
        steps_s: how long it took between two batches.
        starts_s: how long it waited for the first batch of each epoch; these are not in waits_s.
        images: samples in all batches together.
        batch_nbytes: of the tensors in a batch.
        image_shape, image_dtype: of the first tensor with four dimensions; empty without one.
        image_shapes: how many different ones there were, the last batch of an epoch left out.
        backwards: calls of ``backward`` in the loop.
        forwards: calls of the outermost module in the loop; of these
        grad, train_mode, autocast, channels_last: with gradients, in training mode, under autocast,
            with channels_last images.
        items: calls of ``item``, ``tolist``, ``cpu`` and ``numpy`` on tensors in the loop.
        held: Python objects of the dataset that workers come to copy, in words; or "".
    """

    dataset: str = ""
    samples: int = 0
    num_workers: int = 0
    batch_size: int = 1
    pin_memory: bool = False
    persistent_workers: bool = False
    shuffled: bool = False
    waits_s: list[float] = dataclasses.field(default_factory=list)
    steps_s: list[float] = dataclasses.field(default_factory=list)
    starts_s: list[float] = dataclasses.field(default_factory=list)
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
    items: int = 0
    held: str = ""

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
        growth_nbytes: by which the worker processes together grew with each batch, once they ran.
        fetch_s: time in the dataset's code, added up over processes; of that
        fetch_cpu_s: computing, or waiting for a free CPU.
        fetched: samples.
        loads, load_s, load_pixels: images that Pillow decoded, its time, their pixels.
        resizes, resize_s: images that were resized whole to one and the same size, and the time.
        opens, open_nbytes: files the dataset opened for reading, and their size.
        error: how the script failed, or "".
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
    error: str = ""

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
        loaders = [LoaderSeen(**loader) for loader in content.pop("loaders")]
        return cls(loaders=loaders, **content)
