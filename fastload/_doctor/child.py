"""Runs the script in this process, watched: ``python -m fastload._doctor.child``."""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

from fastload._machine import cpu, memory

from .counters import Counters
from .sampler import Sampler
from .watch import Enough, Watch


def main(output: str, steps: int, replace: bool, script: str, arguments: list[str]) -> None:
    """Run ``script`` for ``steps`` steps of training, and write what was seen to ``output``."""
    import torch

    replacement = None
    if replace:
        from fastload import FastLoader

        replacement = FastLoader
    memory_nbytes = memory.available()
    watch, counters, sampler = Watch(steps), Counters(), Sampler()
    counters.install()
    watch.install(replacement)
    sampler.start()
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    error = ""
    try:
        runpy.run_path(script, run_name="__main__")
    except Enough:
        pass
    except SystemExit as left:
        error = "" if left.code in (0, None) else f"the script exited with {left.code}"
    except BaseException:  # noqa: BLE001 - the script's; reported
        error = traceback.format_exc(limit=-4)
    seen = watch.seen
    seen.running = sampler.stop()
    batches = sum(len(loader.steps_s) for loader in seen.loaders if loader.num_workers)
    seen.growth_nbytes = sampler.growth(batches)
    seen.process_threads = int(counters.most("threads"))
    for name in (
        "fetch_s", "fetch_cpu_s", "fetched", "loads", "load_s", "load_pixels", "resizes",
        "resize_s", "opens", "open_nbytes",
    ):  # fmt: skip
        kind = type(getattr(seen, name))
        setattr(seen, name, kind(counters.total(name)))
    seen.cpus, seen.memory_nbytes = cpu.available(), memory_nbytes
    seen.cuda = torch.cuda.is_available()
    seen.benchmark = torch.backends.cudnn.benchmark
    seen.error = error
    Path(output).write_text(json.dumps(dataclasses.asdict(seen)), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # not by way of the script's exit handlers: it was ended in its midst


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "replace", sys.argv[4], sys.argv[5:])
