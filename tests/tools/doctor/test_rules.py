"""The findings that doctor derives from observations."""

from __future__ import annotations

import dataclasses
import inspect
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler, TensorDataset
from torchvision import transforms as T

from fastload._tools.doctor.comparison import compare
from fastload._tools.doctor.examine import Diagnosis
from fastload._tools.doctor.observation import FastSeen, FunctionSeen, LoaderSeen, Observation
from fastload._tools.doctor.places import Places
from fastload._tools.doctor.profiler import Profiler, attributed, functions
from fastload._tools.doctor.rules import Finding, findings
from fastload._tools.doctor.sampler import growth
from fastload._tools.doctor.sources import cuda_only
from fastload._tools.doctor.trial import trial
from fastload._tools.doctor.watch import Watch
from fastload.cli.doctor import _show, _show_findings, _shown

MB = 1 << 20


def training(wait_s: float = 0.09, step_s: float = 0.01, **changed: Any) -> LoaderSeen:
    """A training loop of ten batches of 32."""
    seen: dict[str, Any] = {
        "dataset": "Photos",
        "kind": "DataLoader",
        "made": "train.py:10",
        "looped": "train.py:20",
        "called": "train.py:21",
        "num_workers": 2,
        "batch_size": 32,
        "persistent_workers": True,
        "waits_s": [wait_s] * 9,
        "starts_s": [wait_s],
        "steps_s": [step_s] * 10,
        "laps_s": [wait_s + step_s] * 9,
        "images": 320,
        "batch_nbytes": 19 * MB,
        "image_shape": [32, 3, 224, 224],
        "image_dtype": "float32",
        "image_shapes": 1,
        "backwards": 10,
        "forwards": 10,
    }
    return LoaderSeen(**{**seen, **changed})


def names(seen: Observation) -> list[str]:
    return [finding.name for finding in findings(seen)]


# --- the import -----------------------------------------------------------------------------------


def test_the_import_comes_before_hints_for_gpus_with_the_gain_that_was_measured() -> None:
    fast = FastSeen(native=True, batch_s=0.005)
    found = findings(Observation(loaders=[training(fast=fast)], convolutions=True))
    assert found[0].name == "import-fastload"
    assert found[0].gain == pytest.approx(10.0)  # hidden by the step
    assert "from fastload import FastLoader" in found[0].change
    assert found[0].where == "train.py:10"
    assert len(found) > 2 and not any(finding.verified for finding in found[1:])


@pytest.mark.parametrize(
    ("fast", "wait_s"),
    [
        (FastSeen(native=False, reason="a Dataset of one's own"), 0.09),
        (None, 0.09),
        (FastSeen(native=True, batch_s=0.001), 0.0005),  # the loop does not wait
        (FastSeen(native=True, batch_s=0.099), 0.09),  # it would still wait
        (FastSeen(native=True, batch_s=0.08, error=0.1), 0.09),  # perhaps it would
    ],
)
def test_the_import_is_not_advised_without_a_gain(fast: FastSeen | None, wait_s: float) -> None:
    assert "import-fastload" not in names(Observation(loaders=[training(wait_s, fast=fast)]))


def test_fastloader_is_not_named_where_it_would_run_torch_s_machinery() -> None:
    pillow = {"loads": 320, "load_s": 0.8, "fetch_s": 1.0, "fetch_cpu_s": 1.0, "fetched": 320}
    for native, words in ((True, "FastLoader decodes"), (False, "fastload pack makes a store")):
        seen = Observation(loaders=[training(fast=FastSeen(native=native, batch_s=1.0))], **pillow)
        (found,) = [one for one in findings(seen) if one.name == "pillow-decode"]
        assert found.change.startswith(words)


def test_the_trial_asks_fastloader_as_the_changed_import_would() -> None:
    rows = TensorDataset(torch.zeros(64, 3, 8, 8))
    ticks = iter(range(10**6))
    seen = trial({"dataset": rows, "batch_size": 4}, seconds=30, clock=lambda: float(next(ticks)))
    assert seen.native and not seen.ahead  # num_workers unset: torch's 0 for rows
    assert seen.batch_s == 1.0 and seen.error == 0.0

    class Own(TensorDataset):
        pass

    seen = trial({"dataset": Own(torch.zeros(64)), "batch_size": 4, "num_workers": 2})
    assert not seen.native and "Own is not a dataset" in seen.reason
    seen = trial({"dataset": rows, "batch_size": 4, "collate_fn": lambda batch: 1 / 0})
    assert not seen.native


class Pixels(Dataset[Any]):
    """Opens an image, and asks for its pixels."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return np.asarray(Image.open(self.path).convert("RGB")).mean()


def test_what_asks_for_pixels_is_found_with_its_line_and_the_gain(tmp_path: Path) -> None:
    Image.new("RGB", (200, 150)).save(tmp_path / "a.jpg")
    tried = trial({"dataset": Pixels(tmp_path / "a.jpg"), "batch_size": 8}, seconds=0.1)
    assert (tried.native, tried.defers) == (False, True)
    assert tried.batch_s > 0
    (part,) = tried.materialised
    line = inspect.getsourcelines(Pixels.__getitem__)[1] + 1
    assert (part.function, part.where) == ("Image.__array_interface__", f"{__file__}:{line}")
    assert part.images == 1.0
    assert 0 < part.share <= 1

    part = dataclasses.replace(part, share=0.5)
    fast = FastSeen(native=False, defers=True, batch_s=0.04, ahead=False, materialised=[part])
    seen = Observation(loaders=[training(wait_s=0.09, step_s=0.01, fast=fast)])
    assert Observation.from_json(dataclasses.asdict(seen)) == seen
    found = {finding.name: finding for finding in findings(seen)}
    assert found["import-fastload"].gain == pytest.approx(0.1 / 0.05)
    assert found["pixels-in-python"].gain == pytest.approx(0.1 / 0.03)
    assert found["pixels-in-python"].where == f"{__file__}:{line}"
    assert (
        "Image.__array_interface__ asks for the pixels of 100% of" in found["pixels-in-python"].what
    )
    fast = dataclasses.replace(fast, materialised=[dataclasses.replace(part, share=0.05)])
    assert "pixels-in-python" not in names(Observation(loaders=[training(fast=fast)]))


# --- what the dataset's time goes to --------------------------------------------------------------

BUSY = {"fetch_s": 1.0, "fetch_cpu_s": 1.0, "fetched": 320}
SLOW = {**BUSY, "fetch_cpu_s": 0.05, "opens": 320, "open_nbytes": 320 * MB}


def test_workers_gain_no_more_than_there_are_cpus_if_the_step_needs_them() -> None:
    loader = training(wait_s=0.07, step_s=0.03, num_workers=0)

    def gain(**seen: Any) -> float:
        found = findings(Observation(loaders=[loader], cpus=2, **seen))
        return next(finding.gain for finding in found if finding.name == "workers-0")

    assert gain(**BUSY) == pytest.approx(2.0)
    assert gain(**BUSY, cuda=True) == pytest.approx(0.1 / 0.035)
    assert gain(**SLOW) == pytest.approx(0.1 / 0.03)


@pytest.mark.parametrize(
    ("name", "seen", "left"),
    [
        ("large-photos", {**BUSY, "loads": 320, "load_pixels": 320 * MB, "load_s": 0.6}, 0.52),
        ("pillow-decode", {**BUSY, "loads": 320, "load_s": 0.8}, 0.52),
        ("many-small-files", {**BUSY, "opens": 320, "open_nbytes": 320 * 4096}, 0.5),
        ("fits-in-memory", {**SLOW, "memory_nbytes": 1 << 40}, 0.05),
        ("slow-disk", SLOW, 0.25),
    ],
)
def test_what_takes_the_datasets_time_is_found_with_the_gain(
    name: str, seen: dict[str, Any], left: float
) -> None:
    """``left``: share of the waiting that is predicted to remain."""
    loop = training(wait_s=0.09, step_s=0.01, samples=2000)
    found = {finding.name: finding for finding in findings(Observation(loaders=[loop], **seen))}
    assert found[name].gain == pytest.approx(0.1 / (0.09 * left + 0.01))
    idle = training(wait_s=0.0005, step_s=0.01, samples=2000)
    assert name not in names(Observation(loaders=[idle], **seen))


def test_ordinary_photos_are_not_to_be_shrunk() -> None:
    """A crop of 8 % of 640x480 has fewer pixels than the 224x224 that it becomes."""
    seen = {**BUSY, "loads": 320, "load_pixels": 320 * 640 * 480, "load_s": 0.6}
    assert "large-photos" not in names(Observation(loaders=[training()], **seen))


# --- settings for CUDA only -----------------------------------------------------------------------

CONDITIONAL = """
import torch
use_cuda = torch.cuda.is_available()
if use_cuda:
    torch.backends.cudnn.benchmark = True
    model = model.to(memory_format=torch.channels_last)
loader = DataLoader(data, pin_memory=use_cuda)
with torch.cuda.amp.autocast():
    pass
"""
ALWAYS = """
import torch
torch.backends.cudnn.benchmark = False
model = model.to(memory_format=torch.contiguous_format)
loader = DataLoader(data, pin_memory=False)
with torch.autocast("cpu"):
    pass
if use_cuda:
    model = model.cuda()
"""


def test_what_a_script_sets_on_cuda_only_is_not_missed_without_cuda(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(CONDITIONAL)
    hidden = cuda_only([str(script), str(tmp_path / "absent.py")])
    assert hidden == ["autocast", "benchmark", "channels_last", "pin_memory"]
    asked = {"cudnn-benchmark-off", "no-autocast", "pin-memory-off"}
    loaders = [training()]
    assert asked <= set(names(Observation(loaders=loaders, convolutions=True)))
    assert not asked & set(names(Observation(loaders=loaders, convolutions=True, cuda_only=hidden)))
    with_cuda = Observation(loaders=loaders, convolutions=True, cuda_only=hidden, cuda=True)
    assert asked <= set(names(with_cuda))  # observed there
    script.write_text(ALWAYS)
    assert cuda_only([str(script)]) == []


def test_hints_for_gpus_are_one_line_and_fixes_are_whole_at_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    change = "torch.backends.cudnn.benchmark_of_a_name_as_long_as_its_place = True " * 3
    found = [Finding(name="one", what="w " * 90, change=change, where="train.py:3", gain=2.5)]
    found += [
        Finding(name=f"hint-{n}", what="x", change="y", where=f"a.py:{n}", verified=False)
        for n in range(4)
    ]
    _show_findings(found)
    printed = capsys.readouterr().out
    assert all(len(line) <= 80 for line in printed.splitlines())
    assert " ".join(change.split()) in " ".join(printed.split())
    assert "1. one, at train.py:3" in printed and "2.5 x" in printed
    assert printed.count("GPU") == 1
    assert all(f"hint-{n} (a.py:{n})" in " ".join(printed.split()) for n in range(4))


@pytest.mark.parametrize(
    ("wait_s", "verdict"),
    [
        (0.0003, "the training step is the bottleneck: a faster loader gains at most 3%"),
        (0.01, "the loop waits for data 50% of its time: a faster loader gains at most 2.0 x"),
        (0.09, "the loop waits for data 90% of its time: a faster loader gains at most 10.0 x"),
    ],
)
def test_doctor_begins_with_a_verdict_in_one_sentence(
    wait_s: float, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = Observation(loaders=[training(wait_s)])
    _show(Diagnosis(seen=seen, findings=()))
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith(f"{verdict} 10 steps at ")
    assert printed.endswith("found nothing to change")


def test_what_only_a_gpu_could_show_is_no_finding_for_the_exit_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hint = Finding(name="hint", what="x", change="y", verified=False)
    fix = Finding(name="fix", what="x", change="y")
    seen = Observation(loaders=[training()])
    assert [_shown(()), _shown((hint,)), _shown((fix, hint))] == [0, 0, 1]
    _show(Diagnosis(seen=seen, findings=(hint,)))
    assert "found nothing to change" in capsys.readouterr().out


# --- order and slow functions ---------------------------------------------------------------------


def test_a_sampler_that_is_not_told_its_epoch_is_named() -> None:
    (found,) = [
        one
        for one in findings(Observation(loaders=[training(epochs=[0, 0, 0])]))
        if one.name == "epoch-not-set"
    ]
    assert "set_epoch" in found.change and found.where == "train.py:20"
    for epochs in ([0], [0, 1, 2], []):
        assert "epoch-not-set" not in names(Observation(loaders=[training(epochs=epochs)]))


def test_only_samplers_that_shuffle_by_their_epoch_are_asked_for_it() -> None:
    data = TensorDataset(torch.zeros(8))
    watch = Watch(4, Places(__file__))
    for sampler, expected in (
        (DistributedSampler(data, 1, 0), [0]),
        (DistributedSampler(data, 1, 0, shuffle=False), []),
        (RandomSampler(data), []),
    ):
        seen = LoaderSeen()
        watch._epoch(seen, DataLoader(data, 4, sampler=sampler))
        assert seen.epochs == expected


def slow(**changed: Any) -> FunctionSeen:
    fields = {
        "name": "blur",
        "where": "augment.py:4",
        "torchvision": False,
        "line": "augment.py:7",
        "looks": 200,
        "share": 0.6,
        "line_share": 0.9,
    }
    return FunctionSeen(**{**fields, **changed})


def test_a_slow_function_is_named_with_file_line_and_share() -> None:
    found = findings(Observation(loaders=[training()], functions=[slow()]))
    assert (found[0].name, found[0].where) == ("slow-function", "augment.py:4")
    assert "blur takes 60% of the dataset's time, 90% of it at augment.py:7" in found[0].what
    for other in (slow(share=0.2), slow(looks=5)):
        assert "slow-function" not in names(Observation(loaders=[training()], functions=[other]))
    theirs = slow(name="ColorJitter", torchvision=True)
    native = training(fast=FastSeen(native=True, batch_s=1.0))
    assert "slow-function" in names(Observation(loaders=[training()], functions=[theirs]))
    assert "slow-function" not in names(Observation(loaders=[native], functions=[theirs]))


def test_a_stack_is_charged_to_the_user_s_function_or_torchvision_s_transform() -> None:
    import sys

    places, seen = Places(__file__), []

    class Look:
        def __call__(self, image: Any) -> Any:
            seen.append(attributed(sys._getframe(), places))
            return image

    T.Compose([Look()])(torch.zeros(3, 4, 4))
    (key, line) = seen.pop() or (("", "", False), "")
    assert key[1].endswith("Look.__call__") and not key[2]
    assert "test_rules.py" in key[0] and "test_rules.py" in line

    frames: list[Any] = []

    def adjust(*arguments: Any, **named: Any) -> Any:
        frames.append(sys._getframe(1))
        seen.append(attributed(frames[-1], places))
        return arguments[0]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("torchvision.transforms.functional.adjust_brightness", adjust)
        T.Compose([T.ColorJitter(brightness=(0.5, 0.6))])(torch.zeros(3, 4, 4))
    assert seen[0] is not None and seen[0][0][1:] == ("ColorJitter", True)


def test_what_processes_saw_is_added_up(tmp_path: Path) -> None:
    for pid, looks in ((11, 30), (12, 10)):
        profiler = Profiler(Places(__file__), tmp_path)
        for _ in range(looks):
            profiler._look(None)
        (tmp_path / f"{pid}.profile").write_text(
            f'{{"looks": {looks}, "rows": [["a.py:1", "f", false, {{"a.py:2": {looks // 2}}}]]}}'
        )
    (found,) = functions(tmp_path)
    assert (found.name, found.looks, found.share, found.line) == ("f", 40, 0.5, "a.py:2")


# --- memory ---------------------------------------------------------------------------------------


def test_workers_that_start_do_not_grow_and_those_that_leak_do() -> None:
    def looks(batches: int, nbytes: Any) -> list[tuple[float, int]]:
        return [(b, int(nbytes(b))) for b in range(0, batches + 1, 2)]

    leaking = looks(120, lambda b: 100 * MB + b * MB)
    assert growth(leaking) == pytest.approx(MB)
    assert growth(looks(12, lambda b: 100 * MB + b * MB)) == 0.0  # too short a run to tell
    saturating = looks(120, lambda b: 200 * MB - 100 * MB * 0.96**b)
    assert growth(saturating) == 0.0
    assert growth(looks(120, lambda b: 100 * MB + 9 * MB * (b % 3))) == 0.0
    assert growth([]) == 0.0


# --- with FastLoader and without ------------------------------------------------------------------


def run(lap_s: float, *, noise: float = 0.0, start_s: float = 0.0, **changed: Any) -> LoaderSeen:
    laps = [lap_s * (1 + noise * (-1) ** (n // 10)) for n in range(80)]
    return LoaderSeen(
        kind="FastLoader",
        laps_s=laps,
        waits_s=[0.0] * 80,
        steps_s=[lap_s] * 81,
        starts_s=[start_s],
        images=81 * 32,
        **changed,
    )


def test_a_difference_inside_the_noise_is_none() -> None:
    noisy = compare([run(0.100, noise=0.3)] * 2, [run(0.090, noise=0.3)] * 2)
    assert not noisy.differs and noisy.words().startswith("no clear difference")
    runs_apart = compare([run(0.10), run(0.07)], [run(0.07), run(0.10)])
    assert not runs_apart.differs
    same = compare([run(0.1000)] * 2, [run(0.0999)] * 2)
    assert not same.differs  # significant, but negligible
    twice = compare([run(0.100, noise=0.05)] * 2, [run(0.050, noise=0.05)] * 2)
    assert twice.differs and twice.ratio == pytest.approx(2.0, rel=0.02)
    assert twice.low < 2.0 < twice.high and "2.0" in twice.words()


def test_the_start_of_a_run_counts_as_in_a_whole_epoch() -> None:
    slow_start = run(0.1, start_s=8.0, batches=8000)
    assert statistics.fmean(slow_start.rates()) == pytest.approx(32 / 0.101)
    assert not compare([slow_start], [run(0.1, batches=8000)]).differs


def test_a_loop_that_did_not_run_over_fastloader_is_said() -> None:
    other = run(0.1)
    other.kind = "DataLoaderShard"
    assert "ran over DataLoaderShard" in compare([run(0.1)], [other]).words()


# --- the network ----------------------------------------------------------------------------------


def remote(**changed: Any) -> LoaderSeen:
    """A loop that waits half of its time for 400 requests of 250 KB."""
    seen = {
        "kind": "FastLoader",
        "network_s": 0.5,
        "remote_nbytes": 100_000_000,
        "remote_requests": 400,
        "remote_hit_nbytes": 25_000_000,
    }
    return training(0.06, 0.04, **{**seen, **changed})


def network(seen: LoaderSeen) -> Finding | None:
    found = [one for one in findings(Observation(loaders=[seen])) if "network" in one.name]
    return found[0] if found else None


def test_waiting_for_the_network_is_named_with_its_share_and_what_came() -> None:
    found = network(remote())
    assert found is not None and found.name == "waits-for-network"
    assert "waits for the network 50% of the time: 100 MB came in 400 requests" in found.what
    assert "20% of the bytes were in the cache" in found.what
    assert found.gain == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("changed", "advice"),
    [
        ({"remote_requests": 10_000}, "shuffle_window"),
        ({"starts_s": [0.06, 0.06], "steps_s": [0.04] * 11}, "a larger disk_limit"),
        ({}, "a disk_limit that holds the store"),
    ],
)
def test_the_advice_about_the_network_depends_on_what_was_fetched(
    changed: dict[str, Any], advice: str
) -> None:
    found = network(remote(**changed))
    assert found is not None and advice in found.change


def test_the_network_is_not_named_where_the_loop_does_not_wait_for_it() -> None:
    assert network(remote(network_s=0.05)) is None
    assert network(remote(network_s=5.0, waits_s=[0.001] * 9, starts_s=[0.001])) is None
    assert network(remote(remote_requests=0)) is None
