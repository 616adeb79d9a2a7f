"""HDF5 stores: read by h5py alone, files of others, no waiting for its lock, hostile files."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from fastload import FastLoader, StoreError, StoreNotFoundError, UsageError
from fastload._tools.summary import summarise
from fastload.storage import RAW, Record, open_store, open_writer
from fastload.storage.formats import hdf5 as module
from storage.formats import CLASSES, loaded, pixels, records, write

COUNT = 23


def images(count: int = COUNT) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (count, 11, 9, 3), dtype=np.uint8)


def expected(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array).permute(0, 3, 1, 2)


ALONE = """
import sys
import h5py
import numpy as np

with h5py.File(sys.argv[1]) as file:
    labels, classes = file["labels"][:], np.char.decode(file["classes"][:], "utf-8")
    names, stops = file["keys/data"][:].tobytes(), file["keys/ends"][:]
    keys = [names[a:b].decode("utf-8") for a, b in zip([0, *stops[:-1]], stops)]
    if "images" in file:
        assert file["images"].chunks is None and file["images"].dtype == np.uint8
        records = [image.tobytes() for image in file["images"]]
    else:
        ends = file["offsets"][:]
        records = [file["bytes"][a:b].tobytes() for a, b in zip(ends[:-1], ends[1:])]
    boxes = file["fields/box"][:]
assert "fastload" not in sys.modules
print(repr([labels.tolist(), keys, classes.tolist(), records, boxes.tolist()]))
"""


@pytest.mark.parametrize("make", [records, pixels])
def test_h5py_alone_reads_what_we_write(tmp_path: Path, make: Any) -> None:
    given = [
        Record(**{**vars(record), "fields": {"box": np.arange(4) + i}})
        for i, record in enumerate(make(COUNT))
    ]
    path = write(tmp_path / "a.h5", given)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(path)], capture_output=True, text=True, check=True,
        cwd=tmp_path, encoding="utf-8", env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    labels, keys, classes, found, boxes = ast.literal_eval(done.stdout)
    assert labels == [record.label for record in given]
    assert keys == [record.key for record in given]
    assert classes == CLASSES
    assert found == [record.data for record in given]
    assert boxes == [list(range(i, i + 4)) for i in range(COUNT)]


@pytest.mark.parametrize("names", [("images", "labels"), ("data", "label"), ("X", "y")])
@pytest.mark.parametrize("userblock", [0, 512])
def test_foreign_files_of_images_and_labels_are_read_in_place(
    tmp_path: Path, names: tuple[str, str], userblock: int
) -> None:
    array, path = images(), tmp_path / "a.hdf5"
    with h5py.File(path, "w", userblock_size=userblock) as file:
        file[names[1]] = np.arange(COUNT, dtype=np.int32)
        file[names[0]] = array
    store = open_store(path)
    assert store.indirect is None
    assert store.keys(np.array([0, 22])) == ["00000000", "00000022"]
    found, labels = loaded(path)
    assert torch.equal(found, expected(array))
    assert labels is not None and labels.tolist() == list(range(COUNT))


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        ("NHWC", {"chunks": (4, 11, 9, 3)}),
        ("NHWC", {"chunks": (2, 5, 9, 3), "compression": "gzip", "shuffle": True}),
        ("NCHW", {}),
        ("NHW", {}),
        ("NHW1", {"compression": "lzf"}),
    ],
)
def test_other_layouts_give_the_same_batches_and_say_what_they_cost(
    tmp_path: Path, layout: str, options: dict[str, Any]
) -> None:
    array, path = images(), tmp_path / "a.h5"
    if layout.startswith("NHW") and layout != "NHWC":
        array[:] = array[..., :1]
    stored = {"NHWC": array, "NCHW": array.transpose(0, 3, 1, 2), "NHW": array[..., 0],
              "NHW1": array[..., :1]}[layout]  # fmt: skip
    with h5py.File(path, "w") as file:
        file.create_dataset("images", data=stored, **options)
    found, labels = loaded(path)
    assert torch.equal(found, expected(array)) and labels is None
    assert summarise(open_store(path)).nbytes == array.nbytes
    loader = FastLoader(path, batch_size=4)
    assert "slower: a.h5" in loader.explain() and "pack it again" in loader.explain()
    assert "engine: native" in loader.explain() and "pillow" not in loader.explain()


def test_arrays_of_variable_length_hold_image_files(tmp_path: Path) -> None:
    array, path = images(), tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("images", (COUNT,), h5py.vlen_dtype(np.uint8))
        for i, image in enumerate(array):
            buffer = io.BytesIO()
            Image.fromarray(image).save(buffer, "PNG")
            data[i] = np.frombuffer(buffer.getvalue(), np.uint8)
    assert torch.equal(loaded(path)[0], expected(array))


@pytest.mark.parametrize("compression", ["gzip", "lzf"])
def test_a_compressed_store_gives_the_batches_of_one_that_is_not(
    tmp_path: Path, compression: str
) -> None:
    given = pixels(COUNT)
    plain = write(tmp_path / "plain.h5", given)
    packed = write(tmp_path / "packed.h5", given, compression=compression)
    with h5py.File(packed) as file:
        assert file["images"].compression == compression
    for ours, theirs in zip(loaded(plain), loaded(packed), strict=True):
        assert ours is not None and theirs is not None and torch.equal(ours, theirs)
    a, b, every = open_store(plain), open_store(packed), np.arange(COUNT)
    assert a.keys(every) == b.keys(every) and list(b.classes) == CLASSES
    assert np.array_equal(a.checksums(every), b.checksums(every))  # type: ignore[arg-type]


def test_compressed_image_files_keep_their_bytes(tmp_path: Path) -> None:
    given = records(COUNT)
    store = open_store(write(tmp_path / "a.h5", given, compression="gzip"))
    order = np.random.default_rng(0).permutation(COUNT)
    assert store.read(order) == [given[i].data for i in order]


def test_an_unknown_compression_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="gzip, lzf"):
        open_writer(tmp_path / "a.h5", compression="zip")


def test_two_threads_load_while_another_holds_the_lock_of_h5py(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", pixels(COUNT))
    loaders = [FastLoader(path, batch_size=4, num_workers=2) for _ in range(2)]
    for loader in loaders:
        next(iter(loader))  # what is opened once is open
    half = threading.Barrier(2, timeout=60)
    found: list[list[Any]] = [[], []]

    def load(number: int) -> None:
        for batch in loaders[number]:
            found[number].append(batch)
            if len(found[number]) in (1, 3):
                half.wait()  # both are in the middle of an epoch

    blocked = threading.Thread(target=lambda: h5py.File(path).close())
    with h5py._objects.phil:  # every call of h5py waits for this lock
        blocked.start()
        threads = [threading.Thread(target=load, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert blocked.is_alive()  # h5py itself does wait
        assert [len(part) for part in found] == [6, 6]
    blocked.join(timeout=60)


def test_no_file_stays_open_in_the_library(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", pixels(COUNT))
    packed = write(tmp_path / "b.h5", pixels(COUNT), compression="gzip")
    stores = [open_store(path), open_store(packed)]
    for store in stores:
        store.read(np.arange(COUNT))
    assert h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE) == 0
    held = {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
    assert not held & {str(path), str(packed)}


def test_records_are_where_they_were_written_also_where_the_library_puts_datasets_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.Hdf5Writer, "_first_offset", lambda self: 300)
    given = pixels(COUNT)
    store = open_store(write(tmp_path / "a.h5", given))
    assert store.read(np.arange(COUNT)) == [record.data for record in given]


def test_image_files_and_pixels_do_not_mix(tmp_path: Path) -> None:
    for first, then in ((records(2), pixels(2)), (pixels(2), records(2))):
        writer = open_writer(tmp_path / "a.h5", classes=CLASSES)
        writer.append(first)
        with pytest.raises(UsageError, match="only"):
            writer.append(then)
        writer.abort()
    assert os.listdir(tmp_path) == []


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", pixels(COUNT))
    data = path.read_bytes()
    for nbytes in (0, 7, 100, 2048, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:nbytes])
        with pytest.raises(StoreError):
            open_store(path)
    path.write_bytes(b"\x89PNG" + data[4:])
    with pytest.raises(StoreError, match="expected an HDF5 file"):
        open_store(path)


def test_data_in_other_files_are_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(2 * 11 * 9 * 3))
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("images", (2, 11, 9, 3), np.uint8, external=[(str(secret), 0, 594)])
    with pytest.raises(StoreError, match="other files"):
        open_store(path)
    other = tmp_path / "b.h5"
    with h5py.File(other, "w") as file:
        file["images"] = h5py.ExternalLink(str(path), "images")
    with pytest.raises(StoreError, match="expected a dataset of images"):
        open_store(other)


def test_absurd_sizes_are_refused(tmp_path: Path) -> None:
    cases: list[tuple[str, tuple[int, ...], Any]] = [
        ("never written", (2, 11, 9, 3), np.uint8),
        ("at most", (2, 1 << 20, 1 << 20, 3), np.uint8),
        ("expected images of shape", (2, 11, 9, 4), np.uint8),
        ("expected uint8", (2, 11, 9, 3), np.float32),
    ]
    for number, (message, shape, dtype) in enumerate(cases):
        path = tmp_path / f"{number}.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("images", shape, dtype)
        with pytest.raises(StoreError, match=message):
            open_store(path)
    with h5py.File(tmp_path / "bomb.h5", "w") as file:
        file.create_dataset("images", (1 << 20, 256, 256, 3), np.uint8, chunks=(1, 256, 256, 3))
    with pytest.raises(StoreError, match="not finished"):
        open_store(tmp_path / "bomb.h5")


def test_keys_are_read_when_they_are_asked_for_and_of_the_same_file_only(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    for keys in (["a", "b"], ["c", "d"]):
        path.unlink(missing_ok=True)
        with h5py.File(path, "w") as file:
            file["images"], file["keys"] = images()[:2], keys
        if keys[0] == "a":
            first, second = open_store(path), open_store(path)
            assert first.keys(np.array([1, 0])) == ["b", "a"]
    assert first.keys(np.array([1])) == ["b"]
    with pytest.raises(StoreError, match="replaced by another one"):
        second.keys(np.array([1]))


def test_strings_of_any_bytes_are_those_that_the_library_reads(tmp_path: Path) -> None:
    names = ["", "é 写真", "x" * 70_000, *map(str, range(2_000))]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["images"], file["keys"] = np.zeros((len(names), 1, 1, 3), np.uint8), names
        file["classes"] = np.array([b"fixed", b"length"])
        file["labels"] = np.zeros(len(names), np.int64)
    store = open_store(tmp_path / "x.h5")
    assert store.keys(np.arange(len(names))) == names
    assert list(store.classes) == ["fixed", "length"]


def test_strings_of_an_absurd_length_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["images"] = images()[:2]
        file.create_dataset("classes", (2,), "S1000000000")
    with pytest.raises(StoreError, match=r"never written|truncated"):
        open_store(tmp_path / "x.h5")


def test_names_of_a_file_that_is_gone_are_an_error_of_ours(tmp_path: Path) -> None:
    store = open_store(write(tmp_path / "x.h5", records(9)))
    (tmp_path / "x.h5").unlink()
    with pytest.raises(StoreNotFoundError, match="cannot be read any more"):
        store.keys(np.arange(2))


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_compressed_file_that_became_something_else_is_an_error_of_ours(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = write(tmp_path / "x.h5", records(9), compression="gzip")
    store = open_store(path)
    path.unlink()
    make(path)
    with pytest.raises(StoreError, match=r"x\.h5': the store cannot be read: ") as found:
        store.read(np.arange(2))
    assert found.value.path == str(path)


def test_columns_that_are_mapped_are_what_they_were(tmp_path: Path) -> None:
    count = 20_000
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["images"] = np.zeros((count, 1, 1, 3), np.uint8)
        file["labels"] = np.arange(count)
    with h5py.File(tmp_path / "y.h5", "w") as file:
        file["images"] = np.zeros((count, 1, 1, 3), np.uint8)
        file.create_dataset("labels", data=np.arange(count), dtype=">i8")
    for name in ("x.h5", "y.h5"):
        labels = open_store(tmp_path / name).labels
        assert labels is not None and labels.dtype == np.int64 and not labels.flags.writeable
        assert labels.tolist() == list(range(count))


def test_columns_that_do_not_fit_the_images_are_refused(tmp_path: Path) -> None:
    for number, (name, value, message) in enumerate(
        [
            ("labels", np.arange(COUNT + 1), "expected 23 labels"),
            ("labels", np.array([b"x"] * COUNT), "expected labels that are numbers"),
            ("keys", np.array([b"x"], object), "expected 23 keys"),
            ("crc32c", np.arange(3, dtype=np.uint32), "crc32c"),
        ]
    ):
        path = tmp_path / f"{number}.h5"
        with h5py.File(path, "w") as file:
            file["images"] = images()
            file[name] = value
        with pytest.raises(StoreError, match=message):
            open_store(path)
    path = tmp_path / "offsets.h5"
    for ends in ([0, 9, 5], [-1, 5, 9], [0, 5, 1000], [[0]], []):
        with h5py.File(path, "w") as file:
            file["bytes"], file["offsets"] = np.zeros(9, np.uint8), np.array(ends, np.int64)
        with pytest.raises(StoreError, match="offsets"):
            open_store(path)


def test_a_newer_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.h5", pixels(2))
    with h5py.File(path, "r+") as file:
        text = file["fastload"][0].decode().replace('"version": 1', '"version": 2')
        file["fastload"][0] = text
    with pytest.raises(StoreError, match="update fastload"):
        open_store(path)


def test_kinds_of_image_files_are_kept(tmp_path: Path) -> None:
    given = records(3)
    given[1] = Record(**{**vars(given[1]), "data": bytes(3 * 5 * 4), "kind": RAW, "width": 5,
                         "height": 4})  # fmt: skip
    with open_writer(tmp_path / "a.h5", classes=CLASSES) as writer:
        writer.append(given)
    store = open_store(tmp_path / "a.h5")
    assert store.kinds(np.arange(3)).tolist() == [0, RAW, 0]
    assert store.read(np.arange(3)) == [record.data for record in given]
