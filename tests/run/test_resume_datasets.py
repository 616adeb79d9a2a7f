"""States of datasets: what they keep for themselves is saved with the loader's state."""

from __future__ import annotations

import itertools
import json
import re
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from batches import EVAL
from fastload import FastLoader, UsageError


# Without workers and with those that persist a dataset outlives its epoch.
def named(parameter):
    """A name that is the same in every process: of an object without its address."""
    return re.sub(" at 0x[0-9a-f]+", "", str(parameter))


RUNS = [
    {},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
    {"batch_transform": torch.neg},
    {"num_workers": 2, "persistent_workers": True, "batch_transform": torch.neg},
]
OWN_STATE = [
    "begins anew at its end",
    "begins anew when asked",
    "is its own iterator",
    "and its iterator has one",
]


class Counting(IterableDataset):
    """Numbers of epoch e from 100 e on; ``kind`` says how it keeps the place and the epoch."""

    def __init__(self, kind=OWN_STATE[0]):
        self.kind = kind
        self.epoch = self.at = 0
        self.loaded = False

    def size(self):
        worker = get_worker_info()
        return 9 if worker is None else 7 + 3 * worker.id

    def __iter__(self):
        if self.kind == "is its own iterator":
            if self.at >= self.size():
                self.epoch, self.at = self.epoch + 1, 0
            return self
        if self.kind == "and its iterator has one":
            return Iterator(self)
        return self.generator()

    def generator(self):
        if self.kind == "begins anew when asked" and not self.loaded:
            self.epoch, self.at = self.epoch + (self.at > 0), 0
        self.loaded = False
        try:
            while self.at < self.size():
                self.at += 1
                yield 100 * self.epoch + self.at
        except GeneratorExit:
            self.at = -1000  # a file that is closed, say
            raise
        if self.kind != "begins anew when asked":
            self.epoch, self.at = self.epoch + 1, 0

    def __next__(self):
        if self.at >= self.size():
            raise StopIteration
        self.at += 1
        return 100 * self.epoch + self.at

    def state_dict(self):
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state):
        self.epoch, self.at, self.loaded = state["epoch"], state["at"], True


class Iterator:
    """The place is the iterator's, the epoch the dataset's."""

    def __init__(self, dataset):
        self.dataset, self.at = dataset, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == self.dataset.size():
            self.dataset.epoch += 1
            raise StopIteration
        self.at += 1
        return 100 * self.dataset.epoch + self.at

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def taken(make, steps):
    """Of three epochs, the state after so many batches, and the batches of each epoch from there.

    With ``steps`` None the state is that after the end of the first epoch.
    """
    loader, state, after = make(), None, []
    for epoch in range(3):
        if state is not None:
            after.append([])
        for number, batch in enumerate(loader, 1):
            if state is not None:
                after[-1].append(batch.tolist())
            if epoch == 0 and number == steps:
                state, after = loader.state_dict(), [[]]
        if epoch == 0 and steps is None:
            state = loader.state_dict()
    return json.loads(json.dumps(state)), after


def cases(*lists, long):
    """Each combination; those of which ``long`` is true are for --long, as processes are slow."""
    return [
        pytest.param(*case, marks=pytest.mark.long if long(*case) else ())
        for case in itertools.product(*lists)
    ]


@pytest.mark.parametrize(
    ("kind", "run", "steps"),
    cases(
        OWN_STATE[:1], RUNS, [None, 3, "last"], long=lambda _, run, at: run == RUNS[4] and at != 3
    )
    + cases(
        *(OWN_STATE[1:], [RUNS[0], RUNS[2]], [None, 3, "last"]),
        long=lambda _, run, at: run == RUNS[2] and at != 3,
    ),
    ids=named,
)
def test_the_state_of_an_iterable_dataset_continues_in_later_epochs(kind, run, steps):
    def make():
        return FastLoader(Counting(kind), 2, **run)

    if steps == "last":
        steps = len(list(make()))
    state, expected = taken(make, steps)
    if not run:
        assert expected[-1][0] == [201, 202]
    loader = make()
    loader.load_state_dict(state)
    assert [[batch.tolist() for batch in loader] for _ in expected] == expected


@pytest.mark.parametrize("run", [RUNS[0], RUNS[2]], ids=named)
def test_a_state_from_the_beginning_of_a_later_epoch_knows_what_was_before(run):
    for steps in (0, 1):
        loader = FastLoader(Counting(), 2, **run)
        list(loader)
        iterator = iter(loader)
        for _ in range(steps):
            next(iterator)
        state = loader.state_dict()
        other = FastLoader(Counting(), 2, **run)
        other.load_state_dict(state)
        expected = [batch.tolist() for batch in iterator]
        assert [batch.tolist() for batch in other] == expected
        assert expected[-1][-1] > 100


def test_a_hugging_face_stream_resumes_and_later_epochs_are_whole():
    datasets = pytest.importorskip("datasets")

    def make():
        rows = datasets.Dataset.from_dict({"a": list(range(7))})
        return FastLoader(rows.to_iterable_dataset(num_shards=2), 2)

    def epoch(loader):
        return [batch["a"].tolist() for batch in loader]

    whole = [[0, 1], [2, 3], [4, 5], [6]]
    for steps, first in ((1, whole[1:]), (3, whole[3:]), (4, []), (None, whole)):
        loader = make()
        for number, _ in enumerate(loader, 1):
            if number == steps:
                break
        state = loader.state_dict()
        other = make()
        other.load_state_dict(state)
        assert [epoch(other) for _ in range(3)] == [first, whole, whole]


class Shifted(Dataset):
    """Random numbers behind a count of all samples that were made."""

    def __init__(self):
        self.made = 0
        self.generator = torch.Generator().manual_seed(5)

    def __len__(self):
        return 13

    def __getitem__(self, i):
        if i < 0:
            raise ValueError(i)
        self.made += 1
        return i, self.made, torch.rand((), generator=self.generator)

    def state_dict(self):
        return {"made": self.made, "generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.made = state["made"]
        self.generator.set_state(state["generator"])


@pytest.mark.parametrize(
    ("run", "steps"),
    cases(RUNS[:3], [None, 0, 3, 5], long=lambda run, at: run == RUNS[1] and at in (0, 5))
    + cases(
        *([{"seed": 3, **RUNS[2]}, {"on_error": "refill", **RUNS[2]}], [None, 0, 3, 5]),
        long=lambda run, at: at in (0, 5),
    ),
    ids=named,
)
def test_a_map_style_dataset_with_a_state_is_given_it(run, steps):
    def make():
        generator = torch.Generator().manual_seed(1)
        shuffle = "on_error" not in run
        return FastLoader(Shifted(), 3, shuffle=shuffle, generator=generator, **run)

    def values(batches):
        return [[column.tolist() for column in batch] for batch in batches]

    loader = make()
    iterator = iter(loader)
    if steps is None:
        list(iterator)
    for _ in range(steps or 0):
        next(iterator)
    state = loader.state_dict()
    expected = [values(iterator if steps is not None else loader), values(loader)]
    other = make()
    other.load_state_dict(state)
    assert [values(other) for _ in range(2)] == expected


def test_a_batch_that_raised_leaves_the_state_from_before_it():
    for run in RUNS[:3]:
        order = [[0, 1], [2, 3], [-1, 4], [5, 6], [7, 8], [9, 10]]
        loader = FastLoader(Shifted(), batch_sampler=order, **run)
        iterator = iter(loader)
        next(iterator)
        next(iterator)
        with pytest.raises(ValueError, match="-1"):
            next(iterator)
        other = FastLoader(Shifted(), batch_sampler=order, **run)
        other.load_state_dict(loader.state_dict())
        assert [b[1].tolist() for b in other] == [b[1].tolist() for b in iterator]


class Unsavable:
    """Has methods of these names that cannot be called, and which torch never calls."""

    def state_dict(self):
        raise NotImplementedError("only in our trainer")

    def load_state_dict(self, state):
        raise NotImplementedError("only in our trainer")


class UnsavableStream(Unsavable, IterableDataset):
    def __iter__(self):
        return iter(range(9))


class UnsavableNumbers(Unsavable, Dataset):
    def __len__(self):
        return 9

    def __getitem__(self, index):
        return index


class UnsavableIterator(Unsavable):
    def __init__(self):
        self.numbers = iter(range(9))

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.numbers)


class UnsavableOrder(Unsavable, torch.utils.data.Sampler):
    def __iter__(self):
        return iter(range(9))


UNSAVABLE = {
    "stream": lambda: (UnsavableStream(), None),
    "map-style": lambda: (UnsavableNumbers(), None),
    "iterator": lambda: (Iterated(UnsavableIterator), None),
    "sampler": lambda: (range(9), UnsavableOrder()),
}


class Iterated(IterableDataset):
    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return self.make()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("which", UNSAVABLE)
def test_a_state_that_cannot_be_taken_ends_no_loop(which, workers):
    dataset, sampler = UNSAVABLE[which]()
    loader = FastLoader(dataset, 4, sampler=sampler, num_workers=workers)
    for _ in range(2):
        seen = []
        for batch in loader:
            seen += batch.tolist()
            with pytest.raises(UsageError, match=r"no state to save.*only in our trainer"):
                loader.state_dict()
        assert seen == list(range(9))


def test_a_worker_whose_state_cannot_be_sent_sends_its_batches():
    class Unsendable(UnsavableNumbers):
        def state_dict(self):
            return {"function": lambda: None}

    loader = FastLoader(Unsendable(), 9, num_workers=1, timeout=60)
    (batch,) = loader
    assert batch.tolist() == list(range(9))


@pytest.mark.parametrize("workers", [0, 1])
def test_the_weights_of_a_dataset_that_is_a_module_are_no_state_of_its_own(workers):
    class Module(torch.nn.Linear, Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return index

    module = Module(2, 2)
    loader = FastLoader(module, 2, num_workers=workers)
    next(iter(loader))
    assert loader.state_dict()["workers"]["now"] == []


class OfOneLoader(IterableDataset):
    """As LitData's: its own loader calls ``state_dict`` with arguments that no other has."""

    def __iter__(self):
        return iter(range(9))

    def state_dict(self, num_samples, num_workers):
        raise AssertionError("called by a loader that does not know it")

    def load_state_dict(self, state):
        raise AssertionError("called by a loader that does not know it")


class MapStyleOfOneLoader(Dataset):
    """The same, map-style."""

    state_dict, load_state_dict = OfOneLoader.state_dict, OfOneLoader.load_state_dict

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return index


@pytest.mark.parametrize("kind", [OfOneLoader, MapStyleOfOneLoader])
@pytest.mark.parametrize("run", RUNS[:2], ids=named)
def test_a_state_dict_that_takes_arguments_is_for_another_loader(kind, run):
    def loader():
        return FastLoader(kind(), 2, **run)

    whole = [batch.tolist() for batch in loader()]
    assert whole == [batch.tolist() for batch in DataLoader(kind(), 2, num_workers=len(run) and 2)]
    first = loader()
    next(iter(first))
    second = loader()
    second.load_state_dict(first.state_dict())
    assert [batch.tolist() for batch in second] == whole[1:]


def test_states_of_datasets_need_as_many_workers():
    loader = FastLoader(Shifted(), 3, num_workers=2)
    next(iter(loader))
    other = FastLoader(Shifted(), 3)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(UsageError, match=r"of num_workers=2.*got num_workers=0"):
        iter(other)


class Heavy(Counting):
    """Counts how often its state is asked for."""

    asked = 0

    def size(self):
        return 23

    def state_dict(self):
        self.asked += 1
        return {**super().state_dict(), "asked": self.asked}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.asked = state["asked"]


@pytest.mark.parametrize(
    ("run", "every"),
    cases(RUNS[:1], [1, 2, 5, 0, None], long=lambda run, every: False)
    + cases(RUNS[1:2], [1, 2, 5, 0, None], long=lambda run, every: every != 2)
    + cases(RUNS[2:3], [1, 2, 5, 0, None], long=lambda run, every: every in (1, 2, None)),
    ids=named,
)
def test_snapshots_in_between_resume_at_the_same_batch(run, every):
    for steps in (1, 4, 7):
        loader = FastLoader(Heavy(), 2, snapshot_every_n_steps=every, **run)
        assert loader.snapshot_every_n_steps == every
        iterator = iter(loader)
        for _ in range(steps):
            next(iterator)
        state = loader.state_dict()
        if not run:
            assert loader.dataset.asked == (steps // every if every else 0)
        other = FastLoader(Heavy(), 2, snapshot_every_n_steps=every, **run)
        other.load_state_dict(state)
        assert [b.tolist() for b in other] == [b.tolist() for b in iterator]


@pytest.mark.parametrize("every", [-1, 1.5, "1"])
def test_snapshots_that_cannot_be_are_refused(every):
    with pytest.raises(UsageError, match="snapshot_every_n_steps: expected an integer"):
        FastLoader(Counting(), snapshot_every_n_steps=every)


class Changing(IterableDataset):
    """Its state is an object that it keeps changing."""

    def __init__(self):
        self.seen = []

    def __iter__(self):
        for i in range(len(self.seen), 12):
            self.seen.append(i)
            yield i

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


@pytest.mark.parametrize("run", RUNS[:3], ids=named)
def test_a_state_is_of_its_batch_though_the_dataset_continues(run):
    loader = FastLoader(Changing(), 2, **run)
    iterator = iter(loader)
    next(iterator)
    time.sleep(0.05)  # workers are ahead
    state = loader.state_dict()
    next(iterator)
    assert state["workers"]["now"][0][1] == {"dataset": {"seen": [0, 1]}}


@pytest.mark.parametrize("make", [lambda store: store, lambda store: range(9)])
def test_the_state_is_of_what_json_has(store, make):
    loader = FastLoader(
        make(store), 2, shuffle=True, transform=EVAL if make(store) is store else None
    )
    iterator = iter(loader)
    next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    other = FastLoader(make(store), 2, shuffle=True, transform=loader.transform)
    other.load_state_dict(state)
    assert len(list(other)) == len(loader) - 1
    generators = state.pop("generators")
    assert generators
    assert all(isinstance(one, str) for one in generators)


def test_arguments_of_torchdatas_loader_are_taken_by_name():
    loader = FastLoader(
        dataset=range(9),
        batch_size=2,
        shuffle=False,
        sampler=None,
        batch_sampler=None,
        num_workers=0,
        collate_fn=None,
        pin_memory=False,
        drop_last=True,
        timeout=0,
        worker_init_fn=None,
        multiprocessing_context=None,
        generator=None,
        prefetch_factor=None,
        persistent_workers=False,
        pin_memory_device="",
        in_order=True,
        snapshot_every_n_steps=1,
    )
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
