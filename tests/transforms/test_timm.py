"""The transforms of timm's create_transform are recognised, with stand-ins for timm's classes."""

from __future__ import annotations

import collections
import inspect
import math
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

from fastload._transforms.geometry.draws import Numbers
from fastload._transforms.pixels import operations
from fastload._transforms.recognise import Plan, Unrecognised, recognise
from fastload._transforms.sample_params import draw

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


class RandomResizedCropAndInterpolation:
    """A stand-in with timm's attributes and torchvision's distribution."""

    def __init__(self, interpolation: Any = InterpolationMode.BICUBIC) -> None:
        self.size = (24, 20)
        self.scale, self.ratio = (0.08, 1.0), (3 / 4, 4 / 3)
        self.interpolation = interpolation


class MaybeToTensor(v1.ToTensor):
    def __call__(self, image: Any) -> torch.Tensor:
        return image if isinstance(image, torch.Tensor) else F.to_tensor(image)


class RandomErasing:
    def __init__(self, mode: str = "const", count: int = 1, device: str = "cpu") -> None:
        self.probability, self.min_area, self.max_area = 0.25, 0.02, 1 / 3
        self.log_aspect_ratio = (math.log(0.3), math.log(1 / 0.3))
        self.min_count = self.max_count = count
        self.rand_color, self.per_pixel = mode == "rand", mode == "pixel"
        self.device = device


OPS = [
    "Rotate",
    "ColorIncreasing",
    "PosterizeIncreasing",
    "SolarizeAdd",
    "TranslateXRel",
    "Equalize",
]


class AugmentOp:
    def __init__(
        self, name: str, std: float = 0.5, resample: Any = 3, fill: Any = (124, 116, 104)
    ) -> None:
        self.name, self.prob, self.magnitude = name, 0.5, 9
        self.magnitude_std, self.magnitude_max = std, None
        self.hparams: dict[str, float] = {}
        self.kwargs = {"resample": resample, "fillcolor": fill}
        self.aug_fn = self.level_fn = None


class RandAugment:
    def __init__(self, ops: list[AugmentOp], choice_weights: Any = None) -> None:
        self.ops, self.num_layers, self.choice_weights = ops, 2, choice_weights


@pytest.fixture(autouse=True)
def timm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, classes in (
        ("timm.data.transforms", [RandomResizedCropAndInterpolation, MaybeToTensor]),
        ("timm.data.random_erasing", [RandomErasing]),
        ("timm.data.auto_augment", [RandAugment, AugmentOp]),
    ):
        module = types.ModuleType(name)
        for cls in classes:
            setattr(module, cls.__name__, cls)
            for method in filter(inspect.isfunction, vars(cls).values()):
                monkeypatch.setattr(method, "__module__", name)
        for table in ("NAME_TO_OP", "LEVEL_TO_ARG"):
            setattr(module, table, dict.fromkeys(OPS))
        module._LEVEL_DENOM = 10.0  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)


def chain(crop: Any, *last: Any) -> v1.Compose:
    jitter = v1.ColorJitter(0.4, 0.4, 0.4)
    flip, tensor, normalize = v1.RandomHorizontalFlip(), MaybeToTensor(), v1.Normalize(MEAN, STD)
    return v1.Compose([crop, flip, jitter, tensor, normalize, *last])


def plan_of(transform: Any) -> Plan:
    plan = recognise(transform)
    assert isinstance(plan, Plan), plan
    return plan


def test_training_is_what_torchvisions_classes_give() -> None:
    ours = plan_of(chain(RandomResizedCropAndInterpolation()))
    crop = v1.RandomResizedCrop((24, 20), interpolation=InterpolationMode.BICUBIC)
    theirs = plan_of(
        v1.Compose([crop, *chain(crop).transforms[1:3], v1.ToTensor(), v1.Normalize(MEAN, STD)])
    )
    assert ours.same_as(theirs)


def test_rand_augment_is_drawn_as_timm_draws_it() -> None:
    """One of the operations, half of the time, near its magnitude (all of timm: --long)."""
    plan = plan_of(v1.Compose([RandAugment([AugmentOp(name) for name in OPS]), v1.PILToTensor()]))
    sizes = np.full((600, 2), 50, np.int32)
    _, params = draw(plan, sizes, Numbers(seed=1, epoch=0, indices=np.arange(600)))
    assert params is not None
    codes = collections.Counter(params.codes.reshape(-1).tolist())
    assert abs(codes.pop(operations.NONE) - 600) < 60  # of 1,200
    affine = codes.pop(operations.AFFINE)  # rotations and translations
    assert min(*codes.values(), affine / 2) > 60
    factors = params.values[:, :, 0][params.codes == operations.SATURATION]
    assert 0.1 <= factors.min() < 0.25 and 1.75 < factors.max() <= 1.9
    assert 0.02 < np.abs(np.abs(factors - 1) - 0.81).std() < 0.06


@pytest.mark.parametrize(("mode", "value"), [("const", 0), ("pixel", "random")])
def test_erasing_is_torchvisions(mode: str, value: Any) -> None:
    crop = RandomResizedCropAndInterpolation()
    ours = plan_of(chain(crop, RandomErasing(mode))).erasing[0]
    theirs = v1.RandomErasing(0.25, (0.02, 1 / 3), (0.3, 1 / 0.3), value)
    expected = plan_of(chain(crop, theirs)).erasing[0]
    assert (ours.p, ours.scale) == (expected.p, expected.scale)
    assert ours.ratio == pytest.approx(expected.ratio, rel=1e-12)
    assert ours.values.tobytes() == expected.values.tobytes()


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (lambda: chain(RandomResizedCropAndInterpolation((2, 3))), "chosen at random"),
        (lambda: chain(v1.CenterCrop(9), RandomErasing("rand")), "mode='rand'"),
        (lambda: chain(v1.CenterCrop(9), RandomErasing(count=3)), "several rectangles"),
        (lambda: chain(v1.CenterCrop(9), RandomErasing(device="cuda")), "device=cuda"),
        (lambda: chain(RandAugment([AugmentOp("Equalize")], [1.0])), "weights for its operations"),
        (lambda: chain(RandAugment([AugmentOp("Rotate", resample=(2, 3))])), "chosen at random"),
        (lambda: chain(RandAugment([AugmentOp("GaussianBlur")])), "timm with GaussianBlur"),
        (
            lambda: chain(RandAugment([AugmentOp("Rotate", fill=0.5)])),
            "three levels are recognised",
        ),
    ],
)
def test_what_it_does_besides_is_declined(transform: Any, reason: str) -> None:
    found = recognise(transform())
    assert isinstance(found, Unrecognised)
    assert reason in found.reason


def test_a_method_that_was_replaced_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = chain(RandomResizedCropAndInterpolation())
    assert isinstance(recognise(whole), Plan)
    monkeypatch.setattr(MaybeToTensor, "__call__", lambda self, image: image)
    found = recognise(whole)
    assert isinstance(found, Unrecognised)
    assert f"the __call__ of MaybeToTensor was replaced by one from {__name__}" in found.reason


def test_a_class_that_only_has_the_name_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    class MaybeToTensor(v1.ToTensor):
        pass

    found = recognise(v1.Compose([v1.CenterCrop(8), MaybeToTensor()]))
    assert isinstance(found, Unrecognised)
    assert "MaybeToTensor is not a transform fastload knows" in found.reason
