"""autotune: the right choice and bound in cases where they are known, and its file."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

import fastload
import warm
from fake_time import FakeTime, spends
from fastload import FastLoader
from fastload._base.machine.load import Others
from fastload._base.torch_loader import PlainLoader
from fastload._run.tuned_file import Point, fingerprint
from fastload._tools.tuning import Tuning, page
from fastload._tools.tuning.grid import Grid
from fastload._tools.tuning.result import Tried
from fastload._tools.tuning.target import target_of
from fastload.cli import main
from fastload.cli.autotune import _show
from fastload.errors import DataError, UsageError

CHAIN = T.Compose([T.RandomResizedCrop(32), T.ToTensor()])


class Slow(Dataset[torch.Tensor]):
    """Each sample takes a fixed time."""

    def __init__(self, spend: Callable[[float], None], seconds: float) -> None:
        self.spend, self.seconds = spend, seconds

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        self.spend(self.seconds)
        return torch.zeros(3, 8, 8)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    monkeypatch.setattr(Others, "share", lambda self: 0.0)
    return FakeTime(monkeypatch, "_tools.tuning.search", "_tools.tuning.meter", read_s=1e-3)


def rates(clock: FakeTime, monkeypatch: pytest.MonkeyPatch, most: int, each: float) -> None:
    """Up to ``most`` workers give ``each`` images/s, and no more than all of these together."""

    def rates_of(
        loader: Any, step: Any, point: Point, seconds: float, *given: int, **named: int
    ) -> list[float]:
        clock.waits(seconds)
        return [each * min(most, max(1, point.num_workers))] * 4

    monkeypatch.setattr("fastload._tools.tuning.meter.rates_of", rates_of)


@pytest.fixture(scope="module")
def tuning(store: Path) -> Tuning:
    return fastload.autotune(store, transform=CHAIN, budget_s=3)


@pytest.mark.parametrize("source", ["flat", "classes", "store.zarr"])
def test_folders_of_every_kind_are_tuned(tmp_path: Path, source: str) -> None:
    root = tmp_path / ("flat" if source == "flat" else "classes/one")
    root.mkdir(parents=True)
    for number in range(4):
        Image.new("RGB", (12, 12), (number, 2, 3)).save(root / f"{number}.png")
    if source == "store.zarr":
        fastload.pack(tmp_path / "classes", tmp_path / source, encode="raw")
    target = target_of(tmp_path / source)
    assert len(target) == 4
    for dataset in (target.dataset, target.plain):
        sample = dataset[1]
        image = sample if source == "flat" else sample[0]
        assert image.shape == (3, 12, 12)


def test_an_empty_folder_is_refused_with_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="type next: find"):
        fastload.autotune(tmp_path, budget_s=1)


@pytest.mark.parametrize("budget_s", [0, -1, float("nan"), float("inf")])
def test_a_budget_of_no_time_is_refused(tmp_path: Path, budget_s: float) -> None:
    with pytest.raises(UsageError, match="budget_s: expected seconds above 0, got"):
        fastload.autotune(tmp_path, budget_s=budget_s)


def test_a_slow_disk_asks_for_more_workers_than_cpus(
    clock: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastload._tools.tuning.search.cpus", lambda: 2)
    rates(clock, monkeypatch, most=4, each=100)
    found = fastload.autotune(Slow(clock.waits, 0.01), fix_batch_size=8, budget_s=8)
    assert found.bound == "reading", found.why
    assert found.best.num_workers >= 4
    assert found.smallest.num_workers == 4
    assert found.best.batch_size == found.smallest.batch_size == 8
    assert found.gain == 4


def test_a_slow_decode_is_the_dataset_s_own_code(
    clock: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates(clock, monkeypatch, most=2, each=300)
    found = fastload.autotune(Slow(clock.computes, 0.01), fix_batch_size=8, budget_s=6)
    assert found.bound == "python", found.why
    assert found.smallest.num_workers == 2


def test_a_heavy_step_needs_no_workers(clock: FakeTime) -> None:
    data = TensorDataset(torch.zeros(500, 3, 8, 8))
    found = fastload.autotune(data, step=spends(clock.waits, 0.03), fix_batch_size=16, budget_s=5)
    assert found.bound == "compute", found.why
    assert found.chosen == found.smallest
    assert found.smallest.num_workers <= 1
    assert found.step_images_per_s is not None
    assert found.loader_images_per_s is not None
    assert found.step_images_per_s < found.loader_images_per_s


class Fast:
    """Stands for measuring: smaller batches and caches are faster; it writes down who came when.

    A cache brings a hundred times the images/s, filling it takes half of them.
    """

    def __init__(self, clock: FakeTime, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = clock
        self.measured: list[tuple[str, Point]] = []
        monkeypatch.setattr("fastload._tools.tuning.meter.rates_of", self.rates_of)
        monkeypatch.setattr(
            "fastload._tools.tuning.meter.rate_of_filling", lambda loader, step, batches: 50.0
        )

    def rates_of(
        self, loader: Any, step: Any, point: Point, seconds: float, **named: int
    ) -> list[float]:
        self.clock.waits(seconds)
        self.measured.append((type(loader).__name__, point))
        if isinstance(loader, PlainLoader):
            return [20.0 + len(self.measured) % 2] * 4
        return [100.0 * (256 / point.batch_size) * (100 if point.cache else 1)] * 4


def test_the_batch_size_in_use_comes_first_and_stays_in_the_file(
    clock: FakeTime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Fast(clock, monkeypatch)
    loader = DataLoader(Own(torch.zeros(4000, 3)), batch_size=128)
    found = fastload.autotune(loader, budget_s=20)
    assert found.batch_size == 128
    for point in (found.best, found.smallest, found.chosen, found.uncached):
        assert point.batch_size == 128
    assert found.fastest.batch_size == 16
    assert found.fastest_images_per_s > found.images_per_s
    names = [name for name, _ in page.summary(found)]
    words = dict(page.summary(found))
    best = "best for batch_size=128, the one in use"
    assert names.index(best) < names.index("smallest within 3 %") < names.index("best of all")
    assert "batch_size=16" in words["best of all"]
    assert "8 times as many steps" in words["best of all"]
    assert "times 0.125" in words["best of all"]
    given = fastload.autotune(loader, batch_size=32, budget_s=20)
    assert given.batch_size == given.best.batch_size == 32
    fixed = fastload.autotune(loader, fix_batch_size=32, budget_s=20)
    assert {tried.point.batch_size for tried in fixed.tried} == {32}
    assert "no other batch size" in dict(page.summary(fixed))["best of all"]
    with pytest.raises(UsageError, match="one of them"):
        fastload.autotune(loader, batch_size=32, fix_batch_size=32)


@pytest.mark.parametrize(
    ("encode", "caches", "decodes"),
    [
        ("keep", {"", "dct", "decoded"}, {"exact", "scaled"}),
        ("dct", {"", "decoded"}, {"exact", "scaled"}),
        ("raw", {"", "decoded"}, {"exact"}),
        (None, {""}, {"exact"}),
    ],
)
def test_what_changes_nothing_is_not_tried(
    clock: FakeTime,
    monkeypatch: pytest.MonkeyPatch,
    store: Path,
    tmp_path: Path,
    encode: Any,
    caches: set[str],
    decodes: set[str],
) -> None:
    fast = Fast(clock, monkeypatch)
    source: Any = TensorDataset(torch.zeros(40, 3, 8, 8))
    if encode is not None:
        source = tmp_path / "a.lmdb"
        fastload.pack(store, source, encode=encode)
    fastload.autotune(
        source, transform=CHAIN if encode else None, batch_size=8, budget_s=60, approximate=True
    )
    tried = [point for kind, point in fast.measured if kind == "FastLoader"]
    assert {point.cache for point in tried} == caches
    assert {point.decode for point in tried} == decodes


def test_torch_is_measured_in_turn_with_what_keeps_no_more_than_torch(
    clock: FakeTime, monkeypatch: pytest.MonkeyPatch, store: Path
) -> None:
    fast = Fast(clock, monkeypatch)
    found = fastload.autotune(store, transform=CHAIN, batch_size=8, budget_s=60)
    assert found.best.cache and found.images_per_s > 1000
    assert not found.uncached.cache
    assert found.gain == pytest.approx(found.uncached_images_per_s / 20.5, rel=0.1)
    assert len(found.ratios) == 5 and len(set(found.ratios)) > 1
    pairs = fast.measured[-10:]
    assert {point.cache for _, point in pairs} == {""}
    kinds = [kind for kind, _ in pairs]
    assert kinds == ["PlainLoader", "FastLoader", "FastLoader", "PlainLoader"] * 2 + kinds[:2]
    words = dict(page.summary(found))
    assert "in 5 rounds" in words["against torch's defaults"]
    assert page.EPOCH in words["against torch's defaults"]
    assert "50 in the epoch that fills it" in words["best for batch_size=8, the one in use"]


def test_the_budget_is_kept_where_a_batch_takes_seconds(
    clock: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Point] = []

    def rates_of(
        loader: Any, step: Any, point: Point, seconds: float, *given: int, **named: int
    ) -> list[float]:
        measured.append(point)
        clock.waits(max(seconds, point.batch_size / 50) + point.batch_size / 50)
        return [50.0] * 4

    monkeypatch.setattr("fastload._tools.tuning.search.cpus", lambda: 2)
    monkeypatch.setattr("fastload._tools.tuning.meter.rates_of", rates_of)
    found = fastload.autotune(Slow(clock.waits, 1 / 50), batch_size=64, budget_s=30)
    assert found.seconds <= 30
    assert 1 <= len(found.ratios) < 5
    assert measured[0].batch_size == 64  # what was asked for comes first
    late = [tried for tried in found.tried if not tried.images_per_s]
    assert late and all("there was no time left for it" in tried.reason for tried in late)
    assert not any("no other" in words for name, words in page.summary(found) if "best for" in name)
    short = fastload.autotune(Slow(clock.waits, 1 / 50), batch_size=64, budget_s=3)
    assert sum(tried.images_per_s > 0 for tried in short.tried) == 1
    words = dict(page.summary(short))
    assert "no other was measured" in words["best for batch_size=64, the one in use"]
    assert "not known" in words["best of all"]


def test_without_time_to_compare_a_few_samples_stand_for_torch(
    clock: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates(clock, monkeypatch, most=2, each=100)
    found = fastload.autotune(Slow(clock.waits, 0.5), fix_batch_size=64, budget_s=20)
    assert found.seconds <= 20 and not found.ratios
    assert found.torch_images_per_s == pytest.approx(2, rel=0.05)
    assert found.gain == pytest.approx(found.uncached_images_per_s / 2, rel=0.05)
    assert "from a few of torch's samples" in dict(page.summary(found))["against torch's defaults"]


def test_the_best_of_the_table_is_the_best_of_the_text_when_the_first_look_was_wrong(
    clock: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: dict[Point, int] = {}

    def rates_of(
        loader: Any, step: Any, point: Point, seconds: float, *given: int, **named: int
    ) -> list[float]:
        clock.waits(seconds)
        looks[point] = looks.get(point, 0) + 1
        lucky = looks[point] == 1 and point.num_workers != 1
        return [1000.0 if lucky else 100.0 + 200 * (point.num_workers == 1)] * 4

    monkeypatch.setattr("fastload._tools.tuning.search.cpus", lambda: 2)
    monkeypatch.setattr("fastload._tools.tuning.meter.rates_of", rates_of)
    found = fastload.autotune(Slow(clock.waits, 0), fix_batch_size=8, budget_s=600)
    table = page.places(found)
    assert (table[0].point, table[0].images_per_s) == (found.best, found.images_per_s)
    assert (
        f"{found.best}: {found.images_per_s:,.0f} images/s"
        in dict(page.summary(found))["best for batch_size=8, the one in use"]
    )


def test_places_come_fastest_first(tuning: Tuning) -> None:
    rates = [tried.images_per_s for tried in page.places(tuning)]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget_s": "60"}, "budget_s: expected seconds"),
        ({"budget_s": -1}, "budget_s: expected seconds"),
        ({"memory_limit": "4GB"}, "memory_limit: expected a number of bytes"),
        ({"transform": "train:tf"}, "transform: expected a callable"),
        ({"step": 3}, "step: expected a callable"),
    ],
)
def test_arguments_of_the_wrong_type_are_told(store: Path, given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fastload.autotune(store, **given)


def test_a_busy_machine_is_said(tuning: Tuning) -> None:
    quiet = dataclasses.replace(tuning, others=0.05)
    assert "the machine was busy" not in dict(page.summary(quiet))
    busy = dataclasses.replace(tuning, others=0.6)
    assert page.summary(busy)[0][0] == "the machine was busy"
    assert "60%" in page.summary(busy)[0][1]
    assert "against torch's defaults" in dict(page.summary(quiet))
    assert "against torch's defaults" not in dict(page.summary(busy))  # no ratio that may be wrong


@pytest.mark.parametrize(("busy", "times"), [((), 1), ((0.6,), 2), ((0.6, 0.6), 2)])
def test_what_was_measured_on_a_busy_machine_is_measured_again_within_the_budget(
    busy: tuple[float, ...], times: int, clock: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = iter(busy)
    monkeypatch.setattr(Others, "share", lambda self: next(shares, 0.0))
    told: list[str] = []
    rates(clock, monkeypatch, most=2, each=100.0)
    tuning = fastload.autotune(
        Slow(clock.waits, 1e-3), budget_s=60, fix_batch_size=8,
        progress=lambda spent, budget, what: told.append(what),
    )  # fmt: skip
    assert 1 + told.count("other programs are busy: measuring again") == times
    assert tuning.busy == (len(busy) == 2)
    assert tuning.best.num_workers == 2 and tuning.seconds < 66
    measured = [one for one in tuning.tried if one.images_per_s]
    assert all(one.images_per_s in (100.0, 200.0) for one in measured)


def test_a_tuning_of_a_busy_machine_is_kept_only_with_force(
    tuning: Tuning, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = dataclasses.replace(tuning, others=0.6)
    monkeypatch.setattr("fastload._tools.tuning.autotune", lambda *given, **named: found)
    out = tmp_path / "t.json"
    words = ["autotune", str(store), "-q", "-o", str(out)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1 and not out.exists()
    assert "images/s" in done.stdout and "use it" not in done.stdout
    assert "best for" not in done.stdout and "chosen" not in done.stdout
    assert not re.search(r"\d x\b", done.stdout + done.stderr)
    assert "other programs took 60% of the CPUs, also when it was measured again" in done.stderr
    assert "the defaults stay" in done.stderr and "--force" in done.stderr
    assert "error" in json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    done = CliRunner().invoke(main, [*words, "--force"])
    assert done.exit_code == 0 and out.exists() and "use it" in done.stdout


def test_the_table_has_each_num_workers_and_batch_size_once_the_fastest_first(
    tuning: Tuning, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    points = [
        Point(num_workers=w, batch_size=b, prefetch_factor=p)
        for w in (1, 2)
        for b in (16, 64)
        for p in (2, 4)
    ]
    tried = tuple(
        Tried(point=point, images_per_s=float(1000 + number), error=0.01)
        for number, point in enumerate(points)
    )
    _show(dataclasses.replace(tuning, tried=tried, batch_size=64, best=points[-1]))
    printed = capsys.readouterr().out
    rows = [line.split("│")[1:-1] for line in printed.splitlines() if line.startswith("│")]
    shown = [(int(row[0]), row[1].strip(), row[3].strip()) for row in rows]
    assert shown == [
        (2, "64 *", "1,007"), (2, "16", "1,005"), (1, "64 *", "1,003"), (1, "16", "1,001")
    ]  # fmt: skip
    assert page.EPOCH in printed


class Own(TensorDataset):
    """A user's own dataset, which torch's workers load."""


def test_settings_that_would_not_fit_are_predicted_and_not_run() -> None:
    data = Own(torch.zeros(400, 3, 64, 64))  # 48 KiB a sample
    found = fastload.autotune(data, memory_limit=20 << 20, budget_s=3)
    out = [tried for tried in found.tried if "not tried" in tried.reason]
    assert out
    assert all(tried.images_per_s == 0 for tried in out)
    assert {tried.point.num_workers for tried in out} >= {1, 2}  # processes need more than that
    assert found.best.num_workers == 0


def test_memory_that_fits_nothing_is_said() -> None:
    with pytest.raises(UsageError, match="no setting fits"):
        fastload.autotune(TensorDataset(torch.zeros(40, 3, 64, 64)), memory_limit=1000)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of a megapixel, packed."""
    folder = tmp_path_factory.mktemp("large")
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)
    for name in range(8):
        image = Image.fromarray(pixels).resize((1200, 900), Image.Resampling.BICUBIC)
        image.save(folder / f"{name}.jpg", quality=80)
    fastload.pack(folder, folder / "large.lmdb")
    return folder / "large.lmdb"


def test_a_store_is_tuned_against_torch_and_pillow(tuning: Tuning, store: Path) -> None:
    assert tuning.source == str(store)
    assert tuning.bound == "decoding"
    assert tuning.images_per_s > 0
    assert tuning.torch_images_per_s > 0
    measured = [tried for tried in tuning.tried if tried.images_per_s]
    assert max(tried.point.num_workers for tried in measured) >= 2
    assert tuning.best in {tried.point for tried in measured}


def test_a_loader_and_an_iterable_dataset_are_tuned_as_they_are() -> None:
    class Stream(IterableDataset[torch.Tensor]):
        def __iter__(self) -> Any:
            return iter(torch.zeros(64, 3))

    def collate(samples: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(samples) + 1

    seen: list[torch.Tensor] = []
    loader = DataLoader(Stream(), batch_size=4, collate_fn=collate)
    found = fastload.autotune(lambda: loader, step=seen.append, fix_batch_size=4, budget_s=1)
    assert found.best.batch_size == 4
    assert all((batch == 1).all() for batch in seen)


def test_the_file_is_applied_and_what_is_given_wins(
    tuning: Tuning, store: Path, tmp_path: Path
) -> None:
    path = tmp_path / "fastload.tune.json"
    tuning.save(path)
    loader = FastLoader(store, batch_size=3, transform=CHAIN, tuned=path)
    assert loader.num_workers == tuning.chosen.num_workers
    assert loader.batch_size == 3
    assert len(next(iter(loader))[0]) == 3
    assert loader.cache == (tuning.chosen.cache or None)
    content = tuning.as_json()
    content["chosen"]["cache"] = "dct"
    path.write_text(json.dumps(content))
    assert FastLoader(store, transform=CHAIN, tuned=path).cache == "dct"
    assert FastLoader(store, num_workers=7, transform=CHAIN, tuned=path).num_workers == 7


@pytest.mark.parametrize("given", [Path, ImageFolder])
def test_the_file_of_a_folder_serves_its_path_and_an_image_folder(
    tuning: Tuning, photos: Path, tmp_path: Path, given: Callable[[Path], Any]
) -> None:
    path = tmp_path / "fastload.tune.json"
    found = dataclasses.replace(tuning, dataset=fingerprint(target_of(photos).dataset))
    found.save(path)
    loader = FastLoader(given(photos), tuned=path)
    assert loader.num_workers == found.chosen.num_workers


def test_other_pixels_are_only_tried_when_asked_for(
    tuning: Tuning, tmp_path: Path, large: Path
) -> None:
    assert {tried.point.decode for tried in tuning.tried} == {"exact"}
    found = fastload.autotune(
        str(large), transform=CHAIN, fix_batch_size=4, budget_s=2, approximate=True
    )
    assert {tried.point.decode for tried in found.tried} == {"exact", "scaled"}
    path = tmp_path / "fastload.tune.json"
    content = found.as_json()
    content["chosen"] |= {"decode": "scaled", "cache": ""}
    path.write_text(json.dumps(content))
    assert FastLoader(large, transform=CHAIN, tuned=path).decode == "scaled"
    assert FastLoader(large, transform=CHAIN, tuned=path, cache="decoded").decode == "exact"


def test_a_file_of_another_machine_or_dataset_is_noticed(
    tuning: Tuning, store: Path, photos: Path, tmp_path: Path
) -> None:
    path = tmp_path / "fastload.tune.json"
    content = tuning.as_json()
    content["machine"] = {**content["machine"], "cpu": "Another CPU"}
    path.write_text(json.dumps(content))
    with pytest.warns(UserWarning, match="Another CPU"):
        FastLoader(store, transform=CHAIN, tuned=path)
    tuning.save(path)
    with pytest.warns(UserWarning, match="samples"):
        FastLoader(TensorDataset(torch.zeros(3)), tuned=path)


@pytest.mark.parametrize("content", ["", "[]", '{"format": "fastload.tune", "version": 99}'])
def test_a_file_that_is_no_tuning_is_refused(content: str, store: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(DataError, match="fastload autotune"):
        FastLoader(store, tuned=path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("chosen", "num_workers"), "2"),
        (("chosen", "num_workers"), 2.5),
        (("chosen", "num_workers"), True),
        (("chosen", "num_workers"), -1),
        (("chosen", "num_workers"), 10**30),
        (("chosen", "batch_size"), None),
        (("chosen", "prefetch_factor"), 0),
        (("chosen", "prefetch_factor"), [2]),
        (("chosen", "cache"), "disk"),
        (("chosen", "cache"), {}),
        (("chosen", "pin_memory"), 1),
        (("chosen", "decode"), "quick"),
        (("chosen", "surplus"), 1),
        (("chosen",), []),
        (("machine",), [["cpu", 1]]),
        (("dataset",), "abc"),
        (("version",), [1]),
    ],
    ids=str,
)
def test_a_tuning_with_wrong_values_is_refused_with_the_name_of_its_file(
    tuning: Tuning, store: Path, tmp_path: Path, place: tuple[str, ...], value: object
) -> None:
    path = tmp_path / "x.json"
    content = tuning.as_json()
    inner = content
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"x\.json.*that `fastload autotune` wrote.*tune again"):
        FastLoader(store, transform=CHAIN, tuned=path)


@pytest.mark.parametrize("what", ["folder", "deep", "bytes", "missing", "pipe"])
def test_what_is_no_file_of_json_is_refused_as_a_tuning(
    store: Path, tmp_path: Path, what: str
) -> None:
    path = tmp_path / "x.json"
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what != "missing":
        path.write_bytes(b"[" * 100_000 if what == "deep" else b"\xff\xfe")
    with pytest.raises(DataError, match=r"x\.json"):
        FastLoader(store, tuned=path)


class _Cells(HTMLParser):
    """Text of the cells of the table ``heatmap``, and addresses that the page asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = self.cell = False
        self.cells: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag == "table":
            self.inside = ("id", "heatmap") in attrs
        self.cell = self.inside and tag == "td"

    def handle_data(self, data: str) -> None:
        if self.cell:
            self.cells.append(data)
            self.cell = False


def test_the_page_stands_alone_and_shows_the_heat_map(tuning: Tuning, tmp_path: Path) -> None:
    page.write_html(tuning, tmp_path / "tune.html")
    parser = _Cells()
    parser.feed((tmp_path / "tune.html").read_text(encoding="utf-8"))
    assert parser.links == []
    shown = sorted(cell for cell in parser.cells if cell != "-")
    assert shown == sorted(f"{one.images_per_s:,.0f}" for one in page.places(tuning))


@pytest.mark.long
def test_a_browser_shows_the_heat_map(tuning: Tuning, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium: apt install chromium")
    page.write_html(tuning, tmp_path / "tune.html")
    subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1000,1600"),
            *(f"--screenshot={tmp_path / 'shown.png'}", (tmp_path / "tune.html").as_uri()),
        ],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    from PIL import Image

    with Image.open(tmp_path / "shown.png") as image:
        shown = {colour for _, colour in image.convert("RGB").getcolors(1 << 22)}
    # The fastest setting has the full green of the scale and the red frame around it.
    green, red = (71, 209, 117), (214, 39, 40)
    for wanted in (green, red):
        assert any(max(abs(a - b) for a, b in zip(wanted, one, strict=True)) < 3 for one in shown)


def test_the_command_writes_everything_and_names_modules(store: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torchvision import transforms as T\n"
        "transform = T.Compose([T.Resize((16, 16)), T.ToTensor()])\n"
        "def step(batch): batch[0].sum()\n"
    )
    done = warm.run(
        [
            *("-m", "fastload", "autotune", store, "--budget", "1", "--json"),
            *("--memory", "1GB", "--transform", "mine:transform", "--step", "mine:step"),
            *("--fix-batch-size", "4", "--force"),
            *("--html", "t.html", "-o", "t.json"),
        ],
        check=True, cwd=tmp_path,
    )  # fmt: skip
    printed = json.loads(done.stdout)
    assert printed == json.loads((tmp_path / "t.json").read_text())
    assert printed["best"]["batch_size"] == 4
    assert "heatmap" in (tmp_path / "t.html").read_text()


def test_names_that_cannot_be_found_are_said(tmp_path: Path) -> None:
    done = warm.run(["-m", "fastload", "autotune", "nothing:here"], cwd=tmp_path)
    assert done.returncode == 2
    assert "nothing" in done.stderr


def test_the_grid_has_neighbours_on_every_side() -> None:
    grid = Grid(
        cpus=4,
        batch_size=100,
        fixed=False,
        samples=1000,
        caches=("dct", "decoded"),
        pinning=True,
        scaling=True,
    )
    assert {point.batch_size for point in grid.coarse()} == {16, 64, 100, 256}
    assert {point.num_workers for point in grid.coarse()} == {0, 1, 2, 4, 8, 16}
    near = list(grid.near(Point(num_workers=4, batch_size=64)))
    assert {point.num_workers for point in near} >= {3, 5, 8}
    assert {point.batch_size for point in near} >= {32, 128}
    assert {point.prefetch_factor for point in near} >= {1, 4}
    assert {point.cache for point in near} >= {"", "dct", "decoded"}
    assert any(point.pin_memory for point in near)
    assert {point.decode for point in near} == {"exact", "scaled"}
    for one in near:  # FastLoader refuses the two together
        assert all(
            not (two.cache == "decoded" and two.decode == "scaled") for two in grid.near(one)
        )
    fixed = Grid(
        cpus=4,
        batch_size=10,
        fixed=True,
        samples=1000,
        caches=(),
        pinning=False,
        scaling=False,
    )
    few = dataclasses.replace(grid, samples=24)
    assert {point.batch_size for point in few.near(Point(num_workers=4, batch_size=24))} == {24}
    assert {point.decode for point in fixed.near(Point(num_workers=4, batch_size=10))} == {"exact"}
    assert {point.batch_size for point in fixed.near(Point(num_workers=4, batch_size=10))} == {10}
