"""``watch`` shows the figures of a loop: a table in a notebook, a line elsewhere."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.utils.data import DataLoader, IterableDataset
from torchvision import transforms as T

import fastload
from fastload import FastLoader, UsageError
from fastload._base import progress_bar
from notebook_html import Cells, stand_in

TRANSFORM = T.Compose([T.RandomResizedCrop(16), T.ToTensor()])


def test_a_notebook_has_one_table_that_follows_the_epoch(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = stand_in(monkeypatch)
    loader = FastLoader(store, 4, transform=TRANSFORM)
    batches = len(list(fastload.watch(loader, every_s=0.0)))
    assert batches == len(loader) > 1
    (states,) = outputs  # one output, which changes
    assert len(states) == 1 + batches + 1  # before the first batch, after each, at the end
    tables = [dict(Cells(state["text/html"]).rows) for state in states]
    assert tables[0].keys() == {"epoch"}
    seen = [table["epoch"].partition(" in ")[0] for table in tables]
    counts = [*range(batches + 1), batches]
    assert seen == [f"{count} of {batches} batches" for count in counts]
    assert "left" in tables[1]["epoch"] and "left" not in tables[-1]["epoch"]
    stats = loader.stats()
    assert tables[-1]["bound by"] == f"{stats['bound']}: {stats['why']}"
    assert {f"stage {name}" for name, value in stats["stages_s"].items() if value} <= set(
        tables[-1]
    )
    assert states[-1]["text/plain"].startswith(f"epoch: {batches} of {batches} batches in ")
    assert "images/s" in states[-1]["text/plain"]
    assert capsys.readouterr().err == ""


def test_the_bar_of_the_epoch_grows(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = stand_in(monkeypatch)
    for _ in fastload.watch(FastLoader(store, 4, transform=TRANSFORM), every_s=0.0):
        pass
    (states,) = outputs
    first = [float(Cells(s["text/html"]).widths[0].removesuffix("em")) for s in states]
    assert first[0] == 0 and first[-1] == 12 and first == sorted(first)


def test_a_loop_that_is_left_keeps_its_last_figures(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = stand_in(monkeypatch)
    watched = fastload.watch(FastLoader(store, 4, transform=TRANSFORM), every_s=1e9)
    next(watched)
    next(watched)
    watched.close()
    (states,) = outputs
    assert len(states) == 2
    assert dict(Cells(states[-1]["text/html"]).rows)["epoch"].startswith("1 of ")


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(6)


def test_an_epoch_of_unknown_length_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = stand_in(monkeypatch)
    assert len(list(fastload.watch(FastLoader(Endless(), 2), every_s=0.0))) == 3
    (states,) = outputs
    assert dict(Cells(states[-1]["text/html"]).rows)["epoch"].startswith("3 batches in 00:0")


def test_elsewhere_it_is_a_line_on_stderr(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = FastLoader(store, 4, transform=TRANSFORM)
    given: list[int] = []
    list(fastload.watch(loader, every_s=0.0, callback=lambda figures, batch: given.append(batch)))
    assert given == [*range(1, len(loader) + 1)]
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"{len(loader)} of {len(loader)}" in last and "images/s" in last and "waiting" in last


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_on_a_terminal_no_figure_is_cut_off(
    store: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress_bar, "_size", lambda: {"ncols": columns, "nrows": 24})
    list(fastload.watch(FastLoader(store, 4, transform=TRANSFORM), every_s=0.0))
    last = terminal.getvalue().rstrip().split("\r")[-1]
    assert last.endswith("]") and len(last) <= columns
    assert " images/s" in last and ("MB/s" in last) is (columns > 80)


def test_only_a_fast_loader_is_watched() -> None:
    with pytest.raises(UsageError, match="expected a FastLoader, got list"):
        next(fastload.watch([1, 2]))  # type: ignore[arg-type]


def test_another_loader_is_refused_with_what_to_make() -> None:
    with pytest.raises(UsageError, match="got DataLoader: make one with the same arguments"):
        next(fastload.watch(DataLoader([1, 2])))  # type: ignore[arg-type]
