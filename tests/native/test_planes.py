"""Pixels made without libjpeg equal libjpeg's for the same coefficients, however absurd."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import jpeg_blocks
import native_core
from dct_reference import ZIGZAG
from fastload import _native
from instruction_sets import SIMD, chosen

pytestmark = pytest.mark.native

SAMPLINGS = {"4:4:4": (1, 1), "4:2:2": (2, 1), "4:4:0": (1, 2), "4:2:0": (2, 2), "gray": (0, 0)}

Coefficients = npt.NDArray[np.int16]


@pytest.fixture(params=SIMD[1:])
def simd(request: pytest.FixtureRequest) -> Iterator[str]:
    with chosen(request.param) as simd:
        assert native_core.core().planes_usable()
        yield simd


def test_libjpeg_decodes_on_processors_without_avx2() -> None:
    core = native_core.core()
    try:
        core.set_simd("scalar")
        assert not core.planes_usable() and core.dct_usable()
    finally:
        core.set_simd("")


def block(values: Coefficients, before: int) -> bytes:
    """One block of a record (SPECIFICATION.md), with every non-zero value as a 16-bit escape."""
    zigzag = values[ZIGZAG]
    at = [k for k in range(1, 64) if zigzag[k]]
    mask = sum(1 << (k - 1) for k in at)
    nbytes = (mask.bit_length() + 7) // 8
    difference = (int(zigzag[0]) - before + 32768) % 65536 - 32768
    head = nbytes | 1 << 4 | (1 << 5 if at else 0) | 3 << 6
    escapes = b"\x80" * len(at) + b"".join(struct.pack("<h", int(zigzag[k])) for k in at)
    return (
        struct.pack("<Bh", head, difference)
        + (bytes([len(escapes)]) if at else b"")
        + mask.to_bytes(nbytes, "little")
        + bytes((5 * len(at) + 7) // 8)
        + escapes
    )


def record(
    size: tuple[int, int],
    sampling: str,
    quant: npt.NDArray[np.uint16],
    draw: Callable[[], Coefficients],
) -> bytes:
    """A DCT record of one column block; ``draw`` gives each block's 64 coefficients, row-major."""
    (width, height), (h, v) = size, SAMPLINGS[sampling]
    gray, h, v = sampling == "gray", max(h, 1), max(v, 1)
    members = [0] if gray else [0] * (h * v) + [1, 2]
    columns, rows = -(-width // (8 * h)), -(-height // (8 * v))
    head = struct.pack(
        "<BBBBHH",
        *(0xDC, 1, 2 | 32 | (0 if gray else 1), 7 | (h - 1) << 3 | (v - 1) << 5),
        *(width, height),
    )
    for table in quant[: 1 if gray else 3]:
        head += struct.pack("<B64H", 202, *table[ZIGZAG].tolist())
    data, starts = b"", []
    for _ in range(rows):
        starts.append(len(data))
        before = [0, 0, 0]
        for component in members * columns:
            values = draw()
            data += block(values, before[component])
            before[component] = int(values[0])
    return head + b"".join(struct.pack("<I", start) for start in starts[1:]) + data


def coefficients(rng: np.random.Generator, most: int, most_dc: int) -> Coefficients:
    """The coefficients of one block, of one of several typical shapes."""
    values = rng.integers(-most, most + 1, 64)
    kind = rng.integers(6)
    if kind == 0:
        values[1:] = 0
    elif kind == 1:
        values[8:] = 0  # rows 1 to 7, for which libjpeg has a shortcut
    elif kind == 2:
        values *= rng.random(64) < 0.1
    elif kind == 3:
        values = np.sign(values) * most
    elif kind == 4:
        values[rng.integers(1, 64) :] = 0
    values[0] = rng.integers(-most_dc - 1, most_dc + 1)
    return values.astype(np.int16)


def decode(folder: Path, data: bytes, box: tuple[int, int, int, int]) -> npt.NDArray[np.uint8]:
    path = folder / "image.dct"
    path.write_bytes(data)
    files = native_core.open_files([path])
    result = native_core.submit(files, [box], kind=[_native.DCT], threads=0).wait()
    assert result.status[0] == _native.OK
    return np.asarray(result.images[0])


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("most_quant", [2, 255, 65535])
def test_any_coefficients_of_a_baseline_file_equal_pillow(
    tmp_path: Path, simd: str, sampling: str, most_quant: int, count: Callable[[int, int], int]
) -> None:
    rng = np.random.default_rng(most_quant)
    for _ in range(count(4, 60)):
        width, height = int(rng.integers(5, 60)), int(rng.integers(1, 50))
        quant = rng.integers(1, most_quant + 1, (3, 64)).astype(np.uint16)
        most = int(rng.choice([3, 100, 1023]))
        data = record(
            (width, height), sampling, quant, lambda most=most: coefficients(rng, most, 1023)
        )
        expected = native_core.pixels(native_core.core().dct_to_jpeg(data))
        np.testing.assert_array_equal(decode(tmp_path, data, (0, 0, width, height)), expected)
        x, y = int(rng.integers(0, width)), int(rng.integers(0, height))
        w, h = int(rng.integers(1, width - x + 1)), int(rng.integers(1, height - y + 1))
        cut = decode(tmp_path, data, (x, y, w, h))
        np.testing.assert_array_equal(cut, expected[y : y + h, x : x + w])


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_coefficients_that_no_baseline_file_has_are_what_libjpeg_makes_of_them(
    tmp_path: Path, simd: str, sampling: str, count: Callable[[int, int], int]
) -> None:
    core = native_core.core()
    rng = np.random.default_rng(6)
    for _ in range(count(4, 60)):
        width, height = int(rng.integers(5, 60)), int(rng.integers(1, 50))
        quant = rng.integers(1, int(rng.choice([2, 256, 65536])), (3, 64)).astype(np.uint16)
        data = record((width, height), sampling, quant, lambda: coefficients(rng, 32767, 32767))
        made = decode(tmp_path, data, (0, 0, width, height))
        core.set_simd("scalar")
        expected = decode(tmp_path, data, (0, 0, width, height))
        core.set_simd(simd)
        np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_crops_of_images_of_all_small_sizes_equal_the_whole(
    tmp_path: Path, simd: str, sampling: str, count: Callable[[int, int], int]
) -> None:
    rng = np.random.default_rng(9)
    quant = np.full((3, 64), 9, np.uint16)
    sizes = [(w, h) for w in range(1, 41) for h in range(1, 41)]
    for at in rng.permutation(len(sizes))[: count(25, 1600)]:
        width, height = sizes[at]
        data = record(sizes[at], sampling, quant, lambda: coefficients(rng, 15, 100))
        expected = native_core.pixels(native_core.core().dct_to_jpeg(data))
        for w, h in ((width, height), (1, 1), (min(2, width), min(3, height))):
            x, y = int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1))
            cut = decode(tmp_path, data, (x, y, w, h))
            np.testing.assert_array_equal(cut, expected[y : y + h, x : x + w])


def test_files_with_one_header_do_not_depend_on_each_other(tmp_path: Path) -> None:
    """A decoded header is reused, also after the instruction set changes."""
    core = native_core.core()
    whole = [native_core.encode(native_core.photo(33, 27, seed), quality=80) for seed in range(6)]
    scan = whole[0].index(b"\xff\xda")
    assert all(data[:scan] == whole[0][:scan] for data in whole)
    files = [*whole, whole[3][: scan + 90], *whole, native_core.encode(native_core.photo(33, 27))]
    try:
        for simd in ("", "scalar", "avx2", "scalar", ""):
            core.set_simd(simd)
            for i, data in enumerate(files):
                (tmp_path / "image.jpg").write_bytes(data)
                file = native_core.open_files([tmp_path / "image.jpg"])
                result = native_core.submit(file, [[0, 0, 33, 27]], threads=0).wait()
                assert result.status[0] == (_native.UNSUPPORTED if i == 6 else _native.OK)
                if i != 6:
                    np.testing.assert_array_equal(result.images[0], native_core.pixels(data))
    finally:
        core.set_simd("")


def test_memory_stays_flat_where_very_wide_images_come_and_go(tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    gray = np.zeros((16, 65500, 3), np.uint8)
    (tmp_path / "wide.jpg").write_bytes(native_core.encode(native_core.Image.fromarray(gray)))
    (tmp_path / "small.jpg").write_bytes(native_core.encode(native_core.photo(32, 32)))
    files = native_core.open_files([tmp_path / "wide.jpg", tmp_path / "small.jpg"])

    def decode(file: int, width: int) -> None:
        which = np.array([file], np.int32)
        result = native_core.submit(files, [[0, 0, width, 8]], file=which, threads=0).wait()
        assert result.status[0] == _native.OK

    def rounds(count: int) -> int:
        for _ in range(count):
            decode(0, 65500)
            decode(1, 32)
        return int(psutil.Process().memory_info().rss)

    before = rounds(5)
    assert rounds(30) < before + 2**20


@pytest.mark.parametrize("where", ["the first", "some", "all"])
@pytest.mark.parametrize("simd_name", ["", "scalar"])
@pytest.mark.parametrize("sampling", [(1, 1), (2, 1), (2, 2), (4, 1)])
def test_steps_of_zero_in_a_quantisation_table_lose_no_pixel(
    tmp_path: Path, sampling: tuple[int, int], simd_name: str, where: str
) -> None:
    """libjpeg multiplies by them; so does the core, for a record and for its JPEG file."""
    core = native_core.core()
    rng = np.random.default_rng(7)
    h, v = sampling
    width, height = 61, 37
    columns, rows = -(-width // (8 * h)), -(-height // (8 * v))
    quant = rng.integers(1, 30, (3, 64))
    quant[:2, slice(0, 1) if where == "the first" else slice(0, 64, 1 + (where == "some"))] = 0
    blocks = []
    for across, down in (sampling, (1, 1), (1, 1)):
        values = rng.integers(-40, 41, (rows * down, columns * across, 64))
        blocks.append(values * (rng.random(values.shape) < 0.3))
    data = jpeg_blocks.write(width, height, [sampling, (1, 1), (1, 1)], list(quant), blocks)
    expected = native_core.pixels(data)
    record = core.dct_encode(data)
    np.testing.assert_array_equal(native_core.pixels(core.dct_to_jpeg(record)), expected)
    try:
        core.set_simd(simd_name)
        for x, y, w, h in ((0, 0, width, height), (33, 5, 9, 9), (0, 30, 1, 7)):
            cut = decode(tmp_path, record, (x, y, w, h))
            np.testing.assert_array_equal(cut, expected[y : y + h, x : x + w])
    finally:
        core.set_simd("")
