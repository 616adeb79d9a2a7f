"""A FastLoader that accelerate prepares stays one: its arguments, its engine and its state."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import pickle
import sys
import types
import weakref
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import fastload
from batches import TRAIN
from fastload import Buckets, DataError, FastLoader, Mix, PackedDataset
from fastload._engine.registry import NATIVE
from torchrun import torchrun

accelerate = pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore:.*set_vital:UserWarning")

BUCKETED = v1.Compose([Buckets([(32, 32), (24, 40), (40, 24)]).crop(), v1.ToTensor()])


@pytest.fixture(autouse=True)
def afresh():
    yield
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()


def accelerator(**options):
    options = accelerate.utils.DataLoaderConfiguration(**options)
    return accelerate.Accelerator(cpu=True, dataloader_config=options)


class Drawn(Dataset):
    """A sample is its index and a random number; sample 5 cannot be made."""

    def __len__(self):
        return 11

    def __getitem__(self, index):
        if index == 5:
            raise ValueError("cannot be made")
        return index, torch.rand(())


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(10.0))


def plainly(batch):
    if isinstance(batch, (list, tuple)):
        return [plainly(part) for part in batch]
    if isinstance(batch, dict):
        return {name: plainly(part) for name, part in batch.items()}
    return (batch.dtype, batch.stride(), batch.tolist())


def epochs(loader, count=2):
    return [[plainly(batch) for batch in loader] for _ in range(count)]


def hundredfold(batch):
    return [part * 100 for part in batch]


def noisy(batch):
    images, labels = batch
    return [images + torch.rand(len(images), 1, 1, 1), labels]


def collated(samples):
    return {"i": torch.tensor([index for index, _ in samples])}


KINDS = ["folder", "store", "tensors", "user", "workers", "stream", "views", "own"]
KINDS += ["mix", "buckets"]
# The first test below has all kinds, and so has the one of accelerate's checkpoints.
of_some = pytest.mark.parametrize(
    "make",
    [
        pytest.param(kind, marks=() if kind in ("user", "stream", "mix") else pytest.mark.long)
        for kind in KINDS
    ],
    indirect=True,
)


@pytest.fixture(params=KINDS)
def make(request, photos, store):
    """What makes a loader, and always the same."""
    images = ImageFolder(photos, TRAIN)

    def made():
        return {
            "folder": lambda: FastLoader(
                images, 5, shuffle=True, seed=3, dtype=torch.float16,
                memory_format=torch.channels_last, batch_transform=noisy,
            ),
            "store": lambda: FastLoader(
                store, 5, shuffle=True, transform=TRAIN, seed=3, drop_last=True, cache="ram",
                batch_transform=v2.MixUp(num_classes=3),
            ),
            "tensors": lambda: FastLoader(
                TensorDataset(torch.arange(9.0)), 2, shuffle=True, seed=1,
                batch_transform=hundredfold,
            ),
            "user": lambda: FastLoader(Drawn(), 3, seed=1, on_error="skip", max_errors=4),
            "workers": lambda: FastLoader(
                Drawn(), 3, num_workers=2, seed=1, on_error="refill", max_errors=4,
                batch_transform=hundredfold,
            ),
            "stream": lambda: FastLoader(
                Stream(), 4, num_workers=1, batch_transform=lambda batch: batch + 0.5
            ),
            "views": lambda: FastLoader(store, 4, transform=[TRAIN, TRAIN], seed=2),
            "own": lambda: FastLoader(
                Drawn(), 3, sampler=range(4), num_workers="auto", collate_fn=collated
            ),
            "mix": lambda: FastLoader(
                Mix(
                    [(PackedDataset(store, TRAIN), 3), (ImageFolder(photos, TRAIN), 1)],
                    epoch_size="first_exhausted",
                ), 4,
                shuffle=True, seed=4,
            ),
            "buckets": lambda: FastLoader(
                store, 3, shuffle=True, seed=4, transform=BUCKETED, batch_by="aspect",
            ),
        }[request.param]()  # fmt: skip

    return made


def test_a_prepared_loader_gives_the_batches_of_the_loader(make):
    expected = epochs(make())
    loader = accelerator().prepare(make())
    assert type(loader.base_dataloader) is FastLoader
    assert epochs(loader) == expected


def test_a_prepared_loader_resumes_from_accelerates_checkpoint(make, tmp_path):
    pytest.importorskip("torchdata")  # which accelerate wants for its own loaders
    whole = epochs(make())
    accelerating = accelerator(use_stateful_dataloader=True)
    loader = accelerating.prepare(make())
    assert epochs(loader, 1) == whole[:1]
    for number, _ in enumerate(loader):
        if number == 0:
            accelerating.save_state(str(tmp_path))
            break
    afresh = accelerator(use_stateful_dataloader=True)
    loader = afresh.prepare(make())
    afresh.load_state(str(tmp_path))
    assert epochs(loader, 1) == [whole[1][1:]]
    assert loader.iteration == 2


@of_some
def test_a_state_from_an_epochs_end_resumes_with_the_next_epoch(make):
    loader = accelerator().prepare(make())
    whole = [[plainly(batch) for batch in loader] for _ in range(2)]
    loader = accelerator().prepare(make())
    assert epochs(loader, 1) == whole[:1]
    state = loader.state_dict()
    loader = accelerator().prepare(make())
    loader.load_state_dict(state)
    assert epochs(loader, 1) == whole[1:]


@of_some
def test_a_state_that_was_loaded_before_prepare_is_resumed(make):
    first = make()
    epochs(first, 1)
    iterator = iter(first)
    next(iterator)
    state = first.state_dict()
    expected = [plainly(batch) for batch in iterator]
    loader = make()
    loader.load_state_dict(state)
    assert epochs(accelerator().prepare(loader), 1) == [expected]


@of_some
def test_skip_first_batches_leaves_out_the_first_and_keeps_the_rest(make):
    if make().on_error == "refill":
        pytest.skip("the beginning of the order decides what the end is filled up from")
    whole = epochs(make())
    accelerating = accelerator()
    loader = accelerating.prepare(make())
    epochs(loader, 1)
    skipped = accelerating.skip_first_batches(loader, 1)
    assert isinstance(skipped.base_dataloader, FastLoader)
    assert epochs(skipped, 1) == [whole[1][1:]]


def test_the_engine_and_what_a_loader_says_of_itself_are_still_there(photos):
    loader = accelerator().prepare(FastLoader(ImageFolder(photos, TRAIN), 8))
    assert sum(len(labels) for _, labels in loader) == 24
    assert isinstance(loader, FastLoader)
    assert loader.stats()["engine"] == NATIVE.name
    assert loader.stats()["images"] == 24
    assert loader.explain().startswith(f"engine: {NATIVE.name}")


def test_bad_samples_are_counted_and_bounded():
    loader = accelerator().prepare(FastLoader(Drawn(), 3, on_error="skip", max_errors=1))
    assert sum(len(indices) for indices, _ in loader) == 10
    assert [error["index"] for error in loader.stats()["errors"]] == [5]
    loader = accelerator().prepare(FastLoader(Drawn(), 3, on_error="skip", max_errors=0))
    with pytest.raises(fastload.TooManyErrors):
        list(loader)
    with pytest.raises((DataError, ValueError)):
        list(accelerator().prepare(FastLoader(Drawn(), 3)))


def test_set_epoch_chooses_the_epoch_of_order_and_augmentation(store):
    def make():
        return FastLoader(store, 5, shuffle=True, transform=TRAIN, seed=3)

    reference = make()
    reference.set_epoch(7)
    expected = epochs(reference)
    loader = accelerator().prepare(make())
    loader.set_epoch(7)
    assert epochs(loader) == expected


def test_without_a_seed_the_order_is_that_of_a_prepared_dataloader():
    orders = []
    for kind in (DataLoader, FastLoader):
        torch.manual_seed(4)
        loader = accelerator().prepare(kind(TensorDataset(torch.arange(12)), 5, shuffle=True))
        orders.append(epochs(loader, 3))
    assert orders[0] == orders[1]


@pytest.mark.parametrize("count", [3, 12])
def test_accelerates_seedable_sampler_gives_the_order_it_gives_dataloader(count):
    orders = []
    for kind in (DataLoader, FastLoader):
        torch.manual_seed(4)
        loader = kind(TensorDataset(torch.arange(count)), 5, shuffle=True)
        loader = accelerator(use_seedable_sampler=True, data_seed=2).prepare(loader)
        orders.append(epochs(loader, 3))
    assert orders[0] == orders[1]
    assert orders[1][0] != orders[1][1]


@pytest.mark.parametrize("installed", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"dispatch_batches": True}, {"split_batches": True}], ids=str
)
def test_a_prepared_loader_can_be_pickled(options, installed):
    loader = accelerator(**options).prepare(FastLoader(range(8), 2, shuffle=True, seed=1))
    with fastload.patched() if installed else contextlib.nullcontext():
        for _ in range(2):  # also after an epoch
            copied = pickle.loads(pickle.dumps(loader))
            assert type(copied) is type(loader)
            assert type(copied.base_dataloader) is FastLoader
            expected = [batch.tolist() for batch in loader]
            assert [batch.tolist() for batch in copied] == expected
            assert copied.state_dict()["epoch"] == loader.state_dict()["epoch"]


def test_the_loader_itself_goes_on_as_before_and_so_does_its_collate_fn():
    calls = []

    def collate(samples):
        calls.append(len(samples))
        return torch.tensor([index for index, _ in samples])

    collate.about = "indices"
    loader = FastLoader(Drawn(), 2, sampler=range(4), collate_fn=collate, batch_transform=abs)
    assert loader.collate_fn is collate
    prepared = accelerator().prepare(loader)
    for one in (loader, prepared):
        calls.clear()
        assert [batch.tolist() for batch in one] == [[0, 1], [2, 3]]
        assert calls == [2, 2]
        assert one.collate_fn.about == "indices"
    assert [batch.tolist() for batch in FastLoader(Drawn(), 2, sampler=range(2),
            collate_fn=prepared.collate_fn)] == [[0, 1]]  # fmt: skip


def test_a_class_of_the_users_keeps_its_methods_and_attributes():
    class Scaled(FastLoader):
        def __init__(self, dataset, scale):
            super().__init__(dataset, 2)
            self.scale = scale

        def __iter__(self):
            return (self.scale * batch for batch in super().__iter__())

    loader = accelerator().prepare(Scaled(range(4), 10))
    assert [batch.tolist() for batch in loader] == [[0, 10], [20, 30]]


@pytest.mark.skipif(not hasattr(torch, "accelerator"), reason="in_order came with torch 2.6")
def test_batches_out_of_order_have_no_state_and_are_transformed_once():
    class Fine(Drawn):
        def __getitem__(self, index):
            return torch.tensor(index)

    loader = FastLoader(
        Fine(), 11, num_workers=1, in_order=False, batch_transform=lambda batch: batch * 10
    )
    prepared = accelerator().prepare(loader)
    for one in (prepared, loader):
        assert [batch.tolist() for batch in one] == [list(range(0, 110, 10))]
    with pytest.raises(fastload.UsageError, match="in_order=True"):
        prepared.state_dict()


def test_who_asks_for_a_state_that_cannot_be_taken_is_told_and_nobody_else():
    class Unsavable(Drawn):
        def state_dict(self):
            raise NotImplementedError

        def load_state_dict(self, state):
            raise NotImplementedError

        def __getitem__(self, index):
            return index

    prepared = accelerator().prepare(FastLoader(Unsavable(), 11))
    assert [batch.tolist() for batch in prepared] == [list(range(11))]
    with pytest.raises(fastload.UsageError, match="no state to save"):
        for _ in prepared:
            prepared.state_dict()


def test_a_plain_dataloader_is_prepared_as_ever():
    accelerator().prepare(FastLoader(range(4)))
    loader = accelerator().prepare(DataLoader(range(4), 2))
    assert type(loader.base_dataloader) is DataLoader
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]


def test_a_prepared_loader_is_gone_as_soon_as_nobody_refers_to_it(no_leaks):
    accelerating = accelerator()
    loader = accelerating.prepare(
        FastLoader(Drawn(), 2, sampler=range(4), num_workers=1, persistent_workers=True)
    )
    assert len(list(loader)) == 2
    gone = weakref.ref(loader.base_dataloader)
    accelerating.free_memory()
    gc.collect()
    gc.disable()
    try:
        del loader
        assert gone() is None
    finally:
        gc.enable()


def test_where_accelerate_makes_a_plain_loader_the_transform_stays_and_a_warning_says_so(
    monkeypatch,
):
    other = types.ModuleType("accelerate.data_loader")
    monkeypatch.setitem(sys.modules, "accelerate.data_loader", other)
    loader = FastLoader(range(4), 2, batch_transform=lambda batch: batch * 10)
    with pytest.warns(UserWarning, match="builds a plain DataLoader") as heard:
        assert not loader._is_accelerate_prepared
    assert heard[0].filename == __file__
    rebuilt = DataLoader(loader.dataset, 2, collate_fn=loader.collate_fn)
    assert [batch.tolist() for batch in rebuilt] == [[0, 10], [20, 30]]
    assert [batch.tolist() for batch in loader] == [[0, 10], [20, 30]]


def test_a_dataloader_prepared_while_fastload_is_in_torchs_place_is_a_fastloader():
    with fastload.patched():
        loader = accelerator().prepare(torch.utils.data.DataLoader(range(4), 2))
        assert type(loader.base_dataloader) is FastLoader
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
        assert loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize(
    ("split", "skip", "batch_size"), [(False, 0, 4), (True, 0, 4), (False, 2, 4), (False, 0, 5)]
)
def test_repetitions_of_a_mix_are_counted_over_all_ranks(photos, engine, split, skip, batch_size):
    from accelerate.data_loader import BatchSamplerShard, SkipBatchSampler

    def loader(**order):
        mix = Mix([(ImageFolder(photos, TRAIN), 1)], epoch_size=48)  # each image twice
        return FastLoader(mix, seed=3, engine=engine, num_workers=0, **order)

    def images(batches):
        return [one.numpy().tobytes() for images, _ in batches for one in images]

    whole = loader(batch_size=batch_size, shuffle=True)
    expected = list(whole)
    assert len(set(images(expected))) == 48
    parts = []
    for rank in range(2):
        shared = loader(batch_size=batch_size, shuffle=True)
        batches = BatchSamplerShard(shared.batch_sampler, 2, rank, split)
        if skip:
            batches = SkipBatchSampler(batches, skip)
        mine = FastLoader(
            shared.dataset, batch_sampler=batches, seed=3, engine=engine, num_workers=0
        )
        parts.append(images(mine))
    together = parts[0] + parts[1]
    left_out = images(expected[: 2 * skip])
    assert set(together) == set(images(expected)) - set(left_out)
    assert len(together) - len(set(together)) == (2 if batch_size == 5 else 0)  # fill the last


RANKS = """
import json, numpy as np, torch
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration, set_seed
from torchvision.datasets import ImageFolder
from fastload import FastLoader
from batches import TRAIN

class Numbers:
    def __len__(self):
        return 22
    def __getitem__(self, index):
        return torch.tensor(index), torch.rand(())

def prepared(loader, **options):
    options = DataLoaderConfiguration(**options)
    accelerator = Accelerator(cpu=True, dataloader_config=options)
    return accelerator.prepare(loader)

def indices(loader, epochs=2):
    return [[batch[0].tolist() for batch in loader] for _ in range(epochs)]
"""


def on_two_ranks(code, folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent), prepend=os.pathsep)
    return torchrun(RANKS + code, folder)


@pytest.mark.long
def test_two_ranks_divide_the_batches_as_they_do_those_of_a_dataloader(
    tmp_path, photos, monkeypatch
):
    parts = on_two_ranks(
        f"""
ways = [{{}}, {{"split_batches": True}}, {{"dispatch_batches": True}}, {{"even_batches": False}},
        {{"dispatch_batches": True, "split_batches": True}}, {{"use_seedable_sampler": True}}]
made = []
for options in ways:
    each = []
    for kind in (DataLoader, FastLoader):
        set_seed(3)
        loader = prepared(kind(Numbers(), 4, shuffle=True), **options)
        each.append([indices(loader), len(loader), type(loader.base_dataloader).__name__])
    made.append(each)
images = ImageFolder({str(photos)!r}, TRAIN)
make = lambda: FastLoader(images, 4, shuffle=True, seed=2, batch_transform=lambda batch: [
    batch[0].flatten(1)[:, ::997], batch[1] + 100])
whole = make()
loader = prepared(make())
rows = [[(row.tolist(), label) for images, labels in one for row, label in
         zip(images, labels.tolist())] for one in (loader, whole, loader, whole)]
report([made, rows, loader.stats()["engine"]])
""",
        tmp_path,
        monkeypatch,
    )
    for made, _, engine in parts:
        for (theirs, theirs_len, _), (ours, ours_len, kind) in made:
            assert ours == theirs
            assert ours_len == theirs_len
            assert kind == "FastLoader"
        assert engine == NATIVE.name
    for epoch in (0, 2):  # every image once, as it is augmented in a loader that nobody divides
        mine = parts[0][1][epoch] + parts[1][1][epoch]
        assert sorted(map(str, mine)) == sorted(map(str, parts[0][1][epoch + 1]))


@pytest.mark.long
def test_two_ranks_resume_where_they_were_however_the_batches_are_divided(tmp_path, monkeypatch):
    pytest.importorskip("torchdata")
    parts = on_two_ranks(
        """
made = []
for options in ({}, {"split_batches": True}, {"dispatch_batches": True}):
    make = lambda: prepared(
        FastLoader(Numbers(), 2, shuffle=True, seed=1, num_workers=1,
                   batch_transform=lambda batch: [batch[0] * 10 + torch.rand(()), batch[1]]),
        use_stateful_dataloader=True, **options
    )
    loader = make()
    whole = indices(loader, 3)
    loader = make()
    indices(loader, 1)
    for number, _ in enumerate(loader):
        if number == 1:
            state = loader.state_dict()
            break
    loader = make()
    loader.load_state_dict(state)
    made.append([whole, indices(loader), loader.iteration])
    loader = make()
    loader.set_epoch(1)
    each = 2 if "dispatch_batches" in options else 1  # accelerate counts those before dividing
    made[-1].append(indices(skip_first_batches(loader, 2 * each), 1))
report(made)
""",
        tmp_path,
        monkeypatch,
    )
    for rank, made in enumerate(parts):
        for whole, again, iteration, skipped in made:
            assert again == [whole[1][2:], whole[2]]
            assert iteration == 3 or rank > 0  # what is dispatched is the main process's to count
            assert skipped == [whole[1][2:]]


@pytest.mark.long
def test_two_ranks_take_whole_batches_of_a_mix_and_of_buckets_and_resume(
    tmp_path, photos, store, monkeypatch
):
    pytest.importorskip("torchdata")
    parts = on_two_ranks(
        f"""
import copy
from fastload import Buckets, Mix, PackedDataset
from torchvision import transforms as v1

tf = v1.Compose([Buckets([(32, 32), (24, 40), (40, 24)]).crop(), v1.ToTensor()])
ways = {{
    "mix": lambda: FastLoader(
        Mix([(range(24), 3), (range(100, 120), 1)], epoch_size=32), 4, shuffle=True, seed=4,
        collate_fn=lambda samples: [torch.tensor(samples)],
    ),
    "buckets": lambda: FastLoader(
        PackedDataset({str(store)!r}, tf, fields=("key",)), 3, shuffle=True, seed=4,
        batch_by="aspect",
        collate_fn=lambda samples: [torch.tensor([int(s["key"][-6:-4]) for s in samples])],
    ),
}}
made = []
images = ImageFolder({str(photos)!r}, TRAIN)
twice = lambda: FastLoader(
    Mix([(images, 1)], epoch_size=48), 4, shuffle=True, seed=4, num_workers=1,
    batch_transform=lambda batch: [batch[0].double().sum((1, 2, 3)), batch[1]],
)
sums = [indices(twice(), 1)[0], indices(prepared(twice()), 1)[0]]
for make in ways.values():
    whole = indices(make(), 2)
    loader = prepared(make(), use_stateful_dataloader=True)
    divided = indices(loader, 2)
    first = prepared(make(), use_stateful_dataloader=True)
    indices(first, 1)
    for number, _ in enumerate(first):
        if number == 1:
            state = copy.deepcopy(first.state_dict())
            break
    second = prepared(make(), use_stateful_dataloader=True)
    second.load_state_dict(state)
    made.append([whole, divided, indices(second, 1)])
report([made, sums])
""",
        tmp_path,
        monkeypatch,
    )
    for rank, (made, (whole, mine)) in enumerate(parts):
        assert mine == whole[rank::2]  # augmented as on one rank: repetitions are counted over both
        for whole, divided, rest in made:
            for one, mine in zip(whole, divided):
                assert mine[: len(one) // 2] == one[rank::2][: len(one) // 2]
                assert len(mine) == -(-len(one) // 2)
            assert rest == [divided[1][2:]]
        for batch in itertools.chain(*made[0][0]):
            assert sum(number < 100 for number in batch) == 3
