"""One image by Pillow: torchvision's pixels, errors that say where, no global state."""

from __future__ import annotations

import concurrent.futures
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile
from torchvision import transforms as v1
from torchvision.datasets import folder

from fastload import FastLoader
from fastload._engine import long_sides, pillow
from fastload.errors import DecodeError
from fastload.storage import DCT, Record, open_store, open_writer
from native_core import core
from pictures import encoded, picture, pixels

WHERE: dict[str, Any] = {"path": "/data/imgs.lmdb", "record": 7, "offset": 4096}


# decode


def palette_with_transparency() -> bytes:
    return encoded(picture().quantize(16), "PNG", transparency=3)


def sixteen_bits() -> bytes:
    gray = np.linspace(0, 65535, 1200).astype(np.uint16).reshape(30, 40)
    return encoded(Image.fromarray(gray), "PNG")


def with_orientation() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(picture(), "JPEG", exif=exif)


FILES = {
    "JPEG": encoded(picture(), "JPEG"),
    "progressive JPEG": encoded(picture(), "JPEG", progressive=True),
    "gray JPEG": encoded(picture().convert("L"), "JPEG"),
    "CMYK JPEG": encoded(picture().convert("CMYK"), "JPEG"),
    "turned JPEG": with_orientation(),
    "PNG": encoded(picture(), "PNG"),
    "RGBA PNG": encoded(picture().convert("RGBA"), "PNG"),
    "gray and alpha PNG": encoded(picture().convert("LA"), "PNG"),
    "palette PNG": encoded(picture().quantize(16), "PNG"),
    "palette and transparency": palette_with_transparency(),
    "bilevel PNG": encoded(picture().convert("1"), "PNG"),
    "16-bit PNG": sixteen_bits(),
    "BMP": encoded(picture(), "BMP"),
    "WebP": encoded(picture(), "WEBP"),
    "two-frame GIF": encoded(picture(), "GIF", save_all=True, append_images=[picture(seed=1)]),
    "TIFF": encoded(picture(), "TIFF"),
}


@pytest.mark.parametrize("name", FILES)
def test_any_image_is_decoded_as_torchvisions_loader_does(name: str, tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(FILES[name])
    ours = pillow.decode(FILES[name])
    theirs = folder.pil_loader(str(path))
    assert ours.mode == "RGB"
    assert pixels(ours) == pixels(theirs)
    assert pixels(pillow.decode(memoryview(FILES[name]))) == pixels(theirs)


def says_where(error: DecodeError) -> bool:
    return (error.path, error.record, error.offset) == tuple(WHERE.values())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not an image in a format that Pillow knows"),
        (b"no image at all", "not an image"),
        (FILES["JPEG"][:-300], "truncated"),
        (FILES["JPEG"][:100], "cannot decode this image of 100 bytes"),
        (FILES["PNG"][:-900], "truncated"),
        (FILES["PNG"][:20], "cannot decode"),
        (FILES["BMP"][:-900], "truncated"),
        (FILES["WebP"][:-300], "cannot decode"),
        (encoded(picture(), "EPS"), "expected a raster image, got EPS"),
    ],
)
def test_what_cannot_be_decoded_says_why_and_where(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason) as info:
        pillow.decode(data, **WHERE)
    assert says_where(info.value)
    assert str(info.value).startswith("'/data/imgs.lmdb', record 7, byte offset 4096: ")


def test_damage_anywhere_is_a_decode_error_or_an_image() -> None:
    rng = np.random.default_rng(0)
    for name in ("JPEG", "PNG", "BMP", "WebP", "two-frame GIF", "TIFF"):
        for _ in range(40):
            data = bytearray(FILES[name])
            for at in rng.integers(0, len(data), 4):
                data[at] = rng.integers(0, 256)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    assert pillow.decode(data).mode == "RGB"
                except DecodeError as error:
                    assert error.__cause__ is not None or "expected" in str(error)


def huge_png(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds nothing."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("size", "action"), [((10_000, 10_000), "error"), ((50_000, 50_000), "ignore")]
)
def test_a_decompression_bomb_is_refused(size: tuple[int, int], action: Any) -> None:
    # Pillow warns about the first and raises for the second
    with warnings.catch_warnings(), pytest.raises(DecodeError, match="decompression bomb") as info:
        warnings.simplefilter(action)
        pillow.decode(huge_png(*size), **WHERE)
    assert says_where(info.value)


def test_the_users_own_limit_on_pixels_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 599)
    with pytest.raises(DecodeError, match=r"decompression bomb: .*1200 pixels.* limit of 1198"):
        pillow.decode(FILES["PNG"])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 600)
    with pytest.warns(Image.DecompressionBombWarning):
        assert pillow.decode(FILES["PNG"]).size == (40, 30)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert pillow.decode(FILES["PNG"]).size == (40, 30)


def test_decoding_in_threads_changes_no_global_state_and_no_pixel() -> None:
    expected = {name: pixels(pillow.decode(data)) for name, data in FILES.items()}
    filters, truncated = list(warnings.filters), ImageFile.LOAD_TRUNCATED_IMAGES
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        names = list(FILES) * 8
        results = pool.map(lambda name: pixels(pillow.decode(FILES[name])), names)
        assert all(result == expected[name] for name, result in zip(names, results))
    assert list(warnings.filters) == filters
    assert ImageFile.LOAD_TRUNCATED_IMAGES == truncated


def test_raw_pixels_need_their_exact_number_of_bytes() -> None:
    image = picture(5, 4)
    assert pixels(pillow.from_pixels(image.tobytes(), (5, 4))) == pixels(image)
    with pytest.raises(DecodeError, match="expected 4x4 RGB pixels in 48 bytes, got 60") as info:
        pillow.from_pixels(image.tobytes(), (4, 4), **WHERE)
    assert says_where(info.value)
    with pytest.raises(DecodeError, match="expected 0x0"):
        pillow.from_pixels(b"", (0, 0))


# records


def store_of(path: Path, records: list[bytes]) -> Any:
    with open_writer(path, classes=["a"], metadata={}) as writer:
        writer.append(
            [
                Record(data=data, label=0, key=str(i), width=40, height=30, kind=DCT)
                for i, data in enumerate(records)
            ]
        )
    return open_store(path)


@pytest.mark.native
def test_single_dct_records_are_read_and_damaged_ones_named(tmp_path: Path) -> None:
    record = core().dct_encode(FILES["JPEG"])
    damaged = record[:20] + b"\xff" * 9 + record[29:]
    store = store_of(tmp_path / "x.lmdb", [record, damaged])
    assert pixels(pillow.decode_record(store, 0)) == pixels(pillow.decode(FILES["JPEG"]))
    with pytest.raises(DecodeError, match="DCT record is damaged") as info:
        pillow.decode_record(store, 1)
    assert info.value.record == 1 and info.value.path == str(tmp_path / "x.lmdb")


@pytest.mark.native
@pytest.mark.parametrize("threads", [0, 2])
def test_a_batch_with_a_damaged_dct_record_is_an_error(tmp_path: Path, threads: int) -> None:
    record = core().dct_encode(FILES["JPEG"])
    store_of(tmp_path / "x.lmdb", [record, record[:-9]])
    with pytest.raises(DecodeError, match="record is damaged") as info:
        list(FastLoader(tmp_path / "x.lmdb", 2, transform=v1.ToTensor(), num_workers=threads))
    assert info.value.record == 1


# long sides


@pytest.mark.parametrize("flip", [0, 1])
@pytest.mark.parametrize("corner", [(0, 0), (-2, -1), (3, 2), (-2, 3), (-9, 0), (0, -9), (40, 40)])
def test_pixels_outside_of_the_resized_box_get_the_fill(corner: Any, flip: int) -> None:
    image = picture(9, 8)
    made = long_sides.cut(image, [1, 0, 7, 6, 7, 6, *corner, flip, 8, 7], 2, (1, 2, 3))
    source = np.asarray(image)[0:6, 1:8]
    expected = np.empty((7, 8, 3), np.uint8)
    expected[:] = (1, 2, 3)
    for y in range(7):
        for x in range(8):
            at_y, at_x = y + corner[1], x + corner[0]
            if 0 <= at_y < 6 and 0 <= at_x < 7:
                expected[y, x] = source[at_y, at_x]
    if flip:
        expected = expected[:, ::-1]
    assert np.asarray(made).tolist() == expected.tolist()
