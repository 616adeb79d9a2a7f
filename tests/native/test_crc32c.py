"""CRC32C against published vectors, the reference package, and itself in pieces."""

from __future__ import annotations

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import native_core

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
