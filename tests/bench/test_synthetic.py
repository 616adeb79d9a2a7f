"""Synthetic pictures resemble photos in what matters to a loader."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import numpy as np
from PIL import Image

from bench.synthetic import PHOTO, SMALL, jpeg, make_images


def _files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.jpg"))}


def test_the_same_arguments_give_the_same_bytes_on_any_number_of_threads(tmp_path: Path) -> None:
    one = _files(make_images(tmp_path / "one", 7, classes=3, seed=5, threads=1))
    four = _files(make_images(tmp_path / "four", 7, classes=3, seed=5, threads=4))
    assert one == four
    assert one != _files(make_images(tmp_path / "other", 7, classes=3, seed=6, threads=1))


def test_photos_have_the_size_in_pixels_and_bytes_of_imagenets(tmp_path: Path) -> None:
    files = list(make_images(tmp_path, 60).rglob("*.jpg"))
    sizes = np.array([Image.open(io.BytesIO(path.read_bytes())).size for path in files])
    assert abs(sizes.mean(axis=0) - (470, 400)).max() < 40
    assert 80_000 < np.mean([path.stat().st_size for path in files]) < 140_000
    assert len({tuple(size) for size in sizes.tolist()}) > 30


def test_luma_power_falls_like_a_photos() -> None:
    slopes = []
    for index in range(12):
        picture = Image.open(io.BytesIO(jpeg(index, label=0, classes=2))).convert("L")
        pixels = np.asarray(picture, dtype=float)[:256, :256]
        power = np.abs(np.fft.fft2(pixels - pixels.mean())) ** 2
        frequency = np.hypot(*np.meshgrid(*[np.fft.fftfreq(side) for side in pixels.shape[::-1]]))
        edges = np.geomspace(0.02, 0.4, 8)
        bands = [
            power[(frequency >= a) & (frequency < b)].mean() for a, b in itertools.pairwise(edges)
        ]
        slopes.append(np.polyfit(np.log(edges[:-1]), np.log(bands), 1)[0])
    assert -3.1 < np.mean(slopes) < -2.0


def test_small_images_are_32_pixels_and_about_a_kilobyte() -> None:
    data = [jpeg(index, label=index % 2, classes=2, kind=SMALL) for index in range(20)]
    assert 600 < np.mean([len(item) for item in data]) < 1300


def test_classes_differ_in_colour() -> None:
    def hue(label: int) -> float:
        pictures = [
            Image.open(io.BytesIO(jpeg(index, label=label, classes=2, kind=PHOTO)))
            for index in range(12)
        ]
        red, _, blue = np.mean([np.asarray(p.convert("RGB")).mean((0, 1)) for p in pictures], 0)
        return float(red - blue)

    assert hue(0) > hue(1) + 20
