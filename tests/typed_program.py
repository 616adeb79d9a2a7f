"""A typed program of a user, for mypy and pyright (test_hints.py). It is checked, not run.

A ``type: ignore`` here is a mistake that has to be found: strict checkers complain about one that
silences nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from typing_extensions import assert_type

import fastload
from fastload import FastLoader, PackedDataset
from fastload.converters import PackReport
from fastload.hints import BadSampleStats, Bound, Engine, OnError, Stats


class Photos(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(3, 8, 8), index


def batches_are_unpacked_without_casts() -> float:
    total = 0.0
    for images, labels in FastLoader("imgs.lmdb", batch_size=4):
        total += images.float().mean().item() + labels.sum().item()
    for batch in FastLoader(PackedDataset("imgs.lmdb", fields="all")):
        total += batch["image"].mean().item()
    for images, _labels in fastload.watch(FastLoader(Photos())):
        total += images.mean().item()
    return total


def loaders_are_generic() -> DataLoader[tuple[torch.Tensor, int]]:
    assert_type(FastLoader("imgs.lmdb"), FastLoader[Any])
    loader = FastLoader(Photos(), batch_size=4, num_workers="auto")
    assert_type(loader, FastLoader[tuple[torch.Tensor, int]])
    assert_type(len(loader), int)
    return loader


def figures_have_types(loader: FastLoader[Any]) -> None:
    stats = loader.stats()
    assert_type(stats, Stats)
    assert_type(stats["images_per_s"], float)
    assert_type(stats["stages_s"], dict[str, float])
    assert_type(stats["errors"], list[BadSampleStats])
    assert_type(stats["errors"][0]["file"], str | None)
    assert_type(stats["bound"], Bound)
    stats["images_per_sec"]  # type: ignore[typeddict-item]
    if stats["bound"] == "cpu":  # type: ignore[comparison-overlap]
        pass


def a_loader_of_my_own(engine: Engine, on_error: OnError = "raise") -> FastLoader[Any]:
    return FastLoader("imgs.lmdb", engine=engine, on_error=on_error)


def words_are_known() -> None:
    a_loader_of_my_own("native", lambda index, error: "skip" if index else "raise")
    FastLoader(
        PackedDataset("imgs.lmdb", check_crc="always"),
        cache="dct",
        decode="scaled",
        on_error="refill",
    )
    FastLoader(PackedDataset("voc.lmdb", joint={"mask": "mask", "boxes": "xyxy"}), engine="dali")
    FastLoader("imgs.lmdb", engine="natve")  # type: ignore[arg-type]
    FastLoader("imgs.lmdb", cache="disk")  # type: ignore[arg-type]
    FastLoader("imgs.lmdb", decode="fast")  # type: ignore[arg-type]
    FastLoader("imgs.lmdb", fields="all")  # type: ignore[call-arg]
    FastLoader(PackedDataset("imgs.lmdb", check_crc="once"))  # type: ignore[arg-type]
    FastLoader("imgs.lmdb", on_error="ignore")  # type: ignore[arg-type]
    FastLoader("imgs.lmdb", on_error=lambda index, error: "drop")  # type: ignore[arg-type,return-value]
    FastLoader("imgs.lmdb", num_workers="all")  # type: ignore[arg-type]
    FastLoader(PackedDataset("voc.lmdb", joint={"boxes": "yxyx"}))  # type: ignore[dict-item]


def packing_has_types() -> None:
    report = fastload.pack("imgs", "imgs.lmdb", encode="dct", on_error="skip")
    assert_type(report, PackReport)
    assert_type(report.records, int)
    fastload.pack("imgs", "imgs.lmdb", encode="dtc")  # type: ignore[arg-type]
    fastload.pack("imgs", "imgs.lmdb", on_error="replace")  # type: ignore[arg-type]
    fastload.pack("imgs", "imgs.h5", compression="zip")  # type: ignore[arg-type]
    fastload.show("imgs.lmdb", decode="scale")  # type: ignore[arg-type]
