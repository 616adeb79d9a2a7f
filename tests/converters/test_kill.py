"""kill -9 at random moments of packing, for every format: never a store that opens and lies, and
the next run completes it."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload.converters import pack
from fastload.errors import StoreError, UsageError
from fastload.storage import open_store
from storage.formats import PACKED, picture, pixels

COUNT = 300

CASES = [(row.name, row.suffix, row.records is pixels, row.shards) for row in PACKED]
RESUMING = (".lmdb", ".tfrecord", ".rec", ".tar")

# Work is made durable every few records, and the last steps are slow: kills fall everywhere.
CHILD = """
import json, os, sys, time
from fastload.converters import _pack, _run
from fastload.storage import _partial
from fastload.storage import stream as _stream
from fastload.storage.formats import lmdb
lmdb._FLUSH_RECORDS, _stream._SYNC_NBYTES = 20, 6000
_run._CHUNK = _run._CHUNK_MOST = 8
def slowly(function):
    def call(*arguments, **options):
        print(function.__name__, flush=True)
        time.sleep(0.004)
        return function(*arguments, **options)
    return call
os.rename, os.replace = slowly(os.rename), slowly(os.replace)
def progress(done, total, nbytes):
    print(done, flush=True)
    time.sleep(0.002)
_pack.pack(sys.argv[1], sys.argv[2], progress=progress, **json.loads(sys.argv[3]))
print("done", flush=True)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("killed") / "in"
    for index in range(COUNT):
        path = root / f"{index % 3}" / f"{index:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(index, 12, 12))
    return root


def content(path: Path) -> tuple[Any, ...]:
    store, everything = open_store(path), np.arange(COUNT)
    assert len(store) == COUNT and store.labels is not None
    return store.read(everything), store.labels.tolist(), store.keys(everything)


def kill(source: Path, path: Path, options: str, moment: int, rng: random.Random) -> bool:
    """Kill a run that packs after ``moment`` lines of its progress; False if it was done before."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, source, path, options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None and child.stderr is not None
    lines = [child.stdout.readline() for _ in range(moment)]
    time.sleep(rng.random() * 0.006)
    child.send_signal(signal.SIGKILL)
    child.wait(timeout=60)
    lines += child.stdout.readlines()
    errors = child.stderr.read()
    child.stdout.close()
    child.stderr.close()
    assert "Error" not in errors, errors
    return "done\n" not in lines


def kill_and_complete(
    source: Path, folder: Path, suffix: str, raw: bool, shards: int | None, times: int, seed: int
) -> None:
    rng = random.Random(seed)
    options: dict[str, Any] = {"encode": "raw"} if raw else {}
    options |= {"shards": shards} if shards else {}
    pack(source, folder / f"whole{suffix}", **options)
    expected = content(folder / f"whole{suffix}")
    for number in range(times):
        inside = folder / f"run {number}"
        inside.mkdir()
        path = inside / f"killed{suffix}"
        lines = COUNT // 8 + 8  # of progress, of renames
        if kill(source, path, json.dumps(options), rng.randrange(1, lines), rng):
            try:
                open_store(path)
            except StoreError:
                report = pack(source, path, **options)
                if suffix not in RESUMING:  # whole shards are kept
                    assert report.parts[0].resumed % (COUNT // (shards or 1)) == 0
            else:  # it has its name already: what is left to do is to clear up
                with pytest.raises(UsageError, match="exists"):
                    pack(source, path, **options)
        assert content(path) == expected
        assert not Path(f"{path}.partial").exists()


@pytest.mark.parametrize(
    ("suffix", "raw", "shards"),
    [
        pytest.param(
            *case[1:],
            id=case[0],
            # Shards of other formats are committed by the same code.
            marks=pytest.mark.long if case[3] and case[1] not in (".tar", ".h5") else (),
        )
        for case in CASES
    ],
)
def test_kill_9_leaves_no_store_that_lies_and_the_next_run_completes(
    source: Path, tmp_path: Path, suffix: str, raw: bool, shards: int | None
) -> None:
    kill_and_complete(source, tmp_path, suffix, raw, shards, 1, len(suffix) + 7 * (shards or 0))


@pytest.mark.long
@pytest.mark.parametrize(
    ("suffix", "raw", "shards"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_kill_9_at_twenty_moments(
    source: Path, tmp_path: Path, suffix: str, raw: bool, shards: int | None
) -> None:
    kill_and_complete(source, tmp_path, suffix, raw, shards, 20, 99)
