"""Combinations of parameters, of which `make test` runs a few."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def combinations(*axes: Sequence[Any], rounds: int = 1) -> list[Any]:
    """Every combination of values, for ``pytest.mark.parametrize``; most of them are long tests.

    `make test` runs each value of the longest axis ``rounds`` times, in turn with all values of the
    others: what one value breaks is seen, and what only two together break by the long tests.
    """
    longest = max(axes, key=len)
    few = set()
    for number, turn in itertools.product(range(len(longest)), range(rounds)):
        chosen, apart = [], 1  # how many of the longest axis go by before the next value
        for axis in axes:
            if axis is longest:
                chosen.append(number)
                continue
            if apart * len(axis) > len(longest):
                apart = 1
            chosen.append((number // apart + turn) % len(axis))
            apart *= len(axis)
        few.add(tuple(chosen))
    return [
        pytest.param(
            *(axis[at] for axis, at in zip(axes, places, strict=True)),
            marks=() if places in few else pytest.mark.long,
        )
        for places in itertools.product(*(range(len(axis)) for axis in axes))
    ]
