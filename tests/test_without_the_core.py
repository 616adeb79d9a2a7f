"""Without the core FastLoader is torch's DataLoader, and packed stores are read by Pillow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import fastload
from fastload import FastLoader, MissingDependencyError, PackedDataset, _native, pack
from fastload.converters import estimate
from sides import assert_same

EVAL = v1.Compose([v1.Resize(40), v1.CenterCrop(32), v1.ToTensor()])
TRAIN = v1.Compose([v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.ToTensor()])


@pytest.fixture(scope="module")
def stores(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """``photos``, packed by the core."""
    folder = tmp_path_factory.mktemp("packed")
    made = {}
    for suffix in ("lmdb", "h5", "tar", "tfrecord"):
        made[suffix] = folder / f"photos.{suffix}"
        pack(photos, made[suffix])
    for encode in ("raw", "dct"):
        if encode == "raw" or _native.load() is not None:
            made[encode] = folder / f"{encode}.lmdb"
            pack(photos, made[encode], encode=encode)
    return made


@pytest.fixture
def hidden(stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The stores, where the core is hidden."""
    monkeypatch.setenv("FASTLOAD_NO_NATIVE", "1")
    monkeypatch.setattr(_native, "_warned", True)
    return stores


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "FASTLOAD_NO_NATIVE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_script_gets_dataloaders_batches_and_one_warning(photos: Path) -> None:
    code = """
import json, sys, warnings
import torch
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from fastload import FastLoader
chain = v1.Compose([v1.Resize(40), v1.CenterCrop(32), v1.ToTensor()])
dataset = ImageFolder(sys.argv[1], chain)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    same = []
    for workers in (0, 2):
        ours = FastLoader(dataset, 7, num_workers=workers)
        pairs = zip(ours, DataLoader(dataset, 7), strict=True)
        same += [torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in pairs]
    said = FastLoader(dataset, 7).explain()
print(json.dumps([same, [str(one.message) for one in seen], said]))
"""
    done = run("-c", code, photos)
    assert done.returncode == 0, done.stderr
    same, heard, said = json.loads(done.stdout)
    assert len(same) == 8 and all(same)
    (warning,) = heard
    assert "does what torch's DataLoader does" in warning and "unset FASTLOAD_NO_NATIVE" in warning
    assert "engine: torch" in said and "the C++ core is missing" in said


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["lmdb", "h5", "tar", "tfrecord", "raw"])
def test_a_packed_store_gives_the_folders_images(
    photos: Path, hidden: dict[str, Path], kind: str, workers: int
) -> None:
    expected = list(DataLoader(ImageFolder(str(photos), EVAL), 7))
    assert_same(list(FastLoader(hidden[kind], 7, transform=EVAL, num_workers=workers)), expected)
    assert_same(list(DataLoader(PackedDataset(hidden[kind], EVAL), 7)), expected)


def test_transforms_draw_from_torchs_generator(photos: Path, hidden: dict[str, Path]) -> None:
    torch.manual_seed(3)
    expected = [image for image, _ in ImageFolder(str(photos), TRAIN)]
    torch.manual_seed(3)
    assert_same([image for image, _ in PackedDataset(hidden["lmdb"], TRAIN)], expected)


def test_without_a_transform_images_are_levels(photos: Path, hidden: dict[str, Path]) -> None:
    levels, label = PackedDataset(hidden["lmdb"])[5]
    path, expected = ImageFolder(str(photos)).samples[5]
    with Image.open(path) as image:
        assert torch.equal(levels, v1.functional.pil_to_tensor(image.convert("RGB")))
    assert label == expected


def test_views_are_made_of_each_image(hidden: dict[str, Path]) -> None:
    (one, other), _ = PackedDataset(hidden["lmdb"], [EVAL, v1.ToTensor()])[0]
    assert one.shape == (3, 32, 32) and other.shape != one.shape


@pytest.mark.native
def test_dct_records_are_refused_in_words(hidden: dict[str, Path]) -> None:
    with pytest.raises(MissingDependencyError, match="DCT records need the native core"):
        PackedDataset(hidden["dct"], EVAL)[0]
    with pytest.raises(MissingDependencyError, match="DCT records need the native core"):
        next(iter(FastLoader(hidden["dct"], 4, transform=EVAL, num_workers=0)))


@pytest.mark.parametrize("encode", ["keep", "raw", "jpeg"])
def test_pack_makes_plain_stores(
    photos: Path, hidden: dict[str, Path], tmp_path: Path, encode: Any
) -> None:
    assert pack(photos, tmp_path / "x.lmdb", encode=encode).records == 24
    images = PackedDataset(tmp_path / "x.lmdb", EVAL)
    if encode != "jpeg":
        assert_same([images[i] for i in range(24)], list(ImageFolder(str(photos), EVAL)))
    with pytest.raises(MissingDependencyError, match=r"estimating .* needs the native core"):
        estimate(photos, tmp_path / "a.lmdb")
    with pytest.raises(MissingDependencyError, match="encode='dct' needs the native core"):
        pack(photos, tmp_path / "y.lmdb", encode="dct")


def test_what_only_the_core_does_is_refused_in_words(photos: Path, hidden: dict[str, Path]) -> None:
    dataset = ImageFolder(str(photos), EVAL)
    for arguments, message in (
        ({"seed": 1}, "seed= needs the native core"),
        ({"engine": "native"}, "native core is needed"),
        ({"dtype": torch.float16}, "the C\\+\\+ core is missing"),
        ({"decode": "scaled"}, "the C\\+\\+ core is missing"),
    ):
        with pytest.raises((MissingDependencyError, fastload.UsageError), match=message):
            list(FastLoader(dataset, 4, **arguments))  # type: ignore[arg-type]


def test_a_foreign_archive_is_refused_in_words(tmp_path: Path, hidden: dict[str, Path]) -> None:
    import io
    import tarfile

    file = io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, "PNG")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        member = tarfile.TarInfo("a.png")
        member.size = len(file.getvalue())
        archive.addfile(member, io.BytesIO(file.getvalue()))
    with pytest.raises(MissingDependencyError, match="tar archive without a sidecar"):
        PackedDataset(tmp_path / "a.tar")


def test_the_command_line_says_it(photos: Path, tmp_path: Path) -> None:
    assert "native core: not built" in run("-m", "fastload", "--version").stdout
    done = run("-m", "fastload", "pack", photos, tmp_path / "x.lmdb")
    assert done.returncode == 0, done.stderr
    done = run("-m", "fastload", "verify", "--decode", tmp_path / "x.lmdb")
    assert done.returncode == 0, done.stderr
