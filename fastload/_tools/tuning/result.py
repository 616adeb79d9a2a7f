"""The outcome of a search, and the file it is kept in."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..._base.machine import cpu
from ..._base.whole_file import whole_file
from ..._version import __version__
from ...errors import DataError
from .point import Point
from .target import Target

TIED = 0.03
"""Within this share of the best, another setting does as well."""

_BUSY = 0.15  # of the CPUs

FORMAT = "fastload.tune"
VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tried:
    """One setting that was measured, or why it was not.

    Attributes:
        point: the setting.
        images_per_s: median; 0 where it was not measured. With a cache, once that is full.
        filling_images_per_s: of the epoch that fills the cache; None without one.
        error: standard error relative to it; None where there were too few blocks.
        reason: why it was not measured, or how it failed; else "".
    """

    point: Point
    images_per_s: float
    error: float | None
    filling_images_per_s: float | None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning:
    """What autotune found.

    Attributes:
        source: name of what was tuned.
        batch_size: the one in use, which the file keeps: ``best``, ``smallest``, ``chosen`` and
            ``uncached`` have it.
        best: the fastest setting, and ``images_per_s`` with it.
        fastest: the fastest setting of all batch sizes, and ``fastest_images_per_s`` with it.
        smallest: the setting that takes least of the machine within 3 % of the best.
        chosen: what ``FastLoader(tuned=)`` applies: ``smallest`` where the step is what the loop
            waits for, else ``best``.
        images_per_s: of ``best``.
        uncached: the fastest setting with DataLoader's pixels and without a cache, which it has
            not either, and ``uncached_images_per_s`` with it, beside
        torch_images_per_s: of torch's DataLoader with its defaults, at the same batch size.
        ratios: of these two, one for each time that they were measured one after the other.
        step_images_per_s: of the training step on a batch that is already there; None without step.
        loader_images_per_s: of the loader without the step; None without step.
        bound: "compute" (the step), "decoding", "reading" or "python" (the dataset's own code).
        why: the figures behind ``bound``, in words.
        tried: every setting that was measured or left out.
        machine, dataset: fingerprints.
        others: share of the CPUs that other programs took meanwhile.
        seconds: how long the search took.
    """

    source: str
    batch_size: int
    best: Point
    fastest: Point
    fastest_images_per_s: float
    smallest: Point
    chosen: Point
    images_per_s: float
    uncached: Point
    uncached_images_per_s: float
    torch_images_per_s: float
    ratios: tuple[float, ...]
    step_images_per_s: float | None
    loader_images_per_s: float | None
    bound: str
    why: str
    tried: tuple[Tried, ...]
    machine: Mapping[str, Any]
    dataset: Mapping[str, Any]
    others: float
    seconds: float

    @property
    def gain(self) -> float:
        """How many times faster than torch's defaults, both without a cache."""
        return statistics.median(self.ratios)

    @property
    def busy(self) -> bool:
        """Whether other programs took so much of the machine that the figures are theirs too."""
        return self.others > _BUSY

    def as_json(self) -> dict[str, Any]:
        """What the file holds."""
        content = dataclasses.asdict(self)
        return {"format": FORMAT, "version": VERSION, **content, "gain": self.gain}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all."""
        _write(path, self.as_json())


def machine() -> dict[str, Any]:
    """What tells this machine from another one."""
    import torch

    return {
        "fastload": __version__,
        "cpu": _cpu_name(),
        "cpus": cpu.available(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a tuning file.

    Raises:
        DataError: it is none, or of a version that this fastload does not know.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if content["format"] != FORMAT or content["version"] != VERSION:
            raise ValueError(f"format {content['format']!r} version {content['version']!r}")
        Point(**content["chosen"])
        dict(content["machine"]), dict(content["dataset"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"expected a file that `fastload autotune` wrote: {type(error).__name__}: {error}; "
            "tune again",
            path=os.fspath(path),
        ) from error
    found: dict[str, Any] = content
    return found


def arguments_for(path: str | os.PathLike[str], dataset: Any, *, stacklevel: int) -> dict[str, Any]:
    """FastLoader's arguments in a tuning file, the batch size left out: it belongs to training.

    Where the file was made on another machine or for another dataset, a warning says what differs,
    and there are none.

    Raises:
        DataError: it is no tuning file.
    """
    content = load(path)
    differ = _differences(content, dataset)
    if differ:
        warnings.warn(
            f"{os.fspath(path)!r} was tuned on another machine or dataset ({'; '.join(differ)}): "
            "it is not applied; run `fastload autotune` here",
            stacklevel=stacklevel,
        )
        return {}
    arguments = Point(**content["chosen"]).arguments()
    del arguments["batch_size"]
    return arguments


def decoding_in(path: str | os.PathLike[str], dataset: Any) -> dict[str, Any] | None:
    """What ``keep_decoding`` put into a tuning file for this machine and dataset, or None.

    Raises:
        DataError: it is no tuning file.
    """
    content = load(path)
    found = content.get("decoding")
    return found if isinstance(found, dict) and not _differences(content, dataset) else None


def keep_decoding(path: str | os.PathLike[str], dataset: Any, found: Mapping[str, Any]) -> None:
    """Add to a tuning file of this machine and dataset where images are decoded faster.

    Any other file is left as it is; so is one that cannot be written.

    Raises:
        DataError: it is no tuning file.
    """
    content = load(path)
    if _differences(content, dataset) or not os.access(path, os.W_OK):
        return
    _write(path, {**content, "decoding": dict(found)})


def _differences(content: Mapping[str, Any], dataset: Any) -> list[str]:
    """In what a file's machine and dataset are not these, in words."""
    target = Target(name="", dataset=dataset, plain=dataset)
    return [
        f"{name}: {content[kind].get(name)!r}, here {here.get(name)!r}"
        for kind, here in (("machine", machine()), ("dataset", target.fingerprint()))
        for name in sorted({*content[kind], *here} - {"fastload"})
        if content[kind].get(name) != here.get(name)
    ]


def _write(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Write a file, whole or not at all."""
    with whole_file(path) as file:
        file.write(json.dumps(content, indent=1).encode())
