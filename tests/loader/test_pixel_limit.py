"""PIL.Image.MAX_IMAGE_PIXELS means what it means to Pillow, whoever decodes; long sides do too."""

from __future__ import annotations

import errno
import struct
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import torchvision_oracle as oracle
from combinations import combinations
from fastload import DataError, DecodeError, FastLoader, PackedDataset
from fastload._base.slabs import SlabRing
from fastload.converters import pack

W, H = 96, 80  # 7,680 pixels
FORMATS = ("jpg", "png", "webp", "bmp", "tif")
# Of images of 7,680 pixels: opened, opened with a warning, refused.
LIMITS = [(None, "made"), (7680, "made"), (7679, "warned"), (3840, "warned"), (3839, "refused")]
TO_TENSOR = v1.Compose([v1.Resize((16, 16)), v1.ToTensor()])

NATIVE = pytest.mark.native
HOW: dict[str, dict[str, Any]] = {
    "this thread": {"engine": "native", "num_workers": 0},
    "processes": {"engine": "native", "num_workers": 2},
    "workers": {"engine": "torch", "num_workers": 0},
}
EVERY = [
    pytest.param(name, marks=NATIVE) if how["engine"] == "native" else name
    for name, how in HOW.items()
]


class Own(Dataset[Any]):
    """A Dataset of one's own over the same files."""

    def __init__(self, folder: ImageFolder) -> None:
        self.samples, self.transform = folder.samples, folder.transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        assert self.transform is not None
        return self.transform(Image.open(path).convert("RGB")), label


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    limit = Image.MAX_IMAGE_PIXELS
    yield
    Image.MAX_IMAGE_PIXELS = limit


@pytest.fixture(scope="module", params=FORMATS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp(request.param)
    (root / "a").mkdir()
    for number in range(3):
        oracle.picture(W, H, number).save(root / "a" / f"{number}.{request.param}")
    return root


def outcome(loader: Any) -> tuple[str, Any]:
    """What became of an epoch, and its images."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            images = torch.cat([images for images, _ in loader])
        except (DecodeError, Image.DecompressionBombError) as error:
            return "refused", error
    warned = any(issubclass(one.category, Image.DecompressionBombWarning) for one in seen)
    return "warned" if warned else "made", images


@pytest.mark.parametrize("how", EVERY)
@pytest.mark.parametrize("kind", [lambda dataset: dataset, Own], ids=["ImageFolder", "own"])
def test_a_limit_means_what_it_means_to_pillow(folder: Path, kind: Any, how: str) -> None:
    for limit, expected in LIMITS:
        Image.MAX_IMAGE_PIXELS = limit
        dataset = kind(ImageFolder(folder, TO_TENSOR))
        theirs = outcome(DataLoader(dataset, 2))
        ours = outcome(FastLoader(dataset, 2, **(HOW[how] if kind is not Own else {})))
        assert (theirs[0], ours[0]) == (expected, expected), limit
        if expected != "refused":
            assert torch.equal(ours[1], theirs[1])
        elif kind is not Own and how != "workers":
            assert "a/0" in ours[1].path
            assert "Set PIL.Image.MAX_IMAGE_PIXELS higher if the image is genuine" in str(ours[1])


@pytest.mark.native
@pytest.mark.parametrize("how", ["this thread", "processes"])
@pytest.mark.parametrize("encode", ["keep", "raw", "dct"])
@pytest.mark.parametrize("only_python", [False, True])
def test_a_limit_holds_for_records(
    tmp_path: Path, encode: Any, how: str, only_python: bool
) -> None:
    (tmp_path / "a").mkdir()
    for number in range(3):
        oracle.picture(W, H, number).save(tmp_path / "a" / f"{number}.jpg")
    pack(tmp_path, tmp_path / "all.tar", encode=encode)
    unknown = [v1.Lambda(lambda image: image.rotate(90))] if only_python else []
    transform = v1.Compose([*unknown, TO_TENSOR])
    # A worker's warnings are its own, as torch's.
    given = {"num_workers": 0} if only_python else HOW[how]
    made = []
    for limit, expected in LIMITS:
        Image.MAX_IMAGE_PIXELS = limit
        dataset = PackedDataset(tmp_path / "all.tar", transform=transform)
        found, images = outcome(FastLoader(dataset, 2, **given))
        assert found == expected, limit
        if found != "refused":
            made.append(images)
    assert all(torch.equal(one, made[0]) for one in made)


@pytest.mark.native
@pytest.mark.parametrize(
    ("cache", "how"), combinations([None, "decoded", "ram"], ["this thread", "processes"])
)
def test_a_limit_may_be_changed_between_epochs(folder: Path, how: str, cache: Any) -> None:
    dataset = ImageFolder(folder, TO_TENSOR)
    persistent = {"persistent_workers": True} if how == "processes" else {}
    for limit, expected in ((3839, "refused"), (3840, "warned"), (None, "made")):
        Image.MAX_IMAGE_PIXELS = 3840
        loader = FastLoader(dataset, 2, cache=cache, **HOW[how], **persistent)
        assert outcome(loader)[0] == "warned"
        Image.MAX_IMAGE_PIXELS = limit
        # Pixels that a cache has are not opened again.
        assert outcome(loader)[0] == ("made" if cache == "decoded" else expected)
        del loader


@pytest.mark.native
def test_views_keep_to_a_limit(folder: Path) -> None:
    crops = [v1.Compose([v1.RandomResizedCrop(8), v1.ToTensor()])] * 2
    for limit, expected in LIMITS:
        Image.MAX_IMAGE_PIXELS = limit
        dataset = ImageFolder(folder, crops)  # type: ignore[arg-type]
        loader = FastLoader(dataset, 2, num_workers=0)
        found, _ = outcome((images[0], labels) for images, labels in loader)
        assert found == expected


def test_a_refused_image_can_be_left_out_and_comes_back_with_a_higher_limit(folder: Path) -> None:
    small = oracle.picture(40, 40)
    (folder / "a" / "small.png").unlink(missing_ok=True)
    small.save(folder / "a" / "small.png")
    dataset = ImageFolder(folder, TO_TENSOR)
    loader = FastLoader(dataset, 4, on_error="skip", max_errors=1.0)
    Image.MAX_IMAGE_PIXELS = 3839
    assert [len(images) for images, _ in loader] == [1]
    reasons = [error["error"] for error in loader.stats()["errors"]]
    assert len(reasons) == 3
    assert all("decompression bomb" in reason for reason in reasons)
    Image.MAX_IMAGE_PIXELS = None
    assert [len(images) for images, _ in loader] == [4]
    (folder / "a" / "small.png").unlink()


@pytest.mark.parametrize("encode", ["keep", "raw", "png", pytest.param("dct", marks=NATIVE)])
def test_pack_keeps_to_a_limit(folder: Path, tmp_path: Path, encode: Any) -> None:
    for number, (limit, expected) in enumerate(LIMITS):
        Image.MAX_IMAGE_PIXELS = limit
        destination = tmp_path / f"{number}.tar"
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            if expected == "refused":
                with pytest.raises(DecodeError, match="3 files is an image: refused as a decomp"):
                    pack(folder, destination, encode=encode, on_error="skip", workers=1)
                continue
            assert not pack(folder, destination, encode=encode, workers=1).skipped
        warned = any(issubclass(one.category, Image.DecompressionBombWarning) for one in seen)
        assert warned == (expected == "warned")


def test_what_is_larger_than_the_core_decodes_is_left_to_pillow(tmp_path: Path) -> None:
    """More pixels than Pillow's default limit: it warns, and the image is made."""
    (tmp_path / "a").mkdir()
    Image.new("L", (9500, 9500), 77).save(tmp_path / "a" / "0.png", compress_level=1)
    dataset = ImageFolder(tmp_path, v1.Compose([v1.CenterCrop(8), v1.ToTensor()]))
    for limit, expected in ((Image.MAX_IMAGE_PIXELS, "warned"), (None, "made")):
        Image.MAX_IMAGE_PIXELS = limit
        found, images = outcome(FastLoader(dataset, 1))
        assert found == expected
        assert torch.equal(images, torch.full((1, 3, 8, 8), 77 / 255))


# --- long sides -----------------------------------------------------------------------------------


def png_that_says(width: int, height: int) -> bytes:
    """A PNG of ten bytes of pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        crc = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", crc)

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(b"\0" * 10))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + body + chunk(b"IEND", b"")


JITTER = v1.ColorJitter((0.5, 0.5))  # always the same
CHAINS: dict[str, list[Any]] = {
    "as it is": [],
    "Pad": [v1.Pad(2)],
    "Resize": [v1.Resize(3)],
    "colours": [JITTER],
    "colours and a resize": [JITTER, v1.Resize(3)],
    "a crop": [v1.CenterCrop(3)],
    "flips": [v1.RandomHorizontalFlip(1.0), v1.RandomVerticalFlip(1.0)],
    "gray": [v1.Grayscale(3)],
    "a resize to a long side": [v1.Resize((2, 66_000))],
}


@pytest.fixture(scope="module", params=[(70_000, 3), (4, 65_536), (65_535, 3)], ids=str)
def long_side(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("long")
    (root / "a").mkdir()
    oracle.picture(*request.param).save(root / "a" / "0.png")
    return root


@pytest.mark.native
@pytest.mark.parametrize(("name", "how"), combinations([*CHAINS], [*HOW]))
def test_an_image_with_a_long_side_is_what_torchvision_makes(
    long_side: Path, name: str, how: str
) -> None:
    dataset = ImageFolder(long_side, v1.Compose([*CHAINS[name], v1.ToTensor()]))
    ((expected, _),) = DataLoader(dataset, 1)
    ((found, _),) = FastLoader(dataset, 1, **HOW[how])
    assert torch.equal(found, expected)


@pytest.mark.parametrize("how", EVERY)
@pytest.mark.parametrize(
    "size", [(70_000, 3), (65_000, 65_000), (2**31 - 1, 1), (2**31 - 1, 2**31)]
)
def test_a_header_that_lies_about_its_size_is_left_out(
    tmp_path: Path, size: tuple[int, int], how: str
) -> None:
    (tmp_path / "a").mkdir()
    for number in range(3):
        oracle.picture(8, 8).save(tmp_path / "a" / f"{number}.png")
    (tmp_path / "a" / "3.png").write_bytes(png_that_says(*size))
    for name in ("as it is", "Pad", "colours", "Resize", "a crop"):
        dataset = ImageFolder(tmp_path, v1.Compose([*CHAINS[name], v1.ToTensor()]))
        loader = FastLoader(dataset, 1, on_error="skip", max_errors=1.0, **HOW[how])
        assert sum(len(images) for images, _ in loader) == 3, name
        (error,) = loader.stats()["errors"]
        assert error["index"] == 3
        with pytest.raises((DataError, OSError, Image.DecompressionBombError)):
            list(FastLoader(dataset, 1, **HOW[how]))


@pytest.mark.native
def test_an_image_that_memory_does_not_hold_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    for number, side in enumerate((8, 9, 8)):
        oracle.picture(side, side).save(tmp_path / "a" / f"{number}.png")
    lease = SlabRing.lease

    def leased(self: SlabRing, shape: tuple[int, ...], *rest: Any) -> Any:
        if shape[-1] == 9:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return lease(self, shape, *rest)

    monkeypatch.setattr(SlabRing, "lease", leased)
    dataset = ImageFolder(tmp_path, v1.ToTensor())
    loader = FastLoader(dataset, 1, on_error="skip", max_errors=1)
    assert [len(images) for images, _ in loader] == [1, 1]
    with pytest.raises(DataError, match=r"a/1\.png.*no memory for an image of 9x9 pixels"):
        list(FastLoader(dataset, 1))


def test_pack_refuses_a_size_that_no_store_holds(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    oracle.picture(8, 8).save(tmp_path / "a" / "0.png")
    (tmp_path / "a" / "1.png").write_bytes(png_that_says(2**31, 1))
    Image.MAX_IMAGE_PIXELS = None
    report = pack(tmp_path, tmp_path.with_suffix(".tar"), on_error="skip")
    assert "expected sides of at most 2147483647 pixels" in report.skipped[0].reason
