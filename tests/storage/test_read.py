"""Reading in pieces: the system may return less than was asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fastload.errors import StoreError
from fastload.storage._read import pread_all, read_range


@pytest.fixture
def short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a call returned at most 10 bytes instead of 2 GiB."""
    whole = os.pread

    def short(descriptor: int, nbytes: int, offset: int) -> bytes:
        return whole(descriptor, min(nbytes, 10), offset)

    monkeypatch.setattr(os, "pread", short)


@pytest.mark.usefixtures("short_reads")
def test_what_one_call_does_not_return_the_next_ones_do(tmp_path: Path) -> None:
    data = bytes(range(100))
    (tmp_path / "a").write_bytes(data)
    with open(tmp_path / "a", "rb") as file:
        for offset, nbytes in ((0, 100), (5, 10), (5, 11), (99, 1), (3, 0)):
            expected = data[offset : offset + nbytes]
            assert pread_all(file.fileno(), nbytes, offset) == expected
            assert read_range(file.fileno(), nbytes, offset, path="a", record=1) == expected
        assert pread_all(file.fileno(), 30, 90) == data[90:]
        with pytest.raises(StoreError, match="expected 30 bytes, found 10: the file was truncated"):
            read_range(file.fileno(), 30, 90, path="a", record=1)


@pytest.mark.long
def test_a_record_above_2_gib_is_read(tmp_path: Path) -> None:
    nbytes = (2 << 30) + 5
    with open(tmp_path / "a", "wb") as file:
        file.truncate(nbytes)
        file.seek(-3, os.SEEK_END)
        file.write(b"end")
    with open(tmp_path / "a", "rb") as file:
        data: Any = read_range(file.fileno(), nbytes, 0, path="a", record=0)
    assert len(data) == nbytes and data[-4:] == b"\0end"
