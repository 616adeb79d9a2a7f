"""DCT records without the core: the core's pixels, and an error from every bad record."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from torchvision import transforms as v1

from fastload import DecodeError, _native
from fastload._base.slabs import SlabRing
from fastload._engine import jpeg, python
from fastload._engine.image_engine import EngineOptions
from fastload._engine.registry import make_engine
from fastload._transforms.recognise import Plan, recognise
from fastload.storage import DCT, Record, open_store, open_writer

pytestmark = pytest.mark.native

SAMPLINGS = {
    "4:4:4": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
    "4:2:2": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
    "4:2:0": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    "4:4:0": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440,
    "4:1:1": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411,
}


@pytest.fixture(scope="module")
def core() -> ModuleType:
    module = _native.load()
    assert module is not None
    return module


def texture(width: int, height: int, seed: int = 0) -> Any:
    """Smooth in places and rough in others, (height, width, 3)."""
    rng = np.random.default_rng(seed)
    walk = rng.normal(0, 15, (height, width, 3)).cumsum(1).cumsum(0) / 4
    walk += rng.normal(0, 60, (height, width, 1)) * (rng.random((height, width, 1)) < 0.2)
    return np.clip(walk + 128, 0, 255).astype(np.uint8)


def encoded(levels: Any, quality: int = 90, sampling: str = "4:2:0") -> bytes:
    flags = [cv2.IMWRITE_JPEG_QUALITY, quality]
    if sampling == "gray":
        levels = np.ascontiguousarray(levels[..., 1])
    else:
        flags += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, SAMPLINGS[sampling]]
    return bytes(cv2.imencode(".jpg", levels, flags)[1])


def saved(levels: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "JPEG", **options)
    return file.getvalue()


def pixels(data: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize("sampling", [*SAMPLINGS, "gray"])
def test_the_pixels_are_those_of_the_jpeg_at_every_size_and_quality(
    core: ModuleType, count: Callable[[int, int], int], sampling: str
) -> None:
    rng = np.random.default_rng(3)
    qualities = [1, 7, 30, 50, 75, 95, 100] * count(1, 20)
    for seed, quality in enumerate(qualities):
        width, height = rng.integers(1, 90, 2).tolist()
        source = encoded(texture(width, height, seed), quality, sampling)
        record = core.dct_encode(source, column_block=int(2 ** rng.integers(0, 8)))
        rebuilt = jpeg.to_jpeg(record)
        assert np.array_equal(pixels(rebuilt), pixels(source)), (width, height, quality)
        assert np.array_equal(pixels(rebuilt), pixels(core.dct_to_jpeg(record)))


def test_tables_colour_spaces_and_metadata_come_through(core: ModuleType) -> None:
    levels = texture(50, 41)
    exif = Image.Exif()
    exif[0x010E] = "a description"
    for source in (
        saved(levels, quality=92, keep_rgb=True),
        saved(levels, qtables=[[1 + k for k in range(64)], [255 - 3 * k for k in range(64)]]),
        saved(levels, progressive=True, restart_marker_blocks=3),
        saved(levels, exif=exif, icc_profile=b"profile" * 20000, comment=b"words", dpi=(300, 300)),
    ):
        record = core.dct_encode(source)
        rebuilt = jpeg.to_jpeg(record)
        assert np.array_equal(pixels(rebuilt), pixels(source))
        assert core.dct_encode(rebuilt) == record
        with Image.open(io.BytesIO(rebuilt)) as after, Image.open(io.BytesIO(source)) as before:
            assert after.getexif() == before.getexif()
            assert after.info.get("icc_profile") == before.info.get("icc_profile")


def test_the_first_frame_of_several_comes_through(core: ModuleType) -> None:
    file = io.BytesIO()
    frames = [Image.fromarray(texture(40, 30, seed)) for seed in (1, 2)]
    frames[0].save(file, "MPO", save_all=True, append_images=frames[1:])
    record = core.dct_encode(file.getvalue())
    for rebuilt in (jpeg.to_jpeg(record), core.dct_to_jpeg(record)):
        assert np.array_equal(pixels(rebuilt), pixels(file.getvalue()))


@pytest.mark.filterwarnings("error")
def test_damaged_records_decode_as_the_core_s_do_or_are_errors(
    core: ModuleType, count: Callable[[int, int], int]
) -> None:
    rng = np.random.default_rng(6)
    seeds = [
        core.dct_encode(encoded(texture(61, 45, i), quality, sampling), column_block=2)
        for i, (quality, sampling) in enumerate(
            [(30, "4:2:0"), (95, "4:4:4"), (100, "gray"), (80, "4:1:1")]
        )
    ]
    agreed = refused = 0
    for i in range(count(400, 10000)):
        record = bytearray(seeds[i % len(seeds)])
        for _ in range(int(rng.integers(1, 4))):
            end = 48 if rng.random() < 0.5 else len(record)  # the head misleads most
            record[int(rng.integers(0, end))] = int(rng.integers(0, 256))
        try:
            rebuilt = jpeg.to_jpeg(bytes(record))
        except ValueError:
            refused += 1
            continue
        agreed += 1
        assert np.array_equal(pixels(rebuilt), pixels(core.dct_to_jpeg(bytes(record))))
    assert agreed > 20 and refused > 20


def test_every_truncation_is_an_error(core: ModuleType) -> None:
    record = core.dct_encode(encoded(texture(40, 30), 85))
    for length in range(len(record)):
        with pytest.raises(ValueError, match=r"."):
            jpeg.to_jpeg(record[:length])


@pytest.fixture
def without_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTLOAD_NO_NATIVE", "1")


def store_of(path: Path, records: list[bytes], sizes: list[tuple[int, int]]) -> Any:
    with open_writer(path, classes=["a"], metadata={}) as writer:
        writer.append(
            [
                Record(data=data, label=0, key=str(i), width=w, height=h, kind=DCT)
                for i, (data, (w, h)) in enumerate(zip(records, sizes, strict=True))
            ]
        )
    return open_store(path)


@pytest.mark.usefixtures("without_core")
def test_single_records_are_read_and_damaged_ones_named(core: ModuleType, tmp_path: Path) -> None:
    source = encoded(texture(40, 30))
    record = core.dct_encode(source)
    damaged = record[:20] + b"\xff" * 9 + record[29:]
    store = store_of(tmp_path / "x.lmdb", [record, damaged], [(40, 30)] * 2)
    assert np.array_equal(np.asarray(python.decode_record(store, 0)), pixels(source))
    with pytest.raises(DecodeError, match="DCT record is damaged") as info:
        python.decode_record(store, 1)
    assert info.value.record == 1 and info.value.path == str(tmp_path / "x.lmdb")


@pytest.mark.usefixtures("without_core")
@pytest.mark.parametrize("threads", [0, 2])
def test_a_batch_with_a_damaged_record_is_an_error(
    core: ModuleType, tmp_path: Path, threads: int
) -> None:
    record = core.dct_encode(encoded(texture(40, 30)))
    store = store_of(tmp_path / "x.lmdb", [record, record[:-9]], [(40, 30)] * 2)
    plan = recognise(v1.Compose([v1.RandomCrop(20), v1.ToTensor()]))
    assert isinstance(plan, Plan)
    decoder = make_engine("python", store, plan, EngineOptions(threads=threads, ring=SlabRing(2)))
    decoder.acquire(decoder)
    with pytest.raises(DecodeError, match="DCT record is damaged") as info:
        decoder.submit(np.arange(2), seed=0, epoch=0).result()
    decoder.release(decoder)
    assert info.value.record == 1
