"""What fastload takes from torch's iterators: it is there, it is all, and none of it is written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

import deferred_datasets as shapes
from fastload import FastLoader
from fastload._run.workers.torch_iterator import (
    TorchIterator,
    TorchLocalIterator,
    TorchWorkersIterator,
)
from sides import outcome


def names(kind: type) -> set[str]:
    """The attributes and methods of a protocol."""
    found: set[str] = set()
    for each in kind.__mro__:
        if each.__module__ == TorchIterator.__module__:
            found |= each.__annotations__.keys()
            found |= {name for name, value in vars(each).items() if callable(value)}
    return {name for name in found if not name.startswith("__")}


WORKERS, LOCAL = names(TorchWorkersIterator), names(TorchLocalIterator)


@pytest.mark.parametrize(
    ("workers", "name"), [(0, name) for name in sorted(LOCAL)] + [(1, n) for n in sorted(WORKERS)]
)
def test_torch_has_what_fastload_takes_from_it(workers: int, name: str) -> None:
    iterator = iter(DataLoader([0], num_workers=workers))
    assert hasattr(iterator, name), f"torch's iterators have no {name} any more"


class WhichWorker(Dataset[int]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> int:
        info = get_worker_info()
        assert info is not None
        return info.id


def test_torch_gives_batches_to_its_workers_in_turn() -> None:
    loader = DataLoader(WhichWorker(), batch_size=None, num_workers=3)
    assert list(loader) == 4 * [0, 1, 2]


@pytest.mark.parametrize("on_error", ["raise", "refill"])
@pytest.mark.filterwarnings("ignore:epoch")
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.usefixtures("short_farewell")
def test_fastload_takes_nothing_else_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_error: str
) -> None:
    read, written = set(), set()

    def noting(kind: str, names: set[str]) -> Any:
        original = getattr(_MultiProcessingDataLoaderIter, kind)

        def access(self: Any, name: str, *value: Any) -> Any:
            if sys._getframe(1).f_globals["__name__"].startswith("fastload"):
                names.add(name)
            return original(self, name, *value)

        monkeypatch.setattr(_MultiProcessingDataLoaderIter, kind, access)

    noting("__getattribute__", read)
    noting("__setattr__", written)
    paths = shapes.write_photos(tmp_path, 16)
    for i in (3, 9, 15):
        shapes.truncate(paths[i])
    made = outcome(
        FastLoader, shapes.Photos(paths), 2, batch_size=5, num_workers=2, persistent_workers=True,
        on_error=on_error, max_errors=3,
    )  # fmt: skip
    failed = [one for one in made if isinstance(one, tuple)]
    assert len(failed) == (6 if on_error == "raise" else 0), failed
    iterator = iter(FastLoader(shapes.Photos(paths[:3]), 1, num_workers=1))
    while not iterator.ready():
        pass
    assert next(iterator)
    asked = {name for name in read if not name.startswith("__")}
    assert asked <= WORKERS, asked - WORKERS
    assert {"_rcvd_idx", "_workers", "_data_queue"} <= asked
    assert not written
