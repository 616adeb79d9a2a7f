"""200 random chains of all transforms, each in at least ten chains, equal torchvision."""

from __future__ import annotations

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode as Mode
from torchvision.transforms import v2

import releases
import torchvision_oracle
from fastload._transforms.recognise import Plan, recognise
from in_core import made

CHAINS = 200
PICTURES = [torchvision_oracle.picture(*size) for size in [(60, 45), (37, 64), (50, 50)]]
MODES = [Mode.NEAREST, Mode.BILINEAR, Mode.BICUBIC, Mode.LANCZOS, Mode.BOX]
MODES += [Mode.HAMMING, Mode.NEAREST_EXACT]

ON_GEOMETRY = torchvision_oracle.GEOMETRIC
ON_VALUES = [*torchvision_oracle.PLAIN, "RandomErasing"]

Make = Callable[[Any, np.random.Generator], Any]


def side(rng: np.random.Generator) -> int:
    return int(rng.integers(12, 36))


def mode(rng: np.random.Generator, most: int = 7) -> Mode:
    return MODES[int(rng.integers(most))]


PIXELS: dict[str, Make] = {
    "ColorJitter": lambda v, r: v.ColorJitter(*r.uniform(0, 0.5, 4).tolist()),
    "Grayscale": lambda v, r: v.Grayscale(3),
    "RandomGrayscale": lambda v, r: v.RandomGrayscale(0.5),
    "RandomInvert": lambda v, r: v.RandomInvert(),
    "RandomSolarize": lambda v, r: v.RandomSolarize(float(r.uniform(0, 256))),
    "RandomPosterize": lambda v, r: v.RandomPosterize(int(r.integers(1, 9))),
    "RandomAutocontrast": lambda v, r: v.RandomAutocontrast(),
    "RandomEqualize": lambda v, r: v.RandomEqualize(),
    "RandomAdjustSharpness": lambda v, r: v.RandomAdjustSharpness(float(r.uniform(0, 3))),
    "RandomVerticalFlip": lambda v, r: v.RandomVerticalFlip(),
    "RandomRotation": lambda v, r: v.RandomRotation(float(r.uniform(0, 180)), mode(r, 3)),
    "RandomAffine": lambda v, r: v.RandomAffine(
        float(r.uniform(0, 90)),
        (0.2, 0.1),
        (0.7, 1.4),
        12,
        interpolation=mode(r, 3),
        fill=(5, 6, 7),
    ),
    "RandAugment": lambda v, r: v.RandAugment(2, int(r.integers(31))),
    "TrivialAugmentWide": lambda v, r: v.TrivialAugmentWide(),
    "AugMix": lambda v, r: v.AugMix(int(r.integers(1, 11)), alpha=float(r.uniform(0.5, 2))),
    "AutoAugment": lambda v, r: v.AutoAugment(list(v1.AutoAugmentPolicy)[int(r.integers(3))]),
}
GROUPS: dict[str, Make] = {
    "RandomApply": lambda v, r: v.RandomApply(some(v, r, PIXELS, 2), p=0.6),
    "RandomChoice": lambda v, r: v.RandomChoice(some(v, r, PIXELS, 3)),
    "RandomOrder": lambda v, r: v.RandomOrder(some(v, r, PIXELS, 2)),
    "Sequential": lambda v, r: torch.nn.Sequential(v.ColorJitter(0.3), v.RandomRotation(9)),
    "Compose": lambda v, r: v.Compose(some(v, r, PIXELS, 2)),
}
GEOMETRY: dict[str, Make] = {
    "RandomResizedCrop": lambda v, r: v.RandomResizedCrop(
        (side(r), side(r)), interpolation=mode(r)
    ),
    "Resize": lambda v, r: v.Resize(side(r), mode(r)),
    "CenterCrop": lambda v, r: v.CenterCrop((side(r), side(r))),
    "RandomCrop": lambda v, r: v.RandomCrop(side(r), padding=4, pad_if_needed=True, fill=9),
    "Pad": lambda v, r: v.Pad((1, 2, 3, 4), fill=(3, 4, 5)),
    "RandomHorizontalFlip": lambda v, r: v.RandomHorizontalFlip(),
    "expanding RandomRotation": lambda v, r: v.RandomRotation(60, mode(r, 3), expand=True),
}
ENDS: dict[str, Make] = {
    "PILToTensor": lambda v, r: [v.PILToTensor()],
    "ToTensor": lambda v, r: [v1.ToTensor(), v.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4])],
    "ToImage": lambda v, r: [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)],
    "RandomErasing": lambda v, r: [v1.ToTensor(), v.RandomErasing(0.7, value=[0.1, 0.2, 0.3])],
    "random RandomErasing": lambda v, r: [v1.ToTensor(), v.RandomErasing(0.7, value="random")],
    "GaussianBlur": lambda v, r: [v.GaussianBlur((5, 9)), v.PILToTensor()],
    "resized tensor": lambda v, r: [
        v2.ToImage(),
        v2.RandomResizedCrop((side(r), side(r)), interpolation=MODES[1 + int(r.integers(2))]),
        v2.RandomInvert(),
        v2.ConvertImageDtype(torch.float32),
    ],
}


def some(v: Any, rng: np.random.Generator, of: dict[str, Make], most: int) -> list[Any]:
    names = rng.choice(list(of), size=int(rng.integers(1, most + 1)))
    return [of[name](v, rng) for name in names]


def chain_of(number: int) -> tuple[Any, set[str], str]:
    """A chain, the names of its transforms, and how it ends."""
    rng = np.random.default_rng(number)
    version = v2 if number % 2 else v1
    kinds = {**PIXELS, **GROUPS, **GEOMETRY}
    names = list(rng.choice(list(kinds), size=int(rng.integers(2, 6)), replace=False))
    end = list(ENDS)[number % len(ENDS)]
    steps = [kinds[name](version, rng) for name in names]
    steps = [*steps, version.Resize((24, 20)), *ENDS[end](version, rng)]
    return version.Compose(steps), {*names, end, "Resize"}, end


def split_as_documented(plan: Plan, chain: Any) -> None:
    """Every transform of the chain is in the engine's part, at its place."""
    names = [type(leaf).__name__ for leaf in torchvision_oracle.leaves(chain)]
    pixels = [name for name in names if name not in ON_GEOMETRY and name not in ON_VALUES]
    assert [words.split("(")[0] for words in plan.steps] == names
    assert sum(len(stage.pixels) for stage in plan.stages) == len(pixels)
    ops = [*plan.ops, *(op for stage in plan.stages for op in stage.ops)]
    assert len(ops) == len([name for name in names if name in ON_GEOMETRY])
    assert len(plan.erasing) == names.count("RandomErasing")
    assert (plan.lut is not None) == plan.dtype.is_floating_point
    assert plan.split.startswith("everything runs in the engine: ")


@releases.in_integers
@pytest.mark.parametrize("part", range(8))
def test_random_chains_are_recognised_whole_and_equal(part: int) -> None:
    for number in range(part, CHAINS, 8):
        chain, _, end = chain_of(number)
        plan = recognise(chain)
        assert isinstance(plan, Plan), (chain, plan)
        split_as_documented(plan, chain)
        for index, image in enumerate(PICTURES):
            theirs = torchvision_oracle.sample(chain, image, index, seed=1, epoch=2)
            found = made(plan, image, index, seed=1, epoch=2)
            if end == "GaussianBlur":
                assert (found.int() - theirs.as_subclass(torch.Tensor).int()).abs().max() <= 1
            else:
                assert torch.equal(found, theirs.as_subclass(torch.Tensor)), chain


@releases.in_integers
def test_random_chains_on_photos_are_torchvisions(
    test_data: Path, count: Callable[[int, int], int]
) -> None:
    paths = sorted(test_data.glob("*/*"))
    photos = [Image.open(path).convert("RGB") for path in paths[:: count(150, 75)]]
    for number in range(0, CHAINS, count(10, 1)):
        chain, _, end = chain_of(number)
        plan = recognise(chain)
        for index, image in enumerate(photos):
            theirs = torchvision_oracle.sample(chain, image, index, seed=1, epoch=2)
            found, theirs = (
                made(plan, image, index, seed=1, epoch=2),
                theirs.as_subclass(torch.Tensor),
            )
            if end == "GaussianBlur":
                assert (found.int() - theirs.int()).abs().max() <= 1
            else:
                assert torch.equal(found, theirs), (number, index)


def test_each_transform_is_in_ten_chains_at_least() -> None:
    seen = collections.Counter(name for n in range(CHAINS) for name in chain_of(n)[1])
    assert set(seen) == {*PIXELS, *GROUPS, *GEOMETRY, *ENDS}
    assert min(seen.values()) >= 10, seen
