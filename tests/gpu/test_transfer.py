"""The transfer stage on a CUDA device: exact, beside the caller's work, with flat memory."""

from __future__ import annotations

import gc

import pytest
import torch
from torch.utils.data import TensorDataset
from torchvision import transforms as v1
from torchvision.transforms import v2

from batches import EVAL, TRAIN
from fastload import FastLoader

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")
LENGTH = 40_000
ERASED = v1.Compose([*TRAIN.transforms, v1.RandomErasing(0.8, value="random")])


def rows(count=512, length=None):
    """Batches of 64 rows take 10 MB: row i is i everywhere."""
    return TensorDataset(
        torch.arange(count, dtype=torch.float32)[:, None].repeat(1, length or LENGTH)
    )


def busy(steps=20):
    """Work for some milliseconds, put into the current stream."""
    a = torch.ones(2048, 2048, device=CUDA)
    for _ in range(steps):
        a = a @ a * 1e-4
    return a


@pytest.mark.parametrize("transform", [EVAL, TRAIN, ERASED])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_batches_of_an_engine_are_those_of_the_cpu(store, transform, dtype, memory_format):
    def batches(**more):
        return list(
            FastLoader(
                store,
                5,
                shuffle=True,
                seed=3,
                transform=transform,
                dtype=dtype,
                memory_format=memory_format,
                **more,
            )
        )

    for (got, labels), (images, known) in zip(batches(device="cuda"), batches(), strict=True):
        assert got.device.type == labels.device.type == "cuda"
        assert got.stride() == images.stride()
        assert torch.equal(got.cpu(), images)
        assert torch.equal(labels.cpu(), known)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("own_stream", [False, True])
def test_batches_are_whole_and_memory_let_go_of_is_not_written_to_early(workers, own_stream):
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    loader = FastLoader(rows(), 64, num_workers=workers, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device=CUDA)
    with torch.cuda.stream(stream):
        stream.wait_stream(torch.cuda.default_stream())
        for _ in range(3):
            for number, (batch,) in enumerate(loader):
                busy()
                expected = torch.arange(64, device=CUDA) + 64 * number
                wrong += (batch != expected[:, None]).sum()
                del batch
    torch.cuda.synchronize()
    assert wrong.item() == 0


def test_memory_that_is_used_again_behind_a_long_kernel_200_times_is_never_corrupted(store):
    loader = FastLoader(store, 8, transform=TRAIN, seed=1, shuffle=True, device="cuda")
    reference = [
        [
            images.double().sum().item()
            for images, _ in FastLoader(store, 8, transform=TRAIN, seed=1, shuffle=True)
        ]
    ]
    for round_ in range(200):
        loader.set_epoch(0)
        sums = []
        for images, _ in loader:
            torch.cuda._sleep(2_000_000)  # about a millisecond, before the batch is read
            sums.append(images.double().sum())
            del images
        got = [value.item() for value in sums]
        assert got == pytest.approx(reference[0], rel=1e-9), round_


def test_memory_is_flat_over_a_thousand_batches():
    loader = FastLoader(rows(640, 20_000), 64, shuffle=True, device="cuda")
    figures, pinned = set(), set()
    for epoch in range(102):
        for (batch,) in loader:
            if not epoch:
                torch.cuda._sleep(20_000_000)  # the loader gets as far ahead as it ever may
            batch.sum()
        del batch
        gc.collect()
        torch.cuda.synchronize()
        if epoch >= 2:
            figures.add(torch.cuda.memory_stats()["reserved_bytes.all.current"])
            pinned.add(loader.inspect().mover.accelerator.memory()["pinned_MB"])
    # Two of the allocator's segments: how far the host is ahead differs.
    assert max(figures) - min(figures) <= 2 * (20 << 20)
    assert max(pinned) <= 7 * 5.2  # the slabs that the ring may keep, 64 x 20,000 x 4 bytes each


def test_leaving_early_leaves_no_copy_and_a_second_loader_works():
    for _ in range(2):
        iterator = iter(FastLoader(rows(), 64, device="cuda"))
        next(iterator)
        iterator.close()
        assert len(iterator._epoch.maker._in_flight) == 0
    assert len(list(FastLoader(rows(), 64, device="cuda"))) == 8


def test_a_captured_graph_is_fed_from_the_loader():
    static, total = torch.zeros(64, LENGTH, device=CUDA), torch.zeros((), device=CUDA)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        (static * 2).sum()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total.copy_((static[:, 0] * 2).sum())
    seen = []
    for (batch,) in FastLoader(rows(), 64, device="cuda"):
        static.copy_(batch)
        graph.replay()
        seen.append(total.clone())
    expected = [2.0 * sum(range(64 * i, 64 * i + 64)) for i in range(8)]
    assert [value.item() for value in seen] == expected


def test_copies_run_beside_the_callers_work():
    iterator = iter(FastLoader(rows(), 64, device="cuda"))
    next(iterator)
    torch.cuda._sleep(1_000_000_000)  # half a second: a copy takes a thousandth of that
    stepped = torch.cuda.Event()
    stepped.record()
    copied = [mark for mark, _, _ in iterator._epoch.maker._in_flight._transfers]
    assert copied
    while not stepped.query() and not all(mark.done() for mark in copied):
        pass
    assert not stepped.query()


def test_mixup_draws_on_the_device_what_seed_and_batch_say(store):
    def batches():
        torch.cuda.manual_seed(torch.seed() % 1000)
        loader = FastLoader(
            store,
            6,
            transform=EVAL,
            seed=2,
            device="cuda",
            batch_transform=lambda batch: [v2.MixUp(num_classes=3)(batch), torch.rand(2).cuda()],
        )
        return [(images.cpu(), labels.cpu(), x.cpu()) for (images, labels), x in loader]

    for one, other in zip(batches(), batches(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
