"""The interface of a suite, and what all suites share."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from bench import data
from bench.loaders import WHERE
from bench.process import Failed, Process, Refused
from bench.report import Row, row
from bench.workload import Workload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command line.

    Attributes:
        data: folder of images; None lets the suite make its own.
        loaders: names, in the order of the first round.
        threads: threads or worker processes of each loader.
        rounds: how often each loader is measured.
        seconds: shortest time of one measurement; whole epochs are run.
        toy: the smallest size at which everything still runs.
        cache: folder for images and packed stores.
        say: prints a line for the user.
        machine: added to each row.
        tries: how many of its settings each loader tries; None: all.
        tuned: by loader, the setting that an earlier run found to be its best; others are tried.
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
    tuned: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    repos: Path | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """One column of a suite.

    Attributes:
        pixels, dtype, memory_format: as in ``Workload``.
    """

    pixels: str = "jpeg"
    dtype: str = "float32"
    memory_format: str = "contiguous"


class Suite(abc.ABC):
    """A workload, and the measurements on it."""

    name: ClassVar[str]
    summary: ClassVar[str]
    variants: ClassVar[dict[str, Variant]]

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
        spec, kind, toy = self.variants[variant], _IMAGES[images], options.toy
        if images == "large":
            folder = data.large(options.cache, toy=toy, say=options.say)
        else:
            folder = data.jpegs(
                options.cache,
                data=options.data,
                count=kind.toy_count if toy else count or kind.count,
                small=images == "small",
                say=options.say,
            )
        if spec.pixels == "raw":  # photos are resized to the side from which crops are cut
            shorter = kind.resize if images == "photos" else None
            folder = data.raw(options.cache, folder, shorter=shorter, say=options.say)
        elif spec.pixels != "jpeg":
            folder = data.converted(options.cache, folder, suffix=spec.pixels, say=options.say)
        return Workload(
            suite=self.name,
            variant=variant,
            images=str(folder),
            pixels=spec.pixels,
            recipe="small" if images == "small" else recipe,
            size=kind.size,
            resize=kind.resize,
            batch=kind.toy_batch if toy else kind.batch,
            threads=options.threads,
            dtype=spec.dtype,
            memory_format=spec.memory_format,
            stores=str(options.cache / "stores"),
        )

    def known(self) -> tuple[str, ...]:
        """The loaders that may be asked for; all of them take part by default."""
        return tuple(WHERE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Images:
    """A kind of images: how many, what is made of them, and the same numbers of a toy run."""

    count: int
    size: int
    resize: int
    batch: int
    toy_count: int
    toy_batch: int


_IMAGES = {
    "photos": _Images(count=1200, size=224, resize=256, batch=64, toy_count=48, toy_batch=8),
    "large": _Images(count=64, size=224, resize=256, batch=16, toy_count=16, toy_batch=4),
    "small": _Images(count=10_000, size=32, resize=32, batch=256, toy_count=200, toy_batch=32),
}


class Figures:
    """The rows of one variant: figures in the order in which they come, then who has none.

    ``facts``: further fields of every row.
    """

    def __init__(self, work: Workload, options: Options, **facts: Any) -> None:
        self._options = options
        self._facts = {
            "suite": work.suite,
            "variant": work.variant,
            "threads": work.threads,
            "batch": work.batch,
            "dtype": work.dtype,
            "images": len(work.samples()[0]),
            "data": "given" if options.data else "made",
            "warmup_s": options.seconds,
            "round_s": options.seconds,
            **options.machine,
            **facts,
        }
        self._measured: list[Row] = []
        self._absent: list[Row] = []

    @property
    def rows(self) -> list[Row]:
        return [*self._measured, *self._absent]

    def add(
        self,
        loader: str,
        metric: str,
        unit: str,
        values: Sequence[float],
        setting: dict[str, Any] | None = None,
        **facts: Any,
    ) -> None:
        """Add a figure, of one value for each round."""
        what = {"metric": metric, "unit": unit, **self._facts, **facts}
        self._measured.append(row(loader=loader, values=values, setting=setting, **what))

    def in_turn(
        self,
        names: Sequence[str],
        metrics: Sequence[tuple[str, str, str]],
        measure: Callable[[Process, int], Mapping[str, float]],
        first: int = 0,
    ) -> None:
        """Add figures (metric, unit, key) of what ``measure`` gives, by key, in each round.

        Each time it is given a new process and the number of the round. Loaders take turns; one
        that refuses or fails drops out. Round 0, if it is the ``first``, counts for nothing.
        """
        found: dict[str, list[Mapping[str, float]]] = {name: [] for name in names}
        for number in range(first, self._options.rounds + 1):
            for name in list(found):
                rounds = found.pop(name)
                with self.process(name, *metrics[0][:2]) as process:
                    took = measure(process, number)
                    found[name] = [*rounds, *[took] * (number > 0)]
            self._options.say(f"round {number} of {self._options.rounds} done")
        for metric, unit, key in metrics:
            for name, rounds in found.items():
                self.add(name, metric, unit, [each[key] for each in rounds])

    @contextlib.contextmanager
    def process(
        self, name: str, metric: str = "throughput", unit: str = "images/s"
    ) -> Iterator[Process]:
        """The process of a loader, which ends with the block.

        If it refuses or fails, the block ends there, and its row says why.
        """
        with Process(name) as process:
            try:
                yield process
            except (Refused, Failed) as error:
                self.none(name, error, metric, unit)

    def none(
        self, name: str, error: Refused | Failed, metric: str = "throughput", unit: str = "images/s"
    ) -> None:
        """Say why a loader has no figure, and show what its process said when it failed."""
        reason = str(error)
        if isinstance(error, Failed):
            reason = f"failed: {reason}"
            tail = "\n".join(error.log.splitlines()[-12:])
            self._options.say(f"{name} failed: {error}\n{tail}")
        what = {"metric": metric, "unit": unit, "reason": reason, **self._facts}
        self._absent.append(row(loader=name, **what))
