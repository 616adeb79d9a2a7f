"""Trial: what is called in the place of another library's function until ours has proved itself.

It proves itself at the first call of it in a process, so that nobody waits for proofs of functions
that are not used. ``explain()`` settles what nobody has called, in this process: the workers'
verdicts are the same.

Note [Their own thread]
    Proofs run where nothing is set that a program sets for a thread: no default device, no
    inference mode, no batch that is being made.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeAlias

import torch

Function: TypeAlias = "Callable[..., Any]"

LEFT_OUT: Final[list[str]] = []
"""What stays as it is in other libraries, and why, a line for each."""

_OPEN: Final[list[Trial]] = []


def leave_out(name: str, why: str) -> None:
    """Note that a function of another library stays as it is."""
    line = f"{name} is left as it is: {why}"
    if line not in LEFT_OUT:
        LEFT_OUT.append(line)


def left_out() -> list[str]:
    """What is left out, when all trials are settled."""
    for trial in list(_OPEN):
        trial.settled()
    return list(LEFT_OUT)


def forget_all() -> None:
    """Forget what was left out, and the trials that are open."""
    LEFT_OUT.clear()
    _OPEN.clear()


class Trial:
    """A function that is ours or the library's own, which its first call decides.

    Args:
        name: of the function, for the user.
        ours, otherwise: what is called, if the proof holds and if not.
        proof: says what is wrong with ours; "": nothing.
        settle: is given what is called from now on.
    """

    def __init__(
        self,
        name: str,
        ours: Function,
        otherwise: Function,
        proof: Callable[[], str],
        settle: Callable[[Function], None],
    ) -> None:
        self._name = name
        self._ours = ours
        self._otherwise = otherwise
        self._proof = proof
        self._settle = settle
        self._proving = False
        self._called: Function | None = None
        _OPEN.append(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # a proof would be compiled too
            return self._otherwise(*args, **kwargs)
        return self.settled()(*args, **kwargs)

    def holds(self) -> bool:
        """Whether ours is called from now on."""
        return self.settled() is self._ours

    def settled(self) -> Function:
        """What is called from now on."""
        if self._called is not None:
            return self._called
        if self._proving:
            return self._otherwise  # within the proof, or on another thread meanwhile
        self._proving = True
        try:
            fault = _aside(self._proof)
        except Exception as error:  # noqa: BLE001 - whatever another release raises
            fault = f"fastload cannot try it ({type(error).__name__}: {error})"
        if fault:
            leave_out(self._name, fault)
        called = self._called = self._otherwise if fault else self._ours
        self._settle(called)
        if self in _OPEN:
            _OPEN.remove(self)
        return called


def _aside(proof: Callable[[], str]) -> str:
    """What the proof says. See Note [Their own thread].

    torch's generator is as before afterwards, and what is warned of goes to nobody.
    """
    state = torch.default_generator.get_state()
    try:
        with ThreadPoolExecutor(1) as own, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return own.submit(proof).result()
    finally:
        torch.default_generator.set_state(state)
