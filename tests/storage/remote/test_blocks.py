"""One object's part of the cache: which groups belong to which block, and what is evicted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from fastload.storage.remote.area import Area
from fastload.storage.remote.blocks import CELL, GROUP, BlockFile, Blocks, Uses
from fastload.storage.remote.service import RemoteObject
from fastload.storage.remote.urls import RemoteUrl

_GROUP_NBYTES = CELL * GROUP


def in_groups(*edges: float) -> np.ndarray:
    return (np.array(edges) * _GROUP_NBYTES).astype(np.int64)


@pytest.fixture
def file() -> Iterator[BlockFile]:
    """Ten groups, all there, in three blocks: the first two share a group."""
    what = RemoteObject(RemoteUrl("memory://bucket/object"), 10 * _GROUP_NBYTES, "tag")
    made = BlockFile(Area(), what, "name")
    cells = np.arange(made.cells)
    made.claim(cells)
    made.publish(0, made.cells, np.zeros(made.cells, np.uint32))
    blocks = Blocks(in_groups(0, 3.5, 7), in_groups(3.5, 7, 10))
    nothing = np.full(3, -1, np.int32)
    after, begun = np.array([300, 200, 100], np.int32), np.zeros(3, bool)
    made.uses = Uses(
        first=nothing, last=nothing, after=after, length=50, begun=begun, blocks=blocks
    )
    yield made
    made.close()


def there(file: BlockFile) -> list[int]:
    return np.flatnonzero(file.there(np.arange(file.groups), whole=False)).tolist()


def test_a_block_has_the_groups_that_no_other_one_touches() -> None:
    begin, end = in_groups(0, 3.5, 0, 7), in_groups(3.5, 7, 0, 7.2)
    begin[2] = np.iinfo(np.int64).max  # as no record begins in it
    blocks = Blocks(begin, end)
    touched = list(zip(blocks.low.tolist(), blocks.high.tolist()))
    own = list(zip(blocks.first.tolist(), blocks.stop.tolist()))
    assert touched == [(0, 4), (3, 7), (0, 0), (7, 8)]
    assert own == [(0, 3), (4, 7), (0, 0), (7, 8)]
    assert blocks.holding(np.array([1, 2, 3, 7])).tolist() == [2, 0, 0, 1]


def test_blocks_are_candidates_unless_something_in_them_is_pinned(file: BlockFile) -> None:
    pieces, distance = file.candidates(1, whole=True)
    assert (pieces.tolist(), distance.tolist()) == ([0, 1, 2], [300, 200, 100])
    pinned = file.pin(np.array([5 * GROUP]))
    assert file.candidates(1, whole=True)[0].tolist() == [0, 2]
    assert 4 in file.candidates(1, whole=False)[0], "broken up where nothing else is left"
    file.unpin(pinned)
    assert file.there(np.array([0, 2]), whole=True).tolist() == [3 * GROUP, 3 * GROUP]


def test_what_is_pinned_of_a_block_that_the_epoch_is_done_with_goes_next(file: BlockFile) -> None:
    assert file.uses is not None
    file.uses.last[2], file.now = 7, 8
    pinned = file.pin(np.array([8 * GROUP]))
    assert file.candidates(1, whole=True)[0].tolist() == [0, 1, 2]
    assert file.there(np.array([2]), whole=True).tolist() == [2 * GROUP]
    file.evict(np.array([2]), whole=True)
    assert there(file) == [0, 1, 2, 3, 4, 5, 6, 8]
    file.unpin(pinned)
    pieces, distance = file.candidates(1, whole=True)
    assert pieces[np.argmax(distance)] == 2, "before what is used later"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_shared_group_goes_with_the_second_of_its_blocks(
    file: BlockFile, order: tuple[int, int]
) -> None:
    file.evict(np.array(order[:1]), whole=True)
    assert there(file) == ([3, 4, 5, 6, 7, 8, 9] if order[0] == 0 else [0, 1, 2, 3, 7, 8, 9])
    file.evict(np.array(order[1:]), whole=True)
    assert there(file) == [7, 8, 9]


def test_what_is_pinned_of_a_shared_group_stays(file: BlockFile) -> None:
    file.pin(np.array([3 * GROUP]))
    file.evict(np.array([0, 1]), whole=True)
    assert there(file) == [3, 7, 8, 9]
