"""How many CPUs a loader may use."""

from __future__ import annotations

import os
import time

import pytest

from fastload._base.machine import cgroup, cpu


@pytest.fixture(autouse=True)
def groups_of_the_test(monkeypatch, tmp_path):
    monkeypatch.setattr(cgroup, "ROOT", tmp_path)
    monkeypatch.setattr(cgroup, "MEMBERSHIP", tmp_path / "membership")


def test_quota_of_cgroup_version_2(tmp_path):
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cpu.quota() == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cpu.quota() is None


def test_quota_of_cgroup_version_1(tmp_path):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("400000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu.quota() == 4
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert cpu.quota() is None


def test_no_control_group_means_no_limit(tmp_path):
    assert cpu.quota() is None


def test_a_quota_below_the_affinity_wins_and_is_rounded_up(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(cpu, "quota", lambda: 2.5)
    assert cpu.available() == 3
    monkeypatch.setattr(cpu, "quota", lambda: None)
    assert cpu.available() == 8


def test_the_ranks_of_a_node_share_its_cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(cpu, "quota", lambda: None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert cpu.available() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "16")
    assert cpu.available() == 1


def test_the_limit_of_a_group_further_down_counts_and_the_least_wins(tmp_path):
    job = tmp_path / "slurm" / "job_7"
    job.mkdir(parents=True)
    (job / "cpu.max").write_text("300000 100000\n")
    membership = tmp_path / "membership"
    membership.write_text("0::/slurm/job_7\n")
    assert cpu.quota() == 3
    (tmp_path / "slurm" / "cpu.max").write_text("200000 100000\n")
    assert cpu.quota() == 2
    (job.parent / "job:8").mkdir()
    (job.parent / "job:8" / "cpu.max").write_text("100000 100000\n")
    membership.write_text("0::/slurm/job:8\n")
    assert cpu.quota() == 1
    membership.write_text("0::/of/another/namespace\n")
    assert cpu.quota() is None


def test_a_group_further_down_of_version_1(tmp_path):
    unit = tmp_path / "cpu" / "unit"
    unit.mkdir(parents=True)
    (unit / "cpu.cfs_quota_us").write_text("150000\n")
    (unit / "cpu.cfs_period_us").write_text("100000\n")
    membership = tmp_path / "membership"
    membership.write_text("5:cpu,cpuacct:/unit\n0::/\n")
    assert cpu.quota() == 1.5


def test_time_in_the_queue_for_a_cpu_is_wanted_time(monkeypatch, tmp_path):
    statistics = tmp_path / "schedstat"  # ns of computing, ns in the queue, time slices
    statistics.write_text("1000000000 7000000000 30000000000\n")
    monkeypatch.setattr(cpu, "_SCHEDSTAT", str(statistics))
    before = time.thread_time()
    assert before + 7 <= cpu.wanted() <= time.thread_time() + 7


def test_waiting_is_what_a_thread_did_not_want_a_cpu_for(monkeypatch):
    readings = iter([1.0, 1.25, 2.0, 2.5])  # seconds of running or waiting for a CPU
    monkeypatch.setattr(cpu, "wanted", lambda: next(readings))
    monkeypatch.setattr(cpu, "_WAITING_TIMES", 0)
    waiting = cpu.Waiting()
    waiting.begin(0)
    assert waiting.end(0, 10**9) == 750_000_000
    waiting.begin(10**9 + 1)  # too soon to measure again: the last share is used
    assert waiting.end(10**9, 10**9 + 4000) == 3000
    later = 10**9 + cpu._WAITING_NS
    waiting.begin(later)
    assert waiting.end(later, later + 10**9) == 500_000_000
    assert next(readings, None) is None


def test_waiting_is_read_less_often_where_a_reading_takes_long(monkeypatch):
    now = iter([0, 3_000_000])  # ns: a reading took 3 ms
    monkeypatch.setattr(cpu.time, "perf_counter_ns", lambda: next(now))
    readings = iter([1.0, 1.5])
    monkeypatch.setattr(cpu, "wanted", lambda: next(readings))
    waiting = cpu.Waiting()
    waiting.begin(0)
    waiting.end(0, 10**9)
    for later in (10**9 + 1, 10**9 + 300_000_000):  # two readings take 1 % of 600 ms
        waiting.begin(later)
        assert waiting.end(later, later + 1000) == 500
    assert next(readings, None) is None
