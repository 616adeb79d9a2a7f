"""JPEG crops against Pillow's decode, bit for bit, and what is left to Pillow."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import jpeg_blocks
import native_core
from fastload import _native

pytestmark = pytest.mark.native

KINDS = ["4:4:4", "4:2:2", "4:2:0", "4:4:0", "4:1:1", "gray"]


def make(kind: str, width: int, height: int, seed: int, **options: object) -> bytes:
    """A JPEG with this sampling and about this size."""
    image = native_core.photo(width, height, seed)
    if kind == "gray":
        return native_core.encode(image.convert("L"), **options)
    if kind == "4:4:0":
        return native_core.as_440(native_core.encode(image, subsampling="4:2:2", **options))
    if kind == "4:1:1":
        whole = image.resize(((width + 15) // 16 * 16, (height + 15) // 16 * 16))
        return native_core.as_411(native_core.encode(whole, subsampling="4:2:0", **options))
    return native_core.encode(image, subsampling=kind, **options)


def status_of(data: bytes, path: Path, box: tuple[int, int, int, int] = (0, 0, 8, 8)) -> int:
    path.write_bytes(data)
    files = native_core.open_files([path])
    return int(native_core.submit(files, [box]).wait().status[0])


@st.composite
def sources(draw: st.DrawFn) -> tuple[bytes, str]:
    kind = draw(st.sampled_from(KINDS))
    width, height = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    options: dict[str, object] = {"quality": draw(st.integers(10, 98))}
    if draw(st.booleans()):
        options["optimize"] = True
    if draw(st.booleans()):
        options["restart_marker_blocks"] = draw(st.integers(1, 9))
    elif kind not in ("4:4:0", "4:1:1") and draw(st.booleans()) and width * height > 64:
        options["progressive"] = True
    return make(kind, width, height, draw(st.integers(0, 1000)), **options), kind


@given(source=sources(), data=st.data())
def test_any_crop_of_any_sampling_equals_pillow(
    tmp_path_factory: pytest.TempPathFactory,
    source: tuple[bytes, str],
    data: st.DataObject,
) -> None:
    encoded, _ = source
    expected = native_core.pixels(encoded)
    height, width = expected.shape[:2]
    path = tmp_path_factory.mktemp("jpeg") / "image.jpg"
    path.write_bytes(encoded)
    files = native_core.open_files([path], mapped=data.draw(st.booleans()))
    for _ in range(8):
        x, y = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
        w, h = data.draw(st.integers(1, width - x)), data.draw(st.integers(1, height - y))
        result = native_core.submit(files, [[x, y, w, h]], size=[[width, height]]).wait()
        assert result.status[0] == _native.OK
        np.testing.assert_array_equal(result.images[0], expected[y : y + h, x : x + w])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", [1, 2, 3])
def test_every_small_window_of_a_small_image_equals_pillow(
    tmp_path: Path, kind: str, side: int
) -> None:
    encoded = make(kind, 37, 21, seed=side)
    expected = native_core.pixels(encoded)
    height, width = expected.shape[:2]
    (tmp_path / "image.jpg").write_bytes(encoded)
    files = native_core.open_files([tmp_path / "image.jpg"], mapped=True)
    corners = [(x, y) for y in range(height - side + 1) for x in range(width - side + 1)]
    result = native_core.submit(files, [(x, y, side, side) for x, y in corners], threads=2).wait()
    assert (result.status == _native.OK).all()
    for image, (x, y) in zip(result.images, corners):
        np.testing.assert_array_equal(image, expected[y : y + side, x : x + side])


def test_crops_of_real_photos_equal_pillow(test_data: Path) -> None:
    paths = sorted(test_data.glob("*/*"))[::10]
    rng = np.random.default_rng(3)
    files = native_core.open_files(paths)
    whole = [native_core.pixels(path.read_bytes()) for path in paths]
    for side in (1, 2, 33, 200):
        boxes = []
        for image in whole:
            h, w = min(side, image.shape[0]), min(side, image.shape[1])
            x = rng.integers(0, image.shape[1] - w + 1)
            y = rng.integers(0, image.shape[0] - h + 1)
            boxes.append((x, y, w, h))
        result = native_core.submit(files, boxes, out_h=side, out_w=side, threads=2).wait()
        assert (result.status == _native.OK).all()
        for got, image, (x, y, w, h) in zip(result.images, whole, boxes):
            np.testing.assert_array_equal(got[:h, :w], image[y : y + h, x : x + w])


def test_rgb_coded_without_colour_conversion_equals_pillow(tmp_path: Path) -> None:
    encoded = native_core.encode(native_core.photo(40, 30), keep_rgb=True)
    (tmp_path / "image.jpg").write_bytes(encoded)
    files = native_core.open_files([tmp_path / "image.jpg"])
    result = native_core.submit(files, [[5, 4, 30, 20]]).wait()
    assert result.status[0] == _native.OK
    np.testing.assert_array_equal(result.images[0], native_core.pixels(encoded)[4:24, 5:35])


def test_other_formats_and_colours_are_left_to_pillow(tmp_path: Path) -> None:
    image = native_core.photo(40, 30)
    encoded = native_core.encode(image)
    at = native_core.frame(encoded)

    def patched(offset: int, value: int) -> bytes:
        return encoded[: at + offset] + bytes([value]) + encoded[at + offset + 1 :]

    for name, data in {
        "CMYK": native_core.encode(image.convert("CMYK")),
        "TIFF": native_core.encode(image, "TIFF"),
        "GIF": native_core.encode(image, "GIF"),
        "12-bit": patched(4, 12),
        "lossless": patched(1, 0xC3),
        "arithmetic": patched(1, 0xC9),
        "zero bytes": b"",
        "one byte": b"\xff",
        "start only": b"\xff\xd8\xff",
        "text": b"this is not an image at all",
        "no scan": encoded[:at] + b"\xff\xd9",
    }.items():
        assert status_of(data, tmp_path / "file") == _native.UNSUPPORTED, name


def test_a_truncated_jpeg_is_left_to_pillow(tmp_path: Path) -> None:
    encoded = native_core.encode(native_core.photo(160, 120), quality=90)
    for keep in range(2, len(encoded) - 200, 97):
        status = status_of(encoded[:keep], tmp_path / "file", (0, 0, 160, 120))
        assert status == _native.UNSUPPORTED, keep


def test_what_libjpeg_warns_about_is_left_to_pillow(tmp_path: Path) -> None:
    encoded = native_core.encode(native_core.photo(160, 120), quality=90)
    middle = len(encoded) // 2
    damaged = encoded[:middle] + b"\xff\xd9" + encoded[middle + 2 :]
    assert status_of(damaged, tmp_path / "file", (0, 0, 160, 120)) == _native.UNSUPPORTED
    stray = (
        encoded[: native_core.frame(encoded)] + b"\0\0\0" + encoded[native_core.frame(encoded) :]
    )
    assert status_of(stray, tmp_path / "file", (0, 0, 8, 8)) == _native.UNSUPPORTED


def test_damage_never_crashes_and_never_goes_unflagged_where_pillow_raises(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    originals = [
        make("4:2:0", 64, 48, 1),
        make("4:4:4", 64, 48, 2, progressive=True),
        make("gray", 64, 48, 3, restart_marker_blocks=2),
    ]
    paths, damaged = [], []
    for i in range(150):
        data = bytearray(originals[i % 3])
        for at in rng.integers(2, len(data), rng.integers(1, 4)):
            data[at] = rng.integers(0, 256)
        paths.append(tmp_path / f"{i}.jpg")
        paths[-1].write_bytes(data)
        damaged.append(bytes(data))
    files = native_core.open_files(paths)
    result = native_core.submit(files, [[0, 0, 64, 48]] * 150, size=[64, 48], threads=2).wait()
    assert set(result.status.tolist()) <= {_native.OK, _native.UNSUPPORTED, _native.SIZE}
    for status, image, data in zip(result.status, result.images, damaged):
        if status == _native.OK:
            np.testing.assert_array_equal(image, native_core.pixels(data))


@pytest.mark.parametrize("progressive", [False, True])
def test_an_absurd_size_in_a_header_costs_nothing(tmp_path: Path, progressive: bool) -> None:
    encoded = native_core.encode(native_core.photo(32, 32), progressive=progressive)
    for width, height in [(65535, 65535), (65500, 65500), (0, 32), (32, 0), (30000, 2000)]:
        data = native_core.with_size(encoded, width, height)
        status = status_of(data, tmp_path / "file", (0, 0, 8, max(1, min(height, 1900))))
        assert status in (_native.UNSUPPORTED, _native.SIZE), (width, height)


def scans(data: bytes) -> tuple[bytes, list[bytes]]:
    """The parts of a JPEG: what precedes the first scan, and each scan with its tables."""
    parts, at = [], 2
    while data[at + 1] != 0xDA:
        at += 2 + int(struct.unpack(">H", data[at + 2 : at + 4])[0])
    head, start = data[:at], at
    while data[at + 1] != 0xD9:
        if data[at + 1] == 0xDA:
            at += 2 + int(struct.unpack(">H", data[at + 2 : at + 4])[0])
            while data[at] != 0xFF or data[at + 1] == 0 or 0xD0 <= data[at + 1] <= 0xD7:
                at += 1
            parts.append(data[start:at])
            start = at
        else:
            at += 2 + int(struct.unpack(">H", data[at + 2 : at + 4])[0])
    return head, parts


def respan(scan: bytes, first: int, last: int) -> bytes:
    """A scan of one component with another spectral selection, with all bits at once."""
    at = scan.index(b"\xff\xda\x00\x08\x01") + 7
    return scan[:at] + bytes([first, last, 0]) + scan[at + 3 :]


def test_a_progressive_jpeg_with_missing_bits_or_hundreds_of_scans_is_left_to_pillow(
    tmp_path: Path,
) -> None:
    head, parts = scans(
        native_core.encode(native_core.photo(48, 40).convert("L"), progressive=True)
    )
    end = b"\xff\xd9"
    # Declare the scan of coefficients 6 to 63 as 1 to 63: every block then ends early.
    dc, ac = respan(parts[0], 0, 0), respan(parts[2], 1, 63)
    complete = head + dc + ac + end
    assert status_of(complete, tmp_path / "file") == _native.OK
    files = native_core.open_files([tmp_path / "file"])
    result = native_core.submit(files, [[3, 2, 40, 30]]).wait()
    np.testing.assert_array_equal(result.images[0], native_core.pixels(complete)[2:32, 3:43])
    assert status_of(head + dc + ac * 20 + end, tmp_path / "file") == _native.OK
    assert status_of(head + dc + ac * 400 + end, tmp_path / "file") == _native.UNSUPPORTED
    assert status_of(head + dc + end, tmp_path / "file") == _native.UNSUPPORTED
    assert status_of(head + b"".join(parts[:-1]) + end, tmp_path / "file") == _native.UNSUPPORTED
    assert status_of(head + b"".join(parts) + end, tmp_path / "file") == _native.OK


def test_a_good_image_after_a_bad_one_is_good(tmp_path: Path) -> None:
    # A thread reuses its decoder: a failed image must leave no state behind.
    good = native_core.encode(native_core.photo(64, 48), quality=90)
    bad = [
        good[: len(good) // 2],
        native_core.encode(native_core.photo(64, 48, 1), progressive=True)[:900],
        native_core.encode(native_core.photo(64, 48, 2).convert("CMYK")),
        good[:200],
    ]
    paths = []
    for i in range(40):
        paths.append(tmp_path / f"{i}.jpg")
        paths[-1].write_bytes(bad[(i // 2) % 4] if i % 2 else good)
    files = native_core.open_files(paths)
    result = native_core.submit(files, [[0, 0, 64, 48]] * 40, threads=1).wait()
    expected = native_core.pixels(good)
    for image in result.images[::2]:
        np.testing.assert_array_equal(image, expected)
    assert (result.status[::2] == _native.OK).all()
    assert (result.status[1::2] == _native.UNSUPPORTED).all()


def test_probe_reads_sizes_from_headers(tmp_path: Path) -> None:
    image = native_core.photo(123, 45)
    profile = bytes(range(256)) * 120  # moves the frame header far past the first page
    encoded = {
        "a.jpg": native_core.encode(image),
        "b.jpg": native_core.encode(image, progressive=True, icc_profile=profile),
        "c.png": native_core.encode(image, "PNG"),
        "d.bmp": native_core.encode(image, "BMP"),
        "e.webp": native_core.encode(image, "WEBP"),
        "f.tif": native_core.encode(image, "TIFF"),
        "g.jpg": b"\xff\xd8\xff",
        "h.jpg": b"",
    }
    for name, data in encoded.items():
        (tmp_path / name).write_bytes(data)
    paths = [tmp_path / name for name in [*encoded, "absent"]]
    n = len(paths)
    for threads in (0, 2):
        size, status = np.zeros((n, 2), np.int32), np.full(n, 99, np.int32)
        native_core.core().probe(
            native_core.open_files(paths),
            np.arange(n, dtype=np.int32),
            np.zeros(n, np.int64),
            np.full(n, -1, np.int64),
            np.zeros(n, np.uint8),
            size,
            status,
            threads,
        )
        assert status.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 2]
        assert size[:5].tolist() == [[123, 45]] * 5
        assert not size[5:].any()


def test_exif_orientation_is_left_alone(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    encoded = native_core.encode(native_core.photo(40, 20), exif=exif)
    (tmp_path / "image.jpg").write_bytes(encoded)
    files = native_core.open_files([tmp_path / "image.jpg"])
    result = native_core.submit(files, [[0, 0, 40, 20]], size=[[40, 20]]).wait()
    assert result.status[0] == _native.OK
    np.testing.assert_array_equal(result.images[0], native_core.pixels(encoded))


@pytest.mark.parametrize("marker", [b"\xff\xdb", b"\xff\xc4"], ids=["quantisation", "Huffman"])
def test_tables_of_the_image_before_are_never_used(tmp_path: Path, marker: bytes) -> None:
    """A file that defines no tables is left to Pillow, whatever was decoded before."""
    good, bad = tmp_path / "good.jpg", tmp_path / "bad.jpg"
    good.write_bytes(make("4:2:0", 61, 47, seed=0, quality=35))
    data = bytearray(make("4:2:0", 61, 47, seed=1, quality=90))
    while (at := data.find(marker)) >= 0:
        data[at + 1] = 0xED  # an APP13 segment: skipped
    bad.write_bytes(data)
    for paths, expected in (
        ([bad], [_native.UNSUPPORTED]),
        ([good, bad, good], [_native.OK, _native.UNSUPPORTED, _native.OK]),
    ):
        files = native_core.open_files(paths)
        result = native_core.submit(files, [[0, 0, 61, 47]] * len(paths), threads=0).wait()
        assert list(result.status) == expected


THUMBNAIL = native_core.encode(native_core.photo(16, 16))


def truncations(data: bytes) -> dict[str, bytes]:
    """A file of 90 x 60 pixels, whole and truncated in several ways."""
    half = data[: data.index(b"\xff\xda") + (len(data) - data.index(b"\xff\xda")) // 2]
    thumbnail = b"\xff\xe1" + struct.pack(">H", len(THUMBNAIL) + 2) + THUMBNAIL
    return {
        "whole": data,
        "with bytes behind it": data + b"trailer" + bytes(30),
        "with an image behind it": data + THUMBNAIL,
        "with a thumbnail": data[:2] + thumbnail + data[2:],
        "without the last byte": data[:-1],
        "without its end": data[:-2],
        "without a little": data[:-9],
        "by half": half,
        "by half, with a thumbnail": half[:2] + thumbnail + half[2:],
        "by half, with zeros in its place": half + bytes(len(data) - len(half)),
        "by half, with ones in its place": half + b"\xff" * (len(data) - len(half)),
    }


@pytest.mark.parametrize("kind", ["4:4:4", "4:2:0", "gray", "progressive", "restarts"])
def test_a_file_is_truncated_or_not_whatever_the_crop(tmp_path: Path, kind: str) -> None:
    """Without an end marker Pillow decides about it, with one the core does."""
    options: dict[str, object] = {"progressive": True} if kind == "progressive" else {}
    if kind == "restarts":
        options["restart_marker_blocks"] = 3
    data = make(kind if kind in KINDS else "4:2:0", 90, 60, seed=1, quality=85, **options)
    for name, file in truncations(data).items():
        try:
            native_core.pixels(file)
            whole = True
        except OSError:
            whole = False
        found = {
            status_of(file, tmp_path / "image.jpg", box)
            for box in ((0, 0, 8, 8), (41, 20, 8, 8), (82, 52, 8, 8), (0, 0, 90, 60))
        }
        assert found == {_native.OK if name.startswith("w") and "out" not in name else
                         _native.UNSUPPORTED}, name  # fmt: skip
        assert whole or found == {_native.UNSUPPORTED}, name


@pytest.mark.parametrize("kind", ["4:4:4", "4:2:0", "gray", "4:1:1", "restarts"])
def test_a_marker_between_the_scan_and_the_end_is_left_to_pillow(tmp_path: Path, kind: str) -> None:
    """libjpeg reads on after the last row, and refuses some of what it finds there."""
    options: dict[str, object] = {"restart_marker_blocks": 3} if kind == "restarts" else {}
    data = make(kind if kind in KINDS else "4:2:0", 90, 60, seed=1, **options)

    def segment(at: int) -> bytes:
        return data[at : at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")]

    assert status_of(data[:-2] + b"\xff" + data[-2:], tmp_path / "fill.jpg") == _native.OK
    refused = {
        "a scan": segment(data.index(b"\xff\xda")),
        "a frame": segment(native_core.frame(data)),
        "an unknown marker": b"\xff\x02\0\2",
    }
    for name, between in refused.items():
        file = data[:-2] + between + data[-2:]
        with pytest.raises(OSError, match="broken data stream"):
            native_core.pixels(file)
        for box in ((0, 0, 8, 8), (7, 3, 80, 29)):
            assert status_of(file, tmp_path / "image.jpg", box) == _native.UNSUPPORTED, name


@pytest.mark.parametrize(
    "factors",
    [
        ((4, 1), (1, 2), (2, 1)),
        ((2, 1), (1, 2), (4, 1)),
        ((2, 1), (1, 2), (2, 1)),
        ((1, 1), (2, 2), (1, 1)),
        ((2, 2), (2, 1), (1, 2)),
        ((1, 4), (2, 1), (1, 1)),
    ],
)
def test_crops_of_components_sampled_in_different_ways_equal_pillow(
    tmp_path: Path, factors: tuple[tuple[int, int], ...]
) -> None:
    """Images whose chroma libjpeg upsamples differently if a crop leaves too little of it."""
    rng = np.random.default_rng(5)
    h, v = (max(side) for side in zip(*factors))
    for width, height in ((37, 21), (70, 19), (9, 5)):
        columns, rows = -(-width // (8 * h)), -(-height // (8 * v))
        blocks = []
        for across, down in factors:
            values = rng.integers(-60, 61, (rows * down, columns * across, 64))
            values *= rng.random(values.shape) < 0.15
            values[..., 0] *= 6
            blocks.append(values)
        quant = [np.full(64, 8)] * 3
        encoded = jpeg_blocks.write(width, height, list(factors), quant, blocks)
        expected = native_core.pixels(encoded)
        (tmp_path / "image.jpg").write_bytes(encoded)
        files = native_core.open_files([tmp_path / "image.jpg"])
        for w, h_ in ((1, 3), (2, 1), (3, 5), (8, 2)):
            corners = [(x, y) for y in (0, height - h_) for x in range(width - w + 1)]
            result = native_core.submit(files, [(x, y, w, h_) for x, y in corners]).wait()
            assert (result.status == _native.OK).all()
            for image, (x, y) in zip(result.images, corners):
                np.testing.assert_array_equal(image, expected[y : y + h_, x : x + w])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "height"), [(1, 1), (70, 33), (301, 203)])
def test_a_whole_image_is_decoded_with_either_channel_first(
    kind: str, width: int, height: int
) -> None:
    data = make(kind, width, height, seed=3)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    core = native_core.core()
    for reversed_, step in [(False, 1), (True, -1)]:
        pixels = np.zeros_like(expected)
        assert core.decode(data, pixels, reversed=reversed_)
        np.testing.assert_array_equal(pixels, expected[..., ::step])
    if kind == "gray":
        levels = np.zeros(expected.shape[:2], np.uint8)
        assert core.decode(data, levels)
        np.testing.assert_array_equal(levels, expected[..., 0])


def test_a_whole_image_of_another_size_or_a_damaged_one_is_not_decoded() -> None:
    data, core = make("4:2:0", 64, 48, seed=1), native_core.core()
    assert core.decode(data, np.zeros((48, 64, 3), np.uint8))
    assert not core.decode(data, np.zeros((64, 48, 3), np.uint8))
    assert not core.decode(data[:-200], np.zeros((48, 64, 3), np.uint8))
    assert not core.decode(b"", np.zeros((48, 64, 3), np.uint8))


@pytest.mark.parametrize("shape", [(48,), (48, 64, 4), (0, 64, 3), (1, 65_536, 3)])
def test_a_whole_image_needs_an_array_of_pixels(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"^out: expected"):
        native_core.core().decode(b"", np.zeros(shape, np.uint8))
