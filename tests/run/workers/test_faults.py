"""Whatever happens to worker processes: a clear error within seconds, and nothing left behind."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from fastload import FastLoader
from fastload.errors import UsageError


class Arrays(Dataset):
    """Ready arrays; at sample 30 something happens."""

    def __init__(self, happens=None):
        self.happens = happens

    def __len__(self):
        return 80

    def __getitem__(self, i):
        if i == 30 and self.happens is not None and get_worker_info() is not None:
            self.happens()
        return np.full((3, 16, 16), i, np.float32), i


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def hangs():
    time.sleep(600)


def raises():
    raise ValueError("on purpose")


def exits():
    os._exit(3)


def takes_all_memory():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))
    bytearray(1 << 30)


CASES = {
    "killed": (killed, {}, RuntimeError, "killed by signal|exited unexpectedly"),
    "hangs": (hangs, {"timeout": 1}, RuntimeError, "timed out after 1 seconds"),
    "raises": (raises, {}, ValueError, "Caught ValueError in DataLoader worker process"),
    "exits": (exits, {}, RuntimeError, "exited unexpectedly"),
    "takes all memory": (takes_all_memory, {}, MemoryError, "Caught MemoryError in DataLoader"),
}


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("case", CASES)
def test_a_worker_that_fails(case, count):
    happens, arguments, error, message = CASES[case]
    # Torch waits 5 s for a worker that hangs before it kills it.
    for _ in range(count(1 if case == "hangs" else 2, 100)):
        fails(Arrays(happens), error, message, **arguments)


def fails(dataset, error, message, **arguments):
    """Iterate over ``dataset`` until ``error`` comes."""
    loader = FastLoader(dataset, 5, num_workers=2, **arguments)
    with pytest.raises(error, match=message):
        for batch in loader:
            assert batch[0].shape == (5, 3, 16, 16)


@pytest.fixture
def forkserver():
    """Python's own server, which stays once it is started: started before anything is counted."""
    from multiprocessing import forkserver

    forkserver.ensure_running()


@pytest.mark.long
@pytest.mark.usefixtures("forkserver", "no_leaks")
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
@pytest.mark.parametrize("case", CASES)
def test_a_worker_that_fails_however_it_was_started(case, context):
    happens, arguments, error, message = CASES[case]
    for _ in range(5):
        fails(Arrays(happens), error, message, multiprocessing_context=context, **arguments)


_KILLED = """
    import os
    import signal
    import sys
    from pathlib import Path

    from torch.utils.data import Dataset

    from fastload import FastLoader

    class Pids(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, i):
            return os.getpid()

    if __name__ == "__main__":
        loader = FastLoader(
            Pids(), num_workers=1, persistent_workers=True, multiprocessing_context="forkserver"
        )
        pid, _ = map(int, loader)
        Path(sys.argv[1]).write_text(str(pid))
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_of_a_fork_server_end_with_a_program_that_is_killed(tmp_path: Path) -> None:
    """torch's live for ever: their parent is the server, which lives as long as they do."""
    program, told = tmp_path / "program.py", tmp_path / "pid"
    program.write_text(textwrap.dedent(_KILLED))
    command = [sys.executable, str(program), str(told)]
    assert subprocess.run(command, timeout=120).returncode == -signal.SIGKILL
    pid, deadline = int(told.read_text()), time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Once(Arrays):
    """Something happens each time that the file ``armed`` is there."""

    def __init__(self, happens, armed):
        super().__init__(happens)
        self.armed = armed

    def __getitem__(self, i):
        if i == 30 and self.armed.exists():
            self.armed.unlink()
            self.happens()
        return super().__getitem__(0), i


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("case", ["killed", "raises"])
def test_after_a_failure_workers_that_persist_serve_the_next_epoch(case, count, tmp_path):
    happens, _, error, message = CASES[case]
    dataset = Once(happens, tmp_path / "armed")
    loader = FastLoader(dataset, 5, num_workers=2, persistent_workers=True)
    for _ in range(count(2, 100)):
        dataset.armed.touch()
        with pytest.raises(error, match=message):
            list(loader)
        assert torch.cat([batch[1] for batch in loader]).tolist() == list(range(80))
    del loader


class Stream(IterableDataset):
    """As Arrays; each worker gives all of it."""

    def __init__(self, happens):
        self.happens = happens

    def __iter__(self):
        return map(Arrays(self.happens).__getitem__, range(80))


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("case", ["killed", "raises"])
def test_a_worker_of_an_iterable_dataset_that_fails(case, count):
    happens, _, error, message = CASES[case]
    for _ in range(count(1, 100)):
        fails(Stream(happens), error, message)


@pytest.mark.usefixtures("no_leaks")
def test_a_dataset_that_cannot_be_pickled(count):
    for _ in range(count(2, 100)):
        dataset = Arrays()
        dataset.lock = threading.Lock()
        loader = FastLoader(dataset, 5, num_workers=1, multiprocessing_context="spawn")
        with (
            pytest.raises(TypeError, match="cannot pickle"),
            pytest.warns(UserWarning, match="pickle error"),
        ):
            iter(loader)
        del loader, dataset


@pytest.mark.usefixtures("no_leaks")
def test_leaving_early(count):
    loader = FastLoader(Arrays(), 5, num_workers=2)
    for attempt in range(count(4, 100)):
        for number, batch in enumerate(loader):  # noqa: B007 - looked at below
            if number == attempt % 12:
                break
        assert isinstance(batch[0], torch.Tensor)
    del loader, batch


@pytest.mark.usefixtures("no_leaks")
def test_an_exception_in_the_loop(count):
    for _ in range(count(2, 100)):
        loader = FastLoader(Arrays(), 5, num_workers=1)
        with pytest.raises(ZeroDivisionError):
            for _batch in loader:
                raise ZeroDivisionError
        del loader, _batch


class Sparse(Dataset):
    """What no slab holds: its parts travel in torch's own files of shared memory."""

    def __len__(self):
        return 80

    def __getitem__(self, i):
        return torch.eye(200).to_sparse()


def without_large_files(worker_id):
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))


@pytest.mark.usefixtures("no_leaks")
def test_a_worker_that_gets_no_shared_memory(count):
    for _ in range(count(2, 100)):
        loader = FastLoader(
            Sparse(), 5, num_workers=2, collate_fn=list, worker_init_fn=without_large_files
        )
        with pytest.raises(
            RuntimeError, match=r"(?s)Caught RuntimeError in DataLoader worker.*torch_"
        ):
            next(iter(loader))
        del loader


# Run in a process that has a small /dev/shm to itself: what comes of one epoch, and what is left.
FULL = """
import os, sys, time
sys.path[:0] = [sys.argv[1]]
import leaks, torch
from torch.utils.data import Dataset
from fastload import FastLoader
from fastload.errors import UsageError

class Large(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return torch.full((1 << 20,), i, dtype=torch.float32)

def epoch(collate_fn):
    loader = FastLoader(Large(), 2, num_workers=2, collate_fn=collate_fn)
    try:
        return [batch[0][0].item() for batch in loader]
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def sparse(samples):
    return [torch.stack(samples).to_sparse()]

list(FastLoader(range(2), num_workers=1))
before = leaks.snapshot()
for _ in range(int(sys.argv[2])):
    print("dense", epoch(lambda samples: torch.stack(samples)))
    print("sparse", epoch(sparse).replace("\\n", " "))
    left = os.listdir("/dev/shm")
    assert not left, left
    with open("/dev/shm/filler", "wb") as file:
        free = os.statvfs("/dev/shm")
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
    print("full", epoch(None))
    os.remove("/dev/shm/filler")
    assert os.listdir("/dev/shm") == [], os.listdir("/dev/shm")
left = leaks.wait_for(before, timeout_s=60)
assert not left, left
"""


def test_where_shared_memory_is_full_batches_still_come_or_say_why(count, tmp_path):
    """A real /dev/shm of 4 MB, as containers have small ones; batches take 8 MB."""
    own = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    mount = "mount -t tmpfs -o size=4m tmpfs /dev/shm"
    if (
        shutil.which("unshare") is None
        or subprocess.run([*own, "sh", "-c", mount], capture_output=True).returncode
    ):
        pytest.skip("this system lets nobody mount a /dev/shm of their own (unshare --mount)")
    script = tmp_path / "full.py"
    script.write_text(FULL)
    rounds = count(2, 100)
    arguments = [sys.executable, str(script), str(Path(__file__).parents[2]), str(rounds)]
    done = subprocess.run(
        [*own, "sh", "-c", f'{mount} && exec "$@"', "sh", *arguments],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert lines.count("dense [0.0, 2.0, 4.0, 6.0]") == rounds
    failed = [line for line in lines if line.startswith("sparse RuntimeError: Caught RuntimeError")]
    assert len(failed) == rounds
    assert done.stdout.count("No space left on device") >= 2 * rounds
    assert sum(line.startswith("full OSError") for line in lines) == rounds


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("persistent", [False, True])
def test_a_fork_in_the_midst_leaves_the_batches_and_the_workers_to_the_parent(persistent):
    loader = FastLoader(Arrays(), 5, num_workers=2, persistent_workers=persistent)
    iterator = iter(loader)
    first = next(iterator)[1].tolist()
    child = os.fork()
    if child == 0:
        try:
            with pytest.raises(UsageError, match="before the fork"):
                next(iterator)
            del iterator, loader
            gc.collect()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    rest = [index for batch in iterator for index in batch[1].tolist()]
    assert first + rest == list(range(80))
    del iterator, loader
