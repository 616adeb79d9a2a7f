"""WebP files decode to Pillow's pixels; animations and damaged files are left to Pillow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

import native_core
from fastload import _native

pytestmark = [pytest.mark.native, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True, scope="module")
def libwebp() -> None:
    if native_core.core().webp_version() is None or not features.check("webp"):
        pytest.skip("the core or Pillow was built without libwebp")


def with_alpha(image: Image.Image, seed: int) -> Image.Image:
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 4), dtype=np.uint8))
    turned = image.copy()
    turned.putalpha(coarse.resize(image.size))
    return turned


def decode(path: Path, box: tuple[int, int, int, int]) -> tuple[int, np.ndarray]:
    done = native_core.submit(native_core.open_files([path]), [box], threads=0).wait()
    return int(done.status[0]), done.images[0]


OPTIONS = [
    {"quality": 10},
    {"quality": 80},
    {"quality": 100, "method": 6},
    {"lossless": True},
    {"lossless": True, "quality": 100, "method": 6},
    {"exif": b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0", "quality": 50},
]


@pytest.mark.parametrize("alpha", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_every_crop_is_that_of_pillows_pixels(
    tmp_path: Path, alpha: bool, options: dict[str, object]
) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "image.webp"
    for size in ((1, 1), (2, 1), (1, 17), (16, 16), (33, 31), (75, 50)):
        image = native_core.photo(*size)
        data = native_core.encode(with_alpha(image, 1) if alpha else image, "WEBP", **options)
        path.write_bytes(data)
        pixels = native_core.pixels(data)
        for _ in range(3):
            x0, x1 = sorted(rng.choice(size[0] + 1, 2, replace=False).tolist())
            y0, y1 = sorted(rng.choice(size[1] + 1, 2, replace=False).tolist())
            status, found = decode(path, (x0, y0, x1 - x0, y1 - y0))
            assert status == _native.OK
            np.testing.assert_array_equal(found, pixels[y0:y1, x0:x1])


def test_sizes_come_from_the_header(tmp_path: Path) -> None:
    core = native_core.core()
    path = tmp_path / "image.webp"
    for options in OPTIONS:
        path.write_bytes(native_core.encode(native_core.photo(37, 23), "WEBP", **options))
        assert decode(path, (0, 0, 37, 24))[0] == _native.SIZE
        size, result = np.zeros((1, 2), np.int32), np.zeros(1, np.int32)
        core.probe(
            native_core.open_files([path]),
            np.zeros(1, np.int32),
            np.zeros(1, np.int64),
            np.full(1, -1, np.int64),
            np.zeros(1, np.uint8),
            size,
            result,
            threads=0,
        )
        assert result[0] == _native.OK
        assert size.tolist() == [[37, 23]]


def test_an_animation_is_left_to_pillow(tmp_path: Path) -> None:
    path = tmp_path / "image.webp"
    frames = [native_core.photo(20, 20, seed) for seed in range(3)]
    frames[0].save(path, save_all=True, append_images=frames[1:])
    assert decode(path, (0, 0, 20, 20))[0] == _native.UNSUPPORTED


@pytest.mark.parametrize("options", OPTIONS[1:5:2])
def test_a_truncated_file_is_left_to_pillow_whatever_the_crop(
    tmp_path: Path, options: dict[str, object]
) -> None:
    path = tmp_path / "image.webp"
    whole = native_core.encode(native_core.photo(40, 40), "WEBP", **options)
    for nbytes in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:nbytes])
        assert decode(path, (0, 0, 1, 1))[0] == _native.UNSUPPORTED


@pytest.mark.parametrize("options", [OPTIONS[1], OPTIONS[3]])
def test_a_crop_of_a_file_that_is_damaged_below_it_is_left_to_pillow(
    tmp_path: Path, options: dict[str, object]
) -> None:
    path = tmp_path / "image.webp"
    whole = native_core.encode(native_core.photo(120, 160), "WEBP", **options)
    kept = len(whole) * 3 // 4
    damaged = whole[:kept] + b"\xff" * (len(whole) - kept)
    with pytest.raises(OSError):
        native_core.pixels(damaged)
    box = (60, 8, 40, 30)
    found = []
    for data in (whole, whole, damaged, damaged):  # the second one does not decode the rest again
        path.write_bytes(data)
        found.append(decode(path, box))
    (first, pixels), (second, again), *others = found
    assert (first, second) == (_native.OK, _native.OK)
    np.testing.assert_array_equal(again, pixels)
    assert [status for status, _ in others] == [_native.UNSUPPORTED] * 2


def test_damaged_files_are_never_decoded_to_other_pixels(
    tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    rng = np.random.default_rng(2)
    path = tmp_path / "image.webp"
    image = native_core.photo(24, 20)
    originals = [
        native_core.encode(source, "WEBP", **options)
        for source in (image, with_alpha(image, 0))
        for options in OPTIONS
    ]
    decoded = 0
    for _ in range(count(1_500, 100_000)):
        data = bytearray(originals[int(rng.integers(len(originals)))])
        for _ in range(int(rng.integers(1, 3))):
            at = int(rng.integers(0, min(len(data), int(rng.choice([60, 100_000])))))
            data[at] = int(rng.integers(256))
        path.write_bytes(data)
        size = (24, 20)
        try:
            size = Image.open(path).size
            expected = native_core.pixels(bytes(data))
        except Exception:
            assert max(size) > 300 or decode(path, (0, 0, *size))[0] != _native.OK
            continue
        height, width = expected.shape[:2]
        if width > 300 or height > 300:
            continue
        status, found = decode(path, (0, 0, width, height))
        if status == _native.OK:
            np.testing.assert_array_equal(found, expected)
            decoded += 1
    assert decoded > 100
