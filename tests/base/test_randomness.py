"""States of the global generators: those that they have, however often they are asked for."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from fastload._base import randomness

DRAWS = {
    "nothing": lambda: None,
    "one number": lambda: np.random.rand(),
    "first of a pair of normal values": lambda: np.random.randn(),
    "a whole block": lambda: np.random.rand(624),
    "a new seed": lambda: np.random.seed(3),
    "Python's": lambda: random.random(),
    "torch's": lambda: torch.rand(3),
}


def drawn():
    return (*np.random.randn(3), *np.random.rand(2), random.random(), *torch.rand(2).tolist())


@pytest.mark.parametrize("first", DRAWS)
@pytest.mark.parametrize("second", DRAWS)
def test_a_state_that_is_put_back_gives_the_same_numbers_again(first, second):
    randomness.seed_all(1)
    for draw in (DRAWS[first], DRAWS[second]):
        randomness.get()
        draw()
        before = randomness.get()
        expected = drawn()
        randomness.put(before)
        assert drawn() == expected
        randomness.put(before)


def test_the_second_normal_value_of_a_pair_is_part_of_the_state():
    np.random.seed(1)
    np.random.randn()
    randomness.get()
    expected = np.random.randn()  # draws nothing
    after = randomness.get()
    following = np.random.randn()
    assert following != expected
    randomness.put(after)
    assert np.random.randn() == following


def test_another_generator_in_the_place_of_numpys_is_known():
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(1))
        state = randomness.get()
        expected = np.random.rand()
        randomness.put(state)
        assert np.random.rand() == expected
    finally:
        np.random.set_bit_generator(before)
