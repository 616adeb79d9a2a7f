"""``verify`` and ``unpack`` for every format."""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import os
import struct
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder

from fastload import FastLoader
from fastload._tools import verify as verify_module
from fastload._tools.unpack import unpack
from fastload._tools.verify import Damage, verify
from fastload.converters import pack
from fastload.errors import ChecksumError, StoreError, UsageError
from fastload.storage import RAW, Record, open_store, open_writer
from storage.formats import CLASSES, ROWS, Row, records

COUNT = 30


@pytest.fixture(params=[row for row in ROWS if row.checksums], ids=lambda row: row.name)
def row(request: pytest.FixtureRequest) -> Row:
    return request.param


def flip(path: Path, record: int, where: int) -> tuple[str, int]:
    """Flip a bit of a byte of a record: file and offset of the record."""
    with open_store(path) as store:
        spans = store.spans(np.array([record]))
        file, offset = store.files[int(spans.file[0])], int(spans.offset[0])
        at = offset + where % int(spans.nbytes[0])
    with open(file, "r+b") as data:
        data.seek(at)
        byte = data.read(1)[0]
        data.seek(at)
        data.write(bytes([byte ^ 4]))
    return file, offset


def test_undamaged_store_is_right(row: Row, tmp_path: Path) -> None:
    report = verify(row.make(tmp_path, row.records(COUNT)), decode=True, workers=2)
    assert report.damaged == () and report.records == COUNT and report.checksums
    assert report.nbytes == sum(len(record.data) for record in row.records(COUNT))


def test_ctrl_c_does_not_wait_for_the_images_that_were_begun_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, stopped, decoded = threading.Event(), threading.Event(), []

    def decode(index: int) -> None:
        decoded.append(index)
        if len(decoded) > 64:  # of the second part
            begun.set()
            assert stopped.wait(60)
            time.sleep(0.01)

    def stop(done: int, total: int | None, nbytes: int) -> None:
        if done:
            assert begun.wait(60)
            stopped.set()
            raise KeyboardInterrupt

    row = next(row for row in ROWS if row.name == "lmdb")
    monkeypatch.setattr(verify_module, "_decoder_of", lambda *given: decode)
    with pytest.raises(KeyboardInterrupt):
        verify(row.make(tmp_path, row.records(192)), decode=True, workers=1, progress=stop)
    assert len(decoded) < 128


def test_empty_store_is_right(row: Row, tmp_path: Path) -> None:
    report = verify(row.make(tmp_path, []), decode=True)
    assert report.records == 0 and not report.damaged


def test_flipped_byte_is_named_with_file_record_and_offset(row: Row, tmp_path: Path) -> None:
    path = row.make(tmp_path, row.records(COUNT))
    where = np.random.default_rng(5).integers(100, 10_000, 2).tolist()
    places = {record: flip(path, record, at) for record, at in zip((12, 25), where)}
    report = verify(path)
    assert [damage.record for damage in report.damaged] == [12, 25]
    for damage in report.damaged:
        assert (damage.path, damage.offset) == places[damage.record]
        assert damage.key == row.records(COUNT)[damage.record].key
        assert "CRC32C" in damage.reason
    with pytest.raises(ChecksumError) as caught:
        list(FastLoader(path, batch_size=1))
    assert (caught.value.path, caught.value.record, caught.value.offset) == (
        places[12][0], 12, places[12][1],
    )  # fmt: skip


@pytest.mark.long
def test_flipping_any_byte_of_a_record_is_found(row: Row, tmp_path: Path) -> None:
    path = row.make(tmp_path, row.records(5))
    for at in range(len(row.records(5)[3].data)):
        place = flip(path, 3, at)
        report = verify(path)
        assert [(d.path, d.record, d.offset) for d in report.damaged] == [(place[0], 3, place[1])]
        flip(path, 3, at)
    assert verify(path).damaged == ()


def test_folder_has_no_checksums_but_is_read_and_decoded(tmp_path: Path) -> None:
    (row,) = (row for row in ROWS if row.name == "folder")
    path = row.make(tmp_path, records(COUNT))
    assert not verify(path).checksums and verify(path).damaged == ()
    name = path / records(COUNT)[7].key
    name.write_bytes(name.read_bytes()[:-80])
    assert verify(path).damaged == ()
    (damage,) = verify(path, decode=True).damaged
    assert (damage.record, damage.path, damage.offset) == (7, str(name), 0)


# Bytes before the image of a record whose change a reader of the format sees.
AROUND = {
    "a.tfrecord": [(12, "TFRecord, found"), (60, "TFRecord, found")],  # features, and what is below
    "a.tar": [(512, "header"), (400, "header"), (257, "header")],
    "a.rec": [(32, "RecordIO"), (29, "RecordIO")],  # the magic
}


@pytest.mark.parametrize("name", [*AROUND, "s.tfrecord", "s.tar", "s.rec"])
def test_what_the_format_compares_around_a_record_is_compared(tmp_path: Path, name: str) -> None:
    shards = {"shards": 2, "total": COUNT} if name.startswith("s") else {}
    with open_writer(tmp_path / name, classes=CLASSES, **shards) as writer:
        writer.append(records(COUNT))
    with open_store(tmp_path / name) as store:
        spans = store.spans(np.array([COUNT - 2]))
        file, offset = Path(store.files[int(spans.file[0])]), int(spans.offset[0])
        behind = offset + int(spans.nbytes[0]) if name.endswith(".tfrecord") else None
    whole = file.read_bytes()
    places = [(offset - at, what) for at, what in AROUND[f"a{Path(name).suffix}"]]
    places += [(behind, "masked CRC32C")] if behind is not None else []
    for at, what in places:
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        (damage,) = verify(tmp_path / name, workers=2).damaged
        assert (damage.record, damage.path) == (COUNT - 2, str(file)), at
        assert damage.key == records(COUNT)[COUNT - 2].key and what in damage.reason
        assert damage.offset is not None and damage.offset <= at
    file.write_bytes(whole)
    assert verify(tmp_path / name).damaged == ()


def test_frames_are_compared_from_part_to_part_and_to_the_end_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_module, "_READ_RECORDS", 4)
    path = tmp_path / "a.tar"
    with open_writer(path, classes=CLASSES) as writer:
        writer.append(records(COUNT))
    assert verify(path).damaged == ()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"\1")
    (damage,) = verify(path).damaged
    assert damage.record == COUNT - 1 and "end mark" in damage.reason


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tar", "a.rec"])
def test_a_file_that_is_truncated_or_deleted_meanwhile_is_damage(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_module, "_READ_RECORDS", 4)
    path = tmp_path / name
    with open_writer(path, classes=CLASSES) as writer:
        writer.append([dataclasses.replace(record, data=bytes(9000)) for record in records(COUNT)])
    with open_store(path) as store:
        until = verify_module._Frames.until

        def truncated(frames: verify_module._Frames, part: np.ndarray) -> list[Damage]:
            if part[0] == 8:
                os.truncate(path, 12_000)
            return until(frames, part)

        with monkeypatch.context() as patch:
            patch.setattr(verify_module._Frames, "until", truncated)
            damaged = [damage.record for damage in verify(store, workers=1).damaged]
        assert COUNT - 1 in damaged and sorted(set(damaged)) == damaged
        os.remove(path)
        report = verify(store)
        assert [damage.record for damage in report.damaged] == list(range(COUNT))


def test_the_last_record_of_a_truncated_file_is_listed_once(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with open_writer(path, classes=CLASSES) as writer:
        writer.append(records(COUNT))
    with open_store(path) as store:
        offset = int(store.spans(np.array([COUNT - 1])).offset[0])
        os.truncate(path, offset + 10)
        (damage,) = verify(store).damaged
    assert damage.record == COUNT - 1


def test_a_tfrecord_whose_length_starts_as_gzip_does_is_right(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    nbytes = 35_600
    while True:  # the length of what surrounds the image depends on its own
        record = dataclasses.replace(records(1)[0], data=bytes(nbytes))
        with open_writer(path) as writer:
            writer.append([record])
        (length,) = struct.unpack("<Q", path.read_bytes()[:8])
        if length == 0x8B1F:
            break
        nbytes += 0x8B1F - length
        for file in tmp_path.iterdir():
            file.unlink()
    assert path.read_bytes()[:2] == b"\x1f\x8b"
    for name in (path, tmp_path / "[a].tfrecord"):
        assert verify(name).damaged == () and len(open_store(name)) == 1


def test_the_checksums_of_records_in_tfrecords_of_other_writers_are_compared(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.tfrecord"
    with open_writer(path, classes=CLASSES) as writer:
        writer.append(records(COUNT))
    foreign = f"{tmp_path}/[a].tfrecord"  # a pattern reads what the files alone hold
    for name in (f"{path}.fastload", f"{path}.idx"):
        os.remove(name)
    report = verify(foreign)
    assert report.checksums and report.damaged == ()
    _, offset = flip(Path(foreign), 12, 500)
    (damage,) = verify(foreign).damaged
    assert damage.record == 12 and damage.offset is not None and damage.offset < offset
    assert "expected the masked CRC32C" in damage.reason


def test_progress_counts_every_record(tmp_path: Path) -> None:
    path = tmp_path / "a.lmdb"
    with open_writer(path) as writer:
        writer.append(records(COUNT))
    calls: list[tuple[int, int, int]] = []
    verify(path, progress=lambda *numbers: calls.append(numbers))
    assert calls[-1] == (COUNT, COUNT, sum(len(record.data) for record in records(COUNT)))


# --- unpack ---------------------------------------------------------------------------------------


def test_unpacked_store_is_the_folder_it_was_made_of(row: Row, tmp_path: Path) -> None:
    given = row.records(COUNT)
    path = row.make(tmp_path, given)
    report = unpack(path, tmp_path / "out ü", workers=2)
    assert (report.records, report.listed) == (COUNT, False)
    folder = ImageFolder(str(tmp_path / "out ü"))
    assert folder.classes == CLASSES
    assert folder.targets == [record.label for record in given]
    for (name, _), record in zip(folder.samples, given):
        if record.kind == RAW:
            with Image.open(name) as image:
                assert image.tobytes() == record.data
        else:
            assert Path(name).read_bytes() == record.data
            assert os.path.relpath(name, tmp_path / "out ü") == record.key


def write(path: Path, given: list[Record], classes: list[str]) -> Path:
    with open_writer(path, classes=classes) as writer:
        writer.append(given)
    return path


def test_dct_records_become_jpegs_of_the_same_pixels(tmp_path: Path) -> None:
    pytest.importorskip("fastload._native._core")
    source = unpack(write(tmp_path / "a.lmdb", records(8), CLASSES), tmp_path / "a").folder
    pack(source, tmp_path / "dct.lmdb", encode="dct")
    unpack(tmp_path / "dct.lmdb", tmp_path / "b")
    for record in records(8):
        pixels = [np.asarray(Image.open(tmp_path / side / record.key)) for side in "ab"]
        np.testing.assert_array_equal(*pixels)


def test_labels_that_are_no_classes_and_fields_are_listed(tmp_path: Path) -> None:
    given = [
        dataclasses.replace(r, label=[i / 2, i], fields={"text": "ü", "mask": b"\xff", "n": i})
        for i, r in enumerate(records(3))
    ]
    assert unpack(write(tmp_path / "a.lmdb", given, []), tmp_path / "out").listed
    lines = [json.loads(line) for line in (tmp_path / "out/records.jsonl").read_text().splitlines()]
    assert lines == [
        {"path": r.key, "label": [i / 2, i], "text": "ü", "mask": {"base64": "/w=="}, "n": i}
        for i, r in enumerate(records(3))
    ]


@pytest.mark.parametrize(
    "key", ["../a.jpg", "/etc/a.jpg", "a/../../b.jpg", "a//b.jpg", "./a.jpg", "a/..", "", "a\0.jpg"]
)
def test_keys_that_lead_elsewhere_are_refused_and_nothing_is_left(tmp_path: Path, key: str) -> None:
    given = [*records(2), dataclasses.replace(records(3)[2], key=key)]
    path = write(tmp_path / "a.lmdb", given, CLASSES)
    (tmp_path / "inner").mkdir()
    with pytest.raises(StoreError, match="path inside a folder"):
        unpack(path, tmp_path / "inner" / "out")
    assert sorted(os.listdir(tmp_path)) == ["a.lmdb", "inner"]
    assert os.listdir(tmp_path / "inner") == []


def test_class_names_that_are_no_folders_and_equal_names_are_refused(tmp_path: Path) -> None:
    for number, name in enumerate(["..", "a/b", "/abs"]):
        path = write(tmp_path / f"{number}.lmdb", records(1), [name])
        with pytest.raises(StoreError, match=r"path inside a folder|class names that can be"):
            unpack(path, tmp_path / "out")
    twice = [records(1)[0], records(1)[0]]
    with pytest.raises(StoreError, match="is the name of two records"):
        unpack(write(tmp_path / "twice.lmdb", twice, CLASSES), tmp_path / "out")


@pytest.mark.parametrize(
    "keys", [("a.jpg", "a.jpg/b.jpg"), ("a.jpg/b.jpg", "a.jpg"), ("a.jpg", "a.jpg/b/c.jpg")]
)
def test_a_name_that_is_a_file_and_a_folder_is_refused(
    tmp_path: Path, keys: tuple[str, ...]
) -> None:
    given = [dataclasses.replace(records(1)[0], key=key, label=None) for key in keys]
    path = write(tmp_path / "a.lmdb", given, [])
    with pytest.raises(
        StoreError, match=r"'a\.jpg.*' is the name .* a record and a folder"
    ) as caught:
        unpack(path, tmp_path / "out", workers=1)
    assert (caught.value.path, caught.value.record) == (str(path), 1)
    assert os.listdir(tmp_path) == ["a.lmdb"]


def test_names_that_are_too_long_for_files_are_refused(tmp_path: Path) -> None:
    long = "x" * 300
    classes = write(tmp_path / "classes.lmdb", records(1), [long])
    keyed = [dataclasses.replace(records(1)[0], key=f"{long}.png", label=None)]
    keys = write(tmp_path / "keys.lmdb", keyed, [])
    for path in (classes, keys):
        with pytest.raises(StoreError, match=r"'x{60}'\.\.\. is too long for the name of a file"):
            unpack(path, tmp_path / "out")


def test_a_folder_that_cannot_be_made_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.lmdb", records(2), CLASSES)
    with pytest.raises(StoreError, match="create it first") as caught:
        unpack(path, tmp_path / "no" / "out")
    assert caught.value.path == str(tmp_path / "no" / "out")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be written"):
        unpack(path, tmp_path / "file" / "out")

    def refuse(path: str, mode: int = 0o777) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "mkdir", refuse)  # root may write anywhere
    with pytest.raises(StoreError, match=r"Permission denied: choose another folder$"):
        unpack(path, tmp_path / "out")


def test_folders_in_use_and_links_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lmdb", records(2), CLASSES)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for name in ("full", "link"):
        with pytest.raises(UsageError, match="a new or empty folder"):
            unpack(path, tmp_path / name)
    assert unpack(path, tmp_path / "empty").records == 2


def test_damaged_record_is_not_unpacked(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lmdb", records(5), CLASSES)
    flip(path, 3, 50)
    with pytest.raises(ChecksumError, match=r"record 3.*`fastload pack --on-error skip`"):
        unpack(path, tmp_path / "out")
    assert os.listdir(tmp_path) == ["a.lmdb"]


def test_names_get_the_ending_of_what_they_hold(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (3, 2)).save(buffer, "PNG")
    keys = ["000001", "b.jpg", "c.PNG"]
    given = [Record(data=buffer.getvalue(), label=None, key=key, width=3, height=2) for key in keys]
    unpack(write(tmp_path / "a.lmdb", given, []), tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == ["000001.png", "b.jpg.png", "c.PNG"]
