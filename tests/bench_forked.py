"""Processes of loaders for the tests: forked off one that has torch imported already.

That import is most of what a suite of toy size does. What measures it, and memory, gets processes
of its own (``test_processes.py``).
"""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import IO, Any

PRELOADED = ["torch", "torchvision", "torchvision.transforms.v2", "fastload", "bench.worker"]


class Forked:
    """Stands for ``subprocess.Popen`` in ``bench.process``, as far as that uses it."""

    def __init__(
        self, command: Sequence[str], *, stderr: IO[str], env: Mapping[str, str], **_: Any
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        pipes = [os.pipe(), os.pipe()]
        (their_in, our_out), (our_in, their_out) = pipes
        theirs = [
            Connection(their_in, writable=False),
            Connection(their_out, readable=False),
            Connection(os.dup(stderr.fileno()), readable=False),
        ]
        self._child = context.Process(target=_serve, args=(command[-1], theirs, dict(env)))
        self._child.start()
        for end in theirs:
            end.close()
        self.stdin = io.TextIOWrapper(open(our_out, "wb"))
        self.stdout = io.TextIOWrapper(open(our_in, "rb"))
        self.pid = self._child.pid

    def wait(self, timeout: float | None = None) -> int:
        self._child.join(timeout)
        if self._child.exitcode is None:
            raise subprocess.TimeoutExpired("bench.worker", timeout or 0.0)
        return self._child.exitcode


def _serve(name: str, streams: Sequence[Connection], env: Mapping[str, str]) -> None:
    gc.freeze()  # a collection would copy every page of what was imported
    # As in a loader's own process. Here it would be forkserver, whose workers import torch anew.
    multiprocessing.set_start_method("fork", force=True)
    os.setsid()
    os.environ.update(env)
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin = open(0, closefd=False)
    sys.argv = ["bench.worker", name]
    from bench.worker import main

    main()
