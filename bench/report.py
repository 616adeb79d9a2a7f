"""Rows of JSON, and the table made of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]
BASELINE = "torch-pil"
TIMES = "times DataLoader"  # the metric of suites that compare FastLoader with it alone
LOWER_IS_BETTER = {"s", "ms", "MB", "of the JPEGs", "of the data", "requests an image"}


def row(
    *,
    suite: str,
    variant: str,
    loader: str,
    metric: str,
    unit: str,
    values: Sequence[float] = (),
    setting: dict[str, Any] | None = None,
    **more: Any,
) -> Row:
    """One figure: the median, minimum and maximum of its rounds, and ``more`` fields.

    Without ``values`` the loader has no figure, and the field ``reason`` says why.
    """
    median, least, most = (
        _rounded(of(values)) if values else None for of in (statistics.median, min, max)
    )
    return {
        "suite": suite,
        "variant": variant,
        "loader": loader,
        "metric": metric,
        "unit": unit,
        "median": median,
        "min": least,
        "max": most,
        "rounds": len(values),
        "setting": setting or {},
        "values": [_rounded(value) for value in values],
        **more,
    }


def is_peer(loader: str) -> bool:
    return not loader.startswith("fastload")


def ratio(row: Row, other: Row | None) -> float | None:
    """How many times better ``row`` is than ``other``."""
    if other is None or not other["median"] or not row["median"]:
        return None
    if row["metric"] == "import":  # torch's own loader comes with torch: no ratio to nothing
        return None
    quotient = float(row["median"]) / float(other["median"])
    return 1 / quotient if row["unit"] in LOWER_IS_BETTER else quotient


def first_epoch(row: Row) -> str:
    """The median of its first epochs in new processes; "" where none was measured."""
    rates = row.get("first_epochs")
    return shown(statistics.median(rates)) if rates else ""


def best_peer(rows: Iterable[Row]) -> Row | None:
    """The best row of a loader that is not fastload's."""
    peers = [row for row in rows if is_peer(row["loader"]) and row["median"]]
    if not peers:
        return None
    sign = -1 if peers[0]["unit"] in LOWER_IS_BETTER else 1
    return max(peers, key=lambda row: sign * float(row["median"]))


def tables(rows: Sequence[Row]) -> list[Any]:
    """A rich table for each suite, variant and metric, in the order of the rows."""
    return [_table(key, group) for key, group in groups(rows).items()]


def groups(rows: Sequence[Row]) -> dict[tuple[str, str, str, str], list[Row]]:
    """The rows of each table, in their order; those beside DataLoader are apart by workers."""
    groups: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        workers = row["setting"].get("workers") if row["metric"] == TIMES else None
        variant = row["variant"] + ("" if workers is None else f", {workers} workers")
        key = (row["suite"], variant, row["metric"], row["unit"])
        groups.setdefault(key, []).append(row)
    return groups


def best_first(group: Sequence[Row]) -> list[Row]:
    """The rows that have a figure."""
    sign = 1 if group[0]["unit"] in LOWER_IS_BETTER else -1
    measured = [row for row in group if row["median"] is not None]
    return sorted(measured, key=lambda row: sign * float(row["median"]))


def _table(key: tuple[str, str, str, str], group: list[Row]) -> Any:
    from rich.table import Table

    suite, variant, metric, unit = key
    baseline = next((row for row in group if row["loader"] == BASELINE), None)
    peer = best_peer(group)
    table = Table(title=f"{suite}, {variant}: {metric}, {unit}", title_justify="left")
    table.add_column("loader")
    headings = ["median", "min", "max", f"x {BASELINE}", "x best peer", "first epoch"]
    for heading in headings:
        table.add_column(heading, justify="right")
    table.add_column("setting", overflow="fold")
    for row in best_first(group):
        name = f"{row['loader']} *" if row is peer else row["loader"]
        figures = [shown(row[field]) for field in ("median", "min", "max")]
        ratios = [_times(ratio(row, other)) for other in (baseline, peer)]
        table.add_row(name, *figures, *ratios, first_epoch(row), _setting(row))
    for row in group:
        if row["median"] is None:
            empty = [""] * (len(headings) - 1)
            table.add_row(row["loader"], "-", *empty, row["reason"], style="dim")
    if peer is not None:
        table.caption = "* the best peer"
        table.caption_justify = "left"
    return table


def _setting(row: Row) -> str:
    shown = [f"{name}={value}" for name, value in row["setting"].items()]
    off = row.get("check", {}).get("levels_off")
    if off is not None:
        shown.append(f"({off} grey levels from Pillow)")
    return " ".join(shown)


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def shown(value: float) -> str:
    """A figure with the digits that matter."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3f}"


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
