"""Random programs over one loader: iterators begun, left and mixed; the order changed meanwhile.

Whatever a program does, the order of its batches is DataLoader's, and so is the state of the
generators that it was drawn from.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fastload import FastLoader, PackedDataset, pack

COUNT = 13


class Indices(Dataset):
    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return 0, index


class Backwards(RandomSampler):
    """Of torch's, but not one."""

    def __iter__(self):
        return iter(range(COUNT)[::-1])


class AtOnce:
    """A batch sampler that draws where it is asked for its iterator, as a generator does not."""

    def __iter__(self):
        return iter(torch.randperm(12).view(4, 3).tolist())


class OneByOne:
    """A sampler that draws each index when it is asked for it."""

    def __init__(self, generator):
        self.generator = generator

    def __iter__(self):
        for _ in range(COUNT):
            yield int(torch.randint(COUNT, (), generator=self.generator))

    def __len__(self):
        return COUNT


@pytest.fixture(scope="module")
def theirs():
    """What a program prints with DataLoader: once for all kinds, whose programs are the same."""
    printed = {}

    def of(sampler, program, **arguments):
        key = repr((sampler, program, arguments))
        if key not in printed:
            printed[key] = run(DataLoader, Indices(), sampler, program, **arguments)
        return printed[key]

    return of


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """Of each kind one, whose labels are the indices."""
    folder = tmp_path_factory.mktemp("programs") / "imgs"
    for index in range(COUNT):
        (folder / f"{index:02}").mkdir(parents=True)
        Image.new("RGB", (8, 8), (index, 0, 0)).save(folder / f"{index:02}" / "0.png")
    pack(folder, folder.with_suffix(".lmdb"))
    return {
        "own": Indices(),
        "folder": ImageFolder(folder, v1.ToTensor()),
        "packed": PackedDataset(folder.with_suffix(".lmdb"), transform=v1.ToTensor()),
        "rows": TensorDataset(torch.zeros(COUNT), torch.arange(COUNT)),
    }


SAMPLERS = {
    "ascending": lambda generator: {},
    "shuffled": lambda generator: {"shuffle": True, "generator": generator},
    "shuffled globally": lambda generator: {"shuffle": True},
    "sampler": lambda generator: {"sampler": RandomSampler(range(COUNT), generator=generator)},
    "more than there are": lambda generator: {
        "sampler": RandomSampler(range(COUNT), num_samples=2 * COUNT + 3, generator=generator)
    },
    "repeated": lambda generator: {
        "sampler": RandomSampler(range(COUNT), True, 70, generator=generator)
    },
    "weighted": lambda generator: {
        "sampler": WeightedRandomSampler(torch.ones(COUNT), 20, generator=generator)
    },
    "subset": lambda generator: {"sampler": SubsetRandomSampler(range(9), generator=generator)},
    "distributed": lambda generator: {"sampler": DistributedSampler(range(COUNT), 2, 1, seed=4)},
    "one by one": lambda generator: {"sampler": OneByOne(generator), "generator": generator},
    "backwards": lambda generator: {"sampler": Backwards(range(COUNT))},
    "a list": lambda generator: {"sampler": [4, 2, 2, 0, 12]},
    "only once": lambda generator: {"sampler": iter(range(COUNT))},
    "single": lambda generator: {"batch_size": None, "shuffle": True, "generator": generator},
    "lists": lambda generator: {"batch_sampler": [[3, 1], [2], [0, 0, 0]]},
    "at once": lambda generator: {"batch_sampler": AtOnce()},
    "batches": lambda generator: {
        "batch_sampler": BatchSampler(RandomSampler(range(COUNT), generator=generator), 4, False)
    },
}

# They draw while they are iterated, which an engine does ahead of DataLoader (docs/parity.md).
GRADUAL = {"one by one", "only once", "repeated", "more than there are"}

slots = st.integers(0, 1)
sizes = st.sampled_from([1, 2, 3, 4, 5, 50])
steps = st.one_of(
    st.tuples(st.just("iter"), slots),
    st.tuples(st.just("next"), slots, st.integers(1, 5)),
    st.tuples(st.just("drop"), slots),
    st.just(("all",)),
    st.just(("zip",)),
    st.just(("draw",)),
    st.tuples(st.just("batch_size"), sizes),
    st.tuples(st.just("drop_last"), st.booleans()),
    st.tuples(st.just("sampler"), st.sampled_from(["shuffled", "reversed"])),
    st.tuples(st.just("set_epoch"), st.integers(0, 3)),
)
programs = st.tuples(sizes, st.booleans(), st.lists(steps, min_size=2, max_size=9))


def run(kind, dataset, sampler, program, **arguments):
    """What the program prints: labels of batches, ends, and random numbers."""
    torch.manual_seed(5)
    generator = torch.Generator().manual_seed(6)
    made = SAMPLERS[sampler](generator)
    batch_size, drop_last, steps = program
    if not {"batch_sampler", "batch_size"} & made.keys():
        made |= {"batch_size": batch_size, "drop_last": drop_last}
    loader = kind(dataset, **made, **arguments)
    iterators = {}
    printed = []

    def labels(batch):
        label = "the end" if batch is None else batch[1]
        return label.tolist() if isinstance(label, torch.Tensor) else label

    for step, *values in [*steps, ("all",)]:
        if step in ("batch_size", "drop_last", "sampler"):
            if not isinstance(loader.batch_sampler, BatchSampler):
                continue
            iterators.clear()  # an epoch that has begun keeps its order (docs/parity.md)
        if step == "iter":
            iterators[values[0]] = iter(loader)
        elif step == "next" and values[0] in iterators:
            for _ in range(values[1]):
                printed.append(labels(next(iterators[values[0]], None)))
        elif step == "drop":
            iterators.pop(values[0], None)
        elif step == "all":
            printed += map(labels, loader)
        elif step == "zip":
            printed += ((labels(one), labels(other)) for one, other in zip(loader, loader))
        elif step == "draw":
            printed.append(int(torch.randint(1 << 40, (), generator=generator)))
            printed.append(int(torch.randint(1 << 40, ())))
        elif step == "set_epoch" and hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(values[0])
        elif step in ("batch_size", "drop_last"):
            setattr(loader.batch_sampler, step, values[0])
        elif step == "sampler":
            order = range(COUNT)[::-1]
            if values[0] == "shuffled":
                order = RandomSampler(range(COUNT), generator=generator)
            loader.batch_sampler.sampler = order
    printed.append(int(torch.randint(1 << 40, (), generator=generator)))
    printed.append(int(torch.randint(1 << 40, ())))
    return printed


@pytest.mark.native
@pytest.mark.parametrize("kind", ["folder", "packed"])
@pytest.mark.parametrize("sampler", sorted({*SAMPLERS} - {"only once", "single"}))
def test_any_order_stays_on_the_fast_path(datasets, kind, sampler):
    made = SAMPLERS[sampler](torch.Generator())
    assert "engine: native" in FastLoader(datasets[kind], **made).explain()


@pytest.mark.parametrize("kind", ["own", "folder", "packed", "rows"])
@given(sampler=st.sampled_from(sorted(SAMPLERS)), program=programs)
@settings(max_examples=settings.default.max_examples * 5)
def test_without_workers(datasets, theirs, kind, sampler, program):
    ours = run(FastLoader, datasets[kind], sampler, program, num_workers=0)
    assert ours == theirs(sampler, program)


@pytest.mark.parametrize("kind", ["own", "folder", "packed", "rows"])
@given(
    sampler=st.sampled_from(sorted(SAMPLERS)),
    program=programs,
    workers=st.integers(1, 2),
    prefetch=st.sampled_from([None, 1, 3]),
    persistent=st.booleans(),
)
@settings(max_examples=settings.default.max_examples // 2)  # each forks processes
def test_with_workers(datasets, theirs, kind, sampler, program, workers, prefetch, persistent):
    arguments = {
        "num_workers": workers,
        "prefetch_factor": prefetch,
        "persistent_workers": persistent,
    }
    ours = run(FastLoader, datasets[kind], sampler, program, **arguments)
    assert ours == theirs(sampler, program, **arguments)


@pytest.mark.parametrize("kind", ["folder", "packed"])
@given(sampler=st.sampled_from(sorted({*SAMPLERS} - GRADUAL)), program=programs)
@settings(max_examples=settings.default.max_examples * 3)
def test_with_as_many_threads_as_there_are_cpus(datasets, theirs, kind, sampler, program):
    """DataLoader's default is no worker, and the order is that one's."""
    ours = run(FastLoader, datasets[kind], sampler, program)
    assert ours == theirs(sampler, program)
