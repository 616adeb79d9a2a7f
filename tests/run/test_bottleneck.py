"""Verdicts on loops that are bound by each thing, headroom, and the line that shows them."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms as T

import fastload
import native_core
from fake_time import FakeTime
from fastload import FastLoader, open_store
from fastload._base.trace import Snapshot
from fastload._run.bottleneck import verdict
from fastload._tools.watch import line, scalars

CHAIN = T.Compose([T.RandomResizedCrop(64), T.ToTensor()])


class Costly(Dataset[torch.Tensor]):
    """A sample takes so many seconds: ``clock.computes`` or ``clock.waits``."""

    def __init__(self, spend: Callable[[float], None], seconds: float) -> None:
        self.spend, self.seconds = spend, seconds

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        self.spend(self.seconds)
        return torch.zeros(3, 8, 8)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    of_workers = (
        "_run.epoch_iterator",
        "_run.workers.fetch",
        "_run.workers.local_maker",
        "_run.workers.task_fetcher",
    )
    return FakeTime(
        monkeypatch,
        "_base.trace",
        "_run.engine_maker",
        "_loader",
        *of_workers,
    )


def judged(loader: FastLoader[Any], clock: FakeTime, step_s: float = 0) -> dict[str, Any]:
    for _ in loader:
        clock.computes(step_s)
    return loader.stats()


@pytest.mark.parametrize("workers", [0, 2])
def test_code_that_computes_and_code_that_waits_are_told_apart(
    workers: int, clock: FakeTime
) -> None:
    given: dict[str, Any] = {"batch_size": 8, "num_workers": workers}
    if workers:  # which have the same clock, each to itself
        given["multiprocessing_context"] = "fork"
    busy = judged(FastLoader(Costly(clock.computes, 0.004), **given), clock)
    assert busy["bound"] == "python", busy["why"]
    waiting = judged(FastLoader(Costly(clock.waits, 0.008), **given), clock)
    assert waiting["bound"] == "reading", waiting["why"]
    assert waiting["stages_s"]["blocked"] == pytest.approx(64 * 0.008, rel=0.01)


def test_a_heavy_step_is_what_a_loop_is_bound_by(store: Path, clock: FakeTime) -> None:
    loader = FastLoader(store, batch_size=1, sampler=[0] * 60, transform=CHAIN, num_workers=1)
    found = judged(loader, clock, step_s=0.03)
    assert found["bound"] == "compute", found["why"]


def test_an_engine_without_a_step_is_bound_by_decoding(store: Path, clock: FakeTime) -> None:
    order = list(range(24)) * 10
    large = T.Compose([T.Resize((448, 448)), T.ToTensor()])
    loader = FastLoader(store, batch_size=8, transform=large, sampler=order)
    found = judged(loader, clock)
    assert found["bound"] == "decoding", found["why"]
    assert "resizing" in found["why"] and "augmenting" not in found["why"]
    with open_store(store) as opened:
        nbytes = 10 * opened.spans(np.arange(24)).nbytes.sum()
    assert found["mb_per_s"] * 1e6 * found["elapsed_s"] == pytest.approx(nbytes)


class Opened(Dataset[torch.Tensor]):
    """Opens a photo, which is enlarged: decoding takes longer than this code."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.transform = T.Compose([T.Resize((448, 448)), T.ToTensor()])

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(Image.open(self.path).convert("RGB"))  # type: ignore[no-any-return]


@pytest.mark.native
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_whose_images_are_decoded_in_batches_is_bound_by_decoding(
    workers: int, tmp_path: Path
) -> None:
    path = tmp_path / "photo.jpg"
    native_core.photo(1600, 1200, 1).save(path)  # beside it, what an epoch does once is little
    loader = FastLoader(Opened(path), batch_size=16, num_workers=workers)
    for _ in itertools.chain(loader, loader):
        pass
    found = loader.stats()
    assert found["bound"] == "decoding", found["why"]
    stages_s = found["stages_s"]
    assert stages_s["fill"] > stages_s["collate"]
    assert stages_s["fill"] <= found["wait_s"]


def figures(**stages_s: float) -> Snapshot:
    return Snapshot(
        images=100, batches=10, elapsed_s=10, wait_s=6, stages_s=stages_s,
        cache_hits=0, cache_misses=0, read_nbytes=0, workers_s=10,
    )  # fmt: skip


def test_slow_reads_and_slow_transport_are_named() -> None:
    assert verdict(figures(read=9, decode=3), native=True)[0] == "reading"
    assert verdict(figures(read=1, order=5), native=True)[0] == "loader"
    assert verdict(figures(read=1, dali=5), native=True)[0] == "decoding"
    assert verdict(figures(read=1, dali=5), native=True)[0] == "decoding"
    assert verdict(figures(fetch=4, collate=1), native=False)[0] == "transport"
    assert verdict(figures(fetch=4, fill=2), native=False)[0] == "transport"
    assert verdict(figures(fetch=4, fill=4), native=False)[0] == "decoding"
    assert verdict(figures(fetch=9, blocked=8), native=False)[0] == "reading"


def test_before_the_first_batches_nothing_is_known(store: Path) -> None:
    assert FastLoader(store).stats()["bound"] == "unknown"


def test_headroom_is_the_speed_without_waiting(clock: FakeTime) -> None:
    loader = FastLoader(Costly(clock.waits, 0.01), batch_size=8)
    assert loader.stats()["headroom"] is None
    batch = None
    for batch in loader:  # noqa: B007 - the last one is used
        clock.computes(0.02)
    for _ in loader.replay(batch, 10):
        clock.computes(0.02)
    assert loader.stats()["headroom"] == pytest.approx(5, rel=0.1)  # 80 ms of data, 20 of step
    with pytest.raises(fastload.UsageError, match="2 steps"):
        loader.replay(batch, 1)


def test_watching_gives_every_batch_and_calls_back(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[dict[str, float], int]] = []
    loader = FastLoader(store, batch_size=8, transform=CHAIN)
    watched = fastload.watch(loader, every_s=0, callback=lambda *args: seen.append(args))
    assert [len(images) for images, _ in watched] == [8, 8, 8]
    assert [number for _, number in seen] == [1, 2, 3]
    assert all(isinstance(value, float) for values, _ in seen for value in values.values())
    assert seen[-1][0]["images_per_s"] > 0
    (last,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"epoch: 3 of 3, .* images/s, .*waiting .*, 00:00 left", last)
    assert "decode" in line(scalars(loader.stats()))


def test_worker_processes_have_tracks_of_their_own(tmp_path: Path) -> None:
    import json

    loader = FastLoader(Costly(time.sleep, 0.001), batch_size=8, num_workers=2)
    with fastload.trace(tmp_path / "run.json"):
        for _ in loader:
            pass
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    fetched = [event for event in events if event["name"] == "fetch"]
    assert len(fetched) == 8
    assert len({event["tid"] for event in fetched}) == 2
    names = [e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"]
    assert names.count("worker process") == 2
