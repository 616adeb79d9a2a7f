"""Processes of loaders for the tests, which have torch imported already (warm.py).

That import is most of what a suite of toy size does. What measures it gets a process of its own
(``test_processes.py``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import warm

_WORKER = f"""
import multiprocessing, sys
sys.path.insert(0, {str(Path(__file__).resolve().parent.parent)!r})
# As in a loader's own process. With forkserver its workers would import torch anew.
multiprocessing.set_start_method("fork", force=True)
from bench.worker import main
main()
"""


class Forked(warm.Program):
    """Stands for ``subprocess.Popen`` in ``bench.process``, as far as that uses it."""

    def __init__(
        self, command: Sequence[str], *, stderr: IO[str], env: Mapping[str, str], **_: Any
    ) -> None:
        commands, write = os.pipe()
        super().__init__(
            ["-c", _WORKER, command[-1]],
            env=env,
            stdin=commands,
            stderr=stderr.fileno(),
            start_new_session=True,
            finalize=False,
        )
        os.close(commands)
        self.stdin = os.fdopen(write, "w")
