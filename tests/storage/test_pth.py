""".pth stores: torch.load reads ours, torch.save's are read, and no pickle gets to run anything."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastload import FastLoader, StoreError
from fastload.storage import Record, open_store, open_writer
from storage.formats import CLASSES, loaded, pixels, records, write

COUNT = 23


def images(count: int = COUNT) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    shape = (count, 3, 11, 9)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("mmap", [True, False])
def test_torch_loads_what_we_write(tmp_path: Path, mmap: bool) -> None:
    given = [
        Record(**{**vars(record), "fields": {"box": np.arange(4, dtype=np.float32) + i}})
        for i, record in enumerate(pixels(COUNT))
    ]
    content = torch.load(write(tmp_path / "a.pth", given), weights_only=True, mmap=mmap)
    found = content["images"]
    assert found.shape == (COUNT, 3, 5, 7) and found.dtype == torch.uint8
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert [one.permute(1, 2, 0).numpy().tobytes() for one in found] == [r.data for r in given]
    assert content["labels"].tolist() == [record.label for record in given]
    assert content["keys"] == [record.key for record in given]
    assert content["classes"] == CLASSES
    assert content["fields"]["box"][5].tolist() == [5, 6, 7, 8]
    assert found.data_ptr() % 64 == content["labels"].data_ptr() % 64 == 0 or not mmap


@pytest.mark.parametrize("container", ["dict", "tuple", "tensor", "data"])
@pytest.mark.parametrize("memory", ["channels_last", "contiguous"])
def test_tensors_that_torch_saved_are_read(tmp_path: Path, container: str, memory: str) -> None:
    tensor, labels, path = images(), torch.arange(COUNT), tmp_path / "a.pth"
    if memory == "channels_last":
        tensor = tensor.contiguous(memory_format=torch.channels_last)
    content: dict[str, Any] = {
        "dict": {"images": tensor, "labels": labels, "classes": ["a", "b"], "epoch": 3, "x": b"y"},
        "tuple": (tensor, labels),
        "tensor": tensor,
        "data": {"data": tensor, "targets": labels.tolist()},
    }
    torch.save(content[container], path)
    store = open_store(path)
    assert (store.indirect is None) == (memory == "channels_last")
    found, kept = loaded(path)
    assert torch.equal(found, tensor)
    assert (kept is None) == (container == "tensor")
    assert kept is None or torch.equal(kept, labels)


def test_views_and_gray_images_are_read(tmp_path: Path) -> None:
    tensor = images()
    gray = tensor[:, 0]
    cases = {
        "nhwc": (tensor.permute(0, 2, 3, 1).contiguous(), tensor),
        "part": (tensor[3:9, :, 2:, 1:], tensor[3:9, :, 2:, 1:]),
        "gray": (gray, gray[:, None].expand(-1, 3, -1, -1)),
        "mnist": (gray[:, None], gray[:, None].expand(-1, 3, -1, -1)),
        "same": (tensor[:1].expand(5, -1, -1, -1), tensor[:1].expand(5, -1, -1, -1)),
    }
    for name, (saved, wanted) in cases.items():
        path = tmp_path / f"{name}.pth"
        torch.save({"images": saved}, path)
        assert torch.equal(loaded(path)[0], wanted), name
    assert open_store(tmp_path / "nhwc.pth").indirect is None
    explained = FastLoader(tmp_path / "gray.pth", batch_size=4).explain()
    assert "slower: gray.pth" in explained and "pack it again" in explained


def test_pixels_need_no_sizes_and_kinds_so_what_has_these_names_is_left_alone(
    tmp_path: Path,
) -> None:
    other = {"sizes": torch.zeros(3), "kinds": torch.zeros(2, 2)}
    torch.save({"images": images(), **other}, tmp_path / "a.pth")
    assert open_store(tmp_path / "a.pth").sizes(np.arange(2)).shape == (2, 2)


def test_image_files_are_refused_before_anything_is_kept(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "a.pth", classes=CLASSES)
    with pytest.raises(ValueError, match="encode='raw'"):
        writer.append(records(3))
    writer.abort()
    assert os.listdir(tmp_path) == []


class _Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch evil",)


def test_no_pickle_gets_to_run_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"images": images(), "x": _Evil()}, "a.pth")
    with pytest.raises(StoreError, match=r"the object posix\.system"):
        open_store("a.pth")
    for protocol in (2, 4):
        with zipfile.ZipFile("b.pth", "w") as archive:
            archive.writestr("b/data.pkl", pickle.dumps(_Evil(), protocol))
        with pytest.raises(StoreError, match=r"the object .*system"):
            open_store("b.pth")
    with zipfile.ZipFile("c.pth", "w") as archive:
        archive.writestr("c/data.pkl", pickle.dumps(_Evil(), 0))  # which torch never writes
    with pytest.raises(StoreError, match="the opcode"):
        open_store("c.pth")
    assert not os.path.exists("evil")


def _patched(source: Path, target: Path, change: dict[str, bytes | None]) -> Path:
    """A copy of a .pth file with other entries."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            name = info.filename.partition("/")[2]
            data = change.get(name, old.read(info))
            if data is not None:
                new.writestr(info.filename, data)
    return target


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pth", pixels(COUNT))
    data = path.read_bytes()
    bad = tmp_path / "bad.pth"
    for nbytes in (0, 7, 100, len(data) // 2, len(data) - 1):
        bad.write_bytes(data[:nbytes])
        with pytest.raises(StoreError, match="truncated"):
            open_store(bad)
    with zipfile.ZipFile(path) as archive:
        pickled = archive.read("archive/data.pkl")
    changes: list[tuple[dict[str, bytes | None], str]] = [
        ({"data/0": None}, "expected 'data/0'"),
        ({"data/0": b"x"}, "elements of uint8"),
        ({"data.pkl": None}, "expected one data.pkl"),
        ({"data.pkl": pickled[:-20]}, "expected tensors"),
        ({"data.pkl": b"\x80\x02r\xff\xff\xff\x7f."}, "expected tensors"),
        ({"byteorder": b"big"}, "little-endian"),
    ]
    for change, message in changes:
        with pytest.raises(StoreError, match=message):
            open_store(_patched(path, bad, change))
    with zipfile.ZipFile(bad, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", pickled)
    with pytest.raises(StoreError, match="compressed"):
        open_store(bad)
    torch.save({"state_dict": {"weight": torch.zeros(3)}}, bad)
    with pytest.raises(StoreError, match="is it a model"):
        open_store(bad)
    torch.save({"images": images()}, bad, _use_new_zipfile_serialization=False)
    with pytest.raises(StoreError, match=r"before 1\.6"):
        open_store(bad)


def test_tensors_outside_of_their_storage_are_refused(tmp_path: Path) -> None:
    torch.save({"images": images(2)}, tmp_path / "a.pth")
    with zipfile.ZipFile(tmp_path / "a.pth") as archive:
        pickled = archive.read("a/data.pkl")
    shape = b"(K\x02K\x03K\x0bK\x09t"
    assert pickled.count(shape) == 1
    for other in (b"(K\x03K\x03K\x0bK\x09t", b"(J\xff\xff\xff\xffK\x03K\x0bK\x09t"):
        bad = _patched(tmp_path / "a.pth", tmp_path / "bad.pth",
                       {"data.pkl": pickled.replace(shape, other)})  # fmt: skip
        with pytest.raises(StoreError, match="expected tensors"):
            open_store(bad)


def test_an_entry_outside_of_the_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pth", pixels(COUNT))
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02")  # the directory's entry of data/0, offset 42: where it lies
    data[at + 42 : at + 46] = (len(data) - 40).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(StoreError):
        open_store(path)
