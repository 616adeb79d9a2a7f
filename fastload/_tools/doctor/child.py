"""Runs and watches the script in this process: ``python -m fastload._tools.doctor.child``."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing.context
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

from ..._base.machine import cpu, memory
from ..._base.progress_bar import bar, wanted
from ..._base.whole_file import whole_file
from .counters import SUMS, Counters
from .observation import Observation
from .places import Places
from .profiler import Profiler, functions
from .rules import PART
from .sampler import Sampler
from .sources import cuda_only
from .trial import trial
from .watch import Enough, Watch


def main(output: str, steps: int, replace: bool, script: str, arguments: list[str]) -> None:
    """Run ``script`` for ``steps`` training steps, and write the observation to ``output``."""
    import torch

    from fastload._tools.replacement import patched

    memory_nbytes = memory.available()
    places = Places(script)
    profiler = Profiler(places, Path(output).parent)
    watch, counters = Watch(steps, places), Counters(profiler)
    sampler = Sampler(lambda: counters.total("batches"))
    fork_by_default()
    counters.install()
    watch.install()
    sampler.start()
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    seen, error = watch.seen, ""
    with contextlib.ExitStack() as around:
        if replace:
            around.enter_context(patched())
        if wanted(None):
            watch.bar = around.enter_context(bar("watching", unit="steps", total=steps))
        try:
            runpy.run_path(script, run_name="__main__")
        except Enough:
            pass
        except SystemExit as left:
            error = "" if left.code in (0, None) else f"the script exited with {left.code}"
        except BaseException as raised:  # noqa: BLE001 - any error of the script is reported
            error = traceback.format_exc(limit=-4)
            seen.error_where = places.raising(raised)
    seen.running = sampler.stop()
    seen.growth_nbytes = sampler.growth()
    seen.process_threads = int(counters.most("threads"))
    for name in SUMS:
        kind = type(getattr(seen, name))
        setattr(seen, name, kind(counters.total(name)))
    profiler.write()
    seen.functions = list(functions(profiler.folder))
    seen.cpus, seen.memory_nbytes = cpu.available(), memory_nbytes
    seen.cuda = torch.cuda.is_available()
    seen.benchmark = torch.backends.cudnn.benchmark
    seen.cuda_only = cuda_only({script, *places.files()})
    seen.error = error
    _write(seen, output)
    loop = None if error or replace else watch.training()
    if loop is not None and loop[0].waiting >= PART:
        # The observation is written already, in case the trial fails.
        watch.end()
        training, given = loop
        training.fast = trial(given)
        _write(seen, output)
    sys.stdout.flush()
    os._exit(0)  # skips the script's exit handlers, because it was interrupted


def fork_by_default() -> None:
    """Fork workers where the script does not say how they start: only forked ones are watched.

    Python 3.14 asks a fork server on Linux. The script may still call ``set_start_method``.
    """
    if sys.platform == "linux":
        default: Any = multiprocessing.context._default_context
        default._default_context = multiprocessing.get_context("fork")


def _write(seen: Observation, output: str) -> None:
    with whole_file(output) as file:
        file.write(json.dumps(dataclasses.asdict(seen)).encode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "replace", sys.argv[4], sys.argv[5:])
