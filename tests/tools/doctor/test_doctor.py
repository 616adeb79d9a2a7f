"""doctor on scripts with one planted fault each, and on a healthy one."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

import warm
from bench import synthetic
from fastload._tools.doctor import Diagnosis, examine
from fastload.cli import main
from fastload.errors import ScriptError

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
    "many_small_files",
    "shuffle_at_evaluation",
    "item_every_step",
    "workers_grow",
    "slow_function",
    "epoch_not_set",
    "import_fastload",
}
STEPS = {"workers_grow": 120}  # with fewer, growth cannot be told from the memory used at the start
# Findings that appear together with a fault in the dataset's code.
BESIDE = {"import-fastload", "slow-function"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos, large photos, and room for files."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("doctor")
    synthetic.make_images(folder / "photos", 24, classes=2, seed=3)
    (folder / "large" / "class0").mkdir(parents=True)
    with Image.open(next((folder / "photos").rglob("*.jpg"))) as image:
        large = image.resize((1600, 1200))
    for number in range(16):
        large.save(folder / "large" / "class0" / f"{number}.jpg", quality=90)
    return folder


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts run in processes that have torch imported already."""
    # By its name: the package's attribute is the function.
    module = importlib.import_module("fastload._tools.doctor.examine")
    monkeypatch.setattr(module, "subprocess", warm.SUBPROCESS)


def diagnose(name: str, folder: Path) -> Diagnosis:
    return examine(SCRIPTS / f"{name}.py", [str(folder)], steps=STEPS.get(name, 40))


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
    planted = name.replace("_", "-")
    named = [one for one in found.findings if one.name == planted or one.name not in BESIDE]
    assert [one.name for one in named][:1] == [planted], found.findings
    first = named[0]
    assert first.verified == (name not in UNVERIFIED or found.seen.cuda)
    assert first.gain >= 1
    assert first.where.partition(":")[0].endswith(("common.py", f"{name}.py")), first


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
    assert found["applied"]["low"] < found["applied"]["ratio"] < found["applied"]["high"]


def test_scripts_that_fail_or_train_nothing_are_said(tmp_path: Path) -> None:
    failing = tmp_path / "failing.py"
    failing.write_text("raise ZeroDivisionError('mine')")
    with pytest.raises(ScriptError, match="ZeroDivisionError: mine") as raised:
        examine(failing)
    assert raised.value.where == f"{failing}:1"
    idle = tmp_path / "idle.py"
    idle.write_text("print('nothing to do')")
    with pytest.raises(ScriptError, match="no training loop"):
        examine(idle)
    with pytest.raises(ScriptError, match="found no such file"):
        examine(tmp_path / "absent.py")


TRAINING = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
{refuse}

class Images(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.zeros(3, 8, 8), index % 10

batches = [list(range(begin, begin + 8)) for begin in range(0, 60, 8)]
loader = DataLoader(Images(), batch_sampler=batches)
network = nn.Sequential(nn.Conv2d(3, 4, 3, stride=8), nn.Flatten(), nn.LazyLinear(10))
optimiser = torch.optim.Adam(network.parameters())
for images, labels in loader:
    loss = nn.functional.cross_entropy(network(images), labels)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
REFUSE = """
if type(DataLoader([0])) is not DataLoader:
    raise RecursionError("maximum recursion depth exceeded")
"""


def run(capfd: pytest.CaptureFixture[str], *words: object) -> tuple[int | str | None, str, str]:
    """The command's status, stdout and stderr."""
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *map(str, words)])
    printed = capfd.readouterr()
    return ended.value.code, printed.out, printed.err


def test_what_was_found_stands_where_the_script_fails_with_fastloader(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING.format(refuse=REFUSE))
    status, out, err = run(capfd, "--json", "--apply", "--steps", 6, script)
    assert status == 3, err
    found = json.loads(out)
    names = [finding["name"] for finding in found["findings"]]
    assert names[-1] == "apply-failed" and len(names) > 1
    failed = found["findings"][-1]
    assert "RecursionError: maximum recursion depth" in failed["what"]
    assert failed["where"] == f"{script}:8"
    assert found["applied"] is None
    status, out, err = run(capfd, "--apply", "--steps", 6, script)
    assert status == 3, err
    assert out.index("6 steps at") < out.index("apply-failed")
    assert "Traceback" not in out


def test_a_script_that_uses_fastloader_already_is_watched(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    imported = "from fastload import FastLoader as DataLoader"
    changed = TRAINING.format(refuse=imported).replace(
        "=batches)", "=batches, num_workers=2, multiprocessing_context='fork')"
    )
    script.write_text(changed)
    loader = examine(script, steps=6).seen.training
    assert loader is not None
    assert (loader.kind, loader.num_workers) == ("FastLoader", 2)


def test_workers_are_forked_unless_the_script_says_how_they_start() -> None:
    asks = "import multiprocessing.context as context\n"
    asks += "context._default_context._default_context = context._concrete_contexts['spawn']\n"
    asks += "from fastload._tools.doctor.child import fork_by_default\nfork_by_default()\n"
    asks += "print(context._default_context.get_start_method(allow_none=True))\n"
    asks += "{}print(context._default_context.get_start_method())"
    for chosen in ("fork", "spawn"):
        says = "" if chosen == "fork" else "context._default_context.set_start_method('spawn')\n"
        made = warm.run(["-c", asks.format(says)], check=True)
        assert made.stdout == f"None\n{chosen}\n"


def test_loaders_with_a_batch_sampler_and_optimisers_that_count_are_seen_as_they_are(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING.format(refuse=""))
    found = examine(script, steps=6)
    loader = found.seen.training
    assert loader is not None
    assert (loader.image_shape, loader.image_shapes) == ([8, 3, 8, 8], 1)
    assert loader.items == {}  # Adam reads its step count
    names = [finding.name for finding in found.findings]
    assert "float32-over-the-bus" in names and "item-every-step" not in names
    assert {finding.where for finding in found.findings} <= {f"{script}:{n}" for n in range(1, 40)}


def test_a_script_that_fails_is_status_1_and_a_wrong_command_line_2(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('no')")
    assert run(capfd, script)[0] == 1
    assert run(capfd, script, "--json")[:2] == (1, "")  # the script's own --json
    status, out, _ = run(capfd, "--json", "--steps", 9, script, "--json")
    assert status == 1 and json.loads(out)["error"]["type"] == "ScriptError"
    status, _, err = run(capfd, "--epochs", 2, script)
    assert status == 2 and "No such option" in err and "--epochs" in err
    assert run(capfd, tmp_path / "absent.py")[0] == 1
    help_ = " ".join(run(capfd, "--help")[1].split())
    assert "1 the script is missing, failed" in help_ and "2 an error in the command line" in help_


def test_options_of_doctor_s_own_that_the_script_gets_are_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    got = tmp_path / "got"
    script.write_text(f"import sys\nopen({str(got)!r}, 'w').write(' '.join(sys.argv[1:]))\n")
    _, _, err = run(capfd, script, "--epochs", "1", "--apply", "--steps=5")
    assert got.read_text() == "--epochs 1 --apply --steps=5"
    assert f"fastload doctor --apply --steps=5 {script}" in err
    _, _, err = run(capfd, script, "--epochs", "1")
    assert "warning" not in err
