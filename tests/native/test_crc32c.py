"""CRC32C against published vectors, the reference package, and itself in pieces."""

from __future__ import annotations

from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import native_core
from fastload.storage import _crc

pytestmark = pytest.mark.native

# Lengths around the three lanes of 2,048 bytes and the eight-byte steps.
LENGTHS = [0, 1, 7, 8, 9, 63, 2047, 2048, 6143, 6144, 6145, 6151, 12288, 18439, 100_003]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),  # RFC 3720, appendix B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_published_vectors_hold(data: bytes, expected: int) -> None:
    core = native_core.core()
    assert core.crc32c(data) == expected
    assert core._crc32c_portable(data) == expected


@pytest.mark.parametrize("length", LENGTHS)
def test_both_ways_equal_the_reference_at_every_alignment(length: int) -> None:
    core = native_core.core()
    data = np.random.default_rng(length).bytes(length + 8)
    for start in range(8):
        piece = data[start : start + length]
        expected = google_crc32c.value(piece)
        assert core.crc32c(piece) == expected
        assert core._crc32c_portable(piece) == expected
        assert core.crc32c(memoryview(data)[start : start + length]) == expected


@given(st.binary(max_size=20_000), st.integers(0, 20_000))
def test_a_checksum_continues_another(data: bytes, cut: int) -> None:
    core = native_core.core()
    assert core.crc32c(data[cut:], core.crc32c(data[:cut])) == core.crc32c(data)


def test_anything_but_a_buffer_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        native_core.core().crc32c("text")


@pytest.mark.parametrize("block", [1, 7, 4096, 1 << 20])
@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 300_001])
def test_blocks_of_a_buffer_are_summed_one_by_one(length: int, block: int) -> None:
    if length // block > 50_000:
        pytest.skip("thousands of blocks say no more")
    data = np.random.default_rng(length).bytes(length)
    sums = np.full(-(-length // block), 7, np.uint32)
    native_core.core().crc32c_blocks(data, block, sums)
    expected = [google_crc32c.value(data[at : at + block]) for at in range(0, length, block)]
    assert sums.tolist() == expected


def test_blocks_of_a_file_are_summed_wherever_they_lie(tmp_path: Path) -> None:
    block, data = 4096, np.random.default_rng(0).bytes(150 * 4096 + 100)
    path = tmp_path / "data"
    path.write_bytes(data)
    numbers = np.concatenate([np.arange(140), [3, 2, 150, 149, 151, 10**9]])
    sums = np.empty(len(numbers), np.uint32)
    with open(path, "rb") as file:
        native_core.core().crc32c_of_file(file.fileno(), numbers, block, sums)
    parts = [data[at * block : (at + 1) * block] for at in numbers.tolist()]
    assert sums.tolist() == [google_crc32c.value(part) for part in parts]
    assert sums[-2:].tolist() == [0, 0], "nothing is there"


def test_blocks_that_cannot_be_are_refused(tmp_path: Path) -> None:
    core, sums = native_core.core(), np.empty(1, np.uint32)
    with pytest.raises(ValueError, match="block: expected"):
        core.crc32c_blocks(b"1", 0, sums)
    with pytest.raises(ValueError, match="out"):
        core.crc32c_blocks(b"12", 1, sums)
    with open(tmp_path / "data", "wb") as file:
        for number in (-1, 1 << 60):
            with pytest.raises(ValueError, match="blocks: sample 0"):
                core.crc32c_of_file(file.fileno(), np.array([number]), 4096, sums)
        with pytest.raises(OSError, match="Bad file descriptor"):
            core.crc32c_of_file(file.fileno(), np.array([0]), 4096, sums)


def test_the_package_gives_the_same_sums_without_the_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = np.random.default_rng(0).bytes(10_000)
    (tmp_path / "data").write_bytes(data)
    with open(tmp_path / "data", "rb") as file:
        numbers = np.array([2, 0])
        found = [_crc.crc32c_blocks(data, 4096), _crc.crc32c_of_file(file.fileno(), numbers, 4096)]
        monkeypatch.setenv("FASTLOAD_NO_NATIVE", "1")
        assert np.array_equal(found[0], _crc.crc32c_blocks(data, 4096))
        assert np.array_equal(found[1], _crc.crc32c_of_file(file.fileno(), numbers, 4096))
    assert found[1].tolist() == found[0][[2, 0]].tolist()
