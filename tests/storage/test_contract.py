"""What every storage format must do. ``formats.py`` makes the rows from the registry, so that a new
format is tested without a change here."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pickle
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from google_crc32c import value as crc32c

from fastload import verify
from fastload.errors import StoreError, StoreNotFoundError
from fastload.storage import Store, known_formats, open_store
from fastload.storage._read import read_records
from storage.formats import CLASSES, ROWS, Row, digest, distinct

COUNT = 61


@pytest.fixture(params=ROWS, ids=lambda row: row.name)
def row(request: pytest.FixtureRequest) -> Row:
    return request.param


@pytest.fixture
def made(row: Row, tmp_path: Path) -> Path:
    return row.make(tmp_path, row.records(COUNT))


def fetch(store: Store, indices: list[int]) -> list[bytes]:
    """Bytes by span, through the files, as an engine would."""
    spans = store.spans(np.array(indices, np.int64))
    found = []
    for file, offset, nbytes in zip(spans.file, spans.offset, spans.nbytes, strict=True):
        own = spans.memory or ()
        data = own[-1 - file].tobytes() if file < 0 else Path(store.files[file]).read_bytes()
        found.append(data[offset:] if nbytes == -1 else data[offset : offset + nbytes])
    return found


def test_every_format_that_can_be_written_has_a_row() -> None:
    writable = {known.suffixes[0] for known in known_formats() if known.writer is not None}
    assert {row.suffix for row in ROWS if row.written} == {*writable, ""}


def test_raw_bytes_read_without_our_code_are_those_that_were_given(row: Row, made: Path) -> None:
    if row.raw is None:
        pytest.skip("there is no other reader of this format")
    assert row.raw(made) == [record.data for record in row.records(COUNT)]


def test_any_record_is_found_in_any_order(row: Row, made: Path) -> None:
    store, expected = open_store(made), row.records(COUNT)
    order = np.random.default_rng(1).permutation(COUNT).tolist() + [0, 0, COUNT - 1]
    assert fetch(store, order) == [expected[i].data for i in order]


def test_order_labels_classes_keys_and_sizes_are_kept(row: Row, made: Path) -> None:
    store, expected, indices = open_store(made), row.records(COUNT), np.arange(COUNT)
    assert len(store) == COUNT
    assert list(store.classes) == CLASSES
    assert store.labels is not None and store.labels.dtype == np.int64
    assert store.labels.tolist() == [record.label for record in expected]
    named = [record.key if row.keys else f"{i:08d}" for i, record in enumerate(expected)]
    assert store.keys(indices) == named
    assert store.keys(indices[::-7]) == named[::-7]
    sizes = store.sizes(indices)
    assert sizes.dtype == np.int32
    assert sizes.tolist() == [[record.width, record.height] for record in expected]


def test_arrays_have_the_promised_types(made: Path) -> None:
    store, indices = open_store(made), np.array([3, 1, 2])
    spans = store.spans(indices)
    assert (spans.file.dtype, spans.offset.dtype, spans.nbytes.dtype) == (
        np.int32,
        np.int64,
        np.int64,
    )
    assert all(array.flags.c_contiguous for array in (spans.file, spans.offset, spans.nbytes))
    tables = store.tables()
    assert (tables.file.dtype, tables.offset.dtype, tables.nbytes.dtype) == (
        np.int32,
        np.int64,
        np.int64,
    )
    assert len(tables.file) == len(tables.offset) == len(tables.nbytes)
    assert store.kinds(indices).dtype == np.uint8
    assert store.sizes(indices).flags.c_contiguous


def test_labels_cannot_be_written(made: Path) -> None:
    labels = open_store(made).labels
    assert labels is not None
    with pytest.raises(ValueError, match="read-only"):
        labels[0] = 1


def test_checksums_are_crc32c_of_the_bytes(row: Row, made: Path) -> None:
    checksums = open_store(made).checksums(np.arange(COUNT))
    if not row.checksums:
        assert checksums is None
        return
    assert checksums is not None and checksums.dtype == np.uint32
    assert checksums.tolist() == [crc32c(record.data) for record in row.records(COUNT)]


def test_empty_store(row: Row, tmp_path: Path) -> None:
    if not row.empty:
        (tmp_path / "nothing").mkdir()
        with pytest.raises(StoreNotFoundError, match="found neither"):
            open_store(tmp_path / "nothing")
        return
    store = open_store(row.make(tmp_path, []))
    assert len(store) == 0
    assert list(store.classes) == CLASSES
    assert store.labels is not None and len(store.labels) == 0
    nothing = np.empty(0, np.int64)
    assert store.keys(nothing) == [] and len(store.spans(nothing).offset) == 0


def test_one_record(row: Row, tmp_path: Path) -> None:
    expected = row.records(1)
    store = open_store(row.make(tmp_path, expected))
    assert len(store) == 1
    assert fetch(store, [0]) == [expected[0].data]


def test_pickled_store_opens_again(made: Path) -> None:
    store = open_store(made)
    again = pickle.loads(pickle.dumps(store))
    assert digest(again) == digest(store)
    assert len(pickle.dumps(store)) < 50_000  # reopened by path, not copied


def test_closed_store_opens_again_when_used(made: Path) -> None:
    store = open_store(made)
    before = digest(store)
    with store:
        pass
    assert digest(store) == before


@pytest.fixture(scope="module")
def spawned() -> Iterator[concurrent.futures.Executor]:
    """A process that was spawned; one for all formats, as it imports for seconds."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        yield executor


def test_used_before_and_after_in_a_spawned_process(
    made: Path, spawned: concurrent.futures.Executor
) -> None:
    store = open_store(made)
    expected = digest(store)
    assert spawned.submit(digest, store).result(timeout=60) == expected
    assert digest(store) == expected


def test_used_before_and_after_in_a_forked_process(row: Row, made: Path) -> None:
    if row.library:
        pytest.skip("its library works in no forked process")
    store = open_store(made)
    expected = digest(store)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=digest, args=(store, queue))
    process.start()
    assert queue.get(timeout=60) == expected
    process.join(timeout=60)
    assert process.exitcode == 0
    assert digest(store) == expected


def test_two_processes_read_at_once(row: Row, made: Path) -> None:
    if row.library:
        pytest.skip("its library works in no forked process")
    context = multiprocessing.get_context("fork")  # quick, and the store is opened in the child
    queue = context.Queue()
    processes = [context.Process(target=digest, args=(str(made), queue)) for _ in range(2)]
    for process in processes:
        process.start()
    results = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(timeout=60)
    assert results[0] == results[1] == digest(made)


def test_threads_read_at_once(row: Row, made: Path) -> None:
    store, expected = open_store(made), row.records(COUNT)

    def read(seed: int) -> None:
        for _ in range(10):
            chosen = np.random.default_rng(seed).integers(0, COUNT, 20)
            assert store.read(chosen) == [expected[i].data for i in chosen]
            assert store.keys(chosen) == [
                expected[i].key if row.keys else f"{i:08d}" for i in chosen
            ]
            sizes = [[expected[i].width, expected[i].height] for i in chosen]
            assert store.sizes(chosen).tolist() == sizes

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        assert list(threads.map(read, range(8))) == [None] * 8


@pytest.mark.filterwarnings("ignore:.*has changed since")  # the sidecar, before the scan fails
def test_a_truncated_file_is_a_store_error(row: Row, made: Path) -> None:
    if row.library:
        pytest.skip("which of its files has a record is not known (test_lance.py deletes them)")
    store = open_store(made)
    spans = store.places(np.arange(COUNT))
    path = Path(store.files[int(spans.file[-1])])
    os.truncate(path, int(spans.offset[-1]) + max(int(spans.nbytes[-1]), 2) // 2)
    del store
    if not row.suffix:  # a loose file is as long as it is: decoding it finds the damage
        assert len(open_store(made).read(np.array([COUNT - 1]))[0]) == os.path.getsize(path)
        return
    with pytest.raises(StoreError) as caught:
        open_store(made).read(np.arange(COUNT))
    assert caught.value.path is not None


def test_a_changed_byte_is_a_checksum_mismatch(row: Row, made: Path) -> None:
    if not row.checksums:
        assert not open_store(made).check_columns()
        return
    assert verify(made).damaged == ()
    with open_store(made) as store:
        spans = store.spans(np.array([7]))
        path, at = store.files[int(spans.file[0])], int(spans.offset[0])
    with open(path, "r+b") as file:
        file.seek(at + 20)
        byte = file.read(1)[0]
        file.seek(at + 20)
        file.write(bytes([byte ^ 1]))
    (damage,) = verify(made).damaged
    assert damage.record == 7 and "CRC32C" in damage.reason


def test_files_and_folder_that_cannot_be_written(made: Path) -> None:
    found = sorted(made.parent.rglob("*"))
    there = sorted(os.listdir(made.parent))
    before = {path: path.stat().st_mtime_ns for path in found}
    for path in found:
        path.chmod(stat.S_IREAD | (stat.S_IEXEC if path.is_dir() else 0))
    made.parent.chmod(0o555)
    try:
        assert len(digest(made)) == 3 * COUNT
        names = sorted(os.listdir(made.parent))
    finally:
        made.parent.chmod(0o755)
        for path in found:
            path.chmod(0o755)
    assert names == there  # no lock file beside it
    assert {path: path.stat().st_mtime_ns for path in found} == before


def test_nothing_there_is_a_file_not_found_error(made: Path) -> None:
    with pytest.raises(FileNotFoundError, match="found no"):
        open_store(made.with_name("missing" + made.suffix))


@pytest.mark.long
def test_100_000_records(row: Row, tmp_path: Path) -> None:
    few = row.records(50)
    many = [
        few[0].__class__(
            data=distinct(few[i % 50], i),
            label=i // 50_000,
            key=f"{CLASSES[i // 50_000]}/{i:06d}.jpg",
            width=few[i % 50].width,
            height=few[i % 50].height,
            kind=few[i % 50].kind,
        )
        for i in range(100_000)
    ]
    store = open_store(row.make(tmp_path, many))
    chosen = np.random.default_rng(0).integers(0, 100_000, 500)
    assert list(read_records(store, chosen)) == [many[i].data for i in chosen]
    assert store.keys(chosen) == [many[i].key if row.keys else f"{i:08d}" for i in chosen]
