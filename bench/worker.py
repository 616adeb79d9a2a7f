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
from typing import Any

from bench.process import Refused, missing


def main() -> None:
    """Serve commands until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    pr_set_pdeathsig = 1  # Linux kills this process when the benchmark ends, even by SIGKILL
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    session = _Session(sys.argv[1])
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"ok": getattr(session, command.pop("do"))(**command)}
        except Refused as refusal:
            answer = {"refused": str(refusal)}
        except Exception as error:  # the other loaders still run; the report names this one
            traceback.print_exc()
            answer = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        answers.write(json.dumps(answer) + "\n")
    session.stop()


class _Session:
    """One loader, from its import to its end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loader: Any = None
        self._work: Any = None

    def make(self, work: dict[str, Any]) -> dict[str, Any]:
        """Import the loader; say how long that takes beyond torch and the script's own imports."""
        import torch

        from bench.loaders import make
        from bench.workload import Workload

        self._work = Workload(**work)
        self._loader = make(self._name)
        torch.set_num_threads(self._work.threads)
        reason = missing(self._loader.needs) or self._loader.refusal(self._work)
        if reason:
            raise Refused(reason)
        for module in self._loader.user_imports:
            importlib.import_module(module)
        start = time.perf_counter()
        self._loader.load()
        import_s = time.perf_counter() - start
        return {"import_s": import_s, "versions": _versions(self._loader.needs)}

    def train(self) -> None:
        """Make an optimizer, as every training script does: it imports torch._dynamo, 86 MB."""
        import torch

        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)

    def prepare(self) -> dict[str, Any]:
        """Write the packed form; the seconds until that returns, and until it is on the disk."""
        self._loader.load_writer()
        start = time.perf_counter()
        self._loader.prepare(self._work)
        seconds = time.perf_counter() - start
        if self._loader.store is None:
            return {}
        os.sync()
        durable = time.perf_counter() - start
        packed = self._loader.data_folder(self._work).rglob("*")
        # Not st_size: LMDB files are sparse.
        nbytes = sum(path.stat().st_blocks * 512 for path in packed if path.is_file())
        return {"seconds": seconds, "durable_seconds": durable, "nbytes": nbytes}

    def start(self, seconds: float, tries: int | None, reference: str) -> dict[str, Any]:
        """Open with the fastest of the first settings, after packing, and check its output."""
        from bench.check import check

        self.prepare()
        settings = self._loader.settings(self._work)[:tries]
        if len(settings) > 1:
            rates = []
            for setting in settings:
                self.open(setting)
                self.run(0)
                rates.append(self.run(seconds)["images_per_s"])
                self._close()
            settings = [settings[rates.index(max(rates))]]
        self.open(settings[0])
        facts = check(self._loader, self._work, reference)
        self.run(seconds)
        return {"setting": settings[0], "check": facts}

    def open(self, setting: dict[str, Any] | None = None) -> None:
        """Open with ``setting``; None: with the most promising one."""
        self._loader.open(self._work, setting or self._loader.settings(self._work)[0])

    def first_epoch(self, setting: dict[str, Any] | None = None) -> dict[str, float]:
        """Images per second from the open loader; seconds to the first batch, opening included."""
        begin = time.perf_counter()
        self.open(setting)
        return self._epoch(begin)

    def cold_epoch(self, setting: dict[str, Any]) -> dict[str, Any]:
        """One epoch of a loader that was started, with warm code and cold data."""
        from bench import memory

        self._close()  # what it has mapped cannot be dropped
        folder = self._loader.data_folder(self._work)
        files = [path for path in folder.rglob("*") if path.is_file()]
        memory.drop(files)
        before = memory.nbytes_read(os.getpgrp())
        self.open(setting)
        epoch = self._epoch(time.perf_counter())
        nbytes = sum(file.stat().st_size for file in files)
        read = (memory.nbytes_read(os.getpgrp()) - before) / nbytes
        return {**epoch, "read": read}

    def run(self, seconds: float) -> dict[str, float]:
        """Images per second over whole epochs of at least ``seconds`` together."""
        images, begin = 0, time.perf_counter()
        while True:
            images += sum(len(batch) for batch, _ in self._loader.epoch())
            passed = time.perf_counter() - begin
            if passed >= seconds:
                return {"images_per_s": images / passed}

    def stop(self) -> None:
        if self._loader is not None:
            try:
                self._loader.close()
            except AttributeError:  # never opened
                return

    def _close(self) -> None:
        self._loader.close()
        gc.collect()

    def _epoch(self, opened: float) -> dict[str, float]:
        """An epoch; ``opened``: when the time to its first batch began."""
        images, first, begin = 0, 0.0, time.perf_counter()
        for batch, _ in self._loader.epoch():
            first = first or time.perf_counter() - opened
            images += len(batch)
        return {"images_per_s": images / (time.perf_counter() - begin), "first_batch_s": first}


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


if __name__ == "__main__":
    main()
