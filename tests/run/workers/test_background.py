"""prefetch_thread=True: the same batches, made ahead by a thread that always ends."""

from __future__ import annotations

import gc
import sys
import threading
import time

import pytest
import torch
from torch.utils.data import IterableDataset, Sampler, TensorDataset

import leaks
import warm
from fastload import FastLoader
from fastload._run.workers import background
from sides import assert_same


class Own(TensorDataset):
    """A dataset of the user's, which runs through torch's machinery."""


DATA = Own(torch.arange(40).view(20, 2), torch.arange(20))


def loader(dataset=DATA, **arguments):
    return FastLoader(dataset, 3, prefetch_thread=True, **arguments)


def test_batches_order_and_state_are_those_without_it():
    for arguments in ({}, {"shuffle": True, "seed": 3}, {"sampler": [5, 2, 2, 9]}):
        ours, plain = loader(**arguments), FastLoader(DATA, 3, **arguments)
        for _ in range(2):
            assert_same(list(ours), list(plain))
        iterator = iter(ours)
        next(iterator)
        other = FastLoader(DATA, 3, **arguments)
        other.load_state_dict(ours.state_dict())
        assert_same(list(iterator), list(other))
    assert "a thread of this process" in loader().explain()


def test_the_samples_are_made_ahead_on_another_thread():
    seen, ahead = [], threading.Event()

    class Watching(TensorDataset):
        def __getitem__(self, i):
            seen.append(threading.current_thread())
            if len(seen) == 9:
                ahead.set()
            return super().__getitem__(i)

    iterator = iter(loader(Watching(torch.arange(20))))
    next(iterator)
    assert ahead.wait(30)
    assert threading.main_thread() not in seen
    # The queue is bounded: one batch was taken, two are ahead, and the thread has nothing to do.
    time.sleep(0.2)
    assert len(seen) == 9
    del iterator


def test_threads_of_several_iterations_take_turns_in_the_dataset():
    class Busy(TensorDataset):
        inside = most = 0

        def __getitem__(self, i):
            self.inside += 1
            self.most = max(self.most, self.inside)
            time.sleep(0.005)
            self.inside -= 1
            return super().__getitem__(i)

    dataset = Busy(torch.arange(20))
    ours = loader(dataset, seed=1)
    for _ in range(3):  # left early: its thread makes one more batch
        for _batch in ours:
            break
    kept = iter(ours)
    next(kept)
    late = iter(ours)
    ours.set_epoch(7)
    assert len(list(late)) == 7
    assert len(list(kept)) == 6
    assert dataset.most == 1


def test_an_error_is_raised_at_its_batch_and_the_rest_comes():
    iterator = iter(loader([0, 1, 2, 3, "text", 5, 6, 7, 8]))
    assert next(iterator).tolist() == [0, 1, 2]
    with pytest.raises(TypeError):
        next(iterator)
    assert next(iterator).tolist() == [6, 7, 8]
    assert next(iterator, None) is None
    assert next(iterator, None) is None


def test_a_sampler_that_raises_while_it_is_asked_ahead_takes_no_batch_from_the_state():
    def once():
        yield from (0, 1, 2, 3, 4, 5, 6, 7, 8)
        raise ValueError("on purpose")

    class Order(Sampler):
        broken = True

        def __iter__(self):
            return once() if self.broken else iter(range(12))

    order, dataset = Order(), Own(torch.arange(12))
    ours = loader(dataset, sampler=order)
    iterator = iter(ours)
    got = [next(iterator)[0].tolist()]
    with pytest.raises(ValueError, match="on purpose"):
        next(iterator)
    state = ours.state_dict()
    assert state["batches"] == 1
    order.broken = False
    again = loader(dataset, sampler=order)
    again.load_state_dict(state)
    got += [batch[0].tolist() for batch in again]
    assert [i for batch in got for i in batch] == list(range(12))


def test_an_iterable_dataset():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(7))

    ours = loader(Stream())
    for _ in range(2):
        assert [batch.tolist() for batch in ours] == [[0, 1, 2], [3, 4, 5], [6]]


def test_a_dataset_that_exits_the_program_does_so_at_its_batch():
    class Exits(list):
        def __getitem__(self, i):
            if i == 4:
                sys.exit("on purpose")
            return super().__getitem__(i)

    iterator = iter(loader(Exits(range(9))))
    assert next(iterator).tolist() == [0, 1, 2]
    with pytest.raises(SystemExit, match="on purpose"):
        next(iterator)
    assert next(iterator).tolist() == [6, 7, 8]


def test_where_the_system_grants_no_thread_nothing_is_left(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    before = set(background._running)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        iter(loader())
    assert background._running == before  # what is there is closed at exit


def test_a_dropped_iterator_makes_no_further_batch():
    seen, threads = [], []
    inside, go_on = threading.Event(), threading.Event()

    class Waiting(TensorDataset):
        def __getitem__(self, i):
            seen.append(i)
            threads.append(threading.current_thread())
            if i == 3:
                inside.set()
                go_on.wait(30)
            return super().__getitem__(i)

    iterator = iter(loader(Waiting(torch.arange(20))))
    next(iterator)
    assert inside.wait(30)
    del iterator
    go_on.set()
    threads[0].join(30)
    assert seen == [0, 1, 2, 3, 4, 5]


@pytest.mark.usefixtures("no_leaks")
def test_leaving_early_leaves_no_thread(count):
    before = threading.active_count()
    ours = loader()
    for _ in range(count(20, 100)):
        for _batch in ours:
            break
    gc.collect()
    assert leaks.threads_end(before)


def test_the_interpreter_ends_with_an_iterator_half_way():
    code = (
        "from fastload import FastLoader\n"
        "iterator = iter(FastLoader(range(1000), 4, prefetch_thread=True)); next(iterator)\n"
        "print('end')"
    )
    done = warm.run(["-c", code])
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
