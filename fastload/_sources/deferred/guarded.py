"""GuardedFunction: another library's function, or ours once that has proved itself.

It proves itself at its first call on a thread that defers, so that nobody waits for proofs of
functions that are not used. ``explain()`` settles what nobody has called. Processes that come of
one by forks share that it holds: workers that are new in each epoch find it proven.

Note [The program's state]
    Proofs run on a thread of their own, where nothing is set that a program sets for a thread: no
    default device, no inference mode, no batch that is being made. What a program sets for the
    whole process stays as it is, since its other threads see that. Three of those settings would
    make a proof mean nothing: ``torch.set_default_dtype``, a hook of all modules, and a very low
    limit of pixels. In such a state the original is called, and nothing is decided. Whatever else
    may have led a proof astray, a function that the program had replaced or a thread that could not
    begin, will be gone some day: what is left out is tried again when an epoch begins, ``TRIES``
    times in all.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeAlias

import torch

from ..._base.pixel_limit import is_within
from ..._base.silence import silence
from .thread_state import THREAD, note_failure

Function: TypeAlias = "Callable[..., Any]"

clock: Callable[[], int] = time.process_time_ns

TRIES: Final = 3
_tries = [0]

LEFT_OUT: Final[list[str]] = []
"""What stays as it is in other libraries, and why, a line for each."""

_OPEN: Final[list[GuardedFunction]] = []
_SIDE: Final = 64  # longer than any image of a proof


def leave_out(name: str, why: str) -> None:
    """Note that a function of another library stays as it is."""
    line = f"{name} is left as it is: {why}"
    if line not in LEFT_OUT:
        LEFT_OUT.append(line)


def left_out() -> list[str]:
    """What is left out, when all that can be settled is."""
    for guarded in list(_OPEN):
        guarded.settled()
    return list(LEFT_OUT)


def forget_all() -> None:
    """Forget what was left out, and the functions that are not settled."""
    LEFT_OUT.clear()
    _OPEN.clear()
    _tries[0] = 0


def may_try_again() -> bool:
    """Whether something is left out that shall be tried again: then it is forgotten."""
    if not LEFT_OUT or _tries[0] + 1 >= TRIES:
        return False
    LEFT_OUT.clear()
    _tries[0] += 1
    return True


class GuardedFunction:
    """A function that is ours or the library's own, which its first call decides.

    Args:
        name: of the function, for the user.
        ours, otherwise: what is called, if the proof holds and if not.
        proof: says what is wrong with ours; "": nothing.
        settle: is given what is called from now on.
        in_usual_state: the proof means something only there; see Note [The program's state].
        needed: the library's own would take a deferred object for something else. So it proves
            itself on any thread; where it fails, the batch that is made is not deferred.
    """

    def __init__(
        self,
        name: str,
        ours: Function,
        otherwise: Function,
        proof: Callable[[], str],
        settle: Callable[[Function], None],
        in_usual_state: bool = False,
        needed: bool = False,
    ) -> None:
        self._name = name
        self._ours = ours
        self._otherwise = otherwise
        self._proof = proof
        self._settle = settle
        self._in_usual_state = in_usual_state
        self._needed = needed
        self._proving = 0  # the process that does; a forked child lacks the thread
        self._called: Function | None = None
        self._held = mmap.mmap(-1, 1)  # for all processes: whether the proof has held
        _OPEN.append(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # A proof would be compiled too. What is kept deferred is made real by the original.
        if torch.compiler.is_compiling() or not (THREAD.deferring or self._needed):
            return self._otherwise(*args, **kwargs)
        return self.settled()(*args, **kwargs)

    def holds(self) -> bool:
        """Whether ours is called from now on, in whatever state the program is."""
        return self._decided() is self._ours

    def is_ours(self) -> bool:
        """Whether ours is called now."""
        return self.settled() is self._ours

    def settled(self) -> Function:
        """What is called from now on; or only now: see Note [The program's state]."""
        if self._called is not None:
            return self._called
        usual = is_within(_SIDE, _SIDE) and (not self._in_usual_state or _is_usual())
        return self._decided() if usual else self._otherwise

    def _decided(self) -> Function:
        if self._called is not None:
            return self._called
        if self._proving == os.getpid():
            return self._otherwise  # within the proof, or on another thread meanwhile
        self._proving = os.getpid()
        try:
            unknown = _unknown_hooks() if self._in_usual_state else ""
            fault = "" if self._held[0] else unknown or _aside(self._proof)
        finally:  # a program's signal handler may raise
            self._proving = 0
        if fault:
            leave_out(self._name, fault)
            if self._needed:
                note_failure()
        else:
            self._held[0] = 1
        called = self._called = self._otherwise if fault else self._ours
        self._settle(called)
        if self in _OPEN:
            _OPEN.remove(self)
        return called


def _is_usual() -> bool:
    return torch.get_default_dtype() is torch.float32 and not has_hook_of_all_modules()


def has_hook_of_all_modules() -> bool:
    """Whether torch calls a hook for every module."""
    return any(getattr(_MODULES, name, None) for name in _HOOKS_OF_ALL_MODULES)


def _unknown_hooks() -> str:
    """What is wrong with a torch that keeps the hooks of all modules elsewhere."""
    missing = [name for name in _HOOKS_OF_ALL_MODULES if not hasattr(_MODULES, name)]
    return f"torch has no {missing[0]}, so hooks would go unseen" if missing else ""


_MODULES: Final = torch.nn.modules.module
# What Module.__call__ looks at. torch 2.4 has no function that says so.
_HOOKS_OF_ALL_MODULES: Final = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)


def _aside(proof: Callable[[], str]) -> str:
    """What the proof says. See Note [The program's state].

    torch's generator is as before afterwards, and what is warned of goes to nobody.
    """

    def tried() -> str:
        try:
            return proof()
        except Exception as error:  # noqa: BLE001 - whatever another release raises
            return f"fastload cannot try it ({type(error).__name__}: {error})"

    state, begin_ns = torch.default_generator.get_state(), clock()
    try:
        with ThreadPoolExecutor(1) as own, silence():
            try:
                said = own.submit(tried)
            except RuntimeError as error:
                return f"fastload cannot try it ({error})"
            return said.result()
    finally:
        torch.default_generator.set_state(state)
        THREAD.once_ns += clock() - begin_ns
