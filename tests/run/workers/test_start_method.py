"""How worker processes start: what new ones have already, and what a fork server prepares."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import textwrap
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import deferred_datasets as shapes
from fastload import FastLoader
from fastload._run.workers import choice, dataset_epoch, start_method
from fastload._run.workers.choice import Choice
from fastload._run.workers.start_method import is_prepared

_MODULE = "fastload._run.workers.preloaded"

_PROGRAM = """
    import multiprocessing
    import sys

    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset
    from torchvision.transforms.functional import to_tensor

    from fastload import FastLoader

    HAD = []

    def begin(worker):
        HAD.append("fastload._sources.deferred.patches.pillow" in sys.modules)

    class Photos(Dataset):
        def __len__(self):
            return 96

        def __getitem__(self, i):
            image = Image.open(sys.argv[1 + i % (len(sys.argv) - 1)]).convert("RGB")
            return to_tensor(image.resize((40, 30))), HAD[0], "colorsys" in sys.modules

    if __name__ == "__main__":
        multiprocessing.set_start_method("forkserver")
        multiprocessing.set_forkserver_preload(["__main__", "colorsys"])
        loader, plain = (
            kind(Photos(), batch_size=16, num_workers=2, worker_init_fn=begin)
            for kind in (FastLoader, DataLoader)
        )
        for _ in range(2):
            for (images, had, wanted), (expected, _, _) in zip(loader, plain):
                assert torch.equal(images, expected)
                assert had.all() and wanted.all()
        print(loader.stats()["images_deferred"])
"""


@pytest.mark.native
def test_a_fork_server_has_what_its_workers_need(tmp_path: Path) -> None:
    photos = shapes.write_photos(tmp_path)
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(_PROGRAM))
    command = [sys.executable, str(program), *map(str, photos)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A fork server that does not run yet, in the place of Python's."""
    server = SimpleNamespace(_preload_modules=["__main__"], _forkserver_pid=None)
    monkeypatch.setattr(forkserver, "_forkserver", server)
    monkeypatch.setattr(
        multiprocessing,
        "set_forkserver_preload",
        lambda names: setattr(server, "_preload_modules", names),
    )
    return server


def test_python_keeps_what_is_asked_for_where_it_is_looked_for() -> None:
    known = forkserver._forkserver  # type: ignore[attr-defined]
    assert isinstance(known._preload_modules, list)
    assert hasattr(known, "_forkserver_pid")


def test_forked_workers_are_prepared_and_spawned_ones_are_not() -> None:
    assert is_prepared("fork")
    assert not is_prepared("spawn")
    assert is_prepared(multiprocessing.get_context("fork"))


def test_a_server_that_does_not_run_is_asked_once(server: Any) -> None:
    for _ in range(2):
        assert is_prepared("forkserver")
        assert server._preload_modules == ["__main__", _MODULE]
        server._forkserver_pid = 1


@pytest.mark.parametrize(
    "attributes", [{"_forkserver_pid": 1}, {"_preload_modules": None}, {"_preload_modules": ()}]
)
def test_a_server_that_runs_or_is_unknown_is_left_alone(
    server: Any, attributes: dict[str, Any]
) -> None:
    vars(server).update(attributes)
    assert not is_prepared("forkserver")
    assert server._preload_modules in (["__main__"], None, ())


def test_the_module_that_is_asked_for_is_there() -> None:
    assert start_method._PRELOADED == _MODULE
    assert (Path(start_method.__file__).parent / "preloaded.py").exists()


def test_workers_that_begin_anew_do_so_only_where_this_epoch_pays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choice._TOTAL, "ns", 1e12)
    known = Choice()
    known.begun = known._seen = True
    known.eagerly.add(10, 10 * 1_000_000)
    known.expect(1600, 2, anew=True)
    assert known.waits
    known.expect(2400, 2, anew=True)
    assert not known.waits
    known.expect(1600, 2)
    assert not known.waits


def test_a_first_epoch_of_many_samples_waits_in_workers_that_begin_anew() -> None:
    for anew in (False, True):
        known = Choice()
        known.expect(10_000, 2, anew=anew)
        assert known.waits is anew


_WITHOUT_MAIN = """
    import sys

    from torch.utils.data import Dataset

    from fastload import FastLoader

    class Numbers(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            return i

    for batch in FastLoader(Numbers(), num_workers=1, multiprocessing_context=sys.argv[1]):
        pass
"""


@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.long), "forkserver"])
def test_a_script_that_each_worker_would_run_again_is_told_so(tmp_path: Path, method: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(_WITHOUT_MAIN))
    command = [sys.executable, str(program), method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert 'if __name__ == "__main__":' in done.stderr.splitlines()[-1]


def test_a_class_that_only_a_notebook_has_is_named() -> None:
    command = [sys.executable, "-c", textwrap.dedent(_WITHOUT_MAIN), "forkserver"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "imports Numbers in each of them" in last
    assert "multiprocessing_context='fork'" in last


def test_an_epoch_that_was_left_early_says_nothing_of_the_next_ones_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FASTLOAD_DEFER", raising=False)
    monkeypatch.setattr(dataset_epoch, "_begins_anew", lambda config: True)
    loader: FastLoader[Any] = FastLoader(range(100_000), 2, num_workers=2)  # type: ignore[arg-type]
    loader._loader_resources.choice = begun = Choice()
    begun.eagerly.add(10, 50_000_000)
    begun._seen, begun.begun, begun._made = True, True, 64
    assert not dataset_epoch._expecting(loader._loader_config(), loader._loader_resources).waits
