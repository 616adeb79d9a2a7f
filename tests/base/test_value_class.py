"""A value class does what a dataclass of the same body does."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any, ClassVar

import pytest

from fastload._base.value_class import value_class


def classes(value: Any, plain: Any) -> list[type]:
    """The same class twice."""
    made = []
    for decorated in (value, plain):

        class Point:
            """A point."""

            x: int
            y: int = 2
            tags: list[str] = dataclasses.field(default_factory=list)
            kept: int = dataclasses.field(default=5, init=False)
            unit: ClassVar[str] = "m"

        made.append(decorated(Point))
    return made


FROZEN = classes(value_class(), dataclasses.dataclass(frozen=True))
MUTABLE = classes(value_class(frozen=False), dataclasses.dataclass())
NAMED = classes(value_class(kw_only=True), dataclasses.dataclass(frozen=True, kw_only=True))
SAME = classes(value_class(eq=False), dataclasses.dataclass(frozen=True, eq=False))


@value_class()
class Checked:
    """One that looks at what it is given."""

    x: int

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x")


@pytest.mark.parametrize("kinds", [FROZEN, MUTABLE, NAMED, SAME])
@pytest.mark.parametrize(
    ("args", "given"),
    [
        ((1,), {}),
        ((1, 3), {}),
        ((1, 3, ["a"]), {}),
        ((1, 3, ["a"], 4), {}),
        ((1,), {"x": 1}),
        ((), {}),
        ((), {"x": 1}),
        ((), {"x": 1, "y": 3, "tags": ["b"]}),
        ((), {"x": 1, "z": 3}),
        ((), {"y": 1, "z": 3}),
        ((), {"x": 1, "kept": 3}),
    ],
)
def test_it_takes_what_a_dataclass_takes(
    kinds: list[type], args: tuple[Any, ...], given: dict[str, Any]
) -> None:
    ours, theirs = kinds
    try:
        expected = theirs(*args, **given)
    except TypeError:
        with pytest.raises(TypeError):
            ours(*args, **given)
        return
    made = ours(*args, **given)
    for name in ("x", "y", "tags", "kept", "unit"):
        assert getattr(made, name) == getattr(expected, name)
    changed = dataclasses.replace(made, y=9)
    assert (changed.x, changed.y, changed.tags) == (made.x, 9, made.tags)


@pytest.mark.parametrize("kinds", [FROZEN, MUTABLE, NAMED, SAME])
def test_it_compares_as_a_dataclass_does(kinds: list[type]) -> None:
    for make in (lambda kind: kind(x=1, tags=()), lambda kind: kind(x=2, tags=())):
        answers = [make(kind) == kinds[i](x=1, tags=()) for i, kind in enumerate(kinds)]
        assert answers[0] == answers[1]
    hashes = [kind.__hash__ is None for kind in kinds]
    assert hashes[0] == hashes[1]
    if not hashes[0]:
        assert (hash(kinds[0](x=1, tags=())) == hash(kinds[0](x=1, tags=()))) == (
            hash(kinds[1](x=1, tags=())) == hash(kinds[1](x=1, tags=()))
        )


def test_it_is_frozen() -> None:
    made = FROZEN[0](1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.x = 2  # type: ignore[attr-defined]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del made.x  # type: ignore[attr-defined]
    other = MUTABLE[0](1)
    other.x = 2  # type: ignore[attr-defined]
    assert other == MUTABLE[0](2)


def test_what_it_makes_by_default_is_its_own() -> None:
    one, other = FROZEN[0](1), FROZEN[0](1)
    assert one.tags is not other.tags  # type: ignore[attr-defined]


def test_it_checks_what_it_is_given() -> None:
    with pytest.raises(ValueError, match="x"):
        Checked(-1)


def test_copies_are_equal() -> None:
    made = Checked(3)
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == copy.copy(made) == made
    assert repr(made) == "Checked(x=3)"
