"""Sizes in bytes as text."""

from __future__ import annotations

import pytest

from fastload import UsageError
from fastload._base.byte_sizes import argument, human, parse


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("8000000000", 8 * 10**9),
        ("256MB", 256 * 10**6),
        ("1.5 GiB", 3 * 2**29),
        (" 4g ", 4 * 10**9),
        ("7Ki", 7 * 1024),
        ("2tib", 2 * 2**40),
        ("10 B", 10),
    ],
)
def test_a_size_with_or_without_a_unit_is_read(text: str, nbytes: int) -> None:
    assert parse(text) == nbytes


@pytest.mark.parametrize("text", ["", "0", "0.1B", "-1GB", "8 gallons", "1.5.2MB", "GB", "iB"])
def test_other_text_is_not_a_size(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**50, "1024.0 TiB")]
)
def test_a_number_is_written_in_a_unit_that_fits(nbytes: int, text: str) -> None:
    assert human(nbytes) == text


@pytest.mark.parametrize("value", ["much", 0, -5, True, 2.5, None])
def test_an_argument_that_is_no_size_is_named(value: object) -> None:
    with pytest.raises(UsageError, match=f"memory: expected bytes or a size .* got {value!r}"):
        argument("memory", value)
    assert argument("memory", 2048) == argument("memory", "2KiB") == 2048
