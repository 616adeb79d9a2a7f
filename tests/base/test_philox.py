"""The counter-based generator: published answers, purity, uniformity."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fastload._base import philox

# Random123's known answers for philox4x32 with ten rounds: counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def one_block(counter: list[int], key: list[int]) -> list[int]:
    index = np.array([counter[1] | counter[2] << 32], np.uint64).view(np.int64)
    words = philox.words(key[0] | key[1] << 32, counter[3], index, [counter[0]])
    return [int(word) for word in words.reshape(4)]


def plain_philox(counter: list[int], key: list[int]) -> list[int]:
    """The paper's definition, one block, in Python integers.

    Where a stream has more than 32 bits, its first product keeps 64.
    """
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        p, q = a * 0xD2511F53 & (1 << 64) - 1, c * 0xCD9E8D57
        a, b, c, d = (q >> 32) ^ b ^ k0, q & 0xFFFFFFFF, (p >> 32) ^ d ^ k1, p & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [a, b, c, d]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_gives_the_published_answers(counter: str, key: str, answer: str) -> None:
    counter_words, key_words, expected = (
        [int(word, 16) for word in text.split()] for text in (counter, key, answer)
    )
    assert one_block(counter_words, key_words) == expected


def test_gives_what_the_plain_definition_gives() -> None:
    rng = random.Random(0)
    for _ in range(200):
        counter = [rng.getrandbits(32) for _ in range(4)]
        key = [rng.getrandbits(32) for _ in range(2)]
        assert one_block(counter, key) == plain_philox(counter, key)


def test_uniform_takes_the_words_of_consecutive_blocks_in_order() -> None:
    index = 5 + (7 << 32)
    numbers = philox.uniform(11 + (13 << 32), 17, np.array([index]), position=3, count=6)
    stream = 3 * philox.BLOCKS_PER_POSITION
    words = plain_philox([stream, 5, 7, 17], [11, 13]) + plain_philox(
        [stream + 1, 5, 7, 17], [11, 13]
    )
    assert numbers.tolist() == [[word / 2**32 for word in words[:6]]]


def test_numbers_do_not_depend_on_the_batch_they_are_drawn_in() -> None:
    indices = np.array([9, 3, 10**12, 0, 3], np.int64)
    together = philox.uniform(1, 2, indices, 4, 10)
    for row, index in enumerate(indices):
        alone = philox.uniform(1, 2, np.array([index]), 4, 3)
        assert together[row, :3].tolist() == alone[0].tolist()


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 300])
def test_each_word_of_an_array_is_that_of_the_plain_definition(count: int) -> None:
    indices = np.arange(count, dtype=np.int64) * 0x123456789 - 5
    # beyond 32 bits too: an epoch's order is drawn from such a stream
    streams = np.array([0, 65536, 2**32 - 1, 2**32, 2**35 + 7], np.uint64)
    # every other one: arrays need not be contiguous
    words = philox.words(-3, 2**32 + 9, np.repeat(indices, 2)[::2], np.repeat(streams, 2)[::2])
    assert words.shape == (2, 2, 5, count) and words.dtype == np.uint64
    for n, index in enumerate(indices.view(np.uint64).tolist()):
        for b, stream in enumerate(streams.tolist()):
            counter = [stream, index & 0xFFFFFFFF, index >> 32, 9]
            expected = plain_philox(counter, [2**32 - 3, 2**32 - 1])
            assert words[:, :, b, n].reshape(4).tolist() == expected


@pytest.mark.parametrize("change", ["seed", "epoch", "index", "position"])
def test_every_argument_changes_the_numbers(change: str) -> None:
    arguments = {"seed": 1, "epoch": 2, "index": 3, "position": 4}

    def draw() -> list[float]:
        indices = np.array([arguments["index"]])
        drawn = philox.uniform(
            arguments["seed"], arguments["epoch"], indices, arguments["position"], 8
        )
        return drawn[0].tolist()

    before = draw()
    arguments[change] += 1
    assert not set(before) & set(draw())


def test_any_integer_is_a_seed_and_an_epoch() -> None:
    index = np.array([1])
    assert (
        philox.uniform(-1, -1, index, 0, 4) == philox.uniform(2**64 - 1, 2**32 - 1, index, 0, 4)
    ).all()
    assert (
        philox.uniform(2**64 + 5, 2**32 + 6, index, 0, 4) == philox.uniform(5, 6, index, 0, 4)
    ).all()


def test_numbers_are_uniform_in_the_half_open_unit_interval() -> None:
    numbers = philox.uniform(0, 0, np.arange(5000), 0, 40)
    assert numbers.dtype == np.float64
    assert 0 <= numbers.min() and numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=100, range=(0, 1))
    expected = numbers.size / 100
    assert ((counts - expected) ** 2 / expected).sum() < 180  # chi-square, 99 degrees: p = 1e-6
    columns = np.corrcoef(numbers, rowvar=False) - np.eye(40)
    assert abs(columns).max() < 0.08


def test_no_count_and_no_indices_give_empty_arrays() -> None:
    assert philox.uniform(0, 0, np.arange(3), 0, 0).shape == (3, 0)
    assert philox.uniform(0, 0, np.empty(0, np.int64), 0, 5).shape == (0, 5)


def test_a_seed_has_63_bits_of_two_words() -> None:
    indices = np.array([0, 7, 1 << 40], np.int64)
    drawn = philox.words(3, 2, indices, [9])[0, :, 0].tolist()
    found = philox.seeds(3, 2, indices, 9)
    assert found == [(high >> 1) << 32 | low for high, low in zip(*drawn)]
    assert all(type(seed) is int and 0 <= seed < 1 << 63 for seed in found)
