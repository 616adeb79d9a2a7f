"""How few large slabs an epoch does with."""

import queue
import threading
import time

import pytest
import torch
from torch.utils.data import ConcatDataset
from torchvision import transforms as tv
from torchvision.datasets import ImageFolder

from fastload import FastLoader
from fastload._base.slabs import LARGE_NBYTES, SlabRing
from fastload._engine import early
from fastload._run import backpressure

SHAPE = (LARGE_NBYTES,)


def lease(ring: SlabRing) -> torch.Tensor:
    return ring.lease(SHAPE, torch.uint8, (1,))[0]


def test_a_ring_is_crowded_while_its_few_large_slabs_are_all_in_use():
    ring = SlabRing(keep=3, few=2)
    first, second = lease(ring), lease(ring)
    assert ring.crowded()
    del first
    assert not ring.crowded()
    third = lease(ring)
    assert ring.crowded()
    ring.more()
    assert not ring.crowded()
    fourth = lease(ring)
    ring.more()  # three are kept
    assert ring.crowded()
    assert second.nbytes == third.nbytes == fourth.nbytes
    assert ring.allocations == 3


def test_small_slabs_and_rings_without_a_number_are_never_crowded():
    small = SlabRing(keep=3, few=2)
    held = [small.lease((100,), torch.uint8, (1,)) for _ in range(5)]
    assert not small.crowded()
    ring = SlabRing(keep=3)
    held += [lease(ring) for _ in range(5)]
    assert not ring.crowded()


def test_whoever_waits_is_told_when_a_slab_is_let_go():
    ring, told = SlabRing(keep=3, few=2), queue.SimpleQueue()
    before = lease(ring)
    ring.tell(told.put)
    after = lease(ring)
    assert told.empty()
    del before
    assert told.qsize() == 1
    view = after[3:].numpy()
    del after
    assert told.qsize() == 1
    del view
    assert told.qsize() == 2


def test_of_several_who_wait_each_is_told_until_it_ends():
    ring, first, second = SlabRing(keep=3, few=2), queue.SimpleQueue(), queue.SimpleQueue()
    for told in (first, second):
        ring.tell(told.put)
    held = lease(ring)
    del held
    assert (first.qsize(), second.qsize()) == (1, 1)
    held = lease(ring)
    ring.tell_no_more(second.put)
    ring.tell_no_more(second.put)
    again = lease(ring)
    del held, again
    assert first.qsize() == 3


def test_the_gate_opens_for_who_waits_while_nothing_is_being_filled():
    ring = SlabRing(keep=3, few=2)
    gate = backpressure.Gate([ring], print)
    held = [lease(ring), lease(ring)]
    gate.begun()
    assert gate.ask()
    assert not gate.open()  # what he waits for is being filled
    gate.made(0.0)
    assert not gate.open()
    assert gate.ask()
    assert gate.open()  # he has two, and wants a third
    assert len(held) == 2


@pytest.mark.parametrize("waits", [True, False])
def test_a_slab_more_is_taken_where_threads_lose_time_that_the_loop_waits_for(monkeypatch, waits):
    now = [0]
    monkeypatch.setattr(backpressure.time, "perf_counter_ns", lambda: now[0])
    ring = SlabRing(keep=3, few=2)
    gate = backpressure.Gate([ring], print)
    held = [lease(ring), lease(ring)]
    for _ in range(2 * backpressure._BATCHES):
        if waits:
            gate.ask()
        now[0] += 100  # the batch before was let go so long after it was taken
        gate.begun()
        now[0] += 900
        gate.made(0.0)
        if not waits:
            gate.ask()
    assert ring.crowded() is not waits
    assert len(held) == 2


@pytest.mark.parametrize(
    ("share", "asked", "more"),
    [(0.02, 0, False), (0.2, 0, True), (0.2, 990, False)],  # the last waits for 10 of 1000 ns
)
def test_idle_threads_lose_what_the_loop_waits_for(monkeypatch, share, asked, more):
    now = [0]
    monkeypatch.setattr(backpressure.time, "perf_counter_ns", lambda: now[0])
    ring = SlabRing(keep=3, few=2)
    gate = backpressure.Gate([ring], print)
    held = [lease(ring), lease(ring)]
    for _ in range(2 * backpressure._BATCHES):
        gate.begun()
        now[0] += asked
        gate.ask()
        now[0] += 1000 - asked
        gate.made(share)
    assert ring.crowded() is not more
    assert len(held) == 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from fastload._tools.synthetic import PHOTO, make_images

    folder = tmp_path_factory.mktemp("gate") / "images"
    make_images(folder, 24, kind=PHOTO)
    return ImageFolder(folder, tv.Compose([tv.Resize((300, 300)), tv.ToTensor()]))


def test_a_loop_takes_two_large_slabs(folder, monkeypatch):
    monkeypatch.setattr(backpressure, "_LOSS", 2.0)  # however busy the machine is
    loader = FastLoader(folder, batch_size=8, num_workers=2, prefetch_factor=4, seed=0)
    for _ in range(4):
        for images, _ in loader:
            assert images.nbytes >= LARGE_NBYTES
            time.sleep(0.005)
    assert loader._resources.engine[1]._ring.allocations == 2


@pytest.mark.native
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_what_is_begun_early_is_the_same(folder, monkeypatch, on_error, memory_format):
    monkeypatch.setattr(backpressure, "_LOSS", 2.0)
    begun, go_on = [], early.EarlyTicket.go_on
    monkeypatch.setattr(
        early.EarlyTicket, "go_on", lambda ticket: (begun.append(ticket.begun), go_on(ticket))[1]
    )
    options = {"batch_size": 16, "seed": 0, "on_error": on_error, "memory_format": memory_format}
    dataset = ConcatDataset([folder] * 4)
    loader = FastLoader(dataset, num_workers=2, **options)
    for images, labels in loader:
        time.sleep(0.02)  # the next one is finished, and one more is begun
        made = labels.clone(), images.clone()
    assert begun.count(1) >= 3
    *_, expected = FastLoader(dataset, num_workers=0, **options)
    assert torch.equal(made[1], expected[0])
    assert torch.equal(made[0], expected[1])


def test_leaving_with_a_batch_begun_early_ends_it(folder):
    loader = FastLoader(ConcatDataset([folder] * 8), batch_size=16, num_workers=2, seed=0)
    iterator = iter(loader)
    held = next(iterator)
    while iterator._pipeline._early is None:
        time.sleep(0.001)
    iterator.close()
    assert held[0].shape[0] == 16
    assert not iterator._pipeline._filling


def test_batches_that_are_kept_are_right_and_never_waited_for(folder):
    loader = FastLoader(folder, batch_size=8, num_workers=2, seed=0)
    kept = [images for images, _ in loader]
    for images, (again, _) in zip(kept, FastLoader(folder, batch_size=8, num_workers=0, seed=0)):
        assert torch.equal(images, again)


def test_iterators_side_by_side_go_on(folder):
    loader = FastLoader(folder, batch_size=8, num_workers=2, seed=0)
    expected = [labels.tolist() for _, labels in loader]
    assert [
        (a.tolist(), b.tolist()) for (_, a), (_, b) in zip(loader, loader, strict=True)
    ] == list(zip(expected, expected))


def test_an_iterator_that_ends_takes_nothing_from_one_that_goes_on(folder):
    loader = FastLoader(folder, batch_size=8, num_workers=2, seed=0)
    iterator, other = iter(loader), iter(loader)
    next(iterator), next(other)
    ring = loader._resources.engine[1]._ring
    assert len(ring._told) == 2
    other.close()
    assert ring._told == [iterator._pipeline._tasks.put]
    assert len(list(iterator)) == 2
    assert ring._told == []


def test_a_batch_that_another_thread_lets_go_of_lets_the_next_begin(folder):
    loader = FastLoader(folder, batch_size=8, num_workers=2, seed=0)
    taken: queue.Queue[object] = queue.Queue()

    def consume():
        while taken.get() is not None:
            time.sleep(0.002)

    thread = threading.Thread(target=consume)
    thread.start()
    for _ in range(3):
        for batch in loader:
            taken.put(batch)
    taken.put(None)
    thread.join(30)
    assert not thread.is_alive()
