"""The presets that come with torchvision's weights."""

from __future__ import annotations

import collections
from typing import Any

import torch
from torchvision import models

import torchvision_oracle
from fastload._transforms.recognise import Plan, recognise
from in_core import made

STILL = ("ImageClassification", "ObjectDetection", "SemanticSegmentation")


def presets() -> list[Any]:
    """The ``transforms()`` of all weights of the installed torchvision."""
    return [
        weight.transforms()
        for name in models.list_models()
        for weight in models.get_model_weights(name)
    ]


def test_every_preset_of_still_images_is_recognised() -> None:
    found = collections.Counter[tuple[str, bool]]()
    for preset in presets():
        found[type(preset).__name__, isinstance(recognise(preset), Plan)] += 1
    # Presets for videos and for pairs of images do not transform one image.
    assert {name for name, recognised in found if not recognised}.isdisjoint(STILL)
    assert found["ImageClassification", True] >= 100
    assert found["ObjectDetection", True] >= 10
    assert found["SemanticSegmentation", True] >= 5


def test_every_different_preset_is_torchvisions() -> None:
    image = torchvision_oracle.picture(173, 140)
    different = {str(preset): preset for preset in presets() if type(preset).__name__ in STILL}
    assert len(different) > 20
    for words, preset in different.items():
        plan = recognise(preset)
        assert isinstance(plan, Plan)
        assert torch.equal(made(plan, image, 0), preset(image)), words
