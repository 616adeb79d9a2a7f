"""Proofs: a program's state does not decide what is left out, and what failed is tried again."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import transforms
from torchvision.transforms import v2  # noqa: F401 - its functions are to be exchanged, too

import deferred_datasets as shapes
import fastload
import program_states
import releases
import warm
from fastload import FastLoader
from fastload._sources.deferred import guarded, switch
from fastload._sources.deferred.guarded import GuardedFunction
from fastload._sources.deferred.redirect import redirected
from fastload._sources.deferred.thread_state import THREAD
from program_states import REPLACING, STATES, WITHOUT_THREADS


@pytest.mark.native
@pytest.mark.parametrize("state", STATES)
def test_a_programs_state_leaves_nothing_out(state: str) -> None:
    words = [program_states.__file__, state]
    found = json.loads(warm.run(words, finalize=False, check=True).stdout)
    assert found["afterwards"] == []
    if state in REPLACING:
        assert found["meanwhile"]  # what calls the function, or is its kernel
    elif state != WITHOUT_THREADS:
        assert found["meanwhile"] == []


@pytest.fixture
def anew() -> Iterator[None]:
    fastload.uninstall()
    yield
    fastload.uninstall()


@pytest.mark.native
@pytest.mark.usefixtures("anew")
def test_what_only_workers_defer_is_proven_in_their_parent_too(tmp_path: Path) -> None:
    photos = shapes.write_colour_jpegs(tmp_path)
    chain = transforms.Compose([transforms.RandomResizedCrop(20), transforms.ToTensor()])
    loader = FastLoader(shapes.Photos(photos, chain), 4, num_workers=1)
    for _ in loader:
        pass
    at_rest = redirected()
    said = [line.removeprefix("slower: ") for line in loader.explain().splitlines()]
    assert releases.unexpected([line for line in said if " is left as it is: " in line]) == []
    assert redirected() == at_rest


def _guarded(proof: Callable[[], str], **given: Any) -> GuardedFunction:
    return GuardedFunction(
        "a.function", lambda: "ours", lambda: "theirs", proof, lambda called: None, **given
    )


@pytest.mark.usefixtures("anew")
def test_a_thread_that_defers_nothing_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    one = _guarded(lambda: "")
    assert one() == "theirs"
    monkeypatch.setattr(THREAD, "deferring", True)
    assert one() == "ours"


@pytest.mark.usefixtures("anew")
def test_what_a_programs_signal_handler_raises_within_a_proof_is_raised_and_decides_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(THREAD, "deferring", True)
    begun = threading.Event()

    def proof() -> str:
        if not begun.is_set():
            begun.set()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        return ""

    def late(*args: Any) -> None:
        raise TimeoutError("late")

    one = _guarded(proof)
    before = signal.signal(signal.SIGALRM, late)
    try:
        with pytest.raises(TimeoutError, match="late"):
            one()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert one() == "ours"
    assert guarded.LEFT_OUT == []


@pytest.mark.usefixtures("anew")
def test_a_child_that_was_forked_within_a_proof_has_its_own() -> None:
    def proof() -> str:
        child = os.fork()
        if not child:
            os._exit(0 if one.settled()() == "ours" else 1)
        _, status = os.waitpid(child, 0)
        return "" if status == 0 else "the child did not prove it"

    forked = []

    def once() -> str:
        if forked:
            return ""
        forked.append(True)
        return proof()

    one = _guarded(once)
    assert one.settled()() == "ours"
    assert guarded.LEFT_OUT == []


@pytest.mark.usefixtures("anew")
@pytest.mark.parametrize(("said", "asked"), [("", 0), ("it gives other values", 1)])
def test_what_holds_in_a_forked_process_holds_here(said: str, asked: int) -> None:
    proofs = []

    def proof() -> str:
        proofs.append(True)
        return said

    one = _guarded(proof)
    child = os.fork()
    if not child:
        one.settled()
        os._exit(len(proofs))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert one.settled()() == ("theirs" if said else "ours")
    assert len(proofs) == asked


@pytest.mark.usefixtures("anew")
def test_a_proof_waits_for_the_default_dtype_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(THREAD, "deferring", True)
    one, other = _guarded(lambda: "", in_usual_state=True), _guarded(lambda: "")
    torch.set_default_dtype(torch.float64)
    try:
        assert (one(), other()) == ("theirs", "ours")
    finally:
        torch.set_default_dtype(torch.float32)
    assert one() == "ours"


@pytest.mark.usefixtures("anew")
def test_a_torch_that_keeps_hooks_of_all_modules_elsewhere_has_its_own_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(THREAD, "deferring", True)
    monkeypatch.setattr(guarded, "_HOOKS_OF_ALL_MODULES", ("_global_moved_hooks",))
    one, other = _guarded(lambda: "", in_usual_state=True), _guarded(lambda: "")
    assert (one(), other()) == ("theirs", "ours")
    [said] = guarded.LEFT_OUT
    assert said == (
        "a.function is left as it is: torch has no _global_moved_hooks, so hooks would go unseen"
    )


@pytest.mark.usefixtures("anew")
def test_what_is_left_out_is_tried_again_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    monkeypatch.setattr(switch, "_LIBRARIES", {("sys",): lambda: tried.append(len(tried))})
    switch.install()
    for _ in range(5):
        guarded.leave_out("a.function", "it is other")
        switch.try_again()
    assert tried == [0, 1, 2]
    assert guarded.LEFT_OUT == ["a.function is left as it is: it is other"]
