"""Images that a Dataset asks for pixels and does not put into the batch: it sees damaged ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.ImageOps
import pytest
import torch
import torchvision.io
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchvision.transforms import functional as F

import deferred_datasets as shapes
import releases
from fastload import FastLoader
from fastload._sources.deferred import single
from sides import side_by_side

# Pillow leaves a truncated file open.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*getdata:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning"),
]

_SIDE = 96


def _photo() -> Image.Image:
    rng = np.random.default_rng(5)
    return Image.fromarray(rng.integers(0, 256, (_SIDE, _SIDE, 3), np.uint8))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Whole files, and as many of which only a part is there."""
    folder = tmp_path_factory.mktemp("files")
    paths = []
    for suffix in ("jpg", "png", "webp", "bmp"):
        for name in ("whole", "cut"):
            paths.append(folder / f"{name}.{suffix}")
            _photo().save(paths[-1])
        shapes.truncate(paths[-1])
    return paths


def _loaded(path: Path) -> None:
    with Image.open(path) as image:
        image.load()


def _closed(path: Path) -> None:
    image = Image.open(path)
    image.load()
    image.close()


def _thumbnail(path: Path) -> None:
    Image.open(path).convert("L").thumbnail((9, 9))


def _collated(path: Path) -> None:
    torch.stack([F.to_tensor(Image.open(path).convert("RGB"))] * 2)


CHECKS: dict[str, Callable[[Path], object]] = {
    "load": _loaded,
    "load, then close": _closed,
    "getdata": lambda path: Image.open(path).getdata(),
    "convert": lambda path: Image.open(path).convert("RGB"),
    "the same mode": lambda path: Image.open(path).convert("RGB").convert("RGB"),
    "copy": lambda path: Image.open(path).copy(),
    "resize": lambda path: Image.open(path).resize((8, 8)),
    "a small corner": lambda path: Image.open(path).crop((0, 0, 5, 5)).load(),
    "array of a corner": lambda path: np.asarray(Image.open(path).crop((0, 0, 70, 70))),
    "thumbnail": _thumbnail,
    "ImageOps": lambda path: PIL.ImageOps.grayscale(PIL.ImageOps.invert(Image.open(path))),
    "to_tensor": lambda path: F.to_tensor(Image.open(path)),
    "stack": _collated,
    "getexif": lambda path: Image.open(path).getexif(),
    "size": lambda path: Image.open(path).size,
    "torchvision.io": lambda path: torchvision.io.read_image(str(path)),
}


class Checked(Dataset[Any]):
    """Says which files pass a check. Nothing of an image is in a sample."""

    def __init__(self, files: list[Path], check: str) -> None:
        self.files, self.check = files, check

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> int:
        try:
            CHECKS[self.check](self.files[index])
        except (OSError, RuntimeError):
            return 0
        return 1


class CheckedStream(IterableDataset[int]):
    """The same, of a stream, whose batches cannot be made again."""

    def __init__(self, files: list[Path], check: str) -> None:
        self.checked = Checked(files, check)

    def __iter__(self) -> Iterator[int]:
        return map(self.checked.__getitem__, range(len(self.checked)))


@pytest.mark.parametrize("kind", [Checked, CheckedStream])
@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, marks=releases.array_errors) if check == "to_tensor" else check
        for check in CHECKS
    ],
)
def test_a_check_of_files_says_what_it_says_in_torchs_loader(
    files: list[Path], check: str, kind: Callable[[list[Path], str], Any]
) -> None:
    side_by_side(kind(files, check), batch_size=3)


@pytest.mark.parametrize("check", ["load", "resize", "torchvision.io"])
def test_it_says_so_in_workers(files: list[Path], check: str) -> None:
    side_by_side(Checked(files, check), batch_size=3, num_workers=2)


class ReadOtherwise(Checked):
    """Looks for a file that Pillow loads, and reads it by other means."""

    def __getitem__(self, index: int) -> Any:
        try:
            CHECKS[self.check](self.files[index])
        except OSError:
            return self[(index + 1) % len(self)]
        return torch.tensor(list(self.files[index].read_bytes()[:64])), index


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_read_otherwise_was_checked(files: list[Path], workers: int) -> None:
    side_by_side(ReadOtherwise(files, "load"), batch_size=3, num_workers=workers)


class Beside(Checked):
    """Checks all files of a sample, and gives the tensor of the first one that is whole."""

    def __getitem__(self, index: int) -> Any:
        other = self.files[(index + 3) % len(self)]
        image = Image.open(self.files[index - index % 2]).convert("RGB")
        try:
            CHECKS[self.check](other)
        except OSError:
            return F.to_tensor(image.rotate(90))
        return F.to_tensor(image)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_beside_those_of_the_batch_is_checked(files: list[Path], workers: int) -> None:
    side_by_side(Beside(files, "copy"), batch_size=2, num_workers=workers)


class Loaded(Checked):
    """Images as they were opened, and loaded if that is possible."""

    def __getitem__(self, index: int) -> Any:
        try:
            image = Image.open(self.files[index])
            image.load()
        except OSError:
            return None
        return image


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_was_loaded_and_is_the_sample_is_checked(
    files: list[Path], workers: int
) -> None:
    arguments: dict[str, Any] = {"collate_fn": shapes.as_they_are, "num_workers": workers}
    theirs = DataLoader(Loaded(files, ""), 4, **arguments)
    for ours, others in zip(FastLoader(Loaded(files, ""), 4, **arguments), theirs, strict=True):
        for image, other in zip(ours, others, strict=True):
            assert (image is None) == (other is None)
            assert image is None or image.tobytes() == other.tobytes()


class Unused(Checked):
    def __getitem__(self, index: int) -> int:
        Image.open(self.files[index]).convert("RGB")
        return index


@pytest.mark.parametrize("workers", [0, 1])
def test_on_error_sees_a_damaged_image_that_is_not_used(files: list[Path], workers: int) -> None:
    loader = FastLoader(
        Unused(files, ""), 4, num_workers=workers, on_error="skip", max_errors=len(files)
    )
    assert torch.cat(list(loader)).tolist() == [0, 2, 4, 6]
    assert [entry["index"] for entry in loader.stats()["errors"]] == [1, 3, 5, 7]


@pytest.fixture
def nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(opened: object) -> None:
        pytest.fail(f"{opened} is in the batch, or was decoded before")

    monkeypatch.setattr(single, "checked", check)


class Looked(shapes.Photos):
    """Looks at pixels in several ways, and puts none of the images into the batch."""

    def __getitem__(self, i: int) -> Any:
        array = np.asarray(Image.open(self.paths[i]).convert("RGB").resize((70, 71)))
        tensor = F.to_tensor(Image.open(self.paths[i]))
        loaded = Image.open(self.paths[i])
        loaded.load()
        pixel = loaded.getpixel((0, 0))
        read = torch.zeros(1)
        if self.paths[i].suffix == ".jpg":
            read = torchvision.io.read_image(str(self.paths[i]))
        return int(array.sum()), float(tensor.mean()), str(pixel), int(read.sum())


def computed(samples: list[Any]) -> Any:
    """A collate_fn that needs the values of the whole batch."""
    images = torch.stack([F.to_tensor(image.resize((20, 20)).convert("RGB")) for image in samples])
    return images.mean()


class Opened(shapes.Photos):
    def __getitem__(self, i: int) -> Any:
        return Image.open(self.paths[i])


@pytest.mark.usefixtures("nothing_is_checked")
def test_no_image_is_decoded_a_second_time(tmp_path: Path) -> None:
    paths = shapes.write_photos(tmp_path)
    kinds = (
        shapes.Photos, shapes.TwoViews, shapes.SameCrop, shapes.V2, shapes.AsArray, shapes.Keeping,
        shapes.FromArrays, shapes.TwoPictures, shapes.InMemory, shapes.WithHandle, Looked,
    )  # fmt: skip
    for kind in kinds:
        assert list(FastLoader(kind(paths), batch_size=2))
    assert list(FastLoader(Opened(paths), batch_size=2, collate_fn=computed))
    assert list(FastLoader(shapes.Images(paths), batch_size=2, collate_fn=shapes.late))
