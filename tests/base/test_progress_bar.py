"""Progress: lines in logs, a bar on a terminal, tqdm's widget in a notebook, nothing unasked."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fastload
from fastload import pack
from fastload._base import progress_bar
from fastload._tools.unpack import unpack
from fastload._tools.verify import verify
from storage.formats import picture


class Terminal(io.StringIO):
    """stderr on a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def images(tmp_path: Path) -> Path:
    root = tmp_path / "imgs"
    root.mkdir()
    for index in range(9):
        (root / f"{index}.jpg").write_bytes(picture(index, 9, 9))
    return root


def test_in_a_log_a_line_comes_now_and_then_and_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_bar, "_LINE_EVERY_S", 0.0)
    with progress_bar.reporting("packing", True) as report:
        assert report is not None
        for done in (0, 1000, 5000):
            report(done, 5000, done << 10)
        assert capsys.readouterr().err.startswith("packing: 1000 of 5000, ")
    last = r"packing: 5000 of 5000, [\d.]+ images/s, 4.9 MiB, 00:00 left\n"
    assert re.fullmatch(last, capsys.readouterr().err)


def test_most_updates_are_not_worth_a_line_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar.reporting("packing", True) as report:
        assert report is not None
        for done in range(1000):
            report(done, None, 0)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("packing: 999 of ?, ")


def test_a_bar_of_seconds_has_no_speed_and_whole_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_bar, "_LINE_EVERY_S", 0.0)
    with progress_bar.bar("starting", unit="s", total=30) as shown:
        shown.set_description_str("num_workers=2", refresh=False)
        shown.update(6.20284)
    assert capsys.readouterr().err.splitlines()[-1] == "num_workers=2: 6 of 30 s"
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar.bar("starting", unit="s", total=30) as shown:
        shown.update(6.20284)
    assert terminal.getvalue().rstrip().endswith("| 6 of 30 s")
    with progress_bar.bar("starting", unit="s", total=30) as shown:
        shown.update(31.5)  # tqdm then knows no total
    assert terminal.getvalue().rstrip().endswith("32 of ? s")


def test_what_was_done_before_is_no_speed(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar.reporting("packing", True) as report:
        assert report is not None
        report(10**15, 10**15, 0)
        report(10**15 + 1, 10**15 + 1, 0)
    speed = re.search(r"([\d.]+) images/s", capsys.readouterr().err)
    assert speed is not None and float(speed[1]) < 10**9


@pytest.mark.parametrize("work", [pack, verify, unpack], ids=lambda work: work.__name__)
@pytest.mark.parametrize("progress", [None, True, False])
def test_from_python_a_bar_shows_where_somebody_watches_or_as_asked(
    images: Path, tmp_path: Path, work: Callable[..., Any], progress: bool | None,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pack(images, tmp_path / "a.lmdb", progress=False)
    source = images if work is pack else tmp_path / "a.lmdb"

    def arguments(name: str) -> list[Path]:
        return [source] if work is verify else [source, tmp_path / name]

    work(*arguments("b.lmdb"), progress=progress)
    written = capsys.readouterr()
    assert written.out == "" and ("9 of 9" in written.err) is (progress is True)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    work(*arguments("c.lmdb"), progress=progress)
    assert ("9/9" in terminal.getvalue()) is (progress is not False)


def test_append_shows_both_of_its_parts(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack(images, tmp_path / "a.tar", progress=False)
    for path in images.iterdir():
        path.rename(path.with_name(f"new{path.name}"))
    fastload.append(tmp_path / "a.tar", images, progress=True)
    assert re.findall(r"\d+ of \d+", capsys.readouterr().err) == ["9 of 9", "18 of 18"]


def test_a_bar_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    before = set(threading.enumerate())
    with progress_bar.bar("packing", unit="images", total=3) as shown:
        shown.update(3)
        assert set(threading.enumerate()) <= before
    assert "3/3" in terminal.getvalue()


def test_in_a_notebook_it_is_the_form_that_tqdm_chooses_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tqdm.auto

    made: list[dict[str, Any]] = []

    class Widget(tqdm.auto.tqdm):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            made.append(options)
            super().__init__(*arguments, **options)

    shell = SimpleNamespace(config={"IPKernelApp": {}})
    ipython = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)  # type: ignore[arg-type]
    monkeypatch.setattr(tqdm.auto, "tqdm", Widget)
    assert progress_bar.wanted(None) and not progress_bar.wanted(False)
    with progress_bar.bar("epoch", unit="batches", total=3) as shown:
        shown.update(3)
    assert "3/3" in capsys.readouterr().err
    (options,) = made
    assert "file" not in options and "bar_format" not in options


def test_a_terminal_that_does_not_know_its_width_has_a_bar(images: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        command = [sys.executable, "-m", "fastload", "pack", images, tmp_path / "a.lmdb"]
        subprocess.run(command, stderr=theirs, stdout=subprocess.PIPE, timeout=150, check=True)
        assert b"9/9" in os.read(ours, 1 << 16)
    finally:
        os.close(ours)
        os.close(theirs)
