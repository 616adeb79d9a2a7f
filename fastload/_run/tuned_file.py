"""The file that autotune writes: a machine, a dataset, and the best ``Point`` for them."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch.utils.data import IterableDataset

from .._base import callers
from .._base.machine import cpu
from .._base.whole_file import whole_file
from .._version import __version__
from ..errors import DataError
from ..hints import CacheKind, Decode, NumWorkers
from ..storage._read import read_regular
from .config import PREFETCH, LoaderConfig

FORMAT = "fastload.tune"
VERSION = 1

ENDLESS = 1 << 40
"""The length that is noted for a dataset without one."""

_MOST_NBYTES = 64 << 20  # a search writes some kilobytes
_LOOKED_AT = 1000  # number of records whose sizes are part of a fingerprint


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class Point:
    """One setting. Points are ordered by the resources that they use, the cheapest first.

    Attributes:
        num_workers: threads of fastload's engines, else processes; 0: the loop makes batches.
        prefetch_factor: batches ahead: in total for an engine, else per process.
        cache: as FastLoader's argument; "" means none.
        pin_memory: as torch's argument; tried only with CUDA.
        decode: as FastLoader's argument; "scaled" changes pixels, so it is tried only if asked for.
    """

    num_workers: int
    batch_size: int
    prefetch_factor: int = PREFETCH
    cache: str = ""
    pin_memory: bool = False
    decode: str = "exact"

    def arguments(self) -> dict[str, Any]:
        """The setting as arguments of FastLoader."""
        arguments: dict[str, Any] = {
            "num_workers": self.num_workers,
            "batch_size": self.batch_size,
        }
        if self.num_workers:
            arguments["prefetch_factor"] = self.prefetch_factor
        if self.cache:
            arguments["cache"] = self.cache
        if self.pin_memory:
            arguments["pin_memory"] = True
        if self.decode != "exact":
            arguments["decode"] = self.decode
        return arguments

    def __str__(self) -> str:
        first = [f"num_workers={self.num_workers}", f"batch_size={self.batch_size}"]
        return ", ".join([*first, *self.others()])

    def others(self) -> list[str]:
        """Its arguments besides num_workers and batch_size, as they are written in code."""
        return [
            f"{name}={value!r}"
            for name, value in self.arguments().items()
            if name not in ("num_workers", "batch_size")
        ]


def fingerprint(dataset: object) -> dict[str, str | int]:
    """Identifies a dataset: class, length, and sizes of some records."""
    facts: dict[str, str | int] = {"kind": type(dataset).__name__}
    if not isinstance(dataset, IterableDataset) or hasattr(dataset, "__len__"):
        try:
            facts["samples"] = len(dataset)  # type: ignore[arg-type]
        except TypeError:
            facts["samples"] = ENDLESS
    store = getattr(dataset, "store", None)
    if store is not None and store.format == "folder" and getattr(dataset, "classes", None):
        facts["kind"] = "ImageFolder"  # one file serves a script's ImageFolder and its path
    elif store is not None:
        few = np.arange(len(store))[:: max(1, len(store) // _LOOKED_AT)][:_LOOKED_AT]
        facts["format"] = store.format
        facts["records"] = zlib.crc32(store.places(few).nbytes.tobytes())
    return facts


def machine() -> dict[str, str | int]:
    """Identifies this machine."""
    return {
        "fastload": __version__,
        "cpu": cpu_name(),
        "cpus": cpu.available(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }


def cpu_name() -> str:
    """Of this machine's processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a tuning file.

    Raises DataError if it is not one, or of a version that this fastload does not support.
    """
    try:
        content = json.loads(read_regular(os.fspath(path), _MOST_NBYTES))
        if content["format"] != FORMAT or content["version"] != VERSION:
            raise ValueError(f"format {content['format']!r} version {content['version']!r}")
        _check(Point(**content["chosen"]))
        for name in ("machine", "dataset"):
            if not isinstance(content[name], dict):
                raise ValueError(f"{name}: a {type(content[name]).__name__}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"expected a file that `fastload autotune` wrote: {type(error).__name__}: {error}; "
            "tune again",
            path=os.fspath(path),
        ) from error
    tuned: dict[str, Any] = content
    return tuned


def _check(point: Point) -> None:
    """Raise ValueError for a setting that no search has found."""
    for field in dataclasses.fields(Point):
        value = getattr(point, field.name)
        if type(value).__name__ != field.type:
            raise ValueError(f"{field.name}: expected {field.type}, found {value!r}")
    choices = {"cache": ("", *get_args(CacheKind)), "decode": get_args(Decode)}
    for name, allowed in choices.items():
        if getattr(point, name) not in allowed:
            raise ValueError(f"{name}: expected one of {allowed}, found {getattr(point, name)!r}")
    least = {"num_workers": 0, "batch_size": 1, "prefetch_factor": 1}
    for name, at_least in least.items():
        if not at_least <= getattr(point, name) < 1 << 31:
            raise ValueError(f"{name}: found {getattr(point, name)}")


def complete(
    config: LoaderConfig, dataset: object, num_workers: NumWorkers | None
) -> tuple[LoaderConfig, NumWorkers | None]:
    """``config`` and ``num_workers`` with the settings of its file for arguments not given.

    But for the batch size, which affects training. If the file is for another machine or dataset, a
    warning says what differs, and nothing is applied. Raises DataError if it is no tuning file.
    """
    assert config.tuned is not None
    content = load(config.tuned)
    differ = _differences(content, dataset)
    if differ:
        warnings.warn(
            f"{os.fspath(config.tuned)!r} was tuned on another machine or dataset "
            f"({'; '.join(differ)}): nothing of it is applied; run `fastload autotune` here",
            stacklevel=callers.stacklevel(),
        )
        return config, num_workers
    tuned = Point(**content["chosen"]).arguments()
    if num_workers is None:
        num_workers = tuned.get("num_workers")
    cache, decode = config.cache or tuned.get("cache"), config.decode
    if decode == "exact" and cache != "decoded":
        decode = tuned.get("decode", decode)
    ahead = config.prefetch_factor
    if ahead is None and num_workers:
        ahead = tuned.get("prefetch_factor")
    completed = dataclasses.replace(
        config,
        prefetch_factor=ahead,
        pin_memory=config.pin_memory or tuned.get("pin_memory", False),
        cache=cache,
        decode=decode,
    )
    return completed, num_workers


def _differences(content: Mapping[str, Any], dataset: object) -> list[str]:
    """How the machine and dataset of a file differ from these."""
    return [
        f"{name}: {content[kind].get(name)!r}, here {here.get(name)!r}"
        for kind, here in (("machine", machine()), ("dataset", fingerprint(dataset)))
        for name in sorted({*content[kind], *here} - {"fastload"})
        if content[kind].get(name) != here.get(name)
    ]


def write(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Write a tuning file, atomically."""
    with whole_file(path) as file:
        file.write(json.dumps(content, indent=1).encode())
