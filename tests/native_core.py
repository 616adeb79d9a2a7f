"""Helpers that drive the native core in tests: files, batches, unusual kinds of JPEG."""

from __future__ import annotations

import dataclasses
import io
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from PIL import Image

from fastload import _native

ITEMSIZE = (1, 4, 2, 2)  # of resample/resample.h's data types
BILINEAR = 2

# Which pass of a resize comes first (resample/resample.h), and in the installed Pillow.
HORIZONTAL_FIRST, PILLOW_13, PILLOW_12_2 = range(3)
_PILLOW = tuple(int(part) for part in PIL.__version__.split(".")[:2])
PASS_ORDER = (
    PILLOW_13 if _PILLOW >= (13, 0) else PILLOW_12_2 if _PILLOW >= (12, 2) else HORIZONTAL_FIRST
)


def core() -> Any:
    """The extension module; tests that use it are marked ``native``, so it exists."""
    module = _native.load()
    assert module is not None
    return module


def open_files(
    paths: Sequence[Path | str | bytes], *, mapped: bool | Sequence[bool] = False
) -> Any:
    """The core's Files for these paths."""
    encoded = [os.fsencode(path) for path in paths]
    ends = np.cumsum([len(path) for path in encoded], dtype=np.int64)
    flags = np.empty(len(encoded), np.uint8)
    flags[:] = mapped
    return core().Files(b"".join(encoded), ends, flags)


@dataclasses.dataclass
class Submitted:
    """A job with its outputs."""

    job: Any
    memory: np.ndarray
    status: np.ndarray
    detail: np.ndarray
    shape: tuple[int, int, int, int]

    def wait(self) -> Submitted:
        self.job.wait()
        return self

    @property
    def images(self) -> np.ndarray:
        """(n, h, w, 3) uint8; for batches that were submitted with channels_last."""
        return self.memory.reshape(self.shape)


def fields(files: Any, box: Any, **given: Any) -> dict[str, Any]:
    """Fields of a BatchSpec for crops without resizing; ``given`` replaces defaults."""
    box = np.ascontiguousarray(box, np.int32).reshape(-1, 4)
    n = len(box)
    out_h = given.pop("out_h", int(box[0, 3]) if n else 1)
    out_w = given.pop("out_w", int(box[0, 2]) if n else 1)
    dtype = given.pop("dtype", 0)
    file = np.arange(n, dtype=np.int32) if len(files) == n else np.zeros(n, np.int32)
    found: dict[str, Any] = {
        "file": file,
        "offset": np.zeros(n, np.int64),
        "nbytes": np.full(n, -1, np.int64),
        "kind": np.zeros(n, np.uint8),
        "size": np.zeros((n, 2), np.int32),
        "box": box,
        "resized": np.ascontiguousarray(box[:, 2:]),
        "window": np.zeros((n, 2), np.int32),
        "flip": np.zeros(n, np.uint8),
        "out": np.full(n * 3 * out_h * out_w * ITEMSIZE[dtype], 77, np.uint8),
        "out_h": out_h,
        "out_w": out_w,
        "dtype": dtype,
        "channels_last": True,
        "filter": BILINEAR,
        "order": PASS_ORDER,
        "status": np.full(n, 99, np.int32),
        "detail": np.full(n, 99, np.int32),
        "threads": 1,
    }
    for name, value in given.items():
        default = found.get(name)
        if isinstance(default, np.ndarray) and isinstance(value, (list, tuple, int)):
            value = np.broadcast_to(np.array(value, default.dtype), default.shape).copy()
        found[name] = value
    return found


def start(files: Any, fields: dict[str, Any]) -> Any:
    """The core's job for a BatchSpec with these fields."""
    spec = core().BatchSpec()
    for name, value in fields.items():
        setattr(spec, name, value)
    return core().submit(files, spec)


def submit(files: Any, box: Any, **given: Any) -> Submitted:
    """Submit a batch; by default each box is cropped without a resize, HWC uint8."""
    found = fields(files, box, **given)
    shape = (len(found["box"]), found["out_h"], found["out_w"], 3)
    job = start(files, found)
    return Submitted(job, found["out"], found["status"], found["detail"], shape)


def resample(
    image: np.ndarray, resized: tuple[int, int], window: tuple[int, int], **given: Any
) -> np.ndarray:
    """The status of one image of pixels, (h, w, 3), that the core resizes and cuts.

    ``given``: fields of a BatchSpec, ``out`` among them.
    """
    height, width = image.shape[:2]
    memory = {0: image.reshape(-1)}
    files = core().Files(b"", np.zeros(1, np.int64), np.ones(1, np.uint8), None, memory)
    return (
        submit(
            files,
            [0, 0, width, height],
            kind=_native.RAW,
            nbytes=image.nbytes,
            size=[[width, height]],
            resized=[resized],
            window=[window],
            threads=0,
            **given,
        )
        .wait()
        .status
    )


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """A smooth image with some noise: a JPEG of it uses every coefficient."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    noisy = smooth + rng.integers(-20, 21, (height, width, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def encode(image: Image.Image, format: str = "JPEG", **options: Any) -> bytes:
    """The image's file as Pillow writes it."""
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def pixels(data: bytes) -> np.ndarray:
    """(h, w, 3) uint8: what Pillow, and so torchvision, makes of a file."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def frame(data: bytes) -> int:
    """The offset of a JPEG's frame header (SOF)."""
    at = 2
    while not (0xC0 <= data[at + 1] <= 0xCF and data[at + 1] not in (0xC4, 0xC8, 0xCC)):
        at += 2 + int(struct.unpack(">H", data[at + 2 : at + 4])[0])
    return at


def with_size(data: bytes, width: int, height: int) -> bytes:
    """The JPEG with another size in its frame header."""
    at = frame(data)
    return data[: at + 5] + struct.pack(">HH", height, width) + data[at + 9 :]


def as_440(data: bytes) -> bytes:
    """A 4:4:0 JPEG from a baseline 4:2:2 one: sampling and sides swapped, the same MCUs in order.

    The picture is a jumble, but a valid one; Pillow does not write 4:4:0.
    """
    at = frame(data)
    height, width = struct.unpack(">HH", data[at + 5 : at + 9])
    swapped = bytearray(with_size(data, height, width))
    assert swapped[at + 11] == 0x21
    swapped[at + 11] = 0x12
    return bytes(swapped)


def as_411(data: bytes) -> bytes:
    """A 4:1:1 JPEG from a baseline 4:2:0 one whose sides are multiples of 16; see as_440."""
    at = frame(data)
    height, width = struct.unpack(">HH", data[at + 5 : at + 9])
    swapped = bytearray(with_size(data, width * 2, height // 2))
    assert swapped[at + 11] == 0x22
    swapped[at + 11] = 0x41
    return bytes(swapped)
