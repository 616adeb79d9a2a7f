"""torchvision.io's functions give deferred tensors that hold what torchvision decodes."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import io
from torchvision.transforms import functional as F
from torchvision.transforms import v2

import deferred_datasets as shapes
import png_files
import releases
from fastload import FastLoader, _native
from fastload._sources.deferred import switch
from fastload._sources.deferred.tensor import DeferredTensor
from fastload._sources.deferred.thread_state import THREAD
from sides import side_by_side

pytestmark = pytest.mark.filterwarnings("ignore:.*TorchCodec:DeprecationWarning")

SIZE = (90, 70)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files of one size: JPEGs and PNGs of every kind, and some that are no images."""
    folder = tmp_path_factory.mktemp("files")
    coarse = np.random.default_rng(5).integers(0, 256, (7, 9, 3), np.uint8)
    picture = Image.fromarray(coarse).resize(SIZE, Image.Resampling.BICUBIC)
    picture.save(folder / "420.jpg")
    picture.save(folder / "444.jpg", subsampling=0)
    picture.save(folder / "progressive.jpg", progressive=True)
    picture.convert("L").save(folder / "gray.jpg")
    picture.convert("CMYK").save(folder / "cmyk.jpg")
    picture.save(folder / "a.png")
    picture.convert("L").save(folder / "gray.png")
    picture.save(folder / "colour.png", transparency=(1, 2, 3))
    picture.convert("RGBA").save(folder / "alpha.png")
    picture.quantize(20).save(folder / "palette.png")
    Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 250).save(
        folder / "deep.png"
    )
    picture.save(folder / "truncated.png")
    shapes.truncate(folder / "truncated.png")
    _huge(folder / "huge.png")
    picture.save(folder / "truncated.jpg", quality=95)
    shapes.truncate(folder / "truncated.jpg")
    (folder / "text.jpg").write_text("no image")
    return [*sorted(folder.iterdir()), folder / "missing.jpg"]


def _huge(path: Path) -> None:
    """A PNG without pixels whose header promises many."""
    header = png_files.header(60_000, 60_000, 8, png_files.GRAY)
    path.write_bytes(png_files.png([header, png_files.chunk(b"IEND")]))


def encoded(path: Path) -> torch.Tensor:
    return torch.from_numpy(np.fromfile(path, np.uint8))


CALLS: dict[str, Callable[[Path], Any]] = {
    "read_image": lambda path: io.read_image(str(path)),
    "by name": lambda path: io.read_image(path=str(path), mode=io.ImageReadMode.RGB),
    "decode_image of a path": lambda path: io.decode_image(str(path), "RGB"),
    "decode_image of bytes": lambda path: io.decode_image(encoded(path), mode="rgb"),
    "gray": lambda path: io.decode_image(encoded(path), io.ImageReadMode.GRAY),
    "alpha": lambda path: io.decode_image(encoded(path), io.ImageReadMode.RGB_ALPHA),
    "turned": lambda path: io.read_image(str(path), apply_exif_orientation=True),
    "decode_jpeg": lambda path: io.decode_jpeg(encoded(path)),
    "decode_jpeg of a list": lambda path: io.decode_jpeg([encoded(path)])[0],
    "decode_jpeg on a device": lambda path: io.decode_jpeg(encoded(path), device="cpu"),
    "no such mode": lambda path: io.read_image(str(path), "none"),
    "no such argument": lambda path: io.read_image(str(path), color="RGB"),
}


def outcome(call: Callable[[Path], Any], path: Path) -> Any:
    """Values, layout and warnings, or the error."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            found = call(path)
            values = found + 0  # which has the pixels decoded
        except Exception as error:
            return type(error), str(error).splitlines()[:1]
    return found.shape, found.stride(), found.dtype, values.tolist(), [str(w) for w in warned]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_what_is_read_is_what_torchvision_reads(
    files: list[Path], call: Callable[[Path], Any]
) -> None:
    for path in files:
        if path.name == "palette.png" and call is CALLS["alpha"]:
            continue  # torchvision gives what is in memory by chance
        expected = outcome(call, path)
        with switch.deferring():
            assert outcome(call, path) == expected, path


@releases.exchanged_io
@pytest.mark.parametrize("name", ["420.jpg", "444.jpg", "progressive.jpg", "gray.jpg", "a.png"])
def test_jpegs_and_pngs_stay_deferred(files: list[Path], name: str) -> None:
    _needs_pngs()
    path = files[0].parent / name
    with switch.deferring():
        for call in ("read_image", "by name", "decode_image of bytes"):
            assert type(CALLS[call](path)) is DeferredTensor
    assert type(CALLS["read_image"](path)) is torch.Tensor


def _needs_pngs() -> None:
    core = _native.load()
    if core is None or core.png_version() is None:
        pytest.skip("the core was built without libdeflate")


@releases.exchanged_io
def test_of_pngs_the_core_decodes_plain_ones_and_gray_ones_at_once(files: list[Path]) -> None:
    _needs_pngs()
    calls = ("read_image", "by name", "gray")
    deferred: dict[str, list[str]] = {call: [] for call in calls}
    read: dict[str, list[str]] = {call: [] for call in calls}
    for path in files:
        for call in calls:
            before, made = THREAD.batch.read, None
            with switch.deferring(), contextlib.suppress(RuntimeError, FileNotFoundError):
                made = CALLS[call](path)
            if type(made) is DeferredTensor and path.suffix == ".png":
                deferred[call].append(path.name)
            if THREAD.batch.read > before:
                read[call].append(path.name)
    assert deferred == {"read_image": ["a.png"], "by name": ["a.png"], "gray": []}
    assert read == {"read_image": ["gray.png"], "by name": [], "gray": ["gray.png"]}


@releases.exchanged_io
def test_a_plain_png_is_the_users_to_resize(files: list[Path]) -> None:
    for name in ("a.png", "gray.png"):
        with switch.deferring():
            found = io.read_image(str(files[0].parent / name))
        assert found.resize_(3, 200, 100).shape == (3, 200, 100)


class Read(Dataset[Any]):
    """Reads, converts and normalises; crops, where it is asked to."""

    def __init__(self, paths: list[Path], *, crops: bool) -> None:
        self.paths = paths
        self.crop = v2.RandomResizedCrop(32, antialias=True) if crops else None

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = io.decode_image(str(self.paths[index]), io.ImageReadMode.RGB)
        if self.crop is not None:
            image = self.crop(image)
        return F.normalize(image.float().div(255), shapes.MEAN, shapes.STD), index


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("crops", [False, True])
def test_a_dataset_over_torchvision_gives_the_same(
    files: list[Path], workers: int, crops: bool
) -> None:
    good = [path for path in files if path.name in ("420.jpg", "444.jpg", "gray.jpg", "a.png")]
    dataset = Read(good * 3, crops=crops)
    side_by_side(dataset, batch_size=4, shuffle=True, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_a_damaged_file_gives_what_torchvision_makes_of_it(
    files: list[Path], workers: int, suffix: str
) -> None:
    paths = [path for path in files if path.suffix == suffix and path.name != "missing.jpg"]
    side_by_side(Read(paths, crops=False), batch_size=2, num_workers=workers)


class OrBlank(Read):
    """Blank where torchvision cannot read an image."""

    def __getitem__(self, index: int) -> Any:
        try:
            image = io.read_image(str(self.paths[index]))
        except RuntimeError:
            image = torch.zeros(3, *SIZE[::-1], dtype=torch.uint8)
        return image.float().div(255)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_catches_the_error_of_a_damaged_png_gets_it(files: list[Path], workers: int) -> None:
    paths = [files[0].parent / name for name in ("a.png", "truncated.png", "a.png")]
    side_by_side(OrBlank(paths, crops=False), batch_size=4, num_workers=workers)


@releases.exchanged_io
def test_tensors_stay_deferred_to_the_batch(files: list[Path]) -> None:
    folder = files[0].parent
    loader = FastLoader(Read([folder / "420.jpg", folder / "444.jpg"], crops=False), 2)
    for _ in loader:
        pass
    stats = loader.stats()
    assert (stats["images_opened"], stats["images_deferred"]) == (2, 2)
    assert stats["images_materialised"] == 0
