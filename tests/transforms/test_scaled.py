"""``decode="scaled"``: the same from files and DCT records, close to exact, and explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import native_core
from fastload import FastLoader, UsageError, pack

TRAIN = v1.Compose([v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.PILToTensor()])
COLOURS = v1.Compose(
    [v1.RandomResizedCrop(24), v1.RandAugment(), v1.ToTensor(), v1.RandomErasing(0.5)]
)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large and small images of all kinds that are decoded in different ways."""
    folder = tmp_path_factory.mktemp("mixed") / "a"
    folder.mkdir()
    image = native_core.photo(500, 380, 2)
    files = {
        "baseline.jpg": native_core.encode(image, quality=90),
        "progressive.jpg": native_core.encode(image, progressive=True),
        "gray.jpg": native_core.encode(image.convert("L")),
        "cmyk.jpg": native_core.encode(image.convert("CMYK")),
        "restart.jpg": native_core.encode(image, restart_marker_blocks=5),
        "small.jpg": native_core.encode(native_core.photo(40, 30, 1)),
        "lossless.png": native_core.encode(image, "PNG"),
        "bitmap.bmp": native_core.encode(image, "BMP"),
        "two.mpo": native_core.encode(image, "MPO", save_all=True, append_images=[image]),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "two.mpo").rename(folder / "two.jpg")
    return folder.parent


def batches(dataset: Any, **given: Any) -> torch.Tensor:
    loader = FastLoader(dataset, batch_size=4, seed=3, num_workers=2, **given)
    return torch.cat([batch[0] for _ in range(3) for batch in loader])


@pytest.mark.native
@pytest.mark.parametrize("chain", [TRAIN, COLOURS], ids=["plain", "colours"])
def test_files_and_dct_records_give_the_same(mixed: Path, chain: Any, tmp_path: Path) -> None:
    pack(mixed, tmp_path / "dct.lmdb", encode="dct")
    dataset = ImageFolder(mixed, chain)
    scaled = batches(dataset, decode="scaled")
    store = tmp_path / "dct.lmdb"
    assert torch.equal(scaled, batches(store, transform=chain, decode="scaled"))
    assert not torch.equal(scaled, batches(dataset))


def test_what_is_no_large_jpeg_stays_exact(mixed: Path) -> None:
    chain = v1.Compose([v1.Resize((32, 32)), v1.PILToTensor()])
    dataset = ImageFolder(mixed, chain)
    exact, scaled = (
        torch.cat([images for images, _ in FastLoader(dataset, batch_size=3, decode=decode)])
        for decode in ("exact", "scaled")
    )
    for (path, _), one, other in zip(dataset.samples, exact, scaled, strict=True):
        # Pillow decodes CMYK, in full size.
        large_jpeg = path.endswith(".jpg") and not path.endswith(("small.jpg", "cmyk.jpg"))
        assert torch.equal(one, other) != large_jpeg, path
        assert psnr(one, other) > 47, path  # 49.4 at least was measured


def test_nearest_picks_pixels_of_the_whole_image(mixed: Path) -> None:
    chain = v1.Compose([v1.Resize((32, 32), v1.InterpolationMode.NEAREST), v1.PILToTensor()])
    one, other = (batches(ImageFolder(mixed, chain), decode=d) for d in ("exact", "scaled"))
    assert torch.equal(one, other)


def psnr(one: torch.Tensor, other: torch.Tensor) -> float:
    error = (one.double() - other.double()).square().mean()
    return float("inf") if error == 0 else float(10 * torch.log10(255**2 / error))


def test_real_photos_differ_little(test_data: Path) -> None:
    dataset = ImageFolder(test_data, v1.Compose([v1.Resize((48, 48)), v1.PILToTensor()]))
    some = torch.utils.data.Subset(dataset, range(0, len(dataset), 8))
    one, other = (batches(some, decode=decode) for decode in ("exact", "scaled"))
    each = np.array([psnr(a, b) for a, b in zip(one, other, strict=True)])
    scaled = each[np.isfinite(each)]  # the others were not large enough
    assert len(scaled) > len(each) / 3
    assert np.median(scaled) > 51  # 53.5 was measured
    assert scaled.min() > 39  # 40.9 was measured


def test_a_cut_or_damaged_file_is_an_error_of_the_same_kind(mixed: Path, tmp_path: Path) -> None:
    from fastload import DecodeError

    (tmp_path / "a").mkdir()
    data = (mixed / "a" / "baseline.jpg").read_bytes()
    (tmp_path / "a" / "cut.jpg").write_bytes(data[: len(data) // 2])
    dataset = ImageFolder(tmp_path, v1.Compose([v1.Resize((20, 20)), v1.PILToTensor()]))
    with pytest.raises(DecodeError, match=r"cut\.jpg"):
        next(iter(FastLoader(dataset, decode="scaled")))


def test_explain_says_when_it_would_help(mixed: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "large.jpg").write_bytes((mixed / "a" / "baseline.jpg").read_bytes())
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "small.jpg").write_bytes((mixed / "a" / "small.jpg").read_bytes())
    chain = v1.Compose([v1.Resize((32, 32)), v1.PILToTensor()])
    large = torch.utils.data.Subset(ImageFolder(tmp_path, chain), [0])
    small = torch.utils.data.Subset(ImageFolder(tmp_path, chain), [1])
    assert "decode='scaled' would decode about 100% of the samples" in FastLoader(large).explain()
    assert "decode=" not in FastLoader(small).explain()
    assert "decode: scaled" in FastLoader(large, decode="scaled").explain()
    assert "about 100%" in FastLoader(large, decode="scaled").explain()


def test_it_is_an_attribute_like_every_argument(mixed: Path) -> None:
    dataset = ImageFolder(mixed, TRAIN)
    assert FastLoader(dataset).decode == "exact"
    assert FastLoader(dataset, decode="scaled").decode == "scaled"


def test_what_cannot_be_is_refused(mixed: Path) -> None:
    dataset = ImageFolder(mixed, TRAIN)
    with pytest.raises(UsageError, match="decode: expected one of 'exact', 'scaled'"):
        FastLoader(dataset, decode="half")
    with pytest.raises(UsageError, match="cache='decoded' keeps images in full size"):
        FastLoader(dataset, decode="scaled", cache="decoded")
    with pytest.raises(UsageError, match="fastload's engines"):
        FastLoader(ImageFolder(mixed, lambda image: 0), decode="scaled")


@pytest.mark.native
@pytest.mark.parametrize("cache", ["ram", "dct"])
def test_caches_give_the_same(mixed: Path, cache: str) -> None:
    dataset = ImageFolder(mixed, TRAIN)
    plain = batches(dataset, decode="scaled")
    assert torch.equal(plain, batches(dataset, decode="scaled", cache=cache))
