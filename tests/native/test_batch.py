"""Batches: geometry, uncompressed formats, per-sample statuses, and argument checks."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import psutil
import pytest
from PIL import Image

import native_core
from fastload import _native

pytestmark = pytest.mark.native


def placed(
    image: np.ndarray, window: tuple[int, int], out: tuple[int, int], fill: int
) -> np.ndarray:
    """The window (x, y) of size (w, h) of an image, with fill around it."""
    (x, y), (w, h) = window, out
    canvas = np.full((h, w, 3), fill, np.uint8)
    x0, y0 = max(x, 0), max(y, 0)
    x1, y1 = min(x + w, image.shape[1]), min(y + h, image.shape[0])
    if x1 > x0 and y1 > y0:
        canvas[y0 - y : y1 - y, x0 - x : x1 - x] = image[y0:y1, x0:x1]
    return canvas


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], np.ndarray, list[int]]:
    """Images of one size as JPEG, several kinds of BMP and raw; their pixels; their kinds."""
    folder = tmp_path_factory.mktemp("formats")
    paths, images, kinds = [], [], []
    for seed in range(4):
        image = native_core.photo(45, 37, seed)
        rgb = np.asarray(image)
        bgra = np.dstack([rgb[..., ::-1], np.full((37, 45), 9, np.uint8)])
        top_down = bytearray(native_core.encode(image, "BMP"))
        top_down[22:26] = (-37).to_bytes(4, "little", signed=True)
        encoded = [
            ("jpg", native_core.encode(image), 0),
            ("bmp", native_core.encode(image, "BMP"), 0),
            ("topdown.bmp", bytes(top_down), 0),
            ("32.bmp", bmp32(bgra), 0),
            ("raw", rgb.tobytes(), _native.RAW),
        ]
        for name, data, kind in encoded:
            paths.append(folder / f"{seed}.{name}")
            paths[-1].write_bytes(data)
            images.append(rgb if kind else native_core.pixels(data))
            kinds.append(kind)
    return paths, np.stack(images), kinds


def bmp32(bgra: np.ndarray) -> bytes:
    """An uncompressed BMP of 32 bits per pixel, bottom row first."""
    height, width = bgra.shape[:2]
    header = (
        b"BM" + (54 + bgra.nbytes).to_bytes(4, "little") + bytes(4) + (54).to_bytes(4, "little")
    )
    header += np.array([40, width, height], "<i4").tobytes() + np.array([1, 32], "<i2").tobytes()
    return header + bytes(24) + bgra[::-1].tobytes()


@pytest.mark.usefixtures("simd")
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("box", [(0, 0, 45, 37), (7, 5, 30, 20), (44, 36, 1, 1), (0, 30, 45, 7)])
def test_every_format_gives_its_own_pixels(
    formats: tuple[list[Path], np.ndarray, list[int]], box: tuple[int, ...], mapped: bool
) -> None:
    paths, images, kinds = formats
    files = native_core.open_files(paths, mapped=mapped)
    x, y, w, h = box
    result = native_core.submit(
        files, [box] * len(paths), kind=kinds, size=[45, 37], threads=2
    ).wait()
    assert (result.status == _native.OK).all()
    np.testing.assert_array_equal(result.images, images[:, y : y + h, x : x + w])


def test_window_fill_and_flip_are_as_written(
    formats: tuple[list[Path], np.ndarray, list[int]],
) -> None:
    paths, images, kinds = formats
    files = native_core.open_files(paths)
    rng = np.random.default_rng(0)
    n = len(paths)
    for out in [(45, 37), (53, 45), (8, 8), (90, 3)]:
        windows = rng.integers(-60, 60, (n, 2))
        flips = rng.integers(0, 2, n)
        result = native_core.submit(
            files,
            [(0, 0, 45, 37)] * n,
            kind=kinds,
            size=[45, 37],
            window=windows.tolist(),
            flip=flips.tolist(),
            fill=(128, 128, 128),
            out_w=out[0],
            out_h=out[1],
            threads=2,
        ).wait()
        assert (result.status == _native.OK).all()
        for got, image, window, flip in zip(result.images, images, windows, flips):
            expected = placed(image, (int(window[0]), int(window[1])), out, 128)
            np.testing.assert_array_equal(got, expected[:, ::-1] if flip else expected)


def test_resize_is_pillows(formats: tuple[list[Path], np.ndarray, list[int]]) -> None:
    paths, images, kinds = formats
    files = native_core.open_files(paths)
    n = len(paths)
    result = native_core.submit(
        files,
        [(3, 2, 40, 33)] * n,
        kind=kinds,
        resized=[24, 20],
        size=[45, 37],
        out_w=24,
        out_h=20,
    ).wait()
    for got, image in zip(result.images, images):
        cropped = Image.fromarray(image[2:35, 3:43])
        expected = cropped.resize((24, 20), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(got, np.asarray(expected))


@pytest.mark.parametrize("channels_last", [False, True])
def test_levels_go_through_the_table(
    formats: tuple[list[Path], np.ndarray, list[int]], channels_last: bool
) -> None:
    paths, images, kinds = formats
    files = native_core.open_files(paths)
    n = len(paths)
    table = np.random.default_rng(1).normal(size=(3, 256)).astype(np.float32)
    result = native_core.submit(
        files,
        [(0, 0, 45, 37)] * n,
        kind=kinds,
        size=[45, 37],
        dtype=1,
        lut=table.view(np.uint8).reshape(-1),
        channels_last=channels_last,
    ).wait()
    floats = result.memory.view(np.float32)
    expected = np.stack([table[c][images[..., c]] for c in range(3)], axis=-1)
    if channels_last:
        np.testing.assert_array_equal(floats.reshape(n, 37, 45, 3), expected)
    else:
        np.testing.assert_array_equal(floats.reshape(n, 3, 37, 45), expected.transpose(0, 3, 1, 2))


def test_any_number_of_threads_gives_the_same_bytes(photos: Path) -> None:
    paths = sorted(photos.glob("*/*"))
    files = native_core.open_files(paths)
    n = len(paths)
    rng = np.random.default_rng(2)
    boxes = np.column_stack([rng.integers(0, 100, (n, 2)), rng.integers(1, 250, (n, 2))])
    memories = []
    for threads in (0, 1, 2, 4):
        result = native_core.submit(
            files,
            boxes,
            resized=[64, 48],
            out_w=64,
            out_h=48,
            flip=[i % 2 for i in range(n)],
            threads=threads,
        ).wait()
        assert (result.status == _native.OK).all()
        memories.append(result.memory.tobytes())
    assert len(set(memories)) == 1


def test_each_sample_has_its_own_status(tmp_path: Path) -> None:
    image = native_core.photo(40, 30)
    good = native_core.encode(image)
    raw = np.asarray(image).tobytes()
    record = native_core.core().dct_encode(good)
    cases: dict[str, tuple[bytes | None, int, tuple[int, int], int]] = {
        "good": (good, 0, (40, 30), _native.OK),
        "unknown size": (good, 0, (0, 0), _native.OK),
        "tiff": (native_core.encode(image, "TIFF"), 0, (40, 30), _native.UNSUPPORTED),
        "absent": (None, 0, (40, 30), _native.IO),
        "another size": (good, 0, (41, 30), _native.SIZE),
        "too small": (native_core.encode(native_core.photo(20, 30)), 0, (0, 0), _native.SIZE),
        "raw": (raw, _native.RAW, (40, 30), _native.OK),
        "short raw": (raw[:-1], _native.RAW, (40, 30), _native.SIZE),
        "raw of no size": (raw, _native.RAW, (0, 0), _native.SIZE),
        "dct": (record, _native.DCT, (40, 30), _native.OK),
        "half dct": (record[: len(record) // 2], _native.DCT, (40, 30), _native.CORRUPT),
        "no dct": (good, _native.DCT, (40, 30), _native.CORRUPT),
        "short bmp": (native_core.encode(image, "BMP")[:-1], 0, (40, 30), _native.UNSUPPORTED),
        "palette bmp": (
            native_core.encode(image.quantize(), "BMP"),
            0,
            (0, 0),
            _native.UNSUPPORTED,
        ),
    }
    paths = []
    for name, (data, *_) in cases.items():
        paths.append(tmp_path / name)
        if data is not None:
            paths[-1].write_bytes(data)
    files = native_core.open_files(paths)
    result = native_core.submit(
        files,
        [(0, 0, 40, 30)] * len(cases),
        kind=[kind for _, kind, _, _ in cases.values()],
        size=[size for _, _, size, _ in cases.values()],
        threads=2,
    ).wait()
    got = dict(zip(cases, result.status.tolist()))
    assert got == {name: expected for name, (*_, expected) in cases.items()}
    expected = native_core.pixels(good)
    for name, image_got in zip(cases, result.images):
        if name in ("good", "unknown size", "dct"):
            np.testing.assert_array_equal(image_got, expected)


def test_a_checksum_is_verified_where_asked(tmp_path: Path) -> None:
    data = native_core.encode(native_core.photo(40, 30))
    (tmp_path / "image.jpg").write_bytes(data)
    files = native_core.open_files([tmp_path / "image.jpg"])
    right = google_crc32c.value(data)
    checksums = np.array([right, right ^ 1, right ^ 1], np.uint32)
    batch = {"checksum": checksums, "nbytes": len(data), "threads": 1}
    box = [(0, 0, 40, 30)] * 3
    checked = native_core.submit(files, box, **batch, check=np.array([1, 1, 0], np.uint8)).wait()
    assert checked.status.tolist() == [_native.OK, _native.CHECKSUM, _native.OK]
    assert checked.job.nanoseconds["check"] > 0
    everywhere = native_core.submit(files, box, **batch).wait()
    assert everywhere.status.tolist() == [_native.OK, _native.CHECKSUM, _native.CHECKSUM]


def test_stages_are_timed(photos: Path) -> None:
    paths = sorted(photos.glob("*/*"))
    files = native_core.open_files(paths)
    job = native_core.submit(files, [(0, 0, 100, 100)] * len(paths)).wait().job
    assert set(job.nanoseconds) == {"read", "check", "decode", "resize", "augment"}
    for stage, nanoseconds in job.nanoseconds.items():
        assert (nanoseconds > 0) == (stage in ("read", "decode", "resize")), stage


def long_job(photos: Path, *, samples: int, threads: int) -> native_core.Submitted:
    """A job that takes far longer than the rest of the test."""
    files = native_core.open_files(sorted(photos.glob("*/*"))[:1])
    boxes = np.tile(np.array([[0, 0, 300, 300]], np.int32), (samples, 1))
    return native_core.submit(files, boxes, resized=[8, 8], out_w=8, out_h=8, threads=threads)


@pytest.mark.parametrize("threads", [0, 2])
def test_other_python_threads_run_while_a_batch_is_waited_for(photos: Path, threads: int) -> None:
    # The other thread cancels the job, which needs wait() to release the GIL.
    submitted = long_job(photos, samples=20_000, threads=threads)
    canceller = threading.Timer(0.05, submitted.job.cancel)
    canceller.start()
    submitted.job.wait()
    canceller.join()
    assert submitted.job.done
    assert (submitted.status == _native.PENDING).any()


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_cancel_drops_what_was_not_started(photos: Path, threads: int) -> None:
    submitted = long_job(photos, samples=20_000, threads=threads)
    submitted.job.cancel()
    assert submitted.job.done
    before = submitted.memory.copy(), submitted.status.copy()
    assert set(before[1].tolist()) <= {_native.PENDING, _native.OK}
    assert (before[1] == _native.PENDING).sum() > 10_000
    time.sleep(0.02)
    np.testing.assert_array_equal(submitted.memory, before[0])
    np.testing.assert_array_equal(submitted.status, before[1])
    submitted.job.wait()
    submitted.job.cancel()


def test_a_dropped_job_is_cancelled_and_frees_its_buffers(photos: Path) -> None:
    class Tracked(np.ndarray[Any, Any]):
        pass

    freed = threading.Event()

    class Note:
        def __del__(self) -> None:
            freed.set()

    submitted = long_job(photos, samples=1, threads=1)
    submitted.wait()
    out = np.zeros(20_000 * 3 * 64, np.uint8).view(Tracked)
    out.note = Note()  # type: ignore[attr-defined]
    files = native_core.open_files(sorted(photos.glob("*/*"))[:1])
    boxes = np.tile(np.array([[0, 0, 300, 300]], np.int32), (20_000, 1))
    job = native_core.submit(files, boxes, resized=[8, 8], out_w=8, out_h=8, out=out).job
    del out
    gc.collect()
    assert not freed.is_set()
    del job
    gc.collect()
    assert freed.is_set()


def test_memory_stays_flat_over_many_jobs(photos: Path, count: Callable[[int, int], int]) -> None:
    paths = sorted(photos.glob("*/*"))
    loose, mapped = native_core.open_files(paths), native_core.open_files(paths, mapped=True)
    n = len(paths)
    rng = np.random.default_rng(4)
    out = np.zeros(n * 3 * 32 * 32, np.uint8)
    process = psutil.Process()

    def run(times: int) -> int:
        for i in range(times):
            boxes = np.column_stack([rng.integers(0, 100, (n, 2)), rng.integers(1, 250, (n, 2))])
            native_core.submit(
                mapped if i % 2 else loose,
                boxes,
                resized=[32, 32],
                out_w=32,
                out_h=32,
                out=out,
                threads=i % 3,
            ).wait()
        return int(process.memory_info().rss)

    run(60)
    before = run(20)
    grown = run(count(60, 3000)) - before
    assert grown < 4 * 2**20, f"{grown / 2**20:.1f} MB more"


def test_only_the_own_slice_is_written(formats: tuple[list[Path], np.ndarray, list[int]]) -> None:
    paths, _, kinds = formats
    files = native_core.open_files(paths)
    n, size = len(paths), 45 * 37 * 3
    around = np.full(n * size + 200, 55, np.uint8)
    native_core.submit(
        files, [(0, 0, 45, 37)] * n, kind=kinds, size=[45, 37], out=around[100:-100], threads=2
    ).wait()
    assert (around[:100] == 55).all()
    assert (around[-100:] == 55).all()


def test_a_memoryview_is_taken_for_output(
    formats: tuple[list[Path], np.ndarray, list[int]],
) -> None:
    paths, images, _ = formats
    memory = bytearray(45 * 37 * 3)
    files = native_core.open_files(paths[:1])
    native_core.submit(files, [(0, 0, 45, 37)], out=memoryview(memory)).wait()
    assert bytes(memory) == images[0].tobytes()


def test_the_callers_arrays_may_change_after_submit(photos: Path) -> None:
    paths = sorted(photos.glob("*/*"))
    files = native_core.open_files(paths)
    n = len(paths)
    fields = native_core.fields(files, [(0, 0, 64, 64)] * n)
    native_core.start(files, fields).wait()
    expected = fields["out"].copy()
    job = native_core.start(files, fields)
    fields["file"][:] = 2**31 - 1
    fields["box"][:] = 2**31 - 1
    job.wait()
    np.testing.assert_array_equal(fields["out"], expected)
