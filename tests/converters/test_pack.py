from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import native_core
from fastload import FastLoader, unpack, verify
from fastload._engine.pillow import decode_record
from fastload.cli import main
from fastload.converters import pack
from fastload.converters._chunk import Chunk
from fastload.errors import DecodeError, StoreError, UsageError
from fastload.storage import DCT, ENCODED, RAW, Batch, Record, Store, open_store, open_writer
from fastload.storage._columns import Columns, of_batch
from fastload.storage._partial import Partial
from fastload.storage._read import read_records
from fastload.storage.folder import FolderStore
from storage.formats import picture

transforms = pytest.importorskip("torchvision.transforms")
datasets = pytest.importorskip("torchvision.datasets")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 small JPEGs in three class folders."""
    root = tmp_path_factory.mktemp("images")
    for index in range(300):
        path = root / f"class {index % 3} é" / f"{index:04d}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(picture(index, 20 + index % 30, 20 + index % 17))
    return root


def data_of(store: Store) -> list[bytes]:
    return list(read_records(store, np.arange(len(store))))


def decoded(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def test_order_labels_classes_and_bytes_are_those_of_image_folder(
    images: Path, tmp_path: Path
) -> None:
    report = pack(images, tmp_path / "x.lmdb")
    reference = datasets.ImageFolder(str(images))
    store = open_store(tmp_path / "x.lmdb")
    assert data_of(store) == [Path(path).read_bytes() for path, _ in reference.samples]
    assert store.labels is not None and store.labels.tolist() == reference.targets
    assert store.classes == reference.classes
    assert store.keys(np.arange(300)) == [
        os.path.relpath(path, images) for path, _ in reference.samples
    ]
    sizes = [list(image.size) for image, _ in reference]
    assert store.sizes(np.arange(300)).tolist() == sizes
    assert report.records == 300 and report.skipped == () and report.parts[0].resumed == 0
    assert report.nbytes == sum(map(len, data_of(store)))
    assert os.listdir(tmp_path) == ["x.lmdb"]


def test_flat_folder_gives_a_store_without_labels(tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    for name in ("b", "a"):
        (tmp_path / "flat" / f"{name}.png").write_bytes(picture(0, 3, 3))
    pack(tmp_path / "flat", tmp_path / "x.lmdb")
    store = open_store(tmp_path / "x.lmdb")
    assert store.labels is None
    assert store.keys(np.arange(2)) == ["a.png", "b.png"]


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_number_of_workers_changes_nothing(images: Path, tmp_path: Path, workers: int) -> None:
    pack(images, tmp_path / "x.lmdb", workers=workers, resize=16)
    pack(images, tmp_path / "y.lmdb", workers=3, resize=16)
    assert data_of(open_store(tmp_path / "x.lmdb")) == data_of(open_store(tmp_path / "y.lmdb"))


@pytest.mark.parametrize("native", [True, False])
def test_kept_bytes_of_every_kind_of_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    if not native:
        monkeypatch.setenv("FASTLOAD_NO_NATIVE", "1")
    root = tmp_path / "root"
    root.mkdir()
    kinds = [
        ("jpg", "L"), ("jpg", "CMYK"), ("png", "RGBA"), ("png", "P"), ("png", "I;16"),
        ("webp", "RGB"), ("bmp", "RGB"), ("tif", "RGB"), ("ppm", "RGB"), ("pgm", "L"),
    ]  # fmt: skip
    for index, (suffix, mode) in enumerate(kinds):
        Image.new(mode, (10 + index, 7)).save(root / f"{index}.{suffix}")
    pack(root, tmp_path / "x.lmdb")
    store = open_store(tmp_path / "x.lmdb")
    assert data_of(store) == [path.read_bytes() for path in sorted(root.iterdir())]
    assert store.sizes(np.arange(len(kinds)))[:, 0].tolist() == list(range(10, 20))


# -- encodings and sizes


def test_raw_and_bmp_and_png_are_the_pixels_that_pillow_decodes(
    images: Path, tmp_path: Path
) -> None:
    reference = datasets.ImageFolder(str(images))
    for encode in ("raw", "bmp", "png"):
        pack(images, tmp_path / f"{encode}.lmdb", encode=encode)
        store = open_store(tmp_path / f"{encode}.lmdb")
        sizes = store.sizes(np.arange(300))
        for index, data in enumerate(data_of(store)):
            image, _ = reference[index]
            assert tuple(sizes[index]) == image.size
            if encode == "raw":
                assert data == image.tobytes()
                assert store.kinds(np.array([index])).tolist() == [RAW]
            else:
                assert data.startswith({"bmp": b"BM", "png": b"\x89PNG"}[encode])
                assert (decoded(data) == np.asarray(image)).all()


@pytest.mark.parametrize("size", [(50, 80), (80, 50), (64, 64), (20, 31), (333, 10), (1, 9)])
def test_shorter_side_is_torchvision_s_resize(tmp_path: Path, size: tuple[int, int]) -> None:
    (tmp_path / "in").mkdir()
    image = Image.frombytes("RGB", size, np.random.default_rng(0).bytes(size[0] * size[1] * 3))
    image.save(tmp_path / "in" / "x.png")
    pack(tmp_path / "in", tmp_path / "x.lmdb", resize="32", encode="raw")
    store = open_store(tmp_path / "x.lmdb")
    expected = transforms.Resize(32)(image)
    assert store.sizes(np.array([0])).tolist() == [list(expected.size)]
    assert data_of(store) == [expected.tobytes()]


@pytest.mark.parametrize(
    ("size", "expected"),
    [((100, 50), (32, 16)), ((50, 100), (16, 32)), ((30, 20), (30, 20)), ((900, 2), (32, 1))],
)
def test_longest_side_shrinks_and_never_enlarges(
    tmp_path: Path, size: tuple[int, int], expected: tuple[int, int]
) -> None:
    (tmp_path / "in").mkdir()
    Image.new("RGB", size, "red").save(tmp_path / "in" / "x.png")
    pack(tmp_path / "in", tmp_path / "x.lmdb", resize="longest:32")
    assert open_store(tmp_path / "x.lmdb").sizes(np.array([0])).tolist() == [list(expected)]


def test_resize_implies_jpeg_of_the_quality_asked_for(images: Path, tmp_path: Path) -> None:
    for quality in (50, 95):
        pack(images, tmp_path / f"{quality}.lmdb", resize=16, quality=quality)
    low, high = (data_of(open_store(tmp_path / f"{q}.lmdb")) for q in (50, 95))
    assert all(data.startswith(b"\xff\xd8") for data in low + high)
    assert sum(map(len, low)) < sum(map(len, high))
    assert (
        Image.open(io.BytesIO(high[0])).quantization != Image.open(io.BytesIO(low[0])).quantization
    )


def test_orientation_is_left_alone_unless_asked_for(tmp_path: Path) -> None:
    root = tmp_path / "in"
    root.mkdir()
    image = Image.frombytes("RGB", (8, 4), np.random.default_rng(0).bytes(96))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(root / "a.jpg", exif=exif)
    image.save(root / "b.png", exif=exif)
    image.save(root / "c.jpg")
    originals = [path.read_bytes() for path in sorted(root.iterdir())]
    pack(root, tmp_path / "left.lmdb")
    left = open_store(tmp_path / "left.lmdb")
    assert data_of(left) == originals
    assert left.sizes(np.arange(3)).tolist() == [[8, 4]] * 3
    pack(root, tmp_path / "turned.lmdb", exif=True)
    turned = open_store(tmp_path / "turned.lmdb")
    data = data_of(turned)
    assert turned.sizes(np.arange(3)).tolist() == [[4, 8], [4, 8], [8, 4]]
    assert data[2] == originals[2]
    assert (decoded(data[1]) == np.asarray(image.transpose(Image.Transpose.ROTATE_270))).all()
    assert all(Image.open(io.BytesIO(d)).getexif().get(0x0112, 1) == 1 for d in data)


def test_split_is_decided_by_the_key_alone_and_loses_nothing(images: Path, tmp_path: Path) -> None:
    report = pack(images, tmp_path / "x.lmdb", split="val=0.2,test=0.1")
    paths = [tmp_path / name for name in ("x.lmdb", "x-val.lmdb", "x-test.lmdb")]
    assert [part.path for part in report.parts] == [str(path) for path in paths]
    stores = [open_store(path) for path in paths]
    keys = [store.keys(np.arange(len(store))) for store in stores]
    whole = open_store(images).keys(np.arange(300))
    assert sorted(keys[0] + keys[1] + keys[2]) == whole
    assert all(part == sorted(part) for part in keys)
    assert 30 < len(keys[1]) < 95 and 10 < len(keys[2]) < 55
    assert all(store.classes == stores[0].classes for store in stores)
    one = next(path for path in images.rglob("*.jpg") if os.path.relpath(path, images) in keys[0])
    copy = tmp_path / "copy"
    for index in (1, 2):
        for key in keys[index]:
            (copy / key).parent.mkdir(parents=True, exist_ok=True)
            (copy / key).write_bytes(one.read_bytes())
    pack(copy, tmp_path / "y.lmdb", split="val=0.2,test=0.1")
    assert len(open_store(tmp_path / "y.lmdb")) == 0
    again = open_store(tmp_path / "y-val.lmdb")
    assert again.keys(np.arange(len(again))) == keys[1]


# -- what cannot work


def bad_images(tmp_path: Path) -> Path:
    root = tmp_path / "bad"
    (root / "a").mkdir(parents=True)
    for index in range(6):
        (root / "a" / f"{index}.jpg").write_bytes(picture(index, 9, 9))
    (root / "a" / "2.jpg").write_bytes(b"this is text")
    (root / "a" / "4.jpg").write_bytes(b"")
    return root


@pytest.mark.parametrize("resize", [None, 8])
def test_file_that_is_no_image_is_named(tmp_path: Path, resize: int | None) -> None:
    root = bad_images(tmp_path)
    with pytest.raises(DecodeError, match=r"2\.jpg") as caught:
        pack(root, tmp_path / "x.lmdb", resize=resize)
    assert caught.value.path == str(root / "a" / "2.jpg")
    assert not (tmp_path / "x.lmdb").exists()


@pytest.mark.parametrize("resize", [None, 8])
def test_skipped_files_are_listed(tmp_path: Path, resize: int | None) -> None:
    root = bad_images(tmp_path)
    report = pack(root, tmp_path / "x.lmdb", on_error="skip", resize=resize)
    assert [os.path.basename(skipped.path) for skipped in report.skipped] == ["2.jpg", "4.jpg"]
    assert "b'this is '" in report.skipped[0].reason
    assert "an empty file" in report.skipped[1].reason
    store = open_store(tmp_path / "x.lmdb")
    assert store.keys(np.arange(4)) == ["a/0.jpg", "a/1.jpg", "a/3.jpg", "a/5.jpg"]


def kinds_of_images(root: Path) -> list[str]:
    """A picture in each of several formats in ``root``/a, beside a file that is none."""
    (root / "a").mkdir(parents=True)
    names = ["0.jfif", "1.gif", "2.tga", "3.pnm", "4.qoi", "5.pcx", "6.jpg"]
    for number, name in enumerate(names):
        Image.open(io.BytesIO(picture(number, 20, 14))).save(root / "a" / name)
    (root / "a" / "6.json").write_text("{}")
    return names


@pytest.mark.parametrize("suffix", [".lmdb", ".h5", ".tfrecord", ".rec", ".tar"])
def test_every_image_that_pillow_reads_is_packed_and_comes_back(
    tmp_path: Path, suffix: str
) -> None:
    names = kinds_of_images(tmp_path / "in")
    report = pack(tmp_path / "in", tmp_path / f"x{suffix}")
    store = open_store(tmp_path / f"x{suffix}")
    assert store.keys(np.arange(len(store))) == [f"a/{name}" for name in names]
    assert data_of(store) == [(tmp_path / "in" / "a" / name).read_bytes() for name in names]
    for index, name in enumerate(names):
        expected = decoded((tmp_path / "in" / "a" / name).read_bytes())
        assert np.array_equal(np.asarray(decode_record(store, index)), expected), name
    (left,) = report.left_out
    assert (left.files, left.example) == (1, str(tmp_path / "in" / "a" / "6.json"))
    unpack(tmp_path / f"x{suffix}", tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out" / "a")) == names


def test_the_summary_names_and_counts_the_files_that_are_left_out(tmp_path: Path) -> None:
    root = tmp_path / "in"
    kinds_of_images(root)
    done = CliRunner().invoke(main, ["pack", str(root), str(tmp_path / "x.lmdb")])
    assert f"left out: 1 file, {root}/a/6.json: 1 of 7 images has such a file" in done.output
    assert "packed from a list" in done.output
    (tmp_path / "list.csv").write_text("path,label\nin/a/6.jpg,1\n")
    listed = CliRunner().invoke(
        main, ["pack", str(tmp_path / "list.csv"), str(tmp_path / "y.lmdb")]
    )
    assert "left out" not in listed.output
    command = ["pack", str(root), str(tmp_path / "z.lmdb"), "--json"]
    (left,) = json.loads(CliRunner().invoke(main, command).stdout)["left_out"]
    assert left["files"] == 1 and left["example"] == f"{root}/a/6.json"
    small = transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()])
    assert f"left out: 1 file, {root}/a" in FastLoader(str(root), transform=small).explain()


@pytest.fixture
def deep(tmp_path: Path) -> np.ndarray:
    """What a gray image of 16 bits in the folder ``deep`` holds."""
    levels = (np.arange(600, dtype=np.uint16) * 100).reshape(20, 30)
    (tmp_path / "deep").mkdir()
    Image.fromarray(levels).save(tmp_path / "deep" / "x.png")
    return levels


def stored(path: Path) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(open_store(path).read(np.arange(1))[0])))


@pytest.mark.parametrize("encode", ["keep", "png", "dct"])
def test_gray_of_16_bits_keeps_all_of_them(tmp_path: Path, deep: np.ndarray, encode: Any) -> None:
    pack(tmp_path / "deep", tmp_path / "x.lmdb", encode=encode)
    assert np.array_equal(stored(tmp_path / "x.lmdb"), deep)
    pack(tmp_path / "x.lmdb", tmp_path / "y.lmdb", encode="png", resize="15x10")
    assert stored(tmp_path / "y.lmdb").shape == (10, 15)
    assert int(stored(tmp_path / "y.lmdb").max()) > 50_000


@pytest.mark.parametrize("image", [Image.fromarray, np.array])
@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_gray_of_16_bits_of_a_dataset_keeps_all_of_them(
    tmp_path: Path, deep: np.ndarray, image: Any, dtype: Any
) -> None:
    if image is np.array and dtype is np.int32:
        dtype = np.uint16  # an array of other integers is no image
    pack([image(deep.astype(dtype))], tmp_path / "x.lmdb")
    assert np.array_equal(stored(tmp_path / "x.lmdb"), deep)


@pytest.mark.parametrize("options", [{"encode": "jpeg"}, {"encode": "raw"}, {"encode": "bmp"},
                                     {"resize": 8}])  # fmt: skip
def test_gray_of_16_bits_is_not_clipped_to_white(
    tmp_path: Path, deep: np.ndarray, options: dict[str, Any]
) -> None:
    with pytest.raises(DecodeError, match=r"gray of more than 8 bits.*clip to white: 'keep'"):
        pack(tmp_path / "deep", tmp_path / "x.lmdb", **options)


def test_gray_of_more_than_16_bits_is_not_cut_for_a_png(tmp_path: Path) -> None:
    for levels in (np.full((4, 4), 1 << 20, np.int32), np.full((4, 4), 0.5, np.float32)):
        with pytest.raises(DecodeError, match="gray of more than 8 bits"):
            pack([Image.fromarray(levels)], tmp_path / "x.lmdb")


def test_folder_of_no_images_at_all_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.jpg").write_bytes(b"text")
    with pytest.raises(DecodeError, match=r"x\.jpg': expected an image, found 4 bytes"):
        pack(tmp_path / "in", tmp_path / "x.lmdb", on_error="skip")


def test_truncated_image_is_found_when_it_is_decoded(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.jpg").write_bytes(picture(0, 200, 200)[:3000])
    with pytest.raises(DecodeError, match="cannot be decoded"):
        pack(tmp_path / "in", tmp_path / "x.lmdb", encode="png")


def unsound(folder: Path) -> Path:
    """Images of which two are truncated, one of them a JPEG; and sound ones that have no end, or
    something behind it.
    """
    root = folder / "in"
    root.mkdir()
    jpeg = picture(0, 200, 200)
    file = io.BytesIO()
    Image.open(io.BytesIO(jpeg)).save(file, "PNG")
    png = file.getvalue()
    (root / "whole.png").write_bytes(png)
    (root / "half.png").write_bytes(png[: len(png) // 2])
    (root / "half.jpg").write_bytes(jpeg[: len(jpeg) // 2])
    (root / "unended.jpg").write_bytes(jpeg[:-2])  # all of the image is there
    (root / "whole.jpg").write_bytes(jpeg)
    (root / "trailer.jpg").write_bytes(jpeg + b"of a camera")
    return root


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("exif", [True, False])
@pytest.mark.parametrize("encode", ["keep", "dct"])
def test_truncated_jpeg_is_not_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encode: str, exif: bool, native: bool
) -> None:
    """Of those without an end Pillow is asked; what is damaged otherwise goes in as it is."""
    if not native:
        monkeypatch.setenv("FASTLOAD_NO_NATIVE", "1")
        if encode == "dct":
            pytest.skip("the core writes such records")
    root = unsound(tmp_path)
    options: dict[str, Any] = {"encode": encode, "exif": exif}
    with pytest.raises(DecodeError, match=r"half\.jpg.*image file is truncated"):
        pack(root, tmp_path / "x.lmdb", **options)
    report = pack(root, tmp_path / "y.lmdb", on_error="skip", **options)
    names = [os.path.basename(skipped.path) for skipped in report.skipped]
    # a PNG may say how it is turned behind its pixels
    assert names == ["half.jpg", "half.png"][: 1 + exif]
    assert report.records == 6 - len(names)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("encode", ["keep", "dct", "raw"])
def test_check_decodes_every_image_before_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encode: str, native: bool
) -> None:
    if not native:
        monkeypatch.setenv("FASTLOAD_NO_NATIVE", "1")
        if encode == "dct":
            pytest.skip("the core writes such records")
    root = unsound(tmp_path)
    report = pack(root, tmp_path / "x.lmdb", encode=encode, check=True, on_error="skip")
    names = [os.path.basename(skipped.path) for skipped in report.skipped]
    assert names == ["half.jpg", "half.png"]
    monkeypatch.undo()
    assert verify(tmp_path / "x.lmdb", decode=True).damaged == ()
    with pytest.raises(DecodeError, match=r"half\.jpg"):
        pack(root, tmp_path / "y.lmdb", encode=encode, check=True)


def test_command_line_checks_too(tmp_path: Path) -> None:
    root = unsound(tmp_path)
    arguments = ["pack", str(root), str(tmp_path / "x.lmdb"), "--check", "--on-error", "skip"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "half.png (record" in result.output
    assert len(open_store(tmp_path / "x.lmdb")) == 4


@pytest.mark.parametrize("encode", ["keep", "raw", "dct"])
def test_check_decodes_the_records_of_a_store(tmp_path: Path, encode: str) -> None:
    """Which are otherwise copied, as they were judged when they were written."""
    sound = {"data": picture(0, 40, 30), "width": 40, "height": 30, "kind": ENCODED}
    damaged = {**sound, "data": picture(0, 200, 200)[:3000]}
    if encode == "raw":
        sound = {"data": bytes(3 * 40 * 30), "width": 40, "height": 30, "kind": RAW}
        damaged = {**sound, "data": sound["data"][1:]}
    elif encode == "dct":
        record = native_core.core().dct_encode(sound["data"])
        sound = {**sound, "data": record, "kind": DCT}
        damaged = {**sound, "data": record[:-200]}
    with open_writer(tmp_path / "a.lmdb") as writer:
        for key, given in (("0", sound), ("1", damaged), ("2", sound)):
            writer.append([Record(label=None, key=key, **given)])
    assert pack(tmp_path / "a.lmdb", tmp_path / "b.lmdb").records == 3
    report = pack(tmp_path / "a.lmdb", tmp_path / "c.lmdb", check=True, on_error="skip")
    assert [skipped.record for skipped in report.skipped] == [1]
    assert report.records == 2


def test_truncated_member_of_a_foreign_archive_is_not_packed(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number, data in enumerate([picture(0, 200, 200), picture(1, 200, 200)[:3000]]):
            member = tarfile.TarInfo(f"{number}.jpg")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    report = pack(tmp_path / "a.tar", tmp_path / "x.lmdb", on_error="skip")
    assert [skipped.record for skipped in report.skipped] == [1]


def test_work_without_checks_is_not_resumed_with_them(images: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int | None, nbytes: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(images, tmp_path / "x.lmdb", workers=1, progress=stop)
    with pytest.raises(UsageError, match="check"):
        pack(images, tmp_path / "x.lmdb", check=True)
    assert pack(images, tmp_path / "x.lmdb").records == 300


@pytest.mark.parametrize("encode", ["keep", "raw"])
def test_decompression_bomb_is_refused(tmp_path: Path, encode: str) -> None:
    (tmp_path / "in").mkdir()
    buffer = io.BytesIO()
    Image.new("1", (2, 2)).save(buffer, "PNG")
    png = bytearray(buffer.getvalue())
    png[16:24] = (60_000).to_bytes(4, "big") * 2
    png[29:33] = zlib.crc32(png[12:29]).to_bytes(4, "big")
    (tmp_path / "in" / "x.png").write_bytes(png)
    with pytest.raises(DecodeError, match="decompression bomb"):
        pack(tmp_path / "in", tmp_path / "x.lmdb", encode=encode)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encode": "gif"}, "encode: expected one of"),
        ({"encode": "keep", "resize": 8}, "cannot resize"),
        ({"resize": "8x8x8"}, "resize: expected"),
        ({"resize": "0"}, "resize: expected"),
        ({"resize": "longest:"}, "resize: expected"),
        ({"resize": "crop:8x8"}, "resize: expected"),
        ({"resize": ":8"}, "resize: expected"),
        ({"compression": "gzip"}, "no compression"),
        ({"quality": 0}, "quality: expected 1 to 100"),
        ({"quality": "high"}, "quality: expected 1 to 100"),
        ({"quality": 50}, "expected encode='jpeg', or resize"),
        ({"quality": 50, "encode": "raw"}, "encode='raw' stores no image as a new JPEG"),
        ({"workers": 0}, "workers: expected an integer of at least 1"),
        ({"workers": "2"}, "workers: expected an integer of at least 1"),
        ({"split": 0.1}, "split: expected NAME=SHARE"),
        ({"on_error": "ignore"}, "on_error"),
        ({"split": "val"}, "NAME=SHARE"),
        ({"split": "val=1.5"}, "NAME=SHARE"),
        ({"split": "a=0.6,b=0.6"}, "below 1"),
        ({"split": "val=0.1,val=0.1"}, "NAME=SHARE"),
    ],
)
def test_options_that_cannot_work_are_refused_before_anything_is_written(
    images: Path, tmp_path: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        pack(images, tmp_path / "x.lmdb", **options)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


@pytest.mark.native
def test_files_read_by_the_core_are_those_that_python_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kind of file, larger than a piece of memory, empty, missing, a folder, a bomb."""
    from fastload.converters import _gather, _store_source

    monkeypatch.setattr(_gather, "MEMORY_NBYTES", 3000)
    root = tmp_path / "in" / "class"
    root.mkdir(parents=True)
    for index in range(40):
        (root / f"{index:02d}.jpg").write_bytes(picture(index, 5 + index, 4 + index))
    for index, form in enumerate(("PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")):
        Image.new("RGB", (9, 7), (index, 2, 3)).save(root / f"{index:02d}z.png", form)
    Image.new("L", (20_000, 20_000)).save(root / "bomb.png")
    (root / "empty.jpg").write_bytes(b"")
    (root / "text.jpg").write_bytes(b"no image")
    (root / "gone.jpg").symlink_to(tmp_path / "nowhere")
    found = []
    for number in range(2):
        if number:
            monkeypatch.setattr(_store_source.FolderSource, "gatherer", lambda self: None)
        report = pack(root.parent, tmp_path / f"{number}.tar", on_error="skip")
        store, every = open_store(tmp_path / f"{number}.tar"), np.arange(46)
        sums = store.checksums(every)
        assert sums is not None
        found.append(
            (store.read(every), store.keys(every), store.sizes(every).tolist(), sums.tolist(),
             report.skipped)
        )  # fmt: skip
    assert found[0] == found[1]
    assert {Path(one.path).name for one in found[0][4]} >= {"bomb.png", "empty.jpg", "text.jpg"}


@pytest.mark.native
def test_small_files_before_large_ones_do_not_make_large_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastload.converters import _chunk, _gather, _run

    monkeypatch.setattr(_gather, "MEMORY_NBYTES", 20_000)
    monkeypatch.setattr(_gather, "CHUNK_NBYTES", 40_000)
    root = tmp_path / "in"
    root.mkdir()
    small = picture(1, 8, 8)
    files = [small + b"%03d" % i + bytes(7_000 if i >= 300 else 0) for i in range(360)]
    files[330] += bytes(50_000)  # larger than a chunk
    for index, data in enumerate(files):
        (root / f"{index:03d}.jpg").write_bytes(data)
    found: list[int] = []

    def read(*given: Any) -> Chunk:
        chunk = _chunk.read_chunk(*given)
        found.append(sum(map(len, chunk.data)))
        return chunk

    monkeypatch.setattr(_run, "read_chunk", read)
    pack(root, tmp_path / "x.lmdb", workers=2)
    assert data_of(open_store(tmp_path / "x.lmdb")) == files
    assert sorted(found)[-2] <= 40_000 and max(found) == len(files[330])


@pytest.mark.timeout(30)
def test_pipe_among_the_files_is_skipped(tmp_path: Path) -> None:
    from fastload.converters import _gather

    root = tmp_path / "in" / "class"
    root.mkdir(parents=True)
    (root / "a.jpg").write_bytes(picture(1, 8, 8))
    os.mkfifo(root / "b.jpg")
    with pytest.raises(OSError, match="not a regular file"):
        _gather.read_file(os.fspath(root / "b.jpg"))
    report = pack(root.parent, tmp_path / "x.lmdb", on_error="skip")
    assert report.records == 1
    assert [Path(one.path).name for one in report.skipped] == ["b.jpg"]


@pytest.mark.native
def test_memory_is_used_again_once_nothing_refers_to_it() -> None:
    from fastload.converters import _gather

    memory = _gather._ReusedMemory()
    first = memory.take(100)
    view = first.data[10:20]
    place = first.ctypes.data
    del first
    second = memory.take(100)
    assert second.ctypes.data != place  # the view still needs it
    view.release()
    del view
    assert memory.take(100).ctypes.data == place


def test_unknown_suffix_and_missing_folder_are_refused(images: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ending in \.lmdb"):
        pack(images, tmp_path / "x.xyz")
    with pytest.raises(StoreError, match="create"):
        pack(images, tmp_path / "no" / "x.lmdb")


# -- interrupted and resumed


def test_progress_is_told_in_order_and_to_the_end(images: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int, int]] = []
    report = pack(images, tmp_path / "x.lmdb", progress=lambda *now: seen.append(now))
    assert seen == sorted(seen)
    assert seen[-1] == (300, 300, report.nbytes)


def test_interrupt_keeps_the_work_and_ends_the_threads(
    images: Path, tmp_path: Path, no_leaks: None
) -> None:
    def stop(done: int, total: int, nbytes: int) -> None:
        if done >= 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(images, tmp_path / "x.lmdb", progress=stop)
    assert not any(thread.name.startswith("fastload-pack") for thread in threading.enumerate())
    assert os.listdir(tmp_path) == ["x.lmdb.partial"]
    report = pack(images, tmp_path / "x.lmdb")
    assert report.parts[0].resumed >= 100
    pack(images, tmp_path / "y.lmdb")
    assert data_of(open_store(tmp_path / "x.lmdb")) == data_of(open_store(tmp_path / "y.lmdb"))


@pytest.mark.parametrize("suffix", [".tfrecord", ".tar", ".rec", ".lmdb"])
def test_interrupt_of_the_journal_duplicates_no_record(
    images: Path, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C when the journal is on the disk, and before the writer knows it."""
    from fastload.converters import _run

    def interrupted(self: Partial, columns: Columns) -> None:
        add(self, columns)
        self.chunks.pop()
        self._ends.pop()
        raise KeyboardInterrupt

    monkeypatch.setattr(_run, "_SYNC_S", 0.0)
    add = Partial.add
    with monkeypatch.context() as patch:
        patch.setattr(Partial, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pack(images, tmp_path / f"x{suffix}")
    assert pack(images, tmp_path / f"x{suffix}").records == 300
    pack(images, tmp_path / f"y{suffix}")
    mine, other = open_store(tmp_path / f"x{suffix}"), open_store(tmp_path / f"y{suffix}")
    assert mine.keys(np.arange(300)) == other.keys(np.arange(300))
    assert data_of(mine) == data_of(other)


def one_record() -> Columns:
    batch = Batch(
        data=[b"x"], keys=["a"], labels=None, sizes=np.ones((1, 2), np.int32),
        kinds=np.zeros(1, np.uint8), crc32c=np.zeros(1, np.uint32),
    )  # fmt: skip
    return of_batch(batch)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_journal_that_was_not_synced_is_as_it_was(
    tmp_path: Path, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(descriptor: int) -> None:
        raise error

    columns = one_record()
    partial = Partial(str(tmp_path / "a"), {})
    partial.add(columns)
    before = os.path.getsize(partial.file("journal"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(error):
            partial.add(columns)
    assert os.path.getsize(partial.file("journal")) == before
    partial.close()
    partial = Partial(str(tmp_path / "a"), {})
    assert len(partial.chunks) == 1
    partial.add(columns)
    partial.close()
    again = Partial(str(tmp_path / "a"), {})
    assert len(again.chunks) == 2
    again.close()


@pytest.mark.parametrize("damaged", [True, False])
def test_what_is_cut_off_a_journal_does_not_come_back_behind_new_chunks(
    tmp_path: Path, damaged: bool
) -> None:
    """Chunks are equally long here: one over the second leads to the third, if that is left."""
    partial = Partial(str(tmp_path / "a"), {})
    for _ in range(3):
        partial.add(one_record())
    second, journal = partial._ends[0], partial.file("journal")
    if damaged:  # as power failures leave it: the third is on the disk, the second is not
        partial.close()
        with open(journal, "r+b") as file:
            file.seek(second)
            file.write(bytes(8))
        partial = Partial(str(tmp_path / "a"), {})
    else:
        partial.keep(1)
    partial.add(one_record())
    partial.close()
    again = Partial(str(tmp_path / "a"), {})
    assert len(again.chunks) == 2
    again.close()


def test_resumed_run_remembers_what_was_skipped(images: Path, tmp_path: Path) -> None:
    root = tmp_path / "in"
    root.mkdir()
    for index in range(200):
        (root / f"{index:03d}.jpg").write_bytes(picture(1, 8, 8) if index % 50 else b"text")

    def stop(done: int, total: int, nbytes: int) -> None:
        if done >= 128:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(root, tmp_path / "x.lmdb", on_error="skip", progress=stop)
    report = pack(root, tmp_path / "x.lmdb", on_error="skip")
    assert report.parts[0].resumed > 0 and report.records == 196
    assert [os.path.basename(skipped.path) for skipped in report.skipped] == [
        "000.jpg", "050.jpg", "100.jpg", "150.jpg"
    ]  # fmt: skip


def test_other_options_or_another_source_do_not_resume(images: Path, tmp_path: Path) -> None:
    root = tmp_path / "in"
    root.mkdir()
    for index in range(100):
        (root / f"{index:03d}.jpg").write_bytes(picture(index, 8, 8))

    def stop(done: int, total: int, nbytes: int) -> None:
        if done:
            raise KeyboardInterrupt

    def interrupt() -> None:
        with pytest.raises(KeyboardInterrupt):
            pack(root, tmp_path / "x.lmdb", progress=stop)

    interrupt()
    with pytest.raises(UsageError, match="encode: 'keep', now 'png'"):
        pack(root, tmp_path / "x.lmdb", encode="png")
    (root / "new.jpg").write_bytes(picture(1, 8, 8))
    with pytest.raises(UsageError, match="source_digest"):
        pack(root, tmp_path / "x.lmdb")
    (root / "new.jpg").unlink()
    time.sleep(0.02)
    before = os.stat(root / "000.jpg")
    (root / "000.jpg").write_bytes(picture(77, 8, 8))
    with pytest.raises(UsageError, match=r"000\.jpg.* has changed"):
        pack(root, tmp_path / "x.lmdb")
    os.utime(root / "000.jpg", ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(UsageError, match=r"000\.jpg.* has changed"):  # with its old time, too
        pack(root, tmp_path / "x.lmdb")


@pytest.mark.parametrize("options", [{}, {"resize": 4}, {"encode": "png"}])
def test_source_that_was_copied_meanwhile_resumes(tmp_path: Path, options: dict[str, Any]) -> None:
    """Files may be newer than the work, if they are the same; as after `cp -a` or `git clone`."""
    root = tmp_path / "in"
    root.mkdir()
    for index in range(200):
        (root / f"{index:03d}.jpg").write_bytes(picture(index, 8, 8))
    pack(root, tmp_path / "expected.lmdb", **options)

    def stop(done: int, total: int, nbytes: int) -> None:
        if done >= 64:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(root, tmp_path / "x.lmdb", workers=1, progress=stop, **options)
    time.sleep(0.02)
    root.rename(tmp_path / "old")
    shutil.copytree(tmp_path / "old", root)
    for path in root.iterdir():
        os.utime(path)
    (root / "000.jpg").rename(tmp_path / "away")
    (root / "000.jpg").write_bytes(b"no image")
    with pytest.raises(UsageError, match=r"000\.jpg.* has changed"):
        pack(root, tmp_path / "x.lmdb", **options)
    (tmp_path / "away").rename(root / "000.jpg")
    report = pack(root, tmp_path / "x.lmdb", **options)
    assert report.parts[0].resumed >= 64 and report.records == 200
    everything = np.arange(200)
    with open_store(tmp_path / "x.lmdb") as one, open_store(tmp_path / "expected.lmdb") as other:
        assert one.read(everything) == other.read(everything)


def test_store_replaced_by_one_of_its_size_and_time_does_not_resume(tmp_path: Path) -> None:
    def stop(done: int, total: int, nbytes: int) -> None:
        if done:
            raise KeyboardInterrupt

    def write(name: str, value: int) -> Path:
        with open_writer(tmp_path / name) as writer:
            record = Record(data=bytes([value]) * 100, label=None, key="a", width=1, height=1)
            writer.append([record])
        return tmp_path / name

    (tmp_path / "other").mkdir()
    path, other = write("a.tar", 1), write("other/a.tar", 2)
    before = os.stat(path)
    assert other.stat().st_size == before.st_size
    with pytest.raises(KeyboardInterrupt):
        pack(path, tmp_path / "x.lmdb", progress=stop)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, path)
    os.replace(f"{other}.fastload", f"{path}.fastload")
    with pytest.raises(UsageError, match="source_digest"):
        pack(path, tmp_path / "x.lmdb")


def test_split_whose_first_part_is_done_goes_on_with_the_second(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastload.storage.formats.lmdb import LmdbWriter

    commit = LmdbWriter.commit

    def only_first(writer: LmdbWriter) -> None:
        if writer.path.endswith("-val.lmdb"):
            raise KeyboardInterrupt
        commit(writer)

    monkeypatch.setattr(LmdbWriter, "commit", only_first)
    with pytest.raises(KeyboardInterrupt):
        pack(images, tmp_path / "x.lmdb", split="val=0.3")
    monkeypatch.undo()
    assert sorted(os.listdir(tmp_path)) == ["x-val.lmdb.partial", "x.lmdb"]
    with pytest.raises(UsageError, match="exists"):
        pack(images, tmp_path / "x.lmdb", split="val=0.4")
    report = pack(images, tmp_path / "x.lmdb", split="val=0.3")
    assert report.records == 300
    assert sorted(os.listdir(tmp_path)) == ["x-val.lmdb", "x.lmdb"]
    with pytest.raises(UsageError, match="exists"):
        pack(images, tmp_path / "x.lmdb", split="val=0.3")


CHILD = """
import sys, time
from fastload.converters import _pack, _run
from fastload.storage.formats import lmdb
lmdb._FLUSH_RECORDS, _run._CHUNK, _run._CHUNK_MOST = 20, 8, 8
def progress(done, total, nbytes):
    print(done, flush=True)
    time.sleep(0.003)
_pack.pack(sys.argv[1], sys.argv[2], resize=24, progress=progress)
"""


def kill_at_random(images: Path, path: Path, rng: random.Random) -> None:
    """Begin to pack in another process and kill it somewhere in between."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, images, path], stdout=subprocess.PIPE)
    assert child.stdout is not None
    for _ in range(rng.randrange(1, 38)):
        child.stdout.readline()
    time.sleep(rng.random() * 0.01)
    child.send_signal(signal.SIGKILL)
    child.wait(timeout=60)
    child.stdout.close()


def kill_and_complete(images: Path, tmp_path: Path, times: int, seed: int) -> None:
    rng = random.Random(seed)
    pack(images, tmp_path / "whole.lmdb", resize=24)
    expected = data_of(open_store(tmp_path / "whole.lmdb"))
    path = tmp_path / "killed.lmdb"
    resumed = 0
    for _ in range(times):
        kill_at_random(images, path, rng)
        if not path.exists():
            with pytest.raises(StoreError):
                open_store(path)
            resumed += pack(images, path, resize=24).parts[0].resumed
        assert data_of(open_store(path)) == expected
        assert sorted(os.listdir(tmp_path)) == ["killed.lmdb", "whole.lmdb"]
        path.unlink()
    assert resumed > 0


def test_kill_9_leaves_no_store_that_lies_and_the_next_run_completes(
    images: Path, tmp_path: Path
) -> None:
    kill_and_complete(images, tmp_path, 2, 0)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 5))
def test_kill_9_many_times(images: Path, tmp_path: Path, seed: int) -> None:
    kill_and_complete(images, tmp_path, 20, seed)


def test_real_photos_are_kept_byte_for_byte(test_data: Path, tmp_path: Path) -> None:
    pack(test_data, tmp_path / "x.lmdb")
    reference = datasets.ImageFolder(str(test_data))
    store = open_store(tmp_path / "x.lmdb")
    for data, size, (path, _) in zip(
        data_of(store), store.sizes(np.arange(len(store))).tolist(), reference.samples, strict=True
    ):
        assert data == Path(path).read_bytes()
        with Image.open(path) as image:
            assert list(image.size) == size


def test_every_core_option_is_in_the_metadata(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "x.lmdb", resize="longest:20", quality=80)
    metadata = open_store(tmp_path / "x.lmdb").metadata
    assert metadata["encode"] == "jpeg" and metadata["resize"] == "longest:20"
    assert metadata["quality"] == 80 and metadata["source"] == images.name


def test_long_work_can_be_stopped_within_a_chunk(
    tmp_path: Path, count: Callable[[int, int], int], no_leaks: None
) -> None:
    """Ctrl-C does not wait for a chunk of slow images to end."""
    root = tmp_path / "in"
    root.mkdir()
    for index in range(64):
        Image.new("RGB", (600, 600)).save(root / f"{index}.bmp")
    began: list[int] = []

    from fastload.converters import _chunk, _encoders, _store_source

    def slow(data: bytes) -> None:
        began.append(1)
        time.sleep(0.01)
        raise DecodeError("slow")

    stop = threading.Event()
    stop.set()
    source = _store_source.FolderSource(FolderStore(root))
    encoder = _encoders.Encoder(slow, slow)  # type: ignore[arg-type]
    chunk = _chunk.read_chunk(source, np.arange(64), encoder, stop)
    assert not began and len(chunk.data) == 0
