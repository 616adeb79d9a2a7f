"""Measured rows in README.md and pages of docs/, between markers."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench import plot, report
from bench.report import BASELINE, TIMES, Row

# Suites whose tables are on the pages of their subjects only.
_EXPLAINED = {"cache", "buckets", "remote", "scripts"}


def fill(rows: Sequence[Row], root: Path) -> list[Path]:
    """Put ``rows`` into the documents below ``root`` and return the paths of those that they fill.

    A table for which there are no rows stays as it is.

    Raises ValueError if a document has no markers.
    """
    filled: dict[Path, None] = {}
    for page, name, table in _TABLES:
        if text := table(rows):
            _between(root / page, name, text)
            filled[root / page] = None
    return list(filled)


def _between(path: Path, name: str, text: str) -> None:
    """Put ``text`` between the lines of ``path`` where the table ``name`` begins and ends."""
    begin, end = (rf"<!-- {re.escape(name)}: ?{which}[^>]*-->" for which in ("begin", "end"))
    whole = path.read_text(encoding="utf-8")
    if [len(re.findall(marker, whole)) for marker in (begin, end)] != [1, 1]:
        raise ValueError(f"{path}: expected one line <!-- {name}: begin --> and one with end")
    filled = re.sub(rf"(?s)({begin}).*({end})", lambda m: f"{m[1]}\n{text}\n{m[2]}", whole)
    path.write_text(filled, encoding="utf-8")


# --- tables ---------------------------------------------------------------------------------------


def _shown(row: Row) -> str:
    return report.shown(row["median"])


def _two_digits(row: Row) -> str:
    return f"{row['median']:.2f}"


def _bytes(row: Row) -> str:
    return f"{row['setting']['bytes_an_image']:,}"


class _Column(NamedTuple):
    """A column of a table: which row it shows of each line, and how."""

    heading: str
    key: Any
    text: Callable[[Row], str] = _shown


def _pivot(
    rows: Sequence[Row],
    place: Callable[[Row], tuple[Any, Any]],
    columns: Sequence[_Column],
    lines: dict[Any, str] | None = None,
    corner: str = "",
    title: str = "",
) -> str:
    """A table of ``rows`` below its title, or where they were measured; "" if it has no line.

    ``place`` says in which line a row is, and which column's key it has. ``lines``: what stands at
    the begin of each; without it all there are, in the order of the rows. A ``corner`` of several
    headings, between bars, belongs to lines that begin with as many texts.
    """
    keys = {column.key for column in columns}
    found = {place(row): row for row in rows if row["median"] is not None}
    found = {key: row for key, row in found.items() if key[1] in keys}
    lines = {line: str(line) for line, _ in found} if lines is None else lines
    cells = [
        [said, *(c.text(found[line, c.key]) if (line, c.key) in found else "" for c in columns)]
        for line, said in lines.items()
        if any((line, key) in found for key in keys)
    ]
    table = _table([corner, *(column.heading for column in columns)], cells)
    return "\n".join([title or _conditions(rows), "", *table]) if cells else ""


def _by_workers(row: Row) -> tuple[str, int]:
    return row["variant"], row["setting"]["workers"]


def _table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown: text in its first column (of several, if it has bars), then figures."""
    head = "".join(f" {heading} |" if heading else " |" for heading in headings)
    aligned = "---|" * (1 + headings[0].count(" | ")) + "---:|" * (len(headings) - 1)
    return [f"|{head}", f"|{aligned}", *(f"| {' | '.join(cells)} |" for cells in lines)]


def _of(rows: Sequence[Row], suite: str) -> list[Row]:
    return [row for row in rows if row["suite"] == suite]


def _others(rows: Sequence[Row]) -> list[Row]:
    """Those of suites that no page of their own explains, suites by name."""
    return sorted(
        (row for row in rows if row["suite"] not in _EXPLAINED), key=lambda row: str(row["suite"])
    )


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


# --- pages of their own ---------------------------------------------------------------------------


def scripts(rows: Sequence[Row]) -> str:
    """Public scripts: what they gain in CPU time, the best first."""
    rows = [row for row in _of(rows, "scripts") if row["median"]]
    least: dict[str, float] = {}
    for row in rows:
        least[row["variant"]] = min(least.get(row["variant"], math.inf), row["setting"]["cpu"])
    lines: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: -least[row["variant"]]):
        repository, kind = row["script"]["repository"], row["does"].split(":")[0]
        link = f"[{repository.split('/')[1]}](https://github.com/{repository}), {kind}"
        lines.setdefault(row["variant"], link)
    gain = lambda row: f"{row['setting']['cpu']:.1f}"  # noqa: E731
    columns = [_Column(f"{workers} workers", workers, gain) for workers in (0, 2)]
    return _pivot(rows, _by_workers, columns, lines, corner="script")


def remote(rows: Sequence[Row]) -> str:
    """One line per loader of the suite remote: nothing cached, all, or half."""
    columns = [
        _Column("cold: images/s", ("cold", "throughput")),
        _Column("first batch, s", ("cold", "first batch")),
        _Column("bytes / data", ("cold", "bytes")),
        _Column("requests / image", ("cold", "requests")),
        _Column("all cached: images/s", ("warm", "throughput")),
        _Column("half cached: images/s", ("half", "throughput")),
        _Column("bytes / data", ("half", "bytes")),
        _Column("requests / image", ("half", "requests")),
    ]
    place = lambda row: (row["loader"], (row["variant"], row["metric"]))  # noqa: E731
    return _pivot(_of(rows, "remote"), place, columns, corner="loader")


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


def encodings(rows: Sequence[Row]) -> str:
    """One line per way to keep photos and small images; nothing unless all of it was measured.

    Raw photos are those of the suite raw-train, resized when they are packed.
    """
    row_of = {
        (row["suite"], row["variant"], row["loader"], row["metric"]): row
        for row in _others(rows)
        if row["median"] is not None
    }
    used: list[Row] = []
    lines: list[list[str]] = []
    for store, loader in _CHOICES.items():
        raw = loader == "fastload-lmdb-raw"
        rates = [row_of.get((*work, loader, "throughput")) for work in (_RAW if raw else _KEPT)]
        if None in rates:
            return ""
        sizes = [row_of.get(("pack", kind, loader, "size")) for kind in ("photos", "small")]
        packed = row_of.get(("pack", "photos", loader, "pack"))
        used += [row for row in (*rates, *sizes, packed) if row]
        size = ", ".join(_two_digits(row) for row in sizes if row) or "1"
        size = "width x height x 3 bytes" if raw else size
        speeds = [_shown(row) for row in rates if row]
        lines.append([store, *speeds, size, _shown(packed) if packed else ""])
    headings = (
        "images/s in later epochs",
        "photos, 224x224 crops",
        "32x32 images",
        "size, times the JPEGs: photos, 32x32",
        "packed, photos/s",
    )
    return "\n".join([_conditions(used), "", *_table(headings, lines)])


def caches(rows: Sequence[Row]) -> str:
    """One line per workload and cache: the speed of its epochs relative to no cache."""

    def place(row: Row) -> tuple[str, str]:
        return f'{row["variant"]} | `"{row["setting"]["cache"]}"`', row["metric"].split()[0]

    columns = [
        _Column("first epoch", "first", _two_digits),
        _Column("later epochs", "later", _two_digits),
        _Column("bytes per image", "later", _bytes),
    ]
    return _pivot(_of(rows, "cache"), place, columns, corner="images | `cache`")


def buckets(rows: Sequence[Row]) -> str:
    """One line per way to make batches of images of several sizes."""
    lines = {
        "fastload-buckets": "FastLoader, `batch_by=buckets`",
        "fastload-padded": "FastLoader, a `collate_fn` that pads",
        "torch-padded": "DataLoader, the same `collate_fn`",
    }
    columns = [
        _Column("padding, % of the pixels", "padding", lambda row: f"{row['median']:.1f}"),
        _Column("images/s", "throughput"),
    ]
    place = lambda row: (row["loader"], row["metric"])  # noqa: E731
    return _pivot(_of(rows, "buckets"), place, columns, lines)


_DEFERRED = {
    "train": "photos to 224x224: random crop and flip (`train`)",
    "v2": "photos to 224x224 by torchvision's v2, from `ToImage` on (`v2`)",
    "v2-colors": "the same with `ColorJitter` (`v2-colors`)",
    "new-workers": "`train` with new workers in each epoch (`new-workers`)",
    "stream": "`train` from an IterableDataset (`stream`)",
    "two-views": "two views of each photo (`two-views`)",
    "ten-crops": "ten crops of each photo (`ten-crops`)",
    "image-and-mask": "a photo and its mask, cropped alike (`image-and-mask`)",
    "small-jpegs": "32x32 JPEGs, padded crop and flip (`small-jpegs`)",
    "small-v2": "32x32 JPEGs by v2, from `ToImage` on (`small-v2`)",
}
_ARRAYS = {
    "numpy": "Pillow, then NumPy (`numpy`)",
    "albumentations": "Pillow, then Albumentations (`albumentations`)",
    "cv2": "OpenCV, then Albumentations (`cv2`)",
}


def own_datasets(rows: Sequence[Row], variants: dict[str, str]) -> str:
    """One line per Dataset of ``variants``: times DataLoader."""
    rows = [row for row in _compared(rows) if row["variant"] in variants]
    columns = [_Column("0 workers", False, _mean), _Column("workers", True, _mean)]
    place = lambda row: (row["variant"], bool(row["setting"]["workers"]))  # noqa: E731
    return _pivot(rows, place, columns, variants, "times DataLoader (95 % interval)")


def _compared(rows: Sequence[Row]) -> list[Row]:
    return [row for row in _of(rows, "any-dataset") if row["metric"] == TIMES and row["median"]]


def _mean(row: Row) -> str:
    low, high = row["setting"]["interval_95"]
    return f"{row['setting']['mean']:.1f} ({low:.1f} to {high:.1f})"


# --- README.md ------------------------------------------------------------------------------------


def chart(rows: Sequence[Row]) -> str:
    """The README's chart and what its bars are; nothing if one of them was not measured."""
    rows = _others(rows)
    few = plot.overview(rows)
    peer = report.best_peer(few.values())
    if peer is None:
        return ""
    bars = "; ".join(f"{name} {_shown(row)}" for name, row in few.items())
    race = ("suite", "variant", "metric")
    peers = [row for row in rows if all(row[key] == peer[key] for key in race) and row["median"]]
    others = sum(report.is_peer(row["loader"]) for row in peers)
    text = (
        f"Images per second: photos, cropped to 224x224 and flipped at random. "
        f"{_processor([peer])}, {peer['threads']} threads or workers each; later epochs. For the "
        "folder, only the import changes; the DCT store is packed once, without loss. "
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


# --- docs/benchmarks.md ---------------------------------------------------------------------------

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


def figures(rows: Sequence[Row]) -> str:
    """The summary, charts, and tables of the suites that these do not tell."""
    rows = _others(rows)
    if not rows:
        return ""
    drawn = {row["suite"] for row in rows if row["median"]}
    suites = [suite for suite in dict.fromkeys(suite for suite, _ in _SHORT) if suite in drawn]
    charts = [plot.picture("charts", suite) for suite in suites]
    parts = [_conditions(rows), _summary(rows), _slowest(rows), *charts, _quotients(rows)]
    parts += [_medians(rows, suite) for suite in ("augment", "pack")]
    return "\n\n".join(filter(None, parts))


def _summary(rows: Sequence[Row]) -> str:
    """One line per workload: the forms of fastload, and the best other loader."""
    groups = report.groups(rows).items()
    lines = [
        line
        for wanted in _SHORT
        for (suite, variant, metric, unit), group in groups
        if (suite, metric) == wanted and (line := _line(f"{suite}, {variant}: {unit}", group))
    ]
    headings = ("workload", *_FORMS, "best other loader", "x", "DataLoader")
    return "\n".join(_table(headings, lines)) if lines else ""


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
        cells.append(_figure(fastest, best=wins and fastest is ours[0]))
    return [
        *cells,
        f"{peer['loader']} {_figure(peer)}" if peer else "",
        "" if times is None else f"{times:.2f}",
        _figure(baseline),
    ]


def _figure(row: Row | None, *, best: bool = False) -> str:
    """A median; after the one of first epochs, if it has some."""
    if row is None:
        return ""
    figure = f"**{_shown(row)}**" if best else _shown(row)
    return " / ".join(filter(None, (report.first_epoch(row), figure)))


def _slowest(rows: Sequence[Row]) -> str:
    """The smallest ratio of the suite never-slower; nothing if it did not run."""
    measured = [row for row in _of(rows, "never-slower") if row["median"]]
    if not measured:
        return ""
    least = min(measured, key=lambda row: float(row["setting"]["mean"]))
    low, high = least["setting"]["interval_95"]
    text = (
        f"never-slower: of {len(measured)} configurations, FastLoader gains least over DataLoader "
        f"in *{least['loader'].removeprefix('fastload, ')}*: "
        f"**{least['setting']['mean']:.2f} times** its speed (95 % interval {low:.2f} to "
        f"{high:.2f})."
    )
    return textwrap.fill(text, 100)


def _quotients(rows: Sequence[Row]) -> str:
    """How many times DataLoader's speed FastLoader has, of the suite any-dataset."""
    rows = [row for row in _compared(rows) if row["variant"] not in {**_DEFERRED, **_ARRAYS}]
    workers = dict.fromkeys(row["setting"]["workers"] for row in rows)
    columns = [_Column(f"x, {count} workers", count) for count in workers]
    return _pivot(rows, _by_workers, columns, title="**any-dataset**")


def _medians(rows: Sequence[Row], suite: str) -> str:
    """The medians of one suite: a line for each loader, a column for each variant and metric.

    fastload's figure is bold if it beats every other loader.
    """
    rows = _of(rows, suite)
    groups = report.groups(rows)
    winners, columns = list[Row](), list[_Column]()

    def figure(row: Row) -> str:
        return f"**{_shown(row)}**" if row in winners else _shown(row)

    for (_, variant, metric, unit), group in groups.items():
        ranked = report.best_first(group)
        if ranked and (report.ratio(ranked[0], report.best_peer(group)) or 0) > 1:
            winners.append(ranked[0])
        heading = unit if metric == "throughput" else f"{metric}, {unit}"
        heading = f"{variant}: {heading}" if len(groups) > 1 else heading
        columns.append(_Column(heading, (variant, metric), figure))
    ranked = [row for group in groups.values() for row in report.best_first(group)]
    place = lambda row: (row["loader"], (row["variant"], row["metric"]))  # noqa: E731
    return _pivot(ranked, place, columns, title=f"**{suite}**")


# Page, name of the table in it, and what makes it of all rows; "" where it has none.
_OWN = "figures of the suite any-dataset"
_TABLES: tuple[tuple[str, str, Callable[[Sequence[Row]], str]], ...] = (
    ("README.md", "benchmark", chart),
    ("docs/benchmarks.md", "figures", figures),
    ("docs/your-dataset.md", "scripts", scripts),
    ("docs/remote.md", "figures of the suite remote", remote),
    ("docs/performance.md", "figures of the encodings", encodings),
    ("docs/performance.md", "figures of the suite cache", caches),
    ("docs/buckets.md", "figures of the suite buckets", buckets),
    ("docs/your-dataset.md", f"{_OWN}, deferred", partial(own_datasets, variants=_DEFERRED)),
    ("docs/your-dataset.md", f"{_OWN}, arrays", partial(own_datasets, variants=_ARRAYS)),
)
