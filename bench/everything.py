"""All suites in one run of half an hour: their variants, loaders and rounds."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path

from bench import report
from bench.loaders import WHERE
from bench.report import Row
from bench.suites import SUITES
from bench.suites.base import Options

_OURS = tuple(name for name in WHERE if name.startswith("fastload"))

# Loaders that were fastest somewhere, or represent a kind: at least eight in every race. The
# others (variations of torch's DataLoader, and of shards read in sequence) take part in one suite;
# `python -m bench run` measures all of them in each.
_PEERS = (
    "torch-pil",
    "threads-simplejpeg",
    "ffcv",
    "ffcv-channels-last",
    "dali",
    "spdl",
    "hf-datasets",
    "grain",
    "tf-data",
)
_MATRIX = (*_OURS, *_PEERS)
_ALL_FILES = (*_MATRIX, "torch-v2", "torch-lmdb", "litdata")
_RAW = (*_MATRIX, "torch-memmap", "torch-array")
_PACKED = (*_MATRIX, "torch-lmdb", "webdataset", "streaming", "litdata", "torch-memmap")

# Settings that each loader tries, the most promising first. The gain from more of them is smaller
# than the difference between rounds.
_TRIES = 2


@dataclasses.dataclass(frozen=True)
class Part:
    """One variant of one suite, with ``loaders``.

    ``rounds``, ``seconds``: as for ``python -m bench run``. ``tuned_by``: (suite, variant) whose
    settings are taken over; None: each loader tries its own.
    """

    suite: str
    variant: str
    rounds: int
    seconds: float = 1.0
    tuned_by: tuple[str, str] | None = None
    loaders: tuple[str, ...] = _MATRIX


_TRAIN = ("imagenet-train", "float32")
_RAW_TRAIN = ("raw-train", "float32")

PLAN = (
    Part(*_TRAIN, rounds=4, loaders=_ALL_FILES),
    Part("imagenet-train", "uint8", rounds=3, tuned_by=_TRAIN),
    Part("imagenet-eval", "float32", rounds=3, tuned_by=_TRAIN),
    Part("small-images", "jpeg", rounds=5, seconds=0.7),
    Part("small-images", "raw", rounds=5, seconds=0.7, loaders=_RAW),
    Part(*_RAW_TRAIN, rounds=3, loaders=_RAW),
    Part("raw-train", "channels_last", rounds=3, tuned_by=_RAW_TRAIN, loaders=_RAW),
    Part("pack", "photos", rounds=1, loaders=_PACKED),
    Part("startup", "float32", rounds=2),
    Part("memory", "float32", rounds=1, seconds=2.0),
    Part("cold", "float32", rounds=3, tuned_by=_TRAIN),
)


def run(
    options: Options, out: Path, *, photos: str | None, small: str | None
) -> Iterator[list[Row]]:
    """Run the parts in the order of the plan; yield the rows of each.

    The rows of a suite are in the folder ``out`` as SUITE.json after each of its variants. Of
    ``options`` threads, cache, toy, say and machine count. ``photos``, ``small``: images of the two
    kinds, or None to make some.
    """
    out.mkdir(parents=True, exist_ok=True)
    of_suite: dict[str, list[Row]] = {}
    of_part: dict[tuple[str, str], list[Row]] = {}
    for part in PLAN:
        begin = time.perf_counter()
        here = dataclasses.replace(
            options,
            data=small if part.suite == "small-images" else photos,
            loaders=part.loaders,
            rounds=options.rounds if options.toy else part.rounds,
            seconds=options.seconds if options.toy else part.seconds,
            tries=_TRIES,
            tuned=report.settings(of_part.get(part.tuned_by, []) if part.tuned_by else []),
        )
        rows = SUITES[part.suite].run(part.variant, here)
        of_part[part.suite, part.variant] = rows
        of_suite.setdefault(part.suite, []).extend(rows)
        path = out / f"{part.suite}.json"
        path.write_text(json.dumps(of_suite[part.suite], indent=1) + "\n")
        passed = time.perf_counter() - begin
        options.say(f"{part.suite}, {part.variant}: {passed:.0f} s, rows in {path}")
        yield rows
