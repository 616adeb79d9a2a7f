"""Random numbers as a pure function of seed, epoch and sample index: Philox4x32-10.

A counter-based generator has no state. Its output is a keyed permutation of a 128-bit counter. The
seed is the key; the counter holds the epoch, the sample index and the stream (an operation's
position in the chain of transforms, and a block within it). So a sample's augmentation does not
depend on its batch, on the worker that made it, or on what was drawn before.

Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11. The
constants and the published known answers are Random123's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

from .. import _native

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the two key words in each round
ROUNDS = 10
REPEAT_BITS = 40
"""A counter has a sample's index in the bits below, and in those above how often it came before."""

BLOCKS_PER_POSITION = 1 << 16
"""A position's streams are ``position * BLOCKS_PER_POSITION + block``; four numbers a block."""


def words(
    seed: int,
    epoch: int,
    indices: npt.NDArray[np.int64],
    streams: Sequence[int] | npt.NDArray[np.uint64],
) -> npt.NDArray[np.uint64]:
    """Four random 32-bit words for each stream and index: uint64 (2, 2, b, n), below 2**32.

    Word ``2 * i + j`` of a block is at ``[i, j]``.

    Args:
        seed: the key, modulo 2**64.
        epoch: counter word 3, modulo 2**32.
        indices: sample indices, int64 (n,): counter words 1 (low half) and 2 (high half).
        streams: which block of numbers, each below 2**32, length b: counter word 0.
    """
    core = _native.required("seed= needs the native core, which draws the random numbers")
    stream = np.ascontiguousarray(streams, dtype=np.uint64)
    out = np.empty((4 * len(stream), len(indices)), np.uint64)
    core.random_words(
        int(seed) & 0xFFFFFFFFFFFFFFFF,
        int(epoch) & 0xFFFFFFFF,
        np.ascontiguousarray(indices, dtype=np.int64),
        stream,
        out,
    )
    return out.reshape(2, 2, len(stream), len(indices))


def seeds(seed: int, epoch: int, indices: npt.NDArray[np.int64], stream: int) -> list[int]:
    """A seed of 63 bits for each of ``indices``; the arguments are those of ``words``."""
    high, low = words(seed, epoch, indices, [stream])[0, :, 0]
    drawn: list[int] = (high >> np.uint64(1) << np.uint64(32) | low).tolist()
    return drawn


def uniform(
    seed: int, epoch: int, indices: npt.NDArray[np.int64], position: int, count: int
) -> npt.NDArray[np.float64]:
    """Numbers uniform in [0, 1), in steps of 2**-32: float64 (n, count).

    ``position``, below 2**16, is the place in the chain of transforms; ``count`` is at most 2**18.
    The other arguments are those of ``words``.
    """
    blocks = -(-count // 4)
    streams = np.arange(blocks, dtype=np.uint64) + np.uint64(position * BLOCKS_PER_POSITION)
    drawn = words(seed, epoch, indices, streams)
    n = drawn.shape[-1]
    numbers = drawn.transpose(3, 2, 0, 1).reshape(n, 4 * blocks)[:, :count]
    result: npt.NDArray[np.float64] = np.multiply(numbers, 2.0**-32)
    return result
