"""The suite scripts: batches are compared before they are timed, and a missing script is a row."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import documents, report
from bench.scripts import SCRIPTS, definitions, imported
from bench_rows import rows_of_any, run

torchvision = pytest.importorskip("torchvision")

VIEWS = '''
class TwoCropsTransform:
    """Two views of an image."""

    def __init__(self, view):
        self.view = view

    def __call__(self, image):
        return [self.view(image), self.view(image)]


class GaussianBlur:
    def __init__(self, sigma):
        self.sigma = sigma

    def __call__(self, image):
        return image
'''


@pytest.fixture
def repos(tmp_path: Path) -> Path:
    """A checkout of one script, in our words."""
    module = tmp_path / "repos" / "simsiam" / "simsiam" / "loader.py"
    module.parent.mkdir(parents=True)
    module.write_text(VIEWS)
    return tmp_path / "repos"


@pytest.mark.usefixtures("no_leaks")
def test_a_script_is_compared_and_then_timed(cache: Path, repos: Path) -> None:
    rows = rows_of_any(cache, "scripts", "simsiam,cifar", "--repos", repos)
    ratios = {(found["variant"], found["setting"]["workers"]): found for found in rows}
    assert list(ratios) == [("simsiam", 0), ("simsiam", 2), ("cifar", 0), ("cifar", 2)]
    views, memory = ratios["simsiam", 2], ratios["cifar", 2]
    assert views["setting"]["checked"] == "equal batches"
    assert views["setting"]["engine"] == "torch"
    assert "own random numbers" in memory["setting"]["checked"]
    for found in rows:
        assert (found["metric"], found["unit"]) == ("times DataLoader", "x")
        assert found["median"] > 0
        assert found["setting"]["cpu"] > 0


def test_a_checkout_that_is_not_there_is_a_row_with_the_commands(cache: Path, repos: Path) -> None:
    (row,) = rows_of_any(cache, "scripts", "swav", "--repos", repos)
    assert row["median"] is None
    assert f"https://github.com/facebookresearch/swav {repos / 'swav'}" in row["reason"]


def test_without_a_folder_of_checkouts_it_says_so(cache: Path) -> None:
    (row,) = rows_of_any(cache, "scripts", "swav")
    assert "--repos" in row["reason"]


def test_a_script_that_fails_is_a_row_and_others_go_on(cache: Path, repos: Path) -> None:
    (repos / "simsiam" / "simsiam" / "loader.py").write_text("raise RuntimeError('theirs')\n")
    rows = rows_of_any(cache, "scripts", "simsiam,cifar", "--repos", repos)
    assert [found["median"] is None for found in rows] == [True, False, False]
    assert "RuntimeError: theirs" in rows[0]["reason"]


def test_batches_that_differ_are_a_failure(
    cache: Path, repos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from fastload import FastLoader

    class Wrong(FastLoader):
        def __iter__(self) -> Any:
            for views, labels in super().__iter__():
                yield [views[0], torch.zeros_like(views[1])], labels

    monkeypatch.setattr("bench.suites.pairs.FastLoader", Wrong)
    (row,) = rows_of_any(cache, "scripts", "simsiam", "--repos", repos)
    assert row["reason"].startswith("failed: AssertionError: batch 0 differs")


def test_modules_of_a_checkout_are_forgotten_and_installed_ones_come_back(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("theirs = True\n")
    import json

    with imported(tmp_path):
        assert importlib.import_module("json").theirs
    assert sys.modules["json"] is json
    assert str(tmp_path) not in sys.path


def test_definitions_leave_out_what_runs_and_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import no_such_library\n"
        "import math\n"
        "SIZE = 1 / 0\n"
        "class Model(no_such_library.Module): pass\n"
        "def area(side): return side**2 + math.floor(size)\n"
        "raise SystemExit\n"
    )
    with imported(tmp_path):
        module = definitions(path, size=0.5)
        assert module.area(3) == 9
        assert not hasattr(module, "Model")
    assert module.__name__ not in sys.modules


def test_no_script_is_there_twice_and_most_were_never_tuned_to() -> None:
    files = {(script.repository, script.file) for script in SCRIPTS.values()}
    assert len(files) == len(SCRIPTS)
    assert sum(not script.tuned for script in SCRIPTS.values()) == 13


def test_untuned_scripts_are_all_in_one_table() -> None:
    rows = []
    for name, workers, gain in (
        ("bad", 0, 1.0), ("bad", 2, 1.2), ("good", 0, 4.0),
    ):  # fmt: skip
        row = _row(f"a/{name}", [1.0])
        row["setting"] = {"workers": workers, "cpu": gain}
        rows.append({**row, "untuned": True})
    assert documents.untuned(rows).splitlines()[2:] == [
        "| [good](https://github.com/a/good), crops | 4.0 |  |",
        "| [bad](https://github.com/a/bad), crops | 1.0 | 1.2 |",
    ]


def test_the_table_has_the_fastest_first_and_says_what_is_missing(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "your-dataset.md"
    page.parent.mkdir()
    begin, end = "<!-- scripts: begin; made from rows -->", "<!-- scripts: end -->"
    page.write_text(f"before\n{begin}\n{end}\nafter\n")
    rows = [_row("a/slow", [2.0, 3.0, 4.0]), _row("b/fast", [5.0]), _row("c/absent", [])]
    assert documents.fill(rows, tmp_path) == [page]
    lines = page.read_text().splitlines()
    table = [line for line in lines if line.startswith("| [")]
    assert table == [
        "| [b/fast](https://github.com/b/fast), `train.py` | crops | **5.0** (5.0 to 5.0) |",
        "| [a/slow](https://github.com/a/slow), `train.py` | crops | **3.0** (2.0 to 4.0) |",
    ]
    assert "Not measured: c/absent." in lines
    assert (lines[0], lines[-1]) == ("before", "after")


def _row(repository: str, values: list[float]) -> Any:
    facts: dict[str, Any] = {
        "suite": "scripts",
        "variant": repository,
        "loader": "fastload",
        "metric": "times DataLoader",
        "unit": "x",
        "script": {"repository": repository, "file": "train.py"},
        "does": "crops",
        "threads": 2,
        "machine": {"cpu": "a CPU", "cpus": 2, "commit": "abc"},
        "shared_versions": {"torch": "2", "pillow": "1"},
    }
    if not values:
        return report.row(reason="not installed: tqdm", **facts)
    return report.row(values=values, setting={}, **facts)


def test_the_commands_of_a_checkout_name_its_commit(tmp_path: Path) -> None:
    script = SCRIPTS["swav"]
    assert script.clone("DIR") == (
        "git clone -q --filter=blob:none https://github.com/facebookresearch/swav DIR/swav && "
        f"git -C DIR/swav checkout -q {script.commit}"
    )
    assert run(tmp_path, "scripts", "--repos", tmp_path / "absent").exit_code == 2
