"""What ``pack`` reads beside folders: lists, stores, datasets, MNIST and CIFAR."""

from __future__ import annotations

import dataclasses
import gzip
import io
import itertools
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

import warm
from fastload._tools.unpack import unpack
from fastload.converters import _estimate, _overwrite, append, concat, estimate, pack
from fastload.converters._open import open_source
from fastload.converters._store_source import unique
from fastload.converters._workplace import Workplace
from fastload.errors import DecodeError, StoreError, StoreNotFoundError, UsageError
from fastload.storage import DCT, RAW, Store, _sidecar, open_store, open_writer
from storage.formats import CLASSES, PACKED, ROWS, Row, picture, pixels, records
from storage.test_recordio import with_magic


def data_of(store: Store) -> list[bytes]:
    return store.read(np.arange(len(store)))


def columns_of(path: Path) -> dict[str, Any]:
    """All of a store, as plain values."""
    store, everything = open_store(path), np.arange(len(open_store(path)))
    found: dict[str, Any] = {
        "data": data_of(store),
        "keys": store.keys(everything),
        "labels": None if store.labels is None else store.labels.tolist(),
        "sizes": store.sizes(everything).tolist(),
        "classes": list(store.classes),
    }
    for name, field in store.fields.items():
        found[name] = (
            store.column(name).tolist() if field.kind == "array" else store.values(name, everything)
        )
    return found


def write(path: Path, changes: list[dict[str, Any]] | None = None, **options: Any) -> Path:
    given = records(12)
    if changes is not None:
        given = [dataclasses.replace(r, **c) for r, c in zip(given, changes, strict=True)]
    with open_writer(path, classes=CLASSES, **options) as writer:
        writer.append(given)
    return path


# --- lists ----------------------------------------------------------------------------------------


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "flat ü"
    folder.mkdir()
    for i in range(6):
        (folder / f"bild {i}.jpg").write_bytes(picture(i, 10 + i, 8))
    return folder


def test_csv_gives_labels_classes_and_fields_in_its_order(images: Path, tmp_path: Path) -> None:
    order = [3, 0, 5, 1]
    lines = [
        f'bild {i}.jpg,{"Zoo" if i % 2 else "Äpfel"},{i},{i / 4},"ein, Text {i}"' for i in order
    ]
    (images / "list.csv").write_text("\n".join(["path,label,n,share,text", *lines]))
    pack(images / "list.csv", tmp_path / "a.lmdb")
    found = columns_of(tmp_path / "a.lmdb")
    assert found["data"] == [(images / f"bild {i}.jpg").read_bytes() for i in order]
    assert found["keys"] == [f"bild {i}.jpg" for i in order]
    assert found["classes"] == ["Zoo", "Äpfel"]
    assert found["labels"] == [0, 1, 0, 0]
    assert found["n"] == order and found["share"] == [i / 4 for i in order]
    assert found["text"] == [f"ein, Text {i}".encode() for i in order]


def test_jsonl_gives_labels_of_every_kind(images: Path, tmp_path: Path) -> None:
    rows = [
        {
            "file_name": f"../{images.name}/bild {i}.jpg",
            "label": [i, 2.5],
            "boxes": [[0, i]] * i,
            "mask": {"base64": "/w=="},
            "mixed": i if i else 0.5,
        }
        for i in range(4)
    ]
    (images / "l.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    pack(images / "l.jsonl", tmp_path / "a.lmdb")
    found = columns_of(tmp_path / "a.lmdb")
    assert found["labels"] == [[i, 2.5] for i in range(4)] and found["classes"] == []
    assert [json.loads(value) for value in found["boxes"]] == [[[0, i]] * i for i in range(4)]
    assert found["mask"] == [b"\xff"] * 4 and found["mixed"] == [0.5, 1, 2, 3]


def test_file_that_is_listed_twice_has_two_keys(images: Path, tmp_path: Path) -> None:
    (images / "l.tsv").write_text("image\tcaption\n" + "bild 1.jpg\ta\nbild 1.jpg\tb\n")
    pack(images / "l.tsv", tmp_path / "a.lmdb")
    found = columns_of(tmp_path / "a.lmdb")
    assert found["keys"] == ["bild 1.jpg", "bild 1.jpg#2"] and found["caption"] == [b"a", b"b"]
    assert found["labels"] is None


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("l.csv", "name,label\na,1\n", "expected a column called path"),
        ("l.csv", "path,label\n", "no line with one"),
        ("l.csv", "bild 1.jpg,1\nbild 2.jpg,2\n", "line 1 has to name the columns, such as path"),
        ("l.csv", "path;label\nbild 1.jpg;1\n", "expected ',' between the columns, found ';'"),
        ("l.tsv", "path,label\nbild 1.jpg,1\n", "between the columns, found ','"),
        ("l.csv", "path,label\nbild 1.jpg\n", "line 2 has not as many values"),
        ("l.csv", "path,label\nbild 1.jpg,1,2\n", "line 2 has not as many values"),
        ("l.csv", 'path,label\n"bild 1.jpg,1\n', "cannot be read"),
        ("l.jsonl", '{"path": "bild 1.jpg"}\n[]\n', "line 2 is not valid"),
        ("l.jsonl", '{"path": "bild 1.jpg"}\n{"path": "b", "x": 1}\n', "in line 2"),
        ("l.jsonl", '{"path": 7.5, "label": {}}\n', "labels that are numbers"),
        ("l.jsonl", '{"path": ["x"]}\n', "the path of a file"),
        ("l.jsonl", "[" * 100_000, "line 1 is not valid"),
        ("l.jsonl", '{"path": "x", "image": 1, "key": 2}\n', "a field cannot be called"),
    ],
)
def test_lists_that_are_wrong_say_where(
    images: Path, tmp_path: Path, name: str, text: str, message: str
) -> None:
    (images / name).write_text(text)
    with pytest.raises(StoreError, match=message):
        pack(images / name, tmp_path / "a.lmdb")
    assert not (tmp_path / "a.lmdb").exists()


def test_missing_file_of_a_list_is_named_or_skipped(images: Path, tmp_path: Path) -> None:
    (images / "l.csv").write_text("path,n\nbild 1.jpg,1\nno.jpg,2\nbild 2.jpg,3\n")
    with pytest.raises(DecodeError, match=r"no\.jpg.*cannot be read"):
        pack(images / "l.csv", tmp_path / "a.lmdb")
    report = pack(images / "l.csv", tmp_path / "b.lmdb", on_error="skip")
    assert [os.path.basename(one.path) for one in report.skipped] == ["no.jpg"]
    assert columns_of(tmp_path / "b.lmdb")["n"] == [1, 3]


def test_what_unpack_lists_can_be_packed_again(tmp_path: Path) -> None:
    changes = [
        {"label": [i / 2, i], "fields": {"t": f"ü{i}", "m": bytes([i]), "a": i, "j": [i]}}
        for i in range(12)
    ]
    path = write(tmp_path / "a.lmdb", changes)
    unpack(path, tmp_path / "out")
    pack(tmp_path / "out" / "records.jsonl", tmp_path / "b.lmdb")
    first, second = columns_of(path), columns_of(tmp_path / "b.lmdb")
    assert {**first, "classes": []} == second


# --- stores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_store_can_be_converted(row: Row, tmp_path: Path) -> None:
    source = row.make(tmp_path, row.records(12))
    pack(source, tmp_path / "b.lmdb")
    assert columns_of(tmp_path / "b.lmdb") == columns_of(source)
    kinds = open_store(tmp_path / "b.lmdb").kinds(np.arange(12))
    assert (kinds == row.records(1)[0].kind).all()


@pytest.mark.parametrize("row", PACKED, ids=lambda row: row.name)
def test_every_format_can_be_packed(row: Row, tmp_path: Path) -> None:
    (folder,) = (r for r in ROWS if r.name == "folder")
    source = folder.make(tmp_path, records(12))
    only_raw = row.records is pixels
    options = {"encode": "raw", "resize": "7x5"} if only_raw else {}
    pack(source, tmp_path / f"b{row.suffix}", **options)
    found, expected = columns_of(tmp_path / f"b{row.suffix}"), columns_of(source)
    if only_raw:
        for data, given in zip(found["data"], expected["data"]):
            with Image.open(io.BytesIO(given)) as image:
                small = image.resize((7, 5), Image.Resampling.BILINEAR)
                assert data == small.convert("RGB").tobytes()
    else:
        assert found["data"] == expected["data"]
    assert found["keys"] == expected["keys"] and found["labels"] == expected["labels"]


def test_fields_and_labels_go_along_and_images_are_encoded_anew(tmp_path: Path) -> None:
    changes = [
        {"label": [i, -i], "fields": {"t": f"{i}", "a": np.arange(i, i + 2)}} for i in range(12)
    ]
    path = write(tmp_path / "a.lmdb", changes)
    pack(path, tmp_path / "b.lmdb", encode="png", resize="crop:3")
    first, second = columns_of(path), columns_of(tmp_path / "b.lmdb")
    for name in ("labels", "t", "a", "keys", "classes"):
        assert first[name] == second[name]
    assert second["sizes"] == [[3, 3]] * 12
    assert all(data.startswith(b"\x89PNG") for data in second["data"])


def test_dct_and_raw_records_are_kept_or_decoded(tmp_path: Path) -> None:
    pytest.importorskip("fastload._native._core")
    write(tmp_path / "a.lmdb")
    pack(tmp_path / "a.lmdb", tmp_path / "dct.lmdb", encode="dct")
    assert (open_store(tmp_path / "dct.lmdb").kinds(np.arange(12)) == DCT).all()
    for encode in ("keep", "dct"):
        pack(tmp_path / "dct.lmdb", tmp_path / f"{encode}2.lmdb", encode=encode)
        assert data_of(open_store(tmp_path / f"{encode}2.lmdb")) == data_of(
            open_store(tmp_path / "dct.lmdb")
        )
    for source in ("a", "dct"):
        pack(tmp_path / f"{source}.lmdb", tmp_path / f"{source}-raw.lmdb", encode="raw")
    assert data_of(open_store(tmp_path / "dct-raw.lmdb")) == data_of(
        open_store(tmp_path / "a-raw.lmdb")
    )
    pack(tmp_path / "a-raw.lmdb", tmp_path / "png.lmdb", encode="png")
    for data, raw in zip(
        data_of(open_store(tmp_path / "png.lmdb")), data_of(open_store(tmp_path / "a-raw.lmdb"))
    ):
        with Image.open(io.BytesIO(data)) as image:
            assert image.tobytes() == raw


def test_damaged_record_of_a_store_is_not_copied(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lmdb")
    offset = int(open_store(path).spans(np.array([4])).offset[0])
    with open(path, "r+b") as file:
        file.seek(offset + 30)
        file.write(b"\0\xff\0")
    with pytest.raises(DecodeError, match="CRC32C does not match") as raised:
        pack(path, tmp_path / "b.lmdb")
    assert "remove" not in str(raised.value)  # the store is a file, but not this sample's
    report = pack(path, tmp_path / "c.lmdb", on_error="skip")
    assert report.records == 11 and len(report.skipped) == 1


def test_raw_formats_say_before_writing_that_sizes_differ(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lmdb")
    for suffix in (".zarr", ".n5", ".pth"):
        with pytest.raises(UsageError, match=r"pixels of one size only, found .*crop:224"):
            pack(path, tmp_path / f"b{suffix}")
        with pytest.raises(UsageError, match="hold raw pixels only"):
            pack(path, tmp_path / f"b{suffix}", encode="jpeg")
    with pytest.raises(UsageError, match="pixels of one size only"):
        pack(path, tmp_path / "b.h5", encode="raw", resize=16)
    assert sorted(os.listdir(tmp_path)) == ["a.lmdb"]
    pack(path, tmp_path / "b.pth", resize="crop:4")
    assert columns_of(tmp_path / "b.pth")["sizes"] == [[4, 4]] * 12


def test_resize_to_a_crop_is_torchvisions(tmp_path: Path) -> None:
    from torchvision import transforms as T

    path = write(tmp_path / "a.lmdb")
    pack(path, tmp_path / "b.lmdb", encode="raw", resize="crop:7")
    transform = T.Compose([T.Resize(7), T.CenterCrop(7)])
    for data, record in zip(data_of(open_store(tmp_path / "b.lmdb")), records(12)):
        with Image.open(io.BytesIO(record.data)) as image:
            assert data == transform(image.convert("RGB")).tobytes()


# --- append and concat ----------------------------------------------------------------------------


def test_concat_copies_the_records_of_all(tmp_path: Path) -> None:
    for name in "ab":
        write(
            tmp_path / f"{name}.lmdb",
            [{"key": f"{name}{i}", "fields": {"n": i}} for i in range(12)],
        )
    concat([tmp_path / "a.lmdb", tmp_path / "b.lmdb"], tmp_path / "c.lmdb")
    a, b, c = (columns_of(tmp_path / f"{name}.lmdb") for name in "abc")
    for name in ("data", "keys", "labels", "n"):
        assert c[name] == a[name] + b[name]
    with open_writer(tmp_path / "d.lmdb") as writer:
        writer.append([dataclasses.replace(records(1)[0], label=None)])
    with pytest.raises(UsageError, match="same classes"):
        concat([tmp_path / "a.lmdb", tmp_path / "d.lmdb"], tmp_path / "e.lmdb")


@pytest.mark.parametrize("suffix", sorted({r.suffix for r in PACKED if r.records is records}))
def test_append_puts_records_behind_those_that_are_there(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"a b{suffix}")
    names = sorted(os.listdir(tmp_path))
    write(tmp_path / "more.lmdb", [{"key": f"neu {i}"} for i in range(12)])
    before, more, reader = columns_of(path), columns_of(tmp_path / "more.lmdb"), open_store(path)
    report = append(path, tmp_path / "more.lmdb")
    assert report.records == 24 and report.parts[0].path == str(path)
    after = columns_of(path)
    for name in ("data", "keys", "labels", "sizes"):
        assert after[name] == before[name] + more[name]
    assert sorted(os.listdir(tmp_path)) == sorted([*names, "more.lmdb"])
    assert len(reader) == 12
    with pytest.raises(UsageError, match="already has a record called"):
        append(path, tmp_path / "more.lmdb")
    assert columns_of(path) == after


def test_append_to_an_empty_store_and_of_one(tmp_path: Path) -> None:
    full, empty, path = write(tmp_path / "full.lmdb"), tmp_path / "empty.lmdb", tmp_path / "a.lmdb"
    for store in empty, path:
        with open_writer(store, classes=CLASSES):
            pass
    for added in full, empty:
        assert append(path, added).records == 12
        assert columns_of(path) == columns_of(full)


def test_append_numbers_the_classes_as_the_store_does(tmp_path: Path) -> None:
    for name in ("imgs/a", "imgs/b", "imgs/c", "more/c", "more/a", "other/z", "flat"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / f"{name.replace('/', '-')}.jpg").write_bytes(picture(1, 8, 8))
    path = tmp_path / "x.lmdb"
    pack(tmp_path / "imgs", path)
    append(path, tmp_path / "more")
    store = open_store(path)
    labels = store.labels
    assert labels is not None and labels.tolist() == [0, 1, 2, 0, 2]
    assert list(store.classes) == ["a", "b", "c"]
    assert store.keys(np.arange(5))[3:] == ["a/more-a.jpg", "c/more-c.jpg"]
    with pytest.raises(UsageError, match=rf"got \[\] in '{tmp_path}/flat': pack the images"):
        append(path, tmp_path / "flat")
    append(path, tmp_path / "other")
    store = open_store(path)
    labels = store.labels
    assert labels is not None and labels.tolist() == [0, 1, 2, 0, 2, 3]
    assert list(store.classes) == ["a", "b", "c", "z"]
    assert sorted(os.listdir(tmp_path)) == ["flat", "imgs", "more", "other", "x.lmdb"]


@pytest.mark.parametrize("suffix", [".tfrecord", ".rec", ".tar"])
def test_append_that_is_killed_leaves_the_old_store_or_the_new_one_with_its_fields(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each rename in turn: no reader ever misses a field, and the next run settles."""

    class Killed(BaseException):
        pass

    def killed_at(moment: int) -> bool:
        moments = itertools.count()

        def counted(source: Any, target: Any) -> None:
            if next(moments) == moment:
                raise Killed
            rename(source, target)

        def last_steps(*arguments: Any) -> None:
            monkeypatch.setattr(os, "replace", counted)
            move(*arguments)

        rename, move = os.replace, _overwrite._move
        with monkeypatch.context() as patch:
            patch.setattr(_overwrite, "_move", last_steps)
            try:
                append(path, tmp_path / f"more{suffix}")
            except Killed:
                return True
            finally:
                patch.setattr(os, "replace", rename)
        return False

    write(tmp_path / f"more{suffix}", [{"key": f"neu {i}"} for i in range(12)])
    whole = write(tmp_path / f"whole{suffix}")
    old = columns_of(whole)
    append(whole, tmp_path / f"more{suffix}")
    new, found = columns_of(whole), []
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        folder.mkdir()
        path = write(folder / f"a{suffix}")
        names = sorted(os.listdir(folder))
        if not killed_at(moment):
            break
        now = columns_of(path)
        found.append(len(now["keys"]))
        assert now == (old if found[-1] == 12 else new)
        if found[-1] == 12:
            append(path, tmp_path / f"more{suffix}")
        else:
            with pytest.raises(UsageError, match="already has a record called"):
                append(path, tmp_path / f"more{suffix}")
        assert columns_of(path) == new and sorted(os.listdir(folder)) == names
        for name in names:  # the index files, too
            if not name.endswith(".fastload"):
                there = tmp_path / f"whole{name.removeprefix('a')}"
                assert (folder / name).read_bytes() == there.read_bytes(), name
    assert {12, 24} == set(found) and found == sorted(found)


def test_second_append_at_once_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar")
    write(tmp_path / "more.tar", [{"key": f"neu {i}"} for i in range(12)])
    before, tried = sorted(os.listdir(tmp_path)), []

    def second(done: int, total: int, nbytes: int) -> None:
        if not tried:
            with pytest.raises(UsageError, match="another process is appending") as raised:
                append(path, tmp_path / "more.tar")
            tried.append(raised)

    append(path, tmp_path / "more.tar", progress=second)
    assert len(tried) == 1 and len(open_store(path)) == 24
    assert sorted(os.listdir(tmp_path)) == before


def test_append_sees_what_was_appended_while_it_waited_for_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever held the lock has deleted its file, and replaced the store, before it is got."""
    path = write(tmp_path / "a.tar")
    for name in ("one", "two"):
        write(tmp_path / f"{name}.tar", [{"key": f"{name} {i}"} for i in range(12)])
    flock = _overwrite.fcntl.flock

    def late(lock: int, how: int) -> None:
        monkeypatch.setattr(_overwrite.fcntl, "flock", flock)
        append(path, tmp_path / "one.tar")
        flock(lock, how)

    monkeypatch.setattr(_overwrite.fcntl, "flock", late)
    append(path, tmp_path / "two.tar")
    assert [key[:3] for key in columns_of(path)["keys"][12::12]] == ["one", "two"]


def test_a_recordio_with_records_in_pieces_is_the_same_source_whenever_it_is_opened(
    tmp_path: Path,
) -> None:
    with open_writer(tmp_path / "a.rec") as writer:
        writer.append(with_magic())
    first, second = (open_source(tmp_path / "a.rec") for _ in range(2))
    assert first.digest() == second.digest()


def test_append_deletes_what_a_killed_one_had_written_of_the_next_sidecar(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar")
    write(tmp_path / "more.tar", [{"key": f"neu {i}"} for i in range(12)])
    before = sorted(os.listdir(tmp_path))
    work = Workplace(str(path), "appending")
    work.begin()
    Path(work.file("a.tar.fastload")).write_bytes(b"half")
    (tmp_path / "a.tar.replacing-lock").touch()
    with pytest.raises(UsageError, match="already has a record"):
        append(path, path)
    assert sorted(os.listdir(tmp_path)) == before


def test_reader_finds_the_sidecar_that_gets_its_name_while_it_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.tar")
    mine, waiting = _sidecar.sidecar_of(str(path)), tmp_path / "waiting"
    old = Path(mine).read_bytes()
    write(tmp_path / "more.tar", [{"key": f"neu {i}"} for i in range(12)])
    append(path, tmp_path / "more.tar")
    expected = columns_of(path)
    os.replace(mine, waiting)
    Path(mine).write_bytes(old)
    read = _sidecar._read

    def settled_meanwhile(*arguments: Any) -> Any:
        found = read(*arguments)
        if waiting.exists():
            os.replace(waiting, mine)
        return found

    monkeypatch.setattr(_sidecar, "_read", settled_meanwhile)
    assert columns_of(path) == expected


def test_append_finds_what_does_not_fit_before_it_reads_all_images(tmp_path: Path) -> None:
    path = write(tmp_path / "x.lmdb")
    before = columns_of(path)

    class Images(torch.utils.data.Dataset[Any]):
        classes = CLASSES

        def __init__(self, label: Any) -> None:
            self.label, self.read = label, 0

        def __len__(self) -> int:
            return 500

        def __getitem__(self, index: int) -> Any:
            self.read += 1
            return Image.new("RGB", (4, 4)), self.label

    for label, message in ((0.5, "type of labels"), ([1, 2], "type of labels")):
        more = Images(label)
        with pytest.raises(UsageError, match=message):
            append(path, more)
        assert more.read == 1
    (tmp_path / "list.csv").write_text("path,label,caption\nno.jpg,0,x\n")
    Image.new("RGB", (4, 4)).save(tmp_path / "no.jpg")
    with pytest.raises(UsageError, match=r"expected images (with its fields|of its classes)"):
        append(path, tmp_path / "list.csv")
    again = write(tmp_path / "y.lmdb", [{"data": b"damaged"}] * 12)
    with pytest.raises(UsageError, match="already has a record called"):
        append(path, again)  # before a damaged one is met
    assert columns_of(path) == before


@pytest.mark.parametrize("function", [append, concat])
def test_a_mistyped_option_is_answered_at_once(tmp_path: Path, function: Any) -> None:
    path = write(tmp_path / "x.lmdb")
    with pytest.raises(TypeError, match=r"'qualty'. Did you mean 'quality'"):
        function(path, tmp_path / "none", qualty=3)
    assert os.listdir(tmp_path) == ["x.lmdb"]


def test_append_reports_what_it_left_out_and_notes_where_images_came_from(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name / "a").mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / name / "a" / f"{name}.png")
    (tmp_path / "new" / "a" / "none.png").write_bytes(b"no image")
    pack(tmp_path / "old", tmp_path / "x.lmdb")
    report = append(tmp_path / "x.lmdb", tmp_path / "new", on_error="skip")
    assert [os.path.basename(one.path) for one in report.skipped] == ["none.png"]
    assert report.records == 2
    source = open_store(tmp_path / "x.lmdb").metadata["source"]
    assert source == "old, new"


def test_append_notes_what_was_made_of_the_images_of_each_time(tmp_path: Path) -> None:
    for name, options in {"old": {}, "new": {"resize": 4, "quality": 80}, "third": {}}.items():
        (tmp_path / name / "a").mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / name / "a" / f"{name}.png")
        if name == "old":
            pack(tmp_path / name, tmp_path / "x.tar")
        else:
            append(tmp_path / "x.tar", tmp_path / name, **options)
    metadata = open_store(tmp_path / "x.tar").metadata
    assert [metadata[name] for name in ("encode", "resize", "quality", "exif")] == [
        "keep, jpeg", "none, 4", "none, 80", False
    ]  # fmt: skip


@pytest.mark.parametrize("content", ["garbage", "another format", "nothing", "cut short"])
def test_waiting_sidecar_that_is_none_does_not_stop_append(tmp_path: Path, content: str) -> None:
    path = write(tmp_path / "a.tar")
    write(tmp_path / "more.tar", [{"key": f"neu {i}"} for i in range(12)])
    other = Path(_sidecar.sidecar_of(str(write(tmp_path / "b.tfrecord")))).read_bytes()
    own = Path(_sidecar.sidecar_of(str(path))).read_bytes()
    waiting = Path(_sidecar.next_sidecar_of(str(path)))
    waiting.write_bytes(
        {"garbage": b"x" * 99, "another format": other, "nothing": b"", "cut short": own[:-1]}[
            content
        ]
    )
    assert append(path, tmp_path / "more.tar").records == 24
    assert not waiting.exists() and len(open_store(path)) == 24


def test_waiting_sidecar_that_is_damaged_and_needed_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "a.rec")
    mine, waiting = _sidecar.sidecar_of(str(path)), _sidecar.next_sidecar_of(str(path))
    os.replace(mine, waiting)
    with open(waiting, "r+b") as file:
        file.truncate(os.path.getsize(waiting) - 1)
    with pytest.raises(StoreError, match=r"the sidecar is damaged.*pack the store again"):
        append(path, tmp_path / "more.tar")
    assert os.path.exists(waiting)


def test_urls_are_refused_where_only_paths_can_be(tmp_path: Path) -> None:
    url, more = "s3://bucket/a.lmdb", write(tmp_path / "more.lmdb")
    with pytest.raises(UsageError, match=r"the URL 's3://bucket/a.lmdb': fetch it first"):
        append(url, more)
    with pytest.raises(UsageError, match="the URL"):
        unpack(more, url)


def test_append_refuses_what_it_cannot_replace_at_once(tmp_path: Path) -> None:
    write(tmp_path / "more.lmdb")
    with open_writer(tmp_path / "a.zarr", classes=CLASSES) as writer:
        writer.append(pixels(4))
    with pytest.raises(UsageError, match="a store of one file"):
        append(tmp_path / "a.zarr", tmp_path / "more.lmdb")
    with pytest.raises(StoreNotFoundError):
        append(tmp_path / "none.lmdb", tmp_path / "more.lmdb")
    write(tmp_path / "b.tar")
    names = sorted(os.listdir(tmp_path))
    refused: dict[str, Any] = {"shards": 2, "shard_nbytes": 1000, "split": "val=0.5"}
    for name, value in refused.items():
        with pytest.raises(UsageError, match=f"expected no {name} "):
            append(tmp_path / "b.tar", tmp_path / "more.lmdb", **{name: value})
    assert sorted(os.listdir(tmp_path)) == names


# --- datasets -------------------------------------------------------------------------------------


class Numbers(torch.utils.data.Dataset[Any]):
    classes = ["even", "odd"]

    def __init__(self, image: Callable[[int], Any] | None = None) -> None:
        self.image = image or (lambda i: Image.fromarray(np.full((4, 6, 3), i, np.uint8)))

    def __len__(self) -> int:
        return 150

    def __getitem__(self, i: int) -> Any:
        return self.image(i), i % 2


def test_a_label_in_some_samples_alone_is_an_error(tmp_path: Path) -> None:
    class Some(Numbers):
        def __getitem__(self, i: int) -> Any:
            return super().__getitem__(i) if i % 2 else self.image(i)

    with pytest.raises(UsageError, match="expected a label in every sample of the dataset or in n"):
        pack(Some(), tmp_path / "a.lmdb")


def decoded(path: Path) -> list[np.ndarray]:
    return [np.asarray(Image.open(io.BytesIO(data))) for data in data_of(open_store(path))]


@pytest.mark.parametrize(
    "image",
    [
        None,
        lambda i: torch.full((3, 4, 6), i, dtype=torch.uint8),
        lambda i: np.full((4, 6, 3), i, np.uint8),
        lambda i: np.full((4, 6), i, np.uint8),
        lambda i: torch.full((1, 4, 6), i, dtype=torch.uint8),
    ],
    ids=["pil", "tensor", "array", "grey", "grey tensor"],
)
def test_any_dataset_is_packed_without_loss(
    tmp_path: Path, image: Callable[[int], Any] | None
) -> None:
    pack(Numbers(image), tmp_path / "a.lmdb", workers=2)
    found = columns_of(tmp_path / "a.lmdb")
    assert found["labels"] == [i % 2 for i in range(150)]
    assert found["classes"] == ["even", "odd"] and found["keys"][3] == "00000003"
    assert [int(one.max()) for one in decoded(tmp_path / "a.lmdb")] == list(range(150))


def test_a_function_that_needs_arguments_makes_no_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_arguments.py").write_text("def made(folder):\n    return [folder]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match="without arguments, got needs_arguments:made: missing"):
        pack("needs_arguments:made", tmp_path / "a.lmdb")


def test_dataset_of_files_keeps_their_bytes_and_dicts_give_fields(tmp_path: Path) -> None:
    rows = [
        {"image": picture(i, 5, 5), "label": torch.tensor([i, 0.5]), "text": "ü", "n": i}
        for i in range(5)
    ]
    pack(rows, tmp_path / "a.lmdb", encode="keep")
    found = columns_of(tmp_path / "a.lmdb")
    assert found["data"] == [row["image"] for row in rows]
    assert found["labels"] == [[i, 0.5] for i in range(5)]
    assert found["text"] == ["ü".encode()] * 5 and found["n"] == list(range(5))


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 3)])
@pytest.mark.parametrize("streamed", [False, True])
def test_dataset_that_fills_one_array_again_keeps_every_value(
    tmp_path: Path, shape: tuple[int, ...], streamed: bool
) -> None:
    image, label, box = np.zeros(shape, np.uint8), torch.zeros(2), np.zeros(4, np.float32)

    class Refilled(Numbers):
        classes = []

        def __getitem__(self, i: int) -> Any:
            image[:], label[:], box[:] = i, i, i
            return {"image": image, "label": label, "box": box}

    one = Refilled()
    source = (one[i] for i in range(150)) if streamed else one
    pack(source, tmp_path / "a.lmdb")
    found = columns_of(tmp_path / "a.lmdb")
    assert [int(pixels.max()) for pixels in decoded(tmp_path / "a.lmdb")] == list(range(150))
    assert found["labels"] == [[i, i] for i in range(150)]
    assert found["box"] == [[i] * 4 for i in range(150)]


def test_dicts_may_hold_their_image_as_a_tensor(tmp_path: Path) -> None:
    rows = [{"image": torch.full((3, 4, 6), i, dtype=torch.uint8), "label": i} for i in range(3)]
    pack(rows, tmp_path / "a.lmdb")
    assert [one.shape for one in decoded(tmp_path / "a.lmdb")] == [(4, 6, 3)] * 3


def test_damaged_image_that_a_dataset_opened_is_skipped(tmp_path: Path) -> None:
    data = [picture(i, 40, 40) for i in range(3)]
    data[1] = data[1][: len(data[1]) // 2]

    def opened() -> list[Any]:
        return [(Image.open(io.BytesIO(one)), i) for i, one in enumerate(data)]

    with pytest.raises(DecodeError, match="the image cannot be decoded: "):
        pack(opened(), tmp_path / "a.lmdb")
    report = pack(opened(), tmp_path / "a.lmdb", on_error="skip")
    assert [one.reason[:27] for one in report.skipped] == ["the image cannot be decoded"]
    assert columns_of(tmp_path / "a.lmdb")["labels"] == [0, 2]


def test_dataset_that_has_items_but_no_length_is_read_to_its_end(tmp_path: Path) -> None:
    class Endless:
        def __getitem__(self, i: int) -> Any:
            raise AssertionError("has no length")

        def __iter__(self) -> Iterator[Any]:
            return iter([(np.full((2, 2, 3), i, np.uint8), i) for i in range(3)])

    assert pack(Endless(), tmp_path / "a.lmdb").records == 3


def test_dataset_of_no_images_says_so(tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match=r"found float32 of \(3, 4, 4\)"):
        pack([(torch.zeros(3, 4, 4), 0)], tmp_path / "a.lmdb")
    with pytest.raises(UsageError, match="or one with __iter__, got int"):
        pack(1, tmp_path / "a.lmdb")


class Stream(torch.utils.data.IterableDataset[Any]):
    """150 samples, one after the other; ``stop_at`` raises there."""

    classes = ("even", "odd")

    def __init__(self, stop_at: int = -1) -> None:
        self.stop_at = stop_at

    def __iter__(self) -> Iterator[Any]:
        for i in range(150):
            if i == self.stop_at:
                raise KeyboardInterrupt
            image = Image.fromarray(np.full((4, 6, 3), i, np.uint8))
            yield {"image": image, "label": i % 2, "text": str(i)}


@pytest.mark.parametrize("suffix", [".lmdb", ".tar", ".pth"])
def test_iterable_dataset_is_packed_to_its_end(tmp_path: Path, suffix: str) -> None:
    seen: list[tuple[int, int | None, int]] = []
    path = tmp_path / f"a{suffix}"
    pack(Stream(), path, progress=lambda *now: seen.append(now), encode="raw")
    assert [total for _, total, _ in seen] == [None] * len(seen) and seen[-1][0] == 150
    store, everything = open_store(path), np.arange(150)
    assert [set(data) for data in store.read(everything)] == [{i} for i in range(150)]
    assert store.labels is not None and store.labels.tolist() == [i % 2 for i in range(150)]
    assert store.values("text", everything) == [b"%d" % i for i in range(150)]
    assert list(store.classes) == ["even", "odd"]


def test_iterable_dataset_that_was_interrupted_begins_again(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        pack(Stream(stop_at=140), tmp_path / "a.lmdb")
    assert os.listdir(tmp_path) == []
    settings = {"left": "by a kill"}
    writer = open_writer(tmp_path / "b.lmdb", settings=settings)
    writer.append(records(3))
    writer.abort()
    with pytest.raises(UsageError, match="started with other settings"):
        pack(Stream(), tmp_path / "b.lmdb")
    code = "import os, signal, sys\nsys.path[:0] = sys.argv[2:]\n" + dedent("""
        from fastload.converters import _run, pack
        from fastload.storage.formats import lmdb
        from test_sources import Stream
        lmdb._FLUSH_RECORDS = _run._CHUNK = 8
        def progress(done, total, nbytes):
            if done > 100:
                os.kill(os.getpid(), signal.SIGKILL)
        pack(Stream(), sys.argv[1], progress=progress)
    """)
    here = Path(__file__).parent
    done = warm.run(["-c", code, tmp_path / "c.lmdb", here, here.parent])
    assert done.returncode == -signal.SIGKILL
    with pytest.warns(UserWarning, match="what an interrupted run has packed .* is dropped"):
        assert pack(Stream(), tmp_path / "c.lmdb").records == 150
    assert open_store(tmp_path / "c.lmdb").values("text", np.array([149])) == [b"149"]


def test_iterable_dataset_by_name_and_what_cannot_be_done_with_it(tmp_path: Path) -> None:
    (tmp_path / "stream.py").write_text(
        "import numpy as np\n"
        "def images():\n"
        "    for i in range(5): yield np.full((2, 2, 3), i, np.uint8), i\n"
    )
    command = [sys.executable, "-m", "fastload", "pack", "stream:images", "a.tar", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert columns_of(tmp_path / "a.tar")["labels"] == [0, 1, 2, 3, 4]
    pack(Stream(), tmp_path / "b.tar", shard_nbytes=20_000)
    assert len(open_store(tmp_path / "b.tar").files) > 2
    for options in ({"split": "val=0.5"}, {"shards": 2}):
        with pytest.raises(UsageError, match=r"split them|a known number of records"):
            pack(Stream(), tmp_path / "c.tar", **options)
    with pytest.raises(UsageError, match="--dry-run"):
        estimate(Stream(), tmp_path / "c.tar")


def test_dataset_by_name_is_imported_from_here(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "class Data:\n"
        "    def __len__(self): return 3\n"
        "    def __getitem__(self, i): return np.full((2, 2, 3), i, np.uint8), i\n"
    )
    command = [sys.executable, "-m", "fastload", "pack", "mine:Data", "a.lmdb", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parts"][0]["records"] == 3
    assert columns_of(tmp_path / "a.lmdb")["labels"] == [0, 1, 2]
    with pytest.raises(UsageError, match="cannot find 'nowhere_at_all:Data'"):
        pack("nowhere_at_all:Data", tmp_path / "b.lmdb")


def test_dataset_by_name_may_import_its_neighbours_when_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("SIDE = 2\n")
    (tmp_path / "late.py").write_text(
        "import numpy as np\n"
        "class Data:\n"
        "    def __init__(self):\n"
        "        import beside\n"
        "        self.side = beside.SIDE\n"
        "    def __len__(self): return 3\n"
        "    def __getitem__(self, i):\n"
        "        return np.full((self.side, 2, 3), i, np.uint8), i\n"
    )
    code = "import sys; from fastload.converters import pack; "
    code += "sys.path = [path for path in sys.path if path]; pack('late:Data', 'a.lmdb')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert columns_of(tmp_path / "a.lmdb")["labels"] == [0, 1, 2]


# --- MNIST and CIFAR ------------------------------------------------------------------------------


def idx(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return head + array.tobytes()


@pytest.mark.parametrize("zipped", [False, True])
def test_mnist_as_it_is_downloaded(tmp_path: Path, zipped: bool) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (20, 28, 28), dtype=np.uint8)
    labels = rng.permutation(np.arange(20, dtype=np.uint8) % 10)
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
        data = idx(array)
        (raw / f"train-{name}-ubyte{'.gz' if zipped else ''}").write_bytes(
            gzip.compress(data) if zipped else data
        )
        (raw / f"train-{name}-ubyte").write_bytes(data)  # torchvision wants these
        (raw / f"t10k-{name}-ubyte").write_bytes(data)
    reference = datasets.MNIST(str(tmp_path), train=True)
    name = f"train-images-idx3-ubyte{'.gz' if zipped else ''}"
    for source in (raw, raw / name):
        path = tmp_path / f"{source.name}.lmdb"
        pack(source, path)
        store = open_store(path)
        assert (store.kinds(np.arange(20)) == RAW).all()
        for data, (image, label), ours in zip(data_of(store), reference, store.labels):
            assert data == image.convert("RGB").tobytes() and label == ours
        assert store.classes == [str(i) for i in range(10)]


def cifar_batches(hundred: bool) -> tuple[list[dict[bytes, Any]], dict[str, Any]]:
    rng = np.random.default_rng(1)
    batches = []
    for _ in range(1 if hundred else 5):
        labels = {b"fine_labels": rng.integers(0, 100, 4).tolist(),
                  b"coarse_labels": rng.integers(0, 20, 4).tolist()} if hundred else {
                  b"labels": rng.integers(0, 10, 4).tolist()}  # fmt: skip
        batches.append({b"data": rng.integers(0, 256, (4, 3072), dtype=np.uint8), **labels})
    names = [f"Klasse{i}".encode() for i in range(100 if hundred else 10)]
    return batches, {b"fine_label_names" if hundred else b"label_names": names}


@pytest.mark.parametrize("hundred", [False, True])
@pytest.mark.parametrize("archive", [False, True])
def test_cifar_in_python_and_in_binary_form(tmp_path: Path, hundred: bool, archive: bool) -> None:
    batches, meta = cifar_batches(hundred)
    names = ["train"] if hundred else [f"data_batch_{i + 1}" for i in range(5)]
    files = {name: pickle.dumps(batch, 2) for name, batch in zip(names, batches)}
    files["meta" if hundred else "batches.meta"] = pickle.dumps(meta, 2)
    files["test" if hundred else "test_batch"] = pickle.dumps(batches[0], 2)
    python = "cifar-100-python" if hundred else "cifar-10-batches-py"
    binary = "cifar-100-binary" if hundred else "cifar-10-batches-bin"
    binaries = {}
    for name, batch in zip(names, batches):
        columns = (
            [batch[b"coarse_labels"], batch[b"fine_labels"]] if hundred else [batch[b"labels"]]
        )
        head = np.array(columns, np.uint8).T
        binaries[f"{name}.bin"] = np.concatenate([head, batch[b"data"]], axis=1).tobytes()
    (classes,) = meta.values()
    binaries["fine_label_names.txt" if hundred else "batches.meta.txt"] = b"\n".join(classes)
    expected = np.concatenate([batch[b"data"] for batch in batches])
    expected = expected.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    for folder, content in ((python, files), (binary, binaries)):
        if archive:
            kind = "python" if folder == python else "binary"
            source = tmp_path / f"cifar-{100 if hundred else 10}-{kind}.tar.gz"
            with tarfile.open(source, "w:gz") as tar:
                for name, data in content.items():
                    member = tarfile.TarInfo(f"{folder}/{name}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        else:
            source = tmp_path / folder
            source.mkdir()
            for name, data in content.items():
                (source / name).write_bytes(data)
        path = tmp_path / f"{folder}.lmdb"
        pack(source, path)
        store = open_store(path)
        assert data_of(store) == [pixels.tobytes() for pixels in expected]
        key = b"fine_labels" if hundred else b"labels"
        assert store.labels is not None
        assert store.labels.tolist() == [label for batch in batches for label in batch[key]]
        if hundred:
            assert store.column("coarse_label").tolist() == batches[0][b"coarse_labels"]
        assert store.classes[:2] == ["Klasse0", "Klasse1"]
    if not archive:
        pack(tmp_path / python / ("test" if hundred else "test_batch"), tmp_path / "test.lmdb")
        assert len(open_store(tmp_path / "test.lmdb")) == 4


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("pwned",)


@pytest.mark.parametrize(
    "content",
    [Evil(), {b"data": Evil()}, [1], {b"data": 1}, {b"labels": [1]},
     {b"data": np.zeros((2, 5), np.uint8), b"labels": [1, 2]},
     {b"data": np.zeros((1, 3072), np.float32), b"labels": [1]},
     {b"data": np.array([None]), b"labels": [1]}],
)  # fmt: skip
def test_pickles_that_are_no_cifar_are_refused_and_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(pickle.dumps(content, 2))
    with pytest.raises(StoreError, match="expected"):
        pack(folder, tmp_path / "a.lmdb")
    assert sorted(os.listdir(tmp_path)) == ["cifar-10-batches-py"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\x08\3" + b"\xff" * 12,
        b"\0\0\x08\3" + b"\x7f" * 12,
        idx(np.zeros((2, 2), np.uint8)),
    ],
)
def test_damaged_idx_files_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(data)
    with pytest.raises(StoreError, match="expected"):
        pack(tmp_path / "train-images-idx3-ubyte", tmp_path / "a.lmdb")


TWO = idx(np.zeros((2, 4, 4), np.uint8))


@pytest.mark.parametrize(
    ("files", "match"),
    [
        ({"train-images-idx3-ubyte.gz": gzip.compress(TWO)[:-9]}, "the file is damaged"),
        ({"train-images-idx3-ubyte": TWO}, "expected its labels beside it, as train-labels"),
        (
            {
                "train-images-idx3-ubyte": TWO,
                "train-labels-idx1-ubyte": idx(np.zeros(3, np.uint8)),
            },
            "2 images have 3 labels",
        ),
        ({"cifar-10-python.tar.gz": b"no archive"}, "the archive is damaged"),
        ({"cifar-10-batches-bin/data_batch_1.bin": bytes(3072)}, "expected records of 3073 bytes"),
        ({"cifar-10-batches-bin/readme.html": b""}, "expected CIFAR's batches, found none"),
    ],
)
def test_downloads_that_are_not_whole_say_what_is_wrong(
    tmp_path: Path, files: dict[str, bytes], match: str
) -> None:
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    source = next(iter(files)).split("/")[0]
    with pytest.raises(StoreError, match=match):
        pack(tmp_path / source, tmp_path / "a.lmdb")


# --- estimates ------------------------------------------------------------------------------------


def test_an_estimate_of_files_that_are_no_images_says_why(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jpg").write_bytes(b"not a JPEG")
    with pytest.raises(DecodeError, match="no image could be read: expected an image, found"):
        estimate(tmp_path / "in", tmp_path / "a.lmdb")


def test_estimate_measures_every_encoding_and_writes_nothing(tmp_path: Path) -> None:
    given = [
        {"key": f"{i}", "data": picture(i, 60, 50), "width": 60, "height": 50} for i in range(12)
    ]
    path = write(tmp_path / "a.lmdb", given)
    found = {one.encode: one for one in estimate(path, tmp_path / "b.lmdb", workers=1)}
    assert {"keep", "jpeg", "png", "bmp", "raw"} <= set(found)
    assert found["keep"].nbytes == sum(len(one["data"]) for one in given)
    assert found["raw"].nbytes == 12 * 60 * 50 * 3
    speeds = [one.load_images_per_s for one in estimate(path, tmp_path / "b.lmdb", workers=1)]
    assert speeds == sorted(speeds, reverse=True) and min(speeds) > 0
    assert all(one.pack_seconds > 0 and one.sampled == 12 for one in found.values())
    (only,) = estimate(path, tmp_path / "b.zarr", resize="crop:8")
    assert (only.encode, only.nbytes) == ("raw", 12 * 8 * 8 * 3)
    with pytest.raises(UsageError, match="cannot resize"):
        estimate(path, tmp_path / "b.lmdb", encode="keep", resize=8)
    assert os.listdir(tmp_path) == ["a.lmdb"]


def test_encodings_are_loaded_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [
        {"key": f"{i}", "data": picture(i, 60, 50), "width": 60, "height": 50} for i in range(12)
    ]
    path = write(tmp_path / "a.lmdb", given)
    turns: list[tuple[str, int]] = []
    made = _estimate._loader

    def loader(source: Any, chunk: Any, threads: int, store: str, stack: Any) -> Any:
        load = made(source, chunk, threads, store, stack)

        def told(epoch: int) -> float:
            turns.append((Path(store).stem, epoch))
            return load(epoch)

        return told

    monkeypatch.setattr(_estimate, "_loader", loader)
    names = {one.encode for one in estimate(path, tmp_path / "b.lmdb", workers=1)}
    assert [epoch for _, epoch in turns] == sorted(epoch for _, epoch in turns)
    for epoch in range(4):
        assert {name for name, number in turns if number == epoch} == names
    monkeypatch.setattr(_estimate, "_PIXELS", 2 * 60 * 50)
    few = {one.encode: one.sampled for one in estimate(path, tmp_path / "b.lmdb", workers=1)}
    assert few["raw"] == 2


def test_a_list_may_be_in_utf_16_as_excel_saves_unicode(tmp_path: Path) -> None:
    (tmp_path / "ä.png").write_bytes(picture(1, 8, 8))
    (tmp_path / "l.tsv").write_bytes("path\tlabel\r\nä.png\tKüche\r\n".encode("utf-16"))
    pack(tmp_path / "l.tsv", tmp_path / "a.lmdb")
    store = open_store(tmp_path / "a.lmdb")
    assert store.keys(np.arange(1)) == ["ä.png"] and store.classes == ["Küche"]
    (tmp_path / "cut.csv").write_bytes("path,label\n".encode("utf-16")[:-1])
    with pytest.raises(StoreError, match="the list cannot be read"):
        pack(tmp_path / "cut.csv", tmp_path / "b.lmdb")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("l.csv", "path,label\na.png,{}\n"),
        ("l.tsv", "path\tid\ttext\na.png\t1\t{}\n"),
        ("l.jsonl", '{{"path": "a.png", "text": {{"of": ["{}"]}}}}\n'),
    ],
)
def test_a_list_in_another_encoding_is_refused_by_its_line(
    tmp_path: Path, name: str, line: str
) -> None:
    (tmp_path / "a.png").write_bytes(picture(1, 8, 8))
    (tmp_path / name).write_bytes(line.format("Küche").encode("latin-1"))
    with pytest.raises(StoreError, match=r"line \d: expected text in UTF-8 in '\w+'.*save the"):
        pack(tmp_path / name, tmp_path / "a.lmdb")
    (tmp_path / name).write_text(line.format("Küche"), encoding="utf-8")
    assert pack(tmp_path / name, tmp_path / "a.lmdb").records == 1


def test_progress_ends_where_all_is_done_though_some_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture(1, 8, 8))
    (tmp_path / "l.csv").write_text("path,label\na.png,x\na.png,\na.png,y\n")
    told: list[tuple[int, int | None]] = []
    pack(
        tmp_path / "l.csv", tmp_path / "a.lmdb", on_error="skip",
        progress=lambda done, total, nbytes: told.append((done, total)),
    )  # fmt: skip
    assert told[-1] == (2, 2)


def test_paths_in_a_csv_stay_as_they_are_written(tmp_path: Path) -> None:
    for index, name in enumerate(["007", "1_0"]):
        (tmp_path / name).write_bytes(picture(index, 8, 8))
    (tmp_path / "l.csv").write_text("path,label\n007,1_000\n1_0,2_000\n")
    pack(tmp_path / "l.csv", tmp_path / "a.lmdb")
    store = open_store(tmp_path / "a.lmdb")
    assert store.keys(np.arange(2)) == ["007", "1_0"]
    assert store.classes == ["1_000", "2_000"]


def test_names_that_repeat_are_numbered_as_one_after_the_other_would_be() -> None:
    chance = random.Random(1)
    for _ in range(300):
        keys = chance.choices(["a", "b", "a#2", "a#3", "a#2#2", ""], k=20)
        expected: list[str] = []
        for key in keys:
            numbers = (key if n == 1 else f"{key}#{n}" for n in itertools.count(1))
            expected.append(next(name for name in numbers if name not in expected))
        assert unique(keys) == expected


def test_a_name_that_repeats_a_million_times_is_numbered_at_once() -> None:
    """Before, each had to ask for all numbers in use: 30 hours."""
    found = unique(["x"] * 1_000_000)
    assert found[:3] == ["x", "x#2", "x#3"] and found[-1] == "x#1000000"


def test_an_image_folder_is_packed_as_its_files(tmp_path: Path) -> None:
    for name in ("b/1.jpg", "b/2.jpg", "a/3.jpg"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(picture(int(name[2]), 9, 8))
    dataset = datasets.ImageFolder(tmp_path / "in")
    dataset.samples = dataset.samples[::-1]
    report = pack(dataset, tmp_path / "x.lmdb")
    pack(tmp_path / "in", tmp_path / "y.lmdb")
    found, folder = columns_of(tmp_path / "x.lmdb"), columns_of(tmp_path / "y.lmdb")
    for name in ("data", "keys", "labels", "sizes"):
        assert found[name] == folder[name][::-1], name
    assert found["classes"] == folder["classes"] and report.records == 3


@pytest.mark.parametrize(
    "options",
    [
        {"transform": lambda image: image.rotate(180)},
        {"target_transform": lambda label: 7},
        {"loader": lambda path: Image.new("RGB", (9, 8), (1, 2, 3))},
    ],
    ids=lambda options: next(iter(options)),
)
def test_an_image_folder_that_changes_its_samples_is_packed_as_it_gives_them(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "a" / "1.jpg").write_bytes(picture(1, 9, 8))
    dataset = datasets.ImageFolder(tmp_path / "in", **options)
    pack(dataset, tmp_path / "x.lmdb")
    found = columns_of(tmp_path / "x.lmdb")
    image, label = dataset[0]
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(found["data"][0]))), np.asarray(image))
    assert found["labels"] == [label]
