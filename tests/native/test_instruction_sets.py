"""The kernels of each instruction set that this machine has or can emulate; which one is chosen.

And the whole core, compiled for another processor.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fastload import _native
from instruction_sets import SIMD

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


# Programs of the core's kernels without Python and libjpeg, and what each is made of.
PROGRAMS = {
    "expand": ["base/simd.cpp", "dct/expand*.cpp", "dct/pack*.cpp"],
    "kernels": [
        *["base/simd.cpp", "jpeg/idct_*.cpp", "jpeg/ycc_*.cpp", "png/unfilter.cpp"],
        "resample/*.cpp",
    ],
}
COMPILERS = {"x86_64": "g++", "aarch64": "aarch64-linux-gnu-g++"}

Run = Callable[..., str]


def compiled_already(source: Path) -> Path:
    """The set-up's object of ``source`` where that is newer than what it is made of, or itself."""
    newest = max(path.stat().st_mtime for path in (source, *NATIVE.rglob("*.h")))
    for flags in (ROOT / "build").glob("temp.*/flags"):
        made = (flags.parent / source.relative_to(ROOT)).with_suffix(".o")
        told = flags.read_text(encoding="utf-8")
        if "-O3" in told and "-fsanitize" not in told and made.exists():
            if made.stat().st_mtime > newest:
                return made
    return source


def needed(tool: str) -> str:
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool} here (CONTRIBUTING.md, Other processors)")
    return tool


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a program, compiled once; ``cpu`` is one that an emulator has, "": this processor."""
    include = headers(tmp_path_factory.mktemp("headers") / "include")
    made: dict[tuple[str, str], Path] = {}

    def compiled(name: str, family: str) -> Path:
        found = made.get((name, family))
        if found is not None:
            return found
        program = tmp_path_factory.mktemp("program") / name
        command = [needed(COMPILERS.get(family, "g++")), "-std=c++17", "-O2", "-static"]
        command += [
            "-ffp-contract=off",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{NATIVE}",
            f"-I{include}",
        ]
        command += [str(Path(__file__).with_name(f"{name}.cpp")), "-o", str(program)]
        sources = [path for place in PROGRAMS[name] for path in sorted(NATIVE.glob(place))]
        here = family == platform.machine()
        command += [str(compiled_already(path) if here else path) for path in sources]
        subprocess.run(command, check=True)
        made[name, family] = program
        return program

    def run(name: str, *arguments: str, family: str = "", cpu: str = "", **env: str) -> str:
        emulator = [needed(f"qemu-{family}")] if family else []
        emulator += ["-cpu", cpu] if cpu else []
        command = [*emulator, str(compiled(name, family or platform.machine())), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, env={**os.environ, **env}
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.native
@pytest.mark.parametrize(("program", "rounds"), [("expand", "60000"), ("kernels", "400")])
def test_all_sets_of_this_processor_give_the_same(run: Run, program: str, rounds: str) -> None:
    """Sound and damaged blocks, samples, rows and filters: the same bytes and refusals."""
    core = _native.load()
    assert core is not None
    here = [name for name in SIMD if core.set_simd(name)]
    assert core.set_simd("")
    assert f"the same in: {' '.join(here)}\n" in run(program, rounds)


@pytest.mark.parametrize(("program", "rounds"), [("expand", "60000"), ("kernels", "400")])
def test_all_sets_of_arm_give_the_same(run: Run, program: str, rounds: str) -> None:
    assert "the same in: scalar neon\n" in run(program, rounds, family="aarch64")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="about processors with x86-64")
@pytest.mark.parametrize(
    ("cpu", "wanted", "sets"),
    [
        ("Nehalem", "", ["scalar"]),
        ("Nehalem", "avx2", ["scalar"]),  # what FASTLOAD_SIMD names does not run there
        ("Haswell", "", ["scalar", "avx2"]),
        ("Haswell", "avx512", ["scalar", "avx2"]),
        ("Haswell", "scalar", ["scalar", "avx2"]),
        ("Haswell", "a typing error", ["scalar", "avx2"]),
    ],
)
def test_the_best_set_of_a_processor_is_chosen(
    run: Run, cpu: str, wanted: str, sets: list[str]
) -> None:
    """And no other runs there: the emulator ends a program with an instruction that it lacks."""
    said = run("kernels", "20", family="x86_64", cpu=cpu, FASTLOAD_SIMD=wanted)
    assert said == (
        f"in use: {wanted if wanted in sets else sets[-1]}\nthe same in: {' '.join(sets)}\n"
    )


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
    flags = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"]
    flags += ["-Wall", "-Wextra", "-Werror"]
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
