"""The bottleneck of a running loop: what it waits for, from the stamps of its loader."""

from __future__ import annotations

from collections.abc import Mapping

from .._base.trace import Snapshot
from ..hints import Bound

WAITS = 0.05  # a loop that waits for at least this share of its time is bound by data
_BUSY = 0.7  # workers that are busy for at least this share of their time are the bottleneck
_COPIES = 0.9  # a device that copies for at least this share of the time is the bottleneck
_READING = ("network", "read", "check")
_DECODING = ("decode", "resize", "augment", "pillow", "fields", "dali")
_OURS = ("order", "prepare", "collate")
_PHRASES = {"loader": "drawing order and parameters and handing batches over"}


def verdict(figures: Snapshot, *, native: bool) -> tuple[Bound, str]:
    """What limits the speed of a loop in an epoch with these figures, and why that is so.

    ``native``: an engine of fastload runs.
    """
    if figures.batches < 2 or not figures.elapsed_s:
        return "unknown", "too few batches so far"
    waiting = figures.wait_s / figures.elapsed_s
    copying = figures.stages_s.get("copy", 0.0) / figures.elapsed_s
    if copying >= _COPIES:
        return "copy", f"copies to the device take {copying:.0%} of its time"
    if waiting < WAITS:
        return "compute", f"the loop waits for data {waiting:.0%} of its time"
    stages = figures.stages_s
    moving = (stages.get("staging", 0.0) + stages.get("move", 0.0)) / figures.wait_s
    bound: Bound
    if moving > 0.5:
        bound, why = "copy", f"{moving:.0%} of that moves batches to the device"
    elif native:
        bound, why = _engine(stages)
    else:
        bound, why = _dataset(figures)
    return bound, f"the loop waits {waiting:.0%} of its time; {why}"


def _engine(stages: Mapping[str, float]) -> tuple[Bound, str]:
    parts: dict[Bound, float] = {
        "reading": sum(stages.get(name, 0.0) for name in _READING),
        "decoding": sum(stages.get(name, 0.0) for name in _DECODING),
        "loader": sum(stages.get(name, 0.0) for name in _OURS),
    }
    bound = max(parts, key=lambda name: parts[name])
    share = parts[bound] / (sum(parts.values()) or 1.0)
    why = f"{share:.0%} of the engine's work is {_PHRASES.get(bound, bound)}"
    network = stages.get("network", 0.0)
    if bound == "reading" and network > 0.5 * parts[bound]:
        why = f"{network / sum(parts.values()):.0%} of the engine's time is waiting for the network"
    if bound == "decoding":
        rest = {"resizing": stages.get("resize", 0.0), "augmenting": stages.get("augment", 0.0)}
        shares = [f"{spent / parts[bound]:.0%} {name}" for name, spent in rest.items() if spent]
        why += f" (of it {' and '.join(shares)})" if shares else ""
    return bound, why


def _dataset(figures: Snapshot) -> tuple[Bound, str]:
    filling = figures.stages_s.get("fill", 0.0) / figures.wait_s
    if filling > 0.5:
        return "decoding", f"for {min(filling, 1):.0%} of that, C++ threads decode its images"
    fetch_s = figures.stages_s.get("fetch", 0.0)
    blocked_s = figures.stages_s.get("blocked", 0.0)
    work_s = fetch_s + figures.stages_s.get("collate", 0.0)
    busy = work_s / figures.workers_s if figures.workers_s else 1.0
    if busy < _BUSY:
        return "transport", f"the workers are busy only {busy:.0%} of their time"
    share = blocked_s / fetch_s if fetch_s else 0.0
    if share > 0.5:
        return (
            "reading",
            f"the dataset's code waits {share:.0%} of its time, e.g. for a disk",
        )
    return "python", f"the dataset's code computes {1 - share:.0%} of its time"
