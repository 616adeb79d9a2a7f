"""The core's own Huffman decoder gives what libjpeg gives for every file, sound or damaged."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import native_core
import warm
from fastload import _native

pytestmark = pytest.mark.native

OUT = 40  # side in pixels of what is compared with and without the decoder
LARGE = 1 << 19  # wider tables are built for files of this many bytes or more

Box = tuple[int, int, int, int]


@pytest.fixture(params=["", "scalar"], ids=["best", "scalar"])
def simd(request: pytest.FixtureRequest) -> Iterator[None]:
    """The code for processors with BMI2, if this is one, and the portable code."""
    assert native_core.core().set_simd(request.param)
    yield
    native_core.core().set_simd("")


def make(
    kind: str, width: int, height: int, *, seed: int = 0, quality: int = 75, optimize: bool = False
) -> bytes:
    """A baseline JPEG of exactly this size; "gray 2x2" has meaningless sampling factors."""
    image = native_core.photo(width, height, seed)
    if kind.startswith("gray"):
        data = native_core.encode(image.convert("L"), quality=quality, optimize=optimize)
        at = native_core.frame(data)
        factors = {"gray": 0x11, "gray 2x2": 0x22, "gray 1x4": 0x14}[kind]
        return data[: at + 11] + bytes([factors]) + data[at + 12 :]
    if kind == "4:4:0":
        swapped = native_core.photo(height, width, seed)
        data = native_core.encode(swapped, subsampling="4:2:2", quality=quality, optimize=optimize)
        return native_core.as_440(data)
    if kind == "4:1:1":
        # As many MCUs as 4:1:1 has, in 4:2:0.
        columns, lines = (width + 31) // 32, (height + 7) // 8
        data = native_core.encode(
            native_core.photo(columns * 16, lines * 16, seed),
            subsampling="4:2:0",
            quality=quality,
            optimize=optimize,
        )
        return native_core.with_size(native_core.as_411(data), width, height)
    return native_core.encode(image, subsampling=kind, quality=quality, optimize=optimize)


KINDS = ["4:4:4", "4:2:2", "4:2:0", "4:4:0", "4:1:1", "gray", "gray 2x2", "gray 1x4"]


@given(
    kind=st.sampled_from(KINDS),
    width=st.integers(1, 150),
    height=st.integers(1, 150),
    quality=st.integers(1, 100),
    optimize=st.booleans(),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_any_crop_of_any_baseline_jpeg_equals_pillow(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    width: int,
    height: int,
    quality: int,
    optimize: bool,
    seed: int,
    data: st.DataObject,
) -> None:
    encoded = make(kind, width, height, seed=seed, quality=quality, optimize=optimize)
    assert native_core.core()._own_entropy(encoded)
    expected = native_core.pixels(encoded)
    assert expected.shape == (height, width, 3)
    path = tmp_path_factory.mktemp("entropy") / "image.jpg"
    path.write_bytes(encoded)
    files = native_core.open_files([path], mapped=data.draw(st.booleans()))
    for _ in range(6):
        x, y = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
        w, h = data.draw(st.integers(1, width - x)), data.draw(st.integers(1, height - y))
        result = native_core.submit(files, [[x, y, w, h]], size=[[width, height]]).wait()
        assert result.status[0] == _native.OK
        np.testing.assert_array_equal(result.images[0], expected[y : y + h, x : x + w])


@pytest.mark.usefixtures("simd")
def test_every_pixel_by_itself_equals_pillow(tmp_path: Path) -> None:
    paths, boxes, expected = [], [], []
    for kind in KINDS:
        paths.append(tmp_path / f"{len(paths)}.jpg")
        paths[-1].write_bytes(make(kind, 35, 19, quality=95))
        image = native_core.pixels(paths[-1].read_bytes())
        boxes += [(x, y, 1, 1) for y in range(19) for x in range(35)]
        expected += [image[y, x] for y in range(19) for x in range(35)]
    file = np.repeat(np.arange(len(paths), dtype=np.int32), 35 * 19)
    result = native_core.submit(native_core.open_files(paths), boxes, file=file).wait()
    assert (result.status == _native.OK).all()
    np.testing.assert_array_equal(result.images[:, 0, 0], expected)


@pytest.mark.usefixtures("simd")
def test_coefficients_of_every_size_equal_pillow(tmp_path: Path) -> None:
    """Noise of full contrast at quality 100: long codes, full blocks, runs of zeros."""
    rng = np.random.default_rng(1)
    sparse = 255 * (rng.random((64, 80, 3)) < 0.02).astype(np.uint8)
    noise = rng.integers(0, 2, (64, 80, 3), dtype=np.uint8) * 255
    for pixels in (sparse, noise):
        for optimize in (False, True):
            image = native_core.Image.fromarray(pixels)
            encoded = native_core.encode(image, quality=100, subsampling=0, optimize=optimize)
            assert native_core.core()._own_entropy(encoded)
            (tmp_path / "image.jpg").write_bytes(encoded)
            files = native_core.open_files([tmp_path / "image.jpg"])
            result = native_core.submit(files, [[0, 0, 80, 64]]).wait()
            np.testing.assert_array_equal(result.images[0], native_core.pixels(encoded))


def test_data_after_a_small_image_is_not_kept_in_memory(tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    encoded = make("4:2:0", 32, 32)
    expected = native_core.pixels(encoded)
    long = encoded[:-2] + bytes(48 * 2**20) + encoded[-2:]
    (tmp_path / "image.jpg").write_bytes(encoded)
    (tmp_path / "long.jpg").write_bytes(long)
    files = native_core.open_files([tmp_path / "image.jpg", tmp_path / "long.jpg"], mapped=False)
    del long

    def decode(file: list[int]) -> None:
        boxes = [[0, 0, 32, 32]] * len(file)
        done = native_core.submit(files, boxes, file=np.array(file, np.int32), threads=0).wait()
        assert (done.status == _native.OK).all()
        np.testing.assert_array_equal(done.images[-1], expected)

    process = psutil.Process()
    decode([0] * 8)  # so that they all reuse the decoded header
    before = process.memory_info().rss
    decode([0, 1])
    assert process.memory_info().rss - before < 16 * 2**20


def test_what_is_not_one_plain_baseline_scan_is_left_to_libjpeg() -> None:
    image = native_core.photo(60, 50)
    own = native_core.core()._own_entropy
    assert own(native_core.encode(image))
    assert own(native_core.encode(image, keep_rgb=True))
    assert not own(native_core.encode(image, progressive=True))
    assert not own(native_core.encode(image, restart_marker_blocks=3))
    assert not own(native_core.encode(image.convert("CMYK")))
    # A code of no baseline file: the first AC symbol becomes an end-of-block run.
    encoded = bytearray(native_core.encode(image))
    table = encoded.index(b"\xff\xc4\x00\xb5\x10")
    encoded[table + 5 + 16] = 0x10
    assert not own(bytes(encoded))


@pytest.mark.parametrize("kind", KINDS)
def test_tables_for_a_small_file_are_built_when_a_second_one_needs_them(kind: str) -> None:
    encoded = make(kind, 40, 40, quality=60, optimize=True)
    own = native_core.core()._own_entropy
    assert not own(encoded, times=1) and own(encoded, times=2)


def decode(samples: list[bytes], boxes: list[Box], folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Status and pixels (zeros if there are none) of a box of each, cropped to OUT pixels."""
    blob = folder / "samples.bin"
    blob.write_bytes(b"".join(samples))
    lengths = np.array([len(sample) for sample in samples], np.int64)
    result = native_core.submit(
        native_core.open_files([blob], mapped=True),
        boxes,
        file=0,
        offset=lengths.cumsum() - lengths,
        nbytes=lengths,
        out_h=OUT,
        out_w=OUT,
    ).wait()
    pixels = result.images.copy()
    pixels[result.status != _native.OK] = 0
    return result.status, pixels


PROGRAM = """
import sys
from pathlib import Path
import numpy as np
sys.path[:0] = sys.argv[2:4]
import native_core, test_entropy
folder = Path(sys.argv[1])
held = np.load(folder / "given.npz")
ends = held["ends"]
blob = held["blob"].tobytes()
samples = [blob[a:b] for a, b in zip([0, *ends], ends)]
assert not native_core.core().dct_usable()
status, pixels = test_entropy.decode(samples, held["boxes"].tolist(), folder)
np.savez(folder / "made.npz", status=status, pixels=pixels)
"""


def assert_same_without_hook(samples: list[bytes], boxes: list[Box], folder: Path) -> np.ndarray:
    """Decode here, and in a process that keeps libjpeg's decoder; return the statuses."""
    status, pixels = decode(samples, boxes, folder)
    ends = np.cumsum([len(sample) for sample in samples])
    blob = np.frombuffer(b"".join(samples), np.uint8)
    np.savez(folder / "given.npz", blob=blob, ends=ends, boxes=np.array(boxes))
    here = Path(__file__).parent
    warm.run(
        ["-c", PROGRAM, folder, here, here.parent],
        env={**os.environ, "FASTLOAD_NO_DCT_HOOK": "1"},
        cwd=here.parents[1],
        check=True,
        finalize=False,
    )
    with np.load(folder / "made.npz") as made:
        np.testing.assert_array_equal(status, made["status"])
        np.testing.assert_array_equal(pixels, made["pixels"])
    return status


def scan(data: bytes) -> int:
    """The offset of the entropy-coded data."""
    at = data.index(b"\xff\xda")
    return at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")


def test_a_file_cut_anywhere_is_what_libjpeg_makes_of_it(tmp_path: Path) -> None:
    samples: list[bytes] = []
    boxes: list[Box] = []
    for kind in ("4:2:0", "gray"):
        whole = make(kind, 38, 30, quality=60)
        for end in range(scan(whole) - 3, len(whole) + 1):
            # Unchanged; with an end marker; with fill bytes; with only the marker's first byte.
            for tail in (b"", b"\xff\xd9", b"\xff\xff\xd9", b"\xff\xff\xff", b"\xff", b"\xff\xd0"):
                samples.append(whole[:end] + tail)
                boxes.append((0, 0, 38, 30) if end % 2 else (5, 3, 9, 11))
    status = assert_same_without_hook(samples, boxes, tmp_path)
    assert set(status.tolist()) == {_native.OK, _native.UNSUPPORTED}


@pytest.mark.usefixtures("simd")
def test_damaged_data_is_what_libjpeg_makes_of_it(
    tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    rng = np.random.default_rng(7)
    originals = [
        make(kind, 38, 30, quality=quality, optimize=bool(quality % 2))
        for kind in KINDS
        for quality in (5, 60, 98)
    ]
    patterns = [
        b"\xff\x00",
        b"\xff\xff\x00",
        b"\xff\xd0",
        b"\xff\xd9",
        b"\xff",
        b"\x00",
        b"\xff\x01",
    ]
    samples: list[bytes] = []
    boxes: list[Box] = []
    for i in range(count(1500, 30_000)):
        # The same file several times in a row: tables for small ones are built the second time.
        data = bytearray(originals[i // 20 % len(originals)])
        begin = scan(bytes(data)) if i % 8 else 2
        for _ in range(int(rng.integers(1, 3))):
            at = int(rng.integers(begin, len(data)))
            if rng.random() < 0.6:
                data[at] ^= 1 << int(rng.integers(0, 8))
            else:
                data[at : at + int(rng.integers(0, 3))] = patterns[int(rng.integers(len(patterns)))]
        samples.append(bytes(data))
        x, y = int(rng.integers(0, 38)), int(rng.integers(0, 30))
        boxes.append((x, y, int(rng.integers(1, 39 - x)), int(rng.integers(1, 31 - y))))
    status = assert_same_without_hook(samples, boxes, tmp_path)
    assert (status == _native.OK).sum() > 100 and (status == _native.UNSUPPORTED).sum() > 100


@pytest.fixture(scope="module")
def large() -> list[bytes]:
    """Files large enough for wider tables, with the standard and with optimised codes."""
    rng = np.random.default_rng(3)
    noise = native_core.Image.fromarray(rng.integers(0, 256, (600, 800, 3), dtype=np.uint8))
    made = [
        native_core.encode(noise, quality=quality, subsampling=kind)
        for kind, quality in (("4:4:4", 92), ("4:2:0", 97), ("4:2:2", 95))
    ]
    made += [
        make(kind, 1000, 900, seed=i, quality=97, optimize=kind == "4:2:0")
        for i, kind in enumerate(KINDS[:6])
    ]
    assert all(len(data) >= LARGE and native_core.core()._own_entropy(data) for data in made)
    return made


@pytest.mark.usefixtures("simd")
def test_large_files_equal_pillow_and_so_do_small_ones_after_them(
    large: list[bytes], tmp_path: Path
) -> None:
    """In one thread, so that later files may use the wider tables."""
    small = [make("4:2:0", 150, 130, seed=i, quality=60 + i) for i in range(3)]
    rng = np.random.default_rng(4)
    for i, data in enumerate([*large, *small, *large, *small]):
        expected = native_core.pixels(data)
        height, width = expected.shape[:2]
        (tmp_path / f"{i}.jpg").write_bytes(data)
        files = native_core.open_files([tmp_path / f"{i}.jpg"])
        for _ in range(3):
            w, h = int(rng.integers(1, width + 1)), int(rng.integers(1, height + 1))
            x, y = int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1))
            result = native_core.submit(
                files, [[x, y, w, h]], size=[[width, height]], threads=0
            ).wait()
            assert result.status[0] == _native.OK
            np.testing.assert_array_equal(result.images[0], expected[y : y + h, x : x + w])


@pytest.mark.usefixtures("simd")
def test_damaged_large_files_are_what_libjpeg_makes_of_them(
    large: list[bytes], tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    rng = np.random.default_rng(8)
    samples: list[bytes] = []
    boxes: list[Box] = []
    for i in range(count(120, 3000)):
        data = bytearray(large[i % len(large)])
        for _ in range(int(rng.integers(1, 3))):
            at = int(rng.integers(scan(bytes(data)), len(data)))
            if rng.random() < 0.7:
                data[at] ^= 1 << int(rng.integers(0, 8))
            else:
                data[at : at + int(rng.integers(0, 3))] = b"\xff"
        samples.append(bytes(data))
        x, y = int(rng.integers(0, 352)), int(rng.integers(0, 288))
        boxes.append((x, y, int(rng.integers(1, 353 - x)), int(rng.integers(1, 289 - y))))
    status = assert_same_without_hook(samples, boxes, tmp_path)
    assert (status == _native.OK).any() and (status == _native.UNSUPPORTED).any()


def test_dc_values_beyond_16_bits_are_what_libjpeg_makes_of_them(tmp_path: Path) -> None:
    """Blocks of one colour, each 2047 levels above the block before, 14 and 320 times."""
    checks = np.kron(np.indices((8, 40)).sum(0) % 2, np.ones((8, 8))) * 255
    image = native_core.Image.fromarray(checks.astype(np.uint8))
    data = native_core.encode(image, quality=100, optimize=True)
    # Only differences of 11 bits and ends of blocks occur; each has the code 0.
    samples = []
    for rising in (14, 320):
        differences = [2047] * rising + [-2047, 2047] * ((320 - rising) // 2)
        bits = "".join(f"0{d if d > 0 else d + 2047:011b}0" for d in differences)
        bits += "1" * (-len(bits) % 8)
        coded = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\x00")
        samples.append(data[: scan(data)] + coded + b"\xff\xd9")
    own = native_core.core()._own_entropy
    assert own(data) and own(samples[0]) and not own(samples[1])
    status = assert_same_without_hook(samples, [(0, 0, 320, 64)] * 2, tmp_path)
    assert (status == _native.OK).all()


def test_photos_are_the_same_with_and_without_the_decoder(test_data: Path, tmp_path: Path) -> None:
    paths = sorted(test_data.glob("*/*"))[::3]
    samples = [path.read_bytes() for path in paths]
    rng = np.random.default_rng(2)
    boxes: list[Box] = []
    for sample in samples:
        height, width = native_core.pixels(sample).shape[:2]
        w, h = int(rng.integers(1, width + 1)), int(rng.integers(1, height + 1))
        x, y = int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1))
        boxes.append((x, y, w, h))
    status = assert_same_without_hook(samples, boxes, tmp_path)
    assert (status == _native.OK).all()
