"""Small pictures of noise, and their files."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


def picture(width: int = 40, height: int = 30, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def pixels(image: Image.Image) -> Any:
    return np.asarray(image).tolist()
