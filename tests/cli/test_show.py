"""``fastload show`` and ``fastload.show``: the grid holds the loader's pixels."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import array_datasets
import fastload
from fastload import FastLoader, UsageError, pack
from fastload._sources.packed import augmentation_of
from fastload._tools import picture
from fastload.cli import main
from fastload.storage import Record, open_writer

TRAIN = v1.Compose([v1.RandomResizedCrop((40, 48)), v1.ColorJitter(0.4, 0.4), v1.PILToTensor()])
MODULE = """
from torchvision import transforms as v1
transform = v1.Compose([
    v1.RandomResizedCrop((40, 48)), v1.ColorJitter(0.4, 0.4), v1.ToTensor(),
    v1.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
])
odd = v1.Compose([v1.Resize((20, 30)), lambda image: image.rotate(9), v1.ToTensor()])
number = v1.Compose([v1.Resize((20, 30)), lambda image: 7])
value = 7
def fails(image): raise RuntimeError("broken")
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in ("show", *arguments)])


def expected(dataset: Any, seed: int, epoch: int, transform: Any = TRAIN) -> torch.Tensor:
    loader = FastLoader(dataset, batch_size=8, transform=transform, seed=seed)
    loader.set_epoch(epoch)
    return torch.cat([images for images, _ in loader])


def test_a_loader_is_answered_with_its_dataset(photos: Path) -> None:
    with pytest.raises(UsageError, match="got a loader: pass its dataset"):
        fastload.show(FastLoader(str(photos), 4, transform=TRAIN))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"views": 0}, "views: expected 1 or more, got 0"),
        ({"samples": 0}, "samples: expected 1 or more, got 0"),
        ({"transform": [TRAIN, TRAIN]}, "expected one chain of transforms, got 2 views"),
        ({"transform": lambda image: np.zeros((4, 4, 7))}, r"got ndarray of shape \(4, 4, 7\)"),
    ],
)
def test_what_cannot_be_shown_is_said(photos: Path, given: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        fastload.show(photos, **given)


def test_a_dataset_without_samples_to_choose_from_is_said(tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(())

    with pytest.raises(UsageError, match="expected a map-style dataset or a path, got Stream"):
        fastload.show(Stream())
    with open_writer(tmp_path / "a.lmdb"):
        pass
    with pytest.raises(UsageError, match=r"a\.lmdb': expected samples to show, found an empty"):
        fastload.show(tmp_path / "a.lmdb")


@pytest.mark.parametrize(
    ("transform", "levels"),
    [
        (lambda image: torch.from_numpy(np.asarray(image.convert("L"))).clone(), "unchanged"),
        (lambda image: image.convert("L"), "unchanged"),
        (lambda image: np.asarray(image) / 255, "0 to 1 as 0 to 255"),
    ],
    ids=["gray tensor", "image", "array"],
)
def test_what_only_python_can_run_is_shown_as_it_comes(
    photos: Path, transform: Any, levels: str
) -> None:
    crop = v1.CenterCrop(30)
    shown = fastload.show(photos, v1.Compose([crop, transform]), samples=[1], views=1)
    assert shown.levels == levels
    x, y, w, h = shown.tiles[1].box
    stored = crop(ImageFolder(photos)[1][0])
    made = stored if levels != "unchanged" else stored.convert("L").convert("RGB")
    np.testing.assert_array_equal(np.asarray(shown.image)[y : y + h, x : x + w], np.asarray(made))


def part(picture: Image.Image, tile: Any) -> np.ndarray:
    x, y, w, h = tile["box"]
    return np.asarray(picture)[y : y + h, x : x + w]


def check(out: Path, told: dict[str, Any], dataset: Any, seed: int, epoch: int) -> None:
    """Each picture after the transform is what the loader gives for its index and epoch."""
    picture = Image.open(out)
    assert picture.size == (told["width"], told["height"])
    batches = {e: expected(dataset, seed, e) for e in (epoch, epoch + 1)}
    seen = 0
    for tile in told["tiles"]:
        if tile["epoch"] is not None:
            levels = batches[tile["epoch"]][tile["index"]].permute(1, 2, 0).numpy()
            np.testing.assert_array_equal(part(picture, tile), levels)
            seen += 1
    assert seen == 2 * len({tile["index"] for tile in told["tiles"]})


@pytest.mark.parametrize("suffix", ["folder", ".lmdb", ".tar", ".h5", "dct"])
def test_the_picture_holds_what_the_loader_gives(photos: Path, tmp_path: Path, suffix: str) -> None:
    source = photos
    if suffix != "folder":
        source = tmp_path / ("dct.lmdb" if suffix == "dct" else f"store{suffix}")
        pack(photos, source, encode="dct" if suffix == "dct" else "keep")
    out = tmp_path / "grid.png"
    done = run(source, "--transform", "mine:transform", "--out", out, "--seed", 5, "--epoch", 3,
               "--samples", 4, "--views", 2, "--json")  # fmt: skip
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["levels"] == "by the inverse of the transform's table"
    check(out, told, source, 5, 3)


def test_before_is_the_stored_image(photos: Path) -> None:
    shown = fastload.show(photos, v1.Compose([v1.PILToTensor()]), samples=[2], views=1)
    before, after = (
        np.asarray(shown.image)[y : y + h, x : x + w]
        for x, y, w, h in (tile.box for tile in shown.tiles)
    )
    np.testing.assert_array_equal(before, after)
    assert [tile.epoch for tile in shown.tiles] == [None, 0]


def test_the_same_seed_gives_the_same_picture(photos: Path, tmp_path: Path) -> None:
    data = []
    for number, seed in enumerate((1, 1, 2)):
        fastload.show(photos, TRAIN, out=tmp_path / f"{number}.png", seed=seed, samples=3)
        data.append((tmp_path / f"{number}.png").read_bytes())
    assert data[0] == data[1]
    assert data[0] != data[2]


def test_datasets_are_shown_and_left_as_they_are(photos: Path, store: Path) -> None:
    folder = ImageFolder(photos, TRAIN)
    packed = fastload.PackedDataset(store, TRAIN)
    some = torch.utils.data.Subset(folder, [5, 7, 9])
    for dataset, index in ((folder, 9), (packed, 9), (some, 2)):
        shown = fastload.show(dataset, samples=[index], views=1)
        levels = expected(ImageFolder(photos, TRAIN), 0, 0, None)[9].permute(1, 2, 0)
        x, y, w, h = shown.tiles[1].box
        found = np.asarray(shown.image)[y : y + h, x : x + w]
        if dataset is some:  # has numbers of its own: indices count from 0 in it
            assert found.shape == (40, 48, 3)
        else:
            np.testing.assert_array_equal(found, levels.numpy())
    assert augmentation_of(packed) is None


def test_the_epoch_below_a_subset_is_left_as_it_is(store: Path) -> None:
    packed = fastload.PackedDataset(store, TRAIN, seed=3)
    packed.set_epoch(4)
    fastload.show(torch.utils.data.Subset(packed, [5, 7]), samples=[0], views=1, epoch=1)
    assert augmentation_of(packed) == (3, 4)


def test_gray_datasets_are_refused_by_name() -> None:
    chain = v1.Compose([v1.ToTensor(), v1.Normalize((0.5,), (0.5,))])
    with pytest.raises(UsageError, match="got MNIST, which does not give access"):
        fastload.show(array_datasets.mnist(chain), samples=1, views=1)


def test_a_transform_that_only_python_can_run(photos: Path, tmp_path: Path) -> None:
    done = run(photos, "--transform", "mine:odd", "--json", "--samples", 2)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["engine"] == "torch"
    assert told["levels"] == "0 to 1 as 0 to 255"
    assert (tmp_path / "grid.png").exists()
    sizes = {tuple(tile["box"][2:]) for tile in told["tiles"] if tile["epoch"] is not None}
    assert sizes == {(30, 20)}


def test_images_of_different_sizes_and_large_ones_fit(tmp_path: Path) -> None:
    (tmp_path / "imgs" / "a").mkdir(parents=True)
    for number, size in enumerate(((1300, 40), (60, 700), (20, 20))):
        Image.new("RGB", size, "red").save(tmp_path / "imgs" / "a" / f"{number}.png")
    shown = fastload.show(tmp_path / "imgs", views=2)
    after = [tile for tile in shown.tiles if tile.epoch == 0]
    assert [max(tile.box[2:]) for tile in after] == [512, 512, 20]
    assert after[2].scale == 1.0


def test_values_that_are_no_levels_are_stretched(photos: Path) -> None:
    chain = v2.Compose([v2.Resize((20, 20)), v2.ToImage(), lambda t: t.float() - 300.0])
    shown = fastload.show(photos, chain, samples=1, views=1)
    assert shown.levels == "stretched, each from its minimum to its maximum"
    x, y, w, h = shown.tiles[1].box
    found = np.asarray(shown.image)[y : y + h, x : x + w]
    assert (found.min(), found.max()) == (0, 255)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--transform", "mine:number"], 2, "expected an image of one or three channels"),
        (["--transform", "mine:nothing"], 2, "cannot find 'mine:nothing'"),
        (["--transform", "mine"], 2, "expected MODULE:OBJECT"),
        (["--index", "999"], 2, "error: expected indices from 0 to 23, got 999"),
        (["--transform", "mine:odd", "--decode", "scaled"], 2, "fastload's engines"),
        (["--out", "no/such/folder/grid.png"], 1, "create it first"),
    ],
)
def test_what_cannot_be_is_said(
    photos: Path, arguments: list[str], status: int, message: str
) -> None:
    done = run(photos, *arguments)
    assert done.exit_code == status, done.output
    assert message in done.output


def test_what_makes_no_picture_is_said_before_anything_is_written(
    photos: Path, tmp_path: Path
) -> None:
    result = run(photos, "--views", 100_000)
    assert result.exit_code == 2 and "expected at most 10000 pictures, got 8 x 1" in result.stderr
    for suffix, most in ((".webp", 16383), (".jpg", 65500), (".gif", 65535)):
        with pytest.raises(UsageError, match=rf"at most {most} pixels in \w+, got {most + 1}x1: "):
            picture.save(Image.new("L", (most + 1, 1)), tmp_path / f"a{suffix}")
        picture.save(Image.new("L", (most, 1)), tmp_path / f"b{suffix}")
    assert not list(tmp_path.glob("[ag]*.*"))


def test_a_missing_store_is_said(tmp_path: Path) -> None:
    done = run(tmp_path / "none.lmdb")
    assert done.exit_code == 1
    assert "none.lmdb" in done.output


def test_a_dataset_without_images_before_the_transform_is_refused() -> None:
    images = torch.utils.data.TensorDataset(torch.zeros(3, 3, 8, 8))
    with pytest.raises(UsageError, match="which does not give access to images"):
        fastload.show(images)


def dark(picture: Image.Image, box: tuple[int, int, int, int]) -> np.ndarray:
    """Where something is written in ``box`` (left, upper, right, lower), bool."""
    return np.asarray(picture.convert("L").crop(box)) < 128


def test_columns_are_named_and_a_line_below_each_row_says_index_class_and_file(
    photos: Path,
) -> None:
    shown = fastload.show(photos, TRAIN, samples=[2, 23], views=2)
    rows = [[tile for tile in shown.tiles if tile.index == index] for index in (2, 23)]
    classes = sorted(folder.name for folder in photos.iterdir())
    assert [row[0].label for row in rows] == [classes[0], classes[-1]]
    width = shown.image.width
    for tile in rows[0]:  # above each column its name
        x, y, w, _ = tile.box
        assert dark(shown.image, (x, 0, x + w, y)).any()
    below = []
    for row, end in zip(rows, (rows[1][0].box[1], shown.image.height), strict=True):
        bottom = max(tile.box[1] + tile.box[3] for tile in row)
        below.append(dark(shown.image, (0, bottom, width, end)))
        assert below[-1].any()
    height = min(map(len, below))
    assert not np.array_equal(below[0][:height], below[1][:height])


def test_masks_boxes_and_points_are_drawn_over_their_images(tmp_path: Path) -> None:
    levels = np.zeros((40, 60), np.uint8)
    levels[:, :30] = 3
    mask, image = io.BytesIO(), io.BytesIO()
    Image.fromarray(levels).save(mask, "PNG")
    Image.new("RGB", (60, 40), "white").save(image, "PNG")
    fields = {"mask": mask.getvalue(), "boxes": [[36, 10, 20, 12]], "eyes": [[50, 5]]}
    with fastload.open_writer(tmp_path / "x.lmdb") as writer:
        record = {"label": None, "key": "0.png", "width": 60, "height": 40, "fields": fields}
        writer.append([Record(data=image.getvalue(), **record)])
    joint = {"mask": "mask", "boxes": "xywh", "eyes": "points"}
    flipped = v2.Compose([v2.RandomHorizontalFlip(p=1.0), v2.ToImage()])
    dataset = fastload.PackedDataset(tmp_path / "x.lmdb", joint=joint, transform=flipped)
    shown = fastload.show(dataset, samples=1, views=1)
    before, after = (part(shown.image, dataclasses.asdict(tile)) for tile in shown.tiles)
    np.testing.assert_array_equal(before[:, ::-1], after)
    white = (before == 255).all(axis=2)
    assert not white[:, :30].any()  # the mask, see-through
    assert not white[10, 36:56].any() and not white[10:22, 36].any()  # the outline of the box
    assert white[12:20, 38:54].all()  # what is inside
    assert not white[5, 50]
    line = [tmp_path / "x.lmdb", *(f"--joint={name}={kind}" for name, kind in joint.items())]
    done = run(*line, "--views", 1, "--json")
    assert done.exit_code == 0, done.output
    tile = json.loads(done.stdout)["tiles"][0]
    np.testing.assert_array_equal(part(Image.open("grid.png"), tile), before)
    assert "expected NAME=KIND" in run(tmp_path / "x.lmdb", "--joint", "mask").stderr


def test_text_says_where_and_how(photos: Path, tmp_path: Path) -> None:
    for count, words in ((1, "1 sample,"), (2, "2 samples,")):
        done = run(photos, "--samples", count)
        assert done.exit_code == 0, done.output
        assert f"grid.png: {words} each before and after" in done.stdout


@pytest.mark.parametrize(
    ("name", "format"), [("a.png", "PNG"), ("a.JPG", "JPEG"), ("a.webp", "WEBP")]
)
def test_the_picture_has_the_format_of_its_suffix(photos: Path, name: str, format: str) -> None:
    assert run(photos, "--out", name, "--samples", 2).exit_code == 0
    with Image.open(name) as picture:
        assert picture.format == format
    assert CliRunner().invoke(main, ["info", str(photos), "--grid", f"sheet-{name}"]).exit_code == 0
    with Image.open(f"sheet-{name}") as picture:
        assert picture.format == format


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        ("mine:value", "--transform: expected a callable that takes an image"),
        ("mine:fails", r"the transform fails on sample 0: RuntimeError: broken \(.*mine.py, line"),
        ("mine:none", "cannot find 'mine:none': module 'mine' has no attribute 'none'"),
        ("mine.py:transform", "without .py, mine:transform"),
        ("./mine.py:transform", "expected MODULE:OBJECT"),
        (".mine:transform", "expected MODULE:OBJECT"),
        ("mine", "expected MODULE:OBJECT"),
        ("divides:x", r"cannot import 'divides': ZeroDivisionError: .*divides.py, line 2\)"),
        ("garbled:x", r"cannot import 'garbled': SyntaxError: .*garbled.py, line 1\)"),
        ("parses:x", "cannot import 'parses': SystemExit: 3 "),
    ],
)
def test_a_transform_that_cannot_be_had_is_one_line(
    photos: Path, tmp_path: Path, transform: str, message: str
) -> None:
    (tmp_path / "divides.py").write_text("zero = 0\n1 / zero\n")
    (tmp_path / "garbled.py").write_text("def f(:\n")
    (tmp_path / "parses.py").write_text("import sys\nsys.exit(3)\n")
    done = run(photos, "--transform", transform)
    (line,) = done.stderr.splitlines()
    assert done.exit_code == 2 and re.search(f"^fastload: error: .*{message}", line)
