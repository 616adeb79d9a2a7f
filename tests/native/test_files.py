"""Spans of files: bounds, errors, maps, descriptors."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import numpy as np
import pytest

import leaks
import native_core
from fastload import _native

pytestmark = pytest.mark.native

WIDTH, HEIGHT = 4, 3
NBYTES = WIDTH * HEIGHT * 3


def read(path: Path | bytes, offset: int, nbytes: int, *, mapped: bool) -> native_core.Submitted:
    """Read one raw image at offset."""
    files = native_core.open_files([path], mapped=mapped)
    return native_core.submit(
        files,
        [[0, 0, WIDTH, HEIGHT]],
        offset=offset,
        nbytes=nbytes,
        kind=_native.RAW,
        size=[[WIDTH, HEIGHT]],
    ).wait()


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    path = tmp_path / "raw"
    path.write_bytes(np.random.default_rng(0).bytes(10 * NBYTES))
    return path


both = pytest.mark.parametrize("mapped", [False, True], ids=["loose", "mapped"])


@both
@pytest.mark.parametrize("record", [0, 4, 9])
def test_a_span_is_read_wherever_it_lies(raw: Path, record: int, mapped: bool) -> None:
    result = read(raw, record * NBYTES, NBYTES, mapped=mapped)
    assert result.status[0] == _native.OK
    expected = raw.read_bytes()[record * NBYTES : (record + 1) * NBYTES]
    assert result.memory.tobytes() == expected


@both
def test_minus_one_reads_to_the_end(raw: Path, mapped: bool) -> None:
    result = read(raw, 9 * NBYTES, -1, mapped=mapped)
    assert result.status[0] == _native.OK
    assert result.memory.tobytes() == raw.read_bytes()[-NBYTES:]


@both
@pytest.mark.parametrize(
    ("offset", "nbytes"),
    [
        (9 * NBYTES + 1, NBYTES),
        (10 * NBYTES, NBYTES),
        (10 * NBYTES + 1, -1),
        (10 * NBYTES + 1, 0),
        (0, 2**63 - 1),
        (2**63 - 1, 2**63 - 1),
        (2**63 - 1, -1),
    ],
)
def test_a_span_beyond_the_file_is_truncated(
    raw: Path, offset: int, nbytes: int, mapped: bool
) -> None:
    assert read(raw, offset, nbytes, mapped=mapped).status[0] == _native.TRUNCATED


@both
def test_a_raw_record_of_another_length_is_a_wrong_size(raw: Path, mapped: bool) -> None:
    assert read(raw, 0, NBYTES - 1, mapped=mapped).status[0] == _native.SIZE
    assert read(raw, 0, NBYTES + 1, mapped=mapped).status[0] == _native.SIZE


@both
@pytest.mark.parametrize("pages", [1, 3])
def test_the_last_bytes_of_the_last_page_are_read(tmp_path: Path, pages: int, mapped: bool) -> None:
    # A file that fills its pages: reading one byte more is a segmentation fault.
    path = tmp_path / "full"
    path.write_bytes(np.random.default_rng(1).bytes(pages * os.sysconf("SC_PAGE_SIZE")))
    result = read(path, path.stat().st_size - NBYTES, NBYTES, mapped=mapped)
    assert result.status[0] == _native.OK
    assert result.memory.tobytes() == path.read_bytes()[-NBYTES:]


@both
def test_an_empty_file_is_no_raw_image_and_no_crash(tmp_path: Path, mapped: bool) -> None:
    path = tmp_path / "empty"
    path.touch()
    assert read(path, 0, -1, mapped=mapped).status[0] == _native.SIZE
    assert read(path, 0, 1, mapped=mapped).status[0] == _native.TRUNCATED


@both
def test_a_file_that_cannot_be_opened_gives_its_errno(tmp_path: Path, mapped: bool) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, expected in [
        (tmp_path / "absent", errno.ENOENT),
        (tmp_path, errno.EISDIR),
        (pipe, errno.EINVAL),
        (tmp_path / ("x" * 5000), errno.ENAMETOOLONG),
        (b"", errno.ENOENT),
    ]:
        result = read(path, 0, NBYTES, mapped=mapped)
        assert (result.status[0], result.detail[0]) == (_native.IO, expected), path


@both
def test_a_failure_to_open_is_not_cached(tmp_path: Path, raw: Path, mapped: bool) -> None:
    late = tmp_path / "late"
    files = native_core.open_files([late], mapped=mapped)
    batch = {"kind": _native.RAW, "size": [[WIDTH, HEIGHT]], "nbytes": NBYTES}
    box = [[0, 0, WIDTH, HEIGHT]]
    assert native_core.submit(files, box, **batch).wait().status[0] == _native.IO
    late.write_bytes(raw.read_bytes())
    assert native_core.submit(files, box, **batch).wait().status[0] == _native.OK


@both
def test_a_path_need_not_be_utf8(tmp_path: Path, raw: Path, mapped: bool) -> None:
    odd = os.fsencode(tmp_path) + b"/\xff\xfe \n"
    Path(os.fsdecode(odd)).write_bytes(raw.read_bytes())
    assert read(odd, 0, NBYTES, mapped=mapped).status[0] == _native.OK


@both
def test_no_descriptor_stays_open(tmp_path: Path, mapped: bool) -> None:
    paths = [tmp_path / f"{i}" for i in range(50)]
    for path in paths:
        path.write_bytes(bytes(NBYTES))
    files = native_core.open_files(paths, mapped=mapped)
    boxes = [[0, 0, WIDTH, HEIGHT]] * 50
    result = native_core.submit(files, boxes, kind=_native.RAW, size=[WIDTH, HEIGHT]).wait()
    assert (result.status == _native.OK).all()
    assert not leaks.descriptors_in(tmp_path)


def test_close_unmaps_once_no_job_reads(raw: Path) -> None:
    files = native_core.open_files([raw], mapped=True)
    boxes = [[0, 0, WIDTH, HEIGHT]] * 2000
    submitted = native_core.submit(
        files, boxes, kind=_native.RAW, size=[WIDTH, HEIGHT], nbytes=NBYTES
    )
    files.close()
    files.close()
    assert (submitted.wait().status == _native.OK).all()
    with pytest.raises(ValueError, match="closed"):
        native_core.submit(files, boxes)
    del submitted
    gc.collect()
    assert str(raw) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize(
    ("paths", "ends", "mapped", "message"),
    [
        (b"ab", [1, 3], [0, 0], "length of paths"),
        (b"ab", [2, 1], [0, 0], "decrease"),
        (b"ab", [-1, 2], [0, 0], "decrease"),
        (b"a\0", [1, 2], [0, 0], "NUL"),
        (b"ab", [1, 2], [0], "mapped"),
    ],
)
def test_a_malformed_table_is_refused(
    paths: bytes, ends: list[int], mapped: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        native_core.core().Files(paths, np.array(ends, np.int64), np.array(mapped, np.uint8))


def test_zero_files_are_allowed() -> None:
    files = native_core.core().Files(b"", np.zeros(0, np.int64), np.zeros(0, np.uint8))
    assert len(files) == 0
    result = native_core.submit(files, np.zeros((0, 4))).wait()
    assert result.job.done


@pytest.mark.parametrize("changed", [None, "time", "bytes", "inode", "any"])
def test_a_file_is_read_only_with_its_stamp(raw: Path, changed: str | None) -> None:
    found = os.stat(raw)
    stamp = [found.st_ctime_ns, found.st_size, found.st_ino]
    if changed in ("time", "bytes", "inode"):
        stamp[["time", "bytes", "inode"].index(changed)] += 1
    elif changed == "any":
        stamp = [0, -1, 0]
    path = os.fsencode(raw)
    files = native_core.core().Files(
        path, np.array([len(path)]), np.zeros(1, np.uint8), stamps=np.array([stamp])
    )
    result = native_core.submit(
        files,
        [[0, 0, WIDTH, HEIGHT]],
        offset=0,
        nbytes=NBYTES,
        kind=_native.RAW,
        size=[[WIDTH, HEIGHT]],
    ).wait()
    refused = changed in ("time", "bytes", "inode")
    assert result.status[0] == (_native.IO if refused else _native.OK)
    assert result.detail[0] == (errno.ESTALE if refused else 0)
