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

OPENING = '''
from pathlib import Path
from PIL import Image
from torchvision.transforms import functional as F


class TrainDatasetFromFolder:
    """Two sizes of each photo."""

    def __init__(self, folder, crop_size, upscale_factor):
        self.paths, self.size = sorted(Path(folder).iterdir()), crop_size

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        photo = F.center_crop(Image.open(self.paths[index]), self.size)
        return F.to_tensor(photo), F.to_tensor(F.resize(photo, self.size // 4))
'''

KNOWN = """
from pathlib import Path
from torchvision import datasets
from torchvision import transforms as T


def ImageFolder(root):
    chain = T.Compose([T.RandomResizedCrop(32), T.ToTensor()])
    return datasets.ImageFolder(Path(root).parent, chain)
"""


@pytest.fixture
def repos(tmp_path: Path) -> Path:
    """Checkouts of two scripts, in our words."""
    for module, text in (
        ("SRGAN/data_utils.py", OPENING),
        ("Image_Segmentation/data_loader.py", KNOWN),
    ):
        path = tmp_path / "repos" / module
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return tmp_path / "repos"


@pytest.mark.usefixtures("no_leaks")
def test_a_script_is_compared_and_then_timed(cache: Path, repos: Path) -> None:
    rows = rows_of_any(cache, "scripts", "srgan,image-segmentation", "--repos", repos)
    by = {(found["variant"], found["setting"]["workers"]): found["setting"] for found in rows}
    assert list(by) == [(name, n) for name in ("srgan", "image-segmentation") for n in (0, 2)]
    assert by["srgan", 2]["checked"] == "equal batches"
    assert by["srgan", 2]["engine"] == "torch"
    assert "own random numbers" in by["image-segmentation", 2]["checked"]
    for found in rows:
        assert (found["metric"], found["unit"]) == (report.TIMES, "x")
        assert found["median"] > 0
        assert found["setting"]["cpu"] > 0


def test_a_checkout_that_is_not_there_is_a_row_with_the_commands(cache: Path, repos: Path) -> None:
    (row,) = rows_of_any(cache, "scripts", "jigsaw", "--repos", repos)
    assert row["median"] is None
    assert row["reason"] == SCRIPTS["jigsaw"].clone(str(repos))


def test_without_a_folder_of_checkouts_it_says_so(cache: Path) -> None:
    (row,) = rows_of_any(cache, "scripts", "srgan")
    assert "--repos" in row["reason"]


def test_a_script_that_fails_is_a_row_and_others_go_on(cache: Path, repos: Path) -> None:
    (repos / "SRGAN" / "data_utils.py").write_text("raise RuntimeError('theirs')\n")
    rows = rows_of_any(cache, "scripts", "srgan,image-segmentation", "--repos", repos)
    assert [found["median"] is None for found in rows] == [True, False, False]
    assert "RuntimeError: theirs" in rows[0]["reason"]


def test_batches_that_differ_are_a_failure(
    cache: Path, repos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from fastload import FastLoader

    class Wrong(FastLoader):
        def __iter__(self) -> Any:
            for large, small in super().__iter__():
                yield large, torch.zeros_like(small)

    monkeypatch.setattr("bench.suites.pairs.FastLoader", Wrong)
    (row,) = rows_of_any(cache, "scripts", "srgan", "--repos", repos)
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


def test_no_script_is_there_twice() -> None:
    files = {(script.repository, script.file) for script in SCRIPTS.values()}
    assert len(files) == len(SCRIPTS) == 13


def test_the_table_has_the_best_first() -> None:
    facts: dict[str, Any] = {
        "suite": "scripts",
        "loader": "fastload",
        "metric": report.TIMES,
        "unit": "x",
        "does": "crops: of photos",
        "threads": 2,
        "machine": {"cpu": "a CPU", "cpus": 2, "commit": "abc"},
        "shared_versions": {"torch": "2", "pillow": "1"},
    }
    rows = [
        report.row(
            variant=name,
            values=[1.0],
            setting={"workers": workers, "cpu": gain},
            script={"repository": f"a/{name}", "file": "train.py"},
            **facts,
        )
        for name, workers, gain in (("bad", 0, 1.0), ("bad", 2, 1.2), ("good", 0, 4.0))
    ]
    script = {"repository": "a/absent", "file": "train.py"}
    rows.append(report.row(variant="absent", script=script, reason="not installed", **facts))
    assert documents.scripts(rows).splitlines()[-2:] == [
        "| [good](https://github.com/a/good), crops | 4.0 |  |",
        "| [bad](https://github.com/a/bad), crops | 1.0 | 1.2 |",
    ]


def test_the_commands_of_a_checkout_name_its_commit(tmp_path: Path) -> None:
    script = SCRIPTS["srgan"]
    assert script.clone("DIR") == (
        "git clone -q --filter=blob:none https://github.com/leftthomas/SRGAN DIR/SRGAN && "
        f"git -C DIR/SRGAN checkout -q {script.commit}"
    )
    assert run(tmp_path, "scripts", "--repos", tmp_path / "absent").exit_code == 2
