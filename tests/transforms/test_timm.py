"""What timm's create_transform gives is recognised, by classes with timm's names and attributes."""

from __future__ import annotations

import math
import sys
import types
from typing import Any

import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

from fastload._transforms import Plan, Unrecognised, recognise

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


class RandomResizedCropAndInterpolation:
    """timm's has these attributes, and torchvision's distribution."""

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


@pytest.fixture(autouse=True)
def timm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, classes in (
        ("timm.data.transforms", [RandomResizedCropAndInterpolation, MaybeToTensor]),
        ("timm.data.random_erasing", [RandomErasing]),
    ):
        module = types.ModuleType(name)
        for cls in classes:
            setattr(module, cls.__name__, cls)
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
    ],
)
def test_what_it_does_besides_is_declined(transform: Any, reason: str) -> None:
    found = recognise(transform())
    assert isinstance(found, Unrecognised)
    assert reason in found.reason


def test_a_class_that_only_has_the_name_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    class MaybeToTensor(v1.ToTensor):
        pass

    found = recognise(v1.Compose([v1.CenterCrop(8), MaybeToTensor()]))
    assert isinstance(found, Unrecognised)
    assert "MaybeToTensor is not a transform fastload knows" in found.reason
