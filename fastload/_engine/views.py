"""Several views of each record: a batch for every view, filled side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from .._base.slabs import SlabRing
from .._transforms.plan import Plan
from .._transforms.views import Views, seed_of
from ..errors import DataError, InternalError
from ..storage.base import Spans
from .decoder import Batch, Decoder, Draws, Images, Ticket
from .native import NativeDecoder

if TYPE_CHECKING:
    from .processes import Processes


class ViewsDecoder(Decoder):
    """Fills a batch of each view. One decoder a view; the first reads ahead, checks and keeps.

    Args:
        each: the decoders, over one store.
    """

    def __init__(self, each: Sequence[Decoder]) -> None:
        first = each[0]
        self.name = first.name
        self.store, self.cache, self.origin = first.store, first.cache, first.origin
        self.channels_last = first.channels_last
        self.threads = first.threads
        self._each = list(each)
        for other in self._each[1:]:
            other.keeps = False

    def _submit(self, records: np.ndarray, draws: Draws) -> Ticket:
        """The result of the ticket is a list of tensors, one for each view."""
        batches: list[Batch] = []
        for view, decoder in enumerate(self._each):
            decoder.threads = self.threads
            its = dataclasses.replace(
                draws, seed=seed_of(draws.seed, view), timed=draws.timed and view == 0
            )
            batches.append(decoder.prepare(records, its)[0])
        first, *others = self._each
        tickets = (
            first.start_views(
                [other for other in others if isinstance(other, NativeDecoder)], batches
            )
            if isinstance(first, NativeDecoder) and not first.plan.scaled
            else [decoder._start(batch) for decoder, batch in zip(self._each, batches, strict=True)]
        )
        return _ViewsTicket(list(map(Decoder.counted, tickets, batches)))

    def employ(self, processes: Processes | None) -> None:
        """As in the contract: the same for all views."""
        super().employ(processes)
        for view, decoder in enumerate(self._each):
            decoder.employ(processes)
            decoder.view = view

    def makes(self, plan: Plan | Views) -> bool:
        """As in the contract."""
        return (
            isinstance(plan, Views)
            and len(plan.each) == len(self._each)
            and all(decoder.makes(one) for decoder, one in zip(self._each, plan.each, strict=True))
        )

    def readahead(self, spans: Sequence[Spans], *, wait: bool = False) -> None:
        """As in the contract; the views read the same."""
        self._each[0].threads = self.threads
        self._each[0].readahead(spans, wait=wait)

    @property
    def rings(self) -> tuple[SlabRing, ...]:
        """As in the contract, of all views."""
        return tuple(ring for decoder in self._each for ring in decoder.rings)

    def slabs_in_use(self) -> int:
        """As in the contract, of all views."""
        return sum(decoder.slabs_in_use() for decoder in self._each)

    def acquire(self, user: object) -> None:
        """As in the contract."""
        for decoder in self._each:
            decoder.acquire(user)

    def release(self, user: object) -> None:
        """As in the contract."""
        for decoder in self._each:
            decoder.release(user)

    def _start(self, batch: Batch) -> Ticket:
        raise InternalError("a batch of views is started by the decoders of its views")


class _ViewsTicket(Ticket):
    """The batches of all views. A sample that one view lacks is lacking in all."""

    def __init__(self, each: list[Ticket]) -> None:
        self._each = each
        self.times = each[0].times
        self.nbytes = each[0].nbytes
        self.hits = each[0].hits

    def result(self) -> list[torch.Tensor]:
        try:
            return [_one(ticket.result()) for ticket in self._each]
        except BaseException:
            self.cancel()
            raise

    def settle(self) -> tuple[list[torch.Tensor], dict[int, DataError]]:
        images, errors = [], dict[int, DataError]()
        try:
            for ticket in self._each:
                made, failed = ticket.settle()
                images.append(_one(made))
                errors = failed | errors
        except BaseException:
            self.cancel()
            raise
        return images, errors

    def cancel(self) -> None:
        for ticket in self._each:
            ticket.cancel()

    def stages_ns(self) -> Mapping[str, int]:
        stages: dict[str, int] = {}
        for ticket in self._each:
            for stage, nanoseconds in ticket.stages_ns().items():
                stages[stage] = stages.get(stage, 0) + nanoseconds
        return stages


def _one(images: Images) -> torch.Tensor:
    assert isinstance(images, torch.Tensor), "a view is one tensor"
    return images
