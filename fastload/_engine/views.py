"""Several views of each record: a batch for every view, filled side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from typing_extensions import override

from .._base.slabs import SlabRing
from .._transforms.geometry.draws import Numbers
from .._transforms.plan import Plan, Views, seed_of
from ..errors import DataError
from ..storage.base import Spans
from .base import BatchEngine, Ticket, one_tensor, summed
from .image_engine import ImageEngine, PillowProcesses, counted
from .kernel import BatchRequest


class ViewsEngine(BatchEngine):
    """Fills a batch for each view: a list of tensors.

    There is an engine for ``each`` view, over one store, made with ``EngineOptions.of_view``.
    """

    def __init__(self, each: Sequence[ImageEngine]) -> None:
        first = each[0]
        super().__init__(first.store, first.threads)
        self.name, self.origin = first.name, first.origin
        self.each = list(each)

    @property
    def processes(self) -> PillowProcesses | None:
        """As in ``EngineOptions``; the same for all views."""
        return self.each[0].processes

    def _submit(self, numbers: Numbers, *, timed: bool) -> Ticket:
        batches: list[BatchRequest] = []
        for view, engine in enumerate(self.each):
            its = numbers._replace(seed=seed_of(numbers.seed, view))
            batches.append(engine.prepare(its, timed=timed and view == 0))
        first, *others = self.each
        return _ViewsTicket(list(map(counted, first.start_views(others, batches), batches)))

    @override
    def makes(self, plan: Plan | Views) -> bool:
        return (
            isinstance(plan, Views)
            and len(plan.each) == len(self.each)
            and all(engine.makes(own) for engine, own in zip(self.each, plan.each, strict=True))
        )

    @override
    def uniform(self, records: np.ndarray) -> bool:
        """Of each view."""
        return all(engine.uniform(records) for engine in self.each)

    @override
    def readahead(self, spans: Sequence[Spans], *, wait: bool = False) -> None:
        """All views read the same."""
        self.each[0].readahead(spans, wait=wait)

    @property
    @override
    def rings(self) -> tuple[SlabRing, ...]:
        """Of all views."""
        return tuple(ring for engine in self.each for ring in engine.rings)

    @override
    def use_threads(self, threads: int) -> None:
        super().use_threads(threads)
        for engine in self.each:
            engine.use_threads(threads)

    @override
    def acquire(self, user: object) -> None:
        for engine in self.each:
            engine.acquire(user)

    @override
    def release(self, user: object) -> None:
        for engine in self.each:
            engine.release(user)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.each,)


class _ViewsTicket(Ticket):
    """The batches of all views. A sample that fails in one view fails in all."""

    def __init__(self, each: list[Ticket]) -> None:
        self._each = each
        self.times = each[0].times
        self.nbytes = each[0].nbytes
        self.hits = each[0].hits

    def settle(self) -> tuple[list[torch.Tensor], dict[int, DataError]]:
        images, errors = [], dict[int, DataError]()
        try:
            for ticket in self._each:
                view_images, failed = ticket.settle()
                images.append(one_tensor(view_images))
                errors = failed | errors
        except BaseException:
            self.cancel()
            raise
        return images, errors

    def cancel(self) -> None:
        self.cancelled = True
        for ticket in self._each:
            ticket.cancel()

    def stages_ns(self) -> Mapping[str, int]:
        return summed(ticket.stages_ns() for ticket in self._each)
