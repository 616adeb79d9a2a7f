"""One process at a time packs to a URL, and nothing that a killed one leaves is in the way."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec", reason="fsspec is not installed")

import fsspec

from fastload.converters._turn import OWNER, Turn, scratch
from fastload.errors import UsageError

URL = "far://bucket/a.lmdb"

HOLDING = """
import contextlib, fsspec, sys, time
from fastload.converters._turn import Turn, scratch
url, path = sys.argv[1:]
turn = Turn(url, fsspec.filesystem("file"), path, lambda what: contextlib.nullcontext())
with scratch(url) as folder:
    open(folder + "/piece", "w").close()
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine's temporary folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Of the store in its file system."""
    return str(tmp_path / "a.lmdb")


def turn(path: str, url: str = URL) -> Turn:
    system = fsspec.filesystem("file")
    return Turn(url, system, path, lambda _: contextlib.nullcontext())


@contextlib.contextmanager
def another_process(path: str, temporary: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """One that packs to ``URL``, and its scratch folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING, URL, path],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_second_process_is_refused_until_the_first_is_killed(path: str, temporary: Path) -> None:
    with another_process(path, temporary) as (process, _):
        with pytest.raises(UsageError, match="another process of this machine packs to it"):
            turn(path)
        process.kill()
        process.wait()
        assert os.path.exists(f"{path}.lock")
        mine = turn(path)
        mine.end()
        assert not os.path.exists(f"{path}.lock") and not os.path.exists(mine.folder)


def test_a_scratch_folder_lasts_as_long_as_its_process(path: str, temporary: Path) -> None:
    with another_process(path, temporary) as (process, left):
        with scratch(URL):
            assert os.listdir(left) == ["piece"]
        process.kill()
        process.wait()
        with scratch("far://bucket/b.lmdb"):
            assert os.path.exists(left), "it is another URL's"
        with scratch(URL) as mine:
            assert not os.path.exists(left) and os.path.isdir(mine)
        assert not os.path.exists(mine)


def test_another_machine_is_refused_and_told_what_to_delete(
    path: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = turn(path)
    there = temporary.parent / "another machine"
    there.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(there))
    with pytest.raises(UsageError, match=r"since .* delete 'far://bucket/a\.lmdb\.lock'"):
        turn(path)
    assert os.listdir(there) == []
    first.end()
    turn(path).end()


def test_what_was_packed_stays_for_the_next_one(path: str) -> None:
    first = turn(path)
    Path(first.folder, "piece").touch()
    first.end()
    assert not os.path.exists(f"{path}.lock")
    second = turn(path)
    assert sorted(os.listdir(second.folder)) == sorted([OWNER, "piece"])
    second.end()


@pytest.mark.parametrize("content", [b"", b"[1", b'"text"'])
def test_a_damaged_lock_is_another_ones(path: str, content: bytes) -> None:
    Path(f"{path}.lock").write_bytes(content)
    with pytest.raises(UsageError, match=r"a\.lmdb\.lock"):
        turn(path)
    assert Path(f"{path}.lock").read_bytes() == content


@pytest.mark.parametrize("error", [OSError("the connection was lost"), KeyboardInterrupt()])
def test_an_object_that_was_created_although_that_failed_is_deleted(
    path: str, temporary: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    system = type(fsspec.filesystem("file"))
    whole = system.pipe_file

    def failing(self: Any, place: str, value: bytes, mode: str = "overwrite") -> None:
        whole(self, place, value)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(system, "pipe_file", failing)
        patch.setattr(system, "exists", lambda *_: False)
        with pytest.raises(type(error)):
            turn(path)
    assert not os.path.exists(f"{path}.lock") and os.listdir(temporary) == []


def test_a_mark_that_was_not_written_whole_is_made_anew(path: str, temporary: Path) -> None:
    first = turn(path)
    Path(first.folder, OWNER).write_text("")
    Path(first.folder, "piece").touch()
    first.end()
    turn(path)
    assert len(Path(first.folder, OWNER).read_text()) == 32


def test_a_server_that_cannot_create_only_what_is_not_there_is_asked_before(
    path: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = type(fsspec.filesystem("file"))
    whole = system.pipe_file

    def without(self: Any, place: str, value: bytes, mode: str = "overwrite") -> None:
        if mode == "create":
            raise OSError("NotImplemented")
        whole(self, place, value)

    monkeypatch.setattr(system, "pipe_file", without)
    first = turn(path)
    assert set(json.loads(Path(f"{path}.lock").read_bytes())) == {"mark", "host", "since"}
    there = temporary.parent / "another machine"
    there.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(there))
    with pytest.raises(UsageError, match="another process packs to it"):
        turn(path)
    first.end()
