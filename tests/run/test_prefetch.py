"""Batches ahead of the consumer, and how many slabs they take."""

import queue
import threading
import time

import pytest
from torchvision import transforms as tv
from torchvision.datasets import ImageFolder

from fastload import FastLoader
from fastload._run.setup import default_ahead

PHOTO_NBYTES = 4 * 3 * 224 * 224


@pytest.mark.parametrize(
    ("sample_nbytes", "batch_size", "threads", "expected"),
    [
        (PHOTO_NBYTES, 256, 2, 1),
        (PHOTO_NBYTES, 256, 16, 1),
        (PHOTO_NBYTES, 256, 32, 2),  # threads would be idle for too long between two batches
        (PHOTO_NBYTES, 64, 1, 2),  # 38 MB
        (4 * 3 * 32 * 32, 256, 2, 2),
        (None, 64, 2, 2),  # images of several sizes
        (PHOTO_NBYTES, None, 2, 2),  # a batch sampler decides
    ],
)
def test_one_batch_is_prefetched_where_batches_are_large(
    sample_nbytes, batch_size, threads, expected
):
    assert default_ahead(sample_nbytes, batch_size, threads) == expected


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from bench.synthetic import PHOTO, make_images

    folder = tmp_path_factory.mktemp("prefetch") / "images"
    make_images(folder, 96, kind=PHOTO)
    return ImageFolder(folder, tv.Compose([tv.Resize((150, 150)), tv.ToTensor()]))


def loader_of(folder, **options):
    return FastLoader(folder, batch_size=32, seed=0, **{"num_workers": 2, **options})


@pytest.mark.parametrize(("prefetch", "slabs"), [(None, 2), (2, 2), (3, 4)])
def test_a_loop_takes_a_slab_more_than_are_prefetched(folder, prefetch, slabs, monkeypatch):
    monkeypatch.setattr("fastload._run.setup._LARGE_NBYTES", 8 << 20)
    monkeypatch.setattr("fastload._base.slabs._PATIENCE_S", 30)  # however busy the machine is
    loader = loader_of(folder, prefetch_factor=prefetch)
    for _ in range(4):
        for images, _ in loader:
            assert images.nbytes >= 8 << 20
            time.sleep(0.005)
    assert loader.inspect().engine.rings[0].allocations == slabs


def test_batches_that_are_kept_are_right(folder):
    kept = [images for images, _ in loader_of(folder)]
    for images, (again, _) in zip(kept, loader_of(folder, num_workers=0), strict=True):
        assert images.equal(again)


def test_iterators_side_by_side_go_on(folder):
    loader = loader_of(folder)
    expected = [labels.tolist() for _, labels in loader]
    assert [
        (a.tolist(), b.tolist()) for (_, a), (_, b) in zip(loader, loader, strict=True)
    ] == list(zip(expected, expected))


def test_batches_may_be_let_go_of_in_another_thread(folder):
    loader = loader_of(folder)
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


@pytest.mark.usefixtures("no_leaks")
def test_leaving_cancels_what_is_being_filled(folder):
    iterator = iter(loader_of(folder, prefetch_factor=3))
    next(iterator)
    pipeline = iterator._pipeline
    iterator.close()
    assert not pipeline._results.is_alive()
    with pytest.raises(StopIteration):
        next(iterator)
