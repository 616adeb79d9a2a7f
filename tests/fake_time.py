"""A clock that runs where a test says so: what is judged does not depend on the machine."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest


class FakeTime:
    """Wall time and time on a CPU of one process.

    Args:
        patched: pytest's; takes the clock away again.
        modules: of fastload, whose ``time`` is this one.
        read_s: what reading the clock takes: what nobody accounts for takes some time, too.
    """

    def __init__(self, patched: pytest.MonkeyPatch, *modules: str, read_s: float = 1e-6) -> None:
        self.wall_s = self.busy_s = 0.0
        self._read_s = read_s
        told = SimpleNamespace(
            perf_counter=self._now,
            perf_counter_ns=lambda: int(1e9 * self._now()),
            monotonic=self._now,
        )
        for name in modules:
            patched.setattr(importlib.import_module(f"fastload.{name}"), "time", told)
        patched.setattr("fastload._base.machine.cpu.wanted", lambda: self.busy_s)

    def _now(self) -> float:
        self.wall_s += self._read_s
        return self.wall_s

    def waits(self, seconds: float) -> None:
        """So much time goes by, in which nothing is computed."""
        self.wall_s += seconds

    def computes(self, seconds: float) -> None:
        """So much time goes by on a CPU."""
        self.wall_s += seconds
        self.busy_s += seconds


def spends(spend: Callable[[float], None], seconds: float) -> Callable[[Any], None]:
    """A training step that takes so long."""
    return lambda batch: spend(seconds)
