"""JPEG -> record: stable bytes, whichever decoder reads the Huffman codes."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

import native_core

pytestmark = pytest.mark.native

RECORDS = Path(__file__).parent / "records"
COMMENT = b"\xff\xfe\x00\x02"


@pytest.fixture
def core() -> ModuleType:
    return native_core.core()


def outcome(core: ModuleType, data: bytes) -> bytes | str:
    try:
        return bytes(core.dct_encode(data, keep_metadata=False))
    except ValueError as error:
        return str(error).replace("marker 0xfe", "marker 0xd9")  # by_libjpeg's


def by_libjpeg(data: bytes) -> bytes:
    """The same image with a segment after its scan, which the core's decoder leaves to libjpeg."""
    assert data.endswith(b"\xff\xd9")
    return data[:-2] + COMMENT + data[-2:]


def rough(width: int, height: int, seed: int) -> Image.Image:
    """Noise of all strengths, for coefficients of all sizes."""
    rng = np.random.default_rng(seed)
    strength = rng.choice([1, 10, 60, 300], (-(-height // 8), -(-width // 8)))
    strength = np.kron(strength, np.ones((8, 8)))[:height, :width, None]
    pixels = 128 + strength * rng.normal(0, 1, (height, width, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


@pytest.mark.usefixtures("simd")
@pytest.mark.parametrize("name", ["420", "444-rough", "422-progressive", "gray"])
def test_records_have_the_bytes_that_earlier_releases_gave_them(
    core: ModuleType, name: str
) -> None:
    source = (RECORDS / f"{name}.jpg").read_bytes()
    assert core.dct_encode(source) == (RECORDS / f"{name}.dct").read_bytes()


@pytest.mark.usefixtures("simd")
@pytest.mark.parametrize("sampling", [0, 1, 2, None])
def test_both_decoders_give_the_same_record(
    core: ModuleType, sampling: int | None, count: Callable[[int, int], int]
) -> None:
    rng = np.random.default_rng(7)
    for seed in range(count(12, 200)):
        width, height = rng.integers(1, 150, 2).tolist()
        image, options = rough(width, height, seed), {"subsampling": sampling}
        if sampling is None:
            image, options = image.convert("L"), {}
        held = io.BytesIO()
        quality = int(rng.integers(1, 101))
        image.save(held, "JPEG", quality=quality, optimize=bool(seed % 2), **options)
        source = held.getvalue()
        # A small file's tables are built when they are needed for the second time.
        records = {core.dct_encode(source, keep_metadata=False) for _ in range(3)}
        assert records == {outcome(core, by_libjpeg(source))}, (width, height, quality)


def test_damaged_files_get_libjpegs_error(
    core: ModuleType, count: Callable[[int, int], int]
) -> None:
    rng = np.random.default_rng(8)
    held = io.BytesIO()
    rough(90, 70, 1).save(held, "JPEG", quality=90)
    source = held.getvalue()
    scan = source.index(b"\xff\xda") + 14
    refused = 0
    for _ in range(count(300, 5000)):
        damaged = bytearray(source)
        for at in rng.integers(scan, len(source) - 2, rng.integers(1, 4)):
            damaged[at] = rng.integers(0, 255)
        found = outcome(core, bytes(damaged))
        assert found == outcome(core, by_libjpeg(bytes(damaged)))
        refused += isinstance(found, str)
    assert refused


def test_a_file_without_its_end_is_refused(core: ModuleType) -> None:
    source = (RECORDS / "420.jpg").read_bytes()
    for nbytes in (len(source) - 1, len(source) - 2, len(source) - 40):
        assert isinstance(outcome(core, source[:nbytes]), str)
