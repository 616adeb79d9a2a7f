"""A loop's own warnings are given as often as with DataLoader."""

from __future__ import annotations

import warnings

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from batches import EVAL
from fastload import FastLoader


class Opened(Dataset):
    def __init__(self, folder):
        self.path = folder / "0.png"
        Image.new("RGB", (20, 20)).save(self.path)

    def __len__(self):
        return 4

    def __getitem__(self, i):
        warnings.warn("in the Dataset", stacklevel=1)  # of a worker, this process sees none
        return v2.functional.pil_to_tensor(EVAL.transforms[0](Image.open(self.path)))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_warning_of_the_loop_is_not_given_again(monkeypatch, tmp_path, workers):
    monkeypatch.setenv("FASTLOAD_DEFER", "1")
    dataset = Opened(tmp_path)

    def given(kind):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            loader = kind(dataset, 2, num_workers=workers)
            for _ in range(3):
                for _ in loader:
                    warnings.warn("in the loop", stacklevel=1)
        return [str(warning.message) for warning in caught]

    assert given(FastLoader) == given(DataLoader)


class Numbers(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return i


@pytest.mark.parametrize("persistent", [False, True])
def test_too_many_workers_are_warned_of_as_often_and_from_the_same_lines(monkeypatch, persistent):
    if not hasattr(torch._utils, "cpu_count"):
        pytest.skip("an older torch asks the system itself")
    monkeypatch.setattr(torch._utils, "cpu_count", lambda: 0)

    def given(kind):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader = kind(Numbers(), num_workers=1, persistent_workers=persistent)
            for _ in range(2):
                list(loader)
        return [
            (str(one.message), one.filename, one.lineno)
            for one in caught
            if "worker processes" in str(one.message)  # other libraries warn of forks
        ]

    theirs = given(DataLoader)
    assert given(FastLoader) == theirs and len(theirs) == (2 if persistent else 3)
