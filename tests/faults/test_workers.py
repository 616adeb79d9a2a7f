"""Whatever happens to worker processes: a clear error within seconds, and nothing left behind."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

from fastload import FastLoader


class Arrays(Dataset):
    """Ready arrays; at sample 30 something happens."""

    def __init__(self, happens=None):
        self.happens = happens

    def __len__(self):
        return 80

    def __getitem__(self, i):
        if i == 30 and self.happens is not None and get_worker_info() is not None:
            self.happens()
        return np.full((3, 16, 16), i, np.float32), i


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def hangs():
    time.sleep(600)


def raises():
    raise ValueError("on purpose")


def fills_shared_memory():
    raise OSError(28, "No space left on device")


CASES = {
    "killed": (killed, {}, RuntimeError, "killed by signal|exited unexpectedly"),
    "hangs": (hangs, {"timeout": 1}, RuntimeError, "timed out after 1 seconds"),
    "raises": (raises, {}, ValueError, "Caught ValueError in DataLoader worker process"),
    "full": (fills_shared_memory, {}, OSError, "No space left"),
}


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("case", CASES)
def test_a_worker_that_fails(case, count):
    happens, arguments, error, message = CASES[case]
    for _ in range(count(1, 100)):
        loader = FastLoader(Arrays(happens), 5, num_workers=2, **arguments)
        begin = time.monotonic()
        with pytest.raises(error, match=message):
            for batch in loader:
                assert batch[0].shape == (5, 3, 16, 16)
        assert time.monotonic() - begin < 60
        del loader, batch


@pytest.mark.usefixtures("no_leaks")
def test_a_dataset_that_cannot_be_pickled(count):
    for _ in range(count(1, 100)):
        dataset = Arrays()
        dataset.lock = threading.Lock()
        loader = FastLoader(dataset, 5, num_workers=1, multiprocessing_context="spawn")
        with (
            pytest.raises(TypeError, match="cannot pickle"),
            pytest.warns(UserWarning, match="pickle error"),
        ):
            iter(loader)
        del loader, dataset


@pytest.mark.usefixtures("no_leaks")
def test_leaving_early(count):
    loader = FastLoader(Arrays(), 5, num_workers=2)
    for attempt in range(count(4, 100)):
        for number, batch in enumerate(loader):  # noqa: B007 - looked at below
            if number == attempt % 12:
                break
        assert isinstance(batch[0], torch.Tensor)
    del loader, batch


@pytest.mark.usefixtures("no_leaks")
def test_an_exception_in_the_loop(count):
    for _ in range(count(2, 100)):
        loader = FastLoader(Arrays(), 5, num_workers=1)
        with pytest.raises(ZeroDivisionError):
            for _batch in loader:
                raise ZeroDivisionError
        del loader, _batch
