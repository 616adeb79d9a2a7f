"""However a loop ends, nothing is left behind and nothing hangs."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from PIL import Image
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import warm
from bench import synthetic
from fastload import FastLoader, pack
from fastload._sources.collate import annotations_of
from fastload.errors import StoreError
from fastload.storage import open_store

TRANSFORM = v1.Compose([v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip(), v1.ToTensor()])

HANGS_S = 150  # a process that has not ended by then hangs; it ends in a fraction of a second


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    synthetic.make_images(folder / "imgs", 64, kind=synthetic.SMALL, classes=2, seed=1)
    pack(folder / "imgs", folder / "small.lmdb")
    return folder / "small.lmdb"


_started: list[subprocess.Popen[str] | warm.Program] = []


def forked(code: str, *arguments: object, finalize: bool = True) -> warm.Program:
    """As ``python``, where nothing is said of memory or of imports."""
    process = warm.Program(["-c", textwrap.dedent(code), *arguments], finalize=finalize)
    _started.append(process)
    return process


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _started.append(process)
    return process


@pytest.fixture(autouse=True)
def no_process_outlives_its_test():
    yield
    while _started:
        process = _started.pop()
        if process.poll() is None:
            process.kill()
            process.communicate()


PREAMBLE = """
import signal, sys, itertools, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
from PIL import Image
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from fastload import FastLoader
tf = v1.Compose([v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip(), v1.ToTensor()])
loader = FastLoader(sys.argv[1], batch_size=8, shuffle=True, transform=tf, num_workers={threads})
"""


@pytest.mark.parametrize("threads", [0, 2])
def test_ctrl_c_in_a_training_loop_ends_the_process(store, threads, count):
    """Whenever it comes: in next, between epochs, while an iterator is made or let go of."""
    for attempt in range(count(3, 40)):
        process = forked(
            PREAMBLE.format(threads=threads)
            + "print('ready', flush=True)\n"
            + "while True:\n"
            + "    for number, (images, labels) in enumerate(loader):\n"
            + "        images.sum()\n"
            + "        if number == 5: break\n",
            store,
        )
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.037 * attempt)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=HANGS_S)
        assert process.returncode == -signal.SIGINT, stderr
        assert "KeyboardInterrupt" in stderr


def test_ctrl_c_caught_in_the_loop_leaves_no_thread(store):
    process = forked(
        PREAMBLE.format(threads=2)
        + """
import threading
before = threading.active_count()
images = labels = None
try:
    print('ready', flush=True)
    while True:
        for images, labels in loader:
            images.sum()
except KeyboardInterrupt:
    pass
del images, labels
import gc; gc.collect()
import time
deadline = time.monotonic() + 30
while threading.active_count() > before and time.monotonic() < deadline: time.sleep(0.01)
assert threading.active_count() == before, threading.enumerate()
print(len(list(loader)))
""",
        store,
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=HANGS_S)
    assert (process.returncode, stdout, stderr) == (0, "8\n", "")


def test_the_interpreter_exits_cleanly_with_an_iterator_half_way(store):
    process = forked(
        PREAMBLE.format(threads=2) + "iterator = iter(loader); next(iterator); print('end')", store
    )
    stdout, stderr = process.communicate(timeout=HANGS_S)
    assert (process.returncode, stdout, stderr) == (0, "end\n", "")


def test_threads_that_have_not_dropped_their_batch_yet_are_awaited_at_exit(store):
    process = forked(
        """
import time

from fastload._run import engine_maker


class Slow:
    def __del__(self):
        time.sleep(0.2)
        print("dropped", flush=True)


def produce(kept):
    yield 1


thread = engine_maker._started(produce(Slow()))
print("end", flush=True)
""",
        store,
    )
    stdout, stderr = process.communicate(timeout=HANGS_S)
    assert (process.returncode, stdout, stderr) == (0, "end\ndropped\n", "")


def test_a_loader_works_in_a_forked_child_of_a_process_that_used_it(store):
    loader = FastLoader(store, batch_size=8, transform=TRANSFORM, seed=1)

    def digest() -> str:
        # No operation of torch's on the pixels: its OpenMP threads do not survive a fork.
        loader.set_epoch(0)
        sums = hashlib.sha256()
        for images, _ in loader:
            sums.update(images.numpy())
        return sums.hexdigest()

    expected = digest()
    iterator = iter(loader)
    next(iterator)  # the parent's threads are at work
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if digest() == expected else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(list(iterator)) == len(loader) - 1


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.native
def test_leaving_early_a_hundred_times_leaves_nothing(store):
    loader = FastLoader(store, batch_size=4, transform=TRANSFORM, num_workers=2)
    for _ in range(100):
        for _batch in loader:
            break
    del loader, _batch


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.native
def test_a_loop_that_is_left_ends_its_threads_though_the_loader_lives(tmp_path):
    (tmp_path / "a").mkdir()
    for number in range(32):
        Image.new("RGB", (32, 32)).save(tmp_path / "a" / f"{number}.tif")
    # Such a cache leaves no processes to Pillow.
    loader = FastLoader(
        ImageFolder(tmp_path, TRANSFORM), 8, num_workers=2, cache="ram",
        multiprocessing_context="spawn",
    )  # fmt: skip
    others = set(threading.enumerate())
    started = set()
    for _ in loader:
        started = set(threading.enumerate()) - others
        break
    assert any(thread.name.startswith("fastload-helper") for thread in started)
    for thread in started:
        thread.join(30)
    assert not any(thread.is_alive() for thread in started)


@pytest.mark.usefixtures("no_leaks")
def test_an_exception_in_the_loop_body_leaves_nothing(store):
    loader = FastLoader(store, batch_size=4, transform=TRANSFORM)
    for _ in range(10):
        with pytest.raises(ZeroDivisionError):
            for _batch in loader:
                raise ZeroDivisionError
    del loader, _batch


def test_memory_is_flat_over_thousands_of_batches(store, count):
    """The promise: from batch 1,000 to batch 10,000 memory grows by less than 5 MB."""
    process = python(
        PREAMBLE.format(threads=2)
        + """
import os
def resident():
    with open('/proc/self/smaps_rollup') as f:
        return sum(int(l.split()[1]) for l in f if l.startswith(('Pss_Anon', 'Pss_Shmem')))
batches = itertools.chain.from_iterable(itertools.repeat(loader))
for _ in itertools.islice(batches, 1000): pass
begin = resident()
for _ in itertools.islice(batches, int(sys.argv[2])): pass
print(resident() - begin)
""",
        store,
        count(1500, 9000),
    )
    stdout, stderr = process.communicate(timeout=600)
    assert stderr == ""
    assert int(stdout) < 5 * 1024


CUT = """
import hashlib, os, sys
from PIL import Image
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from fastload import FastLoader
path, way = sys.argv[1:]
loader = FastLoader(path, batch_size=4, num_workers=2, transform=v1.ToTensor(), seed=1)
right = [hashlib.sha256(images.numpy()).digest() for images, _ in loader]
iterator = iter(loader)
next(iterator)
size = os.path.getsize(path)
if way == "anew":
    with open(path, "wb") as file:
        file.write(os.urandom(size // 4))
else:
    os.truncate(path, int(way) * size // 100)
for epoch in (iterator, iter(loader)):
    while True:
        try:
            images, _ = next(epoch)
        except StopIteration:
            break
        except Exception as error:
            assert type(error).__name__ in ("StoreError", "ChecksumError", "DecodeError"), error
            assert path in str(error), error
        else:
            assert hashlib.sha256(images.numpy()).digest() in right
print("end")
"""


@pytest.mark.native
@pytest.mark.parametrize("way", ["0", "40", "anew"])
@pytest.mark.parametrize("kind", ["lmdb", "tar"])
def test_a_store_that_is_cut_short_while_it_is_read_is_an_error_or_right(
    store, tmp_path, way, kind
):
    """The maps are of files that have no such page any more: the process would end by SIGBUS."""
    path = tmp_path / f"copy.{kind}"
    pack(store, path)
    process = forked(CUT, path, way, finalize=False)
    stdout, stderr = process.communicate(timeout=HANGS_S)
    assert (process.returncode, stdout) == (0, "end\n"), stderr


COLUMNS = """
import os, sys
import numpy as np
from fastload import StoreError
from fastload.storage import RAW, Record, open_store, open_writer
path, way = sys.argv[1:]
count = 20_000
with open_writer(path) as writer:
    writer.append([
        Record(data=bytes(48), kind=RAW, width=4, height=4, label=i, key=str(i),
               fields={"weight": 0.5 * i, "text": "text"})
        for i in range(count)
    ])
store, everything = open_store(path), np.arange(count)
assert store.labels[-1] == count - 1 and store.column("weight")[-1] == 0.5 * (count - 1)
target = path + ".fastload" if way == "sidecar" else path
if way == "anew":
    with open(path, "wb") as file:
        file.write(os.urandom(5000))
else:
    os.truncate(target, 0)
for use in (
    lambda: store.labels.sum(), lambda: store.column("weight").sum(),
    lambda: store.values("text", everything), lambda: store.checksums(everything).sum(),
    lambda: store.keys(everything),
):
    try:
        use()
    except StoreError as error:
        assert error.path == target, error
    else:
        raise AssertionError("what is not there was read")
print("end")
"""


@pytest.mark.parametrize(
    ("name", "way"), [("a.h5", "0"), ("a.h5", "anew"), ("a.pth", "0"), ("a.rec", "sidecar")]
)
def test_columns_that_are_left_in_a_file_are_an_error_once_it_is_cut_short(tmp_path, name, way):
    process = forked(COLUMNS, tmp_path / name, way, finalize=False)
    stdout, stderr = process.communicate(timeout=HANGS_S)
    assert (process.returncode, stdout) == (0, "end\n"), stderr


KEPT = """
import os, sys
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from fastload import FastLoader, PackedDataset
path = sys.argv[1]
options = dict(batch_size=1, num_workers=2, transform=v1.PILToTensor())
data = PackedDataset(path, check_crc="never")
right = [images.clone() for images, _ in FastLoader(data, **options)]
loader = FastLoader(data, cache="ram", **options)
iterator = iter(loader)
next(iterator)
os.truncate(path, os.path.getsize(path) // 2)
for epoch in (iterator, iter(loader), iter(loader)):
    while True:
        try:
            images, _ = next(epoch)
        except StopIteration:
            break
        except Exception as error:
            assert type(error).__name__ == "StoreError", error
        else:
            assert any(torch.equal(images, one) for one in right)
print("end")
"""


@pytest.mark.native
def test_a_cache_keeps_nothing_of_the_pages_that_a_store_has_lost(store, tmp_path):
    """Pixels, unchecked: zeros would be an image like any other, in every epoch to come."""
    path = tmp_path / "raw.tar"
    pack(store.parent / "imgs", path, encode="raw")
    process = forked(KEPT, path, finalize=False)
    stdout, stderr = process.communicate(timeout=HANGS_S)
    assert (process.returncode, stdout) == (0, "end\n"), stderr


ELSEWHERE = """
import faulthandler, mmap, os, sys
from fastload import _native
core = _native.load()

def mapped(name):
    path = os.path.join(sys.argv[1], name)
    with open(path, "wb") as file:
        file.write(b"x" * 8 * mmap.PAGESIZE)
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    os.truncate(path, 0)
    return data

when = sys.argv[2]
if when == "before":
    faulthandler.enable()
ours, other = mapped("ours"), mapped("other")
watched = core.SigbusGuard(ours)
if when in ("after", "disabled"):
    faulthandler.enable()
again = core.SigbusGuard(ours)  # over who has put their handler in our place
if when == "disabled":
    faulthandler.disable()
page = 3 * mmap.PAGESIZE
assert ours[page + 5] == 0 and watched.first_missing == again.first_missing == page
print("ours", flush=True)
other[0]
"""


@pytest.mark.native
@pytest.mark.parametrize("when", ["never", "before", "after", "disabled"])
def test_a_bus_error_elsewhere_ends_the_process_as_without_us(tmp_path, when):
    process = python(ELSEWHERE, tmp_path, when)
    stdout, stderr = process.communicate(timeout=HANGS_S)
    assert (process.returncode, stdout) == (-signal.SIGBUS, "ours\n"), stderr
    assert ("Bus error" in stderr) == (when in ("before", "after"))


@pytest.mark.native
def test_a_process_that_maps_nothing_keeps_its_handler_of_bus_errors(store):
    code = """
import signal, sys
from torchvision import datasets, transforms as v1
from fastload import FastLoader
images = datasets.ImageFolder(sys.argv[1], v1.ToTensor())
loader = FastLoader(images, batch_size=4, num_workers=2)
assert "engine" in str(loader.explain()) and len(list(loader)) == 16
with open("/proc/self/status") as file:
    caught = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt"))
assert not caught >> signal.SIGBUS - 1 & 1
print("end")
"""
    process = forked(code, store.parent / "imgs", finalize=False)
    stdout, stderr = process.communicate(timeout=HANGS_S)
    assert (process.returncode, stdout) == (0, "end\n"), stderr


@pytest.mark.native
def test_labels_of_pages_that_a_store_has_lost_are_an_error(store, tmp_path):
    """Zeros would be the label of another class, though the images before them are right."""
    path = tmp_path / "copy.lmdb"
    shutil.copy(store, path)
    opened = open_store(path)
    labels = opened.labels
    assert labels.any()
    os.truncate(path, os.path.getsize(path) // 2)
    with pytest.raises(StoreError, match="was it truncated") as caught:
        annotations_of(opened, np.arange(len(opened)), labels, None, None)
    assert str(path) in str(caught.value)
