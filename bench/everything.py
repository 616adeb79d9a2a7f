"""All suites in one run of about forty minutes: their variants, loaders and rounds."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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
_RAW = (*_MATRIX, "torch-array")
_PACKED = (*_MATRIX, "torch-lmdb", "webdataset", "streaming", "litdata")

# Settings that each loader tries, the most promising first. The gain from more of them is smaller
# than the difference between rounds.
_TRIES = 2


class Part(NamedTuple):
    """One variant of one suite; ``rounds``, ``seconds`` as for ``python -m bench run``."""

    suite: str
    variant: str
    rounds: int
    loaders: tuple[str, ...] = _MATRIX
    seconds: float = 1.0


PLAN = (
    Part("imagenet-train", "float32", 4, _ALL_FILES),
    Part("imagenet-train", "uint8", 3),
    Part("imagenet-eval", "float32", 3),
    Part("small-images", "jpeg", 5, seconds=0.7),
    Part("small-images", "raw", 5, _RAW, seconds=0.7),
    Part("raw-train", "float32", 3, _RAW),
    Part("raw-train", "channels_last", 3, _RAW),
    Part("pack", "photos", 1, _PACKED),
    Part("startup", "float32", 2),
    Part("memory", "float32", 1, seconds=2.0),
    Part("cold", "float32", 3),
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
    for part in PLAN:
        begin = time.perf_counter()
        here = dataclasses.replace(
            options,
            data=small if part.suite == "small-images" else photos,
            loaders=part.loaders,
            rounds=options.rounds if options.toy else part.rounds,
            seconds=options.seconds if options.toy else part.seconds,
            tries=_TRIES,
        )
        rows = SUITES[part.suite].run(part.variant, here)
        of_suite.setdefault(part.suite, []).extend(rows)
        path = out / f"{part.suite}.json"
        path.write_text(json.dumps(of_suite[part.suite], indent=1) + "\n")
        passed = time.perf_counter() - begin
        options.say(f"{part.suite}, {part.variant}: {passed:.0f} s, rows in {path}")
        yield rows
