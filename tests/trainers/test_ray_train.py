"""FastLoader in Ray Train: it divides by itself, and its state lies in Ray's checkpoints."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fastload.ray
from fastload import FastLoader, open_writer, pack
from fastload.errors import DataError, UsageError
from fastload.storage import Record
from storage.formats import picture

COUNT = 101

# Each worker writes down the samples it was given. With "stop" it ends in the middle of the epoch.
TRAINING = """
import json, sys, tempfile
from pathlib import Path
import ray, ray.train, ray.train.torch
import torch
from torchvision import transforms as T

def train(config):
    import fastload.ray
    from fastload import FastLoader
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    transform = T.Compose([T.RandomResizedCrop(8), T.ToTensor()])
    loader = FastLoader(
        config["store"], 4, shuffle=True, seed=3, transform=transform, shard=True, num_workers=1,
        engine=config["engine"],
    )
    resumed = fastload.ray.restore(loader)
    seen = []
    for number, (images, labels) in enumerate(loader):
        seen.append([labels.tolist(), images.double().sum().item()])
        if number == config["stop"]:
            break
    padding = loader.stats()["padding"]
    told = {"seen": seen, "resumed": resumed, "world": world, "padding": padding}
    Path(config["folder"], f"{rank}.json").write_text(json.dumps(told))
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if rank == 0:
            fastload.ray.save(loader, folder)
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({}, checkpoint=checkpoint)

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config=given,
        scaling_config=ray.train.ScalingConfig(num_workers=given["workers"]),
        run_config=ray.train.RunConfig(name="run", storage_path=given["storage"]),
    )
    trainer.fit()
"""


def run(
    folder: Path, store: Path, workers: int, stop: int, engine: str = "auto"
) -> list[dict[str, Any]]:
    """What each worker was given; ``stop``: after how many batches, -1: at the end."""
    told = folder / f"{workers}"
    told.mkdir(parents=True)
    script = folder / "job.py"
    script.write_text(TRAINING)
    given: dict[str, Any] = {
        "store": str(store),
        "folder": str(told),
        "workers": workers,
        "stop": stop,
    }
    given["engine"] = engine
    done = subprocess.run(
        [sys.executable, script, json.dumps({**given, "storage": str(folder / "storage")})],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((told / f"{rank}.json").read_text()) for rank in range(workers)]


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose labels are the numbers of its records."""
    path = tmp_path_factory.mktemp("numbered") / "a.lmdb"
    with open_writer(path) as writer:
        size = {"width": 12, "height": 12}
        writer.append(
            [Record(data=picture(i, 12, 12), label=i, key=str(i), **size) for i in range(COUNT)]
        )
    return path


def samples(workers: list[dict[str, Any]]) -> list[int]:
    return [index for one in workers for labels, _ in one["seen"] for index in labels]


@pytest.mark.long
def test_fewer_workers_read_what_is_left_exactly_once(numbered: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray.train", reason="Ray is not installed")
    first = run(tmp_path, numbered, workers=3, stop=3)
    assert {one["world"] for one in first} == {3} and not any(one["resumed"] for one in first)
    begun = samples(first)
    assert len(begun) == len(set(begun)) == 3 * 4 * 4
    second = run(tmp_path, numbered, workers=2, stop=-1)
    assert all(one["resumed"] for one in second)
    rest = samples(second)
    padding = sum(one["padding"] for one in second)
    assert padding == (COUNT - len(begun)) % 2
    assert set(begun) | set(rest) == set(range(COUNT))
    assert len(begun) + len(rest) == COUNT + padding


@pytest.mark.long
def test_a_trainer_whose_batches_other_cpus_decode_gets_the_same_ones(
    numbered: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ray.train", reason="Ray is not installed")
    local = run(tmp_path / "local", numbered, workers=2, stop=-1)
    elsewhere = run(tmp_path / "ray", numbered, workers=2, stop=-1, engine="ray")
    assert [one["seen"] for one in elsewhere] == [one["seen"] for one in local]
    assert set(samples(elsewhere)) == set(range(COUNT))


@pytest.mark.long
def test_the_blocks_of_the_documentation_run(photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray.train", reason="Ray is not installed")
    page = Path(__file__).resolve().parents[2] / "docs" / "distributed.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    mine = [block for block in blocks if re.search("^import ray", block, re.MULTILINE)]
    assert len(mine) == 2
    pack(photos, tmp_path / "imgs.lmdb")
    for block in mine:
        script = tmp_path / "job.py"
        code = block.replace('address="auto"', "num_cpus=2, include_dashboard=False")
        script.write_text(
            f"import ray\nray.init(address='local', num_cpus=4)\n{code}" if code == block else code
        )
        done = subprocess.run(
            [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stderr[-3000:]
    assert list((tmp_path / "runs").rglob("fastload-loader.pt"))


def test_the_state_lies_in_the_folder_and_comes_back(
    numbered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = pytest.importorskip("ray.train", reason="Ray is not installed")

    def made() -> FastLoader:
        return FastLoader(numbered, 4, shuffle=True, seed=3, decode="exact", num_workers=1)

    monkeypatch.setattr(train, "get_checkpoint", lambda: None)
    assert fastload.ray.restore(made()) is False
    loader = made()
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    fastload.ray.save(loader, tmp_path)
    expected = [batch[1].tolist() for batch in batches]
    assert os.listdir(tmp_path) == ["fastload-loader.pt"]

    checkpoint = train.Checkpoint.from_directory(tmp_path)
    monkeypatch.setattr(train, "get_checkpoint", lambda: checkpoint)
    again = made()
    assert fastload.ray.restore(again) is True
    assert [batch[1].tolist() for batch in again] == expected
    with pytest.raises(UsageError, match=r"'fastload-val\.pt'.*found fastload-loader\.pt"):
        fastload.ray.restore(again, name="val")
    (tmp_path / "fastload-loader.pt").write_bytes(b"damaged")
    with pytest.raises(DataError, match="cannot be read"):
        fastload.ray.restore(again)
