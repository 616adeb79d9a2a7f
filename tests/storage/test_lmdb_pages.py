"""Our page reader against the LMDB library, and against damage."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload.errors import StoreError
from fastload.storage.formats._lmdb_pages import Pages


def make(path: Path, items: dict[bytes, bytes], name: bytes | None = b"tree") -> None:
    with lmdb.open(str(path), subdir=False, lock=False, max_dbs=3, map_size=1 << 28) as env:
        table = env.open_db(name)
        with env.begin(write=True, db=table) as transaction:
            for key, value in items.items():
                transaction.put(key, value)


def walked(path: Path, name: bytes | None = b"tree") -> list[tuple[bytes, bytes]]:
    pages = Pages(str(path))
    tree = pages.main if name is None else pages.subtree(name)
    assert tree is not None
    values = pages.walk(tree)
    data = path.read_bytes()
    return [
        (data[k : k + kn], data[o : o + n])
        for k, kn, o, n in zip(values.key, values.key_nbytes, values.offset, values.nbytes)
    ]


@given(
    seed=st.integers(0, 2**32),
    count=st.integers(0, 400),
    key_nbytes=st.integers(4, 60),
    value_nbytes=st.sampled_from([3, 300, 2500, 20_000]),
)
def test_walk_and_find_agree_with_the_library(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    count: int,
    key_nbytes: int,
    value_nbytes: int,
) -> None:
    path = tmp_path_factory.mktemp("pages") / "x.lmdb"
    rng = random.Random(seed)
    items = {
        rng.randbytes(rng.randint(1, key_nbytes)): rng.randbytes(rng.randint(0, value_nbytes))
        for _ in range(count)
    }
    make(path, items)
    assert walked(path) == sorted(items.items())
    pages = Pages(str(path))
    tree = pages.subtree(b"tree")
    assert tree is not None
    data = path.read_bytes()
    for key in list(items)[:20]:
        found = pages.find(tree, key)
        assert found is not None
        assert data[found[0] : sum(found)] == items[key]
    assert pages.find(tree, b"\xff" * 61) is None
    assert pages.find(tree, b"\0" * 61) is None


def test_three_levels_of_pages_after_deletions(tmp_path: Path) -> None:
    path = tmp_path / "x.lmdb"
    items = {i.to_bytes(8, "big") * 8: bytes([i % 256]) * (i % 90) for i in range(20_000)}
    make(path, items)
    with lmdb.open(str(path), subdir=False, lock=False, max_dbs=3, map_size=1 << 28) as env:
        table = env.open_db(b"tree")
        with env.begin(write=True, db=table) as transaction:
            for key in list(items)[::3]:
                transaction.delete(key)
                del items[key]
    pages = Pages(str(path))
    tree = pages.subtree(b"tree")
    assert tree is not None and tree.depth >= 3
    assert walked(path) == sorted(items.items())


def test_main_tree_and_names_that_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "x.lmdb"
    make(path, {b"k": b"v", b"l": b"w" * 9000}, name=None)
    assert walked(path, None) == [(b"k", b"v"), (b"l", b"w" * 9000)]
    assert Pages(str(path)).subtree(b"tree") is None
    assert Pages(str(path)).subtree(b"k") is None  # a value, not a tree


def test_page_numbers_in_a_loop_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.lmdb"
    make(path, {i.to_bytes(8, "big"): b"v" * 200 for i in range(2000)})
    pages = Pages(str(path))
    tree = pages.subtree(b"tree")
    assert tree is not None and tree.depth >= 2
    data = bytearray(path.read_bytes())
    start = tree.root * 4096
    pointer = int.from_bytes(data[start + 16 : start + 18], "little")
    data[start + pointer : start + pointer + 6] = tree.root.to_bytes(6, "little")  # its own child
    path.write_bytes(data)
    pages = Pages(str(path))
    tree = pages.subtree(b"tree")
    assert tree is not None
    with pytest.raises(StoreError, match="leaf page"):
        pages.walk(tree)


def test_a_branch_page_without_entries_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.lmdb"
    make(path, {i.to_bytes(8, "big"): b"v" * 200 for i in range(2000)})
    tree = Pages(str(path)).subtree(b"tree")
    assert tree is not None and tree.depth >= 2
    data = bytearray(path.read_bytes())
    lower = tree.root * 4096 + 12  # where the page's entries end: none are left
    data[lower : lower + 2] = (16).to_bytes(2, "little")
    path.write_bytes(data)
    pages = Pages(str(path))
    with pytest.raises(StoreError, match="branch page"):
        pages.find(tree, (5).to_bytes(8, "big"))


@pytest.mark.parametrize("nbytes", [0, 100, 511, 4095, 4096, 8191])
def test_file_cut_within_its_first_pages_is_refused(tmp_path: Path, nbytes: int) -> None:
    path = tmp_path / "x.lmdb"
    make(path, {b"k": b"v"})
    path.write_bytes(path.read_bytes()[:nbytes])
    with pytest.raises(StoreError):
        Pages(str(path))


def test_other_data_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.lmdb"
    make(path, {b"k": b"v"})
    data = bytearray(path.read_bytes())
    data[20] = data[4096 + 20] = 3
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"data format 1 .* found 3"):
        Pages(str(path))


def test_random_damage_raises_store_error_or_changes_values_only(
    tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    path = tmp_path / "x.lmdb"
    make(path, {i.to_bytes(8, "big"): bytes([i % 256]) * (i * 37 % 5000) for i in range(120)})
    intact = np.frombuffer(path.read_bytes(), np.uint8)
    used = [p for p in range(len(intact) // 4096) if intact[p * 4096 + 10] != 4]  # not overflow
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(count(300, 20_000)):
        damaged = intact.copy()
        page = used[rng.integers(len(used))]
        for _ in range(rng.integers(1, 4)):
            damaged[page * 4096 + rng.integers(200 if rng.random() < 0.7 else 4096)] = rng.integers(
                256
            )
        path.write_bytes(damaged.tobytes())
        try:
            pages = Pages(str(path))
            tree = pages.subtree(b"tree")
            if tree is None:
                continue
            values = pages.walk(tree)
            assert (values.offset >= 0).all()
            assert (values.offset + values.nbytes <= len(intact)).all()
            pages.find(tree, (7).to_bytes(8, "big"))
        except StoreError:
            refused += 1
    assert refused > 0
