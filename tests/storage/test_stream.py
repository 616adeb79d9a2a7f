"""What formats over ``StreamWriter`` and ``TableStore`` get for nothing, shown on one made here: a
record has its number and length before and > behind it, END is the end of a file."""

from __future__ import annotations

import dataclasses
import io
import os
import pickle
import resource
import shutil
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload._tools.verify import verify
from fastload.errors import StoreError, StoreNotFoundError, UsageError
from fastload.storage import Batch, Record, _partial, open_store, open_writer
from fastload.storage import stream as _stream
from fastload.storage._columns import Columns
from fastload.storage._crc import crc32c
from fastload.storage._fields import Blobs
from fastload.storage._read import read_records
from fastload.storage._shards import data_files
from fastload.storage._sidecar import sidecar_of, write_sidecar
from fastload.storage.stream import StreamWriter, read_stream
from fastload.storage.table import Table, TableStore
from storage.formats import CLASSES, picture, records


class ToyWriter(StreamWriter):
    format = "toy"

    def trailer(self) -> bytes:
        return b"END"

    def frames(self, first: int, batch: Batch) -> tuple[Sequence[bytes], Sequence[bytes]]:
        n = len(batch.keys)
        return [struct.pack("<II", first + i, len(batch.data[i])) for i in range(n)], [b">"] * n

    def extras(self, name: str, records: Columns) -> Mapping[str, bytes]:
        assert records.places is not None
        return {name + ".idx": " ".join(map(str, records.places[:, 1].tolist())).encode()}


def read_toy(path: str) -> Table:
    return read_stream(path, "toy", scan=scan_toy)


def scan_toy(files: Sequence[str]) -> Table:
    found = []
    for number, name in enumerate(files):
        data, at = Path(name).read_bytes(), 0
        while data[at:] != b"END":
            nbytes = struct.unpack_from("<I", data, at + 4)[0]
            found.append((number, at + 8, nbytes))
            at += 9 + nbytes
    columns = np.array(found, np.int64).reshape(-1, 3)
    return Table(
        format="toy",
        files=files,
        file=columns[:, 0].astype(np.int32),
        offset=np.ascontiguousarray(columns[:, 1]),
        nbytes=np.ascontiguousarray(columns[:, 2]),
        keys=Blobs.of([str(i).encode() for i in range(len(found))]),
    )


def open_toy(path: Path) -> TableStore:
    return TableStore(path, read_toy)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ein Name.toy"


def write(path: Path, given: Sequence[Record], step: int = 7, **options: int) -> list[Record]:
    with ToyWriter(path, classes=CLASSES, metadata={"made": "by hand"}, **options) as writer:
        for start in range(0, len(given), step):
            writer.append(given[start : start + step])
    return list(given)


def data_of(store: TableStore) -> list[bytes]:
    return list(read_records(store, np.arange(len(store))))


def test_one_file_holds_framed_records_and_has_its_sidecar_beside_it(path: Path) -> None:
    given = write(path, records(20))
    assert sorted(os.listdir(path.parent)) == [
        path.name,
        path.name + ".fastload",
        path.name + ".idx",
    ]
    frames = [struct.pack("<II", i, len(r.data)) + r.data + b">" for i, r in enumerate(given)]
    assert path.read_bytes() == b"".join(frames) + b"END"
    starts = [sum(map(len, frames[:i])) for i in range(20)]
    assert Path(f"{path}.idx").read_text() == " ".join(map(str, starts))
    store = open_toy(path)
    assert data_of(store) == [record.data for record in given]
    assert store.metadata == {"made": "by hand"} and store.classes == CLASSES
    assert store.sizes(np.array([3])).tolist() == [[given[3].width, given[3].height]]


@pytest.mark.parametrize("count", [0, 1, 3, 20])
@pytest.mark.parametrize("options", [{"shards": 4, "total": 0}, {"shard_nbytes": 6000}])
def test_shards_are_whole_files_and_the_manifest_makes_the_set(
    path: Path, count: int, options: dict[str, int]
) -> None:
    if "total" in options:
        options = options | {"total": count}
    given = write(path, records(count), **options)
    names = sorted(name for name in os.listdir(path.parent) if name.endswith(".toy"))
    total = len(names)
    assert names == [f"ein Name-{i:05d}-of-{total:05d}.toy" for i in range(total)]
    contents = [(path.parent / name).read_bytes() for name in names]
    assert all(data[-3:] == b"END" for data in contents)
    if "shards" in options:
        assert total == 4
        held = np.bincount(open_toy(path).spans(np.arange(count)).file, minlength=4)
        assert held.max() - held.min() <= 1
    else:
        assert all(len(data) <= 6000 for data in contents)
        assert total > 1 or count < 5
    store = open_toy(path)
    assert data_of(store) == [record.data for record in given]
    os.remove(sidecar_of(str(path)))  # the numbered set is complete without it
    assert data_of(open_toy(path)) == [record.data for record in given]
    os.remove(path.parent / names[-1])
    if total > 1:
        with pytest.raises(StoreNotFoundError, match="a file of the set is missing"):
            open_toy(path)


def test_record_larger_than_a_shard_has_one_for_itself(path: Path) -> None:
    given = write(path, records(9), shard_nbytes=10)
    assert open_toy(path).spans(np.arange(9)).file.tolist() == list(range(9))
    assert data_of(open_toy(path)) == [record.data for record in given]


def test_missing_shard_is_named(path: Path) -> None:
    write(path, records(9), shards=3, total=9)
    os.remove(path.parent / "ein Name-00001-of-00003.toy")
    with pytest.raises(StoreNotFoundError, match=r"Name-00001-of-00003.* is missing"):
        open_toy(path)


def test_two_sets_of_one_name_are_refused(tmp_path: Path) -> None:
    for count in (3, 4):  # as after packing again, without deleting the first set
        foreign = tmp_path / f"{count}" / "a.toy"
        foreign.parent.mkdir()
        write(foreign, records(12), shards=count, total=12)
        for shard in foreign.parent.glob("*.toy"):
            shard.rename(tmp_path / shard.name)
    with pytest.raises(StoreError, match=r"found several, .* such as a-\*-of-00003\.toy"):
        open_toy(tmp_path / "a.toy")


def test_a_file_of_no_set_beside_a_whole_one_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.toy", records(6), shards=2, total=6)
    os.remove(tmp_path / "a.toy.fastload")
    (tmp_path / "a-3-of-00002.toy").write_bytes(b"")
    with pytest.raises(StoreError, match=r"a-00000-of-00002\.toy and a-3-of-00002\.toy are of"):
        open_toy(tmp_path / "a.toy")


@pytest.mark.parametrize("options", [{}, {"shards": 3, "total": 30}, {"shard_nbytes": 9000}])
@pytest.mark.parametrize("synced", [0, 11, 30])
def test_resumed_work_gives_the_same_bytes(
    path: Path, tmp_path: Path, synced: int, options: dict[str, int]
) -> None:
    given = records(30)
    writer = ToyWriter(path, classes=CLASSES, metadata={"made": "by hand"}, **options)
    writer.append(given[:synced])
    writer.sync()
    writer.append(given[synced : synced + 9])  # in the data, not in the journal
    writer._columns.clear()
    writer.abort()
    with pytest.raises(StoreNotFoundError, match="run the same pack command again"):
        open_toy(path)
    with ToyWriter(path, classes=CLASSES, metadata={"made": "by hand"}, **options) as writer:
        assert len(writer) == synced
        assert writer.keys() == [record.key for record in given[:synced]]
        writer.append(given[synced:])
    (tmp_path / "at once").mkdir()
    other = tmp_path / "at once" / path.name
    write(other, given, **options)
    names = sorted(os.listdir(other.parent))
    assert sorted(set(os.listdir(path.parent)) - {"at once"}) == names
    for name in names:
        assert (path.parent / name).read_bytes() == (other.parent / name).read_bytes()


@pytest.mark.parametrize("suffix", [".tfrecord", ".rec", ".tar"])
def test_renamed_or_copied_store_reads_its_own_file(tmp_path: Path, suffix: str) -> None:
    """Not the file of the old name, which the sidecar has: that may be another store by now."""
    old, new = tmp_path / f"old{suffix}", tmp_path / f"new{suffix}"
    with open_writer(old, classes=CLASSES) as writer:
        writer.append(records(10))
    shutil.copy(f"{old}.fastload", f"{new}.fastload")
    with pytest.raises(StoreNotFoundError, match=new.name):
        open_store(new)
    shutil.copy(old, new)
    with open_store(new) as store:
        assert list(store.files) == [str(new)] and store.classes == CLASSES
        offset = int(store.spans(np.array([3])).offset[0])
    with open(new, "r+b") as file:
        file.seek(offset)
        file.write(b"x")
    assert [one.record for one in verify(new).damaged] == [3]
    old.unlink()
    with open_store(new) as store:
        assert len(store) == 10 and store.classes == CLASSES


@pytest.mark.parametrize("options", [{}, {"shards": 3, "total": 30}])
def test_work_killed_between_the_renames_is_taken_back_and_finished(
    path: Path, options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = records(30)
    real = os.rename
    for allowed in range(2 if not options else 6):
        left = [allowed]

        def rename(a: str, b: str, left: list[int] = left) -> None:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            real(a, b)

        writer = ToyWriter(path, classes=CLASSES, **options)
        if not len(writer):
            writer.append(given)
        monkeypatch.setattr(os, "rename", rename)
        with pytest.raises(KeyboardInterrupt):
            writer.commit()
        monkeypatch.setattr(os, "rename", real)
        writer.abort()
        with pytest.raises(StoreNotFoundError):
            open_toy(path)
    with ToyWriter(path, classes=CLASSES, **options) as writer:
        assert len(writer) == 30
    assert data_of(open_toy(path)) == [record.data for record in given]
    assert not os.path.exists(f"{path}.partial")


def test_one_store_is_not_written_over_another_of_the_same_name(path: Path) -> None:
    write(path, records(4), shards=2, total=4)
    with pytest.raises(UsageError, match=r"\.toy\.fastload' exists"):
        ToyWriter(path)
    with pytest.raises(UsageError, match=r"\.toy\.fastload' exists"):
        ToyWriter(path, shards=2, total=4)
    single = path.with_name("other.toy")
    write(single, records(4))
    with pytest.raises(UsageError, match=r"other\.toy' exists"):
        ToyWriter(single, shards=2, total=4)


@pytest.mark.parametrize("stem", ["store", "store-00001"])  # which a shard may be called, too
def test_sidecar_of_a_deleted_store_is_replaced(path: Path, stem: str) -> None:
    path = path.with_stem(stem)
    write(path, records(4))
    os.remove(path)
    with pytest.raises(StoreNotFoundError, match="missing"):
        open_toy(path)
    given = write(path, records(6))
    assert data_of(open_toy(path)) == [record.data for record in given]


@pytest.mark.parametrize(
    "options", [{"shards": 0, "total": 1}, {"shards": 2}, {"shard_nbytes": 0},
                {"shards": 2, "total": 3, "shard_nbytes": 5}]
)  # fmt: skip
def test_shards_that_cannot_be_are_refused(path: Path, options: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=r"^shard.*: expected"):
        ToyWriter(path, **options)


def test_full_disk_is_said_and_the_work_goes_on_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = records(30)
    writer = ToyWriter(path, classes=CLASSES)
    writer.append(given[:10])

    def full(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_stream.os, "pwritev", full)
    with pytest.raises(StoreError, match="No space left on device; what was written is kept"):
        writer.append(given[10:])
    monkeypatch.undo()
    writer.sync()
    writer.abort()
    with ToyWriter(path, classes=CLASSES) as writer:
        assert len(writer) == 10
        writer.append(given[10:])
    assert data_of(open_toy(path)) == [record.data for record in given]


def test_short_writes_are_completed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def short(descriptor: int, pieces: Sequence[bytes], offset: int) -> int:
        return real(descriptor, [b"".join(pieces)[:1000]], offset)

    monkeypatch.setattr(_stream.os, "pwritev", short)
    given = write(path, records(20))
    assert data_of(open_toy(path)) == [record.data for record in given]


# --- the sidecar ----------------------------------------------------------------------------------


def test_changed_file_has_its_sidecar_left_aside_with_a_warning(path: Path) -> None:
    given = write(path, records(9))
    data = path.read_bytes()
    for record in given:
        data = data.replace(record.data, record.data[::-1])
    path.write_bytes(data)
    with pytest.warns(UserWarning, match="has changed since"):
        store = open_toy(path)
    assert data_of(store) == [record.data[::-1] for record in given]
    assert store.labels is None


def test_damaged_file_keeps_its_sidecar_whose_checksums_show_the_damage(path: Path) -> None:
    given = write(path, records(9))
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    store = open_toy(path)
    assert store.labels is not None and store.labels.tolist() == [r.label for r in given]
    found, expected = data_of(store), store.checksums(np.arange(9))
    assert expected is not None
    assert [crc32c(one) != crc for one, crc in zip(found, expected)] == [False] * 8 + [True]


def test_every_flipped_byte_of_the_sidecar_is_noticed(path: Path) -> None:
    write(path, records(3))
    sidecar = Path(sidecar_of(str(path)))
    whole = sidecar.read_bytes()
    before = open_toy(path)
    expected = pickle.dumps((data_of(before), before.keys(np.arange(3))))
    for at in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[at] ^= 0x41
        sidecar.write_bytes(changed)
        try:
            store = open_toy(path)
        except StoreError as error:
            assert str(sidecar) in str(error)
        else:  # padding between arrays
            assert whole[at] == 0
            assert pickle.dumps((data_of(store), store.keys(np.arange(3)))) == expected


@pytest.mark.parametrize("length", [0, 10, 40, -1])
def test_truncated_sidecar_is_refused(path: Path, length: int) -> None:
    write(path, records(3))
    sidecar = Path(sidecar_of(str(path)))
    sidecar.write_bytes(sidecar.read_bytes()[:length])
    with pytest.raises(StoreError, match="sidecar is damaged"):
        open_toy(path)


def table_of(path: Path, **changes: object) -> Table:
    columns: dict[str, object] = {
        "format": "toy",
        "files": [str(path)],
        "file": np.zeros(2, np.int32),
        "offset": np.array([0, 5]),
        "nbytes": np.array([5, 5]),
        "keys": Blobs.of([b"a", b"b"]),
    }
    return Table(**(columns | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offset": np.array([0, 6])}, "inside its file, found 5 bytes"),
        ({"offset": np.array([0, 2**62]), "nbytes": np.array([5, 2**62])}, "inside its file"),
        ({"offset": np.array([-1, 0])}, "inside its file"),
        ({"nbytes": np.array([5, -1])}, "inside its file"),
        ({"file": np.array([0, 1], np.int32)}, "inside its file"),
        ({"file": np.array([0, -1], np.int32)}, "inside its file"),
        ({"file": np.zeros(3, np.int32)}, "table of file"),
        ({"kinds": np.zeros(1, np.uint8)}, "table of kinds"),
        ({"labels": np.zeros(3, np.int64)}, "table of labels"),
        ({"labels": np.zeros(2, np.int8)}, "table of labels"),
        ({"keys": Blobs(np.zeros(2, np.uint8), np.array([1, 3]))}, "table of keys"),
        ({"keys": Blobs(np.zeros(2, np.uint8), np.array([2, 1]))}, "table of keys"),
        ({"keys": Blobs.of([b"a"])}, "table of keys"),
    ],
)
def test_table_that_does_not_fit_its_files_is_refused(
    path: Path, changes: dict[str, object], message: str
) -> None:
    path.write_bytes(bytes(10))
    assert len(table_of(path).checked()) == 2
    with pytest.raises(StoreError, match=message):
        table_of(path, **changes).checked()
    write_sidecar(f"{path}.fastload", table_of(path, **changes), [path.name])
    with pytest.raises(StoreError, match=message):
        open_toy(path)


@pytest.mark.parametrize("name", ["/etc/passwd", "../a.toy", "a/../../b"])
def test_sidecar_that_names_files_elsewhere_is_refused(path: Path, name: str) -> None:
    path.write_bytes(bytes(10))
    write_sidecar(f"{path}.fastload", table_of(path), [name])
    with pytest.raises(StoreError, match="outside of the folder"):
        open_toy(path)


def test_sidecar_of_another_format_is_refused(path: Path) -> None:
    path.write_bytes(bytes(10))
    write_sidecar(f"{path}.fastload", table_of(path, format="other"), [path.name])
    with pytest.raises(StoreError, match="store of format toy, found other"):
        open_toy(path)


# --- the store ------------------------------------------------------------------------------------


def test_sizes_that_no_table_has_are_read_from_the_images(path: Path) -> None:
    images = [picture(1, 30, 20), picture(2, 8, 9), b"no image"]
    path.write_bytes(b"".join(images))
    ends = np.cumsum([len(image) for image in images])
    nbytes = np.array([len(image) for image in images])
    for sizes in (None, np.array([[0, 0], [8, 9], [0, 0]], np.int32)):
        columns = {"file": np.zeros(3, np.int32), "offset": ends - nbytes, "nbytes": nbytes}
        keys = Blobs.of([b"a", b"b", b"c"])
        write_sidecar(
            f"{path}.fastload", table_of(path, **columns, keys=keys, sizes=sizes), [path.name]
        )
        store = open_toy(path)
        assert store.sizes(np.array([2, 0, 1, 0])).tolist() == [[0, 0], [30, 20], [8, 9], [30, 20]]
        assert pickle.loads(pickle.dumps(store)).sizes(np.array([1])).tolist() == [[8, 9]]


def test_store_that_was_replaced_is_noticed_by_a_copy_in_another_process(path: Path) -> None:
    write(path, records(5))
    pickled = pickle.dumps(open_toy(path))
    for name in os.listdir(path.parent):
        os.remove(path.parent / name)
    write(path, records(5)[::-1])
    with pytest.raises(StoreError, match="replaced by another one"):
        pickle.loads(pickled).labels  # noqa: B018


# --- sets of files --------------------------------------------------------------------------------


def test_patterns_and_braces_stand_for_files(tmp_path: Path) -> None:
    names = [f"a [1]-{i:06d}.tar" for i in range(12)]
    for name in names:
        (tmp_path / name).touch()
    whole = [str(tmp_path / name) for name in names]
    assert data_files(str(tmp_path / "a [[]1]-*.tar")) == whole
    assert data_files(str(tmp_path / "a [1]-{000003..000005}.tar")) == whole[3:6]
    assert data_files(str(tmp_path / "a [1]-00000{0..1}.tar")) == whole[:2]
    assert data_files(whole[3]) == [whole[3]]
    with pytest.raises(StoreNotFoundError, match="missing"):
        data_files(str(tmp_path / "a [1]-{000010..000012}.tar"))
    with pytest.raises(StoreError, match="1000000 files"):
        data_files(str(tmp_path / "a-{0..99999999999}.tar"))
    with pytest.raises(StoreNotFoundError, match="found nothing"):
        data_files(str(tmp_path / "b-*.tar"))


def test_work_resumed_several_times_keeps_what_every_sitting_made(path: Path) -> None:
    given = records(40)
    for stop in (11, 12, 25, 40):
        writer = ToyWriter(path, classes=CLASSES)
        assert writer.keys() == [record.key for record in given[: len(writer)]]
        writer.append(given[len(writer) : stop])
        writer.sync()
        if stop == 40:
            writer.commit()
            break
        writer.abort()
        with open(f"{path}.partial/journal", "ab") as journal:
            journal.write(b"a chunk that was cut short")
    store = open_toy(path)
    assert store.keys(np.arange(40)) == [record.key for record in given]
    assert data_of(store) == [record.data for record in given]


def test_a_journal_that_cannot_be_cut_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stubborn(io.FileIO):
        def truncate(self, size: int | None = None) -> int:
            raise OSError("read-only by now")

    opened: list[Stubborn] = []

    def opening(name: str, mode: str = "r", **options: Any) -> Any:
        if mode != "r+b":
            return open(name, mode, **options)
        opened.append(Stubborn(name, "r+"))
        return opened[-1]

    monkeypatch.setattr(_partial, "open", opening, raising=False)
    with pytest.raises(OSError, match="by now"):
        _partial.Partial(str(tmp_path / "x.lmdb"), {})
    assert [file.closed for file in opened] == [True]


@pytest.mark.parametrize("suffix", [".tar", ".tfrecord", ".rec"])
def test_more_shards_than_files_may_be_open_are_scanned_and_read(
    tmp_path: Path, suffix: str
) -> None:
    given = [
        dataclasses.replace(one, fields={"text": f"Text {i}"}) for i, one in enumerate(records(80))
    ]
    with open_writer(tmp_path / f"a{suffix}", classes=CLASSES, shards=80, total=80) as writer:
        writer.append(given)
    os.remove(tmp_path / f"a{suffix}.fastload")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 40, limits[1]))
    try:
        store, everything = open_store(tmp_path / f"a-*{suffix}"), np.arange(80)
        assert store.read(everything) == [record.data for record in given]
        for name, field in store.fields.items():
            if field.kind != "array":
                assert len(store.values(name, everything[::-1])) == 80
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
