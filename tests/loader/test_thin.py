"""Images of extreme proportions: what torchvision makes of them, or an error that names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import torchvision_oracle as oracle
from fastload import DataError, FastLoader
from fastload._base.slabs import SlabRing
from fastload._engine import long_sides
from fastload._engine.image_engine import EngineOptions
from fastload._engine.registry import NATIVE, make_engine
from fastload._transforms.plan import Plan
from fastload._transforms.recognise import recognise
from fastload.storage.folder import FolderStore

SIZES = [
    *[(300, 1), (1, 300), (1, 1), (2, 1), (1, 2), (3, 700), (700, 3), (70000, 1)],
    (40, 30),
]
CUBIC, NEAREST = v1.InterpolationMode.BICUBIC, v1.InterpolationMode.NEAREST

CHAINS: dict[str, list[Any]] = {
    "Resize, CenterCrop": [v1.Resize(16), v1.CenterCrop(16)],
    "as at evaluation": [v1.Resize(224), v1.CenterCrop(224)],
    "v2": [v2.Resize(224), v2.RandomCrop(200)],
    "Resize to both sides": [v1.Resize((30, 40))],
    "bicubic": [v1.Resize(16, CUBIC), v1.CenterCrop(8)],
    "nearest": [v1.Resize(16, NEAREST), v1.RandomCrop(8)],
    "max_size": [v1.Resize(16, max_size=600), v1.CenterCrop(8)],
    "RandomResizedCrop": [v1.RandomResizedCrop(32), v1.RandomHorizontalFlip()],
    "CenterCrop": [v1.CenterCrop(32)],
    "RandomCrop, padded": [v1.RandomCrop(32, pad_if_needed=True)],
    "RandomCrop": [v1.RandomCrop(2)],
    "Pad": [v1.Pad(5), v1.CenterCrop(20)],
    "colours": [v1.Resize(64), v1.ColorJitter(0.4), v1.CenterCrop(60)],
    "colours first": [v1.ColorJitter(0.4), v1.Resize(224), v1.CenterCrop(224)],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("thin")
    for number, (w, h) in enumerate(SIZES):
        oracle.picture(w, h, number).save(root / f"{number:02}.png")
    return root


def made_by(folder: Path, chain: Any) -> Any:
    plan = recognise(chain)
    assert isinstance(plan, Plan)
    return make_engine(
        NATIVE, FolderStore(folder), plan, EngineOptions(threads=0, ring=SlabRing(2))
    )


@pytest.mark.native
@pytest.mark.parametrize("name", CHAINS)
def test_thin_images_are_made_as_torchvision_makes_them(folder: Path, name: str) -> None:
    chain = v1.Compose([*CHAINS[name], v1.PILToTensor()])
    decoder = made_by(folder, chain)
    for number, size in enumerate(SIZES):
        if max(size) == 70000 and name not in ("Resize, CenterCrop", "CenterCrop", "nearest"):
            continue  # torchvision would take gigabytes
        with Image.open(folder / f"{number:02}.png") as file:
            image = file.convert("RGB")
        try:
            expected = oracle.sample(chain, image, number)
        except ValueError:  # a crop that is larger than the image, a side of 0
            with pytest.raises(DataError) as info:
                decoder.submit(np.array([number]), seed=0, epoch=0)
            assert info.value.path == str(folder / f"{number:02}.png")
            assert info.value.record == number
            continue
        (found,) = decoder.submit(np.array([number]), seed=0, epoch=0).result()
        assert torch.equal(found, expected), size


@pytest.mark.parametrize("filter", [NEAREST, v1.InterpolationMode.BILINEAR, CUBIC])
@pytest.mark.parametrize("size", [(9, 40), (40, 9), (1, 70), (33, 31)])
def test_what_is_made_of_a_large_resize_is_a_part_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], filter: Any
) -> None:
    image = oracle.picture(*size)
    chain = v1.Compose([v1.Resize(120, filter), v1.RandomCrop(50), v1.PILToTensor()])
    plan = recognise(chain)
    assert isinstance(plan, Plan)
    monkeypatch.setattr(long_sides, "_WHOLE", 700)
    from fastload._transforms.geometry.draws import Numbers
    from fastload._transforms.sample_params import draw

    geometry, _ = draw(plan, np.array([size], np.int32), Numbers(0, 0, np.array([3])))
    frame = [*geometry.box[0], *geometry.resized[0], *geometry.window[0], geometry.flip[0], 50, 50]
    made = long_sides.cut(image, list(map(int, frame)), plan.filter, plan.fill)
    assert np.array_equal(np.asarray(made), oracle.sample(chain, image, 3).permute(1, 2, 0).numpy())


@pytest.mark.parametrize("cache", [None, "decoded"])
@pytest.mark.native
def test_a_refused_image_is_what_on_error_says(tmp_path: Path, cache: Any) -> None:
    """torchvision fails on it too: a crop larger than the image."""
    sizes = [(9, 9), (9, 3), (12, 8), (3, 9), (8, 8), (300, 8)]
    (tmp_path / "a").mkdir()
    for number, (w, h) in enumerate(sizes):
        oracle.picture(w, h, number).save(tmp_path / "a" / f"{number}.png")
    chain = v1.Compose([v1.RandomCrop(8), v1.PILToTensor()])
    arguments: dict[str, Any] = {"seed": 1, "cache": cache, "batch_size": 3}
    loader = FastLoader(
        ImageFolder(tmp_path, chain), on_error="skip", max_errors=2, num_workers=1, **arguments
    )
    for _ in range(2):
        assert [len(images) for images, _ in loader] == [2, 2]
        errors = loader.stats()["errors"]
        assert [error["file"] for error in errors] == [str(tmp_path / f"a/{n}.png") for n in (1, 3)]
        assert "RandomCrop of 8x8 pixels is larger than this image of 9x3" in errors[0]["error"]
    refill = FastLoader(ImageFolder(tmp_path, chain), on_error="refill", max_errors=2, **arguments)
    assert [len(images) for images, _ in refill] == [3, 1]
    strict = FastLoader(ImageFolder(tmp_path, chain), **arguments)
    with pytest.raises(DataError, match=r"a/1\.png', record 1"):
        list(strict)


@pytest.mark.native
def test_images_of_several_sizes_are_nobodys_fault(tmp_path: Path) -> None:
    """They make no batch; to skip all but those of the first one's size would be no help."""
    (tmp_path / "a").mkdir()
    for number, size in enumerate([(9, 9), (9, 8), (9, 7)]):
        oracle.picture(*size).save(tmp_path / "a" / f"{number}.png")
    loader = FastLoader(ImageFolder(tmp_path, v1.PILToTensor()), 3, on_error="skip", max_errors=3)
    with pytest.raises(DataError, match="expected images of one size in a batch"):
        list(loader)


@pytest.mark.native
@pytest.mark.parametrize("cache", [None, "ram", "decoded"])
def test_a_side_above_65535_pixels_is_made(tmp_path: Path, cache: Any) -> None:
    (tmp_path / "a").mkdir()
    images = [oracle.picture(w, h) for w, h in ((70000, 2), (40, 40), (2, 70000))]
    for number, image in enumerate(images):
        image.save(tmp_path / "a" / f"{number}.png")
    for first in ([], [v1.Resize(3)], [v1.Resize(3), v1.ColorJitter((0.5, 0.5))]):
        chain = v1.Compose([*first, v1.CenterCrop(3), v1.PILToTensor()])
        loader = FastLoader(ImageFolder(tmp_path, chain), 3, cache=cache, shuffle=False)
        for _ in range(2):
            ((found, _),) = loader
            assert torch.equal(found, torch.stack([chain(image) for image in images]))
