"""What other packages and subclasses put in the place of torch's own iteration is called."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler
from torch.utils.data import dataloader as torchs
from torch.utils.data._utils import collate, fetch, worker
from torch.utils.data.distributed import DistributedSampler

import warm
from batches import EVAL
from combinations import combinations
from fastload import FastLoader, PackedDataset, patched
from fastload.errors import UsageError
from sides import assert_same


class Numbers(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, i):
        return torch.as_tensor(i) * 2


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


DATASETS = {
    "own": lambda store: Numbers(),
    "packed": lambda store: PackedDataset(store, EVAL),
    "stream": lambda store: Stream(),
}


@pytest.fixture(params=DATASETS)
def dataset(request, store):
    return DATASETS[request.param](store)


def with_mark(monkeypatch, kind, name):
    """Has the function give what it gave, and "theirs" if that is a batch."""
    replaced = getattr(kind, name)

    def theirs(*given):
        made = replaced(*given)
        if name in ("__next__", "_next_data", "fetch"):
            return "theirs", made
        if name == "_get_data" and isinstance(made[1], (list, torch.Tensor)):
            return made[0], ("theirs", made[1])
        if name == "create_fetcher":
            fetched = made.fetch
            made.fetch = lambda indices: ("theirs", fetched(indices))
        return made

    monkeypatch.setattr(kind, name, staticmethod(theirs) if name == "create_fetcher" else theirs)


CALLED = [
    (torchs._BaseDataLoaderIter, "__next__"),
    (torchs._BaseDataLoaderIter, "_next_index"),
    (torchs._SingleProcessDataLoaderIter, "_next_data"),
    (torchs._MultiProcessingDataLoaderIter, "_next_data"),
    (torchs._MultiProcessingDataLoaderIter, "_get_data"),
    (torchs._MultiProcessingDataLoaderIter, "_process_data"),
    (torchs._MultiProcessingDataLoaderIter, "_try_put_index"),
    (DataLoader, "_get_iterator"),
    (torchs._DatasetKind, "create_fetcher"),
    (worker, "_worker_loop"),
    (fetch._MapDatasetFetcher, "fetch"),
    (fetch._IterableDatasetFetcher, "fetch"),
]


@pytest.mark.parametrize(
    ("dataset", "called", "workers"),
    combinations([*DATASETS], CALLED, [0, 1], rounds=2),
    indirect=["dataset"],
    ids=lambda value: f"{value[0].__name__}.{value[1]}" if isinstance(value, tuple) else value,
)
def test_code_in_the_place_of_torchs_is_called(monkeypatch, dataset, called, workers):
    kind, name = called
    with_mark(monkeypatch, kind, name)

    def outcome(loader_class):
        torch.manual_seed(1)
        loader = loader_class(dataset, 3, num_workers=workers, persistent_workers=workers > 0)
        return [list(loader), list(loader)]

    assert_same(outcome(FastLoader), outcome(DataLoader))
    assert f"{kind.__name__}.{name}" in FastLoader(dataset, 3).explain()


@pytest.mark.parametrize("name", ["fetch", "__next__"])
def test_it_is_called_from_the_next_epoch_on(monkeypatch, name):
    kind = fetch._MapDatasetFetcher if name == "fetch" else torchs._BaseDataLoaderIter
    loader = FastLoader(Numbers(), 5)
    before = list(loader)
    with monkeypatch.context() as patch:
        with_mark(patch, kind, name)
        assert [mark for mark, _ in loader] == ["theirs", "theirs"]
        with pytest.raises(UsageError, match="code of another package"):
            loader.state_dict()
    assert_same(list(loader), before)


@pytest.mark.parametrize(
    "arguments", [{"seed": 1}, {"engine": "native"}, {"dtype": "float16"}, {"on_error": "skip"}]
)
def test_what_is_asked_of_fastload_itself_counts_more(monkeypatch, store, arguments):
    loader = FastLoader(store, 3, transform=EVAL, **arguments)
    expected = list(loader)
    with_mark(monkeypatch, torchs._BaseDataLoaderIter, "__next__")
    assert_same(list(loader), expected)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_default_collate_that_was_replaced_is_called(monkeypatch, dataset, workers):
    replaced = collate.default_collate
    monkeypatch.setattr(collate, "default_collate", lambda samples: ("theirs", replaced(samples)))

    def outcome(kind):
        return list(kind(dataset, 3, num_workers=workers))

    assert_same(outcome(FastLoader), outcome(DataLoader))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_init_of_the_class_that_was_replaced_is_called_once(monkeypatch, workers):
    def outcome(kind):
        replaced, given = DataLoader.__init__, []

        def theirs(loader, *values, collate_fn, **named):
            given.append(named.keys() & {"num_workers"})
            replaced(loader, *values, collate_fn=lambda x: ["theirs", collate_fn(x)], **named)

        with monkeypatch.context() as patch:
            patch.setattr(DataLoader, "__init__", theirs)
            return [list(kind(Numbers(), 3, num_workers=workers, collate_fn=sum)), given]

    expected = outcome(DataLoader)
    assert_same(outcome(FastLoader), expected)
    with patched():
        assert_same(outcome(DataLoader), expected)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", ["__iter__", "_get_iterator"])
def test_an_iter_of_the_class_that_was_replaced_is_called(monkeypatch, dataset, name, workers):
    replaced = getattr(DataLoader, name)
    monkeypatch.setattr(
        DataLoader, name, lambda loader: (("theirs", batch) for batch in replaced(loader))
    )

    def outcome(kind):
        persistent = workers > 0 and name == "__iter__"
        loader = kind(dataset, 3, num_workers=workers, persistent_workers=persistent)
        return [list(loader), list(loader)]

    assert_same(outcome(FastLoader), outcome(DataLoader))


# --- subclasses that say themselves what indices are drawn from -----------------------------------


def lists_as_indices(parent):
    """Samples that are whole batches: torch_spatiotemporal has such a loader."""

    class Whole(parent):
        @property
        def _auto_collation(self):
            return False

        @property
        def _index_sampler(self):
            return self.batch_sampler

    return Whole


def not_collated(parent):
    class Single(parent):
        @property
        def _auto_collation(self):
            return False

    return Single


def other_batches(parent):
    class Other(parent):
        @property
        def _index_sampler(self):
            return [[3, 1], [2]]

    return Other


def later_batches(parent):
    """Skips what came before a checkpoint."""

    class Later(parent):
        @property
        def _index_sampler(self):
            return list(super()._index_sampler)[2:]

    return Later


GIVEN = {
    "": {},
    "batch_sampler": {"batch_sampler": BatchSampler(SequentialSampler(range(10)), 4, False)},
    "collate_fn": {"batch_size": 3, "collate_fn": np.shape},
}


@pytest.mark.parametrize(
    ("derive", "name", "workers"),
    combinations(
        [lists_as_indices, not_collated, other_batches, later_batches], [*GIVEN], [0, 1], rounds=3
    ),
)
def test_a_subclass_may_say_what_indices_are_drawn_from(derive, name, workers):
    given = GIVEN[name]

    def outcome(parent):
        torch.manual_seed(1)
        loader = derive(parent)(Numbers(), num_workers=workers, **given)
        return [list(loader), list(loader), len(loader)]

    assert_same(outcome(FastLoader), outcome(DataLoader))


@pytest.mark.parametrize("derive", [not_collated, other_batches, later_batches])
def test_such_a_subclass_orders_what_an_engine_reads_and_resumes(store, derive):
    def made(parent):
        return derive(parent)(PackedDataset(store, EVAL), 2)

    expected = list(made(DataLoader))
    assert_same(list(made(FastLoader)), expected)
    loader = made(FastLoader)
    next(iter(loader))
    state = loader.state_dict()
    resumed = made(FastLoader)
    resumed.load_state_dict(state)
    assert_same(list(resumed), expected[1:])


@pytest.mark.parametrize("given", [{"shuffle": True}, {"shuffle": True, "seed": 1}])
@pytest.mark.parametrize("derive", [not_collated, later_batches])
def test_such_a_subclass_shuffles_each_epoch_anew_and_resumes(derive, given):
    def made(parent=FastLoader, **given):
        torch.manual_seed(3)
        return derive(parent)(Numbers(), 2, **given)

    if "seed" in given:
        plain = FastLoader(Numbers(), None if derive is not_collated else 2, **given)
        left_out = 0 if derive is not_collated else 2
        expected = [list(plain)[left_out:], list(plain)[left_out:]]
    else:
        loader = made(DataLoader, **given)
        expected = [list(loader), list(loader)]
    loader = made(**given)
    loader.explain()
    loader.stats()
    assert_same([list(loader), list(loader)], expected)
    loader = made(**given)
    begun = iter(loader)
    next(begun)
    state = loader.state_dict()
    resumed = made(**given)
    resumed.load_state_dict(state)
    assert_same(list(resumed), list(begun))
    if "seed" in given:
        loader = made(**given)
        loader.set_epoch(1)
        assert_same(list(loader), expected[1])


@pytest.mark.parametrize("derive", [other_batches, later_batches])
def test_a_distributed_sampler_of_such_a_subclass_is_told_the_epoch(derive):
    def outcome(parent):
        sampler = DistributedSampler(Numbers(), 1, 0, seed=3)
        loader = derive(parent)(Numbers(), 2, sampler=sampler)
        chosen = loader.set_epoch if parent is FastLoader else sampler.set_epoch
        epochs = []
        for epoch in range(3):
            chosen(epoch)
            epochs.append(list(loader))
        return epochs

    assert_same(outcome(FastLoader), outcome(DataLoader))


def test_an_order_of_its_own_is_named_where_it_cannot_be_divided():
    with pytest.raises(UsageError, match=r"Other\._index_sampler makes another: use shard=False"):
        iter(other_batches(FastLoader)(Numbers(), 2, shard=(0, 2)))


# --- whole classes, properties of DataLoader, and what was there before fastload ------------------


class Theirs:
    def fetch(self, indices):
        return "theirs", super().fetch(indices)

    def _next_data(self):
        return "theirs", super()._next_data()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("module", "name"),
    [
        (fetch, "_MapDatasetFetcher"),
        (torchs, "_SingleProcessDataLoaderIter"),
        (torchs, "_MultiProcessingDataLoaderIter"),
    ],
)
def test_a_class_in_the_place_of_torchs_is_used(monkeypatch, module, name, workers):
    replacement = type(name, (Theirs, getattr(module, name)), {})
    monkeypatch.setattr(module, name, replacement)

    def outcome(kind):
        return list(kind(Numbers(), 3, num_workers=workers))

    assert_same(outcome(FastLoader), outcome(DataLoader))


def test_an_order_in_the_place_of_torchs_is_used(monkeypatch):
    monkeypatch.setattr(DataLoader, "_index_sampler", property(lambda loader: [[3, 1], [2]]))
    assert_same(list(FastLoader(Numbers(), 4)), list(DataLoader(Numbers(), 4)))


EARLIER = """
import functools, sys
from torch.utils.data import DataLoader

init = DataLoader.__init__

def theirs(self, *given, collate_fn=None, **options):
    init(self, *given, collate_fn=lambda samples: ("theirs", samples), **options)

DataLoader.__init__ = functools.wraps(init)(theirs) if sys.argv[1] == "named" else theirs

from fastload import FastLoader

for workers in (0, 1):
    # The way of Python 3.14 would run the script again.
    options = {"multiprocessing_context": "fork"} if workers else {}
    others = {"timeout": 50, "prefetch_factor": 3, "persistent_workers": True} if workers else {}
    loader = FastLoader(range(3), 3, num_workers=workers, **options, **others)
    assert {name: getattr(loader, name) for name in others} == others
    print(list(loader))
"""


@pytest.mark.parametrize("way", ["named", "unnamed"])
def test_what_was_wrapped_before_fastload_was_imported_is_called_once(way, tmp_path):
    script = tmp_path / "earlier.py"
    script.write_text(EARLIER)
    done = warm.run([script, way], finalize=False, only_torch=True)
    assert (done.stdout, done.stderr) == ("[('theirs', [0, 1, 2])]\n" * 2, "")


ITERATED_EARLIER = """
from torch.utils.data import DataLoader

iterate = DataLoader.__iter__
DataLoader.__iter__ = lambda loader: (("theirs", batch) for batch in iterate(loader))

from fastload import FastLoader

for workers in (0, 1):
    options = {"multiprocessing_context": "fork"} if workers else {}
    print(list(FastLoader(range(3), 3, num_workers=workers, collate_fn=list, **options)))
"""


def test_an_iter_that_was_replaced_before_fastload_was_imported_is_called_once(tmp_path):
    script = tmp_path / "earlier.py"
    script.write_text(ITERATED_EARLIER)
    done = warm.run([script], finalize=False, only_torch=True)
    assert (done.stdout, done.stderr) == ("[('theirs', [0, 1, 2])]\n" * 2, "")
