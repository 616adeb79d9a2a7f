"""The process of one loader: ``python -m bench.worker NAME``, commands as JSON lines on stdin.

Answers go out as JSON lines on the descriptor that was stdout; whatever libraries print goes to
stderr. Every command answers once: {"ok": ...}, {"refused": reason} or {"failed": message}.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, TextIO


def main() -> None:
    """Serve commands until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    pr_set_pdeathsig = 1  # Linux kills this process when the benchmark ends, even by SIGKILL
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    session = _Session(sys.argv[1])
    for line in sys.stdin:
        _answer(answers, session, json.loads(line))
    session.stop()


def _answer(answers: TextIO, session: _Session, command: dict[str, Any]) -> None:
    name = command.pop("do")
    try:
        answer = {"ok": getattr(session, name)(**command)}
    except _Refused as refusal:
        answer = {"refused": str(refusal)}
    except Exception as error:  # the other loaders still run; the report names this one
        traceback.print_exc()
        answer = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
    answers.write(json.dumps(answer) + "\n")


class _Refused(Exception):
    """This loader is absent or cannot do the workload."""


class _Session:
    """One loader, from its import to its end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loader: Any = None
        self._work: Any = None
        self._warm = False

    def make(self, work: dict[str, Any]) -> dict[str, Any]:
        """Import the loader; say how long that takes beyond torch and the script's own imports."""
        import torch

        from bench.loaders import make
        from bench.workload import Workload

        self._work = Workload.from_json(work)
        self._loader = make(self._name)
        torch.set_num_threads(self._work.threads)
        reason = self._loader.absent() or self._loader.refusal(self._work)
        if reason:
            raise _Refused(reason)
        for module in self._loader.user_imports:
            importlib.import_module(module)
        start = time.perf_counter()
        self._loader.load()
        import_s = time.perf_counter() - start
        return {
            "import_s": import_s,
            "versions": _versions(self._loader.needs),
            "memory_format": self._loader.memory_format(self._work),
        }

    def train(self) -> None:
        """Make an optimizer, as every training script does: it imports torch._dynamo, 86 MB."""
        import torch

        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)

    def prepare(self) -> dict[str, Any]:
        from bench.loaders.base import NotAvailable

        self._loader.load_writer()
        start = time.perf_counter()
        try:
            self._loader.prepare(self._work)
        except NotAvailable as reason:
            raise _Refused(str(reason)) from reason
        seconds = time.perf_counter() - start
        if self._loader.store is None:
            return {"seconds": seconds, "durable_seconds": None, "nbytes": None}
        folder = self._loader.data_folder(self._work)
        _sync(folder)
        durable = time.perf_counter() - start
        return {"seconds": seconds, "durable_seconds": durable, "nbytes": _nbytes(folder)}

    def start(
        self, seconds: float, tries: int | None, reference: str, tuned: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Open with the first settings, or ``tuned``; keep the fastest, and check its output."""
        from bench.check import check

        settings = self._settings(tuned)[:tries]
        tried = []
        if len(settings) > 1:
            for setting in settings:
                self._loader.open(self._work, setting)
                self._run(0)
                tried.append(self._run(seconds))
                self._loader.close()
                gc.collect()
            settings = [settings[max(range(len(tried)), key=tried.__getitem__)]]
        self._loader.open(self._work, settings[0])
        facts = check(self._loader, self._work, reference)
        self._run(seconds)
        return {"setting": settings[0], "tried": [round(rate, 1) for rate in tried], "check": facts}

    def open(self, setting: int) -> None:
        self._loader.open(self._work, self._loader.settings(self._work)[setting])

    def first_epoch(self, setting: dict[str, Any] | None = None) -> dict[str, float]:
        """The first epoch of this process; None: with the most promising setting.

        Images per second from the open loader; seconds to the first batch, opening included.
        """
        begin = time.perf_counter()
        self._loader.open(self._work, setting or self._loader.settings(self._work)[0])
        return self._epoch(begin)

    def cold_epoch(self, tuned: dict[str, Any] | None = None) -> dict[str, Any]:
        """One epoch with warm code and cold data: all is run once before the data is dropped."""
        from bench import coldness

        setting = self._settings(tuned)[0]
        if not self._warm:
            self._loader.open(self._work, setting)
            self._run(0)
            self._warm = True
        if self._loader.reopens:
            self._loader.close()
            gc.collect()
            self._loader.open(self._work, setting)
        folder = self._loader.data_folder(self._work)
        files = coldness.files(folder)
        coldness.drop(files)
        facts = {"resident": coldness.resident(files), "setting": setting}
        before = coldness.nbytes_read(os.getpgrp())
        return facts | {
            **self._epoch(),
            "nbytes": sum(file.stat().st_size for file in files),
            "nbytes_read": coldness.nbytes_read(os.getpgrp()) - before,
        }

    def run(self, seconds: float) -> dict[str, float]:
        return {"images_per_s": self._run(seconds)}

    def stop(self) -> None:
        if self._loader is not None:
            try:
                self._loader.close()
            except AttributeError:  # never opened
                return

    def _settings(self, tuned: dict[str, Any] | None) -> list[dict[str, Any]]:
        """Settings to try: the one found earlier, if it is still among them."""
        settings: list[dict[str, Any]] = self._loader.settings(self._work)
        return [tuned] if tuned in settings else settings

    def _epoch(self, opened: float | None = None) -> dict[str, float]:
        """An epoch; ``opened``: when the time to its first batch began, if it was before it."""
        images, first, begin = 0, 0.0, time.perf_counter()
        for batch, _ in self._loader.epoch():
            first = first or time.perf_counter() - (opened or begin)
            images += len(batch)
        return {"images_per_s": images / (time.perf_counter() - begin), "first_batch_s": first}

    def _run(self, seconds: float) -> float:
        """Images per second over whole epochs of at least ``seconds`` together."""
        images, begin = 0, time.perf_counter()
        while True:
            images += sum(len(batch) for batch, _ in self._loader.epoch())
            passed = time.perf_counter() - begin
            if passed >= seconds:
                return images / passed


def _versions(modules: tuple[str, ...]) -> dict[str, str]:
    import importlib.metadata as metadata

    owners = metadata.packages_distributions()
    names = [owners.get(module.split(".")[0], [module])[0] for module in modules]
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = str(getattr(sys.modules.get(name), "__version__", "unknown"))
    return versions


def _sync(folder: Path) -> None:
    """Wait until the files of ``folder`` are on the disk; a writer may have done that itself."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _nbytes(folder: Path) -> int:
    """Bytes on disk; LMDB files are sparse."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
