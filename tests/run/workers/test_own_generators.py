"""A batch that is made twice draws the same numbers from the generators of its Dataset."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, default_collate
from torchvision.transforms import functional as F

import deferred_datasets as shapes
from fastload import FastLoader
from fastload._run.workers.own_generators import OwnGenerators
from sides import assert_same, outcome

Draw = Callable[[Any], float]


class Crop:
    """A transform with a generator."""

    def __init__(self, generator: Any, draw: Draw) -> None:
        self.of = {"generators": [generator]}
        self.draw = draw

    def __call__(self, image: Image.Image) -> tuple[torch.Tensor, float]:
        drawn = self.draw(self.of["generators"][0])
        left = int(drawn * 9)
        return F.to_tensor(image.convert("RGB").crop((left, 0, left + 20, 20))), drawn


class Collate:
    """Raises for every second batch, and draws from a generator."""

    def __init__(self) -> None:
        self.generator = random.Random(4)

    def __call__(self, samples: list[Any]) -> Any:
        drawn = self.generator.random()
        if samples[0][1] % 8 >= 4:
            raise RuntimeError(f"cannot collate: {drawn}")
        return default_collate(samples), drawn


KINDS: dict[str, tuple[Callable[[], Any], Draw]] = {
    "python": (lambda: random.Random(3), lambda generator: generator.random()),
    "numpy": (lambda: np.random.default_rng(3), lambda generator: float(generator.random())),
    "numpy, old": (lambda: np.random.RandomState(3), lambda generator: float(generator.rand())),
    "torch": (
        lambda: torch.Generator().manual_seed(3),
        lambda generator: float(torch.rand(1, generator=generator)),
    ),
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return shapes.write_photos(tmp_path_factory.mktemp("photos"), 16)


@pytest.mark.native
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_what_raises_while_it_is_collated_draws_once(
    photos: list[Path], kind: str, workers: int
) -> None:
    make, draw = KINDS[kind]

    def made(loader: type) -> Any:
        dataset = shapes.Photos(photos, Crop(make(), draw))
        return outcome(loader, dataset, 1, batch_size=4, num_workers=workers, collate_fn=Collate())

    assert_same(made(FastLoader), made(DataLoader))


@pytest.mark.parametrize("kind", KINDS)
def test_all_generators_continue_from_where_they_were(kind: str) -> None:
    make, draw = KINDS[kind]
    generator = make()

    class Own:
        def __init__(self) -> None:
            self.nested = ({"a": [generator]}, self)
            self.many = list(range(100_000))
            self.module, self.data = torch, np.zeros(3)

        def collate(self) -> None: ...

    before = OwnGenerators().states(Own().collate)
    first = draw(generator), random.random(), float(np.random.rand()), float(torch.rand(1))
    draw(generator)
    for _ in range(2):
        before.restore()
        again = draw(generator), random.random(), float(np.random.rand()), float(torch.rand(1))
        assert again == first


def test_what_has_no_state_is_left_alone() -> None:
    owners = [random.SystemRandom(), 3, "text", lambda: None, random.Random, object()]
    assert OwnGenerators().states(owners).own == []
