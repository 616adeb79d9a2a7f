"""Shards of .h5 and .pth: each a whole file of its format, and a manifest that makes the set exist.

What every format does, sharded or not, is in test_contract.py; kills are in test_kill.py.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from fastload import FastLoader
from fastload._tools.verify import verify
from fastload.errors import StoreError, StoreNotFoundError, UsageError
from fastload.storage import Record, open_store, open_writer
from storage.formats import CLASSES, pixels, records

COUNT = 20
FORMATS = {".h5": records, ".pth": pixels}


@pytest.fixture(params=FORMATS)
def suffix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def given(suffix: str, count: int = COUNT) -> list[Record]:
    made = FORMATS[suffix](count)
    return [dataclasses.replace(r, fields={"text": r.key, "at": i}) for i, r in enumerate(made)]


def write(path: Path, made: Sequence[Record], **options: Any) -> Path:
    with open_writer(path, classes=CLASSES, metadata={"made by": "test"}, **options) as writer:
        writer.append(made)
    return path


def content(path: Path) -> tuple[Any, ...]:
    store = open_store(path)
    every = np.arange(len(store))
    assert store.labels is not None
    crcs = store.checksums(every)
    assert crcs is not None
    return (
        store.read(every), store.keys(every), store.labels.tolist(), store.sizes(every).tolist(),
        crcs.tolist(), store.values("text", every), store.column("at").tolist(), store.classes,
    )  # fmt: skip


@pytest.mark.parametrize("options", [{"shards": 3, "total": COUNT}, {"shard_nbytes": 900}])
def test_shards_hold_what_one_file_holds(suffix: str, tmp_path: Path, options: Any) -> None:
    made = given(suffix)
    one = write(tmp_path / f"one{suffix}", made)
    many = write(tmp_path / f"many{suffix}", made, **options)
    assert content(many) == content(one)
    store = open_store(many)
    names = [os.path.basename(path) for path in store.files]
    assert names == [f"many-{i:05d}-of-{len(names):05d}{suffix}" for i in range(len(names))]
    held = np.bincount(store.spans(np.arange(COUNT)).file)
    if "shards" in options:
        assert held.tolist() == [7, 7, 6]
    else:
        lengths = store.spans(np.arange(COUNT)).nbytes
        sums = np.bincount(store.spans(np.arange(COUNT)).file, lengths)
        assert (sums <= 900).sum() + (held == 1).sum() >= len(names)
    assert len(names) > 1 and store.metadata == {"made by": "test"}
    assert not verify(many).damaged


def test_a_shard_alone_is_a_whole_file_of_its_format(suffix: str, tmp_path: Path) -> None:
    made = given(suffix, 9)
    write(tmp_path / f"a{suffix}", made, shards=3, total=9)
    shard = tmp_path / f"a-00001-of-00003{suffix}"
    assert content(shard)[0] == [record.data for record in made[3:6]]
    if suffix == ".h5":
        with h5py.File(shard) as file:
            assert file["labels"][:].tolist() == [record.label for record in made[3:6]]
    else:
        saved = torch.load(shard, weights_only=True)
        assert saved["images"].shape == (3, 3, 5, 7)


@pytest.mark.native
def test_shards_are_loaded_as_one_store(tmp_path: Path) -> None:
    made = given(".pth", 9)
    path = write(tmp_path / "a.pth", made, shards=3, total=9)
    loader = FastLoader(path, batch_size=9)
    ((images, labels),) = loader
    assert "engine: native" in loader.explain()
    expected = [np.frombuffer(r.data, np.uint8).reshape(5, 7, 3).transpose(2, 0, 1) for r in made]
    np.testing.assert_array_equal(images, np.stack(expected))
    assert labels.tolist() == [record.label for record in made]


def test_without_the_manifest_the_shards_say_all(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a{suffix}", given(suffix), shards=3, total=COUNT)
    expected = content(path)
    os.remove(f"{path}.fastload")
    assert content(path) == expected
    assert content(tmp_path / f"a-*{suffix}") == expected
    assert content(tmp_path / f"a-{{00000..00002}}-of-00003{suffix}") == expected
    os.remove(tmp_path / f"a-00001-of-00003{suffix}")
    with pytest.raises(StoreNotFoundError, match="a file of the set is missing"):
        open_store(path)


def test_shards_without_a_record_lack_nothing(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a{suffix}", given(suffix, 3), shards=5, total=3)
    expected = content(path)
    os.remove(f"{path}.fastload")
    assert content(path) == expected


def test_shards_that_do_not_fit_together_are_refused(suffix: str, tmp_path: Path) -> None:
    write(tmp_path / f"a-0{suffix}", given(suffix, 3))
    write(tmp_path / f"a-1{suffix}", FORMATS[suffix](3))
    with pytest.raises(StoreError, match="same classes, labels and fields"):
        open_store(tmp_path / f"a-*{suffix}")


def test_a_shard_that_changed_sets_the_manifest_aside(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a{suffix}", given(suffix), shards=3, total=COUNT)
    write(tmp_path / f"b{suffix}", given(suffix)[:4])
    os.replace(tmp_path / f"b{suffix}", tmp_path / f"a-00000-of-00003{suffix}")
    with pytest.warns(UserWarning, match="has changed since"):
        found = open_store(path).read(np.arange(COUNT - 3))
    expected = [record.data for record in given(suffix)]
    assert found == expected[:4] + expected[7:]


def test_finished_shards_are_kept_when_work_is_interrupted(suffix: str, tmp_path: Path) -> None:
    made, options = given(suffix), {"classes": CLASSES, "shards": 3, "total": COUNT}
    whole = write(tmp_path / f"whole{suffix}", made, shards=3, total=COUNT)
    path = tmp_path / f"a{suffix}"
    writer = open_writer(path, **options)
    for record in made[:15]:
        writer.append([record])
    writer.abort()
    with pytest.raises(StoreNotFoundError, match="run the same pack command again"):
        open_store(path)
    again = open_writer(path, **options)
    assert len(again) == 14 and again.keys() == [record.key for record in made[:14]]
    again.append(made[14:])
    again.commit()
    assert content(path) == content(whole)
    assert not os.path.exists(f"{path}.partial")


def test_unfinished_shards_of_another_version_are_refused(suffix: str, tmp_path: Path) -> None:
    options = {"classes": CLASSES, "shards": 3, "total": COUNT}
    writer = open_writer(tmp_path / f"a{suffix}", **options)
    writer.append(given(suffix)[:15])
    writer.abort()
    settings = tmp_path / f"a{suffix}.partial" / "settings.json"
    settings.write_text(settings.read_text().replace('"version": 1', '"version": 0'))
    with pytest.raises(UsageError, match=r"another version .* \(0, now 1\): .* delete that folder"):
        open_writer(tmp_path / f"a{suffix}", **options)


@pytest.mark.parametrize("count", [0, 1])
def test_shards_without_records_are_empty_stores(suffix: str, tmp_path: Path, count: int) -> None:
    path = write(tmp_path / f"a{suffix}", given(suffix, count), shards=3, total=count)
    assert len(open_store(path)) == count and len(open_store(path).files) == 3
    assert len(open_store(tmp_path / f"a-00002-of-00003{suffix}")) == 0


def test_what_cannot_be_is_refused(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a{suffix}", given(suffix), shards=2, total=COUNT)
    for options in ({}, {"shards": 2, "total": 3}):
        with pytest.raises(UsageError, match="exists"):
            open_writer(path, **options)
    write(tmp_path / f"b{suffix}", given(suffix, 1))
    with pytest.raises(UsageError, match="exists"):
        open_writer(tmp_path / f"b{suffix}", shards=2, total=3)
    with pytest.raises(UsageError, match="shards: expected a known number"):
        open_writer(tmp_path / f"c{suffix}", shards=2)
    with pytest.raises(UsageError, match=r"compress single files|no compression"):
        open_writer(tmp_path / f"c{suffix}", shards=2, total=3, compression="gzip")
    with pytest.raises(UsageError, match="of one size"):
        made = pixels(4)
        made[3] = dataclasses.replace(made[3], data=bytes(8 * 5 * 3), width=8)
        write(tmp_path / f"d{suffix}", made, shards=4, total=4)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("c")]
