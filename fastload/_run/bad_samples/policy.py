"""Samples that cannot be read: counted, limited, reported."""

from __future__ import annotations

import collections
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

from ...errors import DataError, TooManyErrors, UsageError
from ...hints import Action, OnError, OnErrorName

_log = logging.getLogger("fastload")

_DONE = {"skip": "skipped", "replace": "replaced", "refill": "refilled"}
_BY_NAME, _ACTIONS = get_args(OnErrorName), get_args(Action)
_SHOWN = 3  # samples that the line at the end of an epoch names


class BadSample(NamedTuple):
    """One sample that could not be read.

    Attributes:
        index: what the sampler asked for; of an IterableDataset, how many samples came before it
            from the same worker.
        file: the file at fault where the error names one, else None.
        error: type and message.
    """

    index: Any
    file: str | None
    error: str
    action: OnErrorName


def check(on_error: object, max_errors: object) -> None:
    """Raise UsageError for arguments that are not valid."""
    if not callable(on_error) and on_error not in _BY_NAME:
        raise UsageError(
            "on_error: expected 'raise', 'skip', 'replace', 'refill' or a callable, got "
            f"{on_error!r}"
        )
    whole = isinstance(max_errors, int) and not isinstance(max_errors, bool) and max_errors >= 0
    if not whole and not (isinstance(max_errors, float) and 0 <= max_errors <= 1):
        raise UsageError(
            "max_errors: expected a number of samples (an int) or a share of an epoch (a float "
            f"from 0 to 1), got {max_errors!r}"
        )


def action_for(on_error: OnError, index: Any, error: Exception) -> OnErrorName:
    """What to do about ``error``; asks ``on_error`` where it is a callable."""
    if isinstance(on_error, str):
        return on_error
    action = on_error(index, error)
    if action not in _ACTIONS:
        raise UsageError(
            "the on_error callable must return 'raise', 'skip' or 'replace', got "
            f"{action!r} for sample {index!r}"
        ) from error
    return action


def bad_sample(index: Any, error: Exception, action: OnErrorName) -> BadSample:
    """The entry for the log; its file is the path of a DataError or an OSError."""
    file = error.path if isinstance(error, DataError) else getattr(error, "filename", None)
    return BadSample(
        index=index,
        file=None if file is None else str(file),
        error=f"{type(error).__name__}: {error}",
        action=action,
    )


def kept(good: Sequence[int], n: int, actions: Mapping[int, OnErrorName]) -> list[int]:
    """Which of ``n`` samples make the batch, one entry per sample of it: positions from ``good``.

    ``good`` are the positions that could be read, ascending; ``actions`` say what to do about
    each that could not. A sample to be replaced becomes the next good one of the same batch
    (after the last comes the first): a sample of another batch might belong to another split.
    """
    if not good:
        return []
    wanted = [i for i in range(n) if actions.get(i) not in ("skip", "refill")]
    following: dict[int, int] = {}
    after = good[0]
    available = set(good)
    for i in range(n - 1, -1, -1):
        if i in available:
            after = i
        following[i] = after
    return [following[i] for i in wanted]


def allowed(limit: float, samples: int) -> float:
    """How many of ``samples`` may be bad, with ``max_errors=limit``."""
    return math.ceil(limit * samples) if isinstance(limit, float) else limit


class BadSamples:
    """The bad samples of one epoch.

    Args:
        limit: how many may fail: a number of samples, or a share of the epoch as a float, which
            is at least one sample unless it is 0.
        length: samples in the epoch; None if unknown: then the share is that of the samples so far.
    """

    def __init__(self, limit: float, length: int | None) -> None:
        self.entries: list[BadSample] = []
        self._limit = limit
        self._length = length

    def add(self, entries: Sequence[BadSample], samples: int) -> None:
        """Count ``entries``; ``samples``: how many came so far, including these.

        Raises TooManyErrors beyond the limit.
        """
        if not entries:
            return
        self.entries += entries
        most = allowed(self._limit, samples if self._length is None else self._length)
        if len(self.entries) > most:
            last = self.entries[-1]
            raise TooManyErrors(
                f"{_counted(len(self.entries))} could not be read in this epoch, and max_errors="
                f"{self._limit} allows {most}: stats()['errors'] lists them, a larger max_errors "
                f"allows more; the last one, sample {last.index!r}: {last.error}",
                path=last.file,
            )

    def report(self, epoch: int, samples: int) -> None:
        """Log a line at the end of an epoch with errors; ``samples`` as in ``add``."""
        if not self.entries:
            return
        first = "; ".join(
            f"sample {entry.index!r}{f' ({entry.file})' if entry.file else ''}: {entry.error}"
            for entry in self.entries[:_SHOWN]
        )
        actions = collections.Counter(entry.action for entry in self.entries)
        _log.warning(
            "epoch %d: %s could not be read (%s), %d were given: %s%s",
            epoch,
            _counted(len(self.entries)),
            ", ".join(f"{number} {_DONE[action]}" for action, number in actions.items()),
            samples - len(self.entries),
            first,
            " ..." if len(self.entries) > _SHOWN else "",
        )


def _counted(samples: int) -> str:
    return f"{samples} sample{'s' * (samples != 1)}"
