"""The fused result is what torchvision gives on the PIL image, bit for bit."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional as F

from fastload import FastLoader, PackedDataset, pack
from fastload._transforms import sample_params
from fastload._transforms.geometry.draws import Numbers
from fastload._transforms.recognise import recognise
from fastload.storage.folder import FolderStore

pytestmark = pytest.mark.native

SEED = 3


def train(size: int, scale: tuple[float, float]) -> v1.Compose:
    return v1.Compose(
        [v1.RandomResizedCrop(size, scale), v1.RandomHorizontalFlip(), v1.PILToTensor()]
    )


def reference(
    paths: list[str], chain: v1.Compose, size: int, epoch: int
) -> tuple[list[torch.Tensor], list[tuple[int, ...]]]:
    """What torchvision makes of the images with the boxes and flips that fastload draws."""
    images = [Image.open(path).convert("RGB") for path in paths]
    geometry, _ = sample_params.draw(
        recognise(chain),
        np.array([image.size for image in images], np.int32),
        Numbers(SEED, epoch, np.arange(len(images))),
    )
    made = []
    for image, (x, y, w, h), flip in zip(images, geometry.box, geometry.flip, strict=True):
        image = F.resized_crop(image, int(y), int(x), int(h), int(w), [size, size])
        made.append(F.pil_to_tensor(F.hflip(image) if flip else image))
    return made, [tuple(box) for box in geometry.box.tolist()]


def check_training(folder: Path, dataset: object, size: int, scale: tuple[float, float]) -> None:
    chain = train(size, scale)
    loader = FastLoader(dataset, batch_size=7, transform=chain, seed=SEED, engine="native")
    paths = list(FolderStore(str(folder)).files)
    for epoch in range(2):
        made, boxes = reference(paths, chain, size, epoch)
        ours = torch.cat([images for images, _ in loader])
        assert len(ours) == len(made)
        for path, mine, theirs, box in zip(paths, ours, made, boxes, strict=True):
            assert torch.equal(mine, theirs), (path, box, epoch)


@pytest.mark.parametrize("encode", ["keep", "dct"])
def test_real_photos_in_training_and_evaluation(test_data, tmp_path, count, encode):
    photos = tmp_path / "photos"
    for path in sorted(test_data.glob("*/*"))[:: count(5, 1)]:
        (photos / path.parent.name).mkdir(parents=True, exist_ok=True)
        (photos / path.parent.name / path.name).symlink_to(path)
    pack(photos, tmp_path / "x.lmdb", encode=encode)
    check_training(photos, tmp_path / "x.lmdb", 224, (0.08, 1.0))
    chain = v1.Compose(
        [
            v1.Resize(256),
            v1.CenterCrop(224),
            v1.ToTensor(),
            v1.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    theirs = DataLoader(ImageFolder(photos, chain), batch_size=50)
    ours = FastLoader(tmp_path / "x.lmdb", batch_size=50, transform=chain, engine="native")
    for (mine, labels), (images, targets) in zip(ours, theirs, strict=True):
        assert torch.equal(labels, targets)
        assert torch.equal(mine, images)


SAMPLINGS = {"4:4:4": 0, "4:2:2": 1, "4:2:0": 2, "4:4:0": "4:4:0", "gray": None}


def write_jpeg(path: Path, size: tuple[int, int], sampling: str, quality: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (size[1] // 4 + 2, size[0] // 4 + 2, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
    if sampling == "gray":
        image.convert("L").save(path, "JPEG", quality=quality)
    elif sampling == "4:4:0":  # Pillow cannot write it: a transposed 4:2:2 is one
        data = io.BytesIO()
        image.transpose(Image.Transpose.TRANSPOSE).save(
            data, "JPEG", quality=quality, subsampling=1
        )
        path.write_bytes(transposed_sampling(data.getvalue()))
    else:
        image.save(path, "JPEG", quality=quality, subsampling=SAMPLINGS[sampling])


def transposed_sampling(jpeg: bytes) -> bytes:
    """A 4:2:2 JPEG told to be 4:4:0: other pixels, and as good an image.

    The number of MCUs must not change for that: of width and height only as many pixels are kept
    as fill the MCUs both ways.
    """
    data = bytearray(jpeg)
    at = data.index(b"\xff\xc0")
    height, width = (int.from_bytes(data[at + k : at + k + 2], "big") for k in (5, 7))
    columns, rows = -(-width // 16), -(-height // 8)
    data[at + 5 : at + 9] = (min(height * 2, rows * 16)).to_bytes(2, "big") + (
        min(width, columns * 8)
    ).to_bytes(2, "big")
    assert data[at + 11] == 0x21
    data[at + 11] = 0x12
    return bytes(data)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 150), st.integers(1, 150)), min_size=1, max_size=4),
    sampling=st.sampled_from(sorted(SAMPLINGS)),
    quality=st.integers(1, 100),
    size=st.integers(1, 70),
    scale=st.sampled_from([(1e-5, 1e-3), (0.01, 0.2), (0.08, 1.0), (1.0, 1.0)]),
    seed=st.integers(0, 2**31),
    encode=st.sampled_from(["keep", "dct", "folder"]),
)
def test_any_jpeg_and_any_crop_down_to_one_pixel(
    sizes, sampling, quality, size, scale, seed, encode
):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "imgs"
        (folder / "a").mkdir(parents=True)
        for number, each in enumerate(sizes):
            write_jpeg(folder / "a" / f"{number}.jpg", each, sampling, quality, seed + number)
        if encode == "folder":
            chain = train(size, scale)
            loader = FastLoader(
                ImageFolder(folder, chain), batch_size=3, seed=SEED, engine="native"
            )
            made, boxes = reference(list(FolderStore(str(folder)).files), chain, size, 0)
            for mine, theirs, box in zip(
                torch.cat([images for images, _ in loader]), made, boxes, strict=True
            ):
                assert torch.equal(mine, theirs), box
        else:
            pack(folder, folder.with_suffix(".lmdb"), encode=encode)
            check_training(folder, PackedDataset(folder.with_suffix(".lmdb")), size, scale)


def test_crops_of_one_pixel_really_occur(tmp_path):
    (tmp_path / "a").mkdir()
    write_jpeg(tmp_path / "a" / "0.jpg", (97, 61), "4:2:0", 80, 0)
    chain = train(8, (1e-5, 1e-3))
    boxes = [
        box
        for epoch in range(50)
        for box in reference([str(tmp_path / "a" / "0.jpg")], chain, 8, epoch)[1]
    ]
    assert any(w == 1 and h == 1 for _, _, w, h in boxes)
