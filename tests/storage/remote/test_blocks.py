"""One object's part of the cache: which groups belong to which block, and what is evicted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from fastload.storage.remote.area import Area
from fastload.storage.remote.blocks import CELL, GROUP, BlockFile, Uses
from fastload.storage.remote.service import RemoteObject
from fastload.storage.remote.urls import RemoteUrl


def uses(order: list[int], blocks: tuple[np.ndarray, np.ndarray]) -> Uses:
    """Three blocks that the next epoch uses in this order, at the positions 100, 200 and 300."""
    positions = np.array([100, 200, 300])
    return Uses(np.array(order), positions, 3, length=50, most=300, blocks=blocks)


@pytest.fixture
def file() -> Iterator[BlockFile]:
    """Ten groups, all there, in three blocks: the first two share a group."""
    what = RemoteObject(RemoteUrl("memory://bucket/object"), 10 * CELL * GROUP, "tag")
    made = BlockFile(Area(), what)
    cells = np.arange(made.cells)
    made.claim(cells)
    made.publish(0, made.cells, np.zeros(made.cells, np.uint32))
    made.uses = uses([2, 1, 0], (np.array([0, 3, 7]), np.array([4, 7, 10])))
    yield made
    made.close()


def there(file: BlockFile) -> list[int]:
    file.uses = None
    return file.candidates(1)[0].tolist()


def test_blocks_are_candidates_with_what_of_them_is_not_pinned(file: BlockFile) -> None:
    blocks, cells, distance = file.candidates(1)
    assert (blocks.tolist(), distance.tolist()) == ([0, 1, 2], [300, 200, 100])
    assert cells.tolist() == [3 * GROUP, 4 * GROUP, 3 * GROUP], "the shared one is used sooner"
    pinned = file.pin(np.array([5 * GROUP]))
    assert file.candidates(1)[1].tolist() == [3 * GROUP, 3 * GROUP, 3 * GROUP]
    file.unpin(pinned)
    assert file.next_use(np.array([4 * GROUP, 8 * GROUP])) == 100


def test_what_is_pinned_of_a_block_that_the_epoch_is_done_with_goes_next(file: BlockFile) -> None:
    assert file.uses is not None
    file.uses.last[2], file.now = 7, 8
    pinned = file.pin(np.array([8 * GROUP]))
    file.evict(np.array([2]))
    assert file.candidates(1)[0].tolist() == [0, 1]
    file.unpin(pinned)
    blocks, cells, distance = file.candidates(1)
    assert blocks[np.argmax(distance)] == 2, "before what is used later"
    assert cells[2] == GROUP
    assert there(file) == [0, 1, 2, 3, 4, 5, 6, 8]


@pytest.mark.parametrize("sooner", [0, 1])
def test_a_shared_group_stays_for_the_block_that_is_used_sooner(
    file: BlockFile, sooner: int
) -> None:
    assert file.uses is not None and file.uses.after is not None
    file.uses.after[sooner] = 150
    file.evict(np.array([1 - sooner]))
    assert there(file) == ([3, 4, 5, 6, 7, 8, 9] if sooner else [0, 1, 2, 3, 7, 8, 9])


def test_a_block_of_which_others_have_all_groups_is_no_candidate(file: BlockFile) -> None:
    blocks = np.array([0, 3, 3]), np.array([4, 4, 10])
    file.uses = uses([0, 2, 1], blocks)
    assert file.candidates(1)[0].tolist() == [0, 2]
    file.evict(np.array([1]))
    assert there(file) == list(range(10))


def test_what_is_pinned_of_a_shared_group_stays(file: BlockFile) -> None:
    file.pin(np.array([3 * GROUP]))
    file.evict(np.array([0, 1]))
    assert there(file) == [7, 8, 9]
    assert file.has(np.arange(3 * GROUP, 4 * GROUP))
