"""tests/gpu over an emulated CUDA: torch's own allocators, streams and events, without a GPU.

A process is started with the emulated runtime (emulated.h) in front of libcudart, and runs tests
of the transfer stage and the device stage there. Nothing of it is a GPU: what it shows is the order
of copies, and who owns which memory when.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

# The whole of tests/gpu takes minutes.
pytestmark = pytest.mark.timeout(600)

HERE = Path(__file__).resolve().parent
# By the names that torch looks for the driver and its management by.
LIBRARIES = {
    "libcuda.so.1": ["memory.cpp", "runtime.cpp", "streams.cpp"],
    "libnvidia-ml.so.1": ["nvml.cpp"],
}
NEVER = "not dali"  # which decodes on a real device
# Of streams and memory, those that find most in a second.
QUICK = [
    f"tests/gpu/test_{name}"
    for name in (
        "transfer.py::test_batches_are_whole_and_memory_let_go_of_is_not_written_to_early",
        "transfer.py::test_leaving_early_leaves_no_copy_and_a_second_loader_works",
        "cuda.py::test_memory_is_registered_once_and_given_back",
        "cuda.py::test_batches_let_go_of_in_one_stream_after_another",
        "callers.py::test_two_loaders_may_share_a_side_stream",
        "stress.py::test_errors_come_at_their_batch_and_those_around_it_are_whole",
    )
]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the libraries that are put in front of CUDA's."""
    if (torch.version.cuda or "").split(".")[0] != "13":
        pytest.skip("torch is not built for CUDA 13")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    compiler = os.environ.get("CXX", "g++").split()
    if shutil.which(compiler[0]) is None:
        pytest.skip("no C++ compiler")
    headers = _headers()
    if headers is None:
        pytest.skip("no headers of CUDA 13 (nvidia-cuda-runtime)")
    folder = tmp_path_factory.mktemp("emulated")
    flags = ["-std=c++17", "-O0", "-shared", "-fPIC", "-pthread"]
    include = ["-I", str(HERE), "-isystem", str(headers)]
    for library, sources in LIBRARIES.items():
        output = [f"-Wl,-soname,{library}", "-o", str(folder / library)]
        paths = [str(HERE / name) for name in sources]
        done = subprocess.run(
            [*compiler, *flags, *include, *paths, *output], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-3000:]
    return folder


def _headers() -> Path | None:
    """The folder of CUDA's headers that came with torch."""
    if importlib.util.find_spec("nvidia") is None:
        return None
    found = importlib.util.find_spec("nvidia.cu13")
    places = found.submodule_search_locations if found is not None else None
    folders = [Path(place) / "include" for place in places or ()]
    return next((folder for folder in folders if (folder / "cuda_runtime_api.h").is_file()), None)


def _run(libraries: Path, seed: int, files: list[str], chosen: str = "") -> str:
    """Run tests in a process with the emulated CUDA; returns what pytest says at its end."""
    root = HERE.parent.parent
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "plugin", "-q", "-k", chosen, *files],
        env={
            **os.environ,
            "LD_PRELOAD": ":".join(str(libraries / name) for name in LIBRARIES),
            "PYTHONPATH": os.pathsep.join(paths),
            "EMULATED_CUDA_SEED": str(seed),
            "FASTLOAD_REQUIRE_CUDA": "1",
        },
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


def test_a_transfer_stage_that_leaves_something_out_is_found_out(
    emulated: Path, count: Callable[[int, int], int]
) -> None:
    for seed in range(count(1, 5)):
        assert "skipped" not in _run(emulated, seed, ["tests/cudart/mutants.py", *QUICK])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_the_tests_of_a_gpu_pass_over_the_emulated_one(emulated: Path, seed: int) -> None:
    names = ("callers", "cuda", "transfer", "stress", "stand_in")
    files = [f"tests/gpu/test_{name}.py" for name in names]
    assert "skipped" not in _run(emulated, seed, files, NEVER)
