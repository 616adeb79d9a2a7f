"""Stamps: where the time of a loader went, per stage, since its epoch began."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What was measured so far.

    Attributes:
        images, batches: handed to the consumer.
        elapsed_s: wall time from the start of the epoch to the last batch.
        wait_s: time the consumer spent waiting for the next batch.
        stages_s: seconds of work per stage, added up over threads.
    """

    images: int
    batches: int
    elapsed_s: float
    wait_s: float
    stages_s: Mapping[str, float]


class Stamps:
    """Adds up the stages of one epoch. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stages_ns: dict[str, int] = {}
        self._images = self._batches = self._wait_ns = 0
        self._begin = self._end = time.perf_counter_ns()

    def __reduce__(self) -> tuple[type[Stamps], tuple[()]]:
        return Stamps, ()  # a copy in another process begins with nothing

    def stage(self, name: str, nanoseconds: int) -> None:
        """Add work done for stage ``name``."""
        with self._lock:
            self._stages_ns[name] = self._stages_ns.get(name, 0) + nanoseconds

    def batch(self, images: int, waited_ns: int) -> None:
        """A batch of ``images`` was handed over after the consumer waited for ``waited_ns``."""
        with self._lock:
            self._images += images
            self._batches += 1
            self._wait_ns += waited_ns
            self._end = time.perf_counter_ns()

    def snapshot(self) -> Snapshot:
        """The figures as they stand."""
        with self._lock:
            return Snapshot(
                images=self._images,
                batches=self._batches,
                elapsed_s=(self._end - self._begin) / 1e9,
                wait_s=self._wait_ns / 1e9,
                stages_s={name: ns / 1e9 for name, ns in self._stages_ns.items()},
            )


class Observed(Iterator[Any]):
    """torch's own iterator, with the consumer's waiting measured."""

    def __init__(self, iterator: Any, stamps: Stamps) -> None:
        self._wrapped = iterator
        self._stamps = stamps

    def __next__(self) -> Any:
        begin = time.perf_counter_ns()
        batch = next(self._wrapped)
        self._stamps.batch(_batch_length(batch), time.perf_counter_ns() - begin)
        return batch

    def __len__(self) -> int:
        return len(self._wrapped)

    def __getattr__(self, name: str) -> Any:
        if name == "_wrapped":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._wrapped, name)

    def __reduce__(self) -> Any:
        return self._wrapped.__reduce__()  # torch's says that it cannot be pickled


def _batch_length(batch: Any) -> int:
    """Number of samples in a collated batch: the first dimension of its first tensor, else 1."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)) and batch:
        return _batch_length(batch[0])
    return 1
