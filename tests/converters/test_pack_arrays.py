"""``pack`` into the formats that keep images as one array."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fastload import FastLoader, UsageError
from fastload.converters import pack
from fastload.storage import RAW, open_store
from storage.formats import picture

transforms = pytest.importorskip("torchvision.transforms")
datasets = pytest.importorskip("torchvision.datasets")

SUFFIXES = [".h5", ".pth", ".n5", ".zarr"]
ONLY_RAW = SUFFIXES[1:]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 small JPEGs of many sizes in three class folders."""
    root = tmp_path_factory.mktemp("images")
    for index in range(200):
        path = root / f"class {index % 3} é" / f"{index:04d}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(picture(index, 20 + index % 30, 20 + index % 17))
    return root


@pytest.fixture(scope="module")
def equal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 JPEGs of one size."""
    root = tmp_path_factory.mktemp("equal")
    for index in range(12):
        (root / f"{index:04d}.jpg").write_bytes(picture(index, 20, 30))
    return root


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("resize", "same"),
    [
        ("crop:24", transforms.Compose([transforms.Resize(24), transforms.CenterCrop(24)])),
        ("30x21", transforms.Resize((21, 30))),
    ],
)
def test_pixels_are_those_of_torchvision(
    images: Path, tmp_path: Path, suffix: str, resize: str, same: Any
) -> None:
    path = tmp_path / f"x{suffix}"
    pack(images, path, encode="raw", resize=resize)
    folder = datasets.ImageFolder(images, transform=same)
    store = open_store(path)
    every = np.arange(len(folder))
    assert store.indirect is None and bool((store.kinds(every) == RAW).all())
    assert store.labels is not None and store.labels.tolist() == folder.targets
    assert list(store.classes) == folder.classes
    for index, data in enumerate(store.read(every)):
        assert data == folder[index][0].tobytes()
    found = torch.cat([batch for batch, _ in FastLoader(path, batch_size=32, num_workers=2)])
    expected = torch.stack([transforms.PILToTensor()(image) for image, _ in folder])
    assert torch.equal(found, expected)


@pytest.mark.parametrize("suffix", ONLY_RAW)
def test_a_format_of_pixels_only_needs_no_encode(equal: Path, tmp_path: Path, suffix: str) -> None:
    pack(equal, tmp_path / f"x{suffix}")
    store = open_store(tmp_path / f"x{suffix}")
    assert store.labels is None
    for index, data in enumerate(store.read(np.arange(12))):
        assert data == Image.open(equal / f"{index:04d}.jpg").tobytes()
    with pytest.raises(UsageError, match=r"raw pixels only, got encode='jpeg'"):
        pack(equal, tmp_path / f"y{suffix}", encode="jpeg")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("resize", [None, 24, "longest:24"])
def test_images_that_differ_in_size_are_refused_before_anything_is_written(
    images: Path, tmp_path: Path, suffix: str, resize: str | int | None
) -> None:
    shutil.copytree(images, tmp_path / "in", dirs_exist_ok=True)
    for folder in (tmp_path / "in").iterdir():
        folder.rename(folder.with_name(f"{folder.name}\n"))
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match=r"found \d+ x \d+ \(class.*\\n/.*jpg\).*crop:224"):
        pack(tmp_path / "in", tmp_path / "out" / f"x{suffix}", encode="raw", resize=resize)
    assert os.listdir(tmp_path / "out") == []


def test_images_that_a_resize_makes_equal_are_packed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for index, side in enumerate((20, 40, 60)):
        (tmp_path / "in" / f"{index}.jpg").write_bytes(picture(index, side, 2 * side))
    pack(tmp_path / "in", tmp_path / "x.pth", resize=16)
    assert open_store(tmp_path / "x.pth").sizes(np.arange(3)).tolist() == [[16, 32]] * 3


def test_h5_keeps_image_files_as_they_are(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "x.h5")
    folder = datasets.ImageFolder(images)
    store = open_store(tmp_path / "x.h5")
    expected = [Path(path).read_bytes() for path, _ in folder.samples]
    assert store.read(np.arange(len(expected))) == expected


def test_compression_is_handed_on(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "x.h5", encode="raw", resize="crop:24", compression="gzip")
    pack(images, tmp_path / "y.h5", encode="raw", resize="crop:24")
    every = np.arange(200)
    assert open_store(tmp_path / "x.h5").indirect is not None
    assert open_store(tmp_path / "x.h5").read(every) == open_store(tmp_path / "y.h5").read(every)
