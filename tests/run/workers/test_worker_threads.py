"""Within worker processes every library uses one thread, as torch does there."""

from __future__ import annotations

import ctypes
import os
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import warm
from fastload import FastLoader
from fastload._base.machine import cpu

_OPENMP = {path for path in cpu._libraries() if cpu._OPENMP.fullmatch(path)}


class Counts(Dataset):
    """How many threads a worker would use: torch's, OpenMP's most, OpenCV's or 0."""

    def __len__(self):
        return 2

    def __getitem__(self, i):
        openmp = [ctypes.CDLL(path).omp_get_max_threads() for path in _OPENMP]
        cv2 = sys.modules.get("cv2")
        if cv2 is not None:  # with a pool of the parent's, whose threads a fork leaves behind
            cv2.GaussianBlur(np.zeros((500, 500), np.float32), (31, 31), 0)
        return torch.get_num_threads(), max(openmp, default=1), cv2.getNumThreads() if cv2 else 0


def counts(**arguments):
    loader = FastLoader(Counts(), batch_size=None, num_workers=1, **arguments)
    (first, second) = loader
    assert tuple(first) == tuple(second)
    return tuple(first)


@pytest.fixture
def cv2():
    """OpenCV, whose threads are at work in this process."""
    module = pytest.importorskip("cv2")
    before = module.getNumThreads()
    module.setNumThreads(4)
    module.GaussianBlur(np.zeros((500, 500), np.float32), (31, 31), 0)
    yield module
    module.setNumThreads(before)


_OPENMP_ALONE = """
import ctypes, re
import torch
from fastload._base.machine import cpu
maps = open("/proc/self/maps").read()
(path,) = set(re.findall(r"/.*/libgomp[-.][^/\\n]*$", maps, re.MULTILINE))
openmp = ctypes.CDLL(path)
openmp.omp_set_num_threads(4)
before = openmp.omp_get_max_threads()
cpu.one_thread()
print(before, openmp.omp_get_max_threads())
"""


def test_every_openmp_library_that_is_loaded_is_told():
    done = warm.run(["-c", _OPENMP_ALONE], check=True, finalize=False, only_torch=True)
    assert done.stdout.split() == ["4", "1"]


def test_torch_openmp_and_opencv_use_one_thread(cv2):
    assert counts() == (1, 1, 1)
    assert cv2.getNumThreads() == 4


@pytest.mark.parametrize("context", ["spawn", pytest.param("forkserver", marks=pytest.mark.long)])
def test_however_the_worker_was_started(context):
    torch_s, openmp, opencv = counts(multiprocessing_context=context)
    assert (torch_s, openmp) == (1, 1)
    assert opencv in (0, 1)


class Variables(Counts):
    """What libraries find that are loaded in a worker."""

    def __getitem__(self, i):
        return [int(os.environ[name]) for name in cpu._COUNTS]


def test_libraries_that_are_loaded_later_are_told_too():
    before = dict(os.environ)
    assert list(FastLoader(Variables(), None, num_workers=1)) == [[1, 1], [1, 1]]
    assert dict(os.environ) == before


def several(worker_id):
    sys.modules["cv2"].setNumThreads(3)
    torch.set_num_threads(2)


def test_what_the_user_sets_in_a_worker_counts(cv2):
    assert counts(worker_init_fn=several)[::2] == (2, 3)
