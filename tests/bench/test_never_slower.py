"""The suite never-slower: every configuration runs, and the smallest ratio is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import documents
from bench.suites.any_dataset import CONFIGURATIONS
from bench.suites.pairs import interval
from bench_rows import rows_of_any

pytest.importorskip("torchvision")


@pytest.mark.parametrize(
    "variant",
    [pytest.param(name, marks=[pytest.mark.long] * (name != "batches")) for name in CONFIGURATIONS],
)
# One configuration opens GIFs as people do, and Pillow leaves the file of several frames open.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.usefixtures("no_leaks")
def test_every_configuration_has_a_ratio_and_its_interval(cache: Path, variant: str) -> None:
    rows = rows_of_any(cache, "never-slower", variant)
    names = [f"fastload, {one.name}" for one in CONFIGURATIONS[variant]]
    assert [row["loader"] for row in rows] == names
    for row in rows:
        low, high = row["setting"]["interval_95"]
        assert 0 < low <= row["setting"]["mean"] <= high
        assert (row["metric"], row["unit"]) == ("times DataLoader", "x")


def test_there_are_at_least_forty_and_none_twice() -> None:
    names = [one.name for each in CONFIGURATIONS.values() for one in each]
    assert len(set(names)) == len(names) >= 40


def test_the_interval_holds_the_mean_of_what_varies_around_it() -> None:
    mean, low, high = interval([0.9, 1.1, 1.0, 0.95, 1.05, 1.0])
    assert low < mean < high
    assert mean == pytest.approx(0.998, abs=0.001)
    assert interval([2.0, 2.0]) == (2.0, 2.0, 2.0)


def test_the_smallest_ratio_stands_in_the_document(row: Any) -> None:
    rows = [
        row(name, mean, [round(mean - 0.02, 2), round(mean + 0.02, 2)])
        for name, mean in (("png", 1.3), ("tiny samples", 0.98), ("jpeg", 4.2))
    ]
    text = " ".join(documents.figures(rows).split())
    assert "of 3 configurations" in text
    assert "*tiny samples*: **0.98 times** its speed (95 % interval 0.96 to 1.00)" in text


@pytest.fixture
def row() -> Any:
    from bench.report import row as made

    def make(name: str, mean: float, between: list[float]) -> Any:
        return made(
            suite="never-slower",
            variant="formats",
            loader=f"fastload, {name}",
            metric="times DataLoader",
            unit="x",
            values=[mean],
            setting={"mean": mean, "interval_95": between},
            threads=2,
            machine={"cpu": "a CPU", "cpus": 2, "commit": "abc"},
            shared_versions={"torch": "2", "pillow": "1"},
        )

    return make
