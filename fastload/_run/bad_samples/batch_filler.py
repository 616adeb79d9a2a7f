"""Fills the batches of an epoch, and applies ``on_error`` where samples cannot be read."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from typing_extensions import override

from ..._engine.base import BatchEngine, Images, Ticket
from ..._sources.source import Source
from ..._transforms import sample_params
from ..._transforms.geometry.crop_geometry import Refused
from ..._transforms.geometry.draws import Numbers
from ..._transforms.plan import Plan
from ...errors import DataError, StoreError
from ...hints import OnError, OnErrorName
from ..drawing import Repeats
from ..maker import Outcome, Remaker
from . import policy

if TYPE_CHECKING:
    from ..._transforms.pixels.erasing import ErasedBoxes
    from .refill import Refill

Moved = dict[str, torch.Tensor | list[Any]]
"""The fields that moved along with the images: a tensor (n, ...), or a tensor per image.

With ``on_error``, text and JSON too: whether it can be decoded says which samples are bad."""


class PendingBatch(NamedTuple):
    """A batch that an engine fills: ``indices`` of the sampler, and their ``records``, int64 (n,).

    Attributes:
        tried: positions of those that the engine was given.
        refused: why it was not given the others, by position.
        ticket: of those that it was given; None where there are none.
        repeats: int64 (n,), how often each came before; None: that does not matter, or none did.
    """

    indices: np.ndarray
    records: np.ndarray
    tried: np.ndarray
    ticket: Ticket | None
    repeats: np.ndarray | None
    refused: dict[int, DataError]


class _EngineOutput(NamedTuple):
    """What an engine made of the records of a batch, including those that failed."""

    images: Images
    moved: Moved

    def of(self, rows: torch.Tensor) -> _EngineOutput:
        """The records at these positions (int64) only."""
        images, chosen = self.images, rows.tolist()
        return _EngineOutput(
            [view[rows] for view in images] if isinstance(images, list) else images[rows],
            {
                name: values[rows]
                if isinstance(values, torch.Tensor)
                else [values[i] for i in chosen]
                for name, values in self.moved.items()
            },
        )


class FilledBatch(NamedTuple):
    """A batch that is ready; the batch of an ``Outcome`` before the consumer assembles it.

    Attributes:
        records: int64 (n,), one for each image; fewer than were asked for where some were skipped.
        images: (n, 3, h, w), or a list of the views.
        moved: the fields that moved along with the images.
        drawn: rectangles of these images for the device stage, or None.
    """

    records: np.ndarray
    images: Images
    moved: Moved
    drawn: ErasedBoxes | None


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class EngineFiller(Remaker[PendingBatch]):
    """Fills the batches of one epoch, and applies ``on_error`` to samples that fail.

    Attributes:
        seed, epoch: of the augmentation.
        repeats: counts how often each record comes; None: nothing is random, or none comes twice.
        rest: the whole plan, where the device stage applies what the engine leaves of it.
    """

    engine: BatchEngine
    source: Source
    seed: int
    epoch: int
    on_error: OnError
    refill: Refill | None
    repeats: Repeats | None
    rest: Plan | None

    def begin(self, indices: np.ndarray, *, timed: bool) -> PendingBatch:
        """Start to fill the next batch, of ``indices``; ``timed``: as for ``submit``."""
        records = self.source.lookup(indices)
        repeats = None if self.repeats is None else self.repeats.count(records)
        return self._begin(indices, records, repeats, timed)

    def _begin(
        self,
        indices: np.ndarray,
        records: np.ndarray,
        repeats: np.ndarray | None,
        timed: bool,
    ) -> PendingBatch:
        tried, refused = np.arange(len(records)), dict[int, DataError]()
        if self.on_error != "raise":
            sized = self.engine.store.sizes(records).min(axis=1, initial=1) > 0
            for i in np.flatnonzero(~sized).tolist():
                refused[i] = self.engine.unsized(int(records[i]))
            tried = np.flatnonzero(sized)
        ticket = None
        while ticket is None and (len(tried) or not len(records)):
            whole = len(tried) == len(records)
            try:
                ticket = self.engine.submit(
                    records if whole else records[tried],
                    seed=self.seed,
                    epoch=self.epoch,
                    repeats=repeats if whole or repeats is None else repeats[tried],
                    timed=timed,
                )
            except Refused as error:
                if self.on_error == "raise":
                    raise
                refused[int(tried[error.position])] = error
                tried = np.delete(tried, error.position)
        return PendingBatch(indices, records, tried, ticket, repeats, refused)

    def finish(self, pending: PendingBatch) -> Outcome:
        """Wait for ``pending``, the oldest one; the outcome has a ``FilledBatch`` of what is good.

        Raises DataError for a sample that is not to be skipped or replaced, CancelledError if
        the batch was cancelled.
        """
        outcome = self.answer(pending)
        return outcome if self.refill is None else self.refill.settle(outcome, self)

    @override
    def ask(self, indices: list[Any], repeats: list[int] | None) -> PendingBatch:
        numbers = np.array(indices, np.int64)
        before = None if repeats is None else np.array(repeats, np.int64)
        return self._begin(numbers, self.source.lookup(numbers), before, False)

    @override
    def answer(self, pending: PendingBatch, /) -> Outcome:
        records, repeats = pending.records, pending.repeats
        if self.on_error == "raise":
            assert pending.ticket is not None
            images, moving = pending.ticket.result(), pending.ticket.moving
            moved = {} if moving is None else moving.result()
            return self._outcome(records, images, moved, repeats)
        n = len(records)
        made, failed = self._settled(pending)
        if not failed:
            return self._outcome(records, made.images, made.moved, repeats)
        actions: dict[int, OnErrorName] = {}
        bad = []
        for i, error in sorted(failed.items()):
            index = int(pending.indices[i])
            actions[i] = policy.action_for(self.on_error, index, error)
            if actions[i] == "raise":
                raise error
            bad.append(policy.bad_sample(index, error, actions[i]))
        if self.refill is not None:
            return Outcome(empty=True, bad=bad, missing=sorted(failed))
        kept = policy.kept([i for i in range(n) if i not in failed], n, actions)
        if not kept:
            return Outcome(empty=True, bad=bad)
        rows = {int(position): row for row, position in enumerate(pending.tried)}
        # A copy, because such batches are few.
        made = made.of(torch.tensor([rows[i] for i in kept], dtype=torch.int64, device="cpu"))
        which = np.array(kept, np.int64)
        outcome = self._outcome(
            records[which], made.images, made.moved, None if repeats is None else repeats[which]
        )
        outcome.bad = bad
        return outcome

    def _outcome(
        self, records: np.ndarray, images: Images, moved: Moved, repeats: np.ndarray | None
    ) -> Outcome:
        drawn, rest = None, self.rest
        if rest is not None and rest.erasing and not isinstance(images, list):
            height, width = images.shape[2:]
            numbers = Numbers(self.seed, self.epoch, records, repeats)
            drawn = sample_params.rectangles(rest, numbers, width, height)
        return Outcome(FilledBatch(records, images, moved, drawn), len(records))

    def _settled(self, pending: PendingBatch) -> tuple[_EngineOutput, dict[int, DataError]]:
        """What the engine made, and the errors, by position in the batch."""
        failed = dict(pending.refused)
        made = _EngineOutput(torch.empty(0), {})
        ticket = pending.ticket
        if ticket is not None:
            images, errors = ticket.settle()
            moved, more = ({}, {}) if ticket.moving is None else ticket.moving.settle()
            fields, damaged = self._fields(pending.records[pending.tried], moved)
            made = _EngineOutput(images, {**moved, **fields})
            by_place = {**damaged, **more, **errors}
            failed |= {int(pending.tried[i]): error for i, error in by_place.items()}
        return made, failed

    def _fields(
        self, records: np.ndarray, moved: Moved
    ) -> tuple[dict[str, list[Any]], dict[int, StoreError]]:
        """The text and JSON of ``records``, and the errors where it is none, by position."""
        store, values = self.source.store, dict[str, list[Any]]()
        errors: dict[int, StoreError] = {}
        for name in self.source.fields or ():
            field = store.fields.get(name)
            if name not in moved and field is not None and field.kind in ("text", "json"):
                from ...storage._read import decoded

                column, damaged = decoded(store, name, records)
                values[name] = list(column)
                errors |= damaged
        return values, errors
