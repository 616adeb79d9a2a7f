"""A batch that is made twice draws the same numbers from the generators of its Dataset."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from random import randint
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate
from torchvision.transforms import functional as F

import deferred_datasets as shapes
from fastload import FastLoader
from fastload._base.own_generators import OwnGenerators
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


OF_THE_MODULE = random.Random(5)


def _in_a_default(generator: random.Random) -> Any:
    def transform(image: Any, drawing: random.Random = generator) -> float:
        return drawing.random()

    return transform


class InAMethod:
    def __getitem__(self, index: int) -> list[float]:
        return [OF_THE_MODULE.random() for _ in range(index)]


@pytest.mark.parametrize(
    "owner",
    [
        pytest.param(lambda image: OF_THE_MODULE.random(), id="variable of the module"),
        pytest.param(
            (lambda generator: lambda image: generator.random())(OF_THE_MODULE), id="closure"
        ),
        pytest.param(_in_a_default(OF_THE_MODULE), id="default"),
        pytest.param(functools.partial(print, file=OF_THE_MODULE), id="partial"),
        pytest.param(InAMethod(), id="list comprehension in a method"),
        pytest.param({"transform": [InAMethod().__getitem__]}, id="bound method"),
    ],
)
def test_what_functions_name_is_found(owner: Any) -> None:
    before = OwnGenerators().states(owner)
    first = OF_THE_MODULE.random()
    before.restore()
    assert OF_THE_MODULE.random() == first


def test_attributes_are_found_beside_functions_that_lead_to_many_others() -> None:
    generator = random.Random(3)
    many = [functools.partial(lambda text, name: text + name, name) for name in dir(torch)]
    folder = {"of": [generator], "functions": [torch.compile, many[:30], outcome, F.to_tensor]}
    before = OwnGenerators().states(folder)
    first = generator.random()
    before.restore()
    assert generator.random() == first


@pytest.mark.native
def test_generators_of_many_loaders_are_found_after_these_were_used(photos: list[Path]) -> None:
    _, draw = KINDS["python"]
    parts = [shapes.Photos(photos, Crop(random.Random(seed), draw)) for seed in range(20)]
    dataset = [FastLoader(part, 2, shuffle=True) for part in parts]
    for loader in dataset:
        next(iter(loader))
    assert len(OwnGenerators().states(dataset).own) == len(parts)


class NotThereNow:
    """A stand-in that raises for whatever it is asked, as Flask's outside of a request."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("working outside of a request")


AWAY = NotThereNow()


def test_neither_stand_ins_nor_global_generators_are_a_datasets_own() -> None:
    owner = [lambda image: randint(0, AWAY.most), AWAY, torch.default_generator]
    assert OwnGenerators().states(owner).own == []


def test_what_has_no_state_is_left_alone() -> None:
    owners = [random.SystemRandom(), 3, "text", lambda: None, random.Random, object()]
    assert OwnGenerators().states(owners).own == []


def _set_random_seed(self: Any, seed: int) -> None:
    self.generator = random.Random(seed)


_set_random_seed.__module__ = "albumentations.core.composition"


class Pipeline:
    """As Albumentations': it keeps a generator, which it seeds by itself."""

    set_random_seed = _set_random_seed

    def __init__(self) -> None:
        self.generator = random.Random()
        self.transforms = [self.generator]

    def __call__(self) -> float:
        return self.generator.random()


class Draws(Dataset[Any]):
    def __init__(self) -> None:
        self.transforms = {"train": [Pipeline()]}

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, self.transforms["train"][0]()


class Stream(IterableDataset[Any]):
    def __init__(self) -> None:
        self.pipeline = Pipeline()

    def __iter__(self) -> Any:
        return (self.pipeline() for _ in range(24))


def _drawn(loader: FastLoader) -> dict[int, float]:
    numbers, values = zip(*loader, strict=True)
    return dict(zip(torch.cat(numbers).tolist(), torch.cat(values).tolist(), strict=True))


def _loader(**arguments: Any) -> FastLoader:
    return FastLoader(Draws(), batch_size=4, shuffle=True, **arguments)


def test_with_a_seed_a_pipelines_numbers_depend_on_seed_epoch_and_index() -> None:
    loader = _loader(seed=5)
    first, second = _drawn(loader), _drawn(loader)
    assert len(set(first.values()) | set(second.values())) == 48
    with_workers = _loader(seed=5, num_workers=2)
    assert _drawn(with_workers) == first
    assert _drawn(with_workers) == second
    assert not set(_drawn(_loader(seed=6)).values()) & set(first.values())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pipelines_numbers_go_on_after_a_resume(workers: int) -> None:
    whole = _loader(seed=5, num_workers=workers)
    iterator = iter(whole)
    begun = [next(iterator) for _ in range(2)]
    state = whole.state_dict()
    rest = list(iterator)
    assert len(begun) == 2
    resumed = _loader(seed=5, num_workers=workers)
    resumed.load_state_dict(state)
    assert_same(list(resumed), rest)


def test_with_a_seed_a_stream_draws_the_same_again() -> None:
    def made() -> list[float]:
        return torch.cat(list(FastLoader(Stream(), batch_size=4, seed=5, num_workers=2))).tolist()

    first = made()
    assert made() == first
    assert len(set(first)) == 24 * 2  # two workers, which both give the whole stream


def test_without_a_seed_workers_draw_what_torchs_do_and_explain_says_so() -> None:
    loader = _loader(num_workers=2)
    values = list(_drawn(loader).values())
    assert len(set(values)) == len(values) / 2
    assert "each worker a copy" in loader.explain()
    for other in (_loader(num_workers=2, seed=1), _loader(), _loader(num_workers=1)):
        assert "each worker a copy" not in other.explain()
    assert "each worker a copy" not in _loader(num_workers=2, worker_init_fn=print).explain()
