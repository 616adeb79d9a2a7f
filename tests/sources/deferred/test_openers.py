"""What is opened while deferring is as Pillow has it, wherever it comes from, errors included."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile, ImageOps, PngImagePlugin, WebPImagePlugin
from torchvision.datasets.folder import default_loader, pil_loader

import leaks
from fastload._sources.deferred import headers, switch, thread_state
from fastload._sources.deferred.image import DeferredImage
from fastload._sources.deferred.replay import FileChanged


def picture(seed: int = 0, size: tuple[int, int] = (40, 30)) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), np.uint8))


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.jpg"
    picture().save(path)
    return path


@pytest.fixture(params=["jpg", "png", "webp"])
def plain(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file whose header is read without Pillow."""
    path = tmp_path / f"plain.{request.param}"
    picture().save(path)
    return path


def deferred(path: Any) -> DeferredImage:
    with switch.deferring():
        image = Image.open(path)
    assert isinstance(image, DeferredImage)
    assert image.recording is not None
    return image


def test_a_path_is_remembered_with_its_stamp(photo: Path) -> None:
    recording = deferred(photo).recording
    assert recording is not None
    opened = recording.opened
    found = photo.stat()
    assert (opened.path, opened.data) == (str(photo), None)
    assert opened.stamp == (found.st_ctime_ns, found.st_size, found.st_ino)
    assert (opened.size, opened.mode, opened.format) == ((40, 30), "RGB", "JPEG")
    assert (recording.operations, recording.size, recording.mode) == ((), (40, 30), "RGB")


def test_a_relative_path_survives_a_change_of_directory(
    photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    image = deferred("photo.jpg")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert image.filename == "photo.jpg"
    assert image.tobytes() == Image.open(photo).tobytes()


def test_an_open_file_is_remembered_by_its_path(photo: Path) -> None:
    with open(photo, "rb") as file, switch.deferring():
        image = Image.open(file).convert("RGB")
    assert isinstance(image, DeferredImage)
    assert image.recording is not None
    assert image.recording.opened.path == str(photo)
    assert image.tobytes() == Image.open(photo).tobytes()


def test_an_open_file_whose_name_is_taken_by_another_is_remembered_by_its_bytes(
    photo: Path, tmp_path: Path
) -> None:
    with open(photo, "rb") as file, switch.deferring():
        picture(1).save(tmp_path / "other.jpg")
        os.replace(tmp_path / "other.jpg", photo)
        image = Image.open(file).convert("RGB")
    assert isinstance(image, DeferredImage)
    assert image.recording is not None
    assert image.recording.opened.path is None
    assert image.tobytes() != Image.open(photo).tobytes()


def _zipped(path: Path, folder: Path) -> Any:
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.write(path, "member.jpg")
    return zipfile.ZipFile(folder / "a.zip").open("member.jpg")


def _tarred(path: Path, folder: Path) -> Any:
    with tarfile.open(folder / "a.tar", "w") as archive:
        archive.add(path, "member.jpg")
    data = io.BytesIO((folder / "a.tar").read_bytes())
    return tarfile.open(fileobj=data).extractfile("member.jpg")


@pytest.mark.parametrize("packed", [_zipped, _tarred])
def test_members_of_archives_are_read_at_once(
    photo: Path, tmp_path: Path, packed: Callable[[Path, Path], Any]
) -> None:
    with packed(photo, tmp_path) as member:
        image = deferred(member)
        image.load()
    for archive in tmp_path.glob("a.*"):
        archive.unlink()
    assert image.recording is not None
    assert image.recording.opened.data == photo.read_bytes()
    assert image.tobytes() == Image.open(photo).tobytes()


@pytest.mark.parametrize("loader", [default_loader, pil_loader])
def test_torchvisions_loaders_defer(photo: Path, loader: Callable[[str], Any]) -> None:
    expected = loader(str(photo)).tobytes()
    with switch.deferring():
        image = loader(str(photo))
    assert image.recording.opened.path == str(photo)
    assert image.recording.operations == (("convert", "RGB"),)
    assert image.tobytes() == expected


def test_hugging_faces_image_feature_defers(photo: Path) -> None:
    datasets = pytest.importorskip("datasets")
    feature = datasets.Image(mode="RGB")
    row = {"path": None, "bytes": photo.read_bytes()}
    expected = feature.decode_example(row)
    with switch.deferring():
        image = feature.decode_example(row)
    assert isinstance(image, DeferredImage)
    assert image.recording is not None
    assert image.tobytes() == expected.tobytes()


@pytest.mark.parametrize("suffix", ["png", "webp", "jpg"])
def test_asking_for_exif_that_is_not_there_decodes_nothing(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    picture().save(path)
    thread_state.materialised()
    image = deferred(path)
    image.load()
    assert dict(image.getexif()) == {}
    assert dict(image.convert("L").getexif()) == {}
    assert thread_state.materialised() == []
    assert image.recording is not None


@pytest.mark.parametrize("suffix", ["png", "webp", "jpg"])
def test_exif_is_found(tmp_path: Path, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 5
    path = tmp_path / f"x.{suffix}"
    picture().save(path, exif=exif)
    assert dict(deferred(path).getexif()) == {0x0112: 5}
    turned = ImageOps.exif_transpose(deferred(path))
    with Image.open(path) as expected:
        assert turned.tobytes() == ImageOps.exif_transpose(expected).tobytes()


@pytest.mark.parametrize("kind", ["file", "bytes"])
@pytest.mark.parametrize("loads", [False, True])
def test_a_file_is_left_where_pillow_leaves_it(plain: Path, kind: str, loads: bool) -> None:
    def position() -> int:
        with open(plain, "rb") if kind == "file" else io.BytesIO(plain.read_bytes()) as file:
            image = Image.open(file)
            if loads:
                image.convert("L")
            return file.tell()

    expected = position()
    with switch.deferring():
        assert position() == expected


@pytest.mark.parametrize(
    "save",
    [
        {},
        {"quality": 100, "subsampling": 0},
        {"progressive": True},
        {"optimize": True, "restart_marker_rows": 1},
        {"comment": b"x" * 5000},
        {"icc_profile": b"x" * 70_000},
        {"dpi": (72, 72)},
    ],
)
def test_plain_headers_are_read_without_pillow(tmp_path: Path, save: dict[str, Any]) -> None:
    for mode in ("RGB", "L", "CMYK"):
        picture().convert(mode).save(tmp_path / "x.jpg", **save)
        data = (tmp_path / "x.jpg").read_bytes()
        header = headers.jpeg(lambda count, offset, data=data: data[offset : offset + count])
        assert header is not None
        with Image.open(tmp_path / "x.jpg") as expected, open(tmp_path / "x.jpg", "rb") as file:
            assert (header.size, header.mode) == (expected.size, expected.mode)
            Image.open(file)
            assert header.end == file.tell()


PNG_INFO = PngImagePlugin.PngInfo()
PNG_INFO.add_text("Software", "none")
PNG_INFO.add(b"gAMA", (45_455).to_bytes(4, "big"))
PNG_INFO.add(b"tIME", bytes(7))


@pytest.mark.parametrize("save", [{}, {"dpi": (72, 72)}, {"pnginfo": PNG_INFO}])
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "LA", "RGBA"])
def test_plain_headers_of_pngs_are_read_without_pillow(
    tmp_path: Path, mode: str, save: dict[str, Any]
) -> None:
    path = tmp_path / "x.png"
    picture().convert(mode).save(path, **save)
    data = path.read_bytes()
    header = headers.of_file(lambda count, offset: data[offset : offset + count])
    assert header is not None
    with Image.open(path) as expected, open(path, "rb") as file:
        assert header[:2] == (expected.size, expected.mode)
        Image.open(file)
        assert header.end == file.tell()
        for name in ("tobytes", "getexif", "getpalette", "copy"):
            known, image = getattr(expected, name)(), getattr(deferred(path), name)()
            assert image == known
        image = deferred(path)
        assert (image.info, image.text) == (expected.info, expected.text)
        assert (image.format, image.n_frames) == ("PNG", 1)
        assert isinstance(image, PngImagePlugin.PngImageFile)


@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_plain_headers_of_webps_are_read_without_pillow(
    tmp_path: Path, mode: str, lossless: bool
) -> None:
    path = tmp_path / "x.webp"
    image = picture().convert(mode)
    if mode == "RGBA" and lossless:
        image.putalpha(100)
    image.save(path, lossless=lossless)
    data = path.read_bytes()
    header = headers.of_file(lambda count, offset: data[offset : offset + count])
    assert header is not None
    with Image.open(path) as expected, open(path, "rb") as file:
        assert header[:2] == (expected.size, expected.mode)
        Image.open(file)
        assert header.end == file.tell()
        for name in ("tobytes", "getexif", "copy", "tell"):
            known, image = getattr(expected, name)(), getattr(deferred(path), name)()
            assert image == known
    for loads in (False, True):
        image = deferred(path)
        with Image.open(path) as expected:
            if loads:
                image.load()
                expected.load()
            assert image.info == expected.info
        assert (image.format, image.n_frames, image.is_animated) == ("WEBP", 1, False)
        assert isinstance(image, WebPImagePlugin.WebPImageFile)


@pytest.mark.parametrize("save", [{"exif": b"x" * 20}, {"icc_profile": b"x"}, {"save_all": True}])
def test_a_webp_with_more_than_its_pixels_is_opened_by_pillow(
    tmp_path: Path, save: dict[str, Any]
) -> None:
    path = tmp_path / "x.webp"
    if "save_all" in save:
        save = {**save, "append_images": [picture(size=(40, 30), seed=9)]}
    picture(size=(40, 30)).save(path, **save)
    _is_left_to_pillow(path)


def test_the_first_webp_of_a_program_is_opened_by_pillow(tmp_path: Path) -> None:
    picture().save(tmp_path / "x.webp")
    program = """
import sys
import PIL.Image
from fastload._sources.deferred import switch
from fastload._sources.deferred.image import DeferredImage
with switch.deferring():
    first, second = (PIL.Image.open(sys.argv[1]) for _ in range(2))
    assert type(first).__mro__[1] is type(second).__mro__[1] is DeferredImage
    assert first.convert("RGB").tobytes() == second.convert("RGB").tobytes()
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "x.webp")], check=True)


@pytest.mark.parametrize("bits", [1, 4, 16])
def test_a_png_of_other_depth_is_opened_by_pillow(tmp_path: Path, bits: int) -> None:
    path = tmp_path / "x.png"
    if bits == 16:
        Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30)).save(path)
    else:
        picture().convert("P").save(path, bits=bits)
    _is_left_to_pillow(path)


@pytest.mark.parametrize("kind", ["transparency", "icc_profile", "exif", "pnginfo"])
def test_a_png_with_more_in_its_header_is_opened_by_pillow(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.png"
    text = PngImagePlugin.PngInfo()
    text.add_text("transparency", "3")
    values = {"transparency": 3, "pnginfo": text}
    exif = b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0"
    picture().convert("L").save(path, **{kind: values.get(kind, exif)})
    _is_left_to_pillow(path)


def _is_left_to_pillow(path: Path) -> None:
    data = path.read_bytes()
    assert headers.of_file(lambda count, offset: data[offset : offset + count]) is None
    with switch.deferring():
        image = Image.open(path)
    with image, Image.open(path) as expected:
        assert image.info == expected.info
        assert image.tobytes() == expected.tobytes()


def test_every_truncated_header_is_left_to_pillow_or_opens_there_too(plain: Path) -> None:
    data = plain.read_bytes()[:700]
    for length in range(len(data)):
        part = data[:length]
        header = headers.of_file(lambda count, offset, part=part: part[offset : offset + count])
        try:
            expected = Image.open(io.BytesIO(part)).size
        except OSError:
            assert header is None, length
        else:
            assert header is None or header.size == expected


def test_every_header_with_a_wrong_byte_is_left_to_pillow_or_opens_there_too(plain: Path) -> None:
    data = plain.read_bytes()
    for at in range(2, 640 if plain.suffix == ".jpg" else 60):
        for value in (0, 1, 0xFF, 0xC0, 0xDA, data[at] ^ 8):
            wrong = data[:at] + bytes([value]) + data[at + 1 :]
            header = headers.of_file(lambda count, offset, w=wrong: w[offset : offset + count])
            if header is None:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                image = Image.open(io.BytesIO(wrong))
            assert (header.size, header.mode) == (image.size, image.mode), (at, value)
            assert not header.plain or dict(image.getexif()) == {}


def _outcome(path: Path) -> tuple[str, str]:
    try:
        Image.open(path)
    except Exception as error:
        return type(error).__name__, str(error)
    return "opened", ""


def test_errors_of_headers_come_from_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(size=(60, 60)).save(tmp_path / "large.jpg")
    (tmp_path / "text.jpg").write_text("no image at all, but long enough")
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "large.jpg").read_bytes()[:80])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    for name in ("large.jpg", "text.jpg", "empty.jpg", "folder", "cut.jpg", "missing.jpg"):
        expected = _outcome(tmp_path / name)
        assert expected[0] != "opened"
        with switch.deferring():
            assert _outcome(tmp_path / name) == expected


def test_a_large_image_warns_at_open(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with switch.deferring(), pytest.warns(Image.DecompressionBombWarning):
        image = Image.open(photo)
    with image:
        assert not isinstance(image, DeferredImage)


def test_a_header_of_which_pillow_warns_is_opened_by_pillow(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x010E] = "a description that is long"

    broken = bytearray(exif.tobytes())
    broken[20] = 0xFF  # the count of its characters
    picture().save(tmp_path / "x.jpg", exif=bytes(broken))

    with switch.deferring(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        image = Image.open(tmp_path / "x.jpg")
    with image:
        assert caught
        assert not isinstance(image, DeferredImage)


def test_a_png_that_claims_to_be_an_animation_warns_once(tmp_path: Path) -> None:
    picture().save(tmp_path / "x.png")
    data = (tmp_path / "x.png").read_bytes()
    chunk = b"acTL" + bytes(8)  # of no frames
    chunk = bytes([0, 0, 0, 8]) + chunk + zlib.crc32(chunk).to_bytes(4, "big")
    (tmp_path / "x.png").write_bytes(data[:33] + chunk + data[33:])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with switch.deferring(), Image.open(tmp_path / "x.png") as image:
            assert np.array_equal(np.asarray(image.convert("RGB")), np.asarray(picture()))
    assert [str(one.message).split(",")[0] for one in caught] == ["Invalid APNG"]


@pytest.mark.parametrize("change", ["rewrite", "touch", "remove", "replace"])
def test_a_file_that_changes_before_it_is_decoded_is_noticed(photo: Path, change: str) -> None:
    image = deferred(photo).convert("RGB")
    if change == "remove":
        photo.unlink()
    elif change == "touch":
        os.utime(photo, ns=(1, 1))
    elif change == "replace":
        picture(1).save(photo.with_name("new.jpg"))
        os.replace(photo.with_name("new.jpg"), photo)
    else:
        picture(1).save(photo)
    with pytest.raises(FileChanged, match=r"photo\.jpg"):
        image.tobytes()


def test_a_damaged_body_raises_pillows_error_when_it_is_needed(photo: Path) -> None:
    photo.write_bytes(photo.read_bytes()[:900])
    with pytest.raises(OSError, match="truncated") as expected, Image.open(photo) as real:
        real.convert("RGB")
    image = deferred(photo).convert("RGB")
    with pytest.raises(OSError, match="truncated") as found:
        image.tobytes()
    assert str(found.value) == str(expected.value)


def test_truncated_images_are_loaded_where_that_is_wanted(
    photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    photo.write_bytes(photo.read_bytes()[:900])
    expected = Image.open(photo).convert("RGB").tobytes()
    assert deferred(photo).convert("RGB").tobytes() == expected


@pytest.mark.parametrize(
    ("suffix", "is_deferred"),
    [("png", True), ("webp", True), ("bmp", True), ("gif", False), ("tif", False)],
)
def test_formats_that_the_core_does_not_know_are_decoded_where_the_users_code_runs(
    tmp_path: Path, suffix: str, is_deferred: bool
) -> None:
    path = tmp_path / f"x.{suffix}"
    picture().save(path)
    with switch.deferring():
        image = Image.open(path)
    with image, Image.open(path) as expected:
        assert isinstance(image, DeferredImage) == is_deferred
        assert image.tobytes() == expected.tobytes()


def test_somebody_elses_plugin_stays_in_charge(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {".jpg": "JPEG", ".png": "PNG", ".webp": "WEBP"}[plain.suffix]
    factory, accept = Image.OPEN[name]
    monkeypatch.setitem(Image.OPEN, name, (lambda *args: factory(*args), accept))
    with switch.deferring(), Image.open(plain) as image:
        assert not isinstance(image, DeferredImage)


def test_no_file_stays_open(tmp_path: Path) -> None:
    picture().save(tmp_path / "x.png")
    picture().save(tmp_path / "x.jpg")
    with switch.deferring(), warnings.catch_warnings():
        warnings.simplefilter("error")
        images = [Image.open(tmp_path / name) for name in ("x.png", "x.jpg") for _ in range(5)]
        assert not leaks.descriptors_in(tmp_path)
        assert all(image.info is not None and image.getexif() == {} for image in images)
        assert torch.equal(torch.tensor(images[0].size), torch.tensor([40, 30]))
    assert not leaks.descriptors_in(tmp_path)
