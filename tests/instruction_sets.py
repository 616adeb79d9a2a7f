"""The core's instruction sets, which conftest.py's fixture ``simd`` takes in turn."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

# Every set that there are kernels for (base/simd.h).
SIMD = ("scalar", "neon", "avx2", "avx512")


@contextlib.contextmanager
def chosen(simd: str) -> Iterator[str]:
    """The core with one of SIMD; skips the test where this machine lacks it."""
    from native_core import core

    if not core().set_simd(simd):
        pytest.skip(f"this machine has no {simd}")
    try:
        assert core().simd() == simd
        yield simd
    finally:
        core().set_simd("")
