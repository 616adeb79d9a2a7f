"""Measured rows in README.md and pages of docs/, between markers."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from bench import plot, report
from bench.report import BASELINE, Row

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

# The summary's workloads: suite and metric, in this order.
_SHORT = (
    ("imagenet-train", "throughput"),
    ("imagenet-eval", "throughput"),
    ("small-images", "throughput"),
    ("raw-train", "throughput"),
    ("cold", "throughput"),
    ("startup", "first batch"),
    ("memory", "anonymous and shared memory"),
)
# The summary's columns of FastLoader. A column is empty if none of its loaders has a figure.
_FORMS = {
    "on the folder": ("fastload-folder",),
    "on LMDB": ("fastload-lmdb",),
    "LMDB, dct or raw": ("fastload-lmdb-dct", "fastload-lmdb-raw"),
}
# Which encoding to choose: its line, and the loader that reads it.
_CHOICES = {
    "torch's DataLoader on the folder": BASELINE,
    "FastLoader on the folder": "fastload-folder",
    "LMDB, JPEGs kept (`--encode keep`)": "fastload-lmdb",
    "LMDB, `--encode dct`": "fastload-lmdb-dct",
    "LMDB, raw pixels (photos with `--resize 256`)": "fastload-lmdb-raw",
}
_KEPT = (("imagenet-train", "float32"), ("small-images", "jpeg"))
_RAW = (("raw-train", "float32"), ("small-images", "raw"))
# Suites whose tables are on the pages of their subjects only.
_EXPLAINED = {"cache", "entry-points", "buckets", "remote", "scripts"}


def fill(rows: Sequence[Row], root: Path) -> list[Path]:
    """Put ``rows`` into the documents below ``root`` and return the paths of those that they fill.

    A table for which there are no rows stays as it is.

    Raises ValueError if a document has no markers.
    """
    filled = {}
    for page, name, table in _TABLES:
        if text := table(rows):
            _between(root / page, name, text)
            filled[root / page] = None
    return list(filled)


def _of(rows: Sequence[Row], suite: str) -> list[Row]:
    return [row for row in rows if row["suite"] == suite]


def _others(rows: Sequence[Row]) -> list[Row]:
    """Those of suites that no page of their own explains, suites by name."""
    return sorted(
        (row for row in rows if row["suite"] not in _EXPLAINED), key=lambda row: str(row["suite"])
    )


def _table(headings: Sequence[str], lines: Iterable[Sequence[str]], text: int = 1) -> list[str]:
    """A table in Markdown, whose first ``text`` columns are text and all others figures."""
    head = "".join(f" {heading} |" if heading else " |" for heading in headings)
    aligned = "---|" * text + "---:|" * (len(headings) - text)
    return [f"|{head}", f"|{aligned}", *(f"| {' | '.join(cells)} |" for cells in lines)]


def _measured(
    rows: Sequence[Row], headings: Sequence[str], lines: Sequence[Sequence[str]], text: int = 1
) -> str:
    """Where ``rows`` were measured, and a table of them; "" without lines."""
    return "\n".join([_conditions(rows), "", *_table(headings, lines, text)]) if lines else ""


_SCRIPTS_SHOWN = 8


def scripts(rows: Sequence[Row]) -> str:
    """Public training scripts, the fastest first: a table of a few, evenly from first to last.

    Below it stands what all others gained; bench/results has their rows.
    """
    rows = [row for row in _of(rows, "scripts") if not row.get("untuned")]
    if not rows:
        return ""
    measured = sorted(
        (row for row in rows if row["median"] is not None), key=lambda row: -float(row["median"])
    )
    few = min(_SCRIPTS_SHOWN, len(measured))
    shown = {round(place * (len(measured) - 1) / max(few - 1, 1)) for place in range(few)}
    cells, others = [], []
    for place, row in enumerate(measured):
        name = row["script"]
        if place in shown:
            link = f"[{name['repository']}](https://github.com/{name['repository']})"
            between = f"{row['min']:.1f} to {row['max']:.1f}"
            figure = f"{row['median']:.1f}"
            figure = f"**{figure}**" if row["median"] > 1 else figure
            cells.append([f"{link}, `{name['file']}`", row["does"], f"{figure} ({between})"])
        else:
            others.append(float(row["median"]))
    lines = [_conditions(measured), ""] if measured else []
    lines += _table(("script", "what its Dataset does", "times DataLoader"), cells, text=2)
    if others:
        text = f"The other {len(others)} gained {others[-1]:.1f} to {others[0]:.1f} times"
        lines += ["", f"{text}: `python -m bench table bench/results/scripts.json`."]
    absent = [row for row in rows if row["median"] is None]
    if absent:
        names = ", ".join(row["script"]["repository"] for row in absent)
        lines += ["", f"Not measured: {names}."]
    return "\n".join(lines)


def untuned(rows: Sequence[Row]) -> str:
    """Scripts that nobody tuned to, all of them: what they gain in CPU time."""
    by_script: dict[str, dict[int, Row]] = {}
    for row in _of(rows, "scripts"):
        if row.get("untuned"):
            by_script.setdefault(row["variant"], {})[row["setting"]["processes"]] = row
    if not by_script:
        return ""
    cells = []
    for rows_of in sorted(by_script.values(), key=lambda one: -min(map(_cpu_gain, one.values()))):
        row = next(iter(rows_of.values()))
        repository, kind = row["script"]["repository"], row["does"].split(":")[0]
        old = "*" if "of" in row["setting"] else ""
        link = f"[{repository.split('/')[1]}](https://github.com/{repository}), {kind}{old}"
        gains = [f"{_cpu_gain(rows_of[n]):.1f}" if n in rows_of else "-" for n in (0, 2)]
        cells.append([link, *gains])
    return "\n".join(_table(("script", "0 workers", "2 workers"), cells))


def _cpu_gain(row: Row) -> float:
    """CPU time of DataLoader, divided by FastLoader's; older rows have it as their median."""
    return float(row["setting"].get("cpu", row["median"]))


def remote(rows: Sequence[Row]) -> str:
    """One line per loader of the suite remote: nothing cached, all, or half."""
    rows = _of(rows, "remote")
    row_of = {
        (row["loader"], row["variant"], row["metric"]): row
        for row in rows
        if row["median"] is not None
    }
    columns = [column[:2] for column in _REMOTE_COLUMNS]
    loaders = dict.fromkeys(loader for loader, *column in row_of if tuple(column) in columns)
    lines = [
        [loader, *(_shown(row_of.get((loader, *column))) for column in columns)]
        for loader in loaders
    ]
    headings = ["loader", *(heading for _, _, heading in _REMOTE_COLUMNS)]
    return _measured(rows, headings, lines)


def _shown(row: Row | None) -> str:
    return "" if row is None else report.shown(row["median"])


def encodings(rows: Sequence[Row]) -> str:
    """One line per way to keep photos and small images; nothing unless all of it was measured.

    Raw photos are those of the suite raw-train, resized when they are packed.
    """
    row_of = {
        (row["suite"], row["variant"], row["loader"], row["metric"]): row
        for row in _others(rows)
        if row["median"] is not None
    }
    shown: list[Row] = []
    lines: list[list[str]] = []
    for store, loader in _CHOICES.items():
        raw = loader == "fastload-lmdb-raw"
        workloads = _RAW if raw else _KEPT
        rates = [row_of.get((*workload, loader, "throughput")) for workload in workloads]
        if None in rates:
            return ""
        sizes = [row_of.get(("pack", kind, loader, "size")) for kind in ("photos", "small")]
        packed = row_of.get(("pack", "photos", loader, "pack"))
        shown += [row for row in (*rates, *sizes, packed) if row]
        size = ", ".join(f"{row['median']:.2f}" for row in sizes if row) or "1"
        size = "width x height x 3 bytes" if raw else size
        lines.append([store, *map(_shown, rates), size, _shown(packed)])
    headings = (
        "images/s in later epochs",
        "photos, 224x224 crops",
        "32x32 images",
        "size, times the JPEGs: photos, 32x32",
        "packed, photos/s",
    )
    return _measured(shown, headings, lines)


_ENTRY_POINTS = {
    "train": "photos, RandomResizedCrop(224), flip",
    "eval": "the same photos, Resize(256), CenterCrop(224)",
    "large": "12 megapixels, RandomResizedCrop(224), flip",
    "large-scaled": 'the same, `decode="scaled"`',
    "small": "32x32, padded crops (too small for entry points)",
}


def entry_points(rows: Sequence[Row]) -> str:
    """One line per workload: CPU time with and without entry points."""
    rows = _of(rows, "entry-points")
    lines = []
    for variant, images in _ENTRY_POINTS.items():
        of = {row["metric"]: row for row in rows if row["variant"] == variant}
        if of:
            gain = of["gain of entry points"]
            times = [_shown(of[f"CPU time, {name} entry points"]) for name in ("without", "with")]
            first, nbytes = (gain["setting"][key] for key in ("first_epoch", "bytes_an_image"))
            lines.append([images, *times, f"{gain['median']:.2f}", f"{first:.2f} x", f"{nbytes:,}"])
    headings = (
        "CPU time per image",
        "without, us",
        "with entry points, us",
        "times faster",
        "first epoch, CPU time",
        "bytes per image",
    )
    return _measured(rows, headings, lines)


def caches(rows: Sequence[Row]) -> str:
    """One line per workload and cache: the speed of its epochs relative to no cache."""
    rows = _of(rows, "cache")
    row_of = {
        (row["variant"], row["setting"]["cache"], row["metric"].split()[0]): row for row in rows
    }
    lines = []
    for variant, kind in dict.fromkeys(key[:2] for key in row_of):
        first, later = (row_of[variant, kind, epoch] for epoch in ("first", "later"))
        speeds = [f"{row['median']:.2f}" for row in (first, later)]
        lines.append([variant, f'`"{kind}"`', *speeds, f"{later['setting']['bytes_an_image']:,}"])
    headings = ("images", "`cache`", "first epoch", "later epochs", "bytes per image")
    return _measured(rows, headings, lines, text=2)


_DEFERRED = {
    "train": "photos to 224x224: random crop and flip (`train`)",
    "new-workers": "the same, new workers in each epoch (`new-workers`)",
    "stream": "the same from an IterableDataset (`stream`)",
    "two-views": "two views of each photo (`two-views`)",
    "ten-crops": "ten crops of each photo (`ten-crops`)",
    "image-and-mask": "a photo and its mask, cropped alike (`image-and-mask`)",
    "small-jpegs": "32x32 JPEGs, padded crop and flip (`small-jpegs`)",
}
_ARRAYS = {
    "numpy": "Pillow, then NumPy (`numpy`)",
    "albumentations": "Pillow, then Albumentations (`albumentations`)",
    "cv2": "OpenCV, then Albumentations (`cv2`)",
}


def own_datasets(rows: Sequence[Row], variants: dict[str, str]) -> str:
    """One line per Dataset of ``variants``: times DataLoader."""
    measured = {
        (row["variant"], bool(row["setting"]["workers"])): row
        for row in _of(rows, "any-dataset")
        if row["variant"] in variants and row["metric"] == _TIMES and row["median"]
    }
    lines = []
    for variant, described in variants.items():
        cells = [_mean(measured.get((variant, workers))) for workers in (False, True)]
        if any(cells):
            lines.append([described, *cells])
    headings = ("times DataLoader (95 % interval)", "0 workers", "workers")
    return _measured(list(measured.values()), headings, lines)


def _mean(row: Row | None) -> str:
    if row is None:
        return ""
    low, high = row["setting"]["interval_95"]
    return f"{row['setting']['mean']:.1f} ({low:.1f} to {high:.1f})"


_BUCKETS = {
    "fastload-buckets": "FastLoader, `batch_by=buckets`",
    "fastload-padded": "FastLoader, a `collate_fn` that pads",
    "torch-padded": "DataLoader, the same `collate_fn`",
}


def buckets(rows: Sequence[Row]) -> str:
    """One line per way to make batches of images of several sizes."""
    row_of = {(row["loader"], row["metric"]): row for row in _of(rows, "buckets")}
    lines = []
    for loader, described in _BUCKETS.items():
        if (loader, "padding") in row_of:
            padding, rate = (row_of[loader, metric] for metric in ("padding", "throughput"))
            lines.append([described, f"{padding['median']:.1f}", _shown(rate)])
    headings = ("", "padding, % of the pixels", "images/s")
    return _measured([*row_of.values()], headings, lines)


def chart(rows: Sequence[Row]) -> str:
    """The README's chart and what its bars are; nothing if one of them was not measured."""
    rows = _others(rows)
    few = plot.overview(rows)
    peer = report.best_peer(few.values())
    if peer is None:
        return ""
    bars = "; ".join(f"{name} {report.shown(row['median'])}" for name, row in few.items())
    race = ("suite", "variant", "metric")
    peers = [row for row in rows if all(row[key] == peer[key] for key in race) and row["median"]]
    others = sum(report.is_peer(row["loader"]) for row in peers)
    threads = peer["threads"]
    text = (
        f"Images per second: photos, cropped to 224x224 and flipped at random. "
        f"{_processor([peer])}, {threads} threads or workers each; later epochs. For the folder, "
        "only the import changes; the DCT store is packed once, without loss. "
        f"`{peer['loader']}` is the fastest of {others} loaders that are not ours. {_sets(rows)}"
        "[All figures, and how they were measured](docs/benchmarks.md)."
    )
    picture = plot.picture("docs/charts", plot.OVERVIEW, f"images/s: {bars}")
    return f"{picture}\n\n{textwrap.fill(text, 100)}"


def _sets(rows: Sequence[Row]) -> str:
    """How many times the best peer's speed fastload has with each instruction set."""
    times = []
    for (suite, variant, _, _), group in report.groups(rows).items():
        simd = variant.removeprefix("float32, ")
        measured = report.best_first(group)
        if suite == "imagenet-train" and simd in ("neon", "avx2", "avx512") and measured:
            ratio = report.ratio(measured[0], report.best_peer(measured))
            times.append(f"{ratio:.1f} times as fast with {simd}")
    return f"On real photos, the DCT store is {', '.join(times)}. " if times else ""


def figures(rows: Sequence[Row]) -> str:
    """The summary, charts, and tables of the suites that these do not tell."""
    rows = _others(rows)
    if not rows:
        return ""
    lines = [_conditions(rows), "", *_summary(rows), *_slowest(rows), *_charts(rows)]
    lines += _quotients([row for row in rows if row["variant"] not in {**_DEFERRED, **_ARRAYS}])
    for suite in ("augment", "pack"):
        lines += _medians(_of(rows, suite))
    return "\n".join(lines).rstrip()


def _summary(rows: Sequence[Row]) -> list[str]:
    """One line per workload: the forms of fastload, and the best other loader."""
    groups = report.groups(rows).items()
    lines = [
        line
        for wanted in _SHORT
        for (suite, variant, metric, unit), group in groups
        if (suite, metric) == wanted and (line := _line(f"{suite}, {variant}: {unit}", group))
    ]
    headings = ("workload", *_FORMS, "best other loader", "x", "DataLoader")
    return [*_table(headings, lines), ""] if lines else []


_TIMES = "times DataLoader"


def _quotients(rows: Sequence[Row]) -> list[str]:
    """How many times DataLoader's speed FastLoader has, of the suite any-dataset."""
    cells: dict[str, dict[str, str]] = {}
    for row in _of(rows, "any-dataset"):
        if row["metric"] == _TIMES and row["median"] is not None:
            heading = f"x, {row['setting']['workers']} workers"
            cells.setdefault(row["variant"], {})[heading] = report.shown(row["median"])
    return _titled("any-dataset", cells)


def _medians(rows: Sequence[Row]) -> list[str]:
    """The medians of one suite: a line for each loader, a column for each variant and metric.

    fastload's figure is bold if it beats every other loader.
    """
    cells: dict[str, dict[str, str]] = {}
    groups = report.groups(rows)
    several = len({(variant, metric) for _, variant, metric, _ in groups}) > 1
    for (_, _, metric, unit), group in groups.items():
        peer, ranked = report.best_peer(group), report.best_first(group)
        heading = unit if metric == "throughput" else f"{metric}, {unit}"
        heading = f"{group[0]['variant']}: {heading}" if several else heading
        for row in ranked:
            wins = row is ranked[0] and (report.ratio(row, peer) or 0) > 1
            figure = report.shown(row["median"])
            figure = f"**{figure}**" if wins else figure
            cells.setdefault(row["loader"], {})[heading] = figure
    return _titled(rows[0]["suite"], cells) if rows else []


def _titled(title: str, cells: dict[str, dict[str, str]]) -> list[str]:
    """A table of ``cells``, by line and by heading."""
    headings = list(dict.fromkeys(heading for of in cells.values() for heading in of))
    lines = [[line, *(of.get(heading, "") for heading in headings)] for line, of in cells.items()]
    return [f"**{title}**", "", *_table(["", *headings], lines), ""] if lines else []


def _charts(rows: Sequence[Row]) -> list[str]:
    """The charts of the summary's workloads."""
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
    """The line of ``workload``; nothing if fastload has no figure. What wins is bold."""
    measured = report.best_first(group)
    ours = [row for row in measured if any(row["loader"] in form for form in _FORMS.values())]
    if not ours:
        return []
    peer = report.best_peer(measured)
    baseline = next((row for row in measured if row["loader"] == BASELINE), None)
    times = report.ratio(ours[0], peer)
    wins = times is None or times > 1
    cells = [workload]
    for form in _FORMS.values():
        fastest = next((row for row in ours if row["loader"] in form), None)
        cells.append("" if fastest is None else _figure(fastest, best=wins and fastest is ours[0]))
    return [
        *cells,
        "" if peer is None else f"{peer['loader']} {_figure(peer)}",
        "" if times is None else f"{times:.2f}",
        "" if baseline is None else _figure(baseline),
    ]


def _figure(row: Row, *, best: bool = False) -> str:
    """A median; after the one of a first epoch, if the suite has first epochs."""
    figure = report.shown(row["median"])
    figure = f"**{figure}**" if best else figure
    return f"{report.first_epoch(row)} / {figure}" if report.raced([row]) else figure


def _conditions(rows: Sequence[Row]) -> str:
    threads = _either(sorted({row["threads"] for row in rows}))
    each = "1 thread or worker" if threads == "1" else f"{threads} threads or workers"
    torch, pillow = (
        _either(row["shared_versions"][name] for row in rows) for name in ("torch", "pillow")
    )
    return textwrap.fill(f"{_processor(rows)}, {each} each; torch {torch}, Pillow {pillow}.", 100)


def _either(values: Iterable[object]) -> str:
    *most, last = dict.fromkeys(map(str, values))
    return f"{', '.join(most)} or {last}" if most else last


def _processor(rows: Sequence[Row]) -> str:
    """The processors, how many CPUs, and the core's instruction set, if all rows note the same."""
    machines = [row["machine"] for row in rows]
    sets = {machine.get("instruction_set") for machine in machines}
    used = sets.pop() if len(sets) == 1 else None
    cpu, cpus = (_either(machine[name] for machine in machines) for name in ("cpu", "cpus"))
    return f"{cpu}, {cpus} CPUs{f', {used}' if used else ''}"


def _between(path: Path, name: str, text: str) -> None:
    """Put ``text`` between the lines of ``path`` where the table ``name`` begins and ends."""
    begin, end = (rf"<!-- {re.escape(name)}: ?{which}[^>]*-->" for which in ("begin", "end"))
    whole = path.read_text(encoding="utf-8")
    if [len(re.findall(marker, whole)) for marker in (begin, end)] != [1, 1]:
        raise ValueError(f"{path}: expected one line <!-- {name}: begin --> and one with end")
    head, tail = (re.search(marker, whole) for marker in (begin, end))
    assert head and tail
    filled = f"{whole[: head.end()]}\n{text}\n{whole[tail.start() :]}"
    path.write_text(filled, encoding="utf-8")


# Page, name of the table in it, and what makes it of all rows; "" where it has none.
_TABLES: tuple[tuple[str, str, Callable[[Sequence[Row]], str]], ...] = (
    ("README.md", "benchmark", chart),
    ("docs/benchmarks.md", "figures", figures),
    ("docs/your-dataset.md", "scripts", scripts),
    ("docs/your-dataset.md", "untuned scripts", untuned),
    ("docs/remote.md", "figures of the suite remote", remote),
    ("docs/performance.md", "figures of the encodings", encodings),
    ("docs/performance.md", "figures of the suite entry-points", entry_points),
    ("docs/performance.md", "figures of the suite cache", caches),
    ("docs/buckets.md", "figures of the suite buckets", buckets),
    (
        "docs/your-dataset.md",
        "figures of the suite any-dataset, deferred",
        partial(own_datasets, variants=_DEFERRED),
    ),
    (
        "docs/your-dataset.md",
        "figures of the suite any-dataset, arrays",
        partial(own_datasets, variants=_ARRAYS),
    ),
)
