"""The transforms of the installed timm's create_transform are recognised and equal timm's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms as v1

import torchvision_oracle
from fastload._base import philox
from fastload._transforms.recognise import Plan, recognise
from in_core import made

pytestmark = pytest.mark.long

TRAIN: dict[str, dict[str, Any]] = {
    "plain": {},
    "erasing": {"re_prob": 0.25, "re_mode": "pixel", "color_jitter": 0.4},
    "of levels": {"use_prefetcher": True},
    "colours by chance": {
        "color_jitter_prob": 0.8,
        "grayscale_prob": 0.2,
        "gaussian_blur_prob": 0.5,
    },
    "rand": {"auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.25, "re_mode": "pixel"},
    "rand, of three": {"auto_augment": "rand-m7-n3-mstd101", "vflip": 0.5},
}
EVAL: dict[str, dict[str, Any]] = {
    "plain": {},
    "bicubic": {"interpolation": "bicubic", "crop_pct": 0.95},
    "squash": {"crop_mode": "squash"},
    "of levels": {"use_prefetcher": True},
}


@pytest.fixture(scope="module")
def create() -> Any:
    return pytest.importorskip("timm.data").create_transform


@pytest.mark.parametrize("name", TRAIN)
def test_training_is_recognised(create: Any, name: str) -> None:
    chain = create(224, is_training=True, interpolation="bicubic", **TRAIN[name])
    assert isinstance(recognise(chain), Plan), recognise(chain)


@pytest.mark.parametrize("name", EVAL)
def test_evaluation_is_timms(create: Any, name: str) -> None:
    chain = create(32, **EVAL[name])
    plan = recognise(chain)
    assert isinstance(plan, Plan)
    image = torchvision_oracle.picture(93, 71)
    theirs = torch.as_tensor(chain(image))
    assert torch.equal(made(plan, image, 0), theirs)


class Given:
    """Python's ``random`` with numbers given: whether, a normal deviate, the sign."""

    def __init__(self, u: list[list[float]]) -> None:
        self._rest = u
        self._u = u[0]
        self._asked = 0

    def next_layer(self) -> None:
        self._u, self._asked = self._rest.pop(0), 0

    def random(self) -> float:
        self._asked += 1
        return self._u[1] if self._asked == 1 else self._u[4]

    def gauss(self, mean: float, std: float) -> float:
        return mean + std * (
            math.sqrt(-2 * math.log1p(-self._u[2])) * math.cos(2 * math.pi * self._u[3])
        )

    def uniform(self, low: float, high: float) -> float:
        return low + self._u[2] * (high - low)


@pytest.mark.parametrize(
    ("policy", "filter"), [("rand-m9-mstd0.5-inc1", 3), ("rand-m8-n3-mstd101-p0.9-inc1", 2)]
)
def test_rand_augment_is_timms(
    policy: str, filter: int, create: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from timm.data import auto_augment

    transform = auto_augment.rand_augment_transform(
        policy, {"translate_pct": 0.4, "img_mean": (124, 116, 104), "interpolation": filter}
    )
    plan = recognise(v1.Compose([transform, v1.PILToTensor()]))
    assert isinstance(plan, Plan), plan
    layers = transform.num_layers
    for index in range(60):
        image = torchvision_oracle.picture(60 + index % 7, 45, index)
        numbers = philox.uniform(1, 2, np.array([index]), 4096, 5 * layers)[0].reshape(layers, 5)
        given = Given(numbers.tolist())
        monkeypatch.setattr(auto_augment, "random", given)
        theirs = image
        for u in numbers:
            given.next_layer()
            theirs = transform.ops[int(u[0] * len(transform.ops))](theirs)
        assert torch.equal(
            made(plan, image, index, seed=1, epoch=2), v1.functional.pil_to_tensor(theirs)
        ), index


def test_weights_of_operations_are_declined(create: Any) -> None:
    chain = create(32, is_training=True, interpolation="bicubic", auto_augment="rand-tweights")
    assert "with weights for its operations" in recognise(chain).reason
