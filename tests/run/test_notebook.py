"""What a notebook shows of a loader is well-formed HTML that says what the plain objects say."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import pytest
from torch.utils.data import DataLoader
from torchvision import transforms as T

from fastload import FastLoader, pack
from notebook_html import Cells
from notebook_html import rows as shown

TRANSFORM = T.Compose([T.RandomResizedCrop(16), T.ToTensor()])


def test_explain_is_a_str_and_shows_a_row_for_each_line(store: Path) -> None:
    said = FastLoader(store, 4, transform=TRANSFORM).explain()
    assert isinstance(said, str) and f"{said}".startswith("engine: ")
    rows = Cells(said._repr_html_()).rows
    assert [f"{name}: {words}" for name, words in rows] == said.splitlines()


def test_stats_is_a_dict_and_shows_speed_stages_and_what_bounds_the_loop(store: Path) -> None:
    loader = FastLoader(store, 4, transform=TRANSFORM)
    list(loader)
    stats = loader.stats()
    assert isinstance(stats, dict) and json.loads(json.dumps(stats)) == stats
    assert pickle.loads(pickle.dumps(stats)) == copy.deepcopy(stats) == stats
    rows = shown(stats)
    assert rows["engine"] == stats["engine"]
    assert rows["speed"].startswith(f"{stats['images_per_s']:,.0f} images/s")
    assert rows["bound by"] == f"{stats['bound']}: {stats['why']}"
    stages = [name for name, value in stats["stages_s"].items() if value > 0]
    assert {name for name in rows if name.startswith("stage ")} == {f"stage {s}" for s in stages}
    widths = [float(width.removesuffix("em")) for width in Cells(stats._repr_html_()).widths[1:]]
    assert widths[0] == 12 and widths == sorted(widths, reverse=True)  # the longest stage first


def test_a_loader_that_has_not_run_shows_no_figures(store: Path) -> None:
    loader = FastLoader(store, 4, transform=TRANSFORM)
    assert loader.stats()._repr_html_()  # of an epoch without a batch
    before = shown(loader)
    list(loader)
    assert "speed" not in before and "speed" in shown(loader)
    assert loader._repr_html_().startswith("<b>FastLoader: PackedDataset, batch_size=4</b>")


def test_names_of_files_and_errors_are_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "imgs" / "<b>a&b"
    folder.mkdir(parents=True)
    (folder / "<script>.jpg").write_bytes(b"no image")
    loader = FastLoader(tmp_path / "imgs", 1, transform=TRANSFORM, on_error="skip")
    list(loader)
    assert loader.stats()["errors"]
    assert "<script>" not in loader._repr_html_()
    assert "<script>.jpg" in shown(loader)["bad sample 0"]


@pytest.mark.parametrize("workers", [0, 1])
def test_showing_a_loader_changes_nothing_that_it_yields(store: Path, workers: int) -> None:
    plain, seen = (
        FastLoader(store, 4, transform=TRANSFORM, shuffle=True, seed=3, num_workers=workers)
        for _ in range(2)
    )
    seen._repr_html_()
    for number, ((a, _), (b, _)) in enumerate(zip(plain, seen, strict=True)):
        if number == 1:
            seen._repr_html_()
        assert a.equal(b)


def test_a_print_of_a_loader_is_what_a_dataloaders_is(tmp_path: Path, photos: Path) -> None:
    pack(photos, tmp_path / "x.lmdb")
    assert FastLoader.__repr__ is DataLoader.__repr__
    assert str(FastLoader(tmp_path / "x.lmdb", 4).explain()).count("\n") >= 3
