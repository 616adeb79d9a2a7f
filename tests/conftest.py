"""What every test shares: sample images, counts, the hardware gates, and the check for leaks.

    photos       a folder of 24 generated JPEGs in three class folders
    store        the same, packed
    small_photos, small_store   the same of half the width and height
    test_data    a folder of real photos, where there is one
    count        count(small, full): how often to try; full with --long
    simd         each instruction set of the core in turn, chosen for the test
    logged       what fastload logs during the test, from warnings on
    no_leaks     the test leaves no thread, process, shared memory or file descriptor behind
    short_farewell   torch's DataLoader waits 1 s for workers whose sample raised, instead of 5
    ray          the module, connected to a cluster of two CPUs on this machine

Hypothesis is set up here too: the same examples on every run, more and new ones with --long.
"""

from __future__ import annotations

import atexit
import collections
import dataclasses
import gc
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from _pytest.assertion import rewrite

import huge_pages
import leaks
from instruction_sets import SIMD, chosen

ROOT = Path(__file__).resolve().parent.parent
LONG_TIMEOUT_S = 1800
# Begun first, the longest before the others: one that began last would keep a process alone.
LONGEST = [
    "test_examples.py",
    "bench/test_suites.py",
    "tools/doctor/test_doctor.py",
    "cudart/test_emulated.py",
    "engine/cache/test_cache.py",
    "parity/test_map_style.py",
    "run/test_endings.py",
    "run/test_streams.py",
    "engine/test_processes.py",
    "run/test_set_epoch.py",
    "run/test_resume_datasets.py",
    "tools/tuning/test_autotune.py",
    "trainers/test_accelerate.py",
    "converters/test_url_shards.py",
    "converters/test_pack_ray.py",
    "run/test_on_ray.py",
]
# Images are always deferred, whatever takes less time on this machine; test_choice.py measures.
os.environ["FASTLOAD_DEFER"] = "1"

MOST_PROCESSES = 4  # each holds torch, and many tests start processes and threads of their own

# No deadline, no check of speed: on a busy machine they would measure the neighbours.
_PATIENT = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile(
    "short", max_examples=20, derandomize=True, database=None, **_PATIENT
)
hypothesis.settings.register_profile("long", max_examples=500, print_blob=True, **_PATIENT)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="full counts, and the tests marked long")


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all is imported: a fifth of what it takes, and little of it is garbage
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell's background job: the processes that tests interrupt would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Python 3.14 begins workers by forkserver, where datasets that are defined within a test cannot
    # travel, with torch's DataLoader neither. Tests of other ways name them.
    if multiprocessing.get_start_method(allow_none=True) is None:
        multiprocessing.set_start_method("fork")
    hypothesis.settings.load_profile("long" if config.getoption("--long") else "short")
    worker = getattr(config, "workerinput", None)  # of pytest-xdist
    if worker is not None and not sys.dont_write_bytecode:
        number = int(worker["workerid"].removeprefix("gw"))
        _rewrite_a_part(config, number, worker["workercount"])
    if os.environ.get("FASTLOAD_REQUIRE_NATIVE") == "1" and not _is_whole():
        raise pytest.UsageError(
            "expected the native core with libdeflate and libwebp (FASTLOAD_REQUIRE_NATIVE=1), but "
            "it is not built: run `make setup` and read its output"
        )


def _rewrite_a_part(config: pytest.Config, number: int, count: int) -> None:
    """Have pytest rewrite the assertions of every ``count``-th test file, from ``number`` on.

    The processes of pytest-xdist collect the same files at the same time: in a fresh clone each
    would rewrite them all, which takes 10 s of the CPU.
    """
    for path in sorted((ROOT / "tests").rglob("test_*.py"))[number::count]:
        folder = rewrite.get_cache_dir(path)
        kept = folder / f"{path.stem}{rewrite.PYC_TAIL}"
        if rewrite.try_makedirs(folder) and rewrite._read_pyc(path, kept) is None:
            stat, code = rewrite._rewrite_test(path, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, stat, kept)


@pytest.fixture(autouse=True)
def _nothing_materialised_before() -> None:
    """A test that defers by hand leaves causes, which the next loader would report."""
    state = sys.modules.get("fastload._sources.deferred.thread_state")
    if state is not None:
        state.THREAD.causes.clear()


@pytest.fixture(scope="session", autouse=True)
def users_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Stores at URLs are cached in a folder of the tests' own, in processes that they start too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("users-cache")))
        yield


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist: what `-n auto` means
def pytest_xdist_auto_num_workers() -> int:
    from fastload._base.machine import cpu

    # One more than there are CPUs: many tests wait, for processes, time limits, connections. With
    # two more, the tests take as long (947 s on 2 CPUs).
    return min(cpu.available() + 1, MOST_PROCESSES)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    first = {str(ROOT / "tests" / name): number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: first.get(str(item.path), len(first)))
    skip_long = pytest.mark.skip(reason="long: run by `make test-long`")
    for item in items:
        if config.getoption("--long"):
            if not config.getoption("timeout", None):
                item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))  # full counts: of every test
        elif item.get_closest_marker("long") is not None:
            item.add_marker(skip_long)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave what collection imported out of every later garbage collection.

    That is some 400,000 objects of torch and others: to go through them takes 0.2 s, and far longer
    in a forked child, which copies each of their pages. Every test for leaks collects twice.
    """
    _freeze()
    gc.enable()
    huge_pages.collapse()
    # The interpreter ends as ever: some libraries report what they find alive then. Not before: at
    # its own end pytest collects five times.
    atexit.register(gc.unfreeze)


def _freeze() -> None:
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if "no_leaks" in getattr(item, "fixturenames", ()):
        _freeze()  # what earlier tests imported and keep, too: the next collections are of this one
    if item.get_closest_marker("gpu") is not None and not _has_cuda():
        _absent("FASTLOAD_REQUIRE_CUDA", "no CUDA device")
    if item.get_closest_marker("native") is not None and not _has_native():
        _absent("FASTLOAD_REQUIRE_NATIVE", "the native core is not built")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say whose pixels were compared, and list what was skipped and why, a line for each reason."""
    terminalreporter.write_line(f"pixels: {compared()}")
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped:
        return
    tests = collections.defaultdict[str, list[str]](list)
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        tests[reason.removeprefix("Skipped: ")].append(report.nodeid)
    terminalreporter.section("skipped, and why")
    for reason, names in sorted(tests.items(), key=lambda entry: -len(entry[1])):
        shown = ", ".join(name.removeprefix("tests/") for name in sorted(names)[:3])
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        terminalreporter.write_line(f"{len(names):4} x {reason}: {shown}{more}")


def compared() -> str:
    """The decoders whose pixels the tests compare."""
    import PIL
    from PIL import features

    from fastload import _native

    jpeg = features.version("libjpeg_turbo")
    return f"core ({_native.libraries()}), Pillow {PIL.__version__} (libjpeg-turbo {jpeg})"


@pytest.fixture(params=SIMD)
def simd(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set of the core in turn; skipped where this machine lacks it."""
    with chosen(request.param) as simd:
        yield simd


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 photo-like JPEGs (about 470 x 400, 110 KB) in class0, class1 and class2. Read only."""
    from bench import synthetic

    return synthetic.make_images(tmp_path_factory.mktemp("photos"), 24, classes=3, seed=7)


@pytest.fixture(scope="session")
def store(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``photos`` packed as they are. Read only."""
    from fastload import pack

    path = tmp_path_factory.mktemp("store") / "photos.lmdb"
    pack(photos, path)
    return path


@pytest.fixture(scope="session")
def small_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``photos`` of half the width and height, where only their number counts. Read only."""
    from bench import synthetic

    sizes = tuple((width // 2, height // 2) for width, height in synthetic.PHOTO.sizes)
    kind = dataclasses.replace(synthetic.PHOTO, sizes=sizes)
    folder = tmp_path_factory.mktemp("small-photos")
    return synthetic.make_images(folder, 24, kind=kind, classes=3, seed=7)


@pytest.fixture(scope="session")
def small_store(small_photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``small_photos`` packed as they are. Read only."""
    from fastload import pack

    path = tmp_path_factory.mktemp("store") / "small-photos.lmdb"
    pack(small_photos, path)
    return path


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Class folders of real photos: $FASTLOAD_TEST_DATA, or shared/data/photos beside the clone."""
    given = os.environ.get("FASTLOAD_TEST_DATA")
    folder = Path(given) if given else ROOT.parent / "shared" / "data" / "photos"
    if given and not folder.is_dir():
        pytest.fail(f"expected a folder of photos, but FASTLOAD_TEST_DATA={given} is none")
    if not folder.is_dir():
        pytest.skip("no real photos: set FASTLOAD_TEST_DATA to a folder of class folders")
    return folder


@pytest.fixture(scope="session")
def count(request: pytest.FixtureRequest) -> Callable[[int, int], int]:
    """count(small, full): ``small`` in `make test`, ``full`` in `make test-long`."""
    full = bool(request.config.getoption("--long"))
    return lambda small, large: large if full else small


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Ray on two CPUs of this machine. One for each file of tests: it takes seconds, and 1 GB."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    ray.init(
        address="local",  # whatever else runs here, or left its address
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 << 20,
    )
    yield ray
    ray.shutdown()


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """What fastload logs, from warnings on; pytest's own fixture is not there (see addopts)."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(handler.format(record))  # type: ignore[method-assign]
    logger = logging.getLogger("fastload")
    logger.addHandler(handler)
    yield messages
    logger.removeHandler(handler)


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves a thread, child process, shared memory or descriptor behind."""
    before = leaks.snapshot()
    yield
    left = leaks.wait_for(before, timeout_s=60)
    if left:
        pytest.fail("left behind by the test:\n" + "\n".join(left))


@pytest.fixture
def short_farewell(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's DataLoader waits 5 s for a worker to end if one of its samples raised. Here: 1 s."""
    from torch.utils.data import _utils

    monkeypatch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 1.0)


def _absent(variable: str, reason: str) -> None:
    """Skip, or fail where the environment says that it must not be absent."""
    if os.environ.get(variable) == "1":
        pytest.fail(f"{reason}, and {variable}=1")
    pytest.skip(reason)


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _is_whole() -> bool:
    """Whether the core is built with all libraries, without which tests of a format are skipped."""
    from fastload import _native

    core = _native.load()
    return core is not None and None not in (core.png_version(), core.webp_version())


def _has_native() -> bool:
    from fastload import _native

    return _native.load() is not None
