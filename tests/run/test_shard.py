"""shard=True: each rank's part, with the arithmetic of torch's DistributedSampler."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DistributedSampler, IterableDataset

from batches import EVAL
from fastload import FastLoader, UsageError
from fastload._run import shard
from fastload._run.shard import Shard
from sides import assert_same


@given(
    n=st.integers(1, 60),
    world=st.integers(1, 9),
    drop_last=st.booleans(),
    batch_size=st.sampled_from([None, 1, 4]),
)
def test_the_parts_are_those_of_torchs_distributed_sampler(n, world, drop_last, batch_size):
    drop_last = drop_last and batch_size is not None
    for rank in range(world):
        sampler = DistributedSampler(
            range(n), world, rank, shuffle=False, drop_last=drop_last and n >= world
        )
        loader = FastLoader(range(n), batch_size, drop_last=drop_last, shard=(rank, world))
        batches = list(loader)
        assert len(batches) == len(loader)
        if drop_last and n < world:
            assert not batches
            continue
        reference = list(FastLoader(range(n), batch_size, sampler=sampler, drop_last=drop_last))
        assert_same(batches, reference)
        expected = list(sampler)
        total = -(-n // world) * world
        repeated = sum(i >= n for i in range(rank, total, world))
        assert loader.stats()["padding"] == (0 if drop_last else repeated)
        assert len(expected) == len(loader.sampler) // world if drop_last else -(-n // world)


def test_all_ranks_shuffle_alike_and_every_epoch_differently(store):
    epochs = []
    for rank in range(3):
        loader = FastLoader(store, 4, shuffle=True, transform=EVAL, shard=(rank, 3))
        assert len(loader) == 2
        epochs.append([torch.cat([labels for _, labels in loader]) for _ in range(2)])
    whole = FastLoader(store, 24, shuffle=True, transform=EVAL, seed=0)
    for epoch in range(2):
        (_, labels), *_ = list(whole)
        mixed = torch.stack([part[epoch] for part in epochs], 1).flatten()
        assert torch.equal(mixed, labels)


def test_a_sampler_that_is_given_wins():
    loader = FastLoader(range(9), 2, sampler=[3, 4], shard=(0, 3))
    assert torch.cat(list(loader)).tolist() == [3, 4]
    assert "given sampler decides" in loader.explain()
    batches = FastLoader(range(9), batch_sampler=[[3], [5, 4]], shard=(0, 3))
    assert [batch.tolist() for batch in batches] == [[3], [5, 4]]
    assert len(batches) == 2


def test_a_trainer_that_divides_the_batches_by_itself_finds_them_whole():
    """accelerate takes batch_sampler, and divides it: dividing it here too would lose samples."""
    loader = FastLoader(range(9), 2, shard=(1, 3))
    assert list(itertools.chain(*loader.batch_sampler)) == list(range(9))


def test_ranks_are_taken_from_torchruns_environment(monkeypatch):
    loader = FastLoader(range(9), 2, shard=True)
    with pytest.raises(UsageError, match=r"pass shard=\(rank, world_size\)"):
        len(loader)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert torch.cat(list(loader)).tolist() == [2, 5, 8]
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match=r"got \(2, 2\)"):
        len(loader)


@pytest.mark.parametrize(
    "shard",
    [
        (),
        (0,),
        (2, 2),
        (-1, 2),
        ("0", 2),
        (0.5, 2),
        (0, 0),
    ],
)
def test_ranks_that_cannot_be_are_refused(shard):
    with pytest.raises(UsageError, match=r"expected integers .*0 <= rank < world_size"):
        FastLoader(range(9), shard=shard)


def test_an_iterable_dataset_is_not_divided():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(9))

    with pytest.raises(UsageError, match="divides its data"):
        FastLoader(Stream(), shard=(0, 2))


@pytest.mark.skipif(not hasattr(torch, "accelerator"), reason="in_order came with torch 2.6")
def test_where_torchs_iterator_would_read_everything_on_every_rank_that_is_refused():
    def loader(world):
        return FastLoader(range(20), 2, num_workers=2, in_order=False, shard=(0, world))

    with pytest.raises(UsageError, match="in_order=True"):
        list(loader(2))
    assert len(list(loader(1))) == 10


def test_ranks_that_all_read_everything_are_warned_once(monkeypatch):
    monkeypatch.setattr(shard, "_warned", False)
    monkeypatch.setattr(shard, "distributed", lambda: Shard(1, 2))
    with pytest.warns(UserWarning, match="each of 2 ranks reads every sample") as caught:
        list(FastLoader(range(9)))
    assert caught[0].filename == __file__
    list(FastLoader(range(9)))
    monkeypatch.setattr(shard, "_warned", False)
    list(FastLoader(range(9), shard=True))
    list(FastLoader(range(9), sampler=DistributedSampler(range(9), 2, 0)))


def test_parts_from_the_middle_of_an_order():
    order = np.arange(10)[::-1]
    part, repeated = Shard(1, 3).part(order, 3, drop_last=False)
    assert part.tolist() == [5, 2, 9]
    assert repeated == 1


@contextlib.contextmanager
def process(rank: int, world_size: int) -> Iterator[None]:
    """As in one process of several; what it sends to the others goes nowhere."""
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def labels_of_each(world, shape, names, divided):
    """The labels that each of ``world`` processes reads, with ``shard`` made by ``divided``."""
    each = []
    for rank in range(world):
        with process(rank, world):
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
            loader = FastLoader(range(30), 4, shuffle=True, seed=3, shard=divided(mesh))
            each.append(torch.cat(list(loader)).tolist())
    return each


def test_processes_of_one_model_parallel_group_read_the_same():
    each = labels_of_each(8, (2, 2, 2), ("dp", "pp", "tp"), lambda mesh: mesh["dp"])
    assert all(labels == each[0] for labels in each[:4])
    assert all(labels == each[4] for labels in each[4:])
    assert sorted(each[0] + each[4]) == list(range(30))


def test_a_mesh_of_two_dimensions_is_divided_over_both():
    each = labels_of_each(
        8, (2, 2, 2), ("replicate", "shard", "tp"), lambda mesh: mesh["replicate", "shard"]
    )
    assert each[0::2] == each[1::2]
    assert [len(labels) for labels in each] == [8] * 8
    assert set(itertools.chain(*each[0::2])) == set(range(30))


def test_a_mesh_gives_what_its_rank_and_size_give():
    each = labels_of_each(6, (3, 2), ("dp", "tp"), lambda mesh: mesh["dp"])
    for position in range(3):
        loader = FastLoader(range(30), 4, shuffle=True, seed=3, shard=(position, 3))
        assert each[2 * position] == torch.cat(list(loader)).tolist()


def test_a_process_outside_the_mesh_is_refused():
    with process(3, 4):
        mesh = dist.device_mesh.DeviceMesh("cpu", [0, 1], mesh_dim_names=("dp",))
        with pytest.raises(UsageError, match="this process \\(rank 3\\) is not in"):
            list(FastLoader(range(30), 4, shard=mesh))


def test_what_is_no_mesh_is_refused():
    with pytest.raises(
        UsageError, match="expected True, False, \\(rank, world_size\\) or a DeviceMesh, got 'dp'"
    ):
        FastLoader(range(30), 4, shard="dp")
