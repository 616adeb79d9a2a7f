"""Slabs: reused when free, never while anybody refers to them."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import resource
import signal
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import warm
from fastload._base import slabs
from fastload._base.slabs import SlabRing

SHAPE, STRIDES = (4, 3, 8, 8), (192, 64, 8, 1)


def lease(ring: SlabRing) -> torch.Tensor:
    images, memory = ring.lease(SHAPE, torch.float32, STRIDES)
    memory[:] = 7
    return images


def test_a_dropped_batch_is_reused():
    ring = SlabRing(keep=2)
    first = lease(ring)
    address = first.data_ptr()
    del first
    assert lease(ring).data_ptr() == address
    assert ring.allocations == 1


def test_a_kept_batch_is_never_reused_whatever_refers_to_it():
    keepers = {
        "tensor": lambda t: t,
        "view": lambda t: t[1:2, 0],
        "numpy": lambda t: t.numpy(),
        "numpy view of a view": lambda t: t[0].numpy()[1:],
        "transposed": lambda t: t.permute(0, 2, 3, 1),
        "dlpack": torch.utils.dlpack.to_dlpack,
        "storage": lambda t: t.untyped_storage(),
        "memoryview": lambda t: memoryview(t.numpy()),
    }
    for name, keep in keepers.items():
        ring = SlabRing(keep=4)
        images = lease(ring)
        address = images.data_ptr()
        kept = keep(images)
        del images
        gc.collect()
        assert ring.in_use() == 1, name
        assert lease(ring).data_ptr() != address, name
        del kept
        gc.collect()
        assert ring.in_use() == 0, name


def test_the_ring_grows_while_batches_are_held_and_shrinks_after():
    ring = SlabRing(keep=2)
    held = [lease(ring) for _ in range(10)]
    assert len({images.data_ptr() for images in held}) == 10
    assert ring.allocations == 10
    del held
    gc.collect()
    again = [lease(ring) for _ in range(10)]
    assert ring.allocations == 18  # two of the ten were kept free
    assert len(again) == 10


def test_a_steady_loop_allocates_nothing():
    ring = SlabRing(keep=3)
    previous = None
    for _ in range(100):
        previous = lease(ring)
    assert ring.allocations == 2
    assert previous is not None


def test_batches_of_several_sizes_soon_allocate_nothing():
    ring = SlabRing(4)
    held = [ring.lease((1000,), torch.uint8, (1,))[0]]
    for nbytes in (300, 200, 900, 700, 800, 100, 600):
        held = [*held[-2:], ring.lease((nbytes,), torch.uint8, (1,))[0]]
    assert ring.allocations == 4


LARGE, SMALL = 150_000, 28_000


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("sizes", [[SMALL, LARGE], [LARGE, LARGE, *8 * [SMALL]], 5 * [SMALL]])
def test_batches_of_several_tensors_soon_allocate_nothing_and_keep_no_more(keep, sizes):
    ring = SlabRing(keep)
    held = []
    for number in range(100):
        ring.begin_batch()
        held = [*held[-1:], [ring.lease((nbytes,), torch.uint8, (1,))[0] for nbytes in sizes]]
        if number == 40:
            allocations = ring.allocations
    assert ring.allocations == allocations
    del held
    gc.collect()
    ring.begin_batch()
    ring.lease((1,), torch.uint8, (1,))
    assert sum(slab.memory.nbytes for slab in ring._slabs) <= keep * sum(sizes) * 9 / 8


def test_many_tensors_of_all_sizes_seldom_allocate():
    """As of images for detection, which are not stacked."""
    sizes = np.random.default_rng(1).integers(20_000, 600_000, (200, 16)).tolist()
    ring, held, allocations = SlabRing(2), [], 0
    for number, batch in enumerate(sizes):
        ring.begin_batch()
        held = [ring.lease((nbytes,), torch.uint8, (1,))[0] for nbytes in batch]
        if number == 99:
            allocations = ring.allocations
    assert held and ring.allocations - allocations < 100 * 16 / 20


def test_a_slab_that_another_thread_lets_go_of_is_waited_for(monkeypatch):
    monkeypatch.setattr(slabs, "_PATIENCE_S", 30)
    ring = SlabRing(keep=1, patient=True)
    held = [lease(ring)]
    address = held[0].data_ptr()
    timer = threading.Timer(0.05, held.clear)
    timer.start()
    assert lease(ring).data_ptr() == address
    assert ring.allocations == 1
    timer.join()


def test_patience_ends_where_the_caller_keeps_its_batches(monkeypatch):
    monkeypatch.setattr(slabs, "_PATIENCE_S", 1e-3)
    ring = SlabRing(keep=1, patient=True)
    held = [lease(ring) for _ in range(3)]
    assert len({images.data_ptr() for images in held}) == 3


def test_a_slab_that_is_needed_no_more_is_given_back():
    ring = SlabRing(keep=4)
    held = [lease(ring) for _ in range(4)]
    del held[1:]
    gc.collect()
    for _ in range(80):
        lease(ring)
    assert ring.allocations == 4
    again = [lease(ring) for _ in range(2)]
    assert ring.allocations == 5  # there are two: one that is held, one that was used in turn
    assert len(again) == 2


def test_a_slab_that_is_needed_no_more_stays_in_a_steady_ring():
    ring = SlabRing(keep=4)
    ring.steady = True
    held = [lease(ring) for _ in range(4)]
    del held
    gc.collect()
    for _ in range(80):
        lease(ring)
    again = [lease(ring) for _ in range(4)]
    assert ring.allocations == len(again) == 4


def test_a_smaller_last_batch_uses_the_same_slab_and_its_storage_is_exact():
    ring = SlabRing(keep=1)
    address = lease(ring).data_ptr()
    small, _ = ring.lease((1, 3, 8, 8), torch.float32, STRIDES)
    assert small.data_ptr() == address
    assert small.untyped_storage().nbytes() == 3 * 8 * 8 * 4


def test_the_tensor_is_no_autograd_view_and_can_require_grad():
    images = lease(SlabRing(1))
    assert not images._is_view()
    images.requires_grad_().sum().backward()
    assert torch.equal(images.grad, torch.ones(SHAPE))


def test_channels_last_strides_and_every_dtype():
    for dtype in (torch.uint8, torch.float16, torch.bfloat16, torch.float32):
        images, memory = SlabRing(1).lease(SHAPE, dtype, (192, 1, 24, 3))
        assert images.dtype is dtype
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert memory.nbytes == images.numel() * dtype.itemsize


def test_slabs_are_private_to_a_process():
    ring = SlabRing(1)
    images = lease(ring)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        images.fill_(1)
        os.write(write, b"x")
        os._exit(0)
    os.read(read, 1)
    os.waitpid(child, 0)
    os.close(read), os.close(write)
    assert np.all(images.numpy().view(np.uint8) == 7)


@contextlib.contextmanager
def forked() -> Iterator[None]:
    """A child is there, forked before the block and alive until its end."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    try:
        yield
    finally:
        os.close(read), os.close(write)
        os.waitpid(child, 0)


def large_lease(ring: SlabRing) -> tuple[torch.Tensor, np.ndarray]:
    return ring.lease((4096, 4096), torch.uint8, (4096, 1))


def test_no_page_of_a_free_slab_is_copied_because_of_a_child():
    ring = SlabRing(1)
    large_lease(ring)[1][:] = 7
    with forked():
        memory = large_lease(ring)[1]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        memory[:] = 8
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert ring.allocations == 1 and faults < 4096 / 8


def test_a_slab_that_was_leased_during_a_fork_begins_with_fresh_pages():
    ring = SlabRing(1)
    batch, memory = large_lease(ring)
    memory[:] = 7
    with forked():
        assert (batch == 7).all()
        del batch, memory
        memory = large_lease(ring)[1]
        assert ring.allocations == 1 and not memory.any()
        memory[:] = 8
        del memory
        assert (large_lease(ring)[1] == 8).all()


def test_children_read_the_batches_that_were_kept_whenever_they_are_forked():
    ring = SlabRing(2)
    kept = [lease(ring)]
    lease(ring)  # free during the first fork, kept during the second
    for _ in range(2):
        child = os.fork()
        if not child:
            os._exit(not all((batch.numpy().view(np.uint8) == 7).all() for batch in kept))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        kept.append(lease(ring))
    assert ring.allocations == 3


def test_a_batch_that_is_leased_while_another_thread_forks_is_in_the_child():
    ring = SlabRing(1)
    lease(ring)
    slabs._before_fork()  # the fork itself waits for the hook of somebody else
    batch = lease(ring)
    child = os.fork()
    if not child:
        os._exit(not (batch.numpy().view(np.uint8) == 7).all())
    assert ring.allocations == 1
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTFORK"), reason="a system without MADV_DONTFORK")
def test_a_forked_child_does_not_touch_its_parents_pinned_slabs():
    """Pinned memory is not mapped in a child: to write there would kill it."""
    ring = SlabRing(2)
    lease(ring)
    base = ring._slabs[0].memory.base
    (base.obj if isinstance(base, memoryview) else base).madvise(mmap.MADV_DONTFORK)
    held = ring._lock.acquire()  # as by a thread that the child does not have
    child = os.fork()
    if not child:
        signal.alarm(20)
        code = 1
        try:
            batch = lease(ring)
            code = 0 if (batch.numpy().view(np.uint8) == 7).all() and ring.in_use() == 1 else 2
        finally:
            os._exit(code)
    ring._lock.release()
    assert held and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


_HOOK = """
import mmap, os, sys
import torch
hooked = []
def hook():
    memory = mmap.mmap(-1, 16 << 20)  # may lie where the parent has its slab
    memory.write(b"x" * len(memory))
    hooked.append(memory)
os.register_at_fork(after_in_child=hook)  # earlier than slabs.py
from fastload._base.slabs import SlabRing
ring = SlabRing(2)
ring.steady = True
batch, memory = ring.lease((16 << 20,), torch.uint8, (1,))
ring._slabs[0]._map.madvise(mmap.MADV_DONTFORK)
del batch, memory
child = os.fork()
if not child:
    os._exit(hooked[0][:] != b"x" * len(hooked[0]))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_unmaps_nothing_where_its_parent_has_pinned_slabs():
    done = warm.run(["-c", _HOOK], only_torch=True)
    assert done.returncode == 0, done.stderr


def test_a_batch_outlives_its_ring():
    images = lease(SlabRing(1))
    gc.collect()
    assert np.all(images.numpy().view(np.uint8) == 7)
