"""One image through the core: what a plan makes of it."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from fastload._base import pixel_limit
from fastload._engine.kernel import BatchRequest, Kernel, pixels_as_files
from fastload._transforms.geometry.draws import Numbers
from fastload._transforms.plan import Plan
from fastload._transforms.sample_params import draw


def made(plan: Plan, image: Image.Image, index: int, seed: int = 0, epoch: int = 0) -> torch.Tensor:
    """The sample of an RGB image, with the random numbers that record ``index`` has."""
    files, spans, kinds, sizes = pixels_as_files([np.array(image)])
    indices = np.array([index])
    geometry, params = draw(plan, sizes, Numbers(seed=seed, epoch=epoch, indices=indices))
    images = torch.empty((1, plan.channels, geometry.out_h, geometry.out_w), dtype=plan.dtype)
    batch = BatchRequest(
        records=indices,
        spans=spans,
        kinds=kinds,
        sizes=sizes,
        geometry=geometry,
        params=params,
        images=images,
        memory=images.view(-1).view(torch.uint8).numpy(),
        most_pixels=pixel_limit.UNLIMITED,
    )
    status = np.zeros(1, np.int32)
    Kernel(plan).submit(files, batch, status, threads=0).wait()
    assert status.tolist() == [0]
    return images[0]
