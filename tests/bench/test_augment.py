"""The recipes of ``augment`` run in the engine from end to end: nothing is left to Python."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torchvision")

from bench.loaders._torchvision import mixed, transforms_v1
from bench.suites import SUITES
from bench.workload import Workload
from fastload._transforms.pixels import mixing
from fastload._transforms.plan import Plan
from fastload._transforms.recognise import recognise


def workload(variant: str, images: Path) -> Workload:
    return Workload(
        suite="augment",
        variant=variant,
        images=str(images),
        recipe="train" if variant in ("plain", "large") else f"train-{variant}",
        size=224,
        resize=256,
        batch=8,
        threads=1,
    )


@pytest.mark.parametrize("variant", SUITES["augment"].variants)
def test_every_recipe_is_whole_in_the_engine(variant: str, photos: Path) -> None:
    plan = recognise(transforms_v1(workload(variant, photos)))
    assert isinstance(plan, Plan), plan
    assert plan.split.startswith("everything runs in the engine: ")
    assert plan.size == (224, 224)


@pytest.mark.native
def test_its_mixtures_are_made_in_the_batch(photos: Path) -> None:
    assert mixing.in_place(mixed(workload("mixup", photos))) is not None
