"""The interface of a suite, and what all suites share."""

from __future__ import annotations

import abc
import dataclasses
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from bench.data import Images
from bench.loaders import WHERE
from bench.process import Failed, Refused, loading
from bench.report import Row, row
from bench.workload import Workload

T = TypeVar("T")

Metrics = tuple[tuple[str, str, str], ...]
"""Figures of a measurement: metric, unit, and the key of its values."""

RATE: Metrics = (("throughput", "images/s", "images_per_s"),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command line.

    Attributes:
        data: folder of images; None lets the suite make its own.
        loaders: names, in the order of the rows.
        threads: threads or worker processes of each loader.
        rounds: how often each loader is measured.
        seconds: shortest time of one measurement; whole epochs are run.
        toy: the smallest size at which everything still runs.
        cache: folder for images and packed stores.
        say: prints a line for the user.
        machine: added to each row.
        tries: how many of its settings each loader tries; None: all.
        repos: folder with checkouts of public scripts; only the suite scripts needs one.
    """

    threads: int
    toy: bool
    cache: Path
    say: Callable[[str], None]
    machine: dict[str, Any]
    data: str | None = None
    loaders: tuple[str, ...] = ()
    rounds: int = 5
    seconds: float = 2.0
    tries: int | None = None
    repos: Path | None = None

    @property
    def images(self) -> Images:
        return Images(self.cache, self.say)


class Suite(abc.ABC):
    """A workload, and the measurements on it.

    Attributes:
        name, summary: for the command line.
        variants: by name, what of its ``Workload`` is not the default.
        loaders: those that may be asked for; all of them take part by default.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    variants: ClassVar[dict[str, dict[str, str]]]
    loaders: ClassVar[tuple[str, ...]] = tuple(WHERE)

    @abc.abstractmethod
    def run(self, variant: str, options: Options) -> list[Row]:
        """Measure one variant."""

    def work(
        self,
        variant: str,
        options: Options,
        *,
        images: str = "photos",
        recipe: str = "train",
        count: int | None = None,
    ) -> Workload:
        """The workload of a variant.

        ``images``: "photos", "large" (of 12 megapixels, always made here), or "small" (32 x 32),
        which have a ``recipe`` of their own. ``count``: of images; None: what the kind has.
        """
        many, size, batch = (_TOYS if options.toy else _IMAGES)[images]
        pixels = self.variants[variant].get("pixels", "jpeg")
        if images == "large":
            folder = options.images.large(toy=options.toy)
        else:
            many = many if options.toy or count is None else count
            folder = options.images.jpegs(many, small=images == "small", given=options.data)
        if pixels != "jpeg":
            # Raw photos are resized to the side from which crops are cut.
            shorter = _RESIZE[size] if (pixels, images) == ("raw", "photos") else None
            folder = options.images.converted(folder, pixels, shorter=shorter)
        return Workload(
            suite=self.name,
            variant=variant,
            images=str(folder),
            recipe="small" if images == "small" else recipe,
            size=size,
            resize=_RESIZE[size],
            batch=batch,
            threads=options.threads,
            stores=str(options.cache / "stores"),
            **self.variants[variant],
        )


# By kind: how many images, the side of the output, images in a batch; the same of a toy run.
_IMAGES = {"photos": (1200, 224, 64), "large": (64, 224, 16), "small": (10_000, 32, 256)}
_TOYS = {"photos": (48, 224, 8), "large": (16, 224, 4), "small": (200, 32, 32)}
_RESIZE = {224: 256, 32: 32}
"""The shorter side before crops are cut, of ``imagenet-eval`` and of raw photos."""


class Figures:
    """The rows of one variant: figures in the order in which they come, then who has none.

    ``metrics``: what each measurement has. ``facts``: further fields of every row.
    """

    def __init__(self, options: Options, metrics: Metrics = RATE, **facts: Any) -> None:
        self._options = options
        self._metrics = metrics
        self._facts = {
            "warmup_s": options.seconds,
            "round_s": options.seconds,
            **options.machine,
            **facts,
        }
        self._rows: list[Row] = []

    @classmethod
    def of(cls, work: Workload, options: Options, metrics: Metrics = RATE, **facts: Any) -> Figures:
        of_work = {
            "suite": work.suite,
            "variant": work.variant,
            "threads": work.threads,
            "batch": work.batch,
            "dtype": work.dtype,
            "images": len(work.samples()[0]),
            "data": "given" if options.data else "made",
        }
        return cls(options, metrics, **{**of_work, **facts})

    @property
    def rows(self) -> list[Row]:
        return sorted(self._rows, key=lambda row: row["median"] is None)

    def in_turn(
        self, names: Iterable[str], measure: Callable[[str], T], rounds: int | None = None
    ) -> dict[str, list[T]]:
        """What ``measure`` gives for each name, by round; each round has an order of its own.

        A machine that gets slower or faster treats all alike; ratios are of neighbours in time. A
        loader that refuses or fails drops out. ``rounds`` None: those of the command line.
        """
        found: dict[str, list[T]] = {name: [] for name in names}
        order = list(found)
        for _ in range(self._options.rounds if rounds is None else rounds):
            for name in order:
                try:
                    found[name].append(measure(name))
                except (Refused, Failed) as error:
                    del found[name]
                    self._failed(name, error)
            order = random.sample(list(found), len(found))
        return found

    def prepared(self, work: Workload) -> dict[str, dict[str, Any]]:
        """What the worker's ``prepare`` says of each loader that can do ``work``."""

        def prepare(name: str) -> dict[str, Any]:
            with loading(name, work) as process:
                done: dict[str, Any] = process.call("prepare")
                return done

        found = self.in_turn(self._options.loaders, prepare, 1)
        return {name: done for name, (done,) in found.items()}

    def add_all(self, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Add the metrics of what was found by loader and round."""
        for metric, unit, key in self._metrics:
            for name, rounds in found.items():
                self.add(name, [each[key] for each in rounds], metric, unit)

    def add(
        self,
        loader: str,
        values: Sequence[float],
        metric: str = "throughput",
        unit: str = "images/s",
        **facts: Any,
    ) -> None:
        """Add a figure, of one value for each round."""
        what = {"metric": metric, "unit": unit, **self._facts, **facts}
        self._rows.append(row(loader=loader, values=values, **what))

    def none(self, loader: str, reason: str) -> None:
        metric, unit, _ = self._metrics[0]
        self.add(loader, (), metric, unit, reason=reason)

    def _failed(self, name: str, error: Refused | Failed) -> None:
        """Note it, and show what its process said when it failed."""
        if isinstance(error, Failed):
            tail = "\n".join(error.log.splitlines()[-12:])
            self._options.say(f"{name} failed: {error}\n{tail}")
            self.none(name, f"failed: {error}")
        else:
            self.none(name, str(error))
