"""remote: epochs whose data is behind a network, by images/s, bytes and requests.

The server is the one of the tests (tests/object_server.py), in this process: each answer takes
20 ms, and all bodies together have 50 MB/s. It counts bytes and requests.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path

from bench.loaders import REMOTE, make
from bench.process import loading
from bench.report import Row
from bench.suites.base import RATE, Figures, Options, Suite

_TESTS = Path(__file__).resolve().parents[2] / "tests"
_LATENCY_S, _BYTES_PER_S = 0.02, 50e6
_IMAGES = 3600  # 8 s of the link, of photos of 110 KB
_ASKED = (("bytes", "of the data", "share"), ("requests", "requests an image", "requests"))


class Remote(Suite):
    """Each epoch has a new cache on the disk.

    cold    the first epoch of a new process
    warm    the same, after another process has filled the cache
    half    the second one of its process: the first one has filled the cache, of half the size
    """

    name = "remote"
    summary = "imagenet-train behind 20 ms and 50 MB/s: nothing cached, all, or half"
    variants = {"cold": {}, "warm": {}, "half": {}}
    loaders = tuple(REMOTE)

    def run(self, variant: str, options: Options) -> list[Row]:
        if str(_TESTS) not in sys.path:
            sys.path.append(str(_TESTS))
        from object_server import Faults, ObjectServer

        work = self.work(variant, options, count=_IMAGES)
        images = len(work.samples()[0]) // work.batch * work.batch

        def epoch(name: str) -> dict[str, float]:
            nbytes, folder = packed[name]["nbytes"], make(name).data_folder(work)
            with (
                contextlib.closing(ObjectServer(folder.parent)) as server,
                tempfile.TemporaryDirectory(prefix="remote-", dir=options.cache) as cache,
                loading(name, work) as process,
            ):
                setting = {
                    "server": server.url,
                    "bucket": folder.name,
                    "cache": cache,
                    "limit": nbytes // 2 if variant == "half" else 0,
                }
                if variant == "warm":
                    with loading(name, work) as filler:
                        filler.call("first_epoch", setting=setting)
                if variant == "half":
                    process.call("first_epoch", setting=setting)
                server.faults = Faults(latency_s=_LATENCY_S, bytes_per_s=_BYTES_PER_S)
                with server.asked() as asked:
                    if variant == "half":
                        found = process.call("run", seconds=0)
                    else:
                        found = process.call("first_epoch", setting=setting)
            share = sum(request.nbytes for request in asked) / nbytes
            return {**found, "share": share, "requests": len(asked) / images}

        metrics = RATE + _ASKED
        if variant in ("cold", "warm"):
            metrics += (("first batch", "s", "first_batch_s"),)
        link = {"latency_s": _LATENCY_S, "bytes_per_s": _BYTES_PER_S}
        figures = Figures.of(work, options, metrics, **link)
        packed = figures.prepared(work)
        figures.add_all(figures.in_turn(packed, epoch))
        return figures.rows
