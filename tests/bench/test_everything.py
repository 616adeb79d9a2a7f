"""All suites of the peers in one go, and what becomes of the rows."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bench import documents, loaders, report
from bench.__main__ import main, run
from bench.report import is_peer
from bench.suites import SUITES

ROOT = Path(__file__).parents[2]
FACTS: dict[str, Any] = {
    "threads": 2,
    "images": 1200,
    "machine": {"cpu": "a processor", "cpus": 2, "instruction_set": "avx2", "commit": "abc"},
    "shared_versions": {"torch": "2.4", "pillow": "12.0"},
}


def row(loader: str, value: float, **setting: Any) -> report.Row:
    return report.row(
        suite="imagenet-train",
        variant="float32",
        loader=loader,
        metric="throughput",
        unit="images/s",
        values=[value],
        setting=setting,
        **FACTS,
    )


ROWS = [
    row("torch-pil", 400.0),
    row("dali", 900.0),
    {**row("fastload-lmdb", 1350.0), "first_epochs": [700.0, 900.0]},
    report.row(
        suite="imagenet-train",
        variant="float32",
        loader="ffcv",
        metric="throughput",
        unit="images/s",
        reason="not installed: ffcv",
        **FACTS,
    ),
]


@pytest.mark.parametrize("publish", [[], ["--publish"]])
def test_the_script_measures_every_suite_beside_eight_peers(
    tmp_path: Path, publish: list[str]
) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    environment = {**os.environ, "PEERS": str(tmp_path), "SMALL": "images"}
    command = ["sh", str(ROOT / "bench" / "peers.sh"), *publish, "--toy"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    calls = [line.split()[2:] for line in done.stdout.splitlines()]
    runs = [words[1:] for words in calls if words[0] == "run"]
    assert [words[0] for words in calls[len(runs) :]] == ["publish", "plot"] * bool(publish)
    for words in runs:
        given = run.make_context("run", list(words)).params
        suite = SUITES[given["suite"]]
        assert set((given["variants"] or "").split(",")) <= {*suite.variants, ""}
        names = given["names"].split(",")
        assert set(names) <= set(loaders.WHERE)
        # both layouts of FFCV are one peer
        assert len({name.split("-chan")[0] for name in names if is_peer(name)}) >= 8
        assert given["data"] == ("images" if suite.name == "small-images" else None)
        assert given["toy"] and given["tries"] == 2
        folder = "bench/results" if publish else "bench/results/local"
        assert given["output"] == f"{folder}/{suite.name}.json"
    assert {words[0] for words in runs} == {
        "imagenet-train",
        "imagenet-eval",
        "small-images",
        "raw-train",
        "pack",
        "startup",
        "memory",
        "cold",
    }


def test_rows_of_variants_that_are_not_measured_again_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "imagenet-train.json"
    before = [
        {**row(name, 400.0), "variant": variant}
        for variant in ("float32", "webp")
        for name in ("torch-pil", "dali")
    ]
    path.write_text(json.dumps(before))
    suite = SUITES["imagenet-train"]
    monkeypatch.setattr(
        type(suite), "run", lambda self, variant, _: [{**row("spdl", 9.0), "variant": variant}]
    )
    for variants in ("uint8", "float32"):  # one that is new, one that the file has
        done = CliRunner().invoke(
            main, ["run", suite.name, "--variant", variants, "--json", str(path)]
        )
        assert done.exit_code == 0, done.output
    found = [(each["variant"], each["loader"]) for each in json.loads(path.read_text())]
    kept = [("webp", "torch-pil"), ("webp", "dali")]
    assert found == [("float32", "spdl"), *kept, ("uint8", "spdl")]


def test_published_rows_stand_between_the_markers(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "docs/benchmarks.md", "docs/your-dataset.md"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    for _ in range(2):  # the second time the same
        documents.fill(ROWS, tmp_path)
        document = (tmp_path / "docs" / "benchmarks.md").read_text()
        line = (
            "| imagenet-train, float32: images/s |  | 800 / **1,350** |  | dali 900 | 1.50 | 400 |"
        )
        assert line in document
        assert document.count("a processor, 2 CPUs, avx2") == 1
        assert "| dali | 900 |" not in document  # the chart has its bar


def test_a_figure_of_ours_is_bold_only_if_it_beats_every_other_loader(tmp_path: Path) -> None:
    slower = [row("torch-pil", 400.0), row("dali", 900.0), row("fastload-lmdb", 800.0)]
    assert "| imagenet-train, float32: images/s |  | 800 |" in documents.figures(slower)
    document = documents.figures([{**one, "suite": "augment"} for one in slower])
    assert "| fastload-lmdb | 800 |" in document and "| dali | 900 |" in document


def test_a_suite_is_one_table_whose_variants_are_columns() -> None:
    both = [
        row("torch-pil", 400.0),
        row("dali", 900.0, workers=0),  # a setting of its own, not another table
        row("fastload-lmdb", 1350.0),
        *({**row(name, 500.0), "variant": "uint8"} for name in ("torch-pil", "fastload-lmdb")),
    ]
    document = documents.figures([{**one, "suite": "augment"} for one in both])
    assert document.count("**augment**") == 1
    assert "| | float32: images/s | uint8: images/s |" in document
    assert "| fastload-lmdb | **1,350** | 500 |" in document
    assert "| dali | 900 |  |" in document


def test_the_readme_has_five_bars_and_says_them_in_words(tmp_path: Path) -> None:
    rows = [*ROWS, row("fastload-folder", 1300.0), row("fastload-lmdb-dct", 3000.0)]
    assert documents.chart(rows) == ""  # no other loader but DALI
    text = documents.chart([*rows, row("spdl", 950.0), row("grain", 940.0)])
    assert (
        'alt="images/s: FastLoader, DCT store 3,000; FastLoader, folder 1,300; spdl 950; '
        "DALI, on the CPU 900; torch's DataLoader 400\"" in text
    )
    assert "`spdl` is the fastest of 4 loaders" in text and "a processor, 2 CPUs, avx2" in text
    assert "Times its speed" not in text
    told = [("fastload-lmdb-dct", 4500.0), ("dali", 900.0)]
    others = [{**row(*one), "variant": "float32, avx512"} for one in told]
    text = documents.chart([*rows, row("spdl", 950.0), row("grain", 940.0), *others])
    assert "On real photos, the DCT store is 5.0 times as fast with avx512." in " ".join(
        text.split()
    )


def markers(suite: str) -> list[str]:
    return [f"<!-- figures of the suite {suite}: {which} -->" for which in ("begin", "end")]


_PAGES = ("benchmarks", "your-dataset", "remote", "performance", "buckets")


def test_the_documents_show_the_published_results(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("README.md", *(f"docs/{page}.md" for page in _PAGES)):
        (tmp_path / name).write_text((ROOT / name).read_text())
    results = sorted((ROOT / "bench" / "results").glob("*.json"))
    rows = [found for path in results for found in json.loads(path.read_text())]
    for path in documents.fill(rows, tmp_path):
        assert path.read_text() == (ROOT / path.relative_to(tmp_path)).read_text(), (
            "run: python -m bench publish bench/results/*.json"
        )


def test_the_remote_page_has_a_line_for_each_loader_of_its_suite(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "docs/benchmarks.md", "docs/remote.md"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    rows = [
        {**row(loader, value), "suite": "remote", "variant": variant, "metric": metric}
        for loader, variant, metric, value in (
            ("fastload-remote", "cold", "throughput", 450.0),
            ("fastload-remote-dct", "cold", "throughput", 300.0),
            ("fastload-remote", "half", "bytes", 0.5),
        )
    ]
    assert documents.fill([*ROWS, *rows], tmp_path)[-1] == tmp_path / "docs" / "remote.md"
    assert "fastload-remote" not in (tmp_path / "docs" / "benchmarks.md").read_text()
    page = (tmp_path / "docs" / "remote.md").read_text()
    assert "| fastload-remote | 450 |  |  |  |  |  | 0.500 |  |" in page
    assert "| fastload-remote-dct | 300 |  |  |  |  |  |  |  |" in page


def test_the_page_about_performance_has_a_table_of_caches(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "performance.md"
    page.write_text("\n".join(markers("cache")))
    for name in ("README.md", "docs/benchmarks.md"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    cached = {"cache": "dct", "bytes_an_image": 154982}
    rows = [
        {**row(loader, value, **setting), "suite": suite, "variant": variant, "metric": metric}
        for suite, variant, loader, metric, value, setting in (
            ("cache", "train", "fastload", "first epoch, cache=dct", 0.48, cached),
            ("cache", "train", "fastload", "later epoch, cache=dct", 2.6, cached),
        )
    ]
    assert documents.fill([*ROWS, *rows], tmp_path)[-1] == page
    lines = page.read_text().splitlines()
    text = '| train | `"dct"` | 0.48 | 2.60 | 154,982 |'
    assert text in lines
    begin, end = ("<!-- figures: begin -->", "<!-- figures: end -->")
    document = (tmp_path / "docs" / "benchmarks.md").read_text()
    assert "cache" not in document.split(begin)[1].split(end)[0]


def test_the_page_about_buckets_has_a_line_for_each_way(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "buckets.md"
    page.parent.mkdir()
    page.write_text("\n".join(markers("buckets")))
    rows = [
        {**row(loader, value), "suite": "buckets", "variant": "photos", "metric": metric}
        for loader, metric, value in (
            ("fastload-buckets", "padding", 0.0),
            ("fastload-buckets", "throughput", 1200.0),
            ("torch-padded", "padding", 39.4),
            ("torch-padded", "throughput", 150.0),
        )
    ]
    assert documents.fill(rows, tmp_path) == [page]
    lines = page.read_text().splitlines()
    assert "| FastLoader, `batch_by=buckets` | 0.0 | 1,200 |" in lines
    assert "| DataLoader, the same `collate_fn` | 39.4 | 150 |" in lines


def test_numbers_of_workers_are_tables_apart_beside_dataloader() -> None:
    rows = [row("torch-pil", 1.0, workers=0), row("torch-pil", 3.0, workers=2)]
    assert [len(group) for group in report.groups(rows).values()] == [2]
    rows = [{**one, "metric": report.TIMES} for one in rows]
    assert [len(group) for group in report.groups(rows).values()] == [1, 1]


def test_a_document_without_markers_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "benchmarks.md"
    page.parent.mkdir()
    page.write_text("nothing\n")
    with pytest.raises(ValueError, match="expected one line <!-- figures: begin"):
        documents.fill(ROWS, tmp_path)
    assert page.read_text() == "nothing\n"
