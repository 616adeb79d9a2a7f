"""Processes that decode what the core leaves to Pillow: the same batches, and clean endings."""

from __future__ import annotations

import concurrent.futures
import gc
import multiprocessing
import os
import pickle
import signal
import textwrap
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import warm
from fastload import DecodeError, FastLoader, pack
from fastload._engine.processes import _attend, _Job, _Jobs, _ProcessTicket
from sides import assert_same

TRAIN = v1.Compose(
    [
        v1.RandomResizedCrop(16),
        v1.RandomHorizontalFlip(),
        v1.ToTensor(),
        v1.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
    ]
)
AUGMENT = v1.Compose(
    [
        v1.RandomCrop(16, padding=2),
        v1.ColorJitter(0.4, 0.4, 0.4),
        v1.ToTensor(),
        v1.RandomErasing(p=0.5),
    ]
)

pytestmark = pytest.mark.native


def make(root: Path, count: int = 24) -> Path:
    """Small images in formats that the core does not decode, and a JPEG after each five of them."""
    rng = np.random.default_rng(3)
    for i in range(count):
        side = 20 + i % 5
        image = Image.fromarray(rng.integers(0, 256, (side, side + 3, 3), dtype=np.uint8))
        folder = root / f"class{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{i:03d}"
        if i % 6 == 0:
            image.save(path.with_suffix(".tif"))
        elif i % 6 == 1:
            image.convert("L").save(path.with_suffix(".tif"))
        elif i % 6 == 2:
            image.save(path.with_suffix(".ppm"))
        elif i % 6 == 3:
            image.convert("CMYK").save(path.with_suffix(".jpg"))
        elif i % 6 == 4:
            image.convert("P").save(path.with_suffix(".tif"))
        else:
            image.save(path.with_suffix(".jpg"))
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("mixed"))


@pytest.fixture(scope="module")
def packed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packed") / "mixed.lmdb"
    pack(folder, path)
    return path


def loader(dataset: Any, workers: int, transform: Any = TRAIN, **more: Any) -> FastLoader[Any]:
    if isinstance(dataset, Path) and dataset.is_dir() and dataset.suffix != ".lmdb":
        dataset = ImageFolder(str(dataset), transform=transform)
    elif isinstance(dataset, Path):
        more["transform"] = transform
    return FastLoader(dataset, 7, shuffle=True, seed=5, num_workers=workers, **more)


def processes(some: FastLoader[Any]) -> list[int]:
    """Of those that decode for a loader now."""
    found = some.inspect().engine.processes
    team = None if found is None else found._team
    return [] if team is None else [member.pid for member in team.members]


def epochs(some: FastLoader[Any], count: int = 2) -> list[Any]:
    return [list(some) for _ in range(count)]


CASES: dict[str, dict[str, Any]] = {
    "crops": {},
    "pixels": {"transform": AUGMENT},
    "views": {"transform": [TRAIN, AUGMENT]},
    "bfloat16, channels_last": {
        "dtype": torch.bfloat16,
        "memory_format": torch.channels_last,
    },
    "cache": {"cache": "ram"},
    "cache of pixels": {"cache": "decoded"},
    "cache of coefficients": {"cache": "dct"},
    "shared cache": {"cache": "shm"},
    "persistent": {"persistent_workers": True},
}


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("case", CASES)
def test_batches_are_those_of_one_thread(case: str, packed: Path) -> None:
    arguments = CASES[case]
    alone = {**arguments, "persistent_workers": False}
    expected = epochs(loader(packed, 0, **alone))
    here = loader(packed, 2, **arguments)
    iterator = iter(here)
    assert len(processes(here)) == 2
    assert_same([list(iterator), *epochs(here, 1)], expected)


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("workers", [1, 3])
def test_a_folder_gives_the_same_with_any_number_of_processes(folder: Path, workers: int) -> None:
    here = loader(folder, workers)
    iterator = iter(here)
    assert len(processes(here)) == workers
    assert_same(list(iterator), epochs(loader(folder, 0), 1)[0])


@pytest.mark.usefixtures("no_leaks")
def test_processes_that_are_not_forked_give_the_same(packed: Path) -> None:
    here = loader(packed, 1, multiprocessing_context="spawn")
    iterator = iter(here)
    assert len(processes(here)) == 1
    assert_same(list(iterator), epochs(loader(packed, 0), 1)[0])


def test_explain_says_who_decodes_and_what_would_be_faster(folder: Path, photos: Path) -> None:
    said = loader(folder, 2).explain()
    assert "decodes 83% of the 24 records sampled" in said
    assert "(JPEG, PPM, TIFF), in 2 worker processes" in said
    assert "`fastload pack --encode raw`" in said
    assert "in the calling thread" in loader(folder, 0).explain()
    said = loader(folder, 2, multiprocessing_context="spawn", cache="ram").explain()
    assert "in 2 threads, which take turns, because a cache can only be shared" in said
    assert "pillow" not in loader(photos, 2).explain()


def test_what_the_core_decodes_begins_no_process(photos: Path, tmp_path: Path) -> None:
    here = loader(photos, 2)
    list(here)
    assert here.inspect().engine.processes is None
    # One in forty is not worth it.
    few = tmp_path / "few"
    for i in range(40):
        (few / "a").mkdir(parents=True, exist_ok=True)
        image = Image.new("RGB", (20, 20), (i, 0, 0))
        image.save(few / "a" / (f"{i}.tif" if i == 0 else f"{i}.jpg"))
    here = loader(few, 2)
    assert len(list(here)) == 6
    assert here.inspect().engine.processes is None
    assert "in 2 threads" in here.explain()


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    root = make(tmp_path / "damaged")
    bad = root / "class1" / "001.tif"
    bad.write_bytes(bad.read_bytes()[:-40])
    return root


@pytest.mark.usefixtures("no_leaks")
def test_a_damaged_image_is_raised_with_its_file(damaged: Path) -> None:
    with pytest.raises(DecodeError, match=r"001\.tif"):
        list(loader(damaged, 2))


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("on_error", ["skip", "replace", "refill"])
def test_what_cannot_be_decoded_is_left_to_on_error(damaged: Path, on_error: Any) -> None:
    alone, here = (loader(damaged, workers, on_error=on_error) for workers in (0, 2))
    assert_same(epochs(here, 2), epochs(alone, 2))
    errors = [some.stats()["errors"] for some in (here, alone)]
    assert errors[0] == errors[1]
    assert errors[0][0]["file"].endswith("001.tif")


@pytest.mark.usefixtures("no_leaks")
def test_persistent_processes_live_as_long_as_the_loader(folder: Path) -> None:
    here = loader(folder, 2, persistent_workers=True)
    list(here)
    first = processes(here)
    list(here)
    assert processes(here) == first
    assert all(map(alive, first))
    del here
    gc.collect()
    wait_for(lambda: not any(map(alive, first)))


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("persistent", [False, True])
def test_leaving_early_leaves_nothing_behind(folder: Path, persistent: bool) -> None:
    here = loader(folder, 2, persistent_workers=persistent)
    for _ in here:
        break
    assert_same(epochs(here, 1)[0], epochs(loader(folder, 0), 2)[1])


@pytest.mark.usefixtures("no_leaks")
def test_two_iterators_share_the_processes(folder: Path) -> None:
    here = loader(folder, 2)
    one, other = iter(here), iter(here)
    pids = processes(here)
    both = list(zip(one, other, strict=True))
    assert processes(here) in ([], pids)
    expected = epochs(loader(folder, 0), 2)
    assert_same([list(each) for each in zip(*both, strict=True)], expected)


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("persistent", [False, True])
def test_a_process_that_is_killed_is_an_error_and_the_next_epoch_has_others(
    folder: Path, persistent: bool
) -> None:
    here = loader(folder, 2, persistent_workers=persistent)
    iterator = iter(here)
    for pid in processes(here):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(iterator)
    del iterator
    assert_same(epochs(here, 1)[0], epochs(loader(folder, 0), 2)[1])


def test_a_child_of_the_training_process_has_processes_of_its_own(folder: Path) -> None:
    here = loader(folder, 2, persistent_workers=True)
    expected = epochs(loader(folder, 0), 2)
    assert_same(epochs(here, 1)[0], expected[0])
    before = processes(here)
    child = os.fork()
    if not child:
        status = 1
        try:
            assert_same(epochs(here, 1)[0], expected[1])
            status = int(set(processes(here)) & set(before) != set())
            del here
            gc.collect()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert processes(here) == before
    assert_same(epochs(here, 1)[0], expected[1])


def test_a_loader_with_processes_is_pickled_without_them(folder: Path) -> None:
    here = loader(folder, 2, persistent_workers=True)
    list(here)
    copy = pickle.loads(pickle.dumps(here))
    assert_same(epochs(copy, 1)[0], epochs(here, 1)[0])


def test_processes_end_with_a_parent_that_is_killed(folder: Path, tmp_path: Path) -> None:
    code = """
    import os, signal, sys
    from pathlib import Path
    from torchvision import transforms as v1
    from fastload import FastLoader
    loader = FastLoader(sys.argv[1], 4, num_workers=2, persistent_workers=True,
                        transform=v1.Compose([v1.CenterCrop(8), v1.ToTensor()]))
    list(loader)
    pids = [str(one.pid) for one in loader.inspect().engine.processes._team.members]
    Path(sys.argv[2]).write_text(" ".join(pids))
    os.kill(os.getpid(), signal.SIGKILL)
    """
    told = tmp_path / "pids"
    program = warm.Program(["-c", textwrap.dedent(code), folder, told])
    program.communicate(timeout=60)
    pids = list(map(int, told.read_text().split()))
    assert len(pids) == 2
    wait_for(lambda: not any(map(alive, pids)))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(happens: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not happens():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def no_loader_outlives_its_test() -> Iterator[None]:
    yield
    gc.collect()


def _job() -> _Job:
    return _Job(b"", np.empty(0, np.uint8), concurrent.futures.Future())


def test_a_process_takes_no_second_part_that_an_idle_one_can_take() -> None:
    jobs, first, second = _Jobs(), _job(), _job()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        idle = pool.submit(jobs.take)
        while not jobs.idle:
            time.sleep(0.001)
        jobs.put(first)
        assert jobs.take_ahead() is None
        assert idle.result() is first
    jobs.put(second)
    assert jobs.take_ahead() is second
    assert jobs.take_ahead() is None


def test_parts_that_no_process_took_are_given_back_at_the_end() -> None:
    jobs, job = _Jobs(), _job()
    jobs.put(job)
    assert jobs.end() == [job]
    assert jobs.take() is None
    assert jobs.take_ahead() is None


def test_an_answer_that_cannot_be_read_fails_its_part_and_those_after_it() -> None:
    ours, theirs = multiprocessing.Pipe()
    jobs, broken, first, second = _Jobs(), threading.Event(), _job(), _job()
    jobs.put(first)
    theirs.send_bytes(b"no pickle")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        attended = pool.submit(_attend, ours, jobs, None, broken)
        for job in (first, second):
            if job is second:
                jobs.put(second)
            with pytest.raises(RuntimeError, match="cannot be read: UnpicklingError"):
                job.future.result(30)
        assert first.future.exception() is not second.future.exception()
        jobs.end()
        attended.result(30)
    assert broken.is_set()  # the next epoch starts other processes
    assert ours.closed


def test_cancelling_waits_for_no_part_that_a_process_works_on() -> None:
    waiting, running = _job(), _job()
    running.future.set_running_or_notify_cancel()
    batch: Any = types.SimpleNamespace(times=None)
    engine: Any = None
    ticket = _ProcessTicket(engine, batch, np.arange(2), [running, waiting])
    ticket.cancel()
    assert waiting.future.cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        ticket.settle()
