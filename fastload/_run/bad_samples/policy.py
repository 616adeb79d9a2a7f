"""What becomes of samples that cannot be made: counted, bounded, reported."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from ...errors import DataError, TooManyErrors, UsageError
from ...hints import Action, OnError, OnErrorName

_log = logging.getLogger("fastload")

_SHOWN = 3  # samples that the line at the end of an epoch names


@dataclasses.dataclass(frozen=True)
class BadSample:
    """One sample that could not be made.

    Attributes:
        index: what the sampler asked for; of an IterableDataset, how many samples came before it
            from the same worker.
        file: the file at fault where the error names one, else None.
        error: type and message.
        action: "skip", "replace" or "refill".
    """

    index: Any
    file: str | None
    error: str
    action: OnErrorName


def check(on_error: Any, max_errors: Any) -> None:
    """Raise UsageError for arguments that cannot work."""
    if not callable(on_error) and on_error not in get_args(OnErrorName):
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
    """What to do about ``error``: a callable is asked."""
    if isinstance(on_error, str):
        return on_error
    action = on_error(index, error)
    if action not in get_args(Action):
        raise UsageError(
            "the on_error callable must return 'raise', 'skip' or 'replace', got "
            f"{action!r} for sample {index!r}"
        ) from error
    return action


def bad_sample(index: Any, error: Exception, action: OnErrorName) -> BadSample:
    """The entry for the log. ``file``: a DataError's path, or what an OSError names."""
    file = error.path if isinstance(error, DataError) else getattr(error, "filename", None)
    return BadSample(
        index=index,
        file=None if file is None else str(file),
        error=f"{type(error).__name__}: {error}",
        action=action,
    )


def kept(good: Sequence[int], n: int, actions: Mapping[int, OnErrorName]) -> list[int]:
    """Which of ``n`` samples make the batch, one entry a sample of it.

    Args:
        good: positions that could be made, ascending.
        n: positions in all.
        actions: of each position that could not.

    Returns:
        Positions out of ``good``. In the place of one to be replaced stands the next good one of
        the same batch (around its end): a sample from elsewhere might be of another split.
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


class BadSamples:
    """The bad samples of one epoch.

    Args:
        limit: a number of samples, or a share of the epoch as a float; at least one is let pass
            where the share is not 0.
        length: samples in the epoch, or None where it is not known: then the share is of those
            that came so far.
    """

    def __init__(self, limit: float, length: int | None) -> None:
        self.entries: list[BadSample] = []
        self._limit = limit
        self._length = length

    def add(self, entries: Sequence[BadSample], samples: int) -> None:
        """Count ``entries``; ``samples`` came so far, these among them.

        Raises TooManyErrors beyond the limit.
        """
        if not entries:
            return
        self.entries += entries
        allowed = self._limit
        if isinstance(allowed, float):
            allowed = math.ceil(allowed * (samples if self._length is None else self._length))
        if len(self.entries) > allowed:
            last = self.entries[-1]
            raise TooManyErrors(
                f"{len(self.entries)} samples of this epoch could not be read and max_errors="
                f"{self._limit} lets {allowed} pass; the last one, sample {last.index!r}: "
                f"{last.error}; stats()['errors'] lists them, a larger max_errors lets more pass",
                path=last.file,
            )

    def report(self, epoch: int, samples: int) -> None:
        """The line at the end of an epoch, where there was anything; ``samples`` as in ``add``."""
        if not self.entries:
            return
        first = "; ".join(
            f"sample {entry.index!r}{f' ({entry.file})' if entry.file else ''}: {entry.error}"
            for entry in self.entries[:_SHOWN]
        )
        _log.warning(
            "epoch %d: %d samples could not be read (%d skipped, %d replaced, %d refilled), "
            "%d were given: %s%s",
            epoch,
            len(self.entries),
            sum(entry.action == "skip" for entry in self.entries),
            sum(entry.action == "replace" for entry in self.entries),
            sum(entry.action == "refill" for entry in self.entries),
            samples - len(self.entries),
            first,
            " ..." if len(self.entries) > _SHOWN else "",
        )
