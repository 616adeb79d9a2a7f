"""Fills the batches of an epoch, and applies ``on_error`` where samples cannot be read."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from ..._engine.base import BatchEngine, Images, Ticket
from ..._engine.image_engine import unsized
from ..._sources.source import Source
from ..._transforms import sample_params
from ..._transforms.geometry.crop_geometry import Refused
from ..._transforms.pixels.erasing import Drawn
from ..._transforms.plan import Plan
from ...errors import DataError
from ...hints import OnError, OnErrorName
from ..order import Repeats
from . import policy
from .policy import BadSample
from .refill import Refill

_NONE = np.empty(0, np.int64)

Moved = dict[str, torch.Tensor | list[torch.Tensor]]
"""The fields that moved along with the images: a tensor (n, ...), or a tensor per image."""


@dataclasses.dataclass(frozen=True)
class Filling:
    """A batch that an engine fills.

    Attributes:
        indices: int64 (n,), from the sampler.
        records: int64 (n,), their records.
        tried: positions of those that the engine was given.
        refused: why it was not given the others, by position.
        ticket: of those that it was given; None where there are none.
        repeats: int64 (n,), how often each came before; None: nothing is random.
    """

    indices: np.ndarray
    records: np.ndarray
    tried: np.ndarray
    ticket: Ticket | None
    repeats: np.ndarray | None = None
    refused: dict[int, DataError] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Made:
    """What an engine made of the records of a batch, including those that failed."""

    images: Images
    moved: Moved

    def of(self, rows: slice | torch.Tensor) -> _Made:
        """These records only: a slice, or positions (int64)."""
        images, at = self.images, range(len(next(iter(self.moved.values()), ())))
        chosen = at[rows] if isinstance(rows, slice) else rows.tolist()
        return _Made(
            [view[rows] for view in images] if isinstance(images, list) else images[rows],
            {
                name: values[rows]
                if isinstance(values, torch.Tensor)
                else [values[i] for i in chosen]
                for name, values in self.moved.items()
            },
        )


@dataclasses.dataclass(frozen=True)
class Filled:
    """A batch that is ready.

    Attributes:
        records: int64 (n,), one for each image; fewer than were asked for where some were skipped.
        images: (n, 3, h, w), or a list of the views.
        bad: the samples that could not be read.
        empty: there is no batch, because no sample is left.
        refilled: samples taken from the end of the order so far.
        moved: the fields that moved along with the images.
        repeats: int64 (n,), how often each came before; None: nothing is random.
        drawn: rectangles of these images for the device stage, or None.
    """

    records: np.ndarray
    images: Images
    bad: tuple[BadSample, ...] = ()
    empty: bool = False
    refilled: int = 0
    moved: Moved = dataclasses.field(default_factory=dict)
    repeats: np.ndarray | None = None
    drawn: Drawn | None = None


class Filler:
    """Fills the batches of one epoch, and applies ``on_error`` to samples that fail.

    Args:
        engine: fills them.
        source: what it reads.
        seed, epoch: of the augmentation.
        on_error: see ``policy.py``.
        refill: fills batches up, with ``on_error="refill"``.
        left_out: indices of this epoch that came before its first batch, or None.
        times: how often each sample of the order came before, if that is known; else None.
        rest: the whole plan, where the device stage applies what the engine leaves of it.
    """

    def __init__(
        self,
        engine: BatchEngine,
        source: Source,
        *,
        seed: int,
        epoch: int,
        on_error: OnError,
        refill: Refill | None,
        left_out: np.ndarray | None,
        times: np.ndarray | None,
        rest: Plan | None,
    ) -> None:
        self.engine = engine
        self.source = source
        self._seed = seed
        self._epoch = epoch
        self._on_error = on_error
        self._refill = refill
        self.rest = rest
        self._number = 0  # of the batch that is finished next
        self._left_out = _NONE if left_out is None else left_out
        self._repeats = Repeats(len(source.store), times) if source.plan.random else None
        if self._repeats is not None and left_out is not None:
            self._repeats.count(source.lookup(left_out))

    def begin(self, indices: np.ndarray, *, timed: bool) -> Filling:
        """Start to fill the next batch, of ``indices``; ``timed``: see ``Draws``."""
        records = self.source.lookup(indices)
        repeats = None if self._repeats is None else self._repeats.count(records)
        return self._begin(indices, records, repeats, timed)

    def _begin(
        self,
        indices: np.ndarray,
        records: np.ndarray,
        repeats: np.ndarray | None,
        timed: bool,
    ) -> Filling:
        tried, refused = np.arange(len(records)), dict[int, DataError]()
        if self._on_error != "raise":
            sized = self.engine.store.sizes(records).min(axis=1, initial=1) > 0
            for i in np.flatnonzero(~sized).tolist():
                refused[i] = unsized(self.engine, int(records[i]))
            tried = np.flatnonzero(sized)
        ticket = None
        while ticket is None and (len(tried) or not len(records)):
            whole = len(tried) == len(records)
            try:
                ticket = self.engine.submit(
                    records if whole else records[tried],
                    seed=self._seed,
                    epoch=self._epoch,
                    repeats=repeats if whole or repeats is None else repeats[tried],
                    timed=timed,
                )
            except Refused as error:
                if self._on_error == "raise":
                    raise
                refused[int(tried[error.position])] = error
                tried = np.delete(tried, error.position)
        return Filling(indices, records, tried, ticket, repeats, refused)

    def finish(self, filling: Filling) -> Filled:
        """Wait for ``filling``, the oldest one, and make a batch of the samples that are good.

        Raises:
            DataError: a sample failed that is not to be skipped or replaced.
            concurrent.futures.CancelledError: it was cancelled.
        """
        filled, rest = self._finished(filling), self.rest
        if rest is None or not rest.erasing or filled.empty or isinstance(filled.images, list):
            return filled
        height, width = filled.images.shape[2:]
        drawn = sample_params.rectangles(
            rest,
            width,
            height,
            seed=self._seed,
            epoch=self._epoch,
            indices=filled.records,
            repeats=filled.repeats,
        )
        return dataclasses.replace(filled, drawn=drawn)

    def _finished(self, filling: Filling) -> Filled:
        records, repeats = filling.records, filling.repeats
        if self._on_error == "raise":
            assert filling.ticket is not None
            images, moving = filling.ticket.result(), filling.ticket.moving
            moved = {} if moving is None else moving.result()
            return Filled(records, images, moved=moved, repeats=repeats)
        if self._refill is not None:
            self._number += 1
            return self._fill_up(filling, self._refill, self._number - 1)
        n = len(records)
        made, failed = self._settled(filling)
        if not failed:
            return Filled(records, made.images, moved=made.moved, repeats=repeats)
        actions: dict[int, OnErrorName] = {}
        bad = []
        for i, error in sorted(failed.items()):
            index = int(filling.indices[i])
            actions[i] = policy.action_for(self._on_error, index, error)
            if actions[i] == "raise":
                raise error
            bad.append(policy.bad_sample(index, error, actions[i]))
        kept = policy.kept([i for i in range(n) if i not in failed], n, actions)
        rows = {int(position): row for row, position in enumerate(filling.tried)}
        # A copy, because such batches are few.
        made = made.of(torch.tensor([rows[i] for i in kept], dtype=torch.int64, device="cpu"))
        which = np.array(kept, np.int64)
        return Filled(
            records[which],
            made.images,
            tuple(bad),
            empty=not kept,
            moved=made.moved,
            repeats=None if repeats is None else repeats[which],
        )

    def _settled(self, filling: Filling) -> tuple[_Made, dict[int, DataError]]:
        """What the engine made, and the errors, by position in the batch."""
        failed = dict(filling.refused)
        made = _Made(torch.empty(0), {})
        ticket = filling.ticket
        if ticket is not None:
            images, errors = ticket.settle()
            moved, more = ({}, {}) if ticket.moving is None else ticket.moving.settle()
            made = _Made(images, moved)
            failed |= {int(filling.tried[i]): error for i, error in (more | errors).items()}
        return made, failed

    def _fill_up(self, filling: Filling, refill: Refill, number: int) -> Filled:
        """Batch ``number`` of the order, made again until none of its samples is bad."""
        positions = refill.own(number)
        repeats = dict(zip(positions, [] if filling.repeats is None else filling.repeats.tolist()))
        bad: list[BadSample] = []
        made, failed = self._settled(filling)
        # Positions that others have taken from the end meanwhile no longer belong to this batch.
        lost = [i for i in sorted(failed) if i < len(positions)]
        while lost:
            for i in lost:
                bad.append(policy.bad_sample(int(filling.indices[i]), failed[i], "refill"))
            positions = refill.instead(number, positions, lost)
            if refill.hopeless(len(bad)) or not refill.complete(positions):
                break
            del made  # frees its slab for the next attempt
            filling = self._again(positions, repeats)
            made, failed = self._settled(filling)
            lost = sorted(failed)
        n = len(positions)
        if lost or not refill.complete(positions):
            return Filled(_NONE, torch.empty(0), tuple(bad), empty=True, refilled=refill.spent)
        made = made.of(slice(n))
        return Filled(
            filling.records[:n],
            made.images,
            tuple(bad),
            refilled=refill.spent,
            moved=made.moved,
            repeats=None if filling.repeats is None else filling.repeats[:n],
        )

    def _again(self, positions: list[int], repeats: dict[int, int]) -> Filling:
        """Start to fill a batch with these positions of the order."""
        assert self._refill is not None, "only batches that are filled up are made again"
        indices = np.array([self._refill.index(at) for at in positions], np.int64)
        before = None
        if self._repeats is not None:
            for at, index in zip(positions, indices):
                if at not in repeats:
                    earlier = int(np.count_nonzero(self._left_out == index))
                    repeats[at] = earlier + self._refill.repeats(at)
            before = np.array([repeats[at] for at in positions], np.int64)
        return self._begin(indices, self.source.lookup(indices), before, False)
