"""The process of one loader, seen from the benchmark."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import select
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Any

from bench.workload import Workload


class Refused(Exception):
    """The loader is not installed or cannot do the workload."""


def missing(modules: Iterable[str]) -> str:
    """Which of ``modules`` are not installed, in words; "" where all are."""
    absent = []
    for name in modules:
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:  # its parent package, which find_spec imports
            found = None
        if found is None:
            absent.append(name)
    return f"not installed: {', '.join(absent)}" if absent else ""


class Failed(Exception):
    """The loader raised, or its process died; ``log`` is what that has said."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class Process:
    """One loader in its own process, which is stopped (SIGSTOP) while others are measured.

    The process leads a group that its workers join, so that stopping and ending reach them all.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.made: dict[str, Any] = {}  # what the worker's ``make`` said
        self._log = tempfile.TemporaryFile("w+")  # closed in stop()
        root = Path(__file__).resolve().parent.parent
        path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path}
        # Else Python compiles an editable fastload at every import, but no installed loader.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._process = Popen(
            [sys.executable, "-m", "bench.worker", name],
            stdin=PIPE,
            stdout=PIPE,
            stderr=self._log,
            text=True,
            env=environment,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: str, **arguments: Any) -> None:
        """Start a command; ``receive`` waits for its answer."""
        self._signal(signal.SIGCONT)  # also where it was not stopped
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None

    def receive(self) -> Any:
        """The answer to ``send``."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._died()
        answer = json.loads(line)
        if "refused" in answer:
            raise Refused(answer["refused"])
        if "failed" in answer:
            raise Failed(answer["failed"], self._said())
        return answer["ok"]

    def answered(self) -> bool:
        """Whether ``receive`` would return at once."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def call(self, command: str, **arguments: Any) -> Any:
        """Run one command of ``worker._Session`` and return its answer."""
        self.send(command, **arguments)
        return self.receive()

    def hold(self) -> None:
        """Stop it and its workers until the next command."""
        self._signal(signal.SIGSTOP)

    def stop(self) -> None:
        """End it: close its pipes, then kill it."""
        self._signal(signal.SIGCONT)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        with contextlib.suppress(TimeoutExpired):
            self._process.wait(timeout=10)
        # some loaders' threads never end
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # the whole group has ended by itself
            os.killpg(self._process.pid, number)

    def _said(self) -> str:
        self._log.flush()
        self._log.seek(0)
        return self._log.read()

    def _died(self) -> Failed:
        code = self._process.wait()
        lines = [line for line in self._said().splitlines() if line.strip()]
        last = lines[-1] if lines else "no message"
        return Failed(f"its process ended with {code}: {last}", self._said())


@contextlib.contextmanager
def loading(name: str, work: Workload) -> Iterator[Process]:
    """The process of a loader that can do ``work``; it ends with the block."""
    process = Process(name)
    try:
        process.made = process.call("make", work=dataclasses.asdict(work))
        yield process
    finally:
        process.stop()
