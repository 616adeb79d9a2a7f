"""Photos, laid out as the public scripts of the suite scripts want them.

Files have the format and about the size that they have in the dataset of each script.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from bench import data
from bench.data import Images

_Change = Callable[[Image.Image], Image.Image]


def lay_out(made: Images, images: Path) -> Path:
    """A folder with ``images`` for every script; files are links where they are unchanged.

    ``train`` has folders of classes, ``imgs`` and ``masks`` are side by side. What else there is,
    the functions below tell.
    """
    masks = made.masks(images).resolve()
    images = images.resolve()
    files = data.files(images)

    def make(folder: Path) -> None:
        made.say("laying photos out for scripts")
        (folder / "train").symlink_to(images)
        for number, path in enumerate(files):
            _link(path, folder / "imgs" / f"{number:06}.jpg")
            mask = (masks / path.relative_to(images)).with_suffix(".png")
            _link(mask, folder / "masks" / f"{number:06}.png")
        for fill in (_voc, _coco, _png, _words, _frames, _skin, _cells, _landmarks, _people):
            fill(folder, files)
        _tiles(folder, len(files))

    return made.made(f"scripts-{images.name}", make)


def _link(path: Path, link: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(path)


def _rgb(path: Path) -> Image.Image:
    with Image.open(path) as picture:
        return picture.convert("RGB")


def _saved(
    files: list[Path],
    folder: Path,
    change: _Change = lambda picture: picture,
    name: str = "{:06}.jpg",
    **how: Any,
) -> None:
    """Save the photos in the new ``folder``, changed, under the name that has their number."""
    folder.mkdir(parents=True)
    for number, path in enumerate(files):
        change(_rgb(path)).save(folder / name.format(number), **how)


def _masks(folder: Path, target: Path, name: str, change: _Change = lambda mask: mask) -> None:
    """Save the masks of all photos in ``target``: white where a photo is bright."""
    target.mkdir(parents=True)
    for number, path in enumerate(sorted((folder / "masks").iterdir())):
        with Image.open(path) as mask:
            bright = mask.convert("L").point([255 * (level > 2) for level in range(256)])
        change(bright).save(target / name.format(number))


def _resized(width: int, height: int) -> _Change:
    return lambda photo: photo.resize((width, height), Image.Resampling.BICUBIC)


def _voc(folder: Path, files: list[Path]) -> None:
    """Photos and masks with a palette, as Pascal VOC has them."""
    voc = folder / "VOCdevkit" / "VOC2012"
    levels, listed = voc / "SegmentationClass", voc / "ImageSets" / "Segmentation"
    levels.mkdir(parents=True)
    listed.mkdir(parents=True)
    for number, path in enumerate(files):
        _link(path, voc / "JPEGImages" / f"{number:06}.jpg")
        palette = Image.open(folder / "masks" / f"{number:06}.png").convert("L")
        palette.putpalette([level for level in range(256) for _ in range(3)])
        palette.save(levels / f"{number:06}.png")
    (listed / "train.txt").write_text("".join(f"{number:06}\n" for number in range(len(files))))


_Objects = Callable[[int, int, int], list[dict[str, Any]]]


def _annotated(files: list[Path], name: str, objects: _Objects, kinds: dict[int, str]) -> str:
    """Photos and their objects as COCO has them, in JSON.

    ``name``: of a file, with its number. ``objects``: those of a photo, by its number and size.
    """
    photos, found = [], list[dict[str, Any]]()
    for image, path in enumerate(files):
        with Image.open(path) as picture:
            width, height = picture.size
        file = name.format(image)
        photos.append({"id": image, "file_name": file, "width": width, "height": height})
        for one in objects(image, width, height):
            area = one["bbox"][2] * one["bbox"][3]
            found.append({"id": len(found), "image_id": image, "area": area, "iscrowd": 0, **one})
    categories = [{"id": number, "name": kind} for number, kind in kinds.items()]
    return json.dumps({"images": photos, "annotations": found, "categories": categories})


def _coco(folder: Path, files: list[Path]) -> None:
    """Four boxes in each photo of ``imgs``."""

    def boxes(image: int, width: int, height: int) -> list[dict[str, Any]]:
        wide, high = width / 2, height / 2
        corners = [(part % 2 * wide * 0.8, part // 2 * high * 0.8) for part in range(4)]
        return [
            {"category_id": 1 + (image + part) % 90, "bbox": [*corner, wide, high]}
            for part, corner in enumerate(corners)
        ]

    kinds = {number: str(number) for number in range(91)}
    (folder / "coco.json").write_text(_annotated(files, "{:06}.jpg", boxes, kinds))


def _png(folder: Path, files: list[Path]) -> None:
    """Sharp and blurred photos as PNG: datasets for super-resolution and deblurring are."""
    blur = ImageFilter.GaussianBlur(2)
    _saved(files, folder / "pairs" / "target", name="{:06}.png")
    _saved(files, folder / "pairs" / "input", lambda photo: photo.filter(blur), "{:06}.png")


def _words(folder: Path, files: list[Path]) -> None:
    """Strips of the size of words in LMDB, ten from each photo."""
    import lmdb

    drawn = random.Random(1)
    environment = lmdb.open(str(folder / "words"), map_size=1 << 30)
    count = 0
    with environment.begin(write=True) as records:
        for path in files:
            picture = _rgb(path)
            for _ in range(10):
                width, height = drawn.randint(50, 150), drawn.randint(25, 40)
                left = drawn.randint(0, max(0, picture.width - width))
                top = drawn.randint(0, max(0, picture.height - height))
                strip = io.BytesIO()
                picture.crop((left, top, left + width, top + height)).save(strip, "JPEG")
                count += 1
                records.put(f"image-{count:09}".encode(), strip.getvalue())
                records.put(f"label-{count:09}".encode(), b"word")
        records.put(b"num-samples", str(count).encode())
    environment.close()


def _frames(folder: Path, files: list[Path]) -> None:
    """Videos of 16 frames of 340 x 256, as frames of Kinetics are extracted."""
    lines = []
    for video in range(max(1, len(files) // 8)):
        name = f"video{video:04}"
        frames = [files[(video * 8 + number) % len(files)] for number in range(16)]
        _saved(frames, folder / "frames" / name, _resized(340, 256), "img_{:05}.jpg", quality=90)
        lines.append(f"{name} 16 {video % 10}\n")
    (folder / "videos.txt").write_text("".join(lines))


def _skin(folder: Path, files: list[Path]) -> None:
    """Photos with a mask each, named as ISIC names them."""
    _saved(files, folder / "isic" / "train", name="ISIC_{:07}.jpg", quality=90)
    _masks(folder, folder / "isic" / "train_GT", "ISIC_{:07}_segmentation.png")


def _cells(folder: Path, files: list[Path]) -> None:
    """PNGs of 96 x 96 with a mask each."""
    _saved(files, folder / "cells" / "images", _resized(96, 96), "{:06}.png")
    _masks(folder, folder / "cells" / "masks" / "0", "{:06}.png", _resized(96, 96))


def _landmarks(folder: Path, files: list[Path]) -> None:
    """Photos of 1024 pixels on the longer side."""

    def scaled(photo: Image.Image) -> Image.Image:
        scale = 1024 / max(photo.size)
        return _resized(round(photo.width * scale), round(photo.height * scale))(photo)

    _saved(files, folder / "landmarks", scaled, quality=90)


def _people(folder: Path, files: list[Path]) -> None:
    """A person with 17 points in each photo, as COCO has them."""

    def marked(image: int, width: int, height: int) -> list[dict[str, Any]]:
        points: list[float] = []
        for joint in range(17):
            points += [width * (0.3 + joint % 4 * 0.12), height * (0.2 + joint // 4 * 0.15), 2]
        box = [width * 0.2, height * 0.1, width * 0.6, height * 0.8]
        return [{"category_id": 1, "bbox": box, "keypoints": points, "num_keypoints": 17}]

    name = "{:012}.jpg"
    for number, path in enumerate(files):
        _link(path, folder / "people" / "images" / "train2017" / name.format(number))
    file = folder / "people" / "annotations" / "person_keypoints_train2017.json"
    file.parent.mkdir()
    file.write_text(_annotated(files, name, marked, {1: "person"}))


def _tiles(folder: Path, count: int) -> None:
    """A list of photos, and a thousand orders of nine tiles."""
    lines = [f"{number:06}.jpg {number % 10}\n" for number in range(count)]
    (folder / "listed.txt").write_text("".join(lines))
    generator = np.random.default_rng(1)
    orders = np.stack([generator.permutation(9) for _ in range(1000)])
    np.save(folder / "permutations_1000.npy", orders)
