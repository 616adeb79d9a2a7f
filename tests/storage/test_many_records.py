"""Stores of ten million records: opening one, and the first batch of a shuffled epoch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fastload import open_writer
from fastload.storage._crc import crc32c
from fastload.storage._fields import _digits, numbered_keys
from fastload.storage.base import RAW, Batch
from fastload.storage.table import constant

SIDE = 4  # pixels; what a record holds does not matter here

# In a process of its own, so that what is measured is the store's and the loader's.
READER = """
import json, sys, time
import torch
import fastload
from fastload.storage import find_by_suffix
fastload.FastLoader
find_by_suffix(sys.argv[1])

def anonymous():
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) * 1024

begin, before = time.perf_counter(), anonymous()
store = fastload.open_store(sys.argv[1])
opened, held = time.perf_counter(), anonymous()
loader = fastload.FastLoader(sys.argv[1], batch_size=256, shuffle=True, seed=1, num_workers=1)
batches = iter(loader)
images, labels = next(batches)
ready, in_all = time.perf_counter(), anonymous()
print(json.dumps({
    "records": len(store), "shape": list(images.shape), "labels": sorted(set(labels.tolist())),
    "open_s": opened - begin, "first_batch_s": ready - opened,
    "open_nbytes": held - before, "nbytes": in_all - before,
}))
"""


def write(path: Path, records: int) -> None:
    chunk = 20_000
    with open_writer(path, classes=["a", "b", "c"]) as writer:
        for first in range(0, records, chunk):
            numbers = range(first, min(first + chunk, records))
            n = len(numbers)
            data = [number.to_bytes(SIDE * SIDE * 3, "little") for number in numbers]
            writer.extend(
                Batch(
                    data=data,
                    keys=[f"{number:08d}" for number in numbers],
                    labels=np.fromiter(numbers, np.int64, n) % 3,
                    sizes=np.full((n, 2), SIDE, np.int32),
                    kinds=np.full(n, RAW, np.uint8),
                    crc32c=np.fromiter(map(crc32c, data), np.uint32, n),
                )
            )


# Formats that hold files; tar takes 1.5 KB for the least of records. Each reader imports torch.
FORMATS = [
    "many.lmdb",
    *(
        pytest.param(name, marks=pytest.mark.long)
        for name in ("many.tfrecord", "many.rec", "many.tar", "many.h5", "many.pth", "many.n5")
    ),
]


@pytest.mark.native
@pytest.mark.parametrize("name", FORMATS)
def test_memory_of_a_store_is_bounded(
    tmp_path: Path, count: Callable[[int, int], int], name: str
) -> None:
    """Within 200 MB for 10 million records: columns stay in the file until they are read.

    Streams of framed records have their places added up from lengths when they are opened.
    Formats made of arrays have offsets in memory, .pth and N5 other columns too, and no keys.
    """
    arrays = name.endswith((".h5", ".pth", ".n5"))
    records = count(50_000, 1_000_000 if arrays or name == "many.tar" else 10_000_000)
    write(tmp_path / name, records)
    command = [sys.executable, "-c", READER, str(tmp_path / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    print(done.stdout)  # the seconds too, for whoever looks (-s); no test asserts a time
    found = json.loads(done.stdout)
    assert found["records"] == records
    assert found["shape"] == [256, 3, SIDE, SIDE]
    assert found["labels"] == [0, 1, 2]
    # The order of the epoch is 8 bytes a record; a loader by itself is some MB.
    each = {"many.lmdb": 0, "many.h5": 20, "many.pth": 60, "many.n5": 60}.get(name, 12)
    assert found["open_nbytes"] < each * records + 2e6
    assert found["nbytes"] < (each + 50 if arrays else 18) * records + 20e6


def test_columns_of_one_value_take_no_memory() -> None:
    column = constant(10**12, (3, 4), "<i4")
    assert column.shape == (10**12, 2) and column.strides[0] == 0
    assert column[[5, 10**11]].tolist() == [[3, 4], [3, 4]]


def test_numbers_as_keys_have_eight_digits_or_more() -> None:
    assert numbered_keys(0).take(np.arange(0)) == []
    assert numbered_keys(12_345).take(np.arange(12_345)) == [b"%08d" % i for i in range(12_345)]
    beyond = _digits(10**8, 10**8 + 20, 9)
    assert beyond.take(np.arange(20)) == [b"%08d" % (10**8 + i) for i in range(20)]
