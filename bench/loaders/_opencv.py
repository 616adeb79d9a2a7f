"""simplejpeg and OpenCV: the fastest way to decode one image in Python today.

Several peers read bytes and leave decoding to the user; this is the fastest code for that.
Decoding is exact (no DCT scaling), resizing is OpenCV's linear, which does not antialias: faster
and a little rougher than Pillow's.
"""

from __future__ import annotations

import math
import random
from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch

from bench.workload import MEAN, STD, Workload

cv2.setNumThreads(0)  # the loaders bring their own

_SCALE = [1 / (255 * std) for std in STD]
_SHIFT = [-mean / std for mean, std in zip(MEAN, STD, strict=True)]
_TABLE = np.stack(
    [np.arange(256) * scale + shift for scale, shift in zip(_SCALE, _SHIFT, strict=True)], axis=-1
).astype(np.float32)[None]


def decode(data: bytes | memoryview) -> np.ndarray:
    """uint8 HWC RGB from an image file's bytes."""
    if bytes(data[:2]) == b"\xff\xd8":
        return simplejpeg.decode_jpeg(data, colorspace="RGB")
    picture: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    return cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)


def augment(image: np.ndarray, work: Workload) -> np.ndarray:
    """uint8 HWC of the workload's size: crop, resize and flip."""
    size = work.size
    if work.recipe == "train":
        x, y, w, h = random_resized_crop(image.shape[1], image.shape[0])
        image = cv2.resize(image[y : y + h, x : x + w], (size, size))
    elif work.recipe == "eval":
        height, width = image.shape[:2]
        scale = work.resize / min(height, width)
        resized = (max(work.resize, int(width * scale)), max(work.resize, int(height * scale)))
        image = cv2.resize(image, resized)
        x, y = round((resized[0] - size) / 2), round((resized[1] - size) / 2)
        return image[y : y + size, x : x + size]
    else:
        image = cv2.copyMakeBorder(image, 4, 4, 4, 4, cv2.BORDER_CONSTANT, value=0)
        x, y = random.randint(0, 8), random.randint(0, 8)
        image = image[y : y + size, x : x + size]
    return cv2.flip(image, 1) if random.random() < 0.5 else image


def write(image: np.ndarray, out: np.ndarray) -> None:
    """``image`` (uint8 HWC) into ``out``: (3, h, w) of either layout, uint8 or normalised."""
    if out.dtype == np.uint8:
        np.copyto(out, image.transpose(2, 0, 1))
        return
    if not out[0].flags.c_contiguous:  # channels_last
        cv2.LUT(image, _TABLE, dst=out.transpose(1, 2, 0))
        return
    for channel, plane in enumerate(cv2.split(image)):
        # addWeighted is the fastest way to scale, shift and widen in one pass
        # (224 x 224 x 3: 31 us, a lookup table 46, NumPy 50, blobFromImage 440).
        cv2.addWeighted(
            plane, _SCALE[channel], plane, 0, _SHIFT[channel], dst=out[channel], dtype=cv2.CV_32F
        )


def finish(data: bytes, work: Workload, out: np.ndarray) -> None:
    """One sample out of a file's bytes, as ``write`` does."""
    write(augment(decode(data), work), out)


def sample(data: bytes, work: Workload) -> torch.Tensor:
    """One finished sample (3, size, size) out of a file's bytes."""
    out = np.empty((3, work.size, work.size), work.dtype)
    finish(data, work, out)
    return torch.from_numpy(out)


class Finish:
    """Makes a finished image and its label of a peer's sample, in the process where it is called.

    ``label`` is where the sample has its label.
    """

    def __init__(self, work: Workload, label: str = "label") -> None:
        self._work, self._label = work, label

    def __call__(self, from_peer: Any) -> tuple[torch.Tensor, int]:
        return sample(from_peer["image"], self._work), int(from_peer[self._label])


def empty(work: Workload, count: int) -> torch.Tensor:
    """Memory for so many finished samples: (count, 3, size, size) of the workload's layout."""
    channels_last = work.memory_format == "channels_last"
    return torch.empty(
        (count, 3, work.size, work.size),
        dtype=getattr(torch, work.dtype),
        memory_format=torch.channels_last if channels_last else torch.contiguous_format,
    )


def random_resized_crop(width: int, height: int) -> tuple[int, int, int, int]:
    """x, y, w, h as torchvision's RandomResizedCrop draws them at its defaults."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    w = min(width, round(height * 4 / 3))
    h = min(height, round(width * 4 / 3))
    return (width - w) // 2, (height - h) // 2, w, h
