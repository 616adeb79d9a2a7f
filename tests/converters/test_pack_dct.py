"""pack(encode="dct"): records without loss, reasons for what is kept, refusal without the core."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from fastload import DecodeError, MissingDependencyError, _native
from fastload.cli import main
from fastload.converters import pack
from fastload.storage import DCT, ENCODED, open_store
from fastload.storage._crc import crc32c
from fastload.storage._read import read_records
from storage.formats import picture

pytestmark = pytest.mark.native


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Forty JPEGs in two classes, and four files that are kept as they are."""
    root = tmp_path / "imgs"
    for index in range(40):
        path = root / f"class{index % 2}" / f"{index:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(index, 20 + index, 33))
    Image.new("RGB", (9, 8)).save(root / "class0" / "x.png")
    Image.new("RGBA", (9, 8)).save(root / "class1" / "x.png")
    Image.new("CMYK", (9, 8)).save(root / "class1" / "y.jpg")
    # libjpeg warns of codes that are missing before the end; Pillow takes it as it is
    (root / "class1" / "z.jpg").write_bytes(picture(3, 200, 200)[:9000] + b"\xff\xd9")
    return root


KEPT = ["class0/x.png", "class1/x.png", "class1/y.jpg", "class1/z.jpg"]


def test_jpegs_become_records_and_the_rest_keeps_its_bytes(images: Path, tmp_path: Path) -> None:
    report = pack(images, tmp_path / "x.lmdb", encode="dct")
    core = _native.load()
    assert core is not None
    store = open_store(tmp_path / "x.lmdb")
    everything = np.arange(len(store))
    kinds, sizes, checksums = (
        store.kinds(everything),
        store.sizes(everything),
        store.checksums(everything),
    )
    assert checksums is not None
    keys = store.keys(everything)
    assert [key for key, kind in zip(keys, kinds, strict=True) if kind == ENCODED] == KEPT
    for at, data in enumerate(read_records(store, everything)):
        source = (images / keys[at]).read_bytes()
        assert data == (source if kinds[at] == ENCODED else core.dct_encode(source))
        assert checksums[at] == crc32c(data)
        with Image.open(io.BytesIO(source)) as image:
            assert tuple(sizes[at]) == image.size
    assert report.records == 44 and sum(report.kept.values()) == 4
    assert report.kept["not a JPEG"] == 2
    assert any("CMYK" in reason for reason in report.kept)
    assert any(reason.startswith("libjpeg warned") for reason in report.kept)
    assert pack(images, tmp_path / "y.lmdb").kept == {}


def test_warnings_that_differ_in_numbers_are_one_reason(tmp_path: Path) -> None:
    (tmp_path / "imgs").mkdir()
    for extraneous in (3, 7):
        data = picture(1, 20, 33)[:-2] + bytes(extraneous) + b"\xff\xd9"
        (tmp_path / "imgs" / f"{extraneous}.jpg").write_bytes(data)
    kept = pack(tmp_path / "imgs", tmp_path / "x.lmdb", encode="dct").kept
    assert kept == {"libjpeg warned: Corrupt JPEG data: N extraneous bytes before marker N": 2}


def test_the_number_of_workers_changes_nothing(images: Path, tmp_path: Path) -> None:
    stores = []
    for workers in (1, 5):
        pack(images, tmp_path / f"{workers}.lmdb", encode="dct", workers=workers)
        stores.append(open_store(tmp_path / f"{workers}.lmdb"))
    one, five = (list(read_records(store, np.arange(44))) for store in stores)
    assert one == five


def test_resize_gives_the_record_of_the_jpeg_that_resize_gives(
    images: Path, tmp_path: Path
) -> None:
    (images / "class1" / "z.jpg").unlink()  # cut short: it cannot be resized
    options = {"resize": 16, "quality": 60}
    report = pack(images, tmp_path / "dct.lmdb", encode="dct", **options)  # type: ignore[arg-type]
    pack(images, tmp_path / "jpeg.lmdb", encode="jpeg", **options)  # type: ignore[arg-type]
    core = _native.load()
    assert core is not None
    dct, jpeg = (open_store(tmp_path / f"{name}.lmdb") for name in ("dct", "jpeg"))
    everything = np.arange(len(dct))
    assert report.kept == {} and (dct.kinds(everything) == DCT).all()
    assert (dct.sizes(everything) == jpeg.sizes(everything)).all()
    for record, source in zip(
        read_records(dct, everything), read_records(jpeg, everything), strict=True
    ):
        assert record == core.dct_encode(source)
    assert dct.metadata["quality"] == 60


def test_orientation_is_applied_where_asked_for(tmp_path: Path) -> None:
    root = tmp_path / "in"
    root.mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.frombytes("RGB", (8, 4), bytes(range(96))).save(root / "a.jpg", exif=exif)
    for turn, size in ((False, [8, 4]), (True, [4, 8])):
        pack(root, tmp_path / f"{turn}.lmdb", encode="dct", exif=turn)
        store = open_store(tmp_path / f"{turn}.lmdb")
        assert store.sizes(np.arange(1)).tolist() == [size]
        assert store.kinds(np.arange(1)).tolist() == [DCT]


def test_an_interrupted_run_is_resumed(tmp_path: Path) -> None:
    root = tmp_path / "in"
    root.mkdir()
    for index in range(200):
        (root / f"{index:03d}.jpg").write_bytes(picture(index, 16, 16))

    def stop(done: int, total: int, nbytes: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(root, tmp_path / "x.lmdb", encode="dct", progress=stop)
    assert pack(root, tmp_path / "x.lmdb", encode="dct").parts[0].resumed >= 64
    pack(root, tmp_path / "y.lmdb", encode="dct")
    x, y = (open_store(tmp_path / f"{name}.lmdb") for name in "xy")
    everything = np.arange(200)
    assert list(read_records(x, everything)) == list(read_records(y, everything))
    assert (x.kinds(everything) == DCT).all()


def test_a_file_that_is_no_image_is_an_error_as_ever(images: Path, tmp_path: Path) -> None:
    (images / "class0" / "text.jpg").write_bytes(b"text")
    with pytest.raises(DecodeError, match=r"text\.jpg"):
        pack(images, tmp_path / "x.lmdb", encode="dct")


def test_without_the_core_nothing_is_written(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTLOAD_NO_NATIVE", "1")
    with pytest.raises(MissingDependencyError, match="native core"):
        pack(images, tmp_path / "x.lmdb", encode="dct")
    assert os.listdir(tmp_path) == ["imgs"]


def test_where_records_would_be_slow_nothing_is_written(images: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fastload", "pack", images, tmp_path / "x.lmdb", "--encode", "dct"],
        env={**os.environ, "FASTLOAD_NO_DCT_HOOK": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0 and "FASTLOAD_NO_DCT_HOOK" in done.stderr
    assert os.listdir(tmp_path) == ["imgs"]


def test_the_command_line_tells_what_was_kept_and_info_counts(images: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "x.lmdb")
    packed = CliRunner().invoke(main, ["pack", str(images), store, "--encode", "dct"])
    assert packed.exit_code == 0, packed.output
    assert "kept unchanged: 2, not a JPEG" in packed.output
    shown = CliRunner().invoke(main, ["info", store, "--grid", str(tmp_path / "sheet.png")])
    assert "encodings   dct 40, png 2, jpeg 2" in shown.output
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.getpixel((48, 48)) != (128, 128, 128)  # not the grey of an unreadable record
