"""Transforms with fixed parameters: equal to torchvision itself, without an oracle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

import torchvision_oracle as oracle
from fastload._base.slabs import SlabRing
from fastload._engine.image_engine import EngineOptions
from fastload._engine.registry import NATIVE, make_engine
from fastload._transforms.plan import Plan
from fastload._transforms.recognise import recognise
from fastload.storage.folder import FolderStore

CUBIC = v1.InterpolationMode.BICUBIC
LINEAR = v1.InterpolationMode.BILINEAR

# None of these numbers is exactly a float32, the dtype in which torch draws.
FIXED = {
    "scale": lambda v: v.RandomAffine(0, scale=(1.1, 1.1)),
    "small scale": lambda v: v.RandomAffine(0, scale=(0.7, 0.7), interpolation=LINEAR),
    "shear": lambda v: v.RandomAffine(0, shear=(5.3, 5.3, -2.7, -2.7)),
    "all": lambda v: v.RandomAffine(
        (33.3, 33.3), scale=(1.3, 1.3), shear=(9.1, 9.1, 4.7, 4.7), interpolation=CUBIC
    ),
    "affine rotation": lambda v: v.RandomAffine((17.7, 17.7), center=(3.3, 7.9)),
    "rotation": lambda v: v.RandomRotation((33.3, 33.3)),
    "smooth rotation": lambda v: v.RandomRotation((-0.1, -0.1), LINEAR, expand=True),
    "hue": lambda v: v.ColorJitter(hue=(20 / 255, 20 / 255)),
    "colours": lambda v: v.ColorJitter((0.7, 0.7)),
}


@pytest.mark.parametrize("version", [v1, v2], ids=["v1", "v2"])
@pytest.mark.native
@pytest.mark.parametrize("name", FIXED)
def test_a_transform_of_fixed_numbers_gives_torchvisions_pixels(
    tmp_path: Path, name: str, version: object
) -> None:
    images = [oracle.picture(w, h, seed) for seed, (w, h) in enumerate([(251, 187), (64, 64)])]
    for number, image in enumerate(images):
        image.save(tmp_path / f"{number}.png")
    chain = v1.Compose([FIXED[name](version), v1.PILToTensor()])
    plan = recognise(chain)
    assert isinstance(plan, Plan)
    decoder = make_engine(
        NATIVE, FolderStore(tmp_path), plan, EngineOptions(threads=0, ring=SlabRing(2))
    )
    for number, image in enumerate(images):
        made = decoder.submit(np.array([number]), seed=0, epoch=0).result()
        assert isinstance(made, torch.Tensor)
        assert torch.equal(made[0], chain(image))
