"""PNG files of every kind decode to Pillow's pixels, natively, whatever the crop."""

from __future__ import annotations

import io
import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import native_core
import png_files
from fastload import _native
from png_files import CHANNELS, GRAY, KINDS, PALETTE, RGB, RGBA, chunk

core = native_core.core
Box = tuple[int, int, int, int]

pytestmark = [
    pytest.mark.native,
    pytest.mark.filterwarnings("ignore:Palette images with Transparency:UserWarning"),
]

SIZES = [(1, 1), (1, 9), (9, 1), (2, 3), (5, 5), (7, 33), (33, 7), (40, 41)]


@pytest.fixture(autouse=True, scope="module")
def libdeflate() -> None:
    if core().png_version() is None:
        pytest.skip("the core was built without libdeflate")


@pytest.fixture(params=["", "scalar"])
def simd(request: pytest.FixtureRequest) -> Iterator[None]:
    assert core().set_simd(request.param)
    yield
    core().set_simd("")


def decode(
    folder: Path, files: list[bytes], boxes: list[Box]
) -> list[npt.NDArray[np.uint8] | None]:
    """Each file's box, uint8 (h, w, 3); None for those that the core leaves to Pillow."""
    found: list[npt.NDArray[np.uint8] | None] = []
    for data, box in zip(files, boxes, strict=True):
        path = folder / "image.png"
        path.write_bytes(data)
        done = native_core.submit(native_core.open_files([path]), [box], threads=0).wait()
        assert done.status[0] in (_native.OK, _native.UNSUPPORTED)
        found.append(done.images[0] if done.status[0] == _native.OK else None)
    return found


def some_boxes(rng: np.random.Generator, width: int, height: int) -> list[Box]:
    """The whole image, and two boxes in it."""
    boxes = [(0, 0, width, height)]
    for _ in range(2):
        x0, x1 = sorted(rng.choice(width + 1, 2, replace=False).tolist())
        y0, y1 = sorted(rng.choice(height + 1, 2, replace=False).tolist())
        boxes.append((x0, y0, x1 - x0, y1 - y0))
    return boxes


def check(folder: Path, rng: np.random.Generator, data: bytes) -> None:
    """The core decodes the file, and each box has Pillow's pixels."""
    pixels = native_core.pixels(data)
    boxes = some_boxes(rng, pixels.shape[1], pixels.shape[0])
    for box, found in zip(boxes, decode(folder, [data] * len(boxes), boxes), strict=True):
        assert found is not None
        x, y, w, h = box
        np.testing.assert_array_equal(found, pixels[y : y + h, x : x + w])


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize(("colour", "depth"), KINDS)
def test_every_crop_is_that_of_pillows_pixels(
    tmp_path: Path, simd: None, colour: int, depth: int, interlaced: bool
) -> None:
    rng = np.random.default_rng(colour * 100 + depth)
    for (width, height), smooth in itertools.product(SIZES, (False, True)):
        piece = int(rng.choice([1, 7, 1000, 100_000]))
        check(
            tmp_path,
            rng,
            png_files.image(
                rng, width, height, colour, depth, interlaced=interlaced, smooth=smooth, piece=piece
            ),
        )


@pytest.mark.parametrize("filter", range(5))
@pytest.mark.parametrize(("colour", "depth"), KINDS)
def test_each_filter_alone_is_undone(
    tmp_path: Path, simd: None, colour: int, depth: int, filter: int
) -> None:
    rng = np.random.default_rng(filter)
    for width in (1, 2, 3, 17, 64):
        check(tmp_path, rng, png_files.image(rng, width, 19, colour, depth, filters=[filter]))


@pytest.mark.parametrize("level", [0, 1, 9])
def test_stored_fixed_and_dynamic_blocks_inflate(tmp_path: Path, level: int) -> None:
    rng = np.random.default_rng(level)
    for smooth in (False, True):
        check(tmp_path, rng, png_files.image(rng, 61, 47, smooth=smooth, level=level))


TRANSPARENT = [
    (GRAY, 1, b"\0\1"),
    (GRAY, 4, b"\0\7"),
    (GRAY, 8, b"\0\x80"),
    (GRAY, 8, b"\xff\xff"),
    (GRAY, 16, b"\1\2"),
    (RGB, 8, b"\0\1\0\2\0\3"),
    (RGB, 16, b"\1\2\3\4\5\6"),
    (PALETTE, 8, b"\0"),
    (PALETTE, 8, b"\xff\xff\0"),
    (PALETTE, 8, bytes(range(256))),
    (PALETTE, 2, b"\x10\x20"),
]


@pytest.mark.parametrize(("colour", "depth", "value"), TRANSPARENT)
def test_transparent_colours_leave_pixels_as_they_are(
    tmp_path: Path, colour: int, depth: int, value: bytes
) -> None:
    rng = np.random.default_rng(len(value))
    data = png_files.image(rng, 21, 13, colour, depth, before=[chunk(b"tRNS", value)])
    check(tmp_path, rng, data)


def test_gray_levels_of_16_bits_become_those_of_pillow(tmp_path: Path) -> None:
    levels = np.array([[0, 1, 127, 128, 254, 255, 256, 257, 0x7FFF, 0x8000, 0xFFFE, 0xFFFF]])
    rows = np.ascontiguousarray(levels.astype(">u2")).view(np.uint8)
    body = zlib.compress(png_files.filtered(rows, 2, [0]))
    parts = [png_files.header(12, 1, 16, GRAY), chunk(b"IDAT", body), chunk(b"IEND")]
    check(tmp_path, np.random.default_rng(0), png_files.png(parts))


@pytest.mark.parametrize("colours", [1, 5, 255])
@pytest.mark.parametrize("interlaced", [False, True])
def test_a_pixel_without_an_entry_in_the_palette_is_left_to_pillow_if_it_is_needed(
    tmp_path: Path, colours: int, interlaced: bool
) -> None:
    rng = np.random.default_rng(colours)
    rows = rng.integers(0, colours, (9, 8), dtype=np.uint8)
    for outside in (False, True):
        rows[8, 7] = colours if outside else 0
        body = b""
        for x, y, dx, dy in png_files.PASSES if interlaced else [(0, 0, 1, 1)]:
            part = np.ascontiguousarray(rows[y::dy, x::dx])
            body += png_files.filtered(part, 1, [0] * len(part)) if part.size else b""
        head = png_files.header(8, 9, 8, PALETTE, int(interlaced))
        parts = [head, png_files.palette(rng, colours), chunk(b"IDAT", zlib.compress(body))]
        data = png_files.png([*parts, chunk(b"IEND")])
        whole, part_of = decode(tmp_path, [data] * 2, [(0, 0, 8, 9), (0, 0, 8, 8)])
        assert (whole is None) == outside
        assert part_of is not None
        np.testing.assert_array_equal(part_of, native_core.pixels(data)[:8])


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "I;16"])
@pytest.mark.parametrize("optimize", [False, True])
def test_files_that_pillow_writes_are_decoded(tmp_path: Path, mode: str, optimize: bool) -> None:
    rng = np.random.default_rng(5)
    photo = native_core.photo(70, 53)
    image = photo.convert("L").point(lambda level: level * 257, "I").convert("I;16")
    if mode == "P":
        image = photo.quantize(21)
    elif mode != "I;16":
        image = photo.convert(mode)
    check(tmp_path, rng, native_core.encode(image, "PNG", optimize=optimize))


def test_a_resized_crop_is_pillows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "image.png"
    path.write_bytes(native_core.encode(native_core.photo(90, 80), "PNG"))
    image = Image.open(path).convert("RGB")
    for _ in range(20):
        x, y = int(rng.integers(0, 50)), int(rng.integers(0, 40))
        w, h = int(rng.integers(1, 40)), int(rng.integers(1, 40))
        expected = image.crop((x, y, x + w, y + h)).resize((24, 24), Image.Resampling.BILINEAR)
        done = native_core.submit(
            native_core.open_files([path]), [(x, y, w, h)], resized=[24, 24], out_w=24, out_h=24
        ).wait()
        assert done.status[0] == _native.OK
        np.testing.assert_array_equal(done.images[0], np.asarray(expected))


def test_a_box_outside_the_image_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(png_files.image(np.random.default_rng(0), 10, 10))
    for box in ((0, 0, 11, 10), (5, 5, 5, 6)):
        done = native_core.submit(native_core.open_files([path]), [box]).wait()
        assert done.status[0] == _native.SIZE


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize(
    ("colour", "depth"), [(GRAY, 2), (GRAY, 4), (GRAY, 8), *((PALETTE, d) for d in (1, 2, 4, 8))]
)
def test_levels_of_a_mask_are_those_of_pillow(colour: int, depth: int, interlaced: bool) -> None:
    rng = np.random.default_rng(depth)
    for width, height in SIZES:
        data = png_files.image(rng, width, height, colour, depth, interlaced=interlaced)
        levels, found_width, found_height = core().png_levels(data)
        found = np.frombuffer(levels, np.uint8).reshape(found_height, found_width)
        np.testing.assert_array_equal(found, np.asarray(Image.open(io.BytesIO(data))))


@pytest.mark.parametrize(
    ("colour", "depth"), [(GRAY, 1), (GRAY, 16), (RGB, 8), (png_files.GRAY_ALPHA, 8), (RGBA, 8)]
)
def test_masks_that_are_not_levels_of_a_byte_are_left_to_pillow(colour: int, depth: int) -> None:
    data = png_files.image(np.random.default_rng(0), 5, 5, colour, depth)
    assert core().png_levels(data) is None
    assert core().png_levels(data[:-20]) is None
    assert core().png_levels(b"not a PNG") is None


def test_channels_and_kinds_name_every_colour_type() -> None:
    assert {colour for colour, _ in KINDS} == set(CHANNELS)
    assert len(KINDS) == 15
