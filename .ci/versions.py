"""Exactness with other releases of torch, torchvision, Pillow, NumPy and OpenCV.

    make test-versions                       every line of versions.txt, one after the other
    make test-versions ARGS="oldest --keep"  one of them, and keep its environment
    make test-versions ARGS="newest --pre"   with pre-releases

Each gets an environment in build/versions, of up to 5 GB with torch's CUDA libraries. The core is
compiled for its interpreter, and the tests run that compare with torch's DataLoader, Pillow and
torchvision. A row for the table of CONTRIBUTING.md is printed for each, and the log is beside the
environment. The exit status is 0 if all passed.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "versions"
TESTS = ["tests/sources/deferred", "tests/parity", "tests/transforms", "tests/engine"]
LIBRARIES = ["torch", "torchvision", "pillow", "numpy", "opencv-python-headless"]
# What the tests need besides, and what fastload is compiled with. What else a test asks for, and
# is not here, has it skipped.
TOOLS = [
    "setuptools>=77", "wheel", "pybind11>=2.13", "pytest>=9", "pytest-timeout", "pytest-cov>=6",
    "pytest-xdist>=3.7", "hypothesis", "psutil", "fsspec",
]  # fmt: skip


def combinations() -> dict[str, list[str]]:
    """The lines of versions.txt, by name: the interpreter, and requirements."""
    lines = Path(__file__).with_name("versions.txt").read_text().splitlines()
    parts = [line.split() for line in lines if line and not line.startswith("#")]
    return {name: rest for name, *rest in parts}


def run(*command: str | Path, **variables: str) -> None:
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **variables})


def install(folder: Path, interpreter: str, requirements: list[str], pre: bool) -> Path:
    """An environment with fastload in it, for which the core is compiled; its interpreter."""
    python = folder / "bin" / "python"
    if not python.exists():
        run(interpreter, "-m", "venv", folder)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*pip, *(["--pre"] if pre else []), *requirements, *TOOLS)
    run(*pip, "--no-build-isolation", "--editable", ".", FASTLOAD_NO_NATIVE="1")
    objects = folder / "objects"
    build = ["setup.py", "--quiet", "build_ext", "--inplace", "--build-temp", objects]
    run(python, *build, FASTLOAD_REQUIRE_NATIVE="1")
    return python


def releases(python: Path) -> list[str]:
    """The releases that are installed."""
    names = f"from importlib.metadata import version; print(*map(version, {LIBRARIES}))"
    said = subprocess.run([python, "-c", names], check=True, capture_output=True, text=True)
    return said.stdout.split()


def tried(name: str, given: list[str], tests: list[str], *, pre: bool, keep: bool) -> bool:
    """Try a combination and print its row; whether all tests passed."""
    folder = FOLDER / name
    today = datetime.date.today().isoformat()
    interpreter, *requirements = given
    log = FOLDER / f"{name}.log"
    FOLDER.mkdir(parents=True, exist_ok=True)
    shown: list[str] = requirements
    try:
        python = install(folder, interpreter, requirements, pre)
        shown = releases(python)
        with log.open("w") as file:
            command = [python, "-m", "pytest", "-q", "-n", "auto", "--dist", "loadfile", *tests]
            variables = {**os.environ, "FASTLOAD_REQUIRE_NATIVE": "1", "OMP_WAIT_POLICY": "passive"}
            # Programs that tests start would compile all of torch each time.
            variables.pop("PYTHONDONTWRITEBYTECODE", None)
            status = subprocess.run(command, stdout=file, cwd=ROOT, env=variables).returncode
        outcome = log.read_text().splitlines()[-1]
    except (OSError, subprocess.CalledProcessError) as error:
        status, outcome = 1, f"not run: {error}"
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"| {today} | {name} | {interpreter} | {' | '.join(shown)} | {outcome} |", flush=True)
    return status == 0


def main() -> int:
    """Try what the command line names."""
    known = combinations()
    parser = argparse.ArgumentParser(description="exactness with other releases")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(known)}; default: all")
    parser.add_argument("--pre", action="store_true", help="pre-releases too")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="default: those of exactness")
    given = parser.parse_args()
    unknown = set(given.names) - known.keys()
    if unknown:
        parser.error(f"versions.txt has no {', '.join(sorted(unknown))}")
    good = [
        tried(name, known[name], given.tests, pre=given.pre, keep=given.keep)
        for name in given.names or known
    ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
