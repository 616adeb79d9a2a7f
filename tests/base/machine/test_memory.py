"""A process that runs a user's Dataset keeps the memory that its samples have freed."""

from __future__ import annotations

import platform
import resource

import pytest

import warm

if platform.libc_ver()[0] != "glibc":
    pytest.skip("another C library than glibc", allow_module_level=True)

_FAULTS = """
import resource, sys
import numpy as np
from torch.utils.data import Dataset
from fastload import FastLoader

class Arrays(Dataset):
    "Page faults of a sample that computes with arrays of 4 MiB."

    def __len__(self):
        return 16

    def __getitem__(self, i):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        arrays = [np.full(4 << 20, n, np.uint8) for n in range(4)]
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if __name__ == "__main__":
    workers, context = int(sys.argv[1]), sys.argv[2] or None
    print(*FastLoader(Arrays(), None, num_workers=workers, multiprocessing_context=context))
"""


@pytest.mark.parametrize("workers, context", [(0, ""), (1, "fork")])
def test_samples_that_free_arrays_have_no_new_pages(tmp_path, workers, context):
    script = tmp_path / "faults.py"
    script.write_text(_FAULTS)
    done = warm.run([script, workers, context], check=True, finalize=False)
    faults = [int(word) for word in done.stdout.split()]
    assert len(faults) == 16
    pages = (16 << 20) // resource.getpagesize()
    assert max(faults[4:]) < pages // 10
