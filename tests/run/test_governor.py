"""The governor on loops whose best setting is known: it gets there, and stays."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest

from fastload._base.trace import Snapshot
from fastload._run.governor import WORKER_NBYTES, Governor, Setting, after_epoch, for_processes

MOST = 32


@dataclasses.dataclass(frozen=True)
class Loop:
    """A model of a loop: what it does in a second.

    Attributes:
        cpus: threads beyond these bring nothing to computing.
        compute_s, wait_s: of an image: computing, and waiting for a disk.
        step_s: of the training step, for an image.
        bursts: whether batches differ so much that some have to be ready ahead.
    """

    cpus: int
    compute_s: float
    wait_s: float
    step_s: float
    bursts: bool = False

    def data_rate(self, setting: Setting) -> float:
        rate = setting.workers / (self.compute_s + self.wait_s)
        if self.compute_s:
            rate = min(rate, self.cpus / self.compute_s)
        return rate * (min(1.0, setting.prefetch / 8) if self.bursts else 1.0)

    def rate(self, setting: Setting) -> float:
        return min(self.data_rate(setting), 1 / self.step_s)

    def window(self, setting: Setting, noise: random.Random) -> dict[str, float]:
        rate = self.rate(setting)
        return {
            "rate": rate * noise.gauss(1, 0.01),
            "waiting": min(1.0, max(0.0, 1 - rate * self.step_s + noise.gauss(0, 0.003))),
            "busy": rate * (self.compute_s + self.wait_s),
        }


LOOPS = {
    "slow decode": Loop(cpus=4, compute_s=0.01, wait_s=0, step_s=1e-4),
    "slow disk": Loop(cpus=4, compute_s=0.001, wait_s=0.02, step_s=1e-4),
    "heavy step": Loop(cpus=4, compute_s=0.001, wait_s=0, step_s=0.01),
    "balanced": Loop(cpus=4, compute_s=0.004, wait_s=0.004, step_s=0.002),
    "bursts": Loop(cpus=4, compute_s=0.001, wait_s=0, step_s=0.0003, bursts=True),
}


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("seed", range(5))
def test_it_reaches_the_best_setting_within_25_windows_and_stays(name: str, seed: int) -> None:
    loop, noise = LOOPS[name], random.Random(seed)
    governor = Governor(Setting(workers=4, prefetch=2), most_workers=MOST, most_prefetch=8)
    best = max(
        loop.rate(Setting(workers=w, prefetch=p)) for w in range(1, MOST + 1) for p in (2, 4, 8)
    )
    for _ in range(25):  # 200 batches, 8 to a window
        governor.window(**loop.window(governor.setting, noise))
    reached = [governor.setting]
    for _ in range(100):
        reached.append(governor.window(**loop.window(governor.setting, noise)))
    rates = [loop.rate(setting) for setting in reached]
    assert min(rates) >= 0.95 * best, (governor.setting, governor.decisions)
    changes = sum(a != b for a, b in itertools.pairwise(reached))
    assert changes <= 2, governor.decisions


def test_a_heavy_step_gives_workers_back() -> None:
    loop, noise = LOOPS["heavy step"], random.Random(0)
    governor = Governor(Setting(workers=4, prefetch=2), most_workers=MOST, most_prefetch=8)
    for _ in range(25):
        governor.window(**loop.window(governor.setting, noise))
    assert governor.setting.workers == 1
    assert any("kept 1 workers" in decision for decision in governor.decisions)


def test_it_does_not_go_beyond_its_limits() -> None:
    loop, noise = LOOPS["slow disk"], random.Random(0)
    governor = Governor(Setting(workers=2, prefetch=2), most_workers=3, most_prefetch=2)
    seen = [governor.window(**loop.window(governor.setting, noise)) for _ in range(60)]
    assert max(setting.workers for setting in seen) == 3
    assert {setting.prefetch for setting in seen} == {2}


def test_a_loop_that_changes_is_examined_anew() -> None:
    noise = random.Random(0)
    governor = Governor(Setting(workers=4, prefetch=2), most_workers=MOST, most_prefetch=2)
    for _ in range(30):
        governor.window(**LOOPS["heavy step"].window(governor.setting, noise))
    assert governor.setting.workers == 1
    for _ in range(60):
        governor.window(**LOOPS["slow disk"].window(governor.setting, noise))
    assert governor.setting.workers == MOST
    assert any("the loop changed" in decision for decision in governor.decisions)


def test_noise_alone_does_not_move_it() -> None:
    noise = random.Random(3)
    governor = Governor(Setting(workers=4, prefetch=2), most_workers=MOST, most_prefetch=8)
    for _ in range(500):
        governor.window(rate=100 * noise.gauss(1, 0.03), waiting=0.035, busy=3.5)
    assert governor.decisions == []


def test_processes_are_added_only_while_memory_allows() -> None:
    governor = for_processes(cpus=2, memory_nbytes=1 << 40)
    starving = Snapshot(
        images=100,
        batches=10,
        elapsed_s=1.0,
        wait_s=0.5,
        stages_s={},
        cache_hits=0,
        cache_misses=0,
        read_nbytes=0,
        workers_s=0.0,
    )
    short = 2 * WORKER_NBYTES - 1  # half of it is for workers
    assert after_epoch(governor, starving, memory_nbytes=short).workers == 2
    assert after_epoch(governor, starving, memory_nbytes=short + 1).workers == 3
    assert governor.decisions == [
        "trying 3 workers, 2 batches ahead: waiting 50%, 0.8 workers busy"
    ]
