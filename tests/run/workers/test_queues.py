"""Queues that write short messages themselves: in order, never waiting, and no message lost."""

from __future__ import annotations

import multiprocessing
import queue
import select
import sys
import threading

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="queues are torch's there")
if sys.platform == "linux":
    from fastload._run.workers.queues import DirectQueue, with_direct_queues

PIPE_NBYTES = 1 << 16


def new_queue():
    """A queue that has sent its first message, which starts its thread."""
    messages = with_direct_queues(None).Queue()
    messages.put("first")
    assert messages.get(timeout=30) == "first"
    wait_for_its_thread(messages)
    return messages


def wait_for_its_thread(messages):
    """Until it has seen that there is nothing left to send."""
    for _ in range(1000):
        if messages._notempty._waiters:
            return
        threading.Event().wait(0.01)
    raise AssertionError("the thread of the queue does not get to its end")


def received(which, count):
    return [which.get(timeout=30) for _ in range(count)]


def test_a_short_message_is_there_when_put_returns():
    messages = new_queue()
    for i in range(3):
        messages.put(i)
        assert not messages.empty()
        assert messages.get(timeout=0) == i
    assert messages.empty()


def test_what_has_arrived_is_shown_once_and_still_comes_in_order():
    messages = new_queue()
    assert messages.arrived() == []
    for i in range(5):
        messages.put(i)
    assert received(messages, 1) == [0]
    assert messages.arrived() == [0, 1, 2, 3, 4]
    messages.put(5)
    assert not messages.empty()
    assert received(messages, 2) == [1, 2]
    assert messages.arrived() == [5]
    assert received(messages, 3) == [3, 4, 5]
    assert messages.empty()
    assert messages.arrived() == []


def test_put_never_waits_and_all_messages_come_in_order():
    messages = new_queue()
    sizes = [10, 5000, 3 * PIPE_NBYTES, 10, 30_000, *[3000] * 60, 0, 100]
    sent = [bytes([i]) * size for i, size in enumerate(sizes)]
    for one in sent:  # nobody reads yet
        messages.put(one)
    assert received(messages, len(sent)) == sent


@pytest.mark.parametrize("nbytes", [3000, select.PIPE_BUF, 15_000, 50_000])
def test_a_pipe_is_filled_without_waiting_for_a_reader(nbytes):
    messages = new_queue()
    sent = [bytes([i]) * nbytes for i in range(40)]
    for one in sent:
        messages.put(one)
    assert received(messages, len(sent)) == sent


def test_after_a_long_message_short_ones_are_sent_at_once_again():
    messages = new_queue()
    messages.put(b"x" * (4 * PIPE_NBYTES))
    assert len(messages.get(timeout=30)) == 4 * PIPE_NBYTES
    wait_for_its_thread(messages)
    messages.put("short")
    assert messages.get(timeout=0) == "short"


def test_nothing_to_get_is_empty():
    messages = new_queue()
    with pytest.raises(queue.Empty):
        messages.get(timeout=0.01)
    with pytest.raises(queue.Empty):
        messages.get(block=False)


def test_what_cannot_be_pickled_raises_in_put():
    messages = new_queue()
    with pytest.raises(Exception, match="pickle"):
        messages.put(lambda: None)
    messages.put(1)
    assert messages.get(timeout=30) == 1


def test_a_closed_queue_takes_nothing():
    messages = with_direct_queues(None).Queue()
    messages.close()
    with pytest.raises(ValueError, match="closed"):
        messages.put(1)


def send(messages, name, sizes):
    for i, size in enumerate(sizes):
        messages.put((name, i, b"." * size))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_messages_of_several_processes_are_whole_and_in_order(method):
    context = with_direct_queues(method)
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


def test_a_process_killed_while_it_writes_does_not_stop_the_others():
    messages = new_queue()
    assert messages._wlock.acquire(timeout=30)  # as by a process that is there no more
    messages.put("waits for its thread")
    assert messages.empty()
    messages._wlock.release()
    assert messages.get(timeout=30) == "waits for its thread"


def test_another_context_is_left_as_it_is():
    given = multiprocessing.get_context("spawn")
    assert with_direct_queues(given).get_start_method() == "spawn"
    assert type(given.Queue()) is multiprocessing.queues.Queue


def test_where_multiprocessings_queue_has_other_attributes_it_is_used_as_it_is(monkeypatch):
    monkeypatch.setitem(DirectQueue.__annotations__, "_renamed", "int")
    messages = with_direct_queues(None).Queue()
    sent = [b"short", bytes(3 * PIPE_NBYTES), 1]
    for one in sent:
        messages.put(one)
    assert received(messages, len(sent)) == sent
    assert messages._poll.__func__ is type(messages._reader).poll
