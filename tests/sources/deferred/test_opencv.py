"""What cv2.imread and cv2.imdecode give while deferring is what OpenCV gives, bit for bit."""

from __future__ import annotations

import copy
import pickle
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, PngImagePlugin
from torch.utils.data import DataLoader, Dataset

import png_files
import releases
from fastload import FastLoader, _native
from fastload._sources.deferred import guarded, switch
from fastload._sources.deferred.patches import opencv as exchanged
from fastload._sources.deferred.thread_state import THREAD
from sides import assert_same, side_by_side
from sides import outcome as outcome_of

cv2 = pytest.importorskip("cv2")
_IMREAD = cv2.imread  # before it is redirected

FLAGS = [
    cv2.IMREAD_COLOR,
    cv2.IMREAD_GRAYSCALE,
    cv2.IMREAD_UNCHANGED,
    cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION,
    cv2.IMREAD_ANYCOLOR,
    cv2.IMREAD_ANYDEPTH,
    cv2.IMREAD_ANYDEPTH | cv2.IMREAD_ANYCOLOR,
    cv2.IMREAD_REDUCED_COLOR_2,
]


def picture(size: tuple[int, int] = (301, 263)) -> Image.Image:
    rng = np.random.default_rng(2)
    coarse = Image.fromarray(rng.integers(0, 256, (33, 45, 3), np.uint8))
    return coarse.resize(size, Image.Resampling.BICUBIC)


def _comment() -> PngImagePlugin.PngInfo:
    made = PngImagePlugin.PngInfo()
    made.add_text("Comment", "made for a test")
    return made


def _deep_png() -> bytes:
    deep = np.random.default_rng(3).integers(0, 65536, (260, 250, 3), np.uint16)
    made: bytes = cv2.imencode(".png", deep)[1].tobytes()
    return made


def _narrow_png() -> bytes:
    """Gray rows that repeat, further back than the header of their data allows."""
    row = np.random.default_rng(4).integers(0, 256, (1, 601), np.uint8)
    row[0, 0] = 0  # the filter
    data = zlib.compress(np.tile(row, (260, 1)).tobytes())
    narrow = bytes([0x08, 31 - 0x0800 % 31]) + data[2:]  # a window of 256 bytes
    assert int.from_bytes(narrow[:2], "big") % 31 == 0
    header = png_files.header(600, 260, 8, png_files.GRAY)
    return png_files.png([header, png_files.pieces(narrow), png_files.chunk(b"IEND")])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Sound and damaged files of every kind, large enough for the core."""
    folder = tmp_path_factory.mktemp("files")
    turned, upright = Image.Exif(), Image.Exif()
    turned[0x0112], upright[0x0112] = 6, 1
    image, gray = picture(), picture().convert("L")
    many: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "420.jpg": (image, {"quality": 95}),
        "422.jpg": (image, {"quality": 95, "subsampling": 1}),
        "444.jpg": (image, {"quality": 95, "subsampling": 0}),
        "progressive.jpg": (image, {"quality": 95, "progressive": True}),
        "gray.jpg": (gray, {"quality": 95}),
        "cmyk.jpg": (image.convert("CMYK"), {"quality": 95}),
        "turned.jpg": (image, {"quality": 95, "exif": turned}),
        "upright.jpg": (image, {"quality": 95, "exif": upright}),
        "small.jpg": (picture((60, 50)), {}),
        "a.png": (image, {}),
        "gray.png": (gray, {}),
        "mask.png": (gray.point(lambda level: level // 64), {}),
        "gray-16.png": (Image.fromarray(np.asarray(gray).astype(np.uint16) * 250 + 7), {}),
        "gray-colour.png": (gray, {"transparency": 12}),
        "palette.png": (image.quantize(200), {}),
        "turned.png": (image, {"exif": turned}),
        "colour.png": (image, {"transparency": (1, 2, 3)}),
        "profile.png": (image, {"dpi": (72, 72), "pnginfo": _comment()}),
        "alpha.png": (image.convert("RGBA"), {}),
        "a.webp": (image, {"lossless": True}),
    }
    for name, (made, options) in many.items():
        made.save(folder / name, **options)
    whole = (folder / "420.jpg").read_bytes()
    if releases.TRUNCATED_JPEGS_ARE_CERTAIN:
        (folder / "truncated.jpg").write_bytes(whole[: len(whole) * 2 // 3])
    (folder / "damaged.jpg").write_bytes(whole[:9000] + bytes(2000) + whole[11000:])
    (folder / "deep.png").write_bytes(_deep_png())
    (folder / "narrow.png").write_bytes(_narrow_png())
    whole = (folder / "a.png").read_bytes()
    (folder / "truncated.png").write_bytes(whole[: len(whole) * 2 // 3])
    at = whole.index(b"IDAT") + 4 + int.from_bytes(whole[whole.index(b"IDAT") - 4 :][:4], "big")
    (folder / "checksum.png").write_bytes(whole[:at] + b"0000" + whole[at + 4 :])
    (folder / "text.jpg").write_text("no image " * 3000)
    return [*sorted(folder.iterdir()), folder / "missing.jpg", folder]


@pytest.fixture
def by_core() -> Iterator[Callable[[], int]]:
    """How many images the core has decoded for OpenCV."""
    before = THREAD.batch.read
    yield lambda: THREAD.batch.read - before


def same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if expected is not None:
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(found, expected)
        assert (found.strides, found.flags.writeable, found.flags.owndata) == (
            expected.strides, expected.flags.writeable, expected.flags.owndata
        )  # fmt: skip


@releases.exchanged_imread
@pytest.mark.parametrize("flags", FLAGS)
def test_what_is_read_is_what_opencv_reads(files: list[Path], flags: int) -> None:
    for path in files:
        expected = _IMREAD(str(path), flags)
        with switch.deferring():
            same(cv2.imread(str(path), flags), expected)
            same(cv2.imread(filename=path, flags=flags), expected)
        same(cv2.imread(str(path), flags), expected)
        if path.is_file():
            data = np.frombuffer(path.read_bytes(), np.uint8)
            expected = cv2.imdecode(data, flags)
            with switch.deferring():
                same(cv2.imdecode(data, flags), expected)


@releases.exchanged_imread
def test_plain_jpegs_are_decoded_by_the_core(files: list[Path], by_core: Callable[[], int]) -> None:
    names = ["420.jpg", "422.jpg", "444.jpg", "progressive.jpg", "gray.jpg"]
    plain = [path for path in files if path.name in names]
    with switch.deferring():
        for path in plain:
            cv2.imread(str(path))
        cv2.imread(str(files[0].parent / "gray.jpg"), cv2.IMREAD_GRAYSCALE)
    assert by_core() == len(names) + 1


@releases.exchanged_imread
def test_plain_pngs_are_decoded_by_the_core(files: list[Path], by_core: Callable[[], int]) -> None:
    core = _native.load()
    if core is None or core.png_version() is None:
        pytest.skip("the core was built without libdeflate")
    gray = ["gray.png", "mask.png"]
    expected = {
        cv2.IMREAD_COLOR: ["a.png", *gray, "profile.png"],
        cv2.IMREAD_UNCHANGED: ["a.png", *gray, "gray-16.png", "profile.png"],
        cv2.IMREAD_GRAYSCALE: gray,
        cv2.IMREAD_ANYDEPTH: [*gray, "gray-16.png"],
    }
    for flags, names in expected.items():
        taken = set()
        for path in files:
            before = by_core()
            with switch.deferring():
                cv2.imread(str(path), flags)
            if path.suffix == ".png" and by_core() > before:
                taken.add(path.name)
        assert taken == set(names)


@releases.exchanged_imread
def test_photos_are_opencvs(test_data: Path, by_core: Callable[[], int]) -> None:
    paths = sorted(test_data.rglob("*.JPEG"))[::7]
    for path in paths:
        expected = _IMREAD(str(path))
        with switch.deferring():
            same(cv2.imread(str(path)), expected)
    assert by_core() > len(paths) // 2


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def test_wrong_arguments_raise_as_ever(files: list[Path]) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: cv2.imread(),
        lambda: cv2.imread(7),
        lambda: cv2.imread(str(files[0]), "1"),
        lambda: cv2.imread(str(files[0]), 1, 2, 3),
        lambda: cv2.imread(name=str(files[0])),
        lambda: cv2.imdecode(None, 1),
        lambda: cv2.imdecode(np.zeros(20_000, np.float32), 1),
    ]
    for call in calls:
        expected = outcome(call)
        with switch.deferring():
            assert outcome(call) == expected


def test_outside_of_deferring_nothing_is_asked_of_the_core(
    files: list[Path], by_core: Callable[[], int]
) -> None:
    switch.install()
    cv2.imread(str(files[0]))
    assert by_core() == 0


@releases.exchanged_imread
def test_a_name_that_was_imported_before_is_redirected_too() -> None:
    switch.install()
    assert isinstance(_IMREAD, exchanged.Redirected)
    assert _IMREAD is cv2.imread


@releases.exchanged_imread
def test_the_function_passes_for_opencvs() -> None:
    switch.install()
    assert pickle.loads(pickle.dumps(cv2.imread)) is cv2.imread
    assert copy.deepcopy(cv2.imread) is cv2.imread
    assert (cv2.imread.__name__, cv2.imread.__module__) == ("imread", "cv2")
    assert cv2.imread.__doc__.startswith("imread(")

    class Reader:
        read = cv2.imread

    assert Reader().read("there is no such file.jpg") is None


@pytest.fixture
def exchanged_anew() -> Iterator[None]:
    switch.uninstall()
    yield
    switch.uninstall()


@pytest.mark.usefixtures("exchanged_anew")
@pytest.mark.parametrize(
    "name", [pytest.param("imread", marks=releases.exchanged_imread), "imdecode"]
)
def test_where_opencv_decodes_otherwise_it_is_left_alone(
    files: list[Path], by_core: Callable[[], int], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    decode = getattr(cv2, name)

    def other(given: Any, flags: int = 1) -> np.ndarray:
        image: np.ndarray = decode(given, flags).copy()
        image[0, 0] ^= 1
        return image

    other.__name__ = name
    monkeypatch.setattr(cv2, name, other)
    given = str(files[0]) if name == "imread" else np.fromfile(files[0], np.uint8)
    with switch.deferring():
        assert isinstance(getattr(cv2, name), exchanged.Redirected)
        assert np.array_equal(getattr(cv2, name)(given), other(given))
    assert by_core() == 0
    assert getattr(cv2, name) is other
    (line,) = [line for line in releases.unexpected(guarded.left_out()) if line.startswith("cv2.")]
    assert line.startswith(f"cv2.{name} is left as it is: it decodes JPEGs in another way")


class Read(Dataset[Any]):
    """Read by OpenCV, cropped and flipped by NumPy; None where a file is damaged."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = cv2.imread(str(self.paths[index]))
        if image is None:
            return self[(index + 1) % len(self)]
        image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        y, x = (int(v) for v in torch.randint(0, 5, (2,)))
        image = image[y : y + 40, x : x + 40]
        if torch.rand(()) < 0.5:
            image = image[:, ::-1]
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))), index


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_over_opencv_gives_the_same(files: list[Path], workers: int) -> None:
    side_by_side(Read(files[:-1]), batch_size=4, shuffle=True, num_workers=workers, epochs=2)


@releases.exchanged_imread
def test_explain_counts_what_the_core_read(files: list[Path]) -> None:
    paths = [path for path in files if path.name in ("420.jpg", "444.jpg")] * 8
    loader = FastLoader(Read(paths), 2)
    for _ in loader:
        pass
    for ours, theirs in zip(loader, DataLoader(Read(paths), 2), strict=True):
        assert ours[1].equal(theirs[1])
    assert "16 read by functions of OpenCV" in loader.explain()


@releases.exchanged_imread
def test_what_opencv_reads_comes_from_the_cache_in_later_epochs(files: list[Path]) -> None:
    paths = [path for path in files if path.name in ("420.jpg", "444.jpg")]
    loader = FastLoader(Read(paths), 2, cache="decoded", cache_limit="64MB")
    for hits, misses in ((0, 2), (2, 0)):
        for _ in loader:
            pass
        stats = loader.stats()
        assert (stats["cache_hits"], stats["cache_misses"]) == (hits, misses)
    theirs = outcome_of(DataLoader, Read(paths), 2, batch_size=1, shuffle=True)
    ours = outcome_of(FastLoader, Read(paths), 2, batch_size=1, shuffle=True, cache="dct")
    assert_same(ours, theirs)
