"""Work in progress whose files were changed meanwhile: refused, or finished as it was packed."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import multiprocessing
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload._tools.verify import verify
from fastload.errors import FastloadError, StoreError, UsageError
from fastload.storage import Record, Writer, open_store, open_writer
from fastload.storage._partial import clear_finished
from fastload.storage._read import read_records
from storage.formats import CLASSES, pixels, records

COUNT, DONE = 12, 8  # records in all, and before the interruption

FORMATS: dict[str, dict[str, Any]] = {
    "a.lmdb": {},
    "a.tfrecord": {},
    "a.tar": {},
    "a.rec": {},
    "shards.tfrecord": {"shards": 3},
    "shards.tar": {"shards": 3},
    "shards.rec": {"shards": 3},
    "shards.h5": {"shards": 3},
    "shards.pth": {"shards": 3},
}


def given(name: str) -> list[Record]:
    made = pixels(COUNT) if name.endswith(".pth") else records(COUNT)
    return [
        dataclasses.replace(record, fields={"note": f"note {i}"}) for i, record in enumerate(made)
    ]


def begin(folder: Path, name: str) -> Writer:
    return open_writer(folder / name, classes=CLASSES, total=COUNT, **FORMATS[name])


def interrupted(folder: Path, name: str) -> Path:
    """Work in progress of which ``DONE`` records are durable; its folder."""
    writer = begin(folder, name)
    for at in range(0, DONE, 2):
        writer.append(given(name)[at : at + 2])
        writer.sync()
    writer.abort()
    return folder / f"{name}.partial"


def finished(folder: Path, name: str) -> None:
    """Resume, and compare the store with what was to be packed."""
    with begin(folder, name) as writer:
        writer.append(given(name)[len(writer) :])
    store = open_store(folder / name)
    everything = np.arange(COUNT)
    assert list(read_records(store, everything)) == [record.data for record in given(name)]
    assert store.keys(everything) == [record.key for record in given(name)]
    report = verify(folder / name)
    assert report.damaged == () and report.columns == "right"


@pytest.mark.parametrize("name", list(FORMATS))
def test_work_in_progress_is_finished(tmp_path: Path, name: str) -> None:
    partial = interrupted(tmp_path, name)
    assert partial.is_dir()
    finished(tmp_path, name)


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tar", "a.rec", "a.h5"])
def test_work_with_more_shards_than_records_is_finished(tmp_path: Path, name: str) -> None:
    def begun() -> Writer:
        return open_writer(tmp_path / name, shards=10, total=3)

    writer = begun()
    writer.append(records(3)[:2])
    writer.sync()
    writer.abort()
    with begun() as writer:
        writer.append(records(3)[len(writer) :])
    assert len(open_store(tmp_path / name)) == 3 and verify(tmp_path / name).damaged == ()


def test_a_store_whose_name_cannot_be_made_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot be written \(File name too long\): make it"):
        open_writer(tmp_path / f"{'n' * 300}.tar")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("deletions", range(6))
@pytest.mark.parametrize(("name", "needed"), [("a.lmdb", 4), ("a.rec", 5)])
def test_a_run_that_is_killed_while_it_deletes_its_work_leaves_what_the_next_one_deletes(
    tmp_path: Path, name: str, needed: int, deletions: int
) -> None:
    def killed() -> None:
        left = iter(range(deletions))
        for function in (os.unlink, os.rmdir):

            def last(
                *arguments: Any, whole: Callable[..., None] = function, **options: Any
            ) -> None:
                if os.path.lexists(tmp_path / name) and next(left, None) is None:
                    os._exit(9)
                whole(*arguments, **options)

            setattr(os, function.__name__, last)
        finished(tmp_path, name)

    process = multiprocessing.get_context("fork").Process(target=killed)
    process.start()
    process.join()
    assert process.exitcode == (9 if deletions < needed else 0)
    clear_finished(str(tmp_path / name), mark=str(tmp_path / name))
    assert os.path.exists(tmp_path / name) and not os.path.exists(tmp_path / f"{name}.partial")


def test_work_that_somebody_else_deletes_too_is_deleted_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(tmp_path, "shards.tar")
    writer, whole = begin(tmp_path, "shards.tar"), os.unlink

    def late(path: Any, **options: Any) -> None:
        whole(path, **options)
        whole(path, **options)  # as if another one had done it

    monkeypatch.setattr(os, "unlink", late)
    writer.abort(keep_partial=False)
    assert not list(tmp_path.iterdir())


def test_work_that_cannot_be_deleted_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(tmp_path, "a.tar")
    writer = begin(tmp_path, "a.tar")

    def refused(path: Any, **_: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "rmdir", refused)
    with pytest.raises(PermissionError):
        writer.abort(keep_partial=False)
    monkeypatch.undo()
    finished(tmp_path, "a.tar")


@pytest.mark.parametrize("other", ["begins", "deletes"])
def test_a_run_that_has_finished_has_not_failed_because_another_began_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    whole, whole_unlink, order = os.rmdir, os.unlink, []

    def late(path: Any, **options: Any) -> None:
        monkeypatch.setattr(os, "rmdir", whole)
        if other == "begins":
            (tmp_path / "a.tar.partial" / "lock").touch()
        else:
            whole(path, **options)
        whole(path, **options)

    def noted(path: Any, **options: Any) -> None:
        order.append(os.path.basename(path))
        whole_unlink(path, **options)

    monkeypatch.setattr(os, "rmdir", late)
    monkeypatch.setattr(os, "unlink", noted)
    finished(tmp_path, "a.tar")
    assert order[-1] == "lock"  # with it, another process may begin


@pytest.mark.parametrize("moment", ["lstat", "open", "lockf"])
def test_a_partial_whose_owner_finishes_while_it_is_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    partial = interrupted(tmp_path, "a.tar")
    module: Any = fcntl if moment == "lockf" else os
    whole = getattr(module, moment)

    def late(*arguments: Any, **options: Any) -> Any:
        if moment == "lockf" or str(arguments[0]).endswith((".partial", "/lock")):
            monkeypatch.setattr(module, moment, whole)
            shutil.rmtree(partial)
        return whole(*arguments, **options)

    monkeypatch.setattr(module, moment, late)
    with pytest.raises(UsageError, match="another process has just finished or deleted"):
        begin(tmp_path, "a.tar")
    monkeypatch.undo()
    finished(tmp_path, "a.tar")


@pytest.mark.parametrize("name", list(FORMATS))
def test_a_flipped_bit_of_the_data_is_refused_or_of_no_consequence(
    tmp_path: Path, name: str, count: Callable[[int, int], int]
) -> None:
    refused = 0
    for seed in range(count(12, 200)):
        chance = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        partial = interrupted(folder, name)
        files = [path for path in sorted(partial.iterdir()) if path.stat().st_size]
        target = chance.choice(files if seed % 3 else [p for p in files if p.name[0] in "ds"])
        data = bytearray(target.read_bytes())
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        target.write_bytes(data)
        try:
            finished(folder, name)
        except FastloadError as error:
            refused += 1
            assert str(partial) in str(error), error
    assert refused


@pytest.mark.parametrize("name", [name for name in FORMATS if not name.endswith((".h5", ".pth"))])
def test_every_byte_of_a_record_is_compared(tmp_path: Path, name: str) -> None:
    partial = interrupted(tmp_path, name)
    target = partial / ("data.mdb" if name.endswith(".lmdb") else "data-00000")
    data = target.read_bytes()
    image = bytes(given(name)[1].data)
    at = data.index(image)
    changed = image[:60] + bytes([image[60] ^ 1]) + image[61:]
    for other in (
        data.replace(image, changed),
        data[: at + 9],
    ):  # LMDB has pages that count no more
        target.write_bytes(other)
        with pytest.raises(StoreError, match="the unfinished store is damaged, delete the folder"):
            begin(tmp_path, name)
    target.write_bytes(data)
    finished(tmp_path, name)


STREAMS = [name for name in FORMATS if name.endswith((".tfrecord", ".tar", ".rec"))]


@pytest.mark.parametrize("name", STREAMS)
def test_every_byte_around_the_records_is_compared(
    tmp_path: Path, name: str, count: Callable[[int, int], int]
) -> None:
    partial = interrupted(tmp_path, name)
    target = min(partial.glob("data-*"))
    data = target.read_bytes()
    around = set(range(len(data)))
    for record in given(name)[:DONE]:
        at = data.find(record.data)
        if at >= 0:
            around -= {*range(at, at + len(record.data))}
    assert len(around) > 100
    places = sorted(around)
    for place in places[:: max(1, len(places) // count(200, len(places)))]:
        target.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(StoreError, match=r"what surrounds it, .*: the unfinished store is"):
            begin(tmp_path, name)
    target.write_bytes(data)
    finished(tmp_path, name)


@pytest.mark.parametrize("name", STREAMS)
def test_work_of_a_version_that_noted_no_checksums_of_frames_is_refused(
    tmp_path: Path, name: str
) -> None:
    settings = interrupted(tmp_path, name) / "settings.json"
    settings.write_text(settings.read_text().replace('"version": 2', '"version": 1'))
    with pytest.raises(UsageError, match=r"another version .* \(1, now 2\): .* delete that folder"):
        begin(tmp_path, name)


@pytest.mark.parametrize("name", [name for name in FORMATS if name.endswith((".tfrecord", ".tar"))])
def test_a_file_that_has_lost_what_follows_its_last_record_is_refused(
    tmp_path: Path, name: str
) -> None:
    partial = interrupted(tmp_path, name)
    target = max(partial.glob("data-*"))
    data = target.read_bytes()
    target.write_bytes(data[:-1])
    with pytest.raises(
        StoreError, match=r"expected .* bytes of a record and .*, found .*: the unfinished"
    ):
        begin(tmp_path, name)
    target.write_bytes(data)
    finished(tmp_path, name)


def test_records_that_recordio_cuts_in_pieces_are_compared_too(tmp_path: Path) -> None:
    magic = bytes.fromhex("0a23d7ce")
    cut = [
        dataclasses.replace(record, data=magic + bytes(record.data) + magic * 2)
        for record in records(4)
    ]
    with pytest.raises(KeyboardInterrupt), open_writer(tmp_path / "a.rec") as writer:
        writer.append(cut[:3])
        writer.sync()
        raise KeyboardInterrupt
    target = tmp_path / "a.rec.partial" / "data-00000"
    whole = target.read_bytes()
    for place in (5, 30, 60, len(whole) // 2, len(whole) - 9):
        target.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(StoreError, match="expected checksum"):
            open_writer(tmp_path / "a.rec")
    target.write_bytes(whole)
    with open_writer(tmp_path / "a.rec") as writer:
        assert len(writer) == 3
        writer.append(cut[3:])
    store = open_store(tmp_path / "a.rec")
    assert store.read(np.arange(4)) == [record.data for record in cut]
