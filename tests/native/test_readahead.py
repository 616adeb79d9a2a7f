"""Read-ahead of spans: what reaches the page cache, and that bad spans are skipped."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import leaks
import native_core

pytestmark = pytest.mark.native

PAGE = mmap.PAGESIZE
both = pytest.mark.parametrize("mapped", [False, True], ids=["loose", "mapped"])


def announce(files: object, spans: list[tuple[int, int, int]]) -> None:
    """Call readahead with (file, offset, nbytes) triples."""
    file, offset, nbytes = np.array(spans, np.int64).reshape(-1, 3).T
    files.readahead(  # type: ignore[attr-defined]
        file.astype(np.int32), np.ascontiguousarray(offset), np.ascontiguousarray(nbytes)
    )


def evict(path: Path) -> None:
    """Drop the file from the page cache; skip the test if the file system keeps it there."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident(path).any():
        pytest.skip("this file system keeps its files in memory")


def resident(path: Path) -> np.ndarray:
    """bool for each page of the file: is it in the page cache?"""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        pages = np.zeros(-(-len(memory) // PAGE), np.uint8)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        done = libc.mincore(
            ctypes.c_void_p(address),
            ctypes.c_size_t(len(memory)),
            ctypes.c_void_p(pages.ctypes.data),
        )
        assert done == 0, os.strerror(ctypes.get_errno())
        return (pages & 1).astype(bool)


def arrives(path: Path, pages: np.ndarray) -> bool:
    """Whether ``pages`` (numbers) reach the page cache; waits, because reading takes time."""
    deadline = time.monotonic() + 100
    while not (there := resident(path)[pages].all()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(there)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(np.random.default_rng(0).bytes(600 * PAGE + 100))
    return path


@both
def test_whole_spans_of_any_order_are_read(large: Path, mapped: bool) -> None:
    evict(large)
    files = native_core.open_files([large], mapped=mapped)
    # The system reads fewer than 100 pages for one advice; the last span ends the file.
    announce(files, [(0, 500 * PAGE, -1), (0, 20 * PAGE + 5, 100 * PAGE), (0, 3 * PAGE, 1)])
    assert arrives(large, np.r_[3, 20:121, 500:601])


@both
def test_pages_far_from_every_span_are_not_read(large: Path, mapped: bool) -> None:
    evict(large)
    announce(native_core.open_files([large], mapped=mapped), [(0, 0, PAGE), (0, 400 * PAGE, PAGE)])
    assert arrives(large, np.array([0, 400]))
    assert not resident(large)[150:300].any()


@both
def test_missing_spans_and_files_are_skipped(large: Path, mapped: bool) -> None:
    empty = large.with_name("empty")
    empty.touch()
    paths = [large, large.with_name("absent"), large.parent, empty]
    files = native_core.open_files(paths, mapped=mapped)
    most = 2**63 - 1
    evict(large)
    announce(
        files,
        [
            (0, 601 * PAGE, 1),
            (0, 0, 602 * PAGE),
            (0, most, most),
            (0, 0, most),
            (0, -1, 10),
            (0, 0, -2),
            (0, most, -1),
            (0, -most - 1, -1),
            (1, 0, -1),
            (2, 0, -1),
            (3, 0, -1),
            (3, 0, 1),
            (4, 0, 1),
            (-1, 0, 1),
            (2**31 - 1, 0, 1),
            (-(2**31), 0, 1),
        ],
    )
    assert not resident(large).any()
    announce(files, [(0, 50 * PAGE, 1), (-1, 0, 1), (1, 0, 5)])
    assert arrives(large, np.array([50]))


@both
def test_zero_spans_are_allowed(large: Path, mapped: bool) -> None:
    announce(native_core.open_files([large], mapped=mapped), [])
    announce(native_core.open_files([], mapped=mapped), [(0, 0, 1)])


@both
def test_a_file_truncated_since_it_was_mapped_does_no_harm(large: Path, mapped: bool) -> None:
    files = native_core.open_files([large], mapped=mapped)
    announce(files, [(0, 0, PAGE)])
    os.truncate(large, PAGE)
    announce(files, [(0, 0, 100 * PAGE), (0, 300 * PAGE, 10 * PAGE)])


def test_no_descriptor_stays_open(large: Path) -> None:
    with large.open("rb"):
        assert len(leaks.descriptors_in(large.parent)) == 1
    for mapped in (False, True):
        files = native_core.open_files([large], mapped=mapped)
        announce(files, [(0, i * PAGE, PAGE) for i in range(600)])
        assert not leaks.descriptors_in(large.parent)


def test_closed_files_and_wrong_arrays_are_refused(large: Path) -> None:
    files = native_core.open_files([large], mapped=True)
    one, none = np.zeros(1, np.int64), np.zeros(0, np.int64)
    with pytest.raises(TypeError, match="file"):
        files.readahead(one, one, one)
    with pytest.raises(ValueError, match="nbytes"):
        files.readahead(np.zeros(1, np.int32), one, none)
    files.close()
    with pytest.raises(ValueError, match="closed"):
        announce(files, [(0, 0, 1)])


@both
def test_a_child_may_use_files_opened_before_the_fork(large: Path, mapped: bool) -> None:
    files = native_core.open_files([large], mapped=mapped)
    evict(large)
    announce(files, [(0, 0, PAGE)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads of other tests
        child = os.fork()
    if child == 0:
        code = 1
        try:
            announce(files, [(0, 400 * PAGE, PAGE)])
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert arrives(large, np.array([400]))
