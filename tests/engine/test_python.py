"""The Python engine: Pillow's pixels, errors that say where, threads that change nothing."""

from __future__ import annotations

import concurrent.futures
import io
import struct
import threading
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from torchvision import transforms as v1
from torchvision.datasets import folder

from fastload import _geometry
from fastload._buffers import SlabRing
from fastload._engine import python as engine
from fastload._geometry import Geometry
from fastload._transforms import Plan, recognise
from fastload.errors import ChecksumError, DecodeError, StoreError, StoreNotFoundError
from fastload.storage._crc import crc32c
from fastload.storage.base import ENCODED, RAW, Spans, Store

WHERE: dict[str, Any] = {"path": "/data/imgs.lmdb", "record": 7, "offset": 4096}


def picture(width: int = 40, height: int = 30, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def pixels(image: Image.Image) -> Any:
    return np.asarray(image).tolist()


# decode


def palette_with_transparency() -> bytes:
    return encoded(picture().quantize(16), "PNG", transparency=3)


def sixteen_bits() -> bytes:
    gray = np.linspace(0, 65535, 1200).astype(np.uint16).reshape(30, 40)
    return encoded(Image.fromarray(gray), "PNG")


def with_orientation() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(picture(), "JPEG", exif=exif)


FILES = {
    "JPEG": encoded(picture(), "JPEG"),
    "progressive JPEG": encoded(picture(), "JPEG", progressive=True),
    "gray JPEG": encoded(picture().convert("L"), "JPEG"),
    "CMYK JPEG": encoded(picture().convert("CMYK"), "JPEG"),
    "turned JPEG": with_orientation(),
    "PNG": encoded(picture(), "PNG"),
    "RGBA PNG": encoded(picture().convert("RGBA"), "PNG"),
    "gray and alpha PNG": encoded(picture().convert("LA"), "PNG"),
    "palette PNG": encoded(picture().quantize(16), "PNG"),
    "palette and transparency": palette_with_transparency(),
    "bilevel PNG": encoded(picture().convert("1"), "PNG"),
    "16-bit PNG": sixteen_bits(),
    "BMP": encoded(picture(), "BMP"),
    "WebP": encoded(picture(), "WEBP"),
    "two-frame GIF": encoded(picture(), "GIF", save_all=True, append_images=[picture(seed=1)]),
    "TIFF": encoded(picture(), "TIFF"),
}


@pytest.mark.parametrize("name", FILES)
def test_any_image_is_decoded_as_torchvisions_loader_does(name: str, tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(FILES[name])
    ours = engine.decode(FILES[name])
    theirs = folder.pil_loader(str(path))
    assert ours.mode == "RGB"
    assert pixels(ours) == pixels(theirs)
    assert pixels(engine.decode(memoryview(FILES[name]))) == pixels(theirs)


def says_where(error: DecodeError) -> bool:
    return (error.path, error.record, error.offset) == tuple(WHERE.values())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not an image in a format that Pillow knows"),
        (b"no image at all", "not an image"),
        (FILES["JPEG"][:-300], "truncated"),
        (FILES["JPEG"][:100], "cannot decode this image of 100 bytes"),
        (FILES["PNG"][:-900], "truncated"),
        (FILES["PNG"][:20], "cannot decode"),
        (FILES["BMP"][:-900], "truncated"),
        (FILES["WebP"][:-300], "cannot decode"),
        (encoded(picture(), "EPS"), "expected a raster image, got EPS"),
    ],
)
def test_what_cannot_be_decoded_says_why_and_where(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason) as info:
        engine.decode(data, **WHERE)
    assert says_where(info.value)
    assert "file '/data/imgs.lmdb', record 7, byte offset 4096" in str(info.value)


def test_damage_anywhere_is_a_decode_error_or_an_image() -> None:
    rng = np.random.default_rng(0)
    for name in ("JPEG", "PNG", "BMP", "WebP", "two-frame GIF", "TIFF"):
        for _ in range(40):
            data = bytearray(FILES[name])
            for at in rng.integers(0, len(data), 4):
                data[at] = rng.integers(0, 256)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    assert engine.decode(data).mode == "RGB"
                except DecodeError as error:
                    assert error.__cause__ is not None or "expected" in str(error)


def huge_png(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds nothing."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(10_000, 10_000), (50_000, 50_000)])
@pytest.mark.parametrize("action", ["ignore", "error"])
def test_a_decompression_bomb_is_refused(size: tuple[int, int], action: Any) -> None:
    # Pillow warns about the first and raises for the second
    with warnings.catch_warnings(), pytest.raises(DecodeError, match="decompression bomb") as info:
        warnings.simplefilter(action)
        engine.decode(huge_png(*size), **WHERE)
    assert says_where(info.value)


def test_the_users_own_limit_on_pixels_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1199)
    with pytest.raises(DecodeError, match=r"MAX_IMAGE_PIXELS = 1199: .*1200 pixels"):
        engine.decode(FILES["PNG"])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert engine.decode(FILES["PNG"]).size == (40, 30)


def test_decoding_in_threads_changes_no_global_state_and_no_pixel() -> None:
    expected = {name: pixels(engine.decode(data)) for name, data in FILES.items()}
    filters, truncated = list(warnings.filters), ImageFile.LOAD_TRUNCATED_IMAGES
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        names = list(FILES) * 8
        results = pool.map(lambda name: pixels(engine.decode(FILES[name])), names)
        assert all(result == expected[name] for name, result in zip(names, results))
    assert list(warnings.filters) == filters
    assert ImageFile.LOAD_TRUNCATED_IMAGES == truncated


def test_raw_pixels_need_their_exact_number_of_bytes() -> None:
    image = picture(5, 4)
    assert pixels(engine.from_pixels(image.tobytes(), (5, 4))) == pixels(image)
    with pytest.raises(DecodeError, match="expected 4x4 RGB pixels in 48 bytes, got 60") as info:
        engine.from_pixels(image.tobytes(), (4, 4), **WHERE)
    assert says_where(info.value)
    with pytest.raises(DecodeError, match="expected 0x0"):
        engine.from_pixels(b"", (0, 0))


# fill


def one(box: Any, resized: Any, window: Any, flip: int, out: tuple[int, int]) -> Geometry:
    w, h = out
    arrays = [np.array([values], np.int32) for values in (box, resized, window)]
    return Geometry(*arrays, np.array([flip], np.uint8), h, w)


@pytest.mark.parametrize("flip", [0, 1])
@pytest.mark.parametrize("corner", [(0, 0), (-2, -1), (3, 2), (-2, 3), (-9, 0), (0, -9), (40, 40)])
def test_pixels_outside_of_the_resized_box_get_the_fill(corner: Any, flip: int) -> None:
    image = picture(9, 8)
    out = np.zeros((1, 3, 7, 8), np.uint8)
    plan = Plan(fill=(1, 2, 3))
    engine.fill(image, 0, one((1, 0, 7, 6), (7, 6), corner, flip, (8, 7)), plan, out)
    source = np.asarray(image)[0:6, 1:8]
    expected = np.empty((7, 8, 3), np.uint8)
    expected[:] = (1, 2, 3)
    for y in range(7):
        for x in range(8):
            at_y, at_x = y + corner[1], x + corner[0]
            if 0 <= at_y < 6 and 0 <= at_x < 7:
                expected[y, x] = source[at_y, at_x]
    if flip:
        expected = expected[:, ::-1]
    assert out[0].tolist() == expected.transpose(2, 0, 1).tolist()


def test_fill_writes_its_own_slice_and_no_other_in_either_layout() -> None:
    image, plan = picture(6, 5), Plan()
    geometry = _geometry.draw((), np.array([[6, 5]] * 3), seed=0, epoch=0, indices=np.arange(3))
    planes = np.full((3, 3, 5, 6), 9, np.uint8)
    pixelwise = np.full((3, 5, 6, 3), 9, np.uint8)
    engine.fill(image, 1, geometry, plan, planes)
    engine.fill(image, 1, geometry, plan, pixelwise.transpose(0, 3, 1, 2))
    assert planes[1].tolist() == pixelwise[1].transpose(2, 0, 1).tolist()
    assert pixelwise[1].tolist() == pixels(image)
    for out in (planes, pixelwise):
        assert (out[0] == 9).all() and (out[2] == 9).all()


def test_an_image_smaller_than_its_geometry_is_refused() -> None:
    geometry = one((10, 0, 31, 30), (31, 30), (0, 0), 0, (31, 30))
    with pytest.raises(DecodeError, match=r"box 31x30 at \(10, 0\), got 40x30 pixels"):
        engine.fill(picture(40, 30), 0, geometry, Plan(), np.zeros((1, 3, 30, 31), np.uint8))


# PythonDecoder, over a store of loose files


class LooseFiles(Store):
    """Each record in a file, or several in one; raw where ``raw`` says so."""

    format = "test"
    classes: Sequence[str] = ()
    metadata: dict[str, Any] = {}
    mapped = False

    def __init__(self, path: Path, records: Sequence[bytes], sizes: Any, kind: int) -> None:
        self.path = str(path)
        self._kind, self._sizes = kind, np.array(sizes, np.int32)
        self.crcs = np.array([crc32c(record) for record in records], np.uint32)
        lengths = np.array([len(record) for record in records])
        self._offset = np.cumsum(lengths) - lengths + 5
        self._nbytes = lengths
        path.write_bytes(b"head:" + b"".join(records))

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def files(self) -> Sequence[str]:
        return [self.path]

    def spans(self, indices: np.ndarray) -> Spans:
        return Spans(
            file=np.zeros(len(indices), np.int32),
            offset=self._offset[indices],
            nbytes=self._nbytes[indices],
        )

    def kinds(self, indices: np.ndarray) -> np.ndarray:
        return np.full(len(indices), self._kind, np.uint8)

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        return self._sizes[indices]

    @property
    def labels(self) -> np.ndarray | None:
        return None

    def keys(self, indices: np.ndarray) -> list[str]:
        return [str(index) for index in indices]

    def checksums(self, indices: np.ndarray) -> np.ndarray | None:
        return self.crcs[indices]


IMAGES = [picture(30 + i, 40 - i, seed=i) for i in range(12)]
TRAIN = v1.Compose(
    [
        v1.RandomResizedCrop(16),
        v1.RandomHorizontalFlip(),
        v1.ToTensor(),
        v1.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)),
    ]
)


def store_of(tmp_path: Path, kind: int = ENCODED) -> LooseFiles:
    records = [image.tobytes() if kind == RAW else encoded(image, "PNG") for image in IMAGES]
    return LooseFiles(tmp_path / "records", records, [image.size for image in IMAGES], kind)


def decoder_of(store: Store, threads: int = 2, **options: Any) -> engine.PythonDecoder:
    dtype = options.pop("dtype", None)
    plan = recognise(options.pop("transform", TRAIN))
    assert isinstance(plan, Plan)
    options = {"channels_last": False, "check_crc": "first", "ring": SlabRing(2), **options}
    return engine.PythonDecoder(store, plan.with_output(dtype), threads=threads, **options)


def batch_of(decoder: engine.PythonDecoder, records: Any) -> torch.Tensor:
    decoder.acquire()
    try:
        return decoder.submit(np.array(records, np.int64), seed=1, epoch=2).result()
    finally:
        decoder.release()


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("kind", [ENCODED, RAW])
def test_a_batch_is_the_same_with_any_number_of_threads(kind: int, tmp_path: Path) -> None:
    store = store_of(tmp_path, kind)
    records = [3, 0, 11, 3, 7, 1]
    batches = [batch_of(decoder_of(store, threads), records) for threads in (0, 1, 2, 4)]
    assert batches[0].shape == (6, 3, 16, 16)
    assert batches[0].unique().numel() > 100
    assert all(torch.equal(batch, batches[0]) for batch in batches[1:])


def test_encoded_and_raw_records_give_the_same_batch(tmp_path: Path) -> None:
    encoded_batch = batch_of(decoder_of(store_of(tmp_path)), range(12))
    raw_batch = batch_of(decoder_of(store_of(tmp_path, RAW)), range(12))
    assert torch.equal(encoded_batch, raw_batch)


@pytest.mark.parametrize("threads", [0, 2])
def test_a_ticket_tells_how_long_decoding_took(threads: int, tmp_path: Path) -> None:
    decoder = decoder_of(store_of(tmp_path), threads)
    decoder.acquire()
    ticket = decoder.submit(np.arange(4), seed=0, epoch=0)
    ticket.result()
    assert ticket.stages_ns()["decode"] > 0
    decoder.release()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_layouts_and_dtypes_hold_the_same_values(dtype: torch.dtype, tmp_path: Path) -> None:
    store = store_of(tmp_path)
    reference = batch_of(decoder_of(store), range(5))
    batch = batch_of(decoder_of(store, dtype=dtype, channels_last=True), range(5))
    assert batch.dtype == dtype
    assert batch.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batch, reference.to(dtype))


def test_samples_left_by_the_core_are_filled_into_their_places(tmp_path: Path) -> None:
    decoder = decoder_of(store_of(tmp_path))
    decoder.acquire()
    ticket = decoder.submit(np.arange(6), seed=0, epoch=0)
    whole = ticket.result().clone()
    batch = ticket._batch  # type: ignore[attr-defined]
    batch.images.fill_(-1)
    for which in ([4], [1, 5]):
        engine.fill_records(decoder, batch, np.array(which))
    decoder.release()
    filled = [1, 4, 5]
    assert torch.equal(batch.images[filled], whole[filled])
    assert (batch.images[[0, 2, 3]] == -1).all()


def damage(store: LooseFiles, record: int) -> None:
    path = Path(store.path)
    data = bytearray(path.read_bytes())
    at = int(store._offset[record]) + 60
    data[at : at + 4] = b"\0\0\0\0"
    path.write_bytes(data)


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("check", ["first", "never"])
def test_a_damaged_record_is_named(threads: int, check: str, tmp_path: Path) -> None:
    store = store_of(tmp_path)
    damage(store, 5)
    expected = ChecksumError if check == "first" else DecodeError
    with pytest.raises(expected) as info:
        batch_of(decoder_of(store, threads, check_crc=check), [0, 5, 2, 5])
    assert (info.value.path, info.value.record) == (store.path, 5)
    assert info.value.offset == int(store._offset[5])


def test_first_checks_a_record_once_and_always_checks_it_again(tmp_path: Path) -> None:
    store = store_of(tmp_path, RAW)
    first, always = (decoder_of(store, 0, check_crc=check) for check in ("first", "always"))
    for decoder in (first, always):
        batch_of(decoder, [1, 2])
    damage(store, 2)
    batch_of(first, [1, 2])
    with pytest.raises(ChecksumError, match="expected CRC32C"):
        batch_of(always, [1, 2])
    damage(store, 3)
    with pytest.raises(ChecksumError):
        batch_of(first, [3])


def test_an_image_of_another_size_than_the_store_says_is_named(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    store._sizes[4] = (20, 20)
    with pytest.raises(DecodeError, match=r"not 20x20 pixels any more but 34x36") as info:
        batch_of(decoder_of(store), [1, 4])
    assert info.value.record == 4


def test_a_file_that_was_cut_short_or_is_gone_is_named(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    path = Path(store.path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(StoreError, match="reaches beyond the end of its file") as info:
        batch_of(decoder_of(store), [0, 11])
    assert info.value.record == 11
    path.unlink()
    with pytest.raises(StoreNotFoundError, match="cannot read the record: No such file") as gone:
        batch_of(decoder_of(store), [2])
    assert gone.value.record == 2


def test_a_record_to_the_end_of_its_file_is_read_whole(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    store._nbytes[11] = -1
    assert pixels(engine.decode_record(store, 11)) == pixels(IMAGES[11])
    assert pixels(engine.decode_record(store_of(tmp_path, RAW), 3)) == pixels(IMAGES[3])


@pytest.mark.usefixtures("no_leaks")
def test_nothing_is_written_after_a_cancellation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, release = threading.Event(), threading.Event()
    original = engine.fill

    def slow(*arguments: Any) -> None:
        begun.set()
        assert release.wait(20)
        original(*arguments)

    monkeypatch.setattr(engine, "fill", slow)
    decoder = decoder_of(store_of(tmp_path), threads=1)
    decoder.acquire()
    ticket = decoder.submit(np.arange(12), seed=0, epoch=0)
    images = ticket._batch.images  # type: ignore[attr-defined]
    images.fill_(-1)
    assert begun.wait(20)
    threading.Timer(0.05, release.set).start()
    ticket.cancel()
    written = int((images != -1).any(dim=(1, 2, 3)).sum())
    assert written == 1  # the one that had begun
    decoder.release()
    assert int((images != -1).any(dim=(1, 2, 3)).sum()) == written
