"""Measured rows in README.md and docs/benchmarks.md, between markers."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from bench import report
from bench.report import BASELINE, Row

_README = ("<!-- benchmark:begin; made from bench/results, see docs/benchmarks.md -->",
           "<!-- benchmark:end -->")  # fmt: skip
_DOCUMENT = ("<!-- figures: begin -->", "<!-- figures: end -->")

# What the README shows: suite and metric, in its order.
_SHORT = (
    ("imagenet-train", "throughput"),
    ("imagenet-eval", "throughput"),
    ("small-images", "throughput"),
    ("raw-train", "throughput"),
    ("cold", "throughput"),
    ("startup", "first batch"),
    ("memory", "anonymous and shared memory"),
)
_FORMS = {
    "fastload-lmdb-dct": "LMDB of DCT records",
    "fastload-lmdb-raw": "LMDB of raw pixels",
    "fastload-lmdb": "LMDB",
    "fastload-folder": "folder",
}


def fill(rows: Sequence[Row], root: Path) -> list[Path]:
    """Put ``rows`` into both documents below ``root``, and return their paths.

    Raises ValueError where a document has no markers.
    """
    readme, document = root / "README.md", root / "docs" / "benchmarks.md"
    _between(readme, *_README, summary(rows))
    _between(document, *_DOCUMENT, figures(rows))
    return [readme, document]


def summary(rows: Sequence[Row]) -> str:
    """One line for each form of fastload in each workload, against the best other loader."""
    named = {suite for suite, _ in _SHORT}
    lines = [
        _conditions([row for row in rows if row["suite"] in named] or rows),
        "",
        "| workload | FastLoader on | | the best other loader | times better | torch, Pillow |",
        "|---|---|---:|---:|---:|---:|",
    ]
    groups = report.groups(rows)
    for wanted in _SHORT:
        for (suite, variant, metric, unit), group in groups.items():
            if (suite, metric) == wanted:
                lines += _lines(f"{suite}, {variant}: {unit}", group)
    return "\n".join(lines)


def figures(rows: Sequence[Row]) -> str:
    """Every table, and why loaders have no figure in it."""
    lines = [_conditions(rows), "", report.markdown(rows).rstrip()]
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["median"] is None:
            places = reasons.setdefault((row["loader"], row["reason"]), [])
            place = f"{row['suite']} {row['variant']}"
            if place not in places:
                places.append(place)
    if reasons:
        lines += ["", "Loaders without a figure:", ""]
        lines += [
            f"- `{loader}`, {'; '.join(places)}: {reason}"
            for (loader, reason), places in reasons.items()
        ]
    return "\n".join(lines)


def _lines(workload: str, group: Sequence[Row]) -> list[str]:
    measured = report.best_first(group)
    peer = report.best_peer(measured)
    baseline = next((row for row in measured if row["loader"] == BASELINE), None)
    lines = []
    for row in measured:
        if report.is_peer(row["loader"]) or row["loader"] not in _FORMS:
            continue
        times = report.ratio(row, peer)
        cells = [
            workload if not lines else "",
            _FORMS[row["loader"]],
            report.shown(row["median"]),
            "" if peer is None else f"{peer['loader']} {report.shown(peer['median'])}",
            "" if times is None else f"{times:.2f}",
            "" if baseline is None else report.shown(baseline["median"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _conditions(rows: Sequence[Row]) -> str:
    machine, versions = rows[0]["machine"], rows[0]["shared_versions"]
    suites: dict[str, list[str]] = {}  # by commit
    for row in rows:
        known = suites.setdefault(row["machine"]["commit"], [])
        if row["suite"] not in known:
            known.append(row["suite"])
    if len(suites) == 1:
        commits = f"commit {machine['commit']}"
    else:
        commits = "commits " + "; ".join(f"{one} ({', '.join(of)})" for one, of in suites.items())
    text = (
        f"{machine['cpu']}, {machine['cpus']} CPUs, {rows[0]['threads']} threads or workers for "
        f"each loader; torch {versions['torch']}, Pillow {versions['pillow']}; {commits}. "
        "Medians of the rounds, measured in turn."
    )
    return textwrap.fill(text, 100)


def _between(path: Path, begin: str, end: str, text: str) -> None:
    whole = path.read_text(encoding="utf-8")
    if whole.count(begin) != 1 or whole.count(end) != 1:
        raise ValueError(f"{path}: expected one line {begin} and one line {end}")
    head, rest = whole.split(begin)
    tail = rest.split(end)[1]
    path.write_text(f"{head}{begin}\n{text}\n{end}{tail}", encoding="utf-8")
