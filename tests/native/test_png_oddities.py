"""Odd and damaged PNG files: the core gives Pillow's pixels, or leaves the file to Pillow."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import native_core
import png_files
from fastload import _native
from png_files import GRAY, PALETTE, RGB, chunk, header, palette, png

pytestmark = [
    pytest.mark.native,
    pytest.mark.filterwarnings("ignore"),  # Pillow's, about what is odd here
]

WIDTH, HEIGHT = 12, 10
END = chunk(b"IEND")


@pytest.fixture(autouse=True, scope="module")
def libdeflate() -> None:
    if native_core.core().png_version() is None:
        pytest.skip("the core was built without libdeflate")


def generator() -> np.random.Generator:
    return np.random.default_rng(3)


RAW = png_files.raw(generator(), WIDTH, HEIGHT, 8, RGB, False)
DATA = zlib.compress(RAW)
IHDR = header(WIDTH, HEIGHT, 8, RGB)
IDAT = chunk(b"IDAT", DATA)
COLOURS = palette(generator(), 256)
INDICES = zlib.compress(png_files.raw(generator(), WIDTH, HEIGHT, 8, PALETTE, False))


def outcome(path: Path, box: tuple[int, int, int, int] = (0, 0, WIDTH, HEIGHT)) -> bool:
    """Whether the core decodes the file; if so, Pillow must too, to the same pixels."""
    done = native_core.submit(native_core.open_files([path]), [box], threads=0).wait()
    status = int(done.status[0])
    assert status in (_native.OK, _native.UNSUPPORTED, _native.SIZE), status
    if status != _native.OK:
        return False
    x, y, w, h = box
    pixels = native_core.pixels(path.read_bytes())
    np.testing.assert_array_equal(done.images[0], pixels[y : y + h, x : x + w])
    return True


def text(keyword: bytes, value: bytes = b"x") -> bytes:
    return chunk(b"tEXt", keyword + b"\0" + value)


DECODED = {
    "pieces of one byte": png([IHDR, png_files.pieces(DATA, 1), END]),
    "an empty IDAT first": png([IHDR, chunk(b"IDAT"), IDAT, END]),
    "an empty IDAT last": png([IHDR, IDAT, chunk(b"IDAT"), END]),
    "empty IDATs between": png(
        [
            IHDR,
            *(chunk(b"IDAT", DATA[i : i + 50]) + chunk(b"IDAT") for i in range(0, len(DATA), 50)),
            END,
        ]
    ),
    "bytes after the stream": png([IHDR, chunk(b"IDAT", DATA + b"more"), END]),
    "bytes after the end": png([IHDR, IDAT, END]) + b"garbage" * 9,
    "a wrong checksum of IDAT": png([IHDR, chunk(b"IDAT", DATA, crc=1), END]),
    "a wrong checksum after the data": png([IHDR, IDAT, chunk(b"tEXt", b"a\0b", crc=1), END]),
    "a wrong checksum of IEND": png([IHDR, IDAT, chunk(b"IEND", crc=1)]),
    "IDAT after another chunk": png([IHDR, IDAT, text(b"a"), chunk(b"IDAT", b"ignored"), END]),
    "an unknown chunk": png([IHDR, chunk(b"abCd", b"1"), IDAT, chunk(b"teSt", b"2"), END]),
    "an unknown critical chunk": png([IHDR, chunk(b"ABCD", b"1"), IDAT, END]),
    "a type with digits": png([IHDR, chunk(b"a_9Z", b"1"), IDAT, END]),
    "a suggested palette": png([IHDR, COLOURS, IDAT, END]),
    "gamma": png([IHDR, chunk(b"gAMA", struct.pack(">I", 220000)), IDAT, END]),
    "everything ancillary": png(
        [
            IHDR,
            chunk(b"sRGB", b"\0"),
            chunk(b"gAMA", b"\0\0\1\1"),
            chunk(b"cHRM", bytes(32)),
            chunk(b"pHYs", bytes(9)),
            chunk(b"bKGD", bytes(6)),
            chunk(b"sBIT", b"\5\5\5"),
            chunk(b"tIME", bytes(7)),
            chunk(b"eXIf", b"II*\0\x08\0\0\0\0\0\0\0"),
            text(b"Comment"),
            chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"hello" * 1000)),
            chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0<x/>"),
            chunk(b"iTXt", b"Comment\0\1\0en\0K\0" + zlib.compress(b"hello")),
            chunk(b"iCCP", b"profile\0\0" + zlib.compress(generator().bytes(5000))),
            IDAT,
            text(b"Later"),
            END,
        ]
    ),
    "a text without a keyword's end": png([IHDR, chunk(b"tEXt", b"keyword"), IDAT, END]),
    "empty texts": png([IHDR, chunk(b"tEXt"), chunk(b"zTXt"), chunk(b"iTXt"), IDAT, END]),
    "a palette of one colour twice": png(
        [
            header(WIDTH, HEIGHT, 8, PALETTE),
            chunk(b"PLTE", b"\1\2\3"),
            COLOURS,
            chunk(b"IDAT", INDICES),
            END,
        ]
    ),
    "transparency before the palette": png(
        [
            header(WIDTH, HEIGHT, 8, PALETTE),
            chunk(b"tRNS", b"\0\1"),
            COLOURS,
            chunk(b"IDAT", INDICES),
            END,
        ]
    ),
    "a window larger than the header says": png(
        [IHDR, chunk(b"IDAT", b"\x08\x1d" + DATA[2:]), END]  # 256 bytes
    ),
}
LEFT = {
    "a wrong Adler-32": png([IHDR, chunk(b"IDAT", DATA[:-1] + bytes([DATA[-1] ^ 1])), END]),
    "no Adler-32": png([IHDR, chunk(b"IDAT", DATA[:-4]), END]),
    "half of the data": png([IHDR, chunk(b"IDAT", DATA[: len(DATA) // 2]), END]),
    "rows too few": png([IHDR, chunk(b"IDAT", zlib.compress(RAW[: 37 * 9])), END]),
    "a row cut short": png([IHDR, chunk(b"IDAT", zlib.compress(RAW[:-1])), END]),
    "rows too many": png([IHDR, chunk(b"IDAT", zlib.compress(RAW + RAW)), END]),
    "an unknown filter": png(
        [IHDR, chunk(b"IDAT", zlib.compress(RAW[:-37] + b"\5" + RAW[-36:])), END]
    ),
    "no data": png([IHDR, END]),
    "no end": png([IHDR, IDAT]),
    "cut within the data": png([IHDR, IDAT])[:-30],
    "cut within the header": png([IHDR])[:20],
    "only a signature": png([]),
    "a wrong checksum of IHDR": png([IHDR[:-1] + b"\0", IDAT, END]),
    "a wrong checksum of a text": png([IHDR, chunk(b"tEXt", b"a\0b", crc=1), IDAT, END]),
    "a type that is no word": png([IHDR, chunk(b"a!bc", b"1"), IDAT, END]),
    "a chunk beyond the file": png([IHDR, struct.pack(">I", 1 << 31) + b"abCd" + bytes(30)]),
    "a chunk after the data beyond the file": png(
        [IHDR, IDAT, struct.pack(">I", 99) + b"abCd" + bytes(30)]
    ),
    "no header": png([IDAT, END]),
    "two headers": png([IHDR, IHDR, IDAT, END]),
    "a long header": png([chunk(b"IHDR", IHDR[8:21] + b"\0"), IDAT, END]),
    "a short header": png([chunk(b"IHDR", IHDR[8:20]), IDAT, END]),
    "an unknown compression": png([header(WIDTH, HEIGHT, 8, RGB, rest=b"\1\0"), IDAT, END]),
    "an unknown filter method": png([header(WIDTH, HEIGHT, 8, RGB, rest=b"\0\1"), IDAT, END]),
    "an unknown interlacing": png([header(WIDTH, HEIGHT, 8, RGB, 2), IDAT, END]),
    "an unknown colour type": png([header(WIDTH, HEIGHT, 8, 5), IDAT, END]),
    "a depth of 3": png([header(WIDTH, HEIGHT, 3, GRAY), IDAT, END]),
    "RGB of 4 bits": png([header(WIDTH, HEIGHT, 4, RGB), IDAT, END]),
    "no width": png([header(0, HEIGHT, 8, RGB), IDAT, END]),
    "too many pixels": png([header(30_000, 30_000, 8, RGB), IDAT, END]),
    "the largest size": png([header(0xFFFFFFFF, 0xFFFFFFFF, 8, RGB), IDAT, END]),
    "a size that the data cannot fill": png([header(9000, 9000, 8, RGB), IDAT, END]),
    "no palette": png([header(WIDTH, HEIGHT, 8, PALETTE), chunk(b"IDAT", INDICES), END]),
    "a palette after the data": png(
        [header(WIDTH, HEIGHT, 8, PALETTE), chunk(b"IDAT", INDICES), COLOURS, END]
    ),
    "a palette too short": png(
        [header(WIDTH, HEIGHT, 8, PALETTE), palette(generator(), 3), chunk(b"IDAT", INDICES), END]
    ),
    "a palette of 4 bytes": png(
        [header(WIDTH, HEIGHT, 8, PALETTE), chunk(b"PLTE", b"abcd"), chunk(b"IDAT", INDICES), END]
    ),
    "a palette too long": png(
        [header(WIDTH, HEIGHT, 8, PALETTE), palette(generator(), 300), chunk(b"IDAT", INDICES), END]
    ),
    "transparency too short": png([IHDR, chunk(b"tRNS", b"\0\1"), IDAT, END]),
    "gamma too short": png([IHDR, chunk(b"gAMA", b"\0"), IDAT, END]),
    "a profile without a name": png([IHDR, chunk(b"iCCP", b"name"), IDAT, END]),
    "a profile compressed otherwise": png([IHDR, chunk(b"iCCP", b"name\0\1abc"), IDAT, END]),
    "a bomb of a text": png(
        [IHDR, chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(1 << 21))), IDAT, END]
    ),
    "a bomb of a text after the data": png(
        [IHDR, IDAT, chunk(b"iTXt", b"Comment\0\1\0\0\0" + zlib.compress(bytes(1 << 21))), END]
    ),
    "a bomb of a profile": png(
        [IHDR, chunk(b"iCCP", b"name\0\0" + zlib.compress(bytes(1 << 21))), IDAT, END]
    ),
    "a text that replaces the transparency": png([IHDR, text(b"transparency"), IDAT, END]),
    "a text that replaces the interlacing": png([IHDR, text(b"interlace"), IDAT, END]),
    "a text that replaces the box": png([IHDR, text(b"bbox"), IDAT, END]),
    "an animation": png([IHDR, chunk(b"acTL", struct.pack(">II", 1, 0)), IDAT, END]),
    "a frame": png([IHDR, chunk(b"fcTL", bytes(26)), IDAT, END]),
    "data of a frame": png([IHDR, IDAT, chunk(b"fdAT", bytes(8)), END]),
}


@pytest.mark.parametrize("name", DECODED)
def test_what_is_odd_but_whole_is_decoded(name: str, tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(DECODED[name])
    assert outcome(path)
    assert outcome(path, (3, 2, 5, 4))


@pytest.mark.parametrize("name", LEFT)
def test_what_pillow_may_refuse_is_left_to_it_whatever_the_crop(name: str, tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(LEFT[name])
    assert not outcome(path)
    if name != "a palette too short":  # its first pixels may be right
        assert not outcome(path, (0, 0, 1, 1))


def test_a_truncated_file_is_never_decoded(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    whole = DECODED["everything ancillary"]
    for nbytes in [*range(0, len(whole), 29), *range(len(whole) - 60, len(whole))]:
        path.write_bytes(whole[:nbytes])
        assert not outcome(path, (0, 0, 1, 1))


def damaged(rng: np.random.Generator, data: bytes) -> bytes:
    """The file with some bytes changed; half of the time with right checksums."""
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(0, len(changed)))
        kind = rng.integers(0, 5)
        if kind < 2:
            changed[at] = int(rng.choice([0, 1, 255, int(rng.integers(256))]))
        elif kind == 2:
            changed[at] ^= 1 << int(rng.integers(8))
        elif kind == 3:
            del changed[at : at + int(rng.integers(1, 20))]
        else:
            source = int(rng.integers(0, len(changed)))
            changed[at:at] = changed[source : source + int(rng.integers(1, 40))]
        if not changed:
            return b""
    found = bytes(changed)
    return mended(found) if rng.random() < 0.6 else found


def mended(data: bytes) -> bytes:
    """The file with the right checksum of each chunk that is whole."""
    at, parts = 8, [data[:8]]
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        if at + 12 + length > len(data):
            break
        parts.append(chunk(data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    return b"".join([*parts, data[at:]])


def test_damaged_files_are_never_decoded_to_other_pixels(
    tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    rng = np.random.default_rng(11)
    originals = [
        *DECODED.values(),
        *(
            png_files.image(rng, 9, 7, colour, depth, interlaced=bool(turn))
            for turn, (colour, depth) in enumerate(png_files.KINDS * 2)
        ),
    ]
    path = tmp_path / "image.png"
    decoded = 0
    for _ in range(count(3_000, 300_000)):
        data = damaged(rng, originals[int(rng.integers(len(originals)))])
        try:
            width, height = Image.open(io.BytesIO(data)).size
        except Exception:
            width, height = WIDTH, HEIGHT
        path.write_bytes(data)
        decoded += outcome(path, (0, 0, min(width, 40), min(height, 40)))
    assert decoded > 100
