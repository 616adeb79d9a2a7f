"""Queues that show what has arrived: each message once, and all of them in order."""

from __future__ import annotations

import multiprocessing
import queue
import threading

import pytest

from fastload._run.workers.queues import with_arrivals


def received(which, count):
    return [which.get(timeout=30) for _ in range(count)]


def shown(messages, count):
    """The next ``count`` messages that arrive, without taking them."""
    found = []
    for _ in range(3000):
        found += messages.arrived()
        if len(found) >= count:
            return found
        threading.Event().wait(0.01)
    raise AssertionError(f"expected {count} messages, found {found}")


def test_what_has_arrived_is_shown_once_and_still_comes_in_order():
    messages = with_arrivals(None).Queue()
    assert messages.arrived() == []
    for i in range(5):
        messages.put(i)
    assert received(messages, 1) == [0]
    assert shown(messages, 5) == [0, 1, 2, 3, 4]
    messages.put(5)
    assert not messages.empty()
    assert received(messages, 2) == [1, 2]
    assert shown(messages, 1) == [5]
    assert received(messages, 3) == [3, 4, 5]
    assert messages.empty()
    assert messages.arrived() == []


def test_nothing_to_get_is_empty():
    messages = with_arrivals(None).Queue()
    with pytest.raises(queue.Empty):
        messages.get(timeout=0.01)
    with pytest.raises(queue.Empty):
        messages.get(block=False)


def send(messages, name, sizes):
    for i, size in enumerate(sizes):
        messages.put((name, i, b"." * size))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_messages_of_several_processes_are_whole_and_in_order(method):
    context = with_arrivals(method)
    assert context.get_start_method() == method
    messages = context.Queue()
    sizes = [10, 6000, 10, 100_000, 10, 3000] * 20
    senders = [
        context.Process(target=send, args=(messages, name, sizes), daemon=True) for name in "ab"
    ]
    for one in senders:
        one.start()
    numbers = {"a": [], "b": []}
    for name, i, data in received(messages, 2 * len(sizes)):
        assert len(data) == sizes[i]
        numbers[name].append(i)
    for one in senders:
        one.join()
    assert numbers == {name: list(range(len(sizes))) for name in "ab"}


def test_another_context_is_left_as_it_is():
    given = multiprocessing.get_context("spawn")
    assert with_arrivals(given).get_start_method() == "spawn"
    assert type(given.Queue()) is multiprocessing.queues.Queue
