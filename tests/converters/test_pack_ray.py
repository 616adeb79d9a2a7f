"""``pack(..., ray=...)``: the bytes of one machine, whatever happens to the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fastload import verify
from fastload.cli import main
from fastload.converters import pack
from fastload.errors import DecodeError, UsageError
from fastload.storage import open_store
from storage.formats import picture

COUNT = 700


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small JPEGs in three class folders."""
    root = tmp_path_factory.mktemp("images")
    for index in range(COUNT):
        path = root / f"class {index % 3} é" / f"{index:04d}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(picture(index, 12 + index % 30, 12 + index % 17))
    return root


def files(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in sorted(folder.rglob("*.*"))}


def both(source: Path, folder: Path, name: str, **options: Any) -> tuple[Any, Any]:
    """The reports of this machine and of Ray's tasks, which wrote the same bytes."""
    reports = []
    for where in ("here", "ray"):
        (folder / where).mkdir()
        more = {} if where == "here" else {"ray": "local"}
        reports.append(pack(source, folder / where / name, **options, **more))
    here, there = files(folder / "here"), files(folder / "ray")
    assert list(here) == list(there)
    assert {name for name in here if here[name] != there[name]} == set()
    return reports[0], reports[1]


@pytest.mark.parametrize(
    "name, options",
    [
        ("a.tfrecord", {"shards": 5}),
        pytest.param("a.rec", {"shards": 7}, marks=pytest.mark.long),
        ("a.tar", {"shards": 3, "split": "val=0.2"}),
        pytest.param("a.tar", {"shards": 5, "encode": "png"}, marks=pytest.mark.long),
        pytest.param("a.h5", {"shards": 4}, marks=pytest.mark.long),
        pytest.param("a.pth", {"shards": 4, "resize": "8x8"}, marks=pytest.mark.long),
    ],
)
def test_the_bytes_are_those_of_one_machine(
    ray: Any, images: Path, tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    here, there = both(images, tmp_path, name, **options)
    assert there.parts == tuple(
        type(part)(**{**vars(part), "path": part.path.replace("/here/", "/ray/")})
        for part in here.parts
    )
    assert there.records == COUNT and not there.skipped


@pytest.mark.parametrize("name", ["a.tfrecord", "a.rec", "a.tar"])
def test_files_that_are_left_out_are_those_of_one_machine(
    ray: Any, images: Path, tmp_path: Path, name: str
) -> None:
    source = tmp_path / "source"
    for path in sorted(images.rglob("*.jpg")):
        link = source / path.relative_to(images)
        link.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, link)
    every = sorted(source.rglob("*.jpg"))
    for index in (0, 1, 300, 301, 699):  # the first record of the store is the third sample
        every[index].unlink()
        every[index].write_bytes(b"not an image")
    here = pack(source, tmp_path / f"here-{name}", shards=6, on_error="skip")
    there = pack(source, tmp_path / f"ray-{name}", shards=6, on_error="skip", ray="local")
    assert there.skipped == here.skipped and len(there.skipped) == 5
    assert there.records == COUNT - 5 and not verify(tmp_path / f"ray-{name}").damaged
    with open_store(tmp_path / f"here-{name}") as one, open_store(tmp_path / f"ray-{name}") as two:
        everything = np.arange(COUNT - 5)
        assert one.read(everything) == two.read(everything)
        assert one.keys(everything) == two.keys(everything)
        assert np.array_equal(one.labels, two.labels)


def test_an_image_that_is_broken_is_named(ray: Any, images: Path, tmp_path: Path) -> None:
    bad = tmp_path / "source" / "bad.jpg"
    bad.parent.mkdir()
    bad.write_bytes(b"not an image")
    with pytest.raises(DecodeError, match=r"bad\.jpg") as caught:
        pack(bad.parent, tmp_path / "a.tar", shards=1, ray="local")
    assert caught.value.record == 0
    with pytest.raises(DecodeError, match="expected an image, found"):
        pack(bad.parent, tmp_path / "a.tar", shards=1, on_error="skip", ray="local")
    assert not list(tmp_path.glob("a*"))


class Stop(Exception):
    pass


def stopped(images: Path, path: Path, **options: Any) -> None:
    """A run that ends when some shards are finished, and more are not."""

    def progress(done: int, total: int | None, nbytes: int) -> None:
        if len(list(Path(f"{path}.partial").glob("made/*"))) >= 2:
            raise Stop

    with pytest.raises(Stop):
        pack(images, path, ray="local", progress=progress, **options)


def test_a_run_that_was_stopped_is_resumed(ray: Any, images: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"shards": 12}
    (tmp_path / "here").mkdir()
    pack(images, tmp_path / "here" / "a.tfrecord", **options)
    path = tmp_path / "ray" / "a.tfrecord"
    path.parent.mkdir()
    stopped(images, path, **options)
    made = list(Path(f"{path}.partial").glob("made/*"))
    assert 2 <= len(made) < 12
    assert [one.name for one in path.parent.iterdir()] == ["a.tfrecord.partial"]
    with pytest.raises(UsageError, match="other settings"):
        pack(images, path, ray="local", shards=11)
    with pytest.raises(UsageError, match="other settings"):
        pack(images, path, **options)
    report = pack(images, path, ray="local", **options)
    bounds = [-(-number * COUNT // 12) for number in range(13)]
    there = [int(one.name) for one in made]
    assert report.parts[0].resumed == sum(bounds[k + 1] - bounds[k] for k in there)
    assert files(path.parent) == files(tmp_path / "here")


@pytest.mark.long
def test_a_file_that_changed_meanwhile_is_packed_anew(
    ray: Any, images: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    for index in range(60):
        path = source / "a" / f"{index:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(index, 12, 12))
    target = tmp_path / "a.tfrecord"
    stopped(source, target, shards=20)
    first = min(int(one.name) for one in Path(f"{target}.partial").glob("made/*"))
    changed = source / "a" / f"{3 * first:04d}.jpg"
    changed.write_bytes(picture(999, 14, 14))
    report = pack(source, target, shards=20, ray="local")
    with open_store(target) as store:
        assert store.read(np.array([3 * first]))[0] == changed.read_bytes()
    assert report.parts[0].resumed % 3 == 0 and not verify(target).damaged


@pytest.mark.parametrize(
    "name, options, said",
    [
        ("a.lmdb", {"shards": 2}, r"\.tfrecord.*\.tar.*got the format lmdb"),
        ("a.tar", {}, r"shards=\.\.\. \(--shards\)"),
        ("a.tar", {"shard_nbytes": 9999}, r"shards=\.\.\. \(--shards\)"),
        ("a.h5", {"shards": 2, "compression": "gzip"}, "both"),
        ("a.tar", {"shards": 2, "workers": 64}, "workers: expected at most 2"),
    ],
)
def test_what_cannot_be_divided_is_refused_in_words(
    ray: Any, images: Path, tmp_path: Path, name: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        pack(images, tmp_path / name, **{"ray": "local", **options})
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_divided_is_named_as_given_with_overwrite(
    images: Path, tmp_path: Path
) -> None:
    pack(images, tmp_path / "a.lmdb")
    with pytest.raises(UsageError) as caught:
        pack(images, tmp_path / "a.lmdb", overwrite=True, ray="local", shards=2)
    assert str(caught.value).startswith(repr(str(tmp_path / "a.lmdb")))
    assert [path.name for path in tmp_path.iterdir()] == ["a.lmdb"]


def test_without_ray_the_extra_is_named(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = CliRunner().invoke(
        main, ["pack", str(images), str(tmp_path / "a.tar"), "--shards", "2", "--ray", "local"]
    )
    assert done.exit_code == 1 and "[ray]" in done.output


# A cluster of its own: three nodes on this machine, which share nothing but its folders. Reading a
# sample takes 5 ms, so that the moment of the kill lies between the first and the last shard.
CLUSTER = """
import json, sys, time
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from fastload.converters import pack
from fastload.converters import _open

source, target, options, what = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
ray.init(address=cluster.address, log_to_driver=False)
opened = _open.open_source(source)
inner = type(opened).read

class Slow(type(opened)):
    def read(self, indices):
        for sample in inner(self, indices):
            time.sleep(0.005)
            yield sample
    def gatherer(self):
        return None

opened.__class__ = Slow
killed = False

def progress(done, total, nbytes):
    global killed
    print(done, flush=True)
    if what == "node" and not killed and done >= total // 4:
        killed = True
        here = ray.get_runtime_context().get_node_id()
        other = next(node for node in nodes if node.node_id != here)
        cluster.remove_node(other, allow_graceful=False)

report = pack(opened, target, ray="auto", progress=progress, **options)
found = {"records": report.records, "killed": killed, "resumed": report.parts[0].resumed}
print(json.dumps(found), flush=True)
ray.shutdown()
cluster.shutdown()
"""


def clustered(
    images: Path, target: Path, options: dict[str, Any], what: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CLUSTER, images, target, json.dumps(options), what],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def result(said: str) -> Any:
    """What the child printed at its end; Ray prints lines of its own after it."""
    return json.loads([line for line in said.splitlines() if line.startswith("{")][-1])


@pytest.mark.long
def test_a_node_that_dies_costs_its_tasks_only(images: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    options: dict[str, Any] = {"shards": 30}
    (tmp_path / "here").mkdir()
    pack(images, tmp_path / "here" / "a.tfrecord", **options)
    (tmp_path / "ray").mkdir()
    child = clustered(images, tmp_path / "ray" / "a.tfrecord", options, "node")
    said = child.communicate(timeout=300)[0]
    assert child.returncode == 0
    assert result(said) == {"records": COUNT, "killed": True, "resumed": 0}
    assert files(tmp_path / "ray") == files(tmp_path / "here")


@pytest.mark.long
def test_a_run_whose_machines_all_died_is_resumed(images: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    options = {"shards": 30}
    (tmp_path / "here").mkdir()
    pack(images, tmp_path / "here" / "a.tar", **options)
    target = tmp_path / "ray" / "a.tar"
    target.parent.mkdir()
    child = clustered(images, target, options, "nothing")
    assert child.stdout is not None
    while int(child.stdout.readline()) < COUNT // 3:
        pass
    os.killpg(child.pid, signal.SIGKILL)  # driver, nodes and workers
    child.communicate()
    made = list(Path(f"{target}.partial").glob("made/*"))
    assert 0 < len(made) < 30 and not target.exists()
    child = clustered(images, target, options, "nothing")
    said = child.communicate(timeout=300)[0]
    assert child.returncode == 0 and result(said)["records"] == COUNT
    assert result(said)["resumed"] > 0  # what was finished is not done again
    assert files(target.parent) == files(tmp_path / "here")
