"""The LMDB store: whole or absent, resumed, copied by LMDB's tools, damaged."""

from __future__ import annotations

import json
import os
import pickle
import re
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import lmdb
import numpy as np
import pytest

from fastload.errors import FastloadError, StoreError, StoreNotFoundError, UsageError
from fastload.storage import RAW, Record, open_store, open_writer
from fastload.storage._read import read_records
from fastload.storage.concat import ConcatStore
from fastload.storage.formats import lmdb as module
from fastload.storage.formats.lmdb import LmdbWriter
from fastload.storage.table import TableStore
from storage.formats import CLASSES, data_of, digest, records


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "imgs.lmdb"


def write(path: Path, count: int = 40) -> list[Record]:
    given = records(count)
    with open_writer(path, classes=CLASSES) as writer:
        writer.append(given)
    return given


def test_library_s_own_verifier_finds_nothing_wrong(path: Path) -> None:
    verifier = pytest.importorskip("lmdb.verify", reason="lmdb.verify came with py-lmdb 3")
    write(path, 300)
    assert verifier.verify(str(path)) == []


def test_columns_are_where_the_document_says(path: Path) -> None:
    given = write(path)
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False, max_dbs=2) as env:
        table = env.open_db(b"columns", create=False)
        with env.begin(db=table) as transaction:
            columns = {bytes(key): bytes(value) for key, value in transaction.cursor()}
    format_ = json.loads(columns[b"format"])
    assert format_.pop("columns") == sorted(name.decode() for name in columns.keys() - {b"format"})
    assert format_ == {"format": "fastload-lmdb", "version": 2}
    assert json.loads(columns[b"classes"]) == CLASSES
    assert struct.unpack("<40q", columns[b"labels"]) == tuple(r.label for r in given)
    assert struct.unpack("<40q", columns[b"nbytes"]) == tuple(len(r.data) for r in given)
    assert struct.unpack("<80i", columns[b"sizes"])[:2] == (given[0].width, given[0].height)
    ends = struct.unpack("<40q", columns[b"key_ends"])
    assert columns[b"keys"][ends[0] : ends[1]].decode() == given[1].key
    data = path.read_bytes()
    for record, offset in zip(given, struct.unpack("<40q", columns[b"offsets"])):
        assert data[offset : offset + len(record.data)] == record.data


def test_folder_as_lmdb_makes_it_by_default_is_read_too(path: Path, tmp_path: Path) -> None:
    given = write(path)
    (tmp_path / "folder").mkdir()
    path.rename(tmp_path / "folder" / "data.mdb")
    (tmp_path / "folder" / "lock.mdb").write_bytes(b"")
    assert data_of(tmp_path / "folder") == [record.data for record in given]


def test_raw_records_and_records_without_labels(path: Path) -> None:
    pixels = bytes(range(12))
    with open_writer(path) as writer:
        writer.append([Record(data=pixels, label=None, key="a", width=2, height=2, kind=RAW)])
    store = open_store(path)
    assert store.labels is None and list(store.classes) == []
    assert store.kinds(np.array([0])).tolist() == [RAW]


def test_labels_for_some_records_only_are_refused(path: Path) -> None:
    some = [records(2)[0], Record(data=b"x", label=None, key="k", width=1, height=1)]
    with pytest.raises(UsageError, match="found 1 in 2"), open_writer(path) as writer:
        writer.append(some)
    with pytest.raises(UsageError, match="in every record"), open_writer(path) as writer:
        writer.append(some[:1])
        writer.append(some[1:])


def test_map_grows_with_what_is_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_INITIAL_MAP", 1 << 16)
    monkeypatch.setattr(module, "_FLUSH_NBYTES", 1 << 18)
    big = [
        Record(data=os.urandom(300_000), label=0, key=str(i), width=1, height=1) for i in range(9)
    ]
    with open_writer(path, classes=["a"]) as writer:
        writer.append(big)
    assert data_of(path) == [record.data for record in big]


# -- whole or absent


def test_no_store_under_the_name_before_commit(path: Path) -> None:
    writer = open_writer(path, classes=CLASSES)
    writer.append(records(10))
    writer.sync()
    assert not path.exists()
    with pytest.raises(StoreNotFoundError, match="run the same pack command again"):
        open_store(path)
    with pytest.raises(StoreError, match="unfinished"):
        open_store(f"{path}.partial")
    writer.commit()
    assert sorted(os.listdir(path.parent)) == [path.name]


def test_second_writer_goes_on_where_the_first_stopped(path: Path) -> None:
    given = records(30)
    with pytest.raises(RuntimeError), open_writer(path, classes=CLASSES) as writer:
        writer.append(given[:12])
        writer.sync()
        writer.append(given[12:20])  # never synced: lost
        raise RuntimeError
    with open_writer(path, classes=CLASSES) as writer:
        assert len(writer) == 12
        assert writer.keys() == [record.key for record in given[:12]]
        writer.append(given[12:])
    assert data_of(path) == [record.data for record in given]
    store = open_store(path)
    assert store.keys(np.arange(30)) == [record.key for record in given]


def test_journal_ahead_of_the_data_is_cut_back(path: Path) -> None:
    given = records(30)
    writer = open_writer(path, classes=CLASSES)
    writer.append(given[:10])
    writer.sync()
    writer.append(given[10:20])
    assert isinstance(writer, LmdbWriter)
    writer._partial.add(module._columns.of_batch(writer._pending[0]))  # killed before the commit
    with open(writer._partial.file("journal"), "ab") as journal:
        journal.write(b"FLJ2 half a chunk")
    writer.abort()
    with open_writer(path, classes=CLASSES) as writer:
        assert len(writer) == 10
        writer.append(given[10:])
    assert data_of(path) == [record.data for record in given]


def test_records_whose_transaction_failed_are_added_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full: the same writer goes on once there is room."""
    given = records(30)
    writer = open_writer(path, classes=CLASSES)
    writer.append(given[:10])

    def fails(self: LmdbWriter, action: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(LmdbWriter, "_write", fails)
        with pytest.raises(StoreError, match="full"):
            writer.sync()
    writer.append(given[10:])
    writer.commit()
    assert data_of(path) == [record.data for record in given]


def test_killed_while_committing_is_committed_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = records(30)
    writer = open_writer(path, classes=CLASSES)
    writer.append(given)
    assert isinstance(writer, LmdbWriter)
    with monkeypatch.context() as patch:
        patch.setattr(writer._partial, "publish", lambda renames: None)
        writer.commit()
    writer._partial.close()
    with open_writer(path, classes=CLASSES) as writer:
        assert len(writer) == 30
    assert data_of(path) == [record.data for record in given]
    assert digest(str(path))


def test_other_settings_do_not_resume(path: Path) -> None:
    open_writer(path, settings={"quality": 90}).abort()
    with pytest.raises(UsageError, match=r"quality: 90, now 95.*delete that folder"):
        open_writer(path, settings={"quality": 95})
    open_writer(path, settings={"quality": 90}).abort(keep_partial=False)
    assert os.listdir(path.parent) == []


def test_existing_store_is_never_touched(path: Path) -> None:
    write(path)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="exists: delete it"):
        open_writer(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_two_writers_in_one_process_are_refused(path: Path) -> None:
    writer = open_writer(path)
    with pytest.raises(UsageError, match="already being written by this process"):
        open_writer(path)
    writer.abort()
    open_writer(path).abort()


def test_two_writers_in_two_processes_are_refused(path: Path) -> None:
    writer = open_writer(path)
    code = "import sys; from fastload.storage import open_writer; open_writer(sys.argv[1])"
    other = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=150
    )
    assert other.returncode == 1
    assert "another process is writing" in other.stderr
    writer.abort()


def test_full_disk_says_so_and_the_next_run_completes(path: Path) -> None:
    code = (
        "import resource, sys\n"
        "from fastload.storage import Record, open_writer\n"
        "from fastload.storage.formats import lmdb as module\n"
        "module._FLUSH_NBYTES = 1 << 17\n"
        "if sys.argv[2] == 'full':\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "with open_writer(sys.argv[1], classes=['a']) as writer:\n"
        "    print(len(writer), flush=True)\n"
        "    for i in range(len(writer), 40):\n"
        "        data = bytes([i]) * 100_000\n"
        "        writer.append([Record(data=data, label=0, key=str(i), width=1, height=1)])\n"
    )

    def run(how: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, str(path), how],
            capture_output=True,
            text=True,
            timeout=150,
        )

    full = run("full")
    assert full.returncode == 1
    assert (
        re.search("StoreError: .*: writing failed", full.stderr)
        and "run the same command" in full.stderr
    )
    assert not path.exists()
    again = run("roomy")
    assert again.returncode == 0, again.stderr
    assert 0 < int(again.stdout) < 40
    assert data_of(path) == [bytes([i]) * 100_000 for i in range(40)]


# -- copies and damage


def test_copy_keeps_its_table_and_compacted_copy_rebuilds_it(path: Path, tmp_path: Path) -> None:
    given = write(path, 300)
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env:
        for name, compact in (("plain", False), ("compact", True)):
            env.copy(str(tmp_path / f"{name}.lmdb"), compact=compact)
    assert data_of(tmp_path / "plain.lmdb") == [record.data for record in given]
    with pytest.warns(UserWarning, match="table of offsets is rebuilt"):
        copy = open_store(tmp_path / "compact.lmdb")
    assert list(read_records(copy, np.arange(300))) == [record.data for record in given]


def test_store_changed_by_another_program_is_not_read_by_the_old_table(path: Path) -> None:
    given = write(path)
    with lmdb.open(str(path), subdir=False, lock=False, max_dbs=2, map_size=1 << 26) as env:
        table = env.open_db(b"records")
        with env.begin(write=True, db=table) as transaction:
            transaction.put(struct.pack(">Q", 3), b"y" * 9000)
    with pytest.warns(UserWarning, match="rebuilt"):
        found = data_of(path)
    assert found[3] == b"y" * 9000
    assert found[:3] + found[4:] == [r.data for i, r in enumerate(given) if i != 3]
    with lmdb.open(str(path), subdir=False, lock=False, max_dbs=2, map_size=1 << 26) as env:
        table = env.open_db(b"records")
        with env.begin(write=True, db=table) as transaction:
            transaction.put(struct.pack(">Q", 40), b"one more")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(StoreError, match="of 41 records"):
            open_store(path)


def test_store_replaced_by_another_one_is_noticed(path: Path) -> None:
    write(path)
    state = pickle.dumps(open_store(path))
    path.unlink()
    write(path, 41)
    with pytest.raises(StoreError, match="replaced by another one"):
        pickle.loads(state).spans(np.array([0]))


def test_lmdb_of_another_program_is_refused_clearly(tmp_path: Path) -> None:
    path = tmp_path / "other.lmdb"
    with lmdb.open(str(path), subdir=False, lock=False) as env, env.begin(write=True) as txn:
        txn.put(b"key", b"value")
    with pytest.raises(StoreError, match="another layout"):
        open_store(path)


@pytest.mark.parametrize("content", [b"", b"\0" * 9000, b"not LMDB at all" * 1000])
def test_file_that_is_no_lmdb_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"imgs\.lmdb"):
        open_store(path)


@pytest.mark.parametrize("version", [1, 3])
def test_other_versions_of_the_format_are_refused(path: Path, version: int) -> None:
    write(path)
    with lmdb.open(str(path), subdir=False, lock=False, max_dbs=2, map_size=1 << 26) as env:
        table = env.open_db(b"columns")
        with env.begin(write=True, db=table) as transaction:
            transaction.put(b"format", b'{"format": "fastload-lmdb", "version": %d}' % version)
    with pytest.raises(StoreError, match=r"version 2 of fastload-lmdb.* pack it again"):
        open_store(path)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (b"labels", b"short"),
        (b"offsets", b""),
        (b"classes", b"[1, 2]"),
        (b"classes", b"[" * 100_000),
        (b"metadata", b'"text"'),
        (b"metadata", b"\xff\xfe"),
        (b"sizes", None),
    ],
)
def test_column_of_the_wrong_size_or_kind_is_refused(
    path: Path, column: bytes, value: bytes | None
) -> None:
    write(path)
    with lmdb.open(str(path), subdir=False, lock=False, max_dbs=2, map_size=1 << 26) as env:
        table = env.open_db(b"columns")
        with env.begin(write=True, db=table) as transaction:
            if value is None:
                transaction.delete(column)
            else:
                transaction.put(column, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(StoreError, match=column.decode() + "|class names"):
            open_store(path)


def test_truncated_store_is_refused_at_every_length(path: Path) -> None:
    write(path)
    whole = path.read_bytes()
    for nbytes in range(0, len(whole), 4099):
        path.write_bytes(whole[:nbytes])
        with pytest.raises(StoreError):
            open_store(path)


def test_damaged_store_never_ends_the_process(path: Path, count: Callable[[int, int], int]) -> None:
    write(path)
    intact = np.frombuffer(path.read_bytes(), np.uint8)
    rng = np.random.default_rng(3)
    outcomes = {"refused": 0, "opened": 0}
    for _ in range(count(200, 10_000)):
        damaged = intact.copy()
        where = rng.integers(len(intact), size=rng.integers(1, 30))
        damaged[where] = rng.integers(256, size=len(where))
        path.write_bytes(damaged.tobytes())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                store = open_store(path)
                indices = np.arange(len(store))
                spans = store.spans(indices)
                assert (spans.offset + spans.nbytes <= len(intact)).all()
                store.keys(indices)
                store.sizes(indices)
                outcomes["opened"] += 1
        except FastloadError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 0


def test_offset_outside_the_file_is_refused_with_the_record(path: Path) -> None:
    write(path)
    store = open_store(path)
    assert isinstance(store, TableStore)
    offsets = store.table.offset.copy()
    offsets[7] = 2**62
    object.__setattr__(store.table, "offset", offsets)
    with pytest.raises(StoreError, match="record 7"):
        store.spans(np.array([1, 7]))
    offsets[7] = -5
    with pytest.raises(StoreError, match="record 7"):
        store.spans(np.array([1, 7]))


def test_columns_are_views_of_the_file(path: Path) -> None:
    write(path, 2000)
    store = open_store(path)
    assert isinstance(store, TableStore)
    table = store.table
    assert table.watch is not None
    whole = np.frombuffer(table.watch._map, np.uint8)
    for column in (table.offset, table.sizes, table.crc32c, table.keys.whole().data, store.labels):
        assert column is not None
        assert np.shares_memory(column, whole)


def test_tables_are_where_the_looked_up_columns_lie(path: Path) -> None:
    write(path, 300)
    store = open_store(path)
    assert isinstance(store, TableStore)
    whole, tables = path.read_bytes(), store.tables()
    found = {
        whole[offset : offset + nbytes]
        for offset, nbytes in zip(tables.offset.tolist(), tables.nbytes.tolist(), strict=True)
    }
    looked_up = ("labels", "sizes", "crc32c", "kinds", "nbytes", "offset")
    assert found == {getattr(store.table, name).tobytes() for name in looked_up}
    assert tables.nbytes.sum() == 37 * 300

    both = ConcatStore([store, store])
    assert both.tables().file.tolist() == [0] * 6 + [1] * 6
    assert both.tables().offset.tolist() == 2 * tables.offset.tolist()
