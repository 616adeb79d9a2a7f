"""Another iterator of a loader asks nothing again that nothing has changed, and sees what has."""

from __future__ import annotations

import gc
import os
import sys

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import fastload
from fastload import FastLoader

_FASTLOAD = os.path.dirname(fastload.__file__) + os.sep


class Few(Dataset):
    """The images of a class, in memory."""

    def __init__(self):
        self.images = torch.rand(8, 3, 4, 4)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], index


DATASETS = {"own": Few, "rows": lambda: TensorDataset(torch.rand(8, 3), torch.arange(8))}


def loader_of(dataset, **arguments):
    """A loader that has given some batches already."""
    loader = FastLoader(DATASETS[dataset](), batch_size=4, shuffle=True, **arguments)
    for _ in range(5):  # a dataset without images is left alone after some
        next(iter(loader))
    return loader


def entered(action):
    """How many functions of fastload ``action`` calls."""
    count = 0

    def note(frame, event, _):
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(_FASTLOAD)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


# Three of them make a value_class. What a dataclass compiles for that is in no file.
@pytest.mark.parametrize(("dataset", "most"), [("own", 78), ("rows", 130)])
def test_it_starts_in_few_steps(dataset, most):
    loader = loader_of(dataset)
    assert entered(lambda: iter(loader)) <= most


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_iterator_before_leaves_nothing_to_the_garbage_collector(dataset):
    loader = loader_of(dataset)
    gc.collect()
    gc.disable()
    # Threads that other tests have begun may end meanwhile, and leave garbage of their own.
    older = {id(each) for each in gc.get_objects()}
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        next(iter(loader))
        gc.collect()
        left = [each for each in gc.garbage if id(each) not in older]
        assert not [each for each in left if type(each).__module__.startswith("fastload")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def _collated(samples):
    return "collated"


def _transformed(batch):
    return "transformed"


class Pipeline:
    """As Albumentations': it keeps a generator, and can be seeded."""

    def __init__(self):
        self.seeds = []

    def set_random_seed(self, seed):
        self.seeds.append(seed)


Pipeline.set_random_seed.__module__ = "albumentations.core"


class Drawing(Few):
    """Has a pipeline of its own, which the user may replace."""

    def __init__(self, pipeline):
        super().__init__()
        self.pipeline = pipeline


def test_a_pipeline_that_the_dataset_is_given_later_is_seeded_for_each_sample():
    dataset = Drawing(Pipeline())
    loader = FastLoader(dataset, batch_size=4, seed=1)
    for _ in range(2):
        list(loader)
    dataset.pipeline = Pipeline()
    list(loader)
    assert len(dataset.pipeline.seeds) == len(dataset)


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize(
    ("name", "value"), [("collate_fn", _collated), ("batch_transform", _transformed)]
)
def test_an_argument_that_is_set_anew_counts_from_the_next_iterator_on(dataset, name, value):
    loader = loader_of(dataset)
    before, running = getattr(loader, name), iter(loader)
    setattr(loader, name, value)
    assert next(iter(loader)) == value(None)
    assert isinstance(next(running), list)
    setattr(loader, name, before)
    assert isinstance(next(iter(loader)), list)
