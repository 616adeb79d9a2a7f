"""Seeding of Python's, NumPy's and torch's global generators, which a user's Dataset draws from.

With an int ``seed`` they are seeded before each sample by a function of (seed, epoch, index). A
sample is then the same in any worker, at any place in its epoch, and after resuming. This costs
about 6 us per sample, most of it for Python's generator.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import operator
import random
import zlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from . import philox

if TYPE_CHECKING:
    from .devices.accelerator import Accelerator

# Random streams; the order and each transform have others.
_SAMPLE = 0x7361_6D70  # samples
_BATCH = 0x6261_7463  # batches of an iterable dataset
_TRANSFORM = 0x7472_616E  # ``batch_transform``

# States of Python's, NumPy's and torch's global generators.
State = tuple[tuple[Any, ...], dict[str, Any] | tuple[Any, ...], torch.Tensor]


def sample_seeds(
    seed: int, epoch: int, indices: Sequence[Any], repeats: Sequence[int] | None
) -> list[int]:
    """A seed (63 bits) for each of ``indices``, which the sampler gave.

    What is no int is identified by its ``repr``. ``repeats`` says how often each index came before
    in this epoch; None: never.
    """
    counters = np.fromiter(map(_counter, indices), np.int64, len(indices))
    if repeats is not None:
        counters += np.asarray(repeats, np.int64) << philox.REPEAT_BITS
    return philox.seeds(seed, epoch, counters, _SAMPLE)


def batch_seed(seed: int, epoch: int, worker: int, batch: int) -> int:
    """A seed (63 bits) for a batch of an iterable dataset."""
    counter = np.array([(worker << philox.REPEAT_BITS) + batch], np.int64)
    return philox.seeds(seed, epoch, counter, _BATCH)[0]


def transform_seed(seed: int, epoch: int, batch: int) -> int:
    """A seed (63 bits) for ``batch_transform`` of a batch."""
    return philox.seeds(seed, epoch, np.array([batch], np.int64), _TRANSFORM)[0]


@contextlib.contextmanager
def seeded(seed: int, accelerator: Accelerator | None) -> Iterator[None]:
    """Within it, the global generators are seeded; afterwards their states are restored.

    They are Python's, NumPy's, torch's for the CPU, and that of ``accelerator``.
    """
    before = get()
    state = None if accelerator is None else accelerator.random_state()
    try:
        seed_all(seed)
        if accelerator is not None:
            accelerator.seed(seed)
        yield
    finally:
        put(before)
        if accelerator is not None and state is not None:
            accelerator.set_random_state(state)


def seed_all(seed: int) -> None:
    """Seed Python's, NumPy's and torch's (CPU) global generators of this process."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


def get() -> State:
    """The states of the three generators."""
    return random.getstate(), _NUMPY.get(), torch.default_generator.get_state()


def put(state: State) -> None:
    """Restore the states of the three generators."""
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.default_generator.set_state(state[2])


class _NumPy:
    """NumPy's global generator. To ask for its state takes 45 us, five times as long as the others.

    Most datasets do not draw from it. So the last state is given again while it is the same. Of
    that the generator's memory shows all but the second of a pair of normal values, and as long as
    there is none, none can come without drawing.
    """

    # Words of the Mersenne Twister, and the position in them, as in NumPy's mt19937.h.
    _NBYTES = 4 * 624 + 4

    def __init__(self) -> None:
        self._last: tuple[bytes, dict[str, Any] | tuple[Any, ...]] | None = None

    def get(self) -> dict[str, Any] | tuple[Any, ...]:
        """As ``np.random.get_state``."""
        address = _address_of(np.random.mtrand._rand._bit_generator)
        if address is None:
            return np.random.get_state(legacy=False)
        memory = ctypes.string_at(address, self._NBYTES)
        if self._last is not None and self._last[0] == memory:
            return self._last[1]
        state = np.random.get_state(legacy=False)
        # Another thread may draw meanwhile.
        unchanged = not state["has_gauss"] and ctypes.string_at(address, self._NBYTES) == memory
        self._last = (memory, state) if unchanged else None
        return state


@functools.lru_cache(maxsize=1)
def _address_of(generator: np.random.BitGenerator) -> int | None:
    """Where a Mersenne Twister has its state; None: it is of another kind."""
    if type(generator) is not np.random.MT19937:
        return None
    address: int = generator.ctypes.state_address
    return address


_NUMPY = _NumPy()


def _counter(index: object) -> int:
    try:
        return operator.index(index)  # type: ignore[arg-type]
    except TypeError:
        return zlib.crc32(repr(index).encode())
