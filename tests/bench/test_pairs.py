"""Ratios to DataLoader: their interval, and the smallest one, which the document tells."""

from __future__ import annotations

from typing import Any

import pytest

from bench import documents
from bench.suites.pairs import interval


def test_the_interval_holds_the_mean_of_what_varies_around_it() -> None:
    mean, low, high = interval([0.9, 1.1, 1.0, 0.95, 1.05, 1.0])
    assert low < mean < high
    assert mean == pytest.approx(0.998, abs=0.001)
    assert interval([2.0, 2.0]) == (2.0, 2.0, 2.0)


def test_the_smallest_ratio_stands_in_the_document(row: Any) -> None:
    rows = [
        row(name, mean, [round(mean - 0.02, 2), round(mean + 0.02, 2)])
        for name, mean in (("png", 1.3), ("nested", 0.98), ("jpeg", 4.2))
    ]
    text = " ".join(documents.figures(rows).split())
    assert "of 3 comparisons" in text
    assert "*nested, 2 workers*: **0.98 times** its speed (95 % interval 0.96 to 1.00)" in text


@pytest.fixture
def row() -> Any:
    from bench.report import row as made

    def make(name: str, mean: float, between: list[float]) -> Any:
        return made(
            suite="any-dataset",
            variant=name,
            loader="fastload",
            metric="times DataLoader",
            unit="x",
            values=[mean],
            setting={"mean": mean, "interval_95": between, "workers": 2},
            threads=2,
            machine={"cpu": "a CPU", "cpus": 2, "commit": "abc"},
            shared_versions={"torch": "2", "pillow": "1"},
        )

    return make
