"""FastLoader's own arguments, and what is said of those that moved."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from torch.utils.data import DataLoader

import fastload
from fastload import FastLoader, PackedDataset
from fastload._run.config import INSTEAD
from fastload.errors import UsageError

OWN = {
    "transform", "target_transform", "engine", "dtype", "memory_format", "seed", "decode", "shard",
    "on_error", "max_errors", "cache", "cache_limit", "shuffle_window", "batch_by", "device",
    "batch_transform", "tuned", "snapshot_every_n_steps",
}  # fmt: skip


def test_there_are_eighteen_of_them_and_torchs() -> None:
    ours = inspect.signature(FastLoader).parameters.keys()
    assert ours - inspect.signature(DataLoader.__init__).parameters.keys() - {"in_order"} == OWN


@pytest.mark.parametrize("name", INSTEAD)
def test_an_argument_that_moved_says_where_to(name: str) -> None:
    arguments: dict[str, Any] = {name: None}
    with pytest.raises(UsageError, match=f"^{name} is no argument") as caught:
        FastLoader("absent.lmdb", 8, **arguments)
    assert str(caught.value).endswith(f"type next: {INSTEAD[name]}")


def test_what_moved_to_a_class_is_taken_there() -> None:
    taken = inspect.signature(PackedDataset).parameters.keys()
    moved = {name for name, line in INSTEAD.items() if "PackedDataset(" in line}
    assert moved and moved <= taken


@pytest.mark.parametrize(
    ("call", "given", "meant"),
    [
        (FastLoader, "shufle", "shuffle"),
        (FastLoader, "workers", "num_workers"),
        (FastLoader, "batchsize", "batch_size"),
        (PackedDataset, "cachedir", "cache_dir"),
        (fastload.pack, "encoding", "encode"),
        (fastload.autotune, "batch_sise", "batch_size"),
        (fastload.show, "sample", "samples"),
        (FastLoader, "drop_remainder", "drop_last"),
    ],
)
def test_a_mistyped_argument_is_answered_with_the_nearest_name(
    call: Any, given: str, meant: str
) -> None:
    wanted = f"unexpected keyword argument '{given}'. Did you mean '{meant}'\\?$"
    with pytest.raises(TypeError, match=wanted):
        call("absent.lmdb", **{given: None})
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'zzz'$"):
        call("absent.lmdb", zzz=None)
