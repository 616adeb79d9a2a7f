"""The interface of a suite, and what all suites share."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from bench import data
from bench.loaders import WHERE
from bench.process import Failed, Process, Refused
from bench.report import Row, missing
from bench.workload import Workload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command line.

    Attributes:
        data: folder or archive of images; None lets the suite make its own.
        loaders: names, in the order of the first round.
        threads: threads or worker processes of each loader.
        rounds: how often each loader is measured.
        seconds: shortest time of one measurement; whole epochs are run.
        toy: the smallest size at which everything still runs.
        cache: folder for images and packed stores.
        fresh: pack again what an earlier run packed.
        say: prints a line for the user.
        machine: added to each row.
        tries: how many of its settings each loader tries; None: all.
        tuned: by loader, the setting that an earlier run found to be its best; others are tried.
        repos: folder with checkouts of public scripts; only the suite scripts needs one.
    """

    data: str | None
    loaders: tuple[str, ...]
    threads: int
    rounds: int
    seconds: float
    toy: bool
    cache: Path
    fresh: bool
    say: Callable[[str], None]
    machine: dict[str, Any]
    tries: int | None = None
    tuned: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    repos: Path | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """One column of a suite.

    Attributes:
        pixels, dtype, memory_format: as in ``Workload``.
        only_dct: leaves out fastload's other stores.
        square: raw images are cut to squares, so that all are of one size.
    """

    pixels: str = "jpeg"
    dtype: str = "float32"
    memory_format: str = "contiguous"
    only_dct: bool = False
    square: bool = False


class Suite(abc.ABC):
    """A workload, and the measurements on it."""

    name: ClassVar[str]
    summary: ClassVar[str]
    variants: ClassVar[dict[str, Variant]]

    @abc.abstractmethod
    def run(self, variant: str, options: Options) -> list[Row]:
        """Measure one variant."""

    def known(self) -> tuple[str, ...]:
        """The loaders that may be asked for; all of them take part by default."""
        return tuple(WHERE)

    def loaders(self, variant: str, options: Options) -> list[str]:
        """The loaders that take part."""
        dct = self.variants[variant].only_dct
        return [
            name
            for name in options.loaders
            if not dct or not name.startswith("fastload") or name.endswith("dct")
        ]

    def facts(self, work: Workload, options: Options) -> dict[str, Any]:
        """The fields of every row beside its figure."""
        samples, _ = work.samples()
        return {
            "threads": work.threads,
            "batch": work.batch,
            "dtype": work.dtype,
            "images": len(samples),
            "data": "given" if options.data else "made",
            "warmup_s": options.seconds,
            "round_s": options.seconds,
            **options.machine,
        }


def imagenet(
    name: str, recipe: str, variant: str, spec: Variant, options: Options, *, count: int = 1200
) -> Workload:
    """The workload of ``count`` photos to 224 x 224, batch 64."""
    count = 48 if options.toy else count
    images = data.jpegs(options.cache, data=options.data, count=count, small=False, say=options.say)
    images = _as_pixels(images, spec, options, shorter=256)
    return Workload(
        suite=name,
        variant=variant,
        images=str(images),
        pixels=spec.pixels,
        recipe=recipe,
        size=224,
        resize=256,
        batch=8 if options.toy else 64,
        threads=options.threads,
        dtype=spec.dtype,
        memory_format=spec.memory_format,
        stores=str(options.cache / "stores"),
    )


def large(name: str, variant: str, options: Options) -> Workload:
    """The training workload on photos of 12 megapixels, which are made here; batch 16."""
    images = data.large(options.cache, toy=options.toy, say=options.say)
    return Workload(
        suite=name,
        variant=variant,
        images=str(images),
        pixels="jpeg",
        recipe="train",
        size=224,
        resize=256,
        batch=4 if options.toy else 16,
        threads=options.threads,
        dtype="float32",
        memory_format="contiguous",
        stores=str(options.cache / "stores"),
    )


def small(name: str, variant: str, spec: Variant, options: Options) -> Workload:
    """The workload of 32 x 32 images, batch 256."""
    count = 200 if options.toy else 10_000
    images = data.jpegs(options.cache, data=options.data, count=count, small=True, say=options.say)
    images = _as_pixels(images, spec, options, shorter=None)
    return Workload(
        suite=name,
        variant=variant,
        images=str(images),
        pixels=spec.pixels,
        recipe="small",
        size=32,
        resize=32,
        batch=32 if options.toy else 256,
        threads=options.threads,
        dtype=spec.dtype,
        memory_format=spec.memory_format,
        stores=str(options.cache / "stores"),
    )


def _as_pixels(images: Path, spec: Variant, options: Options, *, shorter: int | None) -> Path:
    """The folder of JPEGs as the variant's kind of files; raw ones are resized to ``shorter``."""
    if spec.pixels == "raw":
        return data.raw(options.cache, images, shorter=shorter, say=options.say, square=spec.square)
    if spec.pixels == "jpeg":
        return images
    return data.converted(options.cache, images, suffix=spec.pixels, say=options.say)


class Absent:
    """Makes rows with a reason for what a loader cannot do."""

    def __init__(self, work: Workload, options: Options, **facts: Any) -> None:
        self.rows: list[Row] = []
        self._work, self._options, self._facts = work, options, facts

    def note(self, loader: str, error: Refused | Failed, process: Process, **what: str) -> None:
        """Remember that ``loader`` has no figure, and show what it said when it failed."""
        reason = str(error)
        if isinstance(error, Failed):
            reason = f"failed: {reason}"
            tail = "\n".join(process.log().splitlines()[-12:])
            self._options.say(f"{loader} failed: {error}\n{tail}")
        found = missing(
            suite=self._work.suite,
            variant=self._work.variant,
            loader=loader,
            reason=reason,
            **what,
            **self._facts,
        )
        self.rows.append(found)
