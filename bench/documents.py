"""Measured rows in README.md and pages of docs/, between markers."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from bench import plot, report
from bench.report import BASELINE, Row

_README = ("<!-- benchmark:begin; made from bench/results, see docs/benchmarks.md -->",
           "<!-- benchmark:end -->")  # fmt: skip
_DOCUMENT = ("<!-- figures: begin -->", "<!-- figures: end -->")
_SCRIPTS = ("<!-- scripts: begin; made from bench/results/scripts.json -->",
            "<!-- scripts: end -->")  # fmt: skip
_REMOTE = (
    "<!-- figures of the suite remote: begin -->",
    "<!-- figures of the suite remote: end -->",
)

# The columns of docs/remote.md: variant, metric, heading.
_REMOTE_COLUMNS = (
    ("cold", "throughput", "cold: images/s"),
    ("cold", "first batch", "first batch, s"),
    ("cold", "bytes", "bytes / data"),
    ("cold", "requests", "requests / image"),
    ("warm", "throughput", "all cached: images/s"),
    ("local", "of local", "x the local file"),
    ("half", "throughput", "half cached: images/s"),
    ("half", "bytes", "bytes / data"),
    ("half", "requests", "requests / image"),
)

# The README's workloads: suite and metric, in this order.
_SHORT = (
    ("imagenet-train", "throughput"),
    ("imagenet-eval", "throughput"),
    ("small-images", "throughput"),
    ("raw-train", "throughput"),
    ("cold", "throughput"),
    ("startup", "first batch"),
    ("memory", "anonymous and shared memory"),
)
# The README's columns of FastLoader. A column is empty if none of its loaders has a figure.
_FORMS = {
    "on the folder": ("fastload-folder",),
    "on LMDB": ("fastload-lmdb",),
    "LMDB, dct or raw": ("fastload-lmdb-dct", "fastload-lmdb-raw"),
}
_CHART = "imagenet-train"  # the README's
_HEADINGS = ("workload", *_FORMS, "best other loader", "x", "DataLoader")


def fill(rows: Sequence[Row], root: Path) -> list[Path]:
    """Put ``rows`` into the documents below ``root``, suites by name, and return their paths.

    Rows of the suite scripts go to docs/your-dataset.md, all others to README.md and
    docs/benchmarks.md, those of the suite remote to docs/remote.md, too. A document for which there
    are no rows stays as it is.

    Raises ValueError if a document has no markers.
    """
    filled = []
    public = [row for row in rows if row["suite"] == "scripts"]
    others = sorted(
        (row for row in rows if row["suite"] != "scripts"), key=lambda row: str(row["suite"])
    )
    behind_a_network = [row for row in others if row["suite"] == "remote"]
    for name, markers, made in (
        ("README.md", _README, summary(others) if others else ""),
        ("docs/benchmarks.md", _DOCUMENT, figures(others) if others else ""),
        ("docs/remote.md", _REMOTE, remote(behind_a_network) if behind_a_network else ""),
        ("docs/your-dataset.md", _SCRIPTS, scripts(public) if public else ""),
    ):
        if made:
            _between(root / name, *markers, made)
            filled.append(root / name)
    return filled


def scripts(rows: Sequence[Row]) -> str:
    """A table of public training scripts, the fastest first."""
    measured = sorted(
        (row for row in rows if row["median"] is not None), key=lambda row: -float(row["median"])
    )
    lines = [_conditions(measured), ""] if measured else []
    lines += ["| script | what its Dataset does | times DataLoader |", "|---|---|---:|"]
    for row in measured:
        name = row["script"]
        link = f"[{name['repository']}](https://github.com/{name['repository']})"
        between = f"{row['min']:.1f} to {row['max']:.1f}"
        lines.append(
            f"| {link}, `{name['file']}` | {row['does']} | **{row['median']:.1f}** ({between}) |"
        )
    absent = [row for row in rows if row["median"] is None]
    if absent:
        names = ", ".join(row["script"]["repository"] for row in absent)
        lines += ["", f"Not measured: {names}."]
    return "\n".join(lines)


def remote(rows: Sequence[Row]) -> str:
    """One line per loader of the suite remote: nothing cached, all, or half."""
    headings = ("loader", *(heading for _, _, heading in _REMOTE_COLUMNS))
    lines = [_conditions(rows), "", f"| {' | '.join(headings)} |"]
    lines.append("|---|" + "---:|" * len(_REMOTE_COLUMNS))
    known = {
        (row["loader"], row["variant"], row["metric"]): row
        for row in rows
        if row["median"] is not None
    }
    columns = {column[:2] for column in _REMOTE_COLUMNS}
    for loader in dict.fromkeys(loader for loader, *column in known if tuple(column) in columns):
        cells = [
            report.shown(known[key]["median"]) if (key := (loader, *column[:2])) in known else ""
            for column in _REMOTE_COLUMNS
        ]
        lines.append(f"| {loader} | {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> str:
    """One line per workload: the forms of fastload, and the best other loader."""
    named = {suite for suite, _ in _SHORT}
    lines = [
        _conditions([row for row in rows if row["suite"] in named] or rows),
        "",
        f"| {' | '.join(_HEADINGS)} |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    groups = report.groups(rows)
    for wanted in _SHORT:
        for (suite, variant, metric, unit), group in groups.items():
            if (suite, metric) == wanted:
                lines += _line(f"{suite}, {variant}: {unit}", group)
    if any(row["suite"] == _CHART and row["median"] for row in rows):
        lines += ["", plot.picture("docs/charts", _CHART)]
    return "\n".join(lines)


def figures(rows: Sequence[Row]) -> str:
    """Every table, and the reasons of loaders without a figure."""
    lines = [_conditions(rows), "", *_slowest(rows), *_charts(rows), report.markdown(rows).rstrip()]
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


def _charts(rows: Sequence[Row]) -> list[str]:
    """The charts of the README's workloads."""
    drawn = {row["suite"] for row in rows if row["median"]}
    return [
        line
        for suite in dict.fromkeys(suite for suite, _ in _SHORT)
        if suite in drawn
        for line in (plot.picture("charts", suite), "")
    ]


def _slowest(rows: Sequence[Row]) -> list[str]:
    """The smallest ratio of the suite never-slower; nothing if it did not run."""
    measured = [row for row in rows if row["suite"] == "never-slower" and row["median"]]
    if not measured:
        return []
    least = min(measured, key=lambda row: float(row["setting"]["mean"]))
    low, high = least["setting"]["interval_95"]
    text = (
        f"never-slower: of {len(measured)} configurations, FastLoader gains least over DataLoader "
        f"in *{least['loader'].removeprefix('fastload, ')}*: "
        f"**{least['setting']['mean']:.2f} times** its speed (95 % interval {low:.2f} to "
        f"{high:.2f})."
    )
    return [textwrap.fill(text, 100), ""]


def _line(workload: str, group: Sequence[Row]) -> list[str]:
    """The line of ``workload``; nothing if fastload has no figure. The best figure is bold."""
    measured = report.best_first(group)
    ours = [row for row in measured if any(row["loader"] in form for form in _FORMS.values())]
    if not ours:
        return []
    peer = report.best_peer(measured)
    baseline = next((row for row in measured if row["loader"] == BASELINE), None)
    cells = [workload]
    for form in _FORMS.values():
        found = next((row for row in ours if row["loader"] in form), None)
        cells.append("" if found is None else _figure(found, best=found is ours[0]))
    times = report.ratio(ours[0], peer)
    cells += [
        "" if peer is None else f"{peer['loader']} {_figure(peer)}",
        "" if times is None else f"{times:.2f}",
        "" if baseline is None else _figure(baseline),
    ]
    return [f"| {' | '.join(cells)} |"]


def _figure(found: Row, *, best: bool = False) -> str:
    """A median; after the one of a first epoch, if the suite has first epochs."""
    figure = report.shown(found["median"])
    figure = f"**{figure}**" if best else figure
    return f"{report.first_epoch(found)} / {figure}" if report.raced([found]) else figure


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
    *most, last = map(str, sorted({row["threads"] for row in rows}))
    threads = f"{', '.join(most)} or {last}" if most else last
    text = (
        f"{machine['cpu']}, {machine['cpus']} CPUs, {threads} threads or workers for "
        f"each loader; torch {versions['torch']}, Pillow {versions['pillow']}; {commits}. "
        "Medians of interleaved rounds."
    )
    return textwrap.fill(text, 100)


def _between(path: Path, begin: str, end: str, text: str) -> None:
    whole = path.read_text(encoding="utf-8")
    if whole.count(begin) != 1 or whole.count(end) != 1:
        raise ValueError(f"{path}: expected one line {begin} and one line {end}")
    head, rest = whole.split(begin)
    tail = rest.split(end)[1]
    path.write_text(f"{head}{begin}\n{text}\n{end}{tail}", encoding="utf-8")
