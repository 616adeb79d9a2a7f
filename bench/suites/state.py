"""state: what ``state_dict()`` at every step costs, as a share of the loop."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils.data import TensorDataset

from bench.report import Row, row
from bench.suites.base import Options, Suite, Variant
from bench.suites.tuning import described, packed
from fastload import FastLoader
from fastload._tools.tuning.target import target_of

_EPOCHS = 20


class State(Suite):
    name = "state"
    summary = "state_dict() at every step of a loop that does nothing else, as a share of it"
    variants = {"small": Variant(), "photos": Variant(), "arrays": Variant()}

    def run(self, variant: str, options: Options) -> list[Row]:
        # The packed store gives the row its data; "arrays" is a Dataset of tensors beside it.
        target = target_of(str(packed("photos" if variant == "photos" else "small", options)))
        batch = 64 if variant == "photos" else 256
        dataset = target.dataset
        if variant == "arrays":
            dataset = TensorDataset(
                torch.zeros(256 if options.toy else 1024, 3, 224, 224, dtype=torch.uint8)
            )
        loader = FastLoader(
            dataset,
            batch_size=batch,
            shuffle=True,
            num_workers=0 if variant == "arrays" else options.threads,
        )
        threads = 1 if variant == "arrays" else options.threads
        _epoch(loader, calling=True)
        shares, calls_us = [], []
        for _ in range(2 if options.toy else max(_EPOCHS, options.rounds)):
            # Reading the clock costs as much as a call: read it twice in place of the call.
            clock_s, _, _ = _epoch(loader, calling=False)
            calls_s, loop_s, steps = _epoch(loader, calling=True)
            calls_s -= clock_s
            # The loop's time on that many free CPUs; the calls run on one of them.
            shares.append(calls_s / (loop_s / threads))
            calls_us.append(1e6 * calls_s / steps)
        return [
            row(
                suite=self.name,
                variant=variant,
                loader="fastload",
                metric="cost of state_dict() at every step",
                unit="of the loop",
                values=shares,
                setting={"call_us": round(sum(calls_us) / len(calls_us), 1), "batch": batch},
                **described(target, options, 0.0),
            )
        ]


def _epoch(loader: FastLoader[Any], *, calling: bool) -> tuple[float, float, int]:
    """CPU seconds of the calls, CPU seconds of the epoch without them, and its steps.

    Without ``calling`` they are of reading the clock alone.
    """
    calls_s, steps = 0.0, 0
    begin = time.process_time()
    for _ in loader:
        called = time.thread_time()
        if calling:
            loader.state_dict()
        calls_s += time.thread_time() - called
        steps += 1
    return calls_s, time.process_time() - begin - calls_s, steps
