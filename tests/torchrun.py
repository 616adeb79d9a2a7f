"""Jobs of several ranks on this machine, started as users start them: by torchrun."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

REPORT = """
import json, os
def report(value):
    path = os.path.join(os.path.dirname(__file__), os.environ["RANK"] + ".json")
    with open(path, "w") as file: json.dump(value, file)
"""


def torchrun(code: str, folder: Path, ranks: int = 2) -> list[Any]:
    """Run ``code`` on so many ranks; what each rank passed to ``report``."""
    script = folder / "job.py"
    script.write_text(REPORT + textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        + [str(ranks), str(script)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
