"""Draws a part of a timeline that ``fastload.trace`` wrote: a chart for documents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_COLOURS = {
    "wait": "#d62728", "step": "#2ca02c", "decode": "#1f77b4", "read": "#9467bd",
    "check": "#8c564b", "prepare": "#ff7f0e", "collate": "#17becf", "order": "#bcbd22",
    "fetch": "#1f77b4", "resize": "#aec7e8", "augment": "#e377c2",
}  # fmt: skip


def draw(trace: str, path: Path, *, batches: int) -> None:
    """The middle ``batches`` batches of ``trace``, a row for each thread, as PNG or SVG."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    events = json.loads(Path(trace).read_text(encoding="utf-8"))["traceEvents"]
    names = {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    spans = [event for event in events if event.get("cat") == "fastload"]
    begin, end = _part(spans, batches)
    shown = [event for event in spans if event["ts"] < end and event["ts"] + event["dur"] > begin]
    threads = sorted({event["tid"] for event in shown}, key=lambda tid: names[tid])
    figure = Figure(figsize=(11, 0.8 + 0.5 * len(threads)), dpi=110)
    axes = figure.add_subplot()
    for event in shown:
        colour = _COLOURS.get(event["name"], "#7f7f7f")
        bar = ((event["ts"] - begin) / 1e3, event["dur"] / 1e3)
        axes.broken_barh([bar], (threads.index(event["tid"]) - 0.4, 0.8), facecolors=colour)
    axes.set_yticks(range(len(threads)), [names[tid] for tid in threads])
    axes.set_xlim(0, (end - begin) / 1e3)
    axes.set_xlabel("ms")
    kinds = [name for name in _COLOURS if any(event["name"] == name for event in shown)]
    handles = [Patch(color=_COLOURS[name], label=name) for name in kinds]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 1.3), ncol=len(kinds))
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text
        figure.savefig(path, bbox_inches="tight")


def _part(spans: Sequence[dict[str, Any]], batches: int) -> tuple[float, float]:
    """Begin and end of the batches in the middle, in microseconds."""
    waits = sorted(event["ts"] for event in spans if event["name"] == "wait")
    first = max(0, (len(waits) - batches) // 2)
    last = min(len(waits) - 1, first + batches)
    return waits[first], waits[last]
