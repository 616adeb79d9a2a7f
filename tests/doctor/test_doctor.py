"""doctor on scripts with one planted fault each, and on a healthy one."""

from __future__ import annotations

import importlib
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import warm
from fastload import _synthetic
from fastload._doctor import Diagnosis, examine
from fastload.cli import main
from fastload.errors import UsageError

SCRIPTS = Path(__file__).parent / "scripts"
PLANTED = sorted(
    path.stem for path in SCRIPTS.glob("*.py") if path.stem not in ("common", "healthy")
)
UNVERIFIED = {
    "pin_memory_off",
    "item_every_step",
    "float32_over_the_bus",
    "cudnn_benchmark_off",
    "no_autocast",
}
QUICK = {  # workers_0 is the command's
    "workers_not_persistent",
    "pillow_decode",
    "many_small_files",
    "shuffle_at_evaluation",
    "item_every_step",
    "workers_grow",
}
STEPS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos, large photos, and room for files."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("doctor")
    _synthetic.make_images(folder / "photos", 24, classes=2, seed=3)
    (folder / "large" / "class0").mkdir(parents=True)
    with Image.open(next((folder / "photos").rglob("*.jpg"))) as image:
        large = image.resize((1600, 1200))
    for number in range(16):
        large.save(folder / "large" / "class0" / f"{number}.jpg", quality=90)
    return folder


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts run in processes that have torch imported already."""

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return warm.run(command[1:], **options)

    there = SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired)
    module = importlib.import_module("fastload._doctor.examine")  # the name is a function's, too
    monkeypatch.setattr(module, "subprocess", there)


def diagnose(name: str, folder: Path) -> Diagnosis:
    return examine(SCRIPTS / f"{name}.py", [str(folder)], steps=STEPS)


def test_a_healthy_script_has_no_findings(folder: Path) -> None:
    found = diagnose("healthy", folder)
    assert found.findings == ()
    assert found.images_per_s > 0


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in PLANTED],
)
def test_the_planted_fault_is_named_first(name: str, folder: Path) -> None:
    found = diagnose(name, folder)
    names = [finding.name for finding in found.findings]
    assert names[0] == name.replace("_", "-"), found.findings
    assert found.findings[0].verified == (name not in UNVERIFIED or found.seen.cuda)
    assert found.findings[0].gain >= 1


def test_the_command_prints_json_and_says_by_its_status_that_there_is_something(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["doctor", "--json", "--apply", "--steps", "20"]
    with pytest.raises(SystemExit) as ended:
        main([*words, str(SCRIPTS / "workers_0.py"), str(folder)])
    printed = capfd.readouterr()
    assert ended.value.code == 3, printed.err
    found = json.loads(printed.out)
    assert found["findings"][0]["name"] == "workers-0"
    assert found["applied_images_per_s"] > 0


def test_scripts_that_fail_or_train_nothing_are_said(tmp_path: Path) -> None:
    failing = tmp_path / "failing.py"
    failing.write_text("raise ZeroDivisionError('mine')")
    with pytest.raises(UsageError, match="ZeroDivisionError: mine"):
        examine(failing)
    idle = tmp_path / "idle.py"
    idle.write_text("print('nothing to do')")
    with pytest.raises(UsageError, match="no training loop"):
        examine(idle)
    with pytest.raises(UsageError, match="found none"):
        examine(tmp_path / "absent.py")
