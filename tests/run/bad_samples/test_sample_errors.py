"""Whatever reading or decoding a sample raises is an error with a file and a record."""

from __future__ import annotations

import io
import pickle
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import torchvision_oracle as oracle
from combinations import combinations
from fastload import DataError, DecodeError, FastLoader, InternalError, UsageError, open_store
from fastload import verify as verify_store
from fastload.converters import pack
from fastload.errors import sample_error

CHAIN = v1.Compose([v1.Resize(20), v1.CenterCrop(16), v1.PILToTensor()])

ERRORS: dict[bytes, Exception] = {
    b"struct": struct.error("unpack requires a buffer of 4 bytes"),
    b"syntax": SyntaxError("broken PNG file"),
    b"absent": NotImplementedError("Unimplemented pixel format"),
    b"memory": MemoryError(),
    b"system": OSError("cannot allocate memory"),
    b"warned": UserWarning("as the user's filter has it"),
    b"assert": AssertionError(),
    b"lookup": KeyError(7),
}


class Rare(ImageFile.ImageFile):
    """An image file of a format whose plugin raises one of ERRORS, at once or when it is loaded."""

    format = "RARE"

    def _open(self) -> None:
        assert self.fp is not None
        _, when, self.what = self.fp.read(16).split()
        if when == b"open":
            raise ERRORS[self.what]
        self._mode, self._size = "RGB", (30, 20)

    def load(self) -> Any:
        raise ERRORS[self.what]


@pytest.fixture
def rare() -> Iterator[None]:
    Image.init()
    Image.register_open("RARE", Rare, lambda prefix: prefix.startswith(b"RARE"))
    try:
        yield
    finally:
        Image.ID.remove("RARE")
        del Image.OPEN["RARE"]


@pytest.fixture
def folder(tmp_path: Path, rare: None) -> Path:
    """A good image, and then one for each error, at once and later; named so that they are read."""
    root = tmp_path / "images"
    (root / "a").mkdir(parents=True)
    oracle.picture(30, 20).save(root / "a" / "0.png")
    for when in ("load", "open"):
        for name in ERRORS:
            path = root / "a" / f"{when}-{name.decode()}.png"
            path.write_bytes(f"RARE {when} {name.decode()}".encode())
    return root


@pytest.mark.native
@pytest.mark.parametrize("threads", [0, 2])
def test_a_loader_skips_what_any_library_raises(folder: Path, threads: int) -> None:
    dataset = ImageFolder(folder, CHAIN)
    loader = FastLoader(dataset, 3, num_workers=threads, on_error="skip", max_errors=1.0)
    assert [len(images) for images, _ in loader] == [1]
    errors = loader.stats()["errors"]
    assert [error["file"] for error in errors] == [path for path, _ in dataset.samples[1:]]
    assert [error["index"] for error in errors] == list(range(1, len(dataset)))
    assert all(error["error"].startswith("DecodeError: ") for error in errors)
    assert "cannot allocate memory" in errors[[*sorted(ERRORS)].index(b"system")]["error"]


@pytest.mark.native
@pytest.mark.parametrize("when", ["load", "open"])
@pytest.mark.parametrize("name", ERRORS)
def test_a_loader_raises_it_with_its_place(folder: Path, when: str, name: bytes) -> None:
    dataset = ImageFolder(folder, CHAIN)
    path = str(folder / "a" / f"{when}-{name.decode()}.png")
    record = [path for path, _ in dataset.samples].index(path)
    with pytest.raises(DecodeError) as info:
        list(FastLoader(dataset, 1, sampler=[record]))
    assert (info.value.path, info.value.record) == (path, record)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("encode", ["keep", "raw"])
def test_pack_skips_what_any_library_raises(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encode: str, native: bool
) -> None:
    if not native:
        monkeypatch.setenv("FASTLOAD_NO_NATIVE", "1")
    names = sorted(path.name for path in (folder / "a").glob("*.png"))[1:]
    with pytest.raises(DecodeError) as info:
        pack(folder, tmp_path / "x.lmdb", encode="raw")
    assert info.value.path == str(folder / "a" / names[0]) and info.value.record == 1
    report = pack(folder, tmp_path / "y.lmdb", encode=encode, check=True, on_error="skip")
    assert [Path(skipped.path).name for skipped in report.skipped] == names
    assert report.records == 1
    report = pack(folder, tmp_path / "z.lmdb", on_error="skip")  # only headers are looked at
    assert [Path(skipped.path).name for skipped in report.skipped] == names[len(ERRORS) :]
    monkeypatch.delenv("FASTLOAD_NO_NATIVE", raising=False)
    damaged = verify_store(tmp_path / "z.lmdb", decode=True).damaged
    assert [damage.record for damage in damaged] == list(range(1, len(ERRORS) + 1))


@pytest.fixture
def truncated(tmp_path: Path) -> ImageFolder:
    """Six JPEGs, of which number 2 lacks its lower half and number 4 only the marker of its end."""
    (tmp_path / "a").mkdir()
    for number in range(6):
        path = tmp_path / "a" / f"{number}.jpg"
        oracle.picture(200, 160, number).save(path)
        data = path.read_bytes()
        path.write_bytes(data[: {2: len(data) // 2, 4: -2}.get(number, len(data))])
    return ImageFolder(tmp_path)


@pytest.mark.native
@pytest.mark.parametrize(
    ("cache", "crop"),
    combinations([None, "ram", "dct", "decoded"], ["whole", "top", "random"], rounds=2),
)
def test_a_truncated_jpeg_is_bad_whatever_is_cut_out_of_it(
    truncated: ImageFolder, crop: str, cache: Any
) -> None:
    crops = {
        "whole": v1.Resize((40, 40)),
        "top": v1.Compose([v1.Pad(3), v1.RandomCrop(200, pad_if_needed=True), v1.CenterCrop(9)]),
        "random": v1.RandomResizedCrop(8, (0.01, 0.02)),
    }
    truncated.transform = v1.Compose([crops[crop], v1.PILToTensor()])

    def bad(path: str) -> bool:
        try:
            with Image.open(path) as image:
                image.load()
        except OSError:
            return True
        return False

    expected = [path for path, _ in truncated.samples if bad(path)]
    assert len(expected) in (1, 2)
    loader = FastLoader(truncated, 6, cache=cache, seed=1, on_error="skip", max_errors=2)
    for _ in range(3):
        ((images, _),) = loader
        assert len(images) == 6 - len(expected)
        errors = loader.stats()["errors"]
        assert [error["file"] for error in errors] == expected
        assert all("image file is truncated" in error["error"] for error in errors)


@pytest.mark.native
def test_who_allows_truncated_images_gets_pillows(
    truncated: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    truncated.transform = v1.PILToTensor()
    ((images, _),) = FastLoader(truncated, 6)
    for (path, _), image in zip(truncated.samples, images):
        with Image.open(path) as file:
            assert np.array_equal(np.moveaxis(image.numpy(), 0, 2), np.asarray(file))


def test_a_pixel_format_that_pillow_does_not_implement_has_its_file(tmp_path: Path) -> None:
    """What came of that: NotImplementedError, past every on_error."""
    (tmp_path / "a").mkdir()
    oracle.picture(30, 20).save(tmp_path / "a" / "0.png")
    header = struct.pack("<7I44x", 124, 0x1007, 20, 30, 0, 0, 0)
    format_ = struct.pack("<2I4s5I", 32, 4, b"WHAT", 0, 0, 0, 0, 0)
    (tmp_path / "a" / "1.png").write_bytes(b"DDS " + header + format_ + bytes(20 + 2000))
    with pytest.raises(NotImplementedError):
        Image.open(tmp_path / "a" / "1.png")
    loader = FastLoader(ImageFolder(tmp_path, CHAIN), 2, on_error="skip")
    assert [len(images) for images, _ in loader] == [1]
    assert loader.stats()["errors"][0]["file"] == str(tmp_path / "a" / "1.png")
    report = pack(tmp_path, tmp_path / "x.lmdb", on_error="skip")
    assert [skipped.record for skipped in report.skipped] == [1]


def test_records_that_are_no_files_are_skipped_one_by_one(tmp_path: Path) -> None:
    """Compressed pixels are unpacked for a whole batch: a damaged chunk costs only its images."""
    zarr = pytest.importorskip("zarr")
    pixels = np.stack([np.asarray(oracle.picture(30, 20, seed)) for seed in range(6)])
    array = zarr.create_array(
        str(tmp_path / "x.zarr"), shape=pixels.shape, chunks=(1, *pixels.shape[1:]), dtype="u1"
    )
    array[:] = pixels
    assert open_store(tmp_path / "x.zarr").indirect
    chunks = sorted(path for path in (tmp_path / "x.zarr").rglob("*") if path.parts[-4] == "2")
    (chunk,) = chunks
    chunk.write_bytes(chunk.read_bytes()[:-200])
    loader = FastLoader(tmp_path / "x.zarr", 3, transform=CHAIN, on_error="skip")
    assert [len(images) for images in loader] == [2, 3]
    assert [error["index"] for error in loader.stats()["errors"]] == [2]


def test_code_of_the_users_raises_what_it_raises(tmp_path: Path) -> None:
    class Missing:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return {}["nothing"]

    def divide(image: Any) -> Any:
        return image / 0

    (tmp_path / "a").mkdir()
    oracle.picture(30, 20).save(tmp_path / "a" / "0.png")
    with pytest.raises(KeyError, match="nothing"):
        pack(Missing(), tmp_path / "x.lmdb", on_error="skip")
    for chain in (v1.Compose([divide]), v1.Compose([v1.Resize(20), divide])):
        with pytest.raises(TypeError, match="unsupported operand"):
            list(FastLoader(ImageFolder(tmp_path, chain), 1, num_workers=0))


def test_an_error_keeps_its_type_and_what_it_says_of_its_place() -> None:
    where = {"path": "/x", "record": 3, "offset": 7}
    plain = sample_error(ValueError("of the core"), **where)
    assert type(plain) is DecodeError and isinstance(plain.__cause__, ValueError)
    assert str(plain) == (
        "'/x', record 3, byte offset 7: the sample cannot be made: ValueError: of the core"
    )
    known = DataError("too small", path="/y")
    placed = sample_error(known, **where)
    assert (type(placed), placed.path, placed.record, placed.offset) == (DataError, "/y", 3, 7)
    assert sample_error(placed, **where) is placed
    assert pickle.loads(pickle.dumps(plain)).record == 3
    for mine in (UsageError("misuse"), InternalError("a bug")):
        with pytest.raises(type(mine)):
            sample_error(mine)


def test_a_warning_that_is_an_error_is_one_of_the_sample(tmp_path: Path) -> None:
    """With warnings as errors, Pillow's word on a file's metadata is about that file."""
    (tmp_path / "a").mkdir()
    file = io.BytesIO()
    oracle.picture(30, 20).save(file, "TIFF")
    (tmp_path / "a" / "0.tif").write_bytes(file.getvalue())
    (tmp_path / "a" / "1.tif").write_bytes(file.getvalue())
    original = Image.Image.convert

    def convert(image: Image.Image, *arguments: Any, **named: Any) -> Image.Image:
        warnings.warn("corrupt EXIF data", UserWarning, stacklevel=2)
        return original(image, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.setattr(Image.Image, "convert", convert)
        loader = FastLoader(
            ImageFolder(tmp_path, CHAIN), 2, num_workers=0, on_error="skip", max_errors=2
        )
        assert list(loader) == []
        assert "corrupt EXIF data" in loader.stats()["errors"][0]["error"]
