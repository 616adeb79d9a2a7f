"""What ``on_error`` makes of an engine's batches in which some samples could not be read."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from . import _policy
from ._engine.decoder import Decoder, Images, Ticket
from ._policy import BadSample, OnError
from .errors import DataError, DecodeError


@dataclasses.dataclass(frozen=True)
class Filling:
    """A batch that an engine fills.

    Attributes:
        indices: int64 (n,), what the sampler gave.
        records: int64 (n,), their records.
        tried: positions of those that the engine was given: all that have a size.
        ticket: of those; None where there are none.
    """

    indices: np.ndarray
    records: np.ndarray
    tried: np.ndarray
    ticket: Ticket | None


@dataclasses.dataclass(frozen=True)
class Filled:
    """A batch that is ready.

    Attributes:
        records: int64 (n,), one for each image; fewer than were asked for where some were skipped.
        images: (n, 3, h, w), or a list of the views.
        bad: the samples that could not be read.
    """

    records: np.ndarray
    images: Images
    bad: tuple[BadSample, ...] = ()


def readable(decoder: Decoder, records: np.ndarray, on_error: OnError) -> np.ndarray:
    """Positions of ``records`` that the engine may be given: those whose size is known.

    With "raise" all of them: the engine says which is at fault.
    """
    if on_error == "raise":
        return np.arange(len(records))
    return np.flatnonzero(decoder.store.sizes(records).min(axis=1, initial=1) > 0)


def finish(decoder: Decoder, filling: Filling, on_error: OnError) -> Filled:
    """Wait for ``filling``, and make a batch of what came of it.

    Raises:
        DataError: a sample failed that is not to be skipped or replaced.
        concurrent.futures.CancelledError: it was cancelled.
    """
    records, ticket = filling.records, filling.ticket
    if on_error == "raise":
        assert ticket is not None
        return Filled(records, ticket.result())
    n = len(records)
    failed: dict[int, DataError] = {
        i: decoder.error(DecodeError, "the size of the image is not known", records, i)
        for i in np.setdiff1d(np.arange(n), filling.tried).tolist()
    }
    images: Images = torch.empty(0)
    if ticket is not None:
        images, errors = ticket.settle()
        failed |= {int(filling.tried[i]): error for i, error in errors.items()}
    if not failed:
        return Filled(records, images)
    actions: dict[int, str] = {}
    bad = []
    for i, error in sorted(failed.items()):
        index = int(filling.indices[i])
        actions[i] = _policy.action_for(on_error, index, error)
        if actions[i] == "raise":
            raise error
        bad.append(_policy.bad_sample(index, error, actions[i]))
    kept = _policy.kept([i for i in range(n) if i not in failed], n, actions)
    rows = {int(position): row for row, position in enumerate(filling.tried)}
    # A copy: these batches are few.
    chosen = torch.tensor([rows[i] for i in kept], dtype=torch.int64)
    images = [view[chosen] for view in images] if isinstance(images, list) else images[chosen]
    return Filled(records[np.array(kept, np.int64)], images, tuple(bad))
