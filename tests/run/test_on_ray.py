"""``engine="ray"``: the batches are those that this process makes, whatever dies."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torchvision import transforms as T

from fastload import FastLoader
from fastload._engine.on_ray import RayEngine, _RayTicket
from fastload.errors import ChecksumError, UsageError
from fastload.storage import open_store
from sides import assert_same

TRAIN = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.PILToTensor()])
FLOATS = T.Compose([T.RandomResizedCrop(32), T.ToTensor(), T.Normalize([0.5], [0.5])])


def equal(loader: FastLoader, other: FastLoader) -> None:
    batches = list(loader)
    assert len(batches) > 1
    assert_same(batches, list(other))


def both(store: Path, **options: Any) -> tuple[FastLoader, FastLoader]:
    """A loader whose batches Ray's tasks make, and one that makes them itself."""
    given: dict[str, Any] = {"transform": TRAIN, "shuffle": True, "seed": 5, "num_workers": 2}
    given |= options
    return FastLoader(store, 5, engine="ray", **given), FastLoader(store, 5, **given)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"transform": FLOATS, "memory_format": torch.channels_last, "num_workers": 0},
        {"transform": FLOATS, "dtype": "bfloat16", "drop_last": True},
    ],
)
def test_the_batches_are_those_of_this_process(
    ray: Any, store: Path, options: dict[str, Any]
) -> None:
    loader, local = both(store, **options)
    equal(loader, local)
    equal(loader, local)  # another epoch
    assert "on Ray" in loader.explain()


def test_a_folder_is_read_by_the_tasks_too(ray: Any, photos: Path) -> None:
    equal(*both(photos))


def test_resuming_gives_the_next_batch(ray: Any, store: Path) -> None:
    loader, local = both(store)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    again, _ = both(store)
    again.load_state_dict(state)
    rest = list(again)
    for (images, _), (expected, _) in zip(rest, list(local)[1:], strict=True):
        assert torch.equal(images, expected)


@pytest.fixture
def damaged(store: Path, tmp_path: Path) -> Path:
    """A store with a record that has changed since it was written."""
    path = Path(shutil.copy(store, tmp_path / "damaged.lmdb"))
    with open_store(path) as opened:
        offset = int(opened.places(np.array([7])).offset[0])
    with open(path, "r+b") as file:
        file.seek(offset + 5000)
        file.write(b"damaged")
    return path


def test_bad_samples_are_those_of_this_process(ray: Any, damaged: Path) -> None:
    equal(*both(damaged, on_error="skip", max_errors=5))
    equal(*both(damaged, on_error="refill", max_errors=5))
    loader, local = both(damaged, shuffle=False)
    errors = []
    for one in (loader, local):
        with pytest.raises(ChecksumError) as caught:
            list(one)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def tasks() -> list[psutil.Process]:
    """The processes that run tasks of this engine, or did."""
    mine = psutil.Process().children(recursive=True)
    found = []
    for one in mine:
        with contextlib.suppress(psutil.Error):
            if one.name().startswith(("ray::fill", "ray::IDLE")):
                found.append(one)
    return found


@pytest.mark.long
def test_processes_that_die_are_not_noticed(ray: Any, store: Path) -> None:
    loader, local = both(store, prefetch_factor=1)
    expected = list(local)
    seen, killed = [], 0
    for number, (images, _) in enumerate(loader):
        seen.append(images)
        if number in (0, 2):
            for one in tasks():
                with contextlib.suppress(psutil.Error):
                    one.send_signal(signal.SIGKILL)
                    killed += 1
    assert killed >= 2
    assert len(seen) == len(expected)
    assert all(torch.equal(one, other) for one, (other, _) in zip(seen, expected))


def test_so_many_batches_and_no_more_are_on_their_way(
    ray: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[_RayTicket, int]] = []  # an epoch of an earlier test may end only now
    submit, settle = RayEngine._submit, _RayTicket.settle

    def counted(self: RayEngine, *given: Any, **named: Any) -> Any:
        ticket = submit(self, *given, **named)
        assert isinstance(ticket, _RayTicket)
        steps.append((ticket, 1))
        return ticket

    def settled(self: _RayTicket) -> Any:
        steps.append((self, -1))
        return settle(self)

    monkeypatch.setattr(RayEngine, "_submit", counted)
    monkeypatch.setattr(_RayTicket, "settle", settled)
    loader = FastLoader(store, 2, transform=TRAIN, engine="ray", num_workers=2, prefetch_factor=2)
    for _ in loader:
        time.sleep(0.05)  # the tasks are faster
    engine = loader.inspect().engine
    assert isinstance(engine, RayEngine)
    under_way = list(
        itertools.accumulate(step for ticket, step in steps if ticket._engine is engine._local)
    )
    assert max(under_way) == 4 and under_way[-1] == 0


@pytest.mark.usefixtures("no_leaks")
def test_a_loop_that_is_left_leaves_nothing(ray: Any, store: Path) -> None:
    loader, _ = both(store)
    for _ in loader:
        break
    del loader


@pytest.mark.parametrize(
    "options, said",
    [
        ({"cache": "ram"}, "leave one of them out"),
        ({"num_workers": "auto"}, "expected a number of num_workers"),
        ({"transform": lambda image: image}, "engine='ray' cannot read this dataset"),
        ({"transform": [TRAIN, FLOATS]}, "engine='ray' is not possible: .* several views"),
    ],
)
def test_what_is_not_possible_is_refused_in_words(
    store: Path, options: dict[str, Any], said: str
) -> None:
    given = {"transform": TRAIN, "engine": "ray", **options}
    with pytest.raises(UsageError, match=said):
        iter(FastLoader(store, 4, **given))


@pytest.mark.long
def test_without_a_cluster_it_says_how_to_connect(store: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    code = (
        "import sys\n"
        "from fastload import FastLoader\n"
        "next(iter(FastLoader(sys.argv[1], 4, engine='ray')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, store], capture_output=True, text=True)
    assert "call ray.init(address=...) first" in done.stderr


# A cluster of its own: three nodes on this machine. The one that dies holds a batch that was made,
# and that nobody has fetched yet.
CLUSTER = """
import json, sys, time
import ray, torch
from ray.cluster_utils import Cluster
from ray.experimental import get_object_locations
from torchvision import transforms as T
from fastload import FastLoader
from fastload._engine.on_ray import RayEngine, _RayTicket

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
nodes = {node.node_id: node for node in (cluster.add_node(num_cpus=1) for _ in range(2))}
ray.init(address=cluster.address, log_to_driver=False)
tf = T.Compose([T.RandomResizedCrop(128), T.ToTensor()])  # too large for Ray to send it at once
options = {"shuffle": True, "seed": 5, "transform": tf, "num_workers": 3, "prefetch_factor": 2}

tickets, most = [], 0
submit, settle = RayEngine._submit, _RayTicket.settle

def submitted(self, *given, **options):
    global most
    tickets.append(submit(self, *given, **options))
    most = max(most, len(tickets))
    return tickets[-1]

def settled(self):
    tickets.remove(self)
    return settle(self)

def holder():
    # the node of a batch that waits
    for _ in range(600):
        held = get_object_locations([ticket._reference for ticket in list(tickets)])
        for where in held.values():
            for name in where["node_ids"]:
                if name in nodes:
                    return name
        time.sleep(0.1)
    raise AssertionError("no batch was made on another node")

RayEngine._submit, _RayTicket.settle = submitted, settled
batches = list(FastLoader(sys.argv[1], 2, **options))
equal, killed = [], None
for number, (images, labels) in enumerate(FastLoader(sys.argv[1], 2, engine="ray", **options)):
    equal.append(torch.equal(images, batches[number][0]))
    if number == 2:
        killed = holder()
        cluster.remove_node(nodes[killed], allow_graceful=False)
found = {"equal": equal, "batches": len(batches), "most": most, "killed": killed is not None}
print(json.dumps(found), flush=True)
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.long
def test_a_node_that_dies_with_batches_that_were_made_is_not_noticed(store: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    done = subprocess.run(
        [sys.executable, "-c", CLUSTER, store], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    assert found == {"equal": [True] * 12, "batches": 12, "most": 6, "killed": True}
