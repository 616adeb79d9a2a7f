"""Whether a loader does the whole work: one epoch of its output against torchvision's."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.loaders.base import Batch, Loader
from bench.workload import MEAN, STD, Workload

_SAMPLED = 256  # images for mean and deviation
_FILE = "expected.npz"


class WrongOutput(Exception):
    """A loader's batches are not what the workload asks for."""


def check(loader: Loader, work: Workload, expected: str) -> dict[str, Any]:
    """Read one epoch of an open loader, compare it with a ``reference``; what to report of it.

    Raises WrongOutput: a batch of another shape, dtype or layout; labels or pixel statistics that
    are not the data's; an epoch that leaves samples out or, shuffled, comes in file order.
    """
    samples, classes = work.samples()
    first: Batch | None = None
    counted = collections.Counter[int]()
    moments: list[torch.Tensor] = []  # (2, 3) of each batch: the mean, and that of the squares
    for images, labels in loader.epoch():
        images, labels = images.cpu(), labels.cpu()
        _check_batch((images, labels), loader, work, len(classes))
        if labels.ndim == 1:
            counted.update(labels.tolist())
        pixels = _zero_to_one(images)
        moments.append(torch.stack([x.mean(dim=(0, 2, 3)) for x in (pixels, pixels.square())]))
        first = first or (images.clone(), labels.clone())
    if first is None:
        raise WrongOutput("an epoch has no batch")
    _check_epoch(len(moments) * work.batch, counted, first[1], work)
    mean, power = torch.stack(moments).mean(dim=0)
    std = (power - mean.square()).clamp(min=0).sqrt()
    report: dict[str, Any] = {
        what: [round(float(value), 4) for value in values]
        for what, values in (("mean", mean), ("std", std))
    }
    with np.load(expected) as truth:
        for what in ("mean", "std"):
            off = np.abs(np.array(report[what]) - truth[what]).max()
            if what == "std" and work.recipe == "train-mixup":
                continue  # mixing moves pixels towards the mean
            # Random crops of few images differ by more than those of many.
            if off > (0.15 if work.shuffled and len(samples) < 300 else 0.05):
                raise WrongOutput(
                    f"{what} of the pixels is {report[what]}, not {truth[what].round(4).tolist()}"
                )
        if work.recipe == "eval" and loader.ordered:
            report["levels_off"] = _difference(*first, truth["images"], truth["labels"])
    return report


def _check_batch(batch: Batch, loader: Loader, work: Workload, classes: int) -> None:
    images, labels = batch
    shape = (work.batch, 3, work.size, work.size)
    dtype = {"float32": torch.float32, "uint8": torch.uint8}[work.dtype]
    if tuple(images.shape) != shape or images.dtype != dtype:
        raise WrongOutput(
            f"expected images {shape} {dtype}, got {tuple(images.shape)} {images.dtype}"
        )
    layout = loader.layout or work.memory_format
    formats = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
    if not images.is_contiguous(memory_format=formats[layout]):
        raise WrongOutput(f"expected {layout} images, got strides {images.stride()}")
    pixels = _zero_to_one(images)
    if float(pixels.min()) < -0.01 or float(pixels.max()) > 1.01:
        raise WrongOutput(
            f"pixels from {float(pixels.min()):.3f} to {float(pixels.max()):.3f}, not 0 to 1, "
            "after normalisation is undone"
        )
    if len(images) > 1 and torch.equal(images[0], images[1]):
        raise WrongOutput("two samples of a batch are the same")
    if work.recipe == "train-mixup":
        _check_mixed(labels, work, classes)
    elif tuple(labels.shape) != (work.batch,) or labels.dtype != torch.int64:
        raise WrongOutput(
            f"expected labels ({work.batch},) int64, got {tuple(labels.shape)} {labels.dtype}"
        )
    elif int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise WrongOutput(f"labels outside 0..{classes - 1}")


def _check_mixed(labels: torch.Tensor, work: Workload, classes: int) -> None:
    if tuple(labels.shape) != (work.batch, classes) or not labels.is_floating_point():
        raise WrongOutput(
            f"expected labels ({work.batch}, {classes}) of floating point, got "
            f"{tuple(labels.shape)} {labels.dtype}"
        )
    if float((labels.sum(dim=1) - 1).abs().max()) > 1e-5 or float(labels.min()) < 0:
        raise WrongOutput("shares of labels that do not add up to 1")


def _check_epoch(
    images: int, counted: collections.Counter[int], first: torch.Tensor, work: Workload
) -> None:
    labels = [label for _, label in work.samples()[0]]
    expected = len(labels) // work.batch * work.batch
    # A loader whose workers each drop their own last batch may miss one per worker.
    if not expected - work.threads * work.batch <= images <= len(labels):
        raise WrongOutput(f"an epoch has {images} images, not {expected}")
    if extra := counted - collections.Counter(labels):
        raise WrongOutput(f"labels come more often than the data has them: {dict(extra)}")
    if work.shuffled and len(set(labels)) > 1 and len(labels) > 2 * work.batch:
        if first.tolist() == sorted(first.tolist()):
            raise WrongOutput("a shuffled epoch comes in the order of the files")


def _difference(
    images: torch.Tensor, labels: torch.Tensor, expected: np.ndarray, expected_labels: np.ndarray
) -> float:
    """Mean absolute difference from Pillow's result in grey levels, over the first batch."""
    if not np.array_equal(labels.numpy(), expected_labels):
        raise WrongOutput("the first batch in order has other labels than the files")
    ours = 255 * _zero_to_one(images).numpy()
    levels = float(np.abs(ours - expected).mean())
    if levels > 12:
        raise WrongOutput(f"the first batch is {levels:.1f} grey levels from torchvision's")
    return round(levels, 2)


def _zero_to_one(images: torch.Tensor) -> torch.Tensor:
    if images.dtype == torch.uint8:
        return images.float() / 255
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (MEAN, STD))
    return images.float() * std + mean


def reference(work: Workload) -> Path:
    """torchvision's output for ``work`` as an .npz file: made now, or by an earlier run.

    It holds "mean" and "std" of the pixels per channel (0 to 1), and for "eval" the first batch as
    "images" (n, 3, size, size) uint8 with its "labels".

    Never made in a loader's process: TensorFlow and torchvision end a process that loads both (two
    copies of LLVM).
    """
    from bench.data import filled

    key = [work.images, work.recipe, work.size, work.resize, work.batch]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]

    def make(folder: Path) -> None:
        np.savez(folder / _FILE, **_compute(dataclasses.replace(work, dtype="uint8")))

    return filled(Path(work.stores) / f"reference-{digest}", make) / _FILE


def _compute(work: Workload) -> dict[str, Any]:
    from PIL import Image

    from bench.loaders._torchvision import transforms_v1

    transform = transforms_v1(work)

    def output(path: str) -> np.ndarray:
        with Image.open(path) as picture:
            pixels: np.ndarray = transform(picture.convert("RGB")).numpy()
        return pixels

    samples, _ = work.samples()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        some = [output(path) / 255 for path, _ in samples[:: 1 + len(samples) // _SAMPLED]]
    mean = np.mean([image.mean(axis=(1, 2)) for image in some], axis=0)
    power = np.mean([(image**2).mean(axis=(1, 2)) for image in some], axis=0)
    expected = {"mean": mean, "std": np.sqrt(power - mean**2)}
    if not work.shuffled:
        expected["images"] = np.stack([output(path) for path, _ in samples[: work.batch]])
        expected["labels"] = np.array([label for _, label in samples[: work.batch]])
    return expected
