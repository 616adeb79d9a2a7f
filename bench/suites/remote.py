"""remote: epochs whose data is behind a network, by images/s, bytes and requests.

The server is the one of the tests (tests/object_server.py), in this process: each answer takes
20 ms, and all bodies together have 50 MB/s. It counts bytes and requests.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.loaders import REMOTE, make
from bench.loaders.remote import Remote as RemoteLoader
from bench.process import Failed, Process
from bench.report import SEQUENTIAL, Row
from bench.suites.base import Figures, Options, Suite, Variant
from bench.workload import Workload

_TESTS = Path(__file__).resolve().parents[2] / "tests"
_LATENCY_S, _BYTES_PER_S = 0.02, 50e6
_IMAGES = 3600  # 8 s of the link, of photos of 110 KB
_METRICS = (
    ("throughput", "images/s", "images_per_s"),
    ("first batch", "s", "first_batch_s"),
    ("bytes", "of the data", "share"),
    ("requests", "requests an image", "requests"),
    ("of local", "x", "of_local"),
)


class Remote(Suite):
    name = "remote"
    summary = "imagenet-train behind 20 ms and 50 MB/s: nothing cached, all, or half"
    variants = {"cold": Variant(), "warm": Variant(), "half": Variant(), "local": Variant()}

    def known(self) -> tuple[str, ...]:
        return tuple(REMOTE)

    def run(self, variant: str, options: Options) -> list[Row]:
        work = self.work(variant, options, count=_IMAGES)
        figures = Figures(work, options, latency_s=_LATENCY_S, bytes_per_s=_BYTES_PER_S)
        measured: dict[str, list[dict[str, float]]] = {}
        stated: dict[str, dict[str, Any]] = {SEQUENTIAL: {}}
        for name in options.loaders:
            if variant == "local" and not name.startswith("fastload"):
                continue
            loader = make(name)
            assert isinstance(loader, RemoteLoader)
            stated[name] = stated[f"{name}, local"] = loader.stated(work)
            with figures.process(name) as process:
                process.call("make", work=work.to_json())
                trial = _Trial(name, work, process.call("prepare")["nbytes"], options)
                options.say(f"{name}: reading")
                if variant == "local":
                    measured |= trial.beside_local()
                else:
                    measured[name] = [trial.epoch() for _ in range(options.rounds)]
        if variant == "cold":
            options.say("one file of all images: reading")
            measured[SEQUENTIAL] = [_sequential(work, options) for _ in range(options.rounds)]
        for metric, unit, key in _METRICS:
            for name, epochs in measured.items():
                if key in epochs[0]:
                    values = [epoch[key] for epoch in epochs]
                    figures.add(name, metric, unit, values, stated[name])
        return figures.rows


class _Trial:
    """Epochs of one loader, each with a new cache; its packed form has ``nbytes``."""

    def __init__(self, name: str, work: Workload, nbytes: int, options: Options) -> None:
        self._name, self._work, self._nbytes, self._options = name, work, nbytes, options
        self._folder = make(name).data_folder(work)

    def epoch(self) -> dict[str, float]:
        """One epoch, of which bytes and requests are counted.

        cold    the first one, in a new process
        warm    the same, after another process has filled the cache
        half    the second one of its process: the first one has filled the cache
        """
        variant = self._work.variant
        with self._served(self._nbytes // 2 if variant == "half" else 0) as (server, setting):
            if variant == "warm":
                with self._made() as filler:
                    filler.call("first_epoch", setting=setting)
            with self._made() as process:
                if variant == "half":
                    process.call("first_epoch", setting=setting)
                server.faults = _faults()
                with server.asked() as asked:
                    if variant == "half":
                        epoch = process.call("run", seconds=0)
                    else:
                        epoch = process.call("first_epoch", setting=setting)
        if not epoch["images_per_s"]:
            raise Failed("an epoch of no images")
        images = len(self._work.samples()[0]) // self._work.batch * self._work.batch
        return {
            **epoch,
            "share": sum(request.nbytes for request in asked) / self._nbytes,
            "requests": len(asked) / images,
        }

    def beside_local(self) -> dict[str, list[dict[str, float]]]:
        """Epochs of which all is cached, each beside one of the same file on the disk.

        By loader: two that are both open, in two processes. They take turns at being the first.
        """
        here, far = f"{self._name}, local", self._name
        epochs: dict[str, list[dict[str, float]]] = {far: [], here: []}
        with self._served(0) as (_, setting), self._made() as local, self._made() as remote:
            both = {far: remote, here: local}
            remote.call("first_epoch", setting=setting)
            local.call("first_epoch", setting={**setting, "server": None})
            for number in range(self._options.rounds):
                for name in (here, far) if number % 2 else (far, here):
                    epochs[name].append(both[name].call("run", seconds=self._options.seconds))
        for one, other in zip(epochs[far], epochs[here]):
            one["of_local"] = one["images_per_s"] / other["images_per_s"]
        return epochs

    @contextlib.contextmanager
    def _made(self) -> Iterator[Process]:
        """A new process, which has imported the loader."""
        with Process(self._name) as process:
            process.call("make", work=self._work.to_json())
            yield process

    @contextlib.contextmanager
    def _served(self, limit: int) -> Iterator[tuple[Any, dict[str, Any]]]:
        """A server of the packed form, and the setting of a loader with a cache of ``limit``."""
        with _served(self._folder.parent) as server, _scratch(self._options) as cache:
            place = {"bucket": self._folder.name, "cache": cache, "limit": limit}
            yield server, {"server": server.url, **place}


def _sequential(work: Workload, options: Options) -> dict[str, float]:
    """A client that asks for one file with all images' bytes, and does nothing with them."""
    samples = work.samples()[0]
    with _scratch(options) as folder, _served(Path(folder)) as server:
        with open(Path(folder, "all"), "wb") as file:
            file.truncate(sum(Path(path).stat().st_size for path, _ in samples))
        server.faults = _faults()
        start = time.perf_counter()
        with urllib.request.urlopen(f"{server.url}/all") as answer:
            while answer.read(1 << 20):
                pass
        return {"images_per_s": len(samples) / (time.perf_counter() - start)}


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
