"""The transfer stage on a device that is late: nothing is seen early, nothing reused early."""

from __future__ import annotations

import collections
import dataclasses
import gc
import os
from typing import Any, NamedTuple

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from deliveries import LARGE, Pageable, Plain, Slabs, delivery, in_order
from fake_device import FakeDevice
from fastload import UsageError
from fastload._base.devices.mover import Mover
from fastload._run.delivery import transfer


def train(device, iterator, seen, lag=0):
    """Read each batch in the caller's stream, and let go of it at once."""
    for batch in iterator:
        data = device.raw(batch).view(np.int32)
        device.launch(lambda data=data: seen.append((int(data.min()), int(data.max()))))
        device.run(device.random.randrange(lag + 1))
    del batch


def lazy(device):
    """The device runs when it is waited for, and no more than it has to."""
    device.random.randrange = lambda *arguments: 0
    device.random.shuffle = lambda streams: None
    return device


# --- success --------------------------------------------------------------------------------------


@hypothesis.given(
    seed=st.integers(0, 2**32),
    ahead=st.integers(0, 4),
    lag=st.sampled_from([0, 1, 3, 9]),
    kind=st.sampled_from([Slabs, Pageable]),
    length=st.sampled_from([LARGE, 3 * LARGE, 7]),
)
@hypothesis.example(seed=51, ahead=3, lag=9, kind=Slabs, length=LARGE)  # late, then all at once
def test_every_schedule_gives_whole_batches_in_order(seed, ahead, lag, kind, length):
    device, seen = FakeDevice(seed), []
    iterator, _ = delivery(kind(40, length), device, ahead)
    train(device, iterator, seen, lag)
    device.synchronize()
    assert seen == in_order(40)
    # the batch that the loop still names, those ahead, and the one that is on its way
    assert device.allocator.allocations <= ahead + 3
    assert device.host.allocations <= ahead + 2
    inner = iterator.inner
    assert inner.most <= ahead + 3
    # What is pinned is never freed: the engine's ring keeps as many as can be in use. Other memory
    # is given back while it is not needed, and allocated again.
    assert inner.ring.allocations <= ahead + 3 or not inner.ring.steady


@pytest.mark.parametrize("kind", [Slabs, Pageable])
def test_nothing_is_allocated_and_nothing_pinned_in_the_steady_state(kind):
    device = FakeDevice(5)
    iterator, _ = delivery(kind(1020), device)
    figures = set()
    for i, batch in enumerate(iterator):
        data = device.raw(batch)
        device.launch(lambda data=data: data.min())
        if i >= 20:
            figures.add(
                (
                    device.allocator.allocations,
                    device.host.allocations,
                    iterator.inner.ring.allocations,
                    len(device.pins),
                )
            )
    assert len(figures) == 1


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_the_host_runs_at_most_so_far_ahead_of_the_device(ahead):
    device, done, lead = lazy(FakeDevice()), [], 0
    iterator, _ = delivery(Slabs(30), device, ahead)
    for i, _ in enumerate(iterator, 1):
        device.launch(lambda: done.append(1))
        if i <= 30 - ahead:  # behind the last copy there is nothing to wait for
            lead = max(lead, i - len(done))
    assert lead == ahead + 3


def test_a_batch_that_is_there_is_not_held_back_for_one_that_is_not():
    device = FakeDevice()
    inner = Slabs(10)
    iterator, _ = delivery(inner, device)
    next(iterator)
    assert inner.made == 3
    inner.ready = lambda: False
    next(iterator)
    next(iterator)
    assert inner.made == 3
    next(iterator)
    assert inner.made == 4


def test_batches_in_a_slab_are_copied_out_of_it_and_others_out_of_ours():
    device = FakeDevice()
    iterator, _ = delivery(Slabs(3), device)
    list(iterator)
    assert device.host.allocations == 0
    assert set(device.pins) <= {slab.address for slab in iterator.inner.ring._slabs}
    device = FakeDevice()
    iterator, _ = delivery(Pageable(3), device)
    list(iterator)
    assert device.host.allocations > 0
    device = FakeDevice()
    iterator, _ = delivery(Pageable(3, length=7), device)
    list(iterator)
    assert (device.host.allocations, device.pins) == (0, {})


def test_memory_that_cannot_be_pinned_is_copied_all_the_same(monkeypatch):
    device, seen = FakeDevice(), []
    monkeypatch.setattr(device, "pin", lambda memory: False)
    iterator, _ = delivery(Pageable(9), device)
    train(device, iterator, seen)
    device.synchronize()
    assert seen == in_order(9)


# --- the harness would notice ---------------------------------------------------------------------


@pytest.mark.parametrize("omitted", ["follow", "hand_over", "flights"])
def test_without_its_events_batches_would_be_wrong(omitted, monkeypatch):
    if omitted == "flights":
        monkeypatch.setattr(transfer._InFlight, "add", lambda *arguments: None)
    else:
        monkeypatch.setattr(FakeDevice, omitted, lambda self, *arguments: None)
    wrong = 0
    for seed in range(20):
        device, seen = FakeDevice(seed), []
        iterator, _ = delivery(Slabs(30), device)
        train(device, iterator, seen, lag=2)
        device.synchronize()
        wrong += seen != in_order(30)
    assert wrong > 0


def test_a_copy_is_timed_by_the_device_without_the_hosts_staging_and_only_now_and_then():
    device, order = FakeDevice(late=False), []
    iterator, mover = delivery(Pageable(3), device)
    stage, copied, mark = mover.stage, mover.copied, device.mark
    mover.stage = lambda *given: (stage(*given), order.append("staged"))[0]
    mover.copied = lambda *given: (copied(*given), order.append("copied"))[0]
    device.mark = lambda **given: (mark(**given), order.append("mark"))[0]
    list(iterator)
    assert order == ["staged", "mark", "copied", "mark", "mark"] + ["staged", "copied", "mark"] * 2
    stages = iterator.stamps.snapshot().stages_s
    assert {"staging", "move", "copy", "device"} <= set(stages)


# --- failure, cancel, early exit, fork ------------------------------------------------------------


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_error_comes_in_the_place_of_its_batch_and_the_next_ones_can_be_had(ahead):
    device, seen = FakeDevice(3), []
    iterator, _ = delivery(Slabs(9, fails=(4, 5)), device, ahead)
    for expected in range(1, 10):
        if expected in (4, 5):
            with pytest.raises(ValueError, match=str(expected)):
                next(iterator)
        else:
            data = device.raw(next(iterator)).view(np.int32)
            device.launch(lambda data=data: seen.append(int(data.min())))
        assert iterator.progress.batches == expected
    assert next(iterator, None) is None
    device.synchronize()
    assert seen == [1, 2, 3, 6, 7, 8, 9]


def test_an_error_of_a_transform_comes_in_the_place_of_its_batch():
    class Failing(Plain):
        def finish(self, item, moved, number):
            if number == 1:
                raise RuntimeError("no")
            return moved

    device = FakeDevice(3)
    inner = Slabs(4)
    iterator, _ = delivery(inner, device, finisher=Failing())
    next(iterator)
    with pytest.raises(RuntimeError, match="no"):
        next(iterator)
    assert len(list(iterator)) == 2
    iterator.stage.close()
    assert len(iterator.stage._in_flight) == 0


def test_ctrl_c_while_a_batch_is_moved_loses_that_batch_and_no_other():
    device, seen = FakeDevice(4), []
    device.interrupt_at = 5
    iterator, _ = delivery(Slabs(9), device)
    with pytest.raises(KeyboardInterrupt):
        train(device, iterator, seen)
    train(device, iterator, seen)
    device.synchronize()
    assert seen == [pair for pair in in_order(9) if pair != (5, 5)]


@pytest.mark.parametrize("how", ["close", "drop"])
@pytest.mark.parametrize("taken", [0, 1, 4])
def test_leaving_early_waits_for_every_copy(how, taken):
    device = lazy(FakeDevice())
    inner = Slabs(20)
    iterator, _ = delivery(inner, device)
    for _ in range(taken):
        next(iterator)
    flights = iterator.stage._in_flight
    marks = [mark for mark, _, _ in flights._transfers]
    assert len(marks) >= min(taken, 1)
    if how == "close":
        iterator.stage.close()
        assert next(iterator, None) is None
    del iterator, flights
    gc.collect()
    assert all(mark.reached for mark in marks)
    assert inner.ring.in_use() == 0


def test_a_forked_child_is_told_and_lets_go_without_a_word():
    device = FakeDevice()
    iterator, _ = delivery(Slabs(20), device)
    next(iterator)
    child = os.fork()
    if not child:
        code = 1
        try:
            next(iterator)
        except UsageError:
            waits = device.waits
            iterator.stage._in_flight.settle()
            code = int(device.waits != waits)
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- batches of any structure ---------------------------------------------------------------------


class Pair(NamedTuple):
    x: torch.Tensor
    name: str


@dataclasses.dataclass(frozen=True)
class Sample:
    x: torch.Tensor
    more: list[Any]
    derived: int = dataclasses.field(init=False, default=3)


class Movable:
    def __init__(self, where="host"):
        self.where = where

    def to(self, device):
        return Movable(str(device))


class Encoding(collections.UserDict):
    """As a tokenizer's: ``to`` copies its tensors one by one, and waits for each."""

    def to(self, device):
        raise AssertionError("its tensors are copied as any others")


def moved(batch):
    device = FakeDevice(late=False)
    mover = Mover(device, 0)
    result = mover.copied(mover.stage(batch, []))
    device.synchronize()
    return result


def big(i):
    return torch.full((LARGE,), i, dtype=torch.int32)


def test_tensors_arrive_in_whatever_they_come():
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    batch = {
        "list": [big(1), "text", None],
        "tuple": (big(2), 5),
        "named": Pair(big(3), "n"),
        "dataclass": Sample(big(4), [big(5)]),
        "ordered": collections.OrderedDict(b=big(6), a=big(7)),
        "user": Encoding(x=big(8)),
        "default": collections.defaultdict(list, x=big(9)),
        "deque": collections.deque([big(10)], maxlen=3),
        "movable": Movable(),
        "packed": packed,
        "array": np.ones(3),
        "sparse": torch.eye(2).to_sparse(),
    }
    result = moved(batch)
    assert [type(value) for value in result.values()] == [type(value) for value in batch.values()]
    got = [
        result["list"][0],
        result["tuple"][0],
        result["named"].x,
        result["dataclass"].x,
        result["dataclass"].more[0],
        result["ordered"]["b"],
        result["ordered"]["a"],
        result["user"]["x"],
        result["default"]["x"],
        result["deque"][0],
    ]
    for i, tensor in enumerate(got, 1):
        assert torch.equal(tensor, big(i))
    assert got[0].data_ptr() != batch["list"][0].data_ptr()
    assert result["list"][1:] == ["text", None]
    assert result["dataclass"].derived == 3
    assert result["named"].name == "n"
    assert list(result["ordered"]) == ["b", "a"]
    assert result["default"].default_factory is list
    assert result["deque"].maxlen == 3
    assert result["movable"].where == "cpu"
    assert torch.equal(result["packed"].data, packed.data)
    assert result["array"] is batch["array"]
    assert torch.equal(result["sparse"].to_dense(), torch.eye(2))
    assert torch.equal(batch["list"][0], big(1))


@hypothesis.given(
    shape=st.lists(st.integers(0, 5), max_size=4),
    dtype=st.sampled_from([torch.uint8, torch.bool, torch.int64, torch.bfloat16, torch.complex64]),
    expanded=st.booleans(),
)
def test_shapes_dtypes_and_strides_arrive(shape, dtype, expanded):
    tensor = torch.randint(0, 2, shape).to(dtype)
    if len(shape) == 4:
        tensor = tensor.to(memory_format=torch.channels_last)
    if expanded:
        tensor = tensor.expand(2, *shape)
    got, _ = moved([tensor, big(1)])
    assert (got.shape, got.dtype) == (tensor.shape, dtype)
    assert torch.equal(got, tensor)
    assert got.stride() == torch.empty_like(tensor).stride()


def test_tv_tensors_stay_what_they_are():
    from torchvision import tv_tensors

    boxes = tv_tensors.BoundingBoxes(
        torch.ones(4000, 4), format="XYWH", canvas_size=(5, 6), dtype=torch.float64
    )
    (got,) = moved([boxes])
    assert type(got) is tv_tensors.BoundingBoxes
    assert (got.format, got.canvas_size) == (boxes.format, boxes.canvas_size)
    assert torch.equal(got, boxes)
