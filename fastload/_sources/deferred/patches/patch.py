"""Patch: one function of another library that fastload exchanges, with what keeps it.

Note [An unknown release costs speed]
    A function that is not where it was, that has other parameters, or for which ours does not give
    the original's pixels, is left as it is, and ``explain()`` names it. Then a deferred object that
    comes to it is made real, as by any function that is not recorded. A few functions would take a
    deferred object for something else. If one of those is left out, nothing is deferred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from ...._base.named import named
from ..guarded import Function, GuardedFunction, leave_out
from ..redirect import redirect
from .proof import Proof

MISSING: Final[list[str]] = []
"""The functions that are left out and without which nothing may be deferred."""

UNPROVEN: Final[list[tuple[str, GuardedFunction]]] = []
"""Exchanged functions that have yet to prove themselves to ``prove_needed``."""


class Patch(NamedTuple):
    """An exchanged function. The way back is ``redirect.put_back``, for all of them.

    Attributes:
        names: where it is: "PIL.ImageOps.expand". More than one, the newest first, where releases
            differ.
        ours: makes the function that is called in its place, of the original.
        why: what it is exchanged for.
        kept_by: the measurement that keeps it.
        proof: compares ours with the original.
        needed: without it deferred objects are taken for something else. It stays redirected at
            rest, too.
        in_usual_state: its proof means something only there; see ``guarded.py``.
    """

    names: tuple[str, ...]
    ours: Callable[[Function], Function]
    why: str
    kept_by: str
    proof: Proof
    needed: bool = False
    in_usual_state: bool = False


def exchange(patches: Iterable[Patch]) -> None:
    """Exchange what can be. See Note [An unknown release costs speed]."""
    for patch in patches:
        name, *_ = patch.names
        function = named(*patch.names)
        if function is None:
            leave_out(name, "this release has no such function")
        guarded = function and redirect(function, patch)
        if patch.needed and guarded:
            UNPROVEN.append((name, guarded))
        elif patch.needed:
            leave_out_all(name)


def prove_needed() -> None:
    """Have the functions prove themselves without which nothing may be deferred."""
    while UNPROVEN:
        name, guarded = UNPROVEN[-1]
        if not guarded.holds():
            leave_out_all(name)
        UNPROVEN.pop()


def leave_out_all(name: str) -> None:
    """Note that ``name`` cannot be exchanged, and that nothing may be deferred without it."""
    MISSING.append(name)
    leave_out(name, "without it nothing is deferred")
