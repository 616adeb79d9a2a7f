"""``make demo`` as a new user runs it."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from PIL import Image

from bench import demo as bench_demo
from bench.demo import linked, main
from bench.synthetic import make_images
from fastload import _native

pytest.importorskip("torchvision")
NAMES = ["torch DataLoader", "FastLoader, folder", "FastLoader, LMDB"]
NAMES += ["FastLoader, LMDB, DCT"] * (_native.load() is not None)
NAMES += ["torch DataLoader, own", "FastLoader, own"]
LAST = """
  from fastload import FastLoader
  loader = FastLoader("imgs.lmdb", 256, shuffle=True, transform=train_tf)
  loader = FastLoader(dataset, 256, shuffle=True, num_workers=2)  # or your own Dataset, as it is
"""


def demo(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


@pytest.fixture(autouse=True)
def scratch(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    tmp_path_factory.getbasetemp()  # made now: it would land in the folder
    # Not in tmp_path: DataLoader's workers make sockets in here, and their paths have 108 bytes at
    # most. A worker that cannot make one sends no batch, and DataLoader waits for ever.
    folder = Path(tempfile.mkdtemp(prefix="demo-"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(bench_demo, "_MADE", 192)  # images trained on
    monkeypatch.setattr(bench_demo, "_MOST_S", 3600.0)  # also on a busy machine
    yield folder
    shutil.rmtree(folder)


def test_demo_makes_pictures_trains_from_each_loader_and_cleans_up(
    scratch: Path, no_leaks: None
) -> None:
    done = demo("--count", 64, "--json")
    assert done.exit_code == 0, done.output
    assert "made 64 photo-like pictures" in done.output
    assert "torch DataLoader is fastest here with num_workers=" in done.output
    for heading in ("images/s", "ratio", "waiting", "start"):
        assert heading in done.output
    rows = json.loads(done.stdout)  # nothing else goes there
    assert [row["loader"] for row in rows] == NAMES
    torchs = [row for row in rows if row["loader"].startswith("torch")]
    assert [row["ratio"] for row in torchs] == [1.0, 1.0]
    own = {row["loader"]: row["images_per_s"] for row in rows if row["data"] == "own Dataset"}
    ratio = own["FastLoader, own"] / own["torch DataLoader, own"]
    assert rows[-1]["ratio"] == pytest.approx(ratio, abs=0.02)  # not to the other Dataset's
    assert done.stderr.endswith(LAST)
    assert "…" not in done.output  # the table fits 80 columns
    for row in rows:
        assert row["images"] == 192  # several epochs if there are few images
        assert row["loss_last"] < row["loss_first"]
        assert 0 <= row["wait_share"] <= 1
        assert row["first_batch_s"] > 0
    assert not list(scratch.iterdir())


@pytest.mark.long
def test_demo_takes_a_folder_and_leaves_it_as_it_was(tmp_path: Path, scratch: Path) -> None:
    images = make_images(tmp_path / "imgs", 40, classes=2)
    (images / "class1" / "notes.txt").write_text("no image")
    (images / "class1" / "broken.jpg").write_bytes(b"not a JPEG")
    before = {path: path.stat().st_mtime_ns for path in images.rglob("*")}
    done = demo("--images", images)
    assert done.exit_code == 0, done.output
    assert "left out class1_broken.jpg" in done.output
    assert [f"│ {name} " in done.output for name in NAMES] == [True] * len(NAMES)
    assert f"(fastload pack {images} imgs.lmdb --encode dct)" in done.output
    assert {path: path.stat().st_mtime_ns for path in images.rglob("*")} == before
    assert not list(scratch.iterdir())


def test_a_flat_folder_is_one_class_and_a_large_one_is_thinned_evenly(tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for index in range(10):
        Image.new("RGB", (8, 8)).save(flat / f"{index}.png")
    assert linked(flat, tmp_path / "links", 4) == 4
    found = sorted(path.name for path in (tmp_path / "links" / "all").iterdir())
    assert found == ["0.png", "2.png", "5.png", "7.png"]


@pytest.mark.parametrize(
    ("inside", "expected"),
    [([], "expected class folders, or files"), (["class0/readme.txt"], "expected images in every")],
)
def test_a_folder_without_images_is_a_clear_error(
    tmp_path: Path, scratch: Path, inside: list[str], expected: str
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    for name in inside:
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("no image")
    done = demo("--images", folder)
    assert done.exit_code == 2
    assert expected in " ".join(done.output.split())
    assert not list(scratch.iterdir())


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    done = demo("--images", tmp_path / "nowhere")
    assert done.exit_code == 2
    assert "expected a folder of images" in done.output


def test_only_broken_images_is_a_clear_error(tmp_path: Path, scratch: Path) -> None:
    folder = tmp_path / "class0"
    folder.mkdir()
    (folder / "broken.jpg").write_bytes(b"not a JPEG")
    done = demo("--images", tmp_path)
    assert done.exit_code == 1
    assert "expected an image, found" in done.output and "broken.jpg" in done.output
    assert not list(scratch.iterdir())
