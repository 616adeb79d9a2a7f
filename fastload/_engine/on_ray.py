"""Batches that tasks on a Ray cluster fill, for a process that has too few CPUs.

How it runs
    ``submit`` draws the parameters, so that it raises what any engine raises, and starts a task:
    one batch, on one CPU of any machine that has one free. A process that runs tasks keeps the
    engine, and what it remembers of the images, from task to task. The task's batch comes through
    Ray's shared memory, and ``settle`` copies it into memory of this process.
How it ends
    success    the batch is the one that this process would have made: parameters are a function of
               seed, epoch and record, and the engine is the same.
    failure    errors of samples travel beside the batch. Ray starts a task whose
               process or machine dies again on another one, up to 8 times; so it does one whose
               batch was lost before it got here. An application cannot tell.
    cancel     the task is cancelled, and nothing is copied any more.
    memory     the caller bounds it by the number of tickets that it has at a time: each is at most
               one batch in Ray's shared memory.
"""

from __future__ import annotations

import concurrent.futures
import functools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from .._base import ray_cluster
from .._base.slabs import SlabRing
from .._transforms.geometry.draws import Numbers
from .._transforms.plan import Plan, Views
from ..errors import DataError, FastloadError, StoreError, UsageError
from .base import BatchEngine, Ticket, one_tensor
from .image_engine import ImageEngine

_RETRIES = 8
_LOOK_EVERY_S = 0.1  # whether the ticket was cancelled
_ENGINES = 4  # that a process keeps: of the loaders of one training

_Answer = tuple[np.ndarray, tuple[int, int], dict[int, DataError]]
"""The bytes of a batch, its height and width, and the errors by position."""


class RayEngine(BatchEngine):
    """Has tasks fill batches with ``remote``, the engine for the tasks: without threads.

    ``local``, the same engine for this process, allocates batches and fills none.

    Raises UsageError if Ray is not connected to a cluster, or the engine cannot be sent there.
    """

    def __init__(self, local: ImageEngine, remote: ImageEngine) -> None:
        super().__init__(local.store, local.threads)
        self.name = local.name
        self.origin = local.origin
        self._local, self._remote = local, remote
        ray = self._ray = ray_cluster.load()
        if not ray.is_initialized():
            raise UsageError(
                "engine='ray': expected a connection to a Ray cluster, found none: call "
                "ray.init(address=...) first"
            )
        self._reference = ray_cluster.put(remote, "engine='ray': the dataset")
        # Elsewhere too, although a trainer's placement group holds its own CPUs only.
        self._task = ray.remote(fill).options(
            num_cpus=1, max_retries=_RETRIES, scheduling_strategy="SPREAD"
        )

    def _submit(self, numbers: Numbers, *, timed: bool) -> Ticket:
        self._local.check(numbers)
        records = numbers.indices
        task = self._task.remote([self._reference], numbers)
        ticket = _RayTicket(self._ray, task, self._local, records)
        nbytes = self.store.places(records).nbytes
        ticket.nbytes = int(nbytes.clip(0).sum())
        return ticket

    @override
    def makes(self, plan: Plan | Views) -> bool:
        return self._local.makes(plan)

    @override
    def uniform(self, records: np.ndarray) -> bool:
        return self._local.uniform(records)

    @property
    @override
    def rings(self) -> tuple[SlabRing, ...]:
        return self._local.rings

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._local, self._remote)


class _RayTicket(Ticket):
    def __init__(
        self, ray: Any, reference: Any, engine: ImageEngine, records: Sequence[int] | np.ndarray
    ) -> None:
        self._ray = ray
        self._reference = reference
        self._engine = engine
        self._count = len(records)
        self._copying = threading.Lock()

    def settle(self) -> tuple[torch.Tensor, dict[int, DataError]]:
        flat, (height, width), errors = self._answer()
        with self._copying:
            self.check_cancelled()
            images, memory = self._engine.allocate(self._count, height, width)
            memory[:] = flat
        self._reference = None  # frees the shared memory
        return images, errors

    def _answer(self) -> _Answer:
        ray = self._ray
        while not ray.wait([self._reference], timeout=_LOOK_EVERY_S)[0]:
            self.check_cancelled()
        self.check_cancelled()
        try:
            answer: _Answer = ray.get(self._reference)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, FastloadError):
                raise error.cause from None
            raise
        except ray.exceptions.TaskCancelledError:
            raise concurrent.futures.CancelledError("the task of the batch was cancelled") from None
        except ray.exceptions.RayError as error:
            raise StoreError(
                f"engine='ray': a task was lost {_RETRIES + 1} times ({error}): see to the "
                "machines of the cluster"
            ) from error
        return answer

    def cancel(self) -> None:
        reference = self._reference
        self.cancelled = True
        if reference is not None and self._ray.is_initialized():
            self._ray.cancel(reference, recursive=False)
        with self._copying:
            return


# --- in the processes of the cluster ----------------------------------------------------------


def fill(engine: list[Any], numbers: Numbers) -> _Answer:
    """Task: the batch of ``numbers.indices``.

    ``engine`` is a reference to it, in a list, so that Ray does not fetch it for every task.
    """
    mine = _engine(engine[0])
    ticket = mine.submit(
        numbers.indices, seed=numbers.seed, epoch=numbers.epoch, repeats=numbers.repeats
    )
    filled, errors = ticket.settle()
    images = one_tensor(filled)
    flat = torch.empty(0, dtype=torch.uint8).set_(images.untyped_storage())
    height, width = images.shape[2:]
    return flat.numpy(), (height, width), errors


@functools.lru_cache(maxsize=_ENGINES)
def _engine(reference: Any) -> ImageEngine:
    """The engine of ``reference``, which this process fetches once."""
    engine = ray_cluster.get(reference)
    assert isinstance(engine, ImageEngine)
    return engine
