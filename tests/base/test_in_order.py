"""Work that threads do ahead: in order, no further ahead than said, and ended with the block."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from fastload._base.in_order import in_order


def test_results_come_in_order_and_few_parts_are_begun_ahead() -> None:
    begun: list[int] = []

    def parts() -> Iterator[int]:
        for part in range(20):
            begun.append(part)
            yield part

    with in_order(lambda part: part * part, parts(), 2, "test") as results:
        for number, result in enumerate(results):
            assert result == number * number
            assert len(begun) <= number + 4
    assert len(begun) == 20


def test_an_error_comes_in_its_turn_and_the_others_are_told_to_end() -> None:
    ended = threading.Event()

    def call(part: int) -> int:
        if part == 2:
            raise ValueError(part)
        if part > 2:
            ended.wait()  # would hang if the block did not end it
        return part

    done: list[int] = []
    with (
        pytest.raises(ValueError, match="2"),
        in_order(call, range(8), 2, "test-ends", ended) as results,
    ):
        for result in results:
            done.append(result)
    assert done == [0, 1]
    assert not [one for one in threading.enumerate() if one.name.startswith("test-ends")]


def test_what_is_left_of_a_part_comes_behind_its_beginning() -> None:
    with in_order(
        lambda part: (part[:2], part[2:]),
        ["abcde", "f", "ghi", "jk", "l", "mno"],
        1,
        "test",
        rest=lambda result: result[1] or None,
    ) as results:
        assert [some for some, _ in results] == [
            "ab",
            "cd",
            "e",
            "f",
            "gh",
            "i",
            "jk",
            "l",
            "mn",
            "o",
        ]
