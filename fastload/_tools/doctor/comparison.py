"""Compares DataLoader and FastLoader in the same script, with the noise of the measurements."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from .observation import LoaderSeen

_BLOCKS = 8  # per run
_SURE = 2.0  # standard errors
_NEGLIGIBLE = 0.03  # smaller differences are ignored even if significant


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Runs of a script with FastLoader against unchanged runs: images/s ``after`` and ``before``.

    ``low`` and ``high`` are bounds of the ratio, from the spread within and between the runs;
    ``kind`` is the class of the loader over which the loop ran.
    """

    before: float
    after: float
    ratio: float
    low: float
    high: float
    kind: str

    @property
    def differs(self) -> bool:
        """Whether the difference is more than noise."""
        return not self.low <= 1.0 <= self.high and abs(self.ratio - 1.0) >= _NEGLIGIBLE

    def words(self) -> str:
        """The comparison in one sentence."""
        figures = f"{self.after:,.0f} images/s against {self.before:,.0f}"
        spread = f"{self.low:.2f} to {self.high:.2f}"
        text = f"{self.ratio:.2f} x ({spread}): {figures}"
        if not self.differs:
            text = f"no clear difference: {figures}, {self.ratio:.2f} x ({spread})"
        if self.kind != "FastLoader":
            text += f"; but the loop ran over {self.kind}, not over FastLoader"
        return text


def compare(before: Sequence[LoaderSeen], after: Sequence[LoaderSeen]) -> Comparison:
    """Compare the training loops of unchanged runs and of runs with FastLoader."""
    rates = [[loader.rates(_BLOCKS) for loader in runs] for runs in (before, after)]
    middle = [statistics.median(rate for run in side for rate in run) for side in rates]
    ratio = middle[1] / middle[0]
    error = math.hypot(*map(_error, rates))
    return Comparison(
        before=middle[0],
        after=middle[1],
        ratio=ratio,
        low=ratio * math.exp(-_SURE * error),
        high=ratio * math.exp(_SURE * error),
        kind=after[0].kind,
    )


def _error(runs: Sequence[Sequence[float]]) -> float:
    """Standard error of the logarithm of the rate.

    The larger of those over blocks and over runs, because a whole run may be disturbed.
    """
    error = 0.0
    logarithms = [[math.log(rate) for rate in run] for run in runs]
    for values in (
        [ratio for run in logarithms for ratio in run],
        list(map(statistics.fmean, logarithms)),
    ):
        if len(values) > 1:
            error = max(error, statistics.stdev(values) / math.sqrt(len(values)))
    return error
