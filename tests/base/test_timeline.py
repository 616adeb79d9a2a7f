"""Timelines: their files, read without fastload's code."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch.utils.data import TensorDataset
from torchvision import transforms as T

import fastload
from fastload import FastLoader, PackedDataset
from fastload._base.timeline import Timeline
from fastload.errors import DataError, UsageError

CHAIN = T.Compose([T.RandomResizedCrop(64), T.ToTensor()])


def load(path: Path) -> list[dict[str, Any]]:
    """The complete events of a file, each with the fields that the format requires."""
    content = json.loads(path.read_text())
    assert content["displayTimeUnit"] == "ms"
    for event in content["traceEvents"]:
        assert {"ph", "name", "pid"} <= event.keys()
        assert event["ph"] in "XCM"
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["ts"] > 0
    return [event for event in content["traceEvents"] if event["ph"] == "X"]


def assert_nested(events: list[dict[str, Any]]) -> None:
    """On each thread, two events are nested or disjoint."""
    threads = defaultdict[int, list[tuple[int, int, str]]](list)
    for event in events:
        begin = round(event["ts"] * 1000)
        threads[event["tid"]].append((begin, begin + round(event["dur"] * 1000), event["name"]))
    for spans in threads.values():
        spans.sort(key=lambda span: (span[0], -span[1]))
        open_spans: list[tuple[int, int, str]] = []
        for span in spans:
            while open_spans and open_spans[-1][1] <= span[0] + 1000:
                open_spans.pop()
            # A double holds microseconds of the Unix clock to a quarter: 1 us of leeway.
            assert not open_spans or span[1] <= open_spans[-1][1] + 1000, (open_spans[-1], span)
            open_spans.append(span)


def named(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["name"] == name]


@pytest.mark.native
@pytest.mark.parametrize("threads", [0, 2])
def test_stages_nest_and_wait_and_step_cover_the_loop(
    threads: int, store: Path, tmp_path: Path
) -> None:
    loader = FastLoader(store, batch_size=4, transform=CHAIN, num_workers=threads, shuffle=True)
    begin = time.perf_counter_ns()
    with fastload.trace(tmp_path / "run.json"):
        for _ in loader:
            time.sleep(0.01)
    elapsed = time.perf_counter_ns() - begin
    events = load(tmp_path / "run.json")
    assert_nested(events)
    assert len(named(events, "decode")) == len(named(events, "read")) == 24
    assert len(named(events, "resize")) == 24
    assert not named(events, "augment")
    assert len(named(events, "collate")) == 6
    assert len(named(events, "step")) == 6
    assert len(named(events, "wait")) == 7  # the last one found the end
    mine = threading.get_native_id()
    assert {event["tid"] for event in named(events, "wait") + named(events, "step")} == {mine}
    decoders = {event["tid"] for event in named(events, "decode")}
    assert decoders == {mine} if threads == 0 else mine not in decoders
    assert all(event["dur"] >= 10_000 for event in named(events, "step"))
    covered = sum(
        event["dur"] * 1000 for name in ("wait", "step", "start") for event in named(events, name)
    )
    assert covered <= elapsed
    waited, stepped = named(events, "wait"), named(events, "step")
    loop = 1000 * (waited[-1]["ts"] + waited[-1]["dur"] - waited[0]["ts"])
    assert abs(sum(e["dur"] * 1000 for e in waited + stepped) - loop) <= 0.02 * loop


class Own(TensorDataset):
    """A user's own dataset, which torch's workers load."""


def test_worker_processes_show_waiting_and_steps(tmp_path: Path) -> None:
    loader = FastLoader(Own(torch.arange(12)), batch_size=4, num_workers=1)
    with fastload.trace(tmp_path / "run.json"):
        for _ in loader:
            pass
    events = load(tmp_path / "run.json")
    assert [event["args"]["images"] for event in named(events, "wait")] == [4, 4, 4, 0]
    assert len(named(events, "step")) == 3


def test_checksums_and_what_pillow_decodes_are_shown(tmp_path: Path, store: Path) -> None:
    with fastload.trace(tmp_path / "run.json"):
        for _ in FastLoader(
            PackedDataset(store, check_crc="always"), batch_size=8, transform=CHAIN
        ):
            pass
    assert len(named(load(tmp_path / "run.json"), "check")) == 24


@pytest.mark.native
def test_operations_on_pixels_are_a_stage_behind_decoding(store: Path, tmp_path: Path) -> None:
    chain = T.Compose([T.RandomResizedCrop(64), T.RandAugment(), T.ToTensor(), T.RandomErasing()])
    loader = FastLoader(store, batch_size=8, transform=chain)
    with fastload.trace(tmp_path / "run.json"):
        for _ in loader:
            pass
    events = load(tmp_path / "run.json")
    assert_nested(events)
    assert len(named(events, "augment")) == len(named(events, "decode")) == 24
    assert loader.stats()["stages_s"]["augment"] > 0


def test_counters_tell_queue_and_slabs(store: Path, tmp_path: Path) -> None:
    with fastload.trace(tmp_path / "run.json"):
        for _ in FastLoader(store, batch_size=4, transform=CHAIN):
            pass
    content = json.loads((tmp_path / "run.json").read_text())
    counters = defaultdict[str, list[float]](list)
    for event in content["traceEvents"]:
        if event["ph"] == "C":
            counters[event["name"]].append(event["args"][event["name"]])
    assert set(counters) == {"batches ready", "batches being filled", "slabs in use"}
    assert max(counters["slabs in use"]) >= 1


def test_events_of_the_profiler_lie_on_the_same_clock(store: Path, tmp_path: Path) -> None:
    loader = FastLoader(store, batch_size=8, transform=CHAIN)
    with fastload.trace(tmp_path / "both.json", profiler=tmp_path / "profiler.json"):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for images, *_ in loader:
                with torch.profiler.record_function("my step"):
                    images.square().sum()
        profile.export_chrome_trace(str(tmp_path / "profiler.json"))
    events = json.loads((tmp_path / "both.json").read_text())["traceEvents"]
    mine = [e for e in events if e["name"] == "step" and e.get("cat") == "fastload"]
    theirs = [e for e in events if e["name"] == "my step" and e.get("cat") == "user_annotation"]
    assert len(mine) == len(theirs) == 3
    for step, inner in zip(mine, theirs, strict=True):  # to a millisecond: two clocks
        assert step["ts"] - 1000 <= inner["ts"]
        assert inner["ts"] + inner["dur"] <= step["ts"] + step["dur"] + 1000


def test_a_file_that_is_no_trace_of_the_profiler_is_named(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("[1, 2]")
    with pytest.raises(DataError, match="profiler") as caught:
        with fastload.trace(tmp_path / "run.json", profiler=other):
            pass
    assert str(other) in str(caught.value)


def test_one_trace_at_a_time(tmp_path: Path) -> None:
    with fastload.trace(tmp_path / "run.json"):
        with pytest.raises(UsageError, match="already"):
            with fastload.trace(tmp_path / "other.json"):
                pass
    with fastload.trace(tmp_path / "run.json"):
        pass


_SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.native
def test_a_path_that_ends_in_svg_becomes_a_picture_with_a_row_for_each_thread_and_a_legend(
    store: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run.svg"
    with fastload.trace(path):
        for _ in FastLoader(store, batch_size=8, transform=CHAIN, num_workers=2):
            time.sleep(0.01)
    root = ElementTree.parse(path).getroot()
    words = [one.text for one in root.iter(f"{_SVG}text")]
    assert words[0] == "the loop" and {"producer", "decoder"} <= set(words)
    assert {"wait", "step", "decode"} <= set(words)
    style = root.findtext(f"{_SVG}style") or ""
    assert "prefers-color-scheme: dark" in style  # text and background, so both pages show it
    width = float(root.get("width", 0))
    blocks = [one for one in root.iter(f"{_SVG}rect") if one.get("fill")]
    assert len({one.get("fill") for one in blocks}) >= 3
    for one in blocks:
        assert 0 <= float(one.get("x", -1)) <= float(one.get("x", 0)) + float(one.get("width", 0))
        assert float(one.get("x", 0)) + float(one.get("width", 0)) <= width
    with pytest.raises(UsageError, match=r"profiler: .* expected a .json file"):
        with fastload.trace(path, profiler=tmp_path / "profile.json"):
            pytest.fail("the run began")


def test_a_picture_of_a_long_run_has_few_blocks(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "run.svg")
    for number in range(20_000):
        timeline.worker(1, "fetch" if number % 2 else "collate", number * 10, number * 10 + 10)
    timeline.worker(1, "fetch", 200_000, 300_000)
    timeline.write()
    root = ElementTree.parse(tmp_path / "run.svg").getroot()
    blocks = [one for one in root.iter(f"{_SVG}rect") if one.get("fill")]
    assert len(blocks) < 1500
    assert max(float(one.get("width", 0)) for one in blocks) > 150


def test_events_beyond_the_limit_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastload._base.timeline._LIMIT", 2)
    timeline = Timeline(tmp_path / "run.json")
    for _ in range(5):
        timeline.span("work", 1, 2)
    timeline.write()
    content = json.loads((tmp_path / "run.json").read_text())
    assert len([e for e in content["traceEvents"] if e["ph"] == "X"]) == 2
    assert content["otherData"]["dropped events"] == timeline.dropped == 3


def test_an_error_in_the_loop_still_writes_the_file(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        with fastload.trace(tmp_path / "run.json"):
            for _ in FastLoader(store, batch_size=8, transform=CHAIN):
                raise ZeroDivisionError
    assert len(named(load(tmp_path / "run.json"), "wait")) == 1


def test_a_file_that_cannot_be_written_is_told_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="create it first"):
        with fastload.trace(tmp_path / "none" / "run.json"):
            pytest.fail("the run began")
