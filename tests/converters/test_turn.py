"""One process at a time packs to a URL, and nothing that a killed one leaves is in the way."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastload.converters._turn import Turn, scratch
from fastload.errors import UsageError

URL = "far://bucket/a.lmdb"

HOLDING = """
import sys, time
from fastload.converters._turn import Turn, scratch
url = sys.argv[1]
turn = Turn(url)
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


@contextlib.contextmanager
def another_process(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """One that packs to ``URL``, and its scratch folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING, URL],
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


def test_a_second_process_is_refused_until_the_first_is_killed(temporary: Path) -> None:
    with another_process(temporary) as (process, _):
        with pytest.raises(UsageError, match="another process of this machine packs to it"):
            Turn(URL)
        process.kill()
        process.wait()
        mine = Turn(URL)
        mine.end()
        assert not os.path.exists(mine.folder)


def test_a_scratch_folder_lasts_as_long_as_its_process(temporary: Path) -> None:
    with another_process(temporary) as (process, left):
        with scratch(URL):
            assert os.listdir(left) == ["piece"]
        process.kill()
        process.wait()
        with scratch("far://bucket/b.lmdb"):
            assert os.path.exists(left), "it is another URL's"
        with scratch(URL) as mine:
            assert not os.path.exists(left) and os.path.isdir(mine)
        assert not os.path.exists(mine)


def test_what_was_packed_stays_for_the_next_one() -> None:
    first = Turn(URL)
    Path(first.folder, "piece").touch()
    first.end()
    second = Turn(URL)
    assert os.listdir(second.folder) == ["piece"]
    second.end()
