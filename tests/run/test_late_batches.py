"""A batch that did not come, in time or at all, is the next one still: here and after resuming."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import pytest
from torch.utils.data import Dataset, get_worker_info
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

import deferred_datasets as shapes
from batches import EVAL
from fastload import FastLoader
from fastload._engine import native
from sides import assert_same


class Armed(Dataset):
    """At sample 22 something happens while the file ``armed`` is there."""

    def __init__(self, armed, happens=None):
        self.armed = armed
        self.happens = happens

    def __len__(self):
        return 40

    def __getitem__(self, i):
        if i == 22 and self.happens is not None and self.armed.exists():
            self.happens(self.armed)
        return i


def killed(armed):
    armed.unlink()
    os.kill(os.getpid(), signal.SIGKILL)


def held(armed):
    while armed.exists():
        time.sleep(0.01)


def in_the_end(iterator):
    """What comes of ``iterator``; on a busy machine a batch may be late once more."""
    while True:
        try:
            yield next(iterator)
        except StopIteration:
            return
        except RuntimeError as error:
            assert "timed out" in str(error)


def numbers(batches):
    return [int(i) for batch in batches for i in batch]


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize(("workers", "seed"), [(1, 1), (2, None)])
@pytest.mark.parametrize(
    ("happens", "arguments"), [(killed, {}), (held, {"timeout": 1})], ids=["killed", "late"]
)
def test_a_state_after_a_worker_died_or_was_late_lacks_no_batch(
    tmp_path, happens, arguments, seed, workers
):
    armed = tmp_path / "armed"
    armed.touch()
    dataset = Armed(armed, happens)
    loader = FastLoader(dataset, 5, num_workers=workers, seed=seed, **arguments)
    got, iterator = [], iter(loader)
    with pytest.raises(RuntimeError, match=r"exited unexpectedly|killed by signal|timed out"):
        while True:
            got.append(next(iterator))
    state = loader.state_dict()
    armed.unlink(missing_ok=True)
    if happens is held:  # the same iterator continues as well
        assert numbers([*got, *in_the_end(iterator)]) == list(range(40))
    del iterator
    again = FastLoader(dataset, 5, num_workers=workers, seed=seed)
    again.load_state_dict(state)
    assert numbers([*got, *again]) == list(range(40))


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize(
    ("arguments", "dies_at"),
    [
        pytest.param(arguments, at, marks=pytest.mark.long if arguments and at != 3 else ())
        for arguments in ({}, {"on_error": "refill"}, {"shuffle": True})
        for at in (1, 3, 7)
    ],
    ids=str,
)
def test_a_batch_that_an_error_of_torchs_took_along_does_not_count(monkeypatch, arguments, dies_at):
    """The signal of a worker's end may raise when torch has taken a batch and asks for a task."""
    put, asked = _MultiProcessingDataLoaderIter._try_put_index, []

    def interrupted(self):
        put(self)
        asked.append(1)
        if len(asked) == 2 * 2 + dies_at:  # 2 workers, 2 batches ahead for each
            raise RuntimeError("DataLoader worker is killed by signal")

    def loader():
        return FastLoader(range(40), 4, num_workers=2, seed=3, **arguments)

    expected = [batch.tolist() for batch in loader()]
    monkeypatch.setattr(_MultiProcessingDataLoaderIter, "_try_put_index", interrupted)
    running, got = loader(), []
    iterator = iter(running)
    with pytest.raises(RuntimeError, match="killed"):
        while True:
            got.append(next(iterator).tolist())
    assert len(got) == dies_at - 1
    state = running.state_dict()
    again = loader()
    again.load_state_dict(state)
    assert [*got, *(batch.tolist() for batch in again)] == expected
    # A program that goes on all the same has lost that batch, and its next state knows.
    rest = [next(iterator).tolist()]
    after = running.state_dict()
    assert rest == expected[dies_at : dies_at + 1]
    again.load_state_dict(after)
    assert [batch.tolist() for batch in again] == expected[dies_at + 1 :]


@pytest.mark.native
@pytest.mark.usefixtures("no_leaks")
def test_an_engine_that_is_late_keeps_its_batch_and_its_pace(store, monkeypatch):
    release = threading.Event()
    result = native.NativeTicket.result

    def slow(self):
        release.wait(30)
        return result(self)

    expected = list(FastLoader(store, 4, transform=EVAL))
    monkeypatch.setattr(native.NativeTicket, "result", slow)
    loader = FastLoader(store, 4, transform=EVAL, num_workers=1, timeout=0.05)
    iterator = iter(loader)
    ordered = iterator._ordered
    for _ in range(3):
        with pytest.raises(RuntimeError, match="timed out"):
            next(iterator)
    assert iterator._ordered == ordered
    state = loader.state_dict()
    assert state["batches"] == 0
    release.set()
    again = FastLoader(store, 4, transform=EVAL)
    again.load_state_dict(state)
    assert_same(list(again), expected)
    got = []
    while len(got) < len(expected):
        try:
            got.append(next(iterator))
        except RuntimeError:  # on a busy machine it is late once more
            continue
    assert_same(got, expected)
    assert next(iterator, None) is None


class Interrupting(Dataset):
    """At sample 6, for once, the process is interrupted that has ``got`` all before and waits."""

    def __init__(self, got):
        self.got = got
        self.done = False

    def __len__(self):
        return 12

    def __getitem__(self, i):
        if i == 6 and not self.done:
            self.done = True
            while self.got.read_text() != "2":
                time.sleep(0.01)
            time.sleep(0.5)
            os.kill(os.getpid() if get_worker_info() is None else os.getppid(), signal.SIGINT)
            time.sleep(0.5)
        return i


@pytest.mark.usefixtures("no_leaks")
def test_after_an_interrupt_while_waiting_no_batch_is_missing(tmp_path):
    count = tmp_path / "got"
    count.write_text("0")
    iterator = iter(FastLoader(Interrupting(count), 3, num_workers=1))
    got, interrupted = [], 0
    while True:
        try:
            got.append(next(iterator))
            if len(got) < 3:
                count.write_text(str(len(got)))
        except KeyboardInterrupt:
            interrupted += 1
        except StopIteration:
            break
    assert interrupted == 1
    assert numbers(got) == list(range(12))


class Partly(Dataset):
    """Sample 22 is bad; 39, which takes its place, is late as long as ``armed`` is there."""

    def __init__(self, armed):
        self.armed = armed

    def __len__(self):
        return 40

    def __getitem__(self, i):
        if i == 22:
            raise ValueError("on purpose")
        while i == 39 and self.armed.exists():
            time.sleep(0.01)
        return i


@pytest.mark.filterwarnings("ignore:epoch 0")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_batch_that_is_filled_up_too_late_is_the_next_one_still(tmp_path, workers):
    armed = tmp_path / "armed"
    given = {"on_error": "refill", "max_errors": 1, "num_workers": workers}
    expected = [batch.tolist() for batch in FastLoader(Partly(armed), 5, **given)]
    armed.touch()
    loader = FastLoader(Partly(armed), 5, timeout=1, **given)
    got, iterator = [], iter(loader)
    while len(got) < 4:
        with contextlib.suppress(RuntimeError):  # on a busy machine these are late too
            got.append(next(iterator).tolist())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="timed out"):
            next(iterator)
    state = loader.state_dict()
    armed.unlink()
    while len(got) < len(expected):
        with contextlib.suppress(RuntimeError):
            got.append(next(iterator).tolist())
    assert got == expected
    again = FastLoader(Partly(armed), 5, **given)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == expected[4:]


class Recovered(shapes.Recovering):
    """Sample 12 is late as long as ``armed`` is there."""

    def __init__(self, paths, armed):
        super().__init__(paths)
        self.armed = armed

    def __getitem__(self, i):
        while i == 12 and self.armed.exists():
            time.sleep(0.01)
        return super().__getitem__(i)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_batch_that_is_made_again_too_late_is_the_next_one_still(tmp_path):
    """An image of it turns out to be damaged in this process, while another batch is late."""
    armed = tmp_path / "armed"
    paths = shapes.write_photos(tmp_path, 20)
    shapes.truncate(paths[9])
    given = {"num_workers": 2, "seed": 4}
    expected = list(FastLoader(Recovered(paths, armed), 5, engine="torch", **given))
    loader = FastLoader(Recovered(paths, armed), 5, timeout=1, **given)
    armed.touch()
    got, iterator = [], iter(loader)
    while not got:
        with contextlib.suppress(RuntimeError):  # on a busy machine this one is late too
            got.append(next(iterator))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="timed out"):
            next(iterator)
    state = loader.state_dict()
    armed.unlink()
    while len(got) < len(expected):
        with contextlib.suppress(RuntimeError):
            got.append(next(iterator))
    assert_same(got, expected)
    again = FastLoader(Recovered(paths, armed), 5, **given)
    again.load_state_dict(state)
    assert_same(list(again), expected[1:])
