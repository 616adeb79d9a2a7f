"""Jobs of several ranks on this machine.

torchrun(code, folder)    started as users start them
ranks(code, folder)       told what torchrun tells them; torch is imported already (warm.py)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import torch

import warm

REPORT = """
import json, os
def report(value):
    path = os.path.join(os.path.dirname(__file__), os.environ["RANK"] + ".json")
    with open(path, "w") as file: json.dump(value, file)
"""


def torchrun(code: str, folder: Path, ranks: int = 2) -> list[Any]:
    """Run ``code`` on so many ranks; what each rank passed to ``report``."""
    script = _script(code, folder)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        + [str(ranks), str(script)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return _reports(folder, ranks)


def torchrun_forked(code: str, folder: Path, count: int = 2) -> list[Any]:
    """As ``torchrun``, in processes that are forked."""
    script = _script(code, folder)
    # It listens already, as torchrun's does: no rank finds its port taken.
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    same = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "OMP_NUM_THREADS": "1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    started = []
    try:
        for rank in range(count):
            told = {**os.environ, **same, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            started.append(warm.Program([script], env=told))
        for program in started:
            _, errors = program.communicate(240)
            assert program.returncode == 0, errors[-3000:]
    finally:
        for program in started:
            program.kill()
    return _reports(folder, count)


def _script(code: str, folder: Path) -> Path:
    script = folder / "job.py"
    script.write_text(REPORT + textwrap.dedent(code))
    return script


def _reports(folder: Path, count: int) -> list[Any]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]
