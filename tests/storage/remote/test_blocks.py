"""One object's part of the cache: which groups may be evicted, and when each is used next."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from fastload.storage.remote.area import MemoryArea
from fastload.storage.remote.blocks import CELL, GROUP, BlockFile, Uses
from fastload.storage.remote.service import RemoteObject
from fastload.storage.remote.urls import RemoteUrl

CELLS = 10 * GROUP - 1  # the last group is not full


@pytest.fixture
def file() -> Iterator[BlockFile]:
    """Ten groups, all there. This epoch uses 0 to 4, the next one 2 to 9."""
    what = RemoteObject(RemoteUrl("memory://bucket/object"), CELLS * CELL, "tag")
    made = BlockFile(MemoryArea(), what, "name")
    made.claim(np.arange(CELLS))
    made.publish(0, CELLS, np.zeros(CELLS, np.uint32))
    groups = np.array([0, 1, 2, 3, 4, 0, *range(2, 10)])
    positions = np.array([0, 1, 2, 2, 3, 4, *[5] * 4, *[6] * 4])
    made.uses = Uses.of(groups, positions, made.groups, length=5, most=6)
    yield made
    made.close()


def candidates(file: BlockFile) -> dict[int, int]:
    groups, distance = file.candidates()
    return dict(zip(groups.tolist(), distance.tolist(), strict=True))


def test_what_is_used_in_this_epoch_or_the_next_is_that_far_away(file: BlockFile) -> None:
    distance = candidates(file)
    assert [distance[group] for group in (0, 2, 3, 4, 5, 6, 9)] == [0, 2, 2, 3, 5, 6, 6]
    file.now = 2
    distance = candidates(file)
    assert [distance[group] for group in (0, 2, 3, 4, 5, 6, 9)] == [2, 0, 0, 1, 3, 4, 4]
    file.now = 4
    distance = candidates(file)
    assert [distance[group] for group in (0, 2, 3, 4, 5, 6, 9)] == [0, 1, 1, 1, 1, 2, 2]


def test_what_is_pinned_or_not_there_is_no_candidate(file: BlockFile) -> None:
    pinned = file.pin(np.array([5 * GROUP, 5 * GROUP + 1, 7 * GROUP]))
    file.evict(np.array([9, 1]))
    assert sorted(candidates(file)) == [0, 2, 3, 4, 6, 8]
    file.unpin(pinned)
    assert sorted(candidates(file)) == [0, 2, 3, 4, 5, 6, 7, 8]


def test_the_last_group_counts_as_many_cells_as_it_has(file: BlockFile) -> None:
    assert file.there(np.array([9, 0])).tolist() == [GROUP - 1, GROUP]
    file.forget(np.array([1, 2]))
    assert file.there(np.arange(file.groups)).tolist() == [GROUP - 2, *[GROUP] * 8, GROUP - 1]
    file.evict(np.arange(file.groups))
    assert not file.there(np.arange(file.groups)).any()
    assert file.used == 0
