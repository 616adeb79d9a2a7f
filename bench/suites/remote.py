"""remote: epochs whose data is behind a network, by images/s, bytes and requests.

The server is the one of the tests (tests/object_server.py), in this process: each answer takes
20 ms, and all bodies together have 50 MB/s.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.loaders import REMOTE
from bench.process import Failed, Process, Refused
from bench.report import Row, row
from bench.suites.base import Absent, Options, Suite, Variant, imagenet

_TESTS = Path(__file__).resolve().parents[2] / "tests"
_LATENCY_S, _BYTES_PER_S = 0.02, 50e6
_METRICS = (
    ("throughput", "images/s", "images_per_s"),
    ("bytes", "of the data", "share"),
    ("requests", "requests an image", "requests"),
)


class Remote(Suite):
    name = "remote"
    summary = "imagenet-train behind 20 ms and 50 MB/s: nothing cached, all, or half"
    variants = {"cold": Variant(), "warm": Variant(), "half": Variant()}

    def known(self) -> tuple[str, ...]:
        return tuple(REMOTE)

    def run(self, variant: str, options: Options) -> list[Row]:
        work = imagenet(self.name, "train", variant, self.variants[variant], options)
        facts = {**self.facts(work, options), "latency_s": _LATENCY_S, "bytes_per_s": _BYTES_PER_S}
        absent = Absent(work, options, **facts)
        images = len(work.samples()[0]) // work.batch * work.batch
        found: dict[str, list[dict[str, float]]] = {}
        for name in self.loaders(variant, options):
            with Process(name) as process:
                try:
                    process.call("make", work=work.to_json())
                    nbytes = process.call("prepare", fresh=options.fresh)["nbytes"]
                except (Refused, Failed) as error:
                    absent.note(name, error, process, metric="throughput", unit="images/s")
                    continue
            options.say(f"{name}: reading")
            try:
                found[name] = [
                    _epoch(name, variant, work.to_json(), nbytes, images, options)
                    for _ in range(options.rounds)
                ]
            except (Refused, Failed) as error:
                absent.note(name, error, process, metric="throughput", unit="images/s")
        rows = [
            row(
                suite=self.name,
                variant=variant,
                loader=name,
                metric=metric,
                unit=unit,
                values=[epoch[key] for epoch in epochs],
                setting={"num_workers": options.threads},
                **facts,
            )
            for metric, unit, key in _METRICS
            for name, epochs in found.items()
        ]
        return rows + absent.rows


def _epoch(
    name: str, variant: str, work: dict[str, Any], nbytes: int, images: int, options: Options
) -> dict[str, float]:
    """One epoch of a new process; before it, one that fills the cache, unless ``cold``."""
    if str(_TESTS) not in sys.path:
        sys.path.append(str(_TESTS))
    from bench.loaders import make
    from bench.workload import Workload
    from object_server import Faults, ObjectServer

    server = ObjectServer(make(name).store_folder(Workload.from_json(work)))
    cache = tempfile.mkdtemp(prefix="remote-", dir=options.cache)
    limit = nbytes // 2 if variant == "half" else 0
    setting = {"url": server.url, "cache": cache, "limit": limit}
    try:
        with Process(name) as process:
            process.call("make", work=work)
            if variant != "cold":
                process.call("first_epoch", setting=setting)
                if variant == "warm":
                    process.stop()
            server.faults = Faults(latency_s=_LATENCY_S, bytes_per_s=_BYTES_PER_S)
            with server.asked() as asked:
                if variant == "half":
                    rate = process.call("run", seconds=0)["images_per_s"]
                else:
                    rate = _first(name, work, setting)
    finally:
        server.close()
        shutil.rmtree(cache, ignore_errors=True)
    return {
        "images_per_s": rate,
        "share": sum(one.nbytes for one in asked) / nbytes,
        "requests": len(asked) / images,
    }


def _first(name: str, work: dict[str, Any], setting: dict[str, Any]) -> float:
    with Process(name) as process:
        process.call("make", work=work)
        rate: float = process.call("first_epoch", setting=setting)["images_per_s"]
    return rate
