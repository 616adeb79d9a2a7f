"""Places in the table that forked workers share: which image has one, what was verified there."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from fastload._sources.deferred import entry_points
from fastload._sources.deferred.entry_points import EntryPoints
from fastload._sources.deferred.recording import Opened, Stored
from fastload.storage.base import ENCODED, RAW

pytestmark = pytest.mark.native


def record(
    number: int, data: bytes | None = None, checksum: int = 1, kind: int = ENCODED
) -> Opened:
    """A record of a store, in its file or in memory."""
    path = None if data is not None else "/store"
    stored = Stored(kind, 100 * number, 100, mapped=True, checksum=checksum)
    return Opened(path, data, None, (8, 8), "RGB", "", stored=stored)


def verify(points: EntryPoints, *opened: Opened) -> None:
    """What is noted once the checksums of these images were right."""
    made: Any = type("Batch", (), {"check": np.ones(len(opened), np.uint8)})
    points.checked(points.entries(opened), made, np.zeros(len(opened), np.int32))


def verified(points: EntryPoints, *opened: Opened) -> list[int]:
    found: list[int] = points.verified(points.entries(opened)).tolist()
    return found


def test_a_checksum_is_verified_once() -> None:
    points = EntryPoints()
    one, other = record(0), record(1)
    assert verified(points, one, other) == [0, 0]
    verify(points, one)
    assert verified(points, one, other) == [1, 0]


def test_an_image_whose_checksum_was_wrong_is_verified_again() -> None:
    points = EntryPoints()
    made: Any = type("Batch", (), {"check": np.ones(1, np.uint8)})
    points.checked(points.entries([record(0)]), made, np.ones(1, np.int32))
    assert verified(points, record(0)) == [0]


def test_a_place_that_two_processes_give_to_two_images_skips_no_checksum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both saw that it was free; the one that wrote last has it."""
    monkeypatch.setattr(entry_points, "_REMEMBERED", 1)
    points = EntryPoints()
    one, other = record(0), record(1)
    assert points.entries([one]).numbers.tolist() == [0]
    verify(points, one)
    child = os.fork()
    if not child:
        points._tags[:] = 0  # as it was when the child looked
        os._exit(0 if points.entries([other]).numbers.tolist() == [0] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert points.entries([one, other]).numbers.tolist() == [-1, 0]
    assert verified(points, one, other) == [0, 0]


def test_the_same_bytes_under_another_checksum_are_verified() -> None:
    """A store whose index gives a record the bytes of another one."""
    points = EntryPoints()
    verify(points, record(0, b"bytes", checksum=1))
    assert verified(points, record(0, b"bytes", checksum=1)) == [1]
    assert verified(points, record(0, b"bytes", checksum=2)) == [0]


def test_what_has_no_place_is_verified_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_points, "_REMEMBERED", 1)
    points = EntryPoints()
    verify(points, record(0), record(1), record(2, b"pixels", kind=RAW))
    numbers = points.entries([record(0), record(1), record(2, b"pixels", kind=RAW)]).numbers
    assert numbers.tolist() == [0, -1, -1]
    assert verified(points, record(0), record(1), record(2, b"pixels", kind=RAW)) == [1, 0, 0]
