"""overhead: the CPU time that the always-on stamps cost, with and without them in turn."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from bench.report import Row, row
from bench.suites.base import Options, Suite, Variant
from bench.suites.tuning import described, packed
from fastload import FastLoader, _native
from fastload._base.trace import Stamps
from fastload._tools.tuning.target import target_of

_PAIRS = 100


class Overhead(Suite):
    name = "overhead"
    summary = "CPU time of a loader with its stamps against the same without, interleaved"
    variants = {"small": Variant(), "photos": Variant()}

    def run(self, variant: str, options: Options) -> list[Row]:
        target = target_of(str(packed(variant, options)))
        batch = 256 if variant == "small" else 64
        order = list(range(len(target))) * (1 if options.toy else 4 if variant == "small" else 1)
        loader = FastLoader(
            target.dataset, batch_size=batch, sampler=order, num_workers=options.threads, seed=0
        )
        _cpu_s(loader, stamped=True)
        ratios: list[float] = []
        for _ in range(2 if options.toy else max(_PAIRS, options.rounds)):
            spent = {on: _cpu_s(loader, stamped=on) for on in random.sample((True, False), 2)}
            ratios.append(spent[True] / spent[False] - 1)
        mean = statistics.mean(ratios)
        interval = 1.96 * statistics.stdev(ratios) / len(ratios) ** 0.5
        return [
            row(
                suite=self.name,
                variant=variant,
                loader="fastload-lmdb",
                metric="cost of stamps",
                unit="of the CPU time",
                values=ratios,
                setting={
                    "mean": round(mean, 5),
                    "interval_95": [round(mean - interval, 5), round(mean + interval, 5)],
                    "images": len(order),
                },
                **described(target, options, 0.0),
            )
        ]


def _cpu_s(loader: FastLoader[Any], *, stamped: bool) -> float:
    """CPU seconds of one epoch, of all threads together."""
    with _stamps(on=stamped):
        begin = time.process_time()
        for _ in loader:
            pass
        return time.process_time() - begin


@contextmanager
def _stamps(*, on: bool) -> Iterator[None]:
    core = _native.load()
    if on:
        yield
        return

    def nothing(*arguments: Any, **named: Any) -> None: ...

    names = ("stage", "work", "read", "batch", "ended", "count", "cache")
    if core is not None:
        core.set_stamps(False)
    try:
        with mock.patch.multiple(Stamps, **dict.fromkeys(names, nothing)):
            yield
    finally:
        if core is not None:
            core.set_stamps(True)
