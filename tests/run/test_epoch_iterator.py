"""One epoch: labels stay with their images, errors come in their place, every ending is clean."""

from __future__ import annotations

import concurrent.futures
import copy
import gc
import os
import pickle
import threading
import time

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader
from torchvision.datasets import ImageFolder

import leaks
import warm
from batches import EVAL, TRAIN
from fastload import FastLoader, PackedDataset, UsageError, _native
from fastload._run.epoch_iterator import EpochIterator
from sides import assert_same

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def no_garbage_collection():
    """What has to end without the collector's help."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


# --- labels stay with their images ---------------------------------------------------------------


def fingerprints(store):
    """Label by image, of images that are all different."""
    dataset = PackedDataset(store, EVAL)
    return {dataset[i][0].numpy().tobytes(): dataset[i][1] for i in range(len(dataset))}


def test_one_iterator_shared_by_threads_mixes_up_nothing_and_ends(store):
    label_of = fingerprints(store)
    iterator = iter(FastLoader(store, batch_size=1, transform=EVAL, sampler=iter(range(24))))
    got, lock = [], threading.Lock()

    def pull():
        while True:
            with lock:  # the sampler is no more than a Python iterator
                iterator._order_one()
            outcome = iterator._pipeline.next()
            if outcome is None:
                iterator.close()
                return
            got.append(iterator._assemble(outcome.batch))

    threads = [threading.Thread(target=pull) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert len(got) == 24
    assert all(label_of[image.numpy().tobytes()] == label for image, label in got)


@pytest.mark.parametrize("threads", [0, 2])
def test_an_interrupt_in_next_mixes_up_nothing(store, threads, monkeypatch):
    label_of = fingerprints(store)
    loader = FastLoader(store, batch_size=1, transform=EVAL, num_workers=threads)
    iterator = iter(loader)
    got = [next(iterator)]
    take = iterator._pipeline.next

    def interrupted():
        take()
        raise KeyboardInterrupt

    monkeypatch.setattr(iterator._pipeline, "next", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    monkeypatch.undo()
    got += iterator
    assert len(got) == 23  # the one that was interrupted is gone
    assert all(label_of[image.numpy().tobytes()] == label for image, label in got)


def test_an_iterator_can_be_used_in_another_thread(store):
    iterator, batches = iter(FastLoader(store, batch_size=4, transform=EVAL)), []
    thread = threading.Thread(target=lambda: batches.extend(iterator))
    thread.start()
    thread.join()
    assert_same(batches, list(FastLoader(store, batch_size=4, transform=EVAL)))


def test_two_loaders_over_one_dataset_do_not_disturb_each_other(store):
    dataset = PackedDataset(store, EVAL)
    one, other = FastLoader(dataset, batch_size=4), FastLoader(dataset, batch_size=3)
    expected = list(one), list(other)
    first, second = iter(one), iter(other)
    got: tuple[list, list] = ([], [])
    for _ in range(len(other)):
        got[0].extend([next(first, None)])
        got[1].append(next(second))
    assert_same([batch for batch in got[0] if batch is not None], expected[0])
    assert_same(got[1], expected[1])


# --- repeated samples ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 3])
def test_a_repeated_sample_is_augmented_anew_alike_for_any_threads(store, seed):
    def images(**arguments):
        torch.manual_seed(1)
        batches = [[5, 5], [5, 1], [5]]
        loader = FastLoader(store, transform=TRAIN, batch_sampler=batches, seed=seed, **arguments)
        return torch.cat([images for images, _ in loader])

    reference = images(num_workers=0)
    fives = [image.numpy().tobytes() for image in reference[[0, 1, 2, 4]]]
    assert len(set(fives)) == 4
    for arguments in ({"num_workers": 2}, {"num_workers": 4}):
        assert torch.equal(images(**arguments), reference)


# --- errors --------------------------------------------------------------------------------------


def fail(*_):
    raise ZeroDivisionError


def interrupt(*_):
    raise KeyboardInterrupt


class FailingSampler:
    def __iter__(self):
        yield from range(5)
        fail()


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"collate_fn": fail}, ZeroDivisionError),
        ({"target_transform": fail}, ZeroDivisionError),
        ({"collate_fn": interrupt}, KeyboardInterrupt),
        ({"sampler": [0, 1, 99, *range(20)]}, IndexError),
        ({"sampler": FailingSampler()}, ZeroDivisionError),
    ],
    ids=["collate_fn", "target_transform", "Ctrl-C in collate_fn", "index", "sampler"],
)
def test_an_error_leaves_no_thread(store, threads, arguments, error):
    before = threading.active_count()
    with pytest.raises(error) as caught:
        list(FastLoader(store, batch_size=2, transform=EVAL, num_workers=threads, **arguments))
    del caught
    assert leaks.threads_end(before)


@pytest.mark.parametrize("threads", [0, 2])
def test_after_an_error_of_the_users_code_the_next_batches_can_be_had(store, threads):
    def picky(samples):
        if samples[0][1] == 1:
            raise ZeroDivisionError
        return samples[0][1]

    iterator = iter(
        FastLoader(store, batch_size=8, transform=EVAL, num_workers=threads, collate_fn=picky)
    )
    assert next(iterator) == 0
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    assert list(iterator) == [2]


@pytest.mark.parametrize("threads", [0, 2])
def test_what_the_sampler_raises_comes_after_the_batches_before_it(store, threads):
    loader = FastLoader(
        store, batch_size=2, transform=EVAL, num_workers=threads, sampler=FailingSampler()
    )
    iterator = iter(loader)
    assert [len(next(iterator)[0]) for _ in range(2)] == [2, 2]
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    assert next(iterator, None) is None


def test_a_batch_more_is_ordered_only_after_one_is_taken(store):
    """Or the loop would need one slab more than there are batches ahead and in the consumer."""
    drawn, ahead = [], []

    def order():
        for first in range(0, 24, 2):
            drawn.append(first)
            yield [first, first + 1]

    def collated(samples):
        ahead.append(len(drawn) - len(ahead))
        return len(samples)

    loader = FastLoader(
        store, batch_sampler=order(), transform=EVAL, num_workers=1, collate_fn=collated
    )
    assert list(loader) == [2] * 12
    assert ahead[:10] == [2] * 10
    assert (
        len(loader.inspect().engine.rings[0]._slabs) <= 4
    )  # three, and one more on a very busy machine


# --- endings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, 2])
def test_an_iterator_that_ended_or_was_closed_stays_at_its_end(store, threads):
    loader = FastLoader(store, batch_size=4, transform=EVAL, num_workers=threads)
    ended, closed = iter(loader), iter(loader)
    list(ended)
    next(closed)
    closed.close()
    for iterator in (ended, closed):
        assert next(iterator, None) is None
        assert next(iterator, None) is None


@pytest.mark.native
def test_leaving_cancels_the_batch_that_is_being_made(photos):
    """Two batches of 4,800 images, ten seconds of work or more, are under way."""
    dataset = ConcatDataset([ImageFolder(photos, TRAIN)] * 400)
    loader = FastLoader(dataset, batch_size=4800, num_workers=2)
    iterator = iter(loader)
    while not iterator._pipeline._filling:
        time.sleep(0.001)
    ticket = iterator._pipeline._filling[0].ticket
    iterator.close()
    assert (ticket._status == _native.PENDING).any()
    with pytest.raises(concurrent.futures.CancelledError):
        ticket.result()


def test_letting_go_inside_of_what_the_producer_waits_for_does_not_hang(store):
    """The collector may end an iterator in any function, also in one that holds the ring's lock."""
    loader = FastLoader(store, batch_size=2, transform=EVAL, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    with loader.inspect().engine.rings[0]._lock:
        iterator._pipeline.tasks.put(iterator._order.known[3])
        del iterator


def test_a_loader_may_go_before_its_iterator(store):
    loader = FastLoader(store, batch_size=4, transform=EVAL)
    iterator = iter(loader)
    next(iterator)
    del loader
    gc.collect()
    assert len(list(iterator)) == 5


def test_a_wait_beyond_the_timeout_is_an_error_as_in_torch(store, monkeypatch):
    release = threading.Event()
    from fastload._engine import native

    result = native.NativeTicket.result

    def slow(self):
        release.wait(30)
        return result(self)

    monkeypatch.setattr(native.NativeTicket, "result", slow)
    loader = FastLoader(store, batch_size=24, transform=EVAL, num_workers=1, timeout=0.05)
    iterator = iter(loader)
    with pytest.raises(RuntimeError, match="DataLoader timed out"):
        next(iterator)
    release.set()


def test_in_a_forked_child_an_iterator_of_the_parent_says_so(store):
    iterator = iter(FastLoader(store, batch_size=4, transform=EVAL, num_workers=2))
    next(iterator)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            next(iterator)
        except UsageError:
            iterator.close()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(list(iterator)) == 5


# --- length --------------------------------------------------------------------------------------


class Endless:
    """A batch sampler without a length."""

    def __iter__(self):
        return iter([[0, 1], [2]])


def test_a_batch_sampler_needs_no_length(store):
    loader = FastLoader(store, transform=EVAL, batch_sampler=Endless())
    reference = DataLoader(PackedDataset(store, EVAL), batch_sampler=Endless())
    assert_same(list(loader), list(reference))
    with pytest.raises(TypeError):
        len(iter(loader))
    iterator = iter(FastLoader(store, batch_size=5, transform=EVAL))
    assert len(iterator) == 5


@pytest.fixture(scope="module")
def forked_off():
    """What programs are forked off stays, so it begins before what is left behind is counted."""
    warm.run(["-c", "pass"])


def test_producers_end_before_libraries_that_were_loaded_meanwhile(store, forked_off):
    """DALI ends its pipelines at exit, and is loaded by a decoder when the first loader runs."""
    script = (
        "import atexit, sys\n"
        "from fastload import FastLoader\nfrom fastload._run import engine_maker\n"
        "loader = FastLoader(sys.argv[1], 1, num_workers=1)\n"
        "atexit.register(lambda: print(len(engine_maker._running)))\n"
        "iterator = iter(loader); next(iterator)\n"
        "assert len(engine_maker._running) == 1\n"
    )
    done = warm.run(["-c", script, store])
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr


# --- it answers as torch's iterator does ---------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
def test_what_it_lacks_itself_torchs_iterator_answers(workers):
    iterator = iter(FastLoader(range(8), 2, num_workers=workers))
    assert (len(iterator), iterator._num_workers) == (4, workers)
    with pytest.raises(AttributeError, match="absent"):
        iterator.absent  # noqa: B018
    for copied in (copy.copy, pickle.dumps):
        with pytest.raises(NotImplementedError, match="cannot be pickled"):
            copied(iterator)


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_workers_that_persist_can_be_ended_also_where_an_engine_needs_none(store, engine):
    """Composer, mosaicml-streaming and others end them by torch's private method."""
    arguments = {"transform": EVAL, "num_workers": 1, "persistent_workers": True}
    loader = FastLoader(store, 6, engine=engine, **arguments)
    expected = [labels.tolist() for _, labels in loader]
    loader._iterator._shutdown_workers()
    assert not any(worker.is_alive() for worker in loader._iterator._workers)
    loader._iterator = None
    assert [labels.tolist() for _, labels in loader] == expected


def test_before_it_has_begun_an_attribute_is_missing():
    with pytest.raises(AttributeError):
        EpochIterator.__new__(EpochIterator)._num_workers  # noqa: B018
