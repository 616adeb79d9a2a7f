"""Decode thousands of damaged files under AddressSanitizer and UBSan."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import hostile
import native_core

pytestmark = [pytest.mark.native, pytest.mark.long]

NATIVE = Path(__file__).parents[2] / "fastload" / "_native"
FLAGS = [
    "-std=c++17",
    "-O1",
    "-g",
    "-ffp-contract=off",
    "-D_GLIBCXX_ASSERTIONS",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    f"-I{NATIVE}",
]
LIBRARIES = ["-ljpeg", "-lpthread"]


def optional() -> tuple[list[str], list[str]]:
    """Compiler and linker arguments for the libraries that the core was built with."""
    core = native_core.core()
    png, webp = core.png_version() is not None, core.webp_version() is not None
    flags = ["-DFASTLOAD_LIBDEFLATE"] * png + ["-DFASTLOAD_LIBWEBP"] * webp
    return flags, ["-ldeflate"] * png + ["-lwebpdemux", "-lwebp"] * webp


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the harnesses, built with all of the core but its Python bindings."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to build the fuzz harness with")
    folder = tmp_path_factory.mktemp("fuzz")
    sources = [path for path in NATIVE.rglob("*.cpp") if path.parent.name != "bindings"]
    defines, libraries = optional()
    names = ["fuzz.cpp", "entries.cpp"] + ["fuzz_png.cpp"] * ("-ldeflate" in libraries)
    mains = [Path(__file__).with_name(name) for name in names]

    def build(source: Path) -> str:
        target = str(folder / f"{source.parent.name}-{source.stem}.o")  # stems are not unique
        subprocess.run([compiler, *FLAGS, *defines, "-c", str(source), "-o", target], check=True)
        return target

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(build, [*mains, *sources]))
    for main, linked in zip(mains, objects, strict=False):
        target = folder / main.stem
        subprocess.run(
            [
                *(compiler, *FLAGS, linked, *objects[len(mains) :]),
                *(*LIBRARIES, *libraries, "-o", str(target)),
            ],
            check=True,
        )
    return folder


@pytest.fixture(scope="module")
def fuzzer(built: Path) -> Path:
    return built / "fuzz"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("corpus")
    image = native_core.photo(70, 53)
    files = {
        "444.jpg": native_core.encode(image, subsampling="4:4:4"),
        "422.jpg": native_core.encode(image, subsampling="4:2:2", optimize=True),
        "420.jpg": native_core.encode(image, subsampling="4:2:0"),
        "440.jpg": native_core.as_440(native_core.encode(image, subsampling="4:2:2")),
        "gray.jpg": native_core.encode(image.convert("L")),
        "progressive.jpg": native_core.encode(image, progressive=True),
        "restarts.jpg": native_core.encode(image, restart_marker_blocks=3),
        "cmyk.jpg": native_core.encode(image.convert("CMYK")),
        "24.bmp": native_core.encode(image, "BMP"),
    }
    small = native_core.photo(45, 38)
    files |= {
        "small_444.jpg": native_core.encode(small, subsampling="4:4:4"),
        "small_420.jpg": native_core.encode(small, subsampling="4:2:0"),
        "small_422.jpg": native_core.encode(small, subsampling="4:2:2", optimize=True),
        "small_gray.jpg": native_core.encode(small.convert("L")),
        "small_restarts.jpg": native_core.encode(small, restart_marker_blocks=3),
    }
    gray = files["small_gray.jpg"]
    frame = gray.index(
        b"\xff\xc0"
    )  # one component with 2 x 2 sampling: its blocks keep their order
    assert gray[frame + 11] == 0x11
    files["small_gray_22.jpg"] = gray[: frame + 11] + b"\x22" + gray[frame + 12 :]
    for name in (
        "420.jpg",
        "444.jpg",
        "gray.jpg",
        "progressive.jpg",
        "small_420.jpg",
        "small_444.jpg",
    ):
        files[name.replace(".jpg", ".dct")] = native_core.core().dct_encode(files[name])
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return [str(folder / name) for name in files]


def shared(output: str) -> int:
    """How many images had the same header as the image before."""
    found = re.search(r"(\d+) with the header of the one before", output)
    assert found is not None
    return int(found.group(1))


@pytest.mark.parametrize("simd", ["", "avx2", "scalar"])
def test_damaged_files_do_no_harm(
    fuzzer: Path, corpus: list[str], simd: str, count: Callable[[int, int], int]
) -> None:
    done = subprocess.run(
        [str(fuzzer), "1", str(count(2_000, 100_000)), *corpus],
        env={"FASTLOAD_SIMD": simd} if simd else {},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (shared(done.stdout) > 20) == (simd != "scalar")  # libjpeg reads every header


def test_damaged_jpegs_are_what_libjpegs_own_huffman_decoder_makes_of_them(
    fuzzer: Path, corpus: list[str], count: Callable[[int, int], int]
) -> None:
    jpegs = [name for name in corpus if name.endswith(".jpg")]
    lines = []
    for environment in ({}, {"FASTLOAD_NO_DCT_HOOK": "1"}):
        done = subprocess.run(
            [str(fuzzer), "2", str(count(2_000, 100_000)), *jpegs],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        lines.append(done.stdout.splitlines())
    assert lines[0][0] == lines[1][0]
    assert not lines[0][1].startswith("0 ") and lines[1][1].startswith("0 ")
    assert shared(lines[0][1]) > 20 and shared(lines[1][1]) == 0


def test_entry_points_of_a_jpeg_never_change_a_crop(
    built: Path, corpus: list[str], tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    wide = tmp_path / "wide.jpg"
    wide.write_bytes(native_core.encode(native_core.photo(1100, 60), subsampling="4:4:4"))
    jpegs = [name for name in corpus if name.endswith(".jpg") and "cmyk" not in name]
    for environment in ({}, {"FASTLOAD_SIMD": "scalar"}):
        done = subprocess.run(
            [str(built / "entries"), "3", str(count(2_000, 100_000)), *jpegs, str(wide)],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        known, forgotten = re.findall(r"(\d+) (?:of files that were known|forgotten)", done.stdout)
        assert int(known) > 100
        assert int(forgotten) > 20


def test_damaged_png_and_webp_files_do_no_harm(
    built: Path, tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    if not (built / "fuzz_png").exists():
        pytest.skip("the core was built without libdeflate")
    files = hostile.originals(tmp_path)
    done = subprocess.run(
        [str(built / "fuzz_png"), "4", str(count(2_000, 500_000)), *map(str, files)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    decoded, levels = map(int, re.findall(r"(\d+) (?:of|with)", done.stdout))
    assert decoded > 200 and levels > 50


@pytest.mark.filterwarnings("ignore")  # Pillow's, about what is odd here
def test_damaged_png_and_webp_files_are_pillows_pixels_or_left_to_pillow(
    tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    program = hostile.build(tmp_path)
    if program is None:
        pytest.skip("no g++, or the core was built without libdeflate")
    files = hostile.originals(tmp_path)
    counts = hostile.compare(program, tmp_path, files, 7, count(4_000, 1_000_000))
    assert counts.decoded > counts.png // 10 and counts.levels > counts.png // 20
    assert counts.lenient < 2 + counts.decoded // 1000
