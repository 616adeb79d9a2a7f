"""The CPU time of other programs, from counters written by the test."""

from __future__ import annotations

import os
import types
from pathlib import Path

import pytest

from fastload._base.machine import load

TICKS = os.sysconf("SC_CLK_TCK")


def write(stat: Path, *, busy_s: float, idle_s: float, cpus: int) -> None:
    counts = [int(busy_s * TICKS), 0, 0, int(idle_s * TICKS), 0, 0, 0, 0, 0, 0]
    lines = ["cpu  " + " ".join(map(str, counts))]
    lines += [f"cpu{number} 0 0 0 0 0 0 0 0 0 0" for number in range(cpus)]
    stat.write_text("\n".join([*lines, "intr 1 2"]) + "\n")


@pytest.mark.parametrize(
    ("cpus", "busy_s", "own_s", "share"),
    [
        (2, 20.0, 20.0, 0.0),  # all of it is our own
        (2, 20.0, 10.0, 0.5),
        (2, 5.0, 6.0, 0.0),  # the counters are coarse
        (8, 70.0, 10.0, 0.0),  # others have six CPUs of their own
        (8, 80.0, 10.0, 0.5),
    ],
)
def test_others_are_what_is_busy_beside_us_on_our_cpus(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cpus: int,
    busy_s: float,
    own_s: float,
    share: float,
) -> None:
    monkeypatch.setattr("fastload._base.machine.cpu.available", lambda: 2)
    stat, own, now = tmp_path / "stat", [7.0], [100.0]
    write(stat, busy_s=50, idle_s=50, cpus=cpus)
    monkeypatch.setattr(load, "STAT", stat)
    monkeypatch.setattr(load, "own_s", lambda: own[0])
    monkeypatch.setattr(load, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    others = load.Others()
    write(stat, busy_s=50 + busy_s, idle_s=90, cpus=cpus)
    own[0], now[0] = 7.0 + own_s, 110.0
    assert others.share() == pytest.approx(share)


def test_a_system_that_does_not_tell_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "STAT", tmp_path / "stat")
    assert load.Others().share() == 0.0
    (tmp_path / "stat").write_text("nothing of the kind")
    assert load.Others().share() == 0.0
