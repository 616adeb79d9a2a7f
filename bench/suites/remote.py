"""remote: epochs whose data is behind a network, by images/s, bytes and requests.

The server is the one of the tests (tests/object_server.py), in this process: each answer takes
20 ms, and all bodies together have 50 MB/s. It counts bytes and requests.
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from bench.loaders import REMOTE, make
from bench.process import Failed, Process, loading
from bench.report import SEQUENTIAL, Row
from bench.suites.base import RATE, Figures, Options, Suite
from bench.workload import Workload

_TESTS = Path(__file__).resolve().parents[2] / "tests"
_LATENCY_S, _BYTES_PER_S = 0.02, 50e6
_IMAGES = 3600  # 8 s of the link, of photos of 110 KB
_ASKED = (("bytes", "of the data", "share"), ("requests", "requests an image", "requests"))
_LOCAL = (("of local", "x", "of_local"),)


class Remote(Suite):
    """Each epoch has a new cache on the disk.

    cold    the first epoch of a new process
    warm    the same, after another process has filled the cache
    half    the second one of its process: the first one has filled the cache, of half the size
    local   the second one, beside that of another process that reads the file on the disk
    """

    name = "remote"
    summary = "imagenet-train behind 20 ms and 50 MB/s: nothing cached, all, or half"
    variants = {"cold": {}, "warm": {}, "half": {}, "local": {}}

    def known(self) -> tuple[str, ...]:
        return tuple(REMOTE)

    def run(self, variant: str, options: Options) -> list[Row]:
        work = self.work(variant, options, count=_IMAGES)
        images = len(work.samples()[0]) // work.batch * work.batch
        local = variant == "local"

        def epoch(name: str) -> dict[str, float]:
            nbytes, folder = packed[name]["nbytes"], make(name).data_folder(work)
            limit = nbytes // 2 if variant == "half" else 0
            with (
                _served(folder.parent) as server,
                _scratch(options) as cache,
                loading(name, work) as process,
            ):
                setting = {
                    "server": server.url,
                    "bucket": folder.name,
                    "cache": cache,
                    "limit": limit,
                }
                if local:
                    process.call("first_epoch", setting=setting)
                    return _beside_local(process, work, setting, options)
                if variant == "warm":
                    with loading(name, work) as filler:
                        filler.call("first_epoch", setting=setting)
                if variant == "half":
                    process.call("first_epoch", setting=setting)
                server.faults = _faults()
                with server.asked() as asked:
                    if variant == "half":
                        found = process.call("run", seconds=0)
                    else:
                        found = process.call("first_epoch", setting=setting)
            if not found["images_per_s"]:
                raise Failed("an epoch of no images")
            share = sum(request.nbytes for request in asked) / nbytes
            return {**found, "share": share, "requests": len(asked) / images}

        metrics = RATE
        if variant in ("cold", "warm"):
            metrics += (("first batch", "s", "first_batch_s"),)
        metrics += _LOCAL if local else _ASKED
        link = {"latency_s": _LATENCY_S, "bytes_per_s": _BYTES_PER_S}
        figures = Figures.of(work, options, metrics, **link)
        names = [name for name in options.loaders if not local or name.startswith("fastload")]
        packed = figures.prepared(work, names)
        figures.add_all(figures.in_turn(packed, epoch))
        if variant == "cold":
            options.say("one file of all images: reading")
            rates = [_sequential(work, options) for _ in range(options.rounds)]
            figures.add(SEQUENTIAL, rates)
        return figures.rows


def _beside_local(
    remote: Process, work: Workload, setting: dict[str, Any], options: Options
) -> dict[str, float]:
    """An epoch of which all is cached, and one of the same file on the disk."""
    with loading(remote.name, work) as local:
        local.call("first_epoch", setting={**setting, "server": None})
        rates = {
            process: process.call("run", seconds=options.seconds)["images_per_s"]
            for process in random.sample([remote, local], 2)
        }
    return {"images_per_s": rates[remote], "of_local": rates[remote] / rates[local]}


def _sequential(work: Workload, options: Options) -> float:
    """Images a second of a client that asks for one file of all images' bytes, and drops it."""
    samples = work.samples()[0]
    with _scratch(options) as folder, _served(Path(folder)) as server:
        with open(Path(folder, "all"), "wb") as file:
            file.truncate(sum(Path(path).stat().st_size for path, _ in samples))
        server.faults = _faults()
        start = time.perf_counter()
        with urllib.request.urlopen(f"{server.url}/all") as answer:
            while answer.read(1 << 20):
                pass
        return len(samples) / (time.perf_counter() - start)


def _scratch(options: Options) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(
        prefix="remote-", dir=options.cache, ignore_cleanup_errors=True
    )


def _served(folder: Path) -> contextlib.closing[Any]:
    if str(_TESTS) not in sys.path:
        sys.path.append(str(_TESTS))
    from object_server import ObjectServer

    return contextlib.closing(ObjectServer(folder))


def _faults() -> Any:
    from object_server import Faults

    return Faults(latency_s=_LATENCY_S, bytes_per_s=_BYTES_PER_S)
