"""TensorDataset: batches as default_collate makes them, gathered instead of stacked."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Sampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    random_split,
)

from fastload import FastLoader
from fastload._base.slabs import SlabRing
from fastload._transforms.plan import Plan
from fastload.storage.memory import TensorStore
from sides import assert_same, side_by_side

DTYPES = [torch.uint8, torch.float32, torch.bfloat16, torch.bool, torch.int16, torch.complex64]


def dataset(*shapes: tuple[int, ...], dtype: torch.dtype = torch.uint8, n: int = 41) -> Any:
    generator = torch.Generator().manual_seed(2)
    return TensorDataset(
        *(torch.randint(0, 250, (n, *shape), generator=generator).to(dtype) for shape in shapes)
    )


def both(data: Any, **arguments: Any) -> None:
    arguments = {"batch_size": 6, **arguments}
    theirs = DataLoader(data, generator=torch.Generator().manual_seed(3), **arguments)
    ours = FastLoader(data, generator=torch.Generator().manual_seed(3), **arguments)
    assert ours.explain().startswith("engine: gather")
    for _ in range(2):
        assert_same(list(ours), list(theirs))
    assert ours.stats()["engine"] == "gather"


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches_are_those_of_torch(dtype: torch.dtype) -> None:
    both(dataset((3, 8, 5), (), dtype=dtype), shuffle=True)
    both(dataset((3, 8, 5), dtype=dtype))
    both(dataset((), (2,), (3, 1), dtype=dtype), drop_last=True)


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_parts_of_tensor_datasets(threads: int) -> None:
    data = dataset((3, 4, 4), ())
    for part in (
        Subset(data, [7, 3, 3, 40]),
        random_split(data, [0.3, 0.7], torch.Generator().manual_seed(1))[0],
        ConcatDataset([data, Subset(dataset((3, 4, 4), (), n=5), [4, 0])]),
        ConcatDataset([ConcatDataset([data, data]), data]),
    ):
        both(part, shuffle=True, num_workers=threads)


def test_a_collate_fn_gets_tuples_of_tensors() -> None:
    def collate(samples: list[Any]) -> list[Any]:
        assert all(type(sample) is tuple for sample in samples)
        return [torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])]

    both(dataset((3, 4), ()), collate_fn=collate)


def test_a_kept_batch_is_never_written_again() -> None:
    data = dataset((3, 16, 16), ())
    kept = list(FastLoader(data, batch_size=4, num_workers=2))
    copies = [[tensor.clone() for tensor in batch] for batch in kept]
    list(FastLoader(data, batch_size=4, shuffle=True))
    assert_same(kept, copies)


@pytest.mark.parametrize("threads", [0, 2])
def test_changed_and_replaced_tensors_are_seen(threads: int) -> None:
    data = dataset((3, 4, 4), ())
    loader = FastLoader(data, batch_size=6, num_workers=threads)
    list(loader)
    data.tensors[0][3] = 200
    assert_same(list(loader), list(DataLoader(data, batch_size=6)))
    data.tensors = tuple(tensor[:20].float() for tensor in data.tensors)
    assert_same(list(loader), list(DataLoader(data, batch_size=6)))


def test_it_goes_on_in_the_midst_of_an_epoch() -> None:
    data = dataset((3, 4, 4), ())
    loader = FastLoader(data, batch_size=6, shuffle=True, seed=1)
    whole = list(loader)
    loader = FastLoader(data, batch_size=6, shuffle=True, seed=1)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    again = FastLoader(data, batch_size=6, shuffle=True, seed=1)
    again.load_state_dict(state)
    assert_same(list(again), whole[1:])


class Own(TensorDataset):
    """A user's subclass, which may do anything."""


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (Own(torch.zeros(4, 2)), "Own is not a dataset"),
        (TensorDataset(torch.zeros(4, 2, requires_grad=True)), "plain, contiguous"),
        (TensorDataset(torch.zeros(2, 4).t()), "plain, contiguous"),
        (TensorDataset(torch.zeros(4, 0)), "empty"),
        (ConcatDataset([dataset((3,)), dataset((4,))]), "differ in their tensors"),
    ],
    ids=["subclass", "gradients", "strided", "empty", "different"],
)
def test_other_tensors_stay_with_torch(data: Any, reason: str) -> None:
    loader = FastLoader(data, batch_size=2)
    assert "engine: torch" in loader.explain()
    assert reason in loader.explain()


def test_an_index_beyond_the_tensors_is_an_index_error() -> None:
    for kind in (DataLoader, FastLoader):
        with pytest.raises(IndexError):
            list(kind(dataset((3,)), sampler=[3, 99]))


def test_a_cache_keeps_nothing() -> None:
    loader = FastLoader(dataset((3, 4, 4), ()), batch_size=6, cache="ram")
    list(loader)
    assert "in memory already" in loader.explain()


def test_rows_are_copied_when_they_are_asked_for_as_with_torchs_default() -> None:
    data = dataset((3, 4), (), n=40)
    loader = FastLoader(data, batch_size=20)
    assert loader.num_workers == 0
    assert "the calling thread copies rows" in loader.explain()
    iterator = iter(loader)
    next(iterator)
    for tensor in data.tensors:
        tensor += 1
    assert_same([next(iterator)], [[tensor[20:] for tensor in data.tensors]])


def test_rows_copied_ahead_belong_together() -> None:
    data = dataset((3, 4), (), (2,), n=40)
    iterator: Any = iter(FastLoader(data, batch_size=20, num_workers=1))
    next(iterator)
    while not iterator.ready():
        time.sleep(0.001)
    before = [tensor[20:].clone() for tensor in data.tensors]
    for tensor in data.tensors:
        tensor += 1
    assert_same([next(iterator)], [before])


@pytest.mark.parametrize("threads", [0, 1])
def test_a_shape_changed_in_place_is_seen(threads: int) -> None:
    data = TensorDataset(torch.arange(12).reshape(4, 3))
    loader = FastLoader(data, batch_size=2, num_workers=threads)
    list(loader)
    data.tensors[0].unsqueeze_(0)
    assert_same(list(loader), list(DataLoader(data, batch_size=2)))


@pytest.mark.parametrize("batches", [False, True])
def test_a_sampler_of_lists_gives_samples_of_many_rows(batches: bool) -> None:
    data = dataset((3, 4), ())
    lists = BatchSampler(SequentialSampler(data), 6, drop_last=False)
    given: dict[str, Any] = {"sampler": lists}
    if batches:
        given = {"batch_sampler": BatchSampler(lists, 1, drop_last=False)}  # type: ignore[arg-type]
    loader = FastLoader(data, **given)
    assert_same(list(loader), list(DataLoader(data, **given)))
    assert "lists of indices" in loader.explain()


class Given(Sampler[Any]):
    """A sampler of the user's."""

    def __init__(self, *indices: Any) -> None:
        self.indices = indices

    def __iter__(self) -> Any:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


@pytest.mark.parametrize("size", [None, 1, 2])
@pytest.mark.parametrize(
    "indices",
    [
        ([0, 1], [2, 3], [4, 1]),
        (torch.tensor([0, 1]), torch.tensor([2, 2])),
        (slice(0, 2), slice(3, 5)),
        ((0,), (3,)),
        (True, True),
        (2, 0, 1),
        (None, ...),
        ("a", 1.5),
    ],
    ids=["lists", "tensors", "slices", "tuples", "bools", "ints", "none", "wrong"],
)
def test_whatever_a_sampler_of_the_users_gives_is_taken_as_torch_takes_it(
    indices: tuple[Any, ...], size: int | None
) -> None:
    data = dataset((3, 4), (), n=6)
    side_by_side(data, 1, sampler=lambda: Given(*indices), batch_size=size)
    side_by_side(data, 1, sampler=lambda: list(indices), batch_size=size)


class Batches:
    """A batch sampler of the user's."""

    def __init__(self, *batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


@pytest.mark.parametrize(
    "batches",
    [
        ([[0, 1], [2, 3]], [[4, 1]]),
        ([slice(0, 2)], [slice(3, 5)]),
        ([True], [[True]]),
        ([2, 0], [1]),
        (torch.tensor([2, 0]), torch.tensor([1])),
    ],
    ids=["lists of lists", "slices", "bools", "ints", "tensors"],
)
def test_whatever_a_batch_sampler_of_the_users_gives_is_taken_as_torch_takes_it(
    batches: tuple[Any, ...],
) -> None:
    data = dataset((3, 4), (), n=6)
    for workers in (0, 1):
        side_by_side(data, 1, batch_sampler=lambda: Batches(*batches), num_workers=workers)
        side_by_side(data, 1, batch_sampler=lambda: list(batches), num_workers=workers)


def test_batch_samplers_that_give_ints_only_have_rows_copied() -> None:
    data = dataset((3, 4), (), n=6)
    for batches in (
        BatchSampler(SequentialSampler(data), 4, drop_last=False),
        [[3, 1], (0,), range(2)],
    ):
        loader = FastLoader(data, batch_sampler=batches)
        assert_same(list(loader), list(DataLoader(data, batch_sampler=batches)))  # type: ignore[arg-type]
        assert loader.stats()["engine"] == "gather"
    theirs = list(DataLoader(data, batch_sampler=Batches([3, 1], [0])))
    loader = FastLoader(data, batch_sampler=Batches([3, 1], [0]), engine="native")
    assert_same(list(loader), theirs)
    assert loader.stats()["engine"] == "gather"
    assert "engine='native'" in FastLoader(data, batch_sampler=Batches([0])).explain()


def failing(worker: int) -> None:
    raise ValueError(f"worker {worker} cannot begin")


def test_a_worker_init_fn_is_called_in_workers() -> None:
    data = dataset((3, 4), (), n=6)
    loader = FastLoader(data, num_workers=1, worker_init_fn=failing)
    assert "engine: torch" in loader.explain()
    assert "worker_init_fn" in loader.explain()
    with pytest.raises(ValueError, match="worker 0 cannot begin"):
        list(loader)
    for given in ({"num_workers": 0}, {}, {"num_workers": 1, "engine": "native"}):
        loader = FastLoader(data, worker_init_fn=failing, **given)  # type: ignore[arg-type]
        assert len(list(loader)) == 6
        assert loader.stats()["engine"] == "gather"


def test_more_workers_than_cpus_give_torchs_warning() -> None:
    data = dataset((3, 4), (), n=6)
    said = []
    for kind in (DataLoader, FastLoader):
        with pytest.warns(UserWarning, match="excessive worker creation") as caught:
            loader = kind(data, batch_size=2, num_workers=1000)
        said.append([str(warning.message) for warning in caught])
    assert said[0] == said[1]
    assert "engine: gather" in loader.explain()  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(loader)) == 3


def test_rows_are_copied_for_a_sampler_of_the_users_that_gives_ints_if_it_is_asked_for() -> None:
    data = dataset((3, 4), (), n=6)
    loader = FastLoader(data, batch_size=2, sampler=Given(3, 1, 0), engine="native")
    assert_same(list(loader), list(DataLoader(data, batch_size=2, sampler=Given(3, 1, 0))))
    assert loader.stats()["engine"] == "gather"
    assert "engine='native'" in FastLoader(data, sampler=Given(0)).explain()


def test_another_default_device_changes_no_memory_of_batches() -> None:
    from fastload._engine.image_engine import EngineOptions
    from fastload._engine.rows import RowsEngine
    from fastload._sources.source import Source, resolve

    source = resolve(dataset((3, 4), (), n=5))
    assert isinstance(source, Source) and isinstance(source.plan, Plan)
    engine = RowsEngine(source.store, source.plan, EngineOptions(threads=0, ring=SlabRing(2)))
    with torch.device("meta"):
        columns = engine.submit(np.arange(3), seed=0, epoch=0).result()
    assert [column.device.type for column in columns] == ["cpu", "cpu"]


def test_records_without_names_are_called_by_their_numbers() -> None:
    assert TensorStore([torch.zeros(3, 2)]).keys(np.array([2, 0])) == ["2", "0"]
