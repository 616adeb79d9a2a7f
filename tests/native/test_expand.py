"""Blocks of DCT records with each instruction set that this machine has or can emulate.

And the whole core, compiled for another processor.
"""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "fastload" / "_native"
# Distributions put jconfig.h into a folder for one processor.
HEADERS = {"jpeglib.h", "jmorecfg.h", "jerror.h", "jconfig.h"}


def headers(folder: Path) -> Path:
    """A folder with libjpeg's headers only, which a cross compiler does not find."""
    folder.mkdir()
    for include in (Path("/usr/include"), Path("/usr/local/include")):
        for found in [*include.glob("*.h"), *include.glob("*/jconfig.h")]:
            if found.name in HEADERS:
                shutil.copy(found, folder)
    missing = HEADERS - {path.name for path in folder.iterdir()}
    if missing:
        pytest.skip(f"libjpeg's headers are not where they usually lie: {sorted(missing)}")
    return folder


@pytest.mark.native
@pytest.mark.parametrize(
    ("compiler", "emulator", "expected"),
    [("g++", None, "scalar"), ("aarch64-linux-gnu-g++", "qemu-aarch64", "scalar neon")],
    ids=["this processor", "aarch64"],
)
def test_all_instruction_sets_pack_and_expand_alike(
    tmp_path: Path, compiler: str, emulator: str | None, expected: str
) -> None:
    """Sound and damaged blocks: the same bytes, coefficients and refusals."""
    for tool in filter(None, [compiler, emulator]):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} here (CONTRIBUTING.md, Other processors)")
    program = tmp_path / "expand"
    sources = [
        NATIVE / "base/simd.cpp",
        *sorted(NATIVE.glob("dct/expand*.cpp")),
        *sorted(NATIVE.glob("dct/pack*.cpp")),
    ]
    command = [compiler, "-std=c++17", "-O2", "-static", "-Wall", "-Wextra", "-Werror"]
    command += [f"-I{NATIVE}", f"-I{headers(tmp_path / 'include')}"]
    command += [str(Path(__file__).with_name("expand.cpp")), *map(str, sources)]
    subprocess.run([*command, "-o", str(program)], check=True)
    run = [emulator, str(program)] if emulator else [str(program)]
    found = subprocess.run([*run, "60000"], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"the same in: {expected}" in found.stdout


@pytest.mark.long
@pytest.mark.native
def test_every_source_compiles_for_arm_without_a_warning(tmp_path: Path) -> None:
    import pybind11

    compiler = shutil.which("aarch64-linux-gnu-g++")
    if compiler is None:
        pytest.skip("no aarch64-linux-gnu-g++ here (CONTRIBUTING.md, Other processors)")
    include = headers(tmp_path / "include")
    for name in ("libdeflate.h", "webp"):
        (include / name).symlink_to(Path("/usr/include") / name)
    python = sysconfig.get_paths()["include"]  # its headers are those of every 64-bit Linux
    folders = [NATIVE, include, python, pybind11.get_include()]
    flags = ["-std=c++17", "-O2", "-fPIC", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
    flags += ["-DFASTLOAD_LIBDEFLATE", "-DFASTLOAD_LIBWEBP", *(f"-I{path}" for path in folders)]
    sources = sorted(NATIVE.rglob("*.cpp"))
    assert len(sources) > 50

    def said(numbered: tuple[int, Path]) -> str:
        number, source = numbered
        command = [compiler, *flags, "-c", str(source), "-o", str(tmp_path / f"{number}.o")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        return done.stderr if done.returncode else ""

    with ThreadPoolExecutor(2) as pool:
        assert "".join(pool.map(said, enumerate(sources))) == ""
