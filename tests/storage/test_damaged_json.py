"""Members of others' archives that are no JSON or no text: the record is bad, not the epoch."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision import transforms as T

from fastload import FastLoader, PackedDataset, open_store, pack
from fastload._tools.unpack import unpack
from fastload.errors import DecodeError, StoreError, UsageError
from fastload.storage import Record, open_writer
from storage.formats import alone, picture

COUNT, BAD = 6, 4
DAMAGED = {
    "cut off": ("json", b'{"caption": '),
    "not UTF-8": ("json", b'{"caption": "\xe9"}'),
    "too deep": ("json", b"[" * 5000),
    "text of another encoding": ("txt", b"caf\xe9"),
}
HALF = rb'{"caption": "\ud83d"}'  # valid JSON for half a character


def archive(path: Path, ending: str, bad: bytes) -> Path:
    good = b'{"caption": "a"}' if ending == "json" else b"a caption"
    with tarfile.open(path, "w") as file:
        for i in range(COUNT):
            for name, data in (
                (f"{i}.jpg", picture(i, 8, 6)),
                (f"{i}.{ending}", bad if i == BAD else good),
            ):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                file.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture(params=list(DAMAGED))
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return archive(tmp_path / "a.tar", *DAMAGED[request.param])


def in_python(image: Any) -> Any:
    return T.functional.to_tensor(image)


@pytest.mark.parametrize("transform", [T.ToTensor(), in_python], ids=["engine", "workers"])
@pytest.mark.parametrize("on_error", ["skip", "replace", "refill"])
def test_a_loader_treats_the_record_as_bad(damaged: Path, transform: Any, on_error: Any) -> None:
    loader = FastLoader(
        PackedDataset(damaged, transform, fields=("key", *open_store(damaged).fields)), 3,
        on_error=on_error, max_errors=1,
    )  # fmt: skip
    batches = list(loader)
    keys = [int(key) for batch in batches for key in batch["key"]]
    assert keys == ([0, 1, 2, 3, 5, 5] if on_error == "replace" else [0, 1, 2, 3, 5])
    images = PackedDataset(damaged, T.ToTensor(), fields=())
    for batch in batches:
        for i, key in enumerate(batch["key"]):
            assert (batch["image"][i] == images[int(key)]["image"]).all()
        (values,) = (batch[name] for name in open_store(damaged).fields)
        if transform is not in_python:  # default_collate makes a dict of dicts
            good = {"caption": "a"} if isinstance(values[0], dict) else "a caption"
            assert values == [good] * len(batch["key"])
    (entry,) = loader.stats()["errors"]
    assert (entry["index"], entry["file"]) == (BAD, str(damaged))
    assert f"record {BAD}" in entry["error"]


@pytest.mark.parametrize("transform", [T.ToTensor(), in_python], ids=["engine", "workers"])
def test_the_error_names_file_and_record(damaged: Path, transform: Any) -> None:
    loader = FastLoader(PackedDataset(damaged, transform, fields="all"), 3)
    with pytest.raises(StoreError, match=r"in the field '(json|txt)', found something") as caught:
        list(loader)
    assert (caught.value.path, caught.value.record) == (str(damaged), BAD)
    with pytest.raises(StoreError) as caught:
        unpack(damaged, damaged.parent / "files")
    assert (caught.value.path, caught.value.record) == (str(damaged), BAD)
    assert sorted(path.name for path in damaged.parent.iterdir()) == ["a.tar"]


@pytest.mark.parametrize("suffix", [".tar", ".lmdb", ".tfrecord"])
def test_pack_leaves_the_record_out_or_names_it(damaged: Path, suffix: str) -> None:
    path = damaged.parent / f"b{suffix}"
    with pytest.raises(DecodeError, match=r"in the field '(json|txt)', found something") as caught:
        pack(damaged, path)
    assert (caught.value.path, caught.value.record) == (str(damaged), BAD)
    report = pack(damaged, path.with_stem("c"), on_error="skip")
    assert [one.record for one in report.skipped] == [BAD] and report.records == COUNT - 1
    (batch,) = FastLoader(PackedDataset(path.with_stem("c"), fields="all"), COUNT)
    assert len(batch["image"]) == COUNT - 1


def test_half_a_character_in_json_comes_back_unchanged(tmp_path: Path) -> None:
    path, every = archive(tmp_path / "a.tar", "json", HALF), np.arange(COUNT)
    expected = [json.loads(HALF) if i == BAD else {"caption": "a"} for i in range(COUNT)]
    assert open_store(path).batch("json", every) == expected
    for name in ("b.tar", "c.lmdb"):
        pack(path, tmp_path / name)
        assert open_store(tmp_path / name).batch("json", every) == expected
    without = open_store(alone(tmp_path / "b.tar")).batch("json", every)
    assert [one["json"] for one in without] == expected
    unpack(path, tmp_path / "files")
    lines = (tmp_path / "files" / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["json"] for line in lines] == expected
    pack(tmp_path / "files" / "records.jsonl", tmp_path / "d.lmdb")
    assert open_store(tmp_path / "d.lmdb").batch("json", every) == expected


def test_text_with_half_a_character_is_refused_in_words(tmp_path: Path) -> None:
    def record(**fields: Any) -> Record:
        return Record(
            data=picture(0, 8, 6), label=None, key="0.jpg", width=8, height=6, fields=fields
        )

    for suffix in (".tar", ".lmdb"):
        with open_writer(tmp_path / f"a{suffix}") as writer:
            with pytest.raises(UsageError, match=r"'caption': .* half of one \(a lone surrogate\)"):
                writer.append([record(caption="a \ud83d")])
            writer.append([record(caption=["a \ud83d"])])
        assert open_store(tmp_path / f"a{suffix}").batch("caption", np.arange(1)) == [["a \ud83d"]]
