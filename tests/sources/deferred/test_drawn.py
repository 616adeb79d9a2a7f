"""Drawing on deferred images: rectangles are recorded, and all else is Pillow's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageOps
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import functional

import deferred_datasets as shapes
from fastload import FastLoader
from fastload._sources.deferred import switch
from fastload._sources.deferred.image import DeferredImage

pytestmark = pytest.mark.native

COLORS: list[Any] = [(127, 128, 129), 0, 0x123456, "white"]
BOXES: list[Any] = [
    (3, 4, 20, 30),
    [(-9.7, -0.5), (5.9, 200)],
    (np.int64(40), 7, 40.0, 7),
    (300, 300, 400, 400),
    (-90, -90, -50, 12),
]


class Cutouts(Dataset[Any]):
    """Operations of a policy, a rectangle, and an operation after it."""

    def __init__(self, paths: list[Path], mode: str) -> None:
        self.paths, self.mode = paths, mode

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> torch.Tensor:
        image = Image.open(self.paths[i % len(self.paths)]).convert(self.mode)
        image = image.resize((48, 40)) if i % 2 else image.crop((1, 2, 49, 42))
        if i % 3:
            image = ImageOps.posterize(image, 4)
        image = image.copy()
        color = COLORS[i % 4] if self.mode == "RGB" else 7
        ImageDraw.Draw(image).rectangle(BOXES[i % 5], color)
        if i % 7 == 0:
            ImageDraw.Draw(image, self.mode).rectangle((1, 1, 9, 9), fill=color, outline=None)
        after = [image, image.rotate(20), ImageOps.mirror(image), ImageOps.autocontrast(image)]
        return functional.to_tensor(after[i % 4])


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return shapes.write_colour_jpegs(tmp_path_factory.mktemp("photos"))


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_rectangles_are_made_with_the_batch(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("FASTLOAD_DEFER", "1")
    data = Cutouts(photos, mode)
    (theirs,) = DataLoader(data, 40)
    loader = FastLoader(data, 40)
    (ours,) = loader
    assert torch.equal(ours, theirs)
    stats = loader.stats()
    assert (stats["images_opened"], stats["images_deferred"]) == (40, 40)
    assert not stats["materialised"]
    assert "Pillow" not in loader.explain()


def test_what_came_of_an_image_before_has_no_rectangle(photos: list[Path]) -> None:
    with switch.deferring():
        image = Image.open(photos[0]).convert("RGB")
        before, plain = image.copy(), functional.to_tensor(image)
        draw = ImageDraw.Draw(image)
        draw.rectangle((0, 0, 400, 400), (9, 9, 9))
        assert isinstance(image, DeferredImage)
        assert image.recording is not None
        assert isinstance(draw, ImageDraw.ImageDraw)
    assert before.getextrema() == Image.open(photos[0]).getextrema()
    assert plain.max() > 0.1
    assert image.getextrema() == ((9, 9),) * 3


def test_other_drawing_is_pillows_on_the_same_image(photos: list[Path]) -> None:
    def drawn() -> tuple[Image.Image, ImageDraw.ImageDraw]:
        image = Image.open(photos[0]).convert("RGB")
        draw = ImageDraw.Draw(image)
        draw.rectangle((2, 3, 20, 20), "red")
        draw.fontmode = "1"
        draw.ellipse((5, 5, 30, 30), fill="blue", outline="white")
        draw.rectangle((30, 3, 40, 20), 0, outline=5, width=2)
        draw.rectangle((30, 30, 40, 40))
        return image, draw

    real, drawer = drawn()
    with switch.deferring():
        image, draw = drawn()
        assert type(draw) is ImageDraw.ImageDraw
        assert (draw.mode, draw.fontmode, draw.ink) == (drawer.mode, drawer.fontmode, drawer.ink)
        assert draw.im is image.im
    assert image.tobytes() == real.tobytes()


def _bound(image: Image.Image, draw: ImageDraw.ImageDraw) -> None:
    rectangle = draw.rectangle
    draw.line((0, 0, 30, 30), fill=3)
    rectangle((8, 8, 20, 20), (1, 2, 3))


def _smaller(image: Image.Image, draw: ImageDraw.ImageDraw) -> None:
    image.thumbnail((60, 60))  # recorded, as one step
    draw.rectangle((0, 0, 9, 9), "red")


def _closed(image: Image.Image, draw: ImageDraw.ImageDraw) -> None:
    image.close()
    draw.rectangle((0, 0, 9, 9), "red")


def _copied(image: Image.Image, draw: ImageDraw.ImageDraw) -> None:
    copy.copy(draw).rectangle((0, 0, 9, 9), "red")


def _marked(image: Image.Image, draw: ImageDraw.ImageDraw) -> None:
    info = image.info
    draw.rectangle((0, 0, 9, 9), "red")
    info["mark"] = 1


def _twice(image: Image.Image, draw: ImageDraw.ImageDraw) -> None:
    other = ImageDraw.Draw(image)
    other.rectangle((0, 0, 9, 9), "red")
    draw.rectangle((5, 5, 20, 20), "blue")
    other.rectangle((9, 9, 12, 12), "white")


def _often(image: Image.Image, draw: ImageDraw.ImageDraw) -> None:
    for i in range(40):
        draw.rectangle((i, i, i + 9, i + 5), (i, 7, 9))


def _large(image: Image.Image, draw: ImageDraw.ImageDraw) -> None:
    draw.rectangle((0, 0, 9, 9), 1 << 63)


@pytest.mark.parametrize(
    "change", [_bound, _smaller, _closed, _copied, _marked, _twice, _often, _large]
)
def test_it_draws_on_what_pillow_draws_on(
    photos: list[Path], change: Callable[[Image.Image, ImageDraw.ImageDraw], None]
) -> None:
    def outcome() -> Any:
        image = Image.open(photos[0]).convert("RGB")
        kept = image.copy()
        try:
            change(image, ImageDraw.Draw(image))
            return image.size, image.tobytes(), image.info, kept.tobytes()
        except (OverflowError, ValueError) as error:
            return repr(error)

    real = outcome()
    with switch.deferring():
        assert outcome() == real


@pytest.mark.parametrize(
    ("xy", "fill"),
    [((9, 9, 3, 3), 0), ((1, 2, 3), 0), ((1, 2, 3, 4), (1, 2)), ((1, 2, 3, 4), "no colour")],
)
def test_what_pillow_does_not_draw_is_refused_at_once(
    photos: list[Path], xy: Any, fill: Any
) -> None:
    def is_refused() -> bool:
        draw = ImageDraw.Draw(Image.open(photos[0]).convert("RGB"))
        try:
            draw.rectangle(xy, fill)
        except (TypeError, ValueError):
            return True
        return False

    by_pillow = is_refused()  # before 9.5 it took a box whose corners are exchanged
    with switch.deferring():
        assert is_refused() == by_pillow


def test_a_colour_that_is_drawn_joins_the_palette(tmp_path: Path) -> None:
    path = tmp_path / "palette.png"
    Image.effect_noise((30, 30), 90).convert("P").quantize(8).save(path)

    def drawn() -> Image.Image:
        image = Image.open(path)
        ImageDraw.Draw(image).rectangle((0, 0, 9, 9), (1, 200, 3))
        return image

    with switch.deferring():
        image = drawn()
        assert image.getpalette() == drawn().getpalette()
    assert image.convert("RGB").tobytes() == drawn().convert("RGB").tobytes()
    assert image.convert("RGB").getpixel((0, 0)) == (1, 200, 3)
