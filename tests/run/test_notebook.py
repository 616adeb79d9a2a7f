"""What a notebook and a terminal show of a loader says what the plain objects say."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import pytest
from torchvision import transforms as T

from fastload import FastLoader, FastloadError, PackedDataset
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
    speed = f"{stats['images_per_s']:,.0f} images/s"
    assert rows["speed"].startswith(f"{speed}, {stats['mb_per_s']:,.1f} MB/s;")
    unknown = type(stats)({**stats, "mb_per_s": 0.0})
    assert shown(unknown)["speed"].startswith(f"{speed}; ")
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


def test_a_terminal_shows_the_figures_that_a_notebook_shows(store: Path) -> None:
    loader = FastLoader(store, 4, transform=TRANSFORM)
    before = repr(loader)
    list(loader)
    stats = loader.stats()
    rows = shown(stats)
    lines = repr(stats).splitlines()
    assert [line.split("  ")[0] for line in lines] == list(rows)
    for line, words in zip(lines, rows.values(), strict=True):
        assert line.endswith(words)
    bars = [line.count("#") for line in lines if line.startswith("stage ")]
    assert bars[0] == 12 and bars == sorted(bars, reverse=True)
    assert f"{stats}" == repr(stats) and stats["images"] == 24
    title = "FastLoader: PackedDataset, batch_size=4"
    assert before.splitlines()[0] == title and "speed" not in before
    for text in (title, *loader.explain().splitlines(), *repr(loader.stats()).splitlines()[:1]):
        assert text in repr(loader)


def test_a_loader_that_cannot_be_explained_can_be_printed(store: Path) -> None:
    dataset = PackedDataset(store, TRANSFORM)
    loader = FastLoader(dataset, 4, engine="native")
    dataset.transform = lambda image: image
    with pytest.raises(FastloadError, match="cannot read this dataset") as caught:
        loader.explain()
    assert str(caught.value).splitlines()[0] in repr(loader)


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
    repr(seen)
    for number, ((a, _), (b, _)) in enumerate(zip(plain, seen, strict=True)):
        if number == 1:
            seen._repr_html_()
            repr(seen)
        assert a.equal(b)
