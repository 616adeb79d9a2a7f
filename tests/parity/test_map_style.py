"""Map-style datasets: what DataLoader gives, FastLoader gives, argument by argument."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    SequentialSampler,
    StackDataset,
    TensorDataset,
    default_collate,
    default_convert,
    get_worker_info,
)

from fastload import FastLoader
from sides import assert_same, side_by_side

Pair = collections.namedtuple("Pair", "left right")


class Samples(Dataset):
    """Samples of one of several structures."""

    def __init__(self, n=13, kind="pair"):
        self.n = n
        self.kind = kind

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if not 0 <= i < self.n:
            raise IndexError(i)
        image = torch.arange(6, dtype=torch.float32).view(2, 3) + i
        return {
            "pair": lambda: (image, i),
            "nested": lambda: {"a": [image, {"b": np.full(3, i, np.int16)}], "c": str(i)},
            "named": lambda: Pair(image, float(i)),
            "scalars": lambda: (i, float(i), bool(i % 2), np.float32(i), np.int64(i)),
            "none": lambda: (image, None),
            "ragged": lambda: torch.zeros(1 + i % 3),
            "empty": lambda: torch.zeros(0, 4),
            "strided": lambda: image.t(),
            "complex": lambda: torch.complex(image, -image).conj(),
            "half": lambda: image.to(torch.bfloat16),
            "sparse": lambda: image.to_sparse(),
        }[self.kind]()


KINDS = ["pair", "nested", "named", "scalars", "none", "ragged", "empty", "strided", "complex"]
KINDS += ["half", "sparse"]


# The test after this one sends every kind from a worker.
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", KINDS)
def test_samples_of_any_structure(kind, workers):
    side_by_side(Samples(kind=kind), 1, batch_size=4, num_workers=workers)


@pytest.mark.parametrize("kind", KINDS)
def test_later_batches_come_out_of_slabs_and_are_the_same(kind):
    side_by_side(Samples(40, kind), 2, batch_size=3, num_workers=1, persistent_workers=True)


@pytest.mark.parametrize("batch_size", [None, 1, 3])
def test_without_samples(batch_size):
    for drop_last in (False, True):
        side_by_side(Samples(0), 2, batch_size=batch_size, drop_last=drop_last)


@given(
    batches=st.lists(st.lists(st.integers(-3, 14), max_size=4), max_size=6),
    workers=st.integers(0, 1),
)
@settings(max_examples=settings.default.max_examples // 2)
def test_batch_samplers_and_indices_that_are_not_there(batches, workers):
    side_by_side(Samples(), 2, batch_sampler=lambda: batches, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_of_batches_without_auto_collation(workers):
    class Bulk(Samples):
        def __getitem__(self, indices):
            return torch.as_tensor(indices) * 2

    side_by_side(
        Bulk(),
        batch_size=None,
        sampler=lambda: BatchSampler(SequentialSampler(range(13)), 4, False),
        num_workers=workers,
    )


@dataclasses.dataclass
class Batch:
    """A custom batch: pickled as a whole, its tensors too."""

    images: torch.Tensor
    names: list[str]
    pinned: bool = False

    def pin_memory(self):
        return dataclasses.replace(self, pinned=True)


def as_batch(samples):
    return Batch(torch.stack([image for image, _ in samples]), [str(i) for _, i in samples])


def as_views(samples):
    """Tensors that are the same one, views of it, and of odd strides."""
    whole = torch.stack([image for image, _ in samples])
    return [whole, whole, whole[:, :1], whole[:1].expand(4, 2, 3), whole.permute(2, 0, 1)]


@pytest.mark.parametrize(
    ("collate_fn", "workers"),
    [(collate, 0) for collate in (as_batch, as_views, list, len)]
    + [(as_batch, 2), (as_views, 2), (list, 1)],
)
def test_collate_functions_and_custom_batches(collate_fn, workers):
    ours = side_by_side(Samples(40), 2, batch_size=4, collate_fn=collate_fn, num_workers=workers)
    if collate_fn is as_views and workers:
        assert ours[1][0] is ours[1][1]


@pytest.mark.parametrize("workers", [0, 1])
def test_arrays_in_a_batch_arrive_as_torchs_do(workers):
    def arrays(samples):
        read_only = np.arange(len(samples))
        read_only.flags.writeable = False  # as that of a PIL image
        swapped = np.arange(len(samples), dtype=">f4")  # as FITS and NIfTI give it
        turned = np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1)  # channels first
        kinds = np.zeros(2, [("x", ">i2"), ("y", "u1")])
        return read_only, np.zeros(2), swapped, kinds, turned, turned[::2], turned.T

    def arrived(kind):
        loader = kind(Samples(), batch_size=4, collate_fn=arrays, num_workers=workers)
        batches = list(loader)
        facts = [
            [(array.flags.writeable, array.dtype.str, array.strides) for array in batch]
            for batch in batches
        ]
        return facts, [[array.tolist() for array in batch] for batch in batches]

    assert arrived(FastLoader) == arrived(DataLoader)


def test_a_custom_batch_type_is_pinned_by_its_own_method():
    """What torch's pinning thread does with what it gets; it needs no CUDA for that."""
    loader = FastLoader(Samples(40), batch_size=4, collate_fn=as_batch, num_workers=1)
    iterator = iter(loader)
    for _ in range(8):
        outcome = next(iterator._torchs()).pin_memory()
        assert outcome.batch.pinned
        assert_same(iterator._epoch.maker._tasks.open(outcome).images, outcome.batch.images)


class Drawing(Samples):
    """Samples out of the three global generators, and what a worker knows about itself."""

    def __getitem__(self, i):
        import random

        info = get_worker_info()
        who = (-1, 0, 0) if info is None else (info.id, info.num_workers, info.seed)
        mine = info is None or type(info.dataset) is Drawing
        return i, torch.rand(2), random.random(), np.random.rand(), who, mine


@pytest.mark.parametrize(
    ("workers", "persistent"),
    [(0, False), pytest.param(1, False, marks=pytest.mark.long), (1, True), (2, False), (2, True)],
)
def test_worker_seeds_and_random_numbers(workers, persistent):
    side_by_side(
        Drawing(),
        2,
        batch_size=3,
        shuffle=True,
        num_workers=workers,
        persistent_workers=persistent,
        generator=lambda: torch.Generator().manual_seed(5),
    )


def change_the_dataset(worker_id):
    get_worker_info().dataset.n = 5 + worker_id
    torch.manual_seed(worker_id)


def fail(worker_id):
    raise ValueError(f"no worker {worker_id}")


@pytest.mark.parametrize("init", [change_the_dataset, fail])
def test_worker_init_functions(init):
    class Counting(Drawing):
        def __getitem__(self, i):
            return i, self.n, torch.rand(1)

    side_by_side(Counting(), 1, batch_size=3, num_workers=2, worker_init_fn=init)


# Others import torch again; run/workers/test_worker_threads.py spawns.
@pytest.mark.parametrize(
    "context",
    ["fork", *(pytest.param(name, marks=pytest.mark.long) for name in ("spawn", "forkserver"))],
)
def test_multiprocessing_contexts(context):
    side_by_side(Samples(20), 1, batch_size=3, num_workers=1, multiprocessing_context=context)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_gives_many_samples_at_once(workers):
    class Many(Samples):
        def __getitems__(self, indices):
            return [(self[i], len(indices)) for i in indices]

    side_by_side(Many(), 1, batch_size=4, num_workers=workers)
    side_by_side(StackDataset(Many(), TensorDataset(torch.arange(13))), 1, num_workers=workers)
    Many.__getitems__ = None
    side_by_side(Many(), 1, batch_size=4, num_workers=workers)


class Broken(Samples):
    def __getitem__(self, i):
        errors = {2: KeyError, 5: ValueError, 6: StopIteration, 10: OSError}
        if i in errors:
            raise errors[i](f"sample {i}")
        return super().__getitem__(i)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_errors_are_raised_at_their_batch_and_the_rest_still_comes(workers, batch_size):
    side_by_side(Broken(11), 2, batch_size=batch_size, num_workers=workers)


def test_an_error_brings_the_workers_traceback():
    for kind in (DataLoader, FastLoader):
        with pytest.raises(
            ValueError,
            match=r"(?s)Caught ValueError in DataLoader worker process "
            r"\d.*Original Traceback.*in __getitem__.*sample",
        ):
            list(kind(Broken(11), sampler=[1, 5], num_workers=1))


class Slow(Samples):
    def __getitem__(self, i):
        import time

        if i == 3 and get_worker_info() is not None:
            time.sleep(60)
        return super().__getitem__(i)


def test_a_timeout_is_told_in_the_same_words():
    for kind in (DataLoader, FastLoader):
        iterator = iter(kind(Slow(), 2, num_workers=1, timeout=1))
        with pytest.raises(RuntimeError, match=r"^DataLoader timed out after 1 seconds$"):
            list(iterator)
        del iterator


@pytest.mark.parametrize("given", [default_collate, default_convert])
def test_torchs_collate_functions_by_name(given):
    side_by_side(Samples(), 1, batch_size=4, collate_fn=given)
    side_by_side(Samples(), 1, batch_size=None, collate_fn=given)


@pytest.mark.parametrize("given", [None, default_collate, default_convert, list])
@pytest.mark.parametrize("size", [None, 2])
def test_the_collate_fn_is_the_one_that_torch_has_set(given, size):
    """nonechucks and others exchange it where it is ``default_collate``."""
    for dataset in (Samples(), TensorDataset(torch.arange(4))):
        theirs, ours = (kind(dataset, size, collate_fn=given) for kind in (DataLoader, FastLoader))
        assert ours.collate_fn is theirs.collate_fn


BAD = [
    {"batch_size": 0},
    {"num_workers": -1},
    {"timeout": -1},
    {"prefetch_factor": 2, "num_workers": 0},
    {"prefetch_factor": -1, "num_workers": 1},
    {"persistent_workers": True},
    {"sampler": lambda: [1], "shuffle": True},
    {"batch_sampler": lambda: [[1]], "batch_size": 2},
    {"batch_sampler": lambda: [[1]], "drop_last": True},
    {"batch_size": None, "drop_last": True},
    {"multiprocessing_context": "fork"},
    {"multiprocessing_context": "no such", "num_workers": 1},
    {"multiprocessing_context": 3, "num_workers": 1},
]


@pytest.mark.parametrize("arguments", BAD, ids=[",".join(bad) for bad in BAD])
def test_arguments_that_cannot_work_are_refused_in_the_same_words(arguments):
    made = side_by_side(Samples(), 1, **arguments)
    assert issubclass(made[0][0], (ValueError, TypeError))


def test_attributes_cannot_be_set_afterwards():
    for kind in (DataLoader, FastLoader):
        loader = kind(Samples(), batch_size=2)
        for name in ("batch_size", "sampler", "batch_sampler", "drop_last", "dataset"):
            with pytest.raises(ValueError, match=f"{name} attribute should not be set"):
                setattr(loader, name, {})


@pytest.mark.skipif(not hasattr(torch, "accelerator"), reason="in_order came with torch 2.6")
def test_batches_out_of_order_are_all_there():
    for kind in (DataLoader, FastLoader):
        batches = list(kind(Samples(), batch_size=2, num_workers=2, in_order=False))
        indices = torch.cat([labels for _, labels in batches])
        assert sorted(indices.tolist()) == list(range(13))


def test_a_dataset_that_grows_after_its_loader_was_made():
    for shuffle in (False, True):
        lengths = []
        for kind in (DataLoader, FastLoader):
            samples = [torch.ones(4)] * 4
            loader = kind(samples, shuffle=shuffle)
            samples.append(torch.ones(4))
            lengths.append((len(loader), len(list(loader))))
        assert lengths[0] == lengths[1] == (5, 5)


def test_it_is_generic_as_dataloader_is():
    class Own(FastLoader[list[torch.Tensor]]):
        pass

    for kind in (FastLoader[list[torch.Tensor]], Own):
        loader = kind(range(5), 2)
        assert isinstance(loader, FastLoader) and isinstance(loader, DataLoader)
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]


def test_an_iterator_without_processes_has_none_by_torchs_name():
    dataset = TensorDataset(torch.arange(8))
    assert list(iter(FastLoader(dataset, batch_size=2, num_workers=2))._workers) == []
