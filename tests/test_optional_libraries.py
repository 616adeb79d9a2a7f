"""A core that is built without libdeflate, libwebp or both: Pillow does their work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = [pytest.mark.native, pytest.mark.long]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of what is built and tested, without a core."""
    for name in ("fastload", "converters", "tests"):
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    return tmp_path


def run(clone: Path, *arguments: str, **environment: str) -> str:
    """What a Python prints that imports the clone's package; the test fails if it fails."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=clone,
        env=os.environ | {"PYTHONPATH": str(clone)} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("absent", [{"libdeflate"}, {"libwebp"}, {"libdeflate", "libwebp"}])
def test_without_a_library_its_format_is_pillows(clone: Path, absent: set[str]) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    run(
        clone,
        *("setup.py", "-q", "build_ext", "--inplace"),
        FASTLOAD_WITHOUT=",".join(absent),
        FASTLOAD_DEBUG="1",  # compiles in half the time
        FASTLOAD_WERROR="1",
        FASTLOAD_REQUIRE_NATIVE="1",
    )
    said = run(clone, "-m", "fastload", "--version")
    for library, format in {"libdeflate": "PNG", "libwebp": "WebP"}.items():
        assert (f"{format}: left to Pillow" in said) == (library in absent), said
    tests = [f"tests/{path}" for path in ("engine/test_png_folder.py", "native/test_webp.py",
                                          "native/test_png.py")]  # fmt: skip
    required = {"FASTLOAD_REQUIRE_NATIVE": ""}  # which demands both libraries
    summary = run(clone, "-m", "pytest", "-q", "-n0", *tests, **required)
    assert " passed" in summary
