"""any-dataset: FastLoader and DataLoader over the same dataset, in turn."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench import data
from bench import datasets as own
from bench.datasets import (
    Given,
    Nested,
    Ready,
    Stream,
    cifar,
    small_transform,
    train_transform,
)
from bench.report import TIMES, Row
from bench.suites.base import Figures, Options, Suite
from bench.suites.pairs import compare

_Make = Callable[[Options], Any]


@dataclasses.dataclass(frozen=True)
class Configuration:
    """A loader as users write it.

    ``make`` makes its dataset, or what is given to both loaders. ``workers`` None: ``--threads``.
    ``more``: further arguments, made of the dataset; without a sampler it is shuffled.
    ``persistent``: whether worker processes outlive an epoch.
    """

    name: str
    make: _Make
    batch: int = 64
    workers: int | None = None
    more: Callable[[Any], dict[str, Any]] = lambda dataset: {"shuffle": True}
    persistent: bool = True

    def compare(self, workers: int, options: Options, **facts: Any) -> Row:
        """The row of both loaders."""
        made = self.make(options)
        given = made if isinstance(made, Given) else Given(made, **self.more(made))
        images = len(getattr(given.dataset, "dataset", given.dataset))  # a stream's, a subset's
        how = {"batch": self.batch, "persistent": self.persistent, "images": images}
        return compare(given, options, workers=workers, **how, **facts)


def _files(kind: Callable[[list[Path]], Any], count: int = 384, small: bool = False) -> _Make:
    """A dataset of ``count`` JPEG files; ``small``: of 32 x 32 pixels."""

    def make(options: Options) -> Any:
        return kind(data.files(_jpegs(options, count, small))[: 24 if options.toy else count])

    return make


def _jpegs(options: Options, count: int, small: bool = False) -> Path:
    many = 48 if options.toy else count if small else 1200
    given = options.data
    return data.jpegs(options.cache, data=given, count=many, small=small, say=options.say)


def _with_masks(options: Options) -> Any:
    dataset = _files(own.Segmented)(options)
    masks = data.masks(options.cache, _jpegs(options, 384), say=options.say)
    dataset.masks = data.files(masks)
    return dataset


def _trained(files: list[Path], views: int = 1) -> Any:
    return own.Trained(files, train_transform(), views)


def _hugging_face(files: list[Path]) -> Given:
    """As people write it, and as fastload's documentation says."""
    dataset = own.hugging_face(files)
    theirs = dataset.with_transform(own.transformed)
    return Given(dataset, theirs=theirs, ours={"transform": train_transform()}, shuffle=True)


def _samples(kind: Callable[[int], Any], count: int, toy: int = 100) -> _Make:
    return lambda options: kind(toy if options.toy else count)


_OWN = {
    each.name: each
    for each in (
        Configuration("pil", _files(own.Photos)),
        Configuration("train", _files(_trained, 700)),
        Configuration("new-workers", _files(_trained, 700), persistent=False),
        Configuration(
            "stream", _files(lambda files: Stream(_trained(files)), 700), more=lambda dataset: {}
        ),
        Configuration("two-views", _files(functools.partial(_trained, views=2))),
        Configuration(
            "ten-crops", _files(lambda files: own.Trained(files, own.ten_crops()), 96), batch=16
        ),
        Configuration("image-and-mask", _with_masks),
        Configuration("numpy", _files(own.Arrays)),
        Configuration("albumentations", _files(functools.partial(own.Albumented, cv2=False))),
        Configuration("cv2", _files(functools.partial(own.Albumented, cv2=True))),
        Configuration(
            "small-jpegs",
            _files(lambda files: own.Trained(files, small_transform()), 4096, small=True),
            batch=128,
        ),
        Configuration("huggingface", _files(_hugging_face)),
        Configuration("arrays", _samples(Ready, 1536, 24), batch=256),
        Configuration("nested", _samples(Nested, 4096, 24), batch=128),
        Configuration("cifar", _samples(cifar, 10_000, 24), batch=256),
        Configuration("mnist", _samples(own.mnist, 10_000, 24), batch=256),
        Configuration("tensors", _samples(own.tensors, 10_000, 24), batch=256),
    )
}
_IN_MEMORY = ("arrays", "nested", "cifar", "mnist", "tensors")
_NEEDS = {"albumentations": ("albumentations",), "cv2": ("albumentations", "cv2")}


class AnyDataset(Suite):
    name = "any-dataset"
    summary = "a user's own datasets and datasets in memory: FastLoader against DataLoader"
    variants = {name: {} for name in _OWN}

    def run(self, variant: str, options: Options) -> list[Row]:
        facts: dict[str, Any] = {"suite": self.name, "variant": variant}
        absent = [name for name in _NEEDS.get(variant, ()) if find_spec(name) is None]
        if absent:
            figures = Figures(options, ((TIMES, "x", ""),), **facts)
            reason = f"{' and '.join(absent)} not installed: pip install albumentations"
            figures.none("fastload", reason)
            return figures.rows
        facts["data"] = "given" if options.data and variant not in _IN_MEMORY else "made"
        counts = (0, options.threads) if _OWN[variant].persistent else (options.threads,)
        return [
            _OWN[variant].compare(workers, options, loader="fastload", **facts)
            for workers in counts
        ]
