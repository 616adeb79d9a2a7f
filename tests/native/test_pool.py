"""The thread pool: order, limits, fork, Ctrl-C and process exit."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

import native_core
from fastload import _native

pytestmark = pytest.mark.native

PREAMBLE = """
import gc, os, signal, sys, threading, time
from pathlib import Path
import numpy as np
import native_core

paths = sorted(Path(sys.argv[1]).glob("*/*"))
files = native_core.open_files(paths)
core = native_core.core()

def job(samples, threads):
    boxes = np.tile(np.array([[0, 0, 200, 200]], np.int32), (samples, 1))
    file = (np.arange(samples) % len(paths)).astype(np.int32)
    return native_core.submit(
        files, boxes, file=file, resized=[8, 8], out_w=8, out_h=8, threads=threads
    )

def pool_threads():
    # by name; a thread that was just started may not have its name yet
    deadline = time.monotonic() + 60
    while True:
        names = [p.read_text() for p in Path("/proc/self/task").glob("*/comm")]
        count = sum(name.startswith("fastload-") for name in names)
        if count == core.pool_size() or time.monotonic() > deadline:
            return count
"""


def run(photos: Path, script: str) -> str:
    """Run a script in its own process; return its output."""
    tests = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(script), str(photos)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")]),
            # From Python 3.12 on; the test is that a process with threads may fork.
            "PYTHONWARNINGS": "ignore:This process (pid=:DeprecationWarning",
        },
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.stderr == ""
    return done.stdout


def small(photos: Path, samples: int, threads: int) -> native_core.Submitted:
    files = native_core.open_files(sorted(photos.glob("*/*"))[:1])
    boxes = np.tile(np.array([[0, 0, 16, 16]], np.int32), (samples, 1))
    return native_core.submit(files, boxes, threads=threads)


def test_jobs_overlap_and_all_end(photos: Path) -> None:
    jobs = [small(photos, 1 + i % 7, threads=i % 4) for i in range(60)]
    for submitted in reversed(jobs):
        assert (submitted.wait().status == _native.OK).all()
    assert len({submitted.memory[:768].tobytes() for submitted in jobs}) == 1


def test_wait_may_be_called_again_and_by_several_threads(photos: Path) -> None:
    for threads in (0, 2):
        submitted = small(photos, 50, threads)
        waiting = [threading.Thread(target=submitted.job.wait) for _ in range(3)]
        for thread in waiting:
            thread.start()
        submitted.job.wait()
        for thread in waiting:
            thread.join()
        submitted.job.wait()
        assert submitted.job.done
        assert (submitted.status == _native.OK).all()


def test_no_thread_starts_before_the_first_job_nor_for_threads_0(photos: Path) -> None:
    out = run(
        photos,
        """
        print(pool_threads(), core.pool_size())
        assert (job(5, 0).wait().status == 0).all()
        print(pool_threads(), core.pool_size())
        assert (job(5, 1).wait().status == 0).all()
        print(pool_threads(), core.pool_size())
        assert (job(5, 3).wait().status == 0).all()
        assert (job(5, 2).wait().status == 0).all()
        print(pool_threads(), core.pool_size())
        """,
    )
    assert out.split() == ["0", "0", "0", "0", "1", "1", "3", "3"]


def test_jobs_of_two_threads_use_two_threads_in_all(photos: Path) -> None:
    # Thread k works only on jobs that asked for more than k threads, however many jobs there are.
    out = run(
        photos,
        """
        job(4, 4).wait()
        def busy():
            times = {}
            for task in Path("/proc/self/task").iterdir():
                fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
                times[(task / "comm").read_text().strip()] = int(fields[11]) + int(fields[12])
            return times
        before = busy()  # a thread that was just started may not have its name yet
        for j in [job(150, 2) for _ in range(6)]:
            j.wait()
        after = busy()
        used = {n for n in after if after[n] - before.get(n, 0) > 1}
        print(sorted(n for n in used if n.startswith("fastload-")))
        """,
    )
    assert set(eval(out)) <= {"fastload-0", "fastload-1"}  # noqa: S307
    assert out.strip() != "[]"


def test_a_fork_in_the_middle_of_a_job_leaves_both_processes_working(photos: Path) -> None:
    out = run(
        photos,
        """
        done = job(5, 2).wait()
        running = job(3000, 2)
        queued = job(10, 2)
        unstarted = job(10, 0)
        pid = os.fork()
        if pid == 0:
            assert core.pool_size() == 0
            done.job.wait()
            for left in (running, queued, unstarted):
                assert not left.job.done
                try:
                    left.job.wait()
                except RuntimeError as error:
                    assert "forked" in str(error), error
                else:
                    raise AssertionError
            running.job.cancel()
            del running, queued, unstarted, left
            gc.collect()
            again = job(20, 2).wait()
            assert (again.status == 0).all(), (again.status, again.detail)
            assert core.pool_size() == 2
            np.testing.assert_array_equal(again.memory[:960], done.memory)
            sys.stdout.flush()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert not running.job.done
        running.job.cancel()
        assert (queued.wait().status == 0).all()
        assert (unstarted.wait().status == 0).all()
        print("fine")
        """,
    )
    assert out == "fine\n"


def test_a_child_forked_during_the_first_decode_decodes_too(photos: Path) -> None:
    # The first decode tests the decoder, for a millisecond: a child must not wait for a thread of
    # its parent to end that. Each process here has decoded nothing before, and forks a bit later.
    out = run(
        photos,
        """
        def fork(function):
            pid = os.fork()
            if pid == 0:
                signal.alarm(20)
                os._exit(function())
            return os.waitpid(pid, 0)[1]

        def fork_after(delay):
            first = job(20, 2)
            time.sleep(delay)
            return fork(lambda: int((job(4, 1).wait().status != 0).any())) != 0

        print(any(fork(lambda: fork_after(1e-5 * delay)) for delay in range(10, 60)))
        """,
    )
    assert out == "False\n"


def test_a_child_may_use_maps_made_before_the_fork(photos: Path) -> None:
    out = run(
        photos,
        """
        files = native_core.open_files(paths, mapped=True)
        first = job(20, 2).wait()
        pid = os.fork()
        if pid == 0:
            second = job(20, 2).wait()
            os._exit(0 if (second.memory == first.memory).all() else 1)
        assert os.waitpid(pid, 0)[1] == 0
        print("fine")
        """,
    )
    assert out == "fine\n"


@pytest.mark.parametrize("ending", ["", "sys.exit(0)", "left.job.cancel()", "del left"])
def test_a_process_ends_while_jobs_are_left(photos: Path, ending: str) -> None:
    run(photos, f"left = job(100_000, 2)\nqueued = job(100_000, 2)\n{ending}\n")


def test_a_process_ends_while_another_thread_waits(photos: Path) -> None:
    run(
        photos,
        """
        left = job(1_000_000, 2)
        threading.Thread(target=left.job.wait, daemon=True).start()
        time.sleep(0.05)
        """,
    )


def test_a_job_submitted_as_the_interpreter_ends_is_done(photos: Path) -> None:
    # An exit handler registered before ours runs after it and needs a new pool.
    out = run(
        photos,
        """
        class Late:
            def __del__(self):
                pass
        job(5, 2).wait()
        import atexit
        from fastload import _native
        def late():
            result = job(5, 2).wait()
            os.write(1, b"fine\\n" if (result.status == 0).all() else b"wrong\\n")
        atexit.unregister(late)
        atexit.register(late)
        """,
    )
    assert out == "fine\n"


@pytest.mark.parametrize("threads", [0, 2])
def test_ctrl_c_is_heard_while_waiting(photos: Path, threads: int) -> None:
    out = run(
        photos,
        f"""
        left = job(1_000_000, {threads})
        try:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            left.job.wait()
        except KeyboardInterrupt:
            assert not left.job.done
            left.job.cancel()
            print("heard")
        """,
    )
    assert out == "heard\n"
