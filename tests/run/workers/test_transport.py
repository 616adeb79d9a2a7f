"""Batches from worker processes: what a slab holds, what travels torch's way, what is reused."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset
from torch.utils.data._utils.collate import default_collate

from fastload import FastLoader
from fastload._base import shared_slabs
from fastload._base.shared_slabs import Mapped, SharedRing
from fastload._base.slabs import SlabRing
from fastload._run.resources import Resources
from fastload._run.workers.placed_rows import PlacedRows
from fastload._run.workers.transport import Packer, unpack
from sides import assert_same


class Arrays(Dataset):
    def __init__(self, n=60, shape=(3, 8, 8)):
        self.n = n
        self.shape = shape

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return np.full(self.shape, i, np.float32), i


def packed(batch, nbytes=1 << 16):
    memory = np.zeros(nbytes, np.uint8)
    message = Packer(memory).pack(batch)
    return message, unpack(message, memory)


PLAIN = [
    torch.arange(12).view(3, 4),
    torch.arange(24.0).view(2, 3, 2, 2).contiguous(memory_format=torch.channels_last),
    torch.arange(12).view(3, 4).t(),
    torch.tensor(3.5),
    torch.tensor([True, False]),
    torch.randn(3, dtype=torch.complex64),
    torch.randn(3).to(torch.float16),
]


@pytest.mark.parametrize("tensor", PLAIN, ids=lambda t: f"{t.dtype}{tuple(t.shape)}")
def test_a_plain_tensor_comes_back_with_its_strides_and_is_alone_in_its_storage(tensor):
    message, back = packed({"a": [tensor, "text"]})
    assert message.placed == 1
    assert message.unplaced == 0
    assert_same(back, {"a": [tensor, "text"]})
    assert back["a"][0].untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    assert not back["a"][0]._is_view()
    assert_same(pickle.loads(pickle.dumps(back)), back)


OTHERS = [
    torch.arange(12)[::2],
    torch.ones(1).expand(5),
    torch.eye(3).to_sparse(),
    torch.nn.Parameter(torch.ones(2)),
]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("tensor", OTHERS, ids=lambda t: f"{t.layout}{tuple(t.shape)}")
def test_other_tensors_travel_torchs_way(tensor):
    message, back = packed([tensor])
    assert message.placed == 0
    assert message.unplaced == 1
    assert torch.equal(back[0].detach().to_dense(), tensor.detach().to_dense())
    assert type(back[0]) is type(tensor)


def test_what_a_slab_has_no_room_for_travels_torchs_way_and_is_measured():
    batch = [torch.zeros(100), torch.ones(1000), torch.zeros(0)]
    message, back = packed(batch, nbytes=500)
    assert message.placed == 1
    assert message.nbytes == 448 + 4032
    assert_same(back, batch)


def test_one_tensor_that_is_there_twice_is_one_afterwards():
    tensor = torch.arange(5)
    _, back = packed({"a": tensor, "b": tensor})
    assert back["a"] is back["b"]


@pytest.mark.parametrize(
    "samples",
    [
        [(torch.full((2, 3), i), i, {"x": np.full(3, i)}) for i in range(4)],
        [torch.zeros(2), torch.ones(2, dtype=torch.float64)],
    ],
    ids=["nested", "mixed dtypes"],
)
def test_collating_into_a_slab_is_default_collate(samples):
    memory = np.zeros(1 << 16, np.uint8)
    packer = Packer(memory)
    message = packer.pack(packer.collate(samples))
    batch = unpack(message, memory)
    expected = default_collate(samples)
    if isinstance(batch, list):
        assert_same(batch, expected)
    else:  # as in torch's workers, the first sample's dtype
        assert torch.equal(batch, expected.to(batch.dtype))


def test_batches_reuse_a_few_slabs_and_what_is_kept_stays():
    loader = FastLoader(Arrays(), 2, num_workers=1)
    kept = []
    for epoch in range(3):
        for number, batch in enumerate(loader):
            if number % 7 == 3:
                kept.append((batch, copy.deepcopy(batch)))
        assert loader.inspect().shared.allocations <= 4 + (epoch + 1) * 5
    for batch, expected in kept:
        assert_same(batch, expected)
    made = loader.inspect().shared.allocations
    del kept, batch, expected
    for _ in range(3):
        for _batch in loader:
            pass
    assert loader.inspect().shared.allocations == made
    assert "slabs of shared memory, which workers collate into" in loader.explain()


def test_a_consumer_that_keeps_everything_gets_copies_before_descriptors_run_out():
    loader = FastLoader(Arrays(200), 1, num_workers=1)
    descriptors = len(os.listdir("/proc/self/fd"))
    batches = list(loader)
    assert len(os.listdir("/proc/self/fd")) - descriptors < 120
    assert [int(labels) for _, labels in batches] == list(range(200))


@pytest.mark.usefixtures("no_leaks")
def test_a_loader_that_is_gone_leaves_no_descriptor_and_no_memory():
    loader = FastLoader(Arrays(), 2, num_workers=1, persistent_workers=True)
    for _, _batch in zip(range(20), loader):
        pass
    del loader, _batch


@pytest.mark.parametrize(("workers", "side"), [(1, 8), (0, 1000)])
def test_of_many_loaders_that_are_kept_those_that_began_last_keep_slabs(workers, side):
    loaders = [FastLoader(Arrays(10, (3, side, side)), 2, num_workers=workers) for _ in range(6)]
    for loader in loaders:
        for _batch in loader:
            pass
    del _batch
    held = [loader.inspect() for loader in loaders]
    rings = [each.shared if workers else each.warm for each in held]
    assert [bool(ring._slabs) for ring in rings] == [False] * 2 + [True] * 4
    assert [int(labels[0]) for _, labels in loaders[0]] == [0, 2, 4, 6, 8]
    assert [bool(ring._slabs) for ring in rings] == [True] + [False] * 2 + [True] * 3


def test_slabs_that_are_pinned_for_a_device_are_not_given_back():
    resources = Resources(warm=SlabRing(2))
    resources.warm.lease((4,), torch.float32, (1,))
    resources.mover.put(object())
    resources.give_back()
    assert len(resources.warm._slabs) == 1
    del resources.mover
    resources.give_back()
    assert resources.warm._slabs == []


def test_a_child_that_is_forked_while_a_slab_is_leased_waits_for_nobody():
    ring = SharedRing(2)
    ring.require(100)
    _slab = ring.lease()
    with ring._lock:  # as another thread does that leases
        child = multiprocessing.get_context("fork").Process(target=ring.give_back)
        child.start()
        child.join(20)
        child.kill()
    child.join()
    assert child.exitcode == 0


def test_a_ring_at_the_end_of_the_interpreter_needs_nothing_of_its_module(monkeypatch):
    """Python clears modules that something still refers to; what it deletes then finds no names."""
    assert SharedRing.__del__.__defaults__ == (sys.is_finalizing,)
    ring = SharedRing(2)
    with monkeypatch.context() as gone:
        for name in ("os", "sys", "threading"):
            gone.setattr(shared_slabs, name, None)
        ring.__del__(lambda: True)


def test_a_batch_outlives_its_loader():
    loader = FastLoader(Arrays(), 2, num_workers=1)
    *_, last = loader
    del loader
    assert last[0].flatten()[-1] == 59


def test_batches_that_grow_get_larger_slabs():
    class Growing(Arrays):
        def __getitem__(self, i):
            return torch.full((i + 1, 1000), i)

    loader = FastLoader(Growing(30), 1, num_workers=1)
    for i, batch in enumerate(loader):
        assert batch.shape == (1, i + 1, 1000)
        assert (batch == i).all()


def test_tensors_that_are_shared_already_travel_torchs_way_and_explain_says_so():
    class Views(Arrays):
        def __getitem__(self, i):
            return torch.arange(1 << 18)[:: i % 2 + 1]

    loader = FastLoader(Views(12), 1, num_workers=1, collate_fn=list)
    for i, (tensor,) in enumerate(loader):
        assert len(tensor) == (1 << 18) // (i % 2 + 1)
    assert "torch's way" in loader.explain()


def test_a_batch_that_was_too_large_for_its_slab_is_not_remembered_as_odd():
    """torch stacks in shared memory what has no room in the slab; the next slab is larger."""

    class Growing(Arrays):
        def __getitem__(self, i):
            return torch.zeros(1 << (17 if i < 2 else 19))

    loader = FastLoader(Growing(12), 2, num_workers=1)
    assert [len(batch[0]) for batch in loader] == [1 << 17, *5 * [1 << 19]]
    assert "torch's way" not in loader.explain()


def test_what_explain_says_of_odd_tensors_is_of_the_last_epoch():
    class Odd(Arrays):
        odd = True

        def __getitem__(self, i):
            return torch.arange(8)[:: 1 + self.odd]

    loader = FastLoader(dataset := Odd(6), 1, num_workers=1, collate_fn=list)
    list(loader)
    assert "torch's way" in loader.explain()
    dataset.odd = False
    list(loader)
    assert "torch's way" not in loader.explain()


def test_without_memfd_everything_travels_torchs_way(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    loader = FastLoader(Arrays(), 2, num_workers=1)
    assert_same(list(loader), list(FastLoader(Arrays(), 2)))
    assert "the system has no memfd_create" in loader.explain()


def test_a_slab_that_a_worker_cannot_reach_is_not_used():
    ring = SharedRing(2)
    assert ring.lease() is None
    ring.require(1000)
    slot, memory = ring.lease()
    mapped = Mapped()
    mapped.memory(slot)[:3] = 1, 2, 3
    assert memory[:4].tolist() == [1, 2, 3, 0]
    ring.close()
    assert Mapped().memory(slot) is None
    for _ in range(40):
        mapped.memory(slot)
    assert mapped.memory(slot)[:3].tolist() == [1, 2, 3]


def test_large_batches_in_this_process_reuse_their_memory():
    loader = FastLoader(Arrays(12, (3, 900, 900)), 2)
    addresses = {batch[0].data_ptr() for batch in loader}
    assert len(addresses) <= 3
    kept = list(loader)
    assert_same([int(images[0, 0, 0, 0]) for images, _ in kept], [0, 2, 4, 6, 8, 10])


def test_large_batches_of_several_tensors_reuse_their_memory_too():
    class Several(Arrays):
        def __getitem__(self, i):
            return [torch.full((3, side, side), float(i)) for side in (900, 850, 850, 850)]

    addresses = {each.data_ptr() for batch in FastLoader(Several(12), 2) for each in batch}
    assert len(addresses) <= 8


@pytest.mark.parametrize("other", [3, {1, 2}, np.ones((2, 3), np.float32)])
def test_what_is_no_tensor_beside_one_is_left_to_torchs_own_error(other):
    samples = [torch.ones(2, 3), other]
    with pytest.raises((TypeError, AttributeError)) as theirs:
        default_collate(samples)
    with pytest.raises((TypeError, AttributeError)) as ours:
        Packer(np.empty(1 << 12, np.uint8)).collate(samples)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("nested_is", [0, 1])
def test_a_nested_tensor_beside_a_plain_one_is_left_to_torchs_own_error(nested_is):
    samples = [torch.ones(2, 3)]
    samples.insert(nested_is, torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))
    with pytest.raises(RuntimeError) as theirs:
        default_collate(samples)
    with pytest.raises(RuntimeError) as ours:
        Packer(np.empty(1 << 12, np.uint8)).collate(samples)
    assert str(ours.value) == str(theirs.value)
    rows = PlacedRows(2, lambda shape, dtype: torch.empty(shape, dtype=dtype), 0)
    large = torch.ones(3, 200, 200)
    assert rows.add(large) is not large and rows.add(samples[nested_is]) is samples[nested_is]
