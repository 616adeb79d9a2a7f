"""Stores that were made to do harm: refused with an error of ours, at once, in little memory."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from fastload import FastLoader, open_store
from fastload._printable import printable
from fastload._tools.verify import verify
from fastload.cli import main
from fastload.errors import DataError, StoreError, UsageError
from fastload.storage import Record, _sidecar, open_writer
from fastload.storage._crc import crc32c
from fastload.storage._fields import Blobs, Field
from fastload.storage.formats._pickle_shape import check_shape
from storage.formats import pixels, records

DEEP = 200_000  # levels; more than any parser's stack
HUGE = 2**31 - 1


def written(path: Path, count: int = 6, **options: Any) -> Path:
    given = records(count) if path.suffix in (".tar", ".tfrecord", ".rec") else pixels(count)
    with open_writer(path, classes=["a", "b"], **options) as writer:
        writer.append(given)
    return path


def changed(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    described = json.loads(file.read_text())
    change(described)
    file.write_text(json.dumps(described))


# --- numbers that ask for memory ------------------------------------------------------------------


@pytest.fixture
def little_memory() -> Any:
    """Room for a gigabyte more, so that who asks for all that a number says gets none."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def dimensions(name: str, *numbers: int) -> Callable[[dict[str, Any]], None]:
    return lambda described: described.update({name: list(numbers)})


N5_NUMBERS: dict[str, tuple[str, dict[str, Any]]] = {
    "images": ("images", {"dimensions": [3, 7, 5, HUGE]}),
    "images in one block": (
        "images",
        {"dimensions": [3, 7, 5, HUGE], "blockSize": [3, 7, 5, HUGE]},
    ),
    "small images": ("images", {"dimensions": [3, 1, 1, HUGE], "blockSize": [3, 1, 1, 1]}),
    "labels": ("labels", {"dimensions": [2**40], "blockSize": [2**40]}),
    "labels in blocks": ("labels", {"dimensions": [2**40], "blockSize": [1]}),
    "wide labels": ("labels", {"dimensions": [2**38, 6], "blockSize": [2**38, 6]}),
    "packed": (
        "labels",
        {"dimensions": [2**40], "blockSize": [2**40], "compression": {"type": "gzip"}},
    ),
}


@pytest.mark.parametrize("what", list(N5_NUMBERS))
def test_numbers_of_n5(tmp_path: Path, what: str, little_memory: None) -> None:
    path = written(tmp_path / "a.n5")
    name, numbers = N5_NUMBERS[what]
    changed(path / name / "attributes.json", lambda described: described.update(numbers))
    with pytest.raises(StoreError):
        open_store(path)


def zarr_numbers(shape: list[int], chunk: list[int]) -> Callable[[dict[str, Any]], None]:
    def change(described: dict[str, Any]) -> None:
        described["shape"] = shape
        described["chunk_grid"]["configuration"]["chunk_shape"] = chunk

    return change


@pytest.mark.parametrize(
    ("name", "shape", "chunk"),
    [
        ("images", [HUGE, 5, 7, 3], [6, 5, 7, 3]),
        ("images", [6, 5, 7, 3], [2**40, 5, 7, 3]),
        ("images", [HUGE, 5, 7, 3], [HUGE, 5, 7, 3]),
        ("labels", [2**40], [2**40]),
        ("labels", [2**40], [6]),
        ("crc32c", [6], [2**40]),
        ("keys/data", [2**40], [2**40]),
    ],
)
def test_numbers_of_zarr(
    tmp_path: Path, name: str, shape: list[int], chunk: list[int], little_memory: None
) -> None:
    path = written(tmp_path / "a.zarr")
    changed(path / name / "zarr.json", zarr_numbers(shape, chunk))
    with pytest.raises(StoreError):
        open_store(path).keys(np.arange(2))


@pytest.mark.parametrize(
    "content",
    [
        {"images": torch.zeros(1, 3, 1, 1, dtype=torch.uint8).expand(HUGE, 3, 1, 1)},
        {"images": torch.zeros(1, dtype=torch.uint8).expand(2, 3, 16_384, 16_384)},
        {
            "images": torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
            "labels": torch.zeros(1, dtype=torch.int64).expand(2**40),
        },
        {
            "images": torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
            "labels": torch.zeros(1, dtype=torch.int64).expand(2, 2**38),
        },
    ],
)
def test_strides_of_pth(tmp_path: Path, content: dict[str, Any], little_memory: None) -> None:
    torch.save(content, tmp_path / "a.pth")
    with pytest.raises(StoreError):
        open_store(tmp_path / "a.pth")


def test_gray_images_that_are_expanded_are_read(tmp_path: Path) -> None:
    gray = torch.arange(32, dtype=torch.uint8).reshape(2, 1, 4, 4)
    torch.save({"images": gray.expand(2, 3, 4, 4), "labels": [1, 0]}, tmp_path / "a.pth")
    store = open_store(tmp_path / "a.pth")
    expected = gray.expand(2, 3, 4, 4)[1].permute(1, 2, 0).numpy().tobytes()
    assert store.read(np.array([1])) == [expected]
    assert store.labels is not None and store.labels.tolist() == [1, 0]


# --- depth ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_json_of_many_levels(tmp_path: Path, opening: str) -> None:
    deep = opening * DEEP
    for suffix, file in ((".n5", "attributes.json"), (".zarr", "zarr.json")):
        path = written(tmp_path / f"a{suffix}")
        (path / file).write_text(deep)
        with pytest.raises(StoreError):
            open_store(path)
    h5py = pytest.importorskip("h5py")
    path = written(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file_:
        del file_["fastload"]
        file_["fastload"] = np.array([deep], object)
    with pytest.raises(StoreError, match="header of a fastload-hdf5 store"):
        open_store(path)
    torch.save({"images": torch.zeros(1, 3, 2, 2, dtype=torch.uint8), "fastload": deep},
               tmp_path / "a.pth")  # fmt: skip
    with pytest.raises(StoreError, match="header of a fastload-pth store"):
        open_store(tmp_path / "a.pth")


def test_a_json_field_of_many_levels_is_a_value_that_is_none(tmp_path: Path) -> None:
    from fastload.storage.base import Batch

    (image,) = records(1)
    with open_writer(tmp_path / "a.lmdb") as writer:
        writer.extend(
            Batch(
                data=[image.data], keys=["a"], labels=None, sizes=np.array([[5, 4]], np.int32),
                kinds=np.zeros(1, np.uint8), crc32c=np.zeros(1, np.uint32),
                fields={"deep": [b"[" * DEEP]}, field_kinds={"deep": "json"},
            )
        )  # fmt: skip
    with pytest.raises(ValueError, match="nested"):
        open_store(tmp_path / "a.lmdb").batch("deep", np.array([0]))


def pth(path: Path, pickled: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickled)
    return path


def doubled(kind: Callable[[list[Any]], Any]) -> Any:
    value = kind([])
    for _ in range(60):
        value = kind([value, value])
    return value


@pytest.mark.parametrize("protocol", [2, 4])
def test_pickles_whose_loading_or_printing_would_not_end(tmp_path: Path, protocol: int) -> None:
    key = b")q\x00" + b"h\x00\x86q\x00" * 60  # of a dict, which Python cannot make to pickle it
    bombs = [
        b"\x80\x02}" + key + b"K\x01s.",
        pickle.dumps({"images": 1, "classes": doubled(list)}, protocol),
        pickle.dumps({"images": doubled(list)}, protocol),
        pickle.dumps({"x": doubled(tuple)}, protocol),
    ]
    for number, pickled in enumerate(bombs):
        with pytest.raises(StoreError):
            open_store(pth(tmp_path / f"{number}.pth", pickled))
    with pytest.raises(ValueError, match="tuples in each other"):
        check_shape(bombs[0])


def test_lists_in_the_place_of_columns_that_would_not_end(tmp_path: Path) -> None:
    content = {"images": torch.zeros(2, 3, 4, 4, dtype=torch.uint8)}
    for name in ("labels", "classes"):
        torch.save({**content, name: doubled(list)}, tmp_path / "a.pth")
        with pytest.raises(StoreError):
            open_store(tmp_path / "a.pth")
    torch.save({**content, "keys": [doubled(list), "b"]}, tmp_path / "a.pth")
    with pytest.raises(StoreError, match="names as texts"):
        open_store(tmp_path / "a.pth").keys(np.arange(2))


@pytest.mark.parametrize(
    "pickled",
    [
        b"\x80\x02}" + b")" + b"\x85" * DEEP + b"K\x01s.",  # a key of so many levels
        b"\x80\x02](0\x85.",  # POP: a mark, or a value
        b"\x80\x02)q\x00\x94.",  # two ways of remembering
        b"\x80\x02\x86.",
        b"\x80\x02X\xff\xff\xff\xff",
        b"",
    ],
)
def test_opcodes_that_no_torch_writes(tmp_path: Path, pickled: bytes) -> None:
    with pytest.raises(StoreError):
        open_store(pth(tmp_path / "a.pth", pickled))


def test_what_torch_writes_is_loaded(tmp_path: Path) -> None:
    for protocol in (2, 3, 4, 5):
        images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
        content = {"images": images, "labels": torch.arange(2), "classes": ("a", "b") * 900}
        content["model"] = torch.nn.Linear(2, 2).state_dict()
        torch.save(content, tmp_path / "a.pth", pickle_protocol=protocol)
        assert len(open_store(tmp_path / "a.pth")) == 2


# --- what is no file ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suffix", "inside"),
    [
        ("n5", "images/0/0/0/0"), ("n5", "labels/0"), ("n5", "attributes.json"),
        ("n5", "images/attributes.json"), ("zarr", "images/c/0/0/0/0"), ("zarr", "labels/c/0"),
        ("zarr", "zarr.json"), ("zarr", "labels/zarr.json"), ("lmdb", ""), ("h5", ""), ("pth", ""),
        ("tfrecord", ""), ("tar", ""), ("rec", ""), ("tar", ".fastload"), ("rec", ".fastload"),
    ],
)  # fmt: skip
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(
    tmp_path: Path, suffix: str, inside: str
) -> None:
    path = written(tmp_path / f"a.{suffix}")
    target = Path(f"{path}{inside}") if inside.startswith(".") else path / inside
    target.unlink()
    os.mkfifo(target)
    if not inside:
        with pytest.raises(StoreError, match=r"cannot be read: it is not a regular file$"):
            open_store(path)
        (tmp_path / f"a.{suffix}.fastload").unlink(missing_ok=True)
    with pytest.raises(StoreError):
        open_store(path).keys(np.arange(2))
        verify(path)


@pytest.mark.parametrize("suffix", ["lmdb", "tfrecord", "tar", "h5", "n5", "zarr", "pth"])
def test_a_link_in_the_place_of_work_in_progress_is_not_followed(
    tmp_path: Path, suffix: str
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").write_text("mine")
    (tmp_path / f"a.{suffix}.partial").symlink_to(precious)
    with pytest.raises(UsageError, match="a link is not followed"):
        open_writer(tmp_path / f"a.{suffix}")
    assert os.listdir(precious) == ["data"] and (precious / "data").read_text() == "mine"


def test_a_link_inside_of_work_in_progress_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "a.tar.partial").mkdir()
    (tmp_path / "a.tar.partial" / "data-00000").symlink_to(tmp_path / "precious")
    with pytest.raises(UsageError, match="found a link"):
        open_writer(tmp_path / "a.tar")
    assert (tmp_path / "precious").read_text() == "mine"


def test_links_in_the_place_of_temporary_files_are_replaced(tmp_path: Path) -> None:
    from fastload._base.whole_file import whole_file

    (tmp_path / "precious").write_text("mine")
    (tmp_path / f"a.png.{os.getpid()}.partial").symlink_to(tmp_path / "precious")
    with whole_file(tmp_path / "a.png") as file:
        file.write(b"new")
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "a.png").read_bytes() == b"new"
    with pytest.raises(RuntimeError), whole_file(tmp_path / "a.png") as file:
        file.write(b"half")
        raise RuntimeError
    assert sorted(os.listdir(tmp_path)) == ["a.png", "precious"]
    assert (tmp_path / "a.png").read_bytes() == b"new"


def test_renames_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").write_text("mine")
    (tmp_path / "a.tar.partial").mkdir()
    (tmp_path / "a.tar.partial" / "settings.json").write_text("{}")
    renames = [["data-00000", str(tmp_path / "elsewhere" / "precious")]]
    for content in (json.dumps(renames), "[" * DEEP, "5"):
        (tmp_path / "a.tar.partial" / "renames.json").write_text(content)
        with pytest.raises(StoreError, match=r"in renames\.json: the unfinished store is damaged"):
            open_writer(tmp_path / "a.tar")
    assert (tmp_path / "elsewhere" / "precious").exists()


@pytest.mark.parametrize("suffix", ["lmdb", "tfrecord", "tar", "rec", "h5", "n5", "zarr", "pth"])
def test_a_name_that_is_no_utf8_can_be_written_and_read(tmp_path: Path, suffix: str) -> None:
    path = written(tmp_path / os.fsdecode(b"caf\xe9." + suffix.encode()))
    assert len(open_store(path)) == 6 and verify(path).damaged == ()


def test_a_folder_that_cannot_be_listed_is_an_error_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: str) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(StoreError, match="it cannot be read: Permission denied") as raised:
        open_store(tmp_path)
    assert raised.value.path == str(tmp_path)


# --- types and texts ------------------------------------------------------------------------------


def test_wrong_types_in_descriptions_are_errors_of_ours(tmp_path: Path) -> None:
    values: list[Any] = [None, 5, "a", [], {}, [[]], {"a": 1}, True, 1e300]
    for suffix, name in ((".zarr", "zarr.json"), (".n5", "attributes.json")):
        path = written(tmp_path / f"a{suffix}")
        for file in (path / name, path / "images" / name, path / "labels" / name):
            text = file.read_text()

            def places(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
                if not isinstance(value, (dict, list)):
                    return [way]
                items = value.items() if isinstance(value, dict) else enumerate(value)
                return [way, *(one for key, v in items for one in places(v, (*way, key)))]

            for way in places(json.loads(text))[1:]:
                for value in values:
                    described = json.loads(text)
                    inner = described
                    for key in way[:-1]:
                        inner = inner[key]
                    inner[way[-1]] = value
                    file.write_text(json.dumps(described))
                    try:
                        store = open_store(path)
                        store.read(np.arange(2))
                        store.keys(np.arange(2))
                    except DataError as error:
                        assert str(tmp_path) in str(error)
            file.write_text(text)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("files", 0, 1), float("inf")),
        (("files", 0, 2), float("nan")),
        (("arrays", 0, 1), "(1"),
        (("arrays", 0, 1), "i4,("),
        (("arrays", 0, 2), [float("inf")]),
        (("fields",), [{"name": "n", "kind": "array", "dtype": "<f4", "shape": [float("inf")]}]),
    ],
)
def test_values_that_only_the_header_of_a_sidecar_can_have(
    tmp_path: Path, where: tuple[Any, ...], value: Any
) -> None:
    path = written(tmp_path / "a.tar")
    file = tmp_path / "a.tar.fastload"
    data = file.read_bytes()
    head = _sidecar._HEAD
    magic, version, _, nbytes, _ = head.unpack_from(data)
    described = json.loads(data[head.size : head.size + nbytes])
    inner = described
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    text = json.dumps(described).encode()
    arrays = data[-(-(head.size + nbytes) // 64) * 64 :]
    padding = bytes(-(head.size + len(text)) % 64)
    total = head.size + len(text) + len(padding) + len(arrays)
    start = head.pack(magic, version, crc32c(text), len(text), total)
    file.write_bytes(start + text + padding + arrays)
    with pytest.raises(StoreError, match="the sidecar is damaged"):
        open_store(path)


@pytest.mark.parametrize(
    ("data", "ends"),
    [
        (np.zeros(3, np.uint8), np.array(3)),
        (np.zeros(3, np.uint8), np.array([[3]])),
        (np.zeros(3, np.uint8), np.array([3.0])),
        (np.array(0, np.uint8), np.array([0])),
    ],
)
def test_ends_of_texts_that_are_no_list_are_refused(data: np.ndarray, ends: np.ndarray) -> None:
    with pytest.raises(StoreError, match="expected a list of ends"):
        Blobs(data, ends).check(1, "keys", None)


def test_names_and_shapes_that_are_infinite_are_errors_of_ours(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a field"):
        Field.from_json({"name": "n", "kind": "array", "dtype": "<f4", "shape": [float("inf")]})
    images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    torch.save({"images": images, "keys": [float("inf"), 1]}, tmp_path / "a.pth")
    with pytest.raises(StoreError, match="names as texts"):
        open_store(tmp_path / "a.pth").keys(np.arange(2))


@pytest.mark.parametrize("suffix", ["n5", "zarr", "h5", "pth", "lmdb"])
def test_half_a_character_in_class_names_is_an_error(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(UsageError, match="lone surrogate"):
        with open_writer(tmp_path / f"a.{suffix}", classes=["\ud800"]) as writer:
            writer.append(pixels(2))
    if suffix in ("n5", "zarr"):
        path = written(tmp_path / f"b.{suffix}")
        file = path / ("attributes.json" if suffix == "n5" else "zarr.json")
        file.write_text(file.read_text().replace('"a"', '"\\ud800"'))
        with pytest.raises(StoreError, match="class names"):
            open_store(path)
    torch.save(
        {"images": torch.zeros(2, 3, 4, 4, dtype=torch.uint8), "classes": ["\ud800", "b"]},
        tmp_path / "c.pth",
    )
    with pytest.raises(StoreError, match="class names"):
        open_store(tmp_path / "c.pth")


def test_bytes_that_are_no_utf8_stay_in_class_names(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    for suffix in ("n5", "lmdb", "h5", "tar"):
        path = tmp_path / f"a.{suffix}"
        with open_writer(path, classes=[name]) as writer:
            writer.append(pixels(1))
        assert open_store(path).classes == [name]
        assert CliRunner().invoke(main, ["info", str(path)]).exit_code == 0


def test_what_a_terminal_would_carry_out_is_shown_as_escapes(tmp_path: Path) -> None:
    evil = "cat\x1b]0;pwned\x07\x9b2J\r\n\u202egpj"
    (image,) = records(1)
    path = tmp_path / "a.lmdb"
    record = Record(data=image.data, label=0, key=evil, width=5, height=4)
    with open_writer(path, classes=[evil], metadata={"source": evil}) as writer:
        writer.append([record])
    with open(path, "r+b") as file:
        data = file.read()
        at = data.index(image.data[40:80])
        file.seek(at)
        file.write(b"\0")
    for command in (["info", str(path)], ["verify", str(path)]):
        output = CliRunner().invoke(main, command).output
        assert "\\x1b]0;pwned\\x07\\x9b2J\\r\\n\\u202egpj" in output
        assert not {"\x1b", "\x07", "\x9b", "\u202e", "\r"} & set(output)
    assert "\x1b" not in str(DataError(f"expected {evil}", path=evil))
    assert "\n" in str(DataError("one line\nand another"))


@pytest.mark.parametrize("text", ["cat", "Ähre 写真 🐈", "a\\b", ""])
def test_ordinary_names_are_shown_as_they_are(text: str) -> None:
    assert printable(text) == text


def test_no_loader_shows_a_name_that_is_not_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "evil\x1b[2J"
    folder.mkdir()
    path = written(folder / "a.lmdb")
    data = bytearray(path.read_bytes())
    data[data.index(pixels(6)[2].data[:50])] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        list(FastLoader(path, batch_size=2))
    assert "\x1b" not in str(caught.value) and "\\x1b[2J" in str(caught.value)
    assert io.StringIO(str(caught.value)).read().count("\n") == 0
