"""Warnings point to the line of the user's code that led to them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from fastload._base import callers


def module(name: str, text: str, **names: Any) -> dict[str, Any]:
    """What ``text`` defines in a module of that name."""
    found = {"__name__": name, **names}
    exec(text, found)
    return found


def warner() -> Callable[[], None]:
    """A function of fastload that warns."""
    text = "def warn():\n    warnings.warn('said', stacklevel=callers.stacklevel())\n"
    ours = module("fastload._run.somewhere", text, warnings=warnings, callers=callers)
    warn: Callable[[], None] = ours["warn"]
    return warn


@pytest.mark.parametrize(
    "name", ["fastload._loader", "torch.utils.data.dataloader", "accelerate.accelerator"]
)
def test_what_lies_between_is_passed_over(name: str) -> None:
    between = module(name, "def call(inner):\n    inner()\n")
    with pytest.warns(UserWarning, match="said") as heard:
        between["call"](warner())
    assert heard[0].filename == __file__


def test_code_of_another_library_is_the_callers() -> None:
    trainer = module("fastloader_of_others", "def call(inner):\n    inner()\n")
    with pytest.warns(UserWarning, match="said") as heard:
        trainer["call"](warner())
    assert heard[0].filename == "<string>"
