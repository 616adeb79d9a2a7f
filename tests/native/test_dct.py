"""DCT records decode to the pixels of their JPEG, bit for bit; bad bytes give a status."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import dct_reference
import native_core
from fastload import _native
from fastload._native import CORRUPT, DCT, ENCODED, OK

pytestmark = pytest.mark.native

Pixels = npt.NDArray[np.uint8]

# cv2 writes samplings that Pillow does not.
SAMPLINGS = {
    "4:4:4": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
    "4:2:2": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
    "4:2:0": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    "4:4:0": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440,
    "4:1:1": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411,
}
SIMD = ("avx512", "avx2", "scalar")


@pytest.fixture(scope="module")
def core() -> ModuleType:
    module = _native.load()
    assert module is not None
    return module


@pytest.fixture(params=SIMD)
def simd(core: ModuleType, request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set of this machine in turn."""
    try:
        if not core.set_simd(request.param):
            pytest.skip(f"this machine has no {request.param}")
        yield request.param
    finally:
        core.set_simd("")


def texture(width: int, height: int, *, seed: int = 0, roughness: float = 12.0) -> Pixels:
    """RGB, smooth in places and rough in others, (height, width, 3)."""
    rng = np.random.default_rng(seed)
    walk = rng.normal(0, roughness, (height, width, 3)).cumsum(1).cumsum(0) / 4
    walk += rng.normal(0, 30, (height, width, 1)) * (rng.random((height, width, 1)) < 0.2)
    return np.clip(walk + 128, 0, 255).astype(np.uint8)


def jpeg(pixels: Pixels, quality: int = 90, sampling: str = "4:2:0", **options: Any) -> bytes:
    """A JPEG file; sampling "gray" drops the colour. ``options`` go to cv2, by name."""
    flags = [cv2.IMWRITE_JPEG_QUALITY, quality]
    if sampling == "gray":
        pixels = np.ascontiguousarray(pixels[..., 1])
    else:
        flags += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, SAMPLINGS[sampling]]
    for name, value in options.items():
        flags += [getattr(cv2, f"IMWRITE_JPEG_{name.upper()}"), value]
    written, data = cv2.imencode(".jpg", pixels, flags)
    assert written
    return data.tobytes()


def pillow(data: bytes) -> Pixels:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


class Decoder:
    """Decodes whole images or boxes through core.submit, from a file on disk."""

    def __init__(self, core: ModuleType, folder: Path) -> None:
        self.core, self.path = core, folder / "samples.bin"

    def batch(
        self,
        samples: list[bytes],
        kind: int,
        boxes: list[tuple[int, int, int, int]],
        out: tuple[int, int] | None = None,
        *,
        mapped: bool = True,
        threads: int = 0,
    ) -> tuple[npt.NDArray[np.int32], Pixels]:
        """Statuses (n,) and pixels (n, h, w, 3); ``out`` is (w, h), by default the box's."""
        self.path.write_bytes(b"".join(samples))
        n = len(samples)
        lengths = np.array([len(sample) for sample in samples], np.int64)
        offsets = np.concatenate([[0], lengths.cumsum()[:-1]]).astype(np.int64)
        box = np.array(boxes, np.int32)
        w, h = out or (boxes[0][2], boxes[0][3])
        name = os.fsencode(self.path)
        files = self.core.Files(name, np.array([len(name)], np.int64), np.array([mapped], np.uint8))
        done = native_core.submit(
            files,
            box,
            file=np.zeros(n, np.int32),
            offset=offsets,
            nbytes=lengths,
            kind=kind,
            resized=[w, h],
            flip=np.arange(n).astype(np.uint8) % 2 if out else 0,
            out_h=h,
            out_w=w,
            order=1,
            threads=threads,
        ).wait()
        files.close()
        return done.status, done.images

    def whole(self, record: bytes, width: int, height: int) -> Pixels:
        status, pixels = self.batch([record], DCT, [(0, 0, width, height)])
        assert status[0] == OK
        return pixels[0]


@pytest.fixture
def decoder(core: ModuleType, tmp_path: Path) -> Decoder:
    return Decoder(core, tmp_path)


@pytest.fixture(scope="module")
def shared_decoder(core: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """For hypothesis, whose examples share their fixtures."""
    return Decoder(core, tmp_path_factory.mktemp("dct"))


def test_the_hook_works_with_this_libjpeg(core: ModuleType) -> None:
    assert core.dct_usable()


@given(
    width=st.integers(1, 150),
    height=st.integers(1, 70),
    quality=st.integers(1, 100),
    sampling=st.sampled_from([*SAMPLINGS, "gray"]),
    roughness=st.sampled_from([0.3, 3.0, 12.0, 60.0]),
    column_block=st.sampled_from([1, 2, 4, 128]),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_a_record_has_the_pixels_of_its_jpeg(
    core: ModuleType,
    shared_decoder: Decoder,
    width: int,
    height: int,
    quality: int,
    sampling: str,
    roughness: float,
    column_block: int,
    seed: int,
    data: st.DataObject,
) -> None:
    source = jpeg(texture(width, height, seed=seed, roughness=roughness), quality, sampling)
    record = core.dct_encode(source, column_block=column_block)
    expected = pillow(source)
    np.testing.assert_array_equal(shared_decoder.whole(record, width, height), expected)

    x, y = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    w, h = data.draw(st.integers(1, width - x)), data.draw(st.integers(1, height - y))
    status, crop = shared_decoder.batch([record], DCT, [(x, y, w, h)])
    assert status[0] == OK
    np.testing.assert_array_equal(crop[0], expected[y : y + h, x : x + w])

    restored = core.dct_to_jpeg(record)
    np.testing.assert_array_equal(pillow(restored), expected)
    assert core.dct_encode(restored, column_block=column_block) == record


@pytest.mark.parametrize("sampling", [*SAMPLINGS, "gray"])
def test_every_quality_and_instruction_set_gives_the_same_pixels(
    core: ModuleType, decoder: Decoder, simd: str, count: Callable[[int, int], int], sampling: str
) -> None:
    pixels = texture(93, 61, seed=5, roughness=25)
    for quality in range(1, 101, count(9, 1)):
        source = jpeg(pixels, quality, sampling)
        got = decoder.whole(core.dct_encode(source), 93, 61)
        np.testing.assert_array_equal(got, pillow(source), f"{simd} quality {quality}")


@pytest.mark.parametrize(
    "options",
    [{"progressive": 1}, {"rst_interval": 3}, {"optimize": 1}, {"chroma_quality": 31}],
    ids=lambda options: next(iter(options)),
)
def test_the_coding_of_the_source_does_not_matter(
    core: ModuleType, decoder: Decoder, options: dict[str, int]
) -> None:
    source = jpeg(texture(130, 77, seed=2), 85, "4:2:0", **options)
    record = core.dct_encode(source)
    np.testing.assert_array_equal(decoder.whole(record, 130, 77), pillow(source))
    assert core.dct_encode(core.dct_to_jpeg(record)) == record


def test_rgb_jpegs_stay_rgb(core: ModuleType, decoder: Decoder) -> None:
    held = io.BytesIO()
    Image.fromarray(texture(50, 40)).save(held, "JPEG", quality=92, keep_rgb=True)
    record = core.dct_encode(held.getvalue())
    np.testing.assert_array_equal(decoder.whole(record, 50, 40), pillow(held.getvalue()))
    np.testing.assert_array_equal(pillow(core.dct_to_jpeg(record)), pillow(held.getvalue()))


def test_custom_quantisation_tables_are_kept(core: ModuleType, decoder: Decoder) -> None:
    held = io.BytesIO()
    tables = [[1 + k for k in range(64)], [255 - 3 * k for k in range(64)]]
    Image.fromarray(texture(50, 40)).save(held, "JPEG", qtables=tables)
    record = core.dct_encode(held.getvalue())
    np.testing.assert_array_equal(decoder.whole(record, 50, 40), pillow(held.getvalue()))
    with Image.open(io.BytesIO(core.dct_to_jpeg(record))) as restored:
        assert [restored.quantization[i] for i in (0, 1)] == tables


@pytest.mark.parametrize("quality", [3, 50, 90, 100])
@pytest.mark.parametrize("column_block", [1, 4, 16])
@pytest.mark.parametrize("sampling", ["4:2:0", "gray"])
def test_a_reader_written_from_the_specification_agrees(
    core: ModuleType, quality: int, column_block: int, sampling: str
) -> None:
    source = jpeg(texture(150, 45, seed=9, roughness=30), quality, sampling)
    record = core.dct_encode(source, column_block=column_block)
    read = dct_reference.read(record)
    assert (read.width, read.height) == (150, 45)
    with Image.open(io.BytesIO(source)) as image:
        image.draft("L", None)  # libjpeg's own luminance, without colour conversion
        luminance = np.asarray(image, np.float64)
    # libjpeg's inverse DCT is accurate to one level.
    assert np.abs(dct_reference.plane(read, 0)[:45, :150] - luminance).max() <= 1.5


def test_metadata_is_restored(core: ModuleType, decoder: Decoder) -> None:
    held = io.BytesIO()
    exif = Image.Exif()
    exif[0x010E] = "a description"
    Image.fromarray(texture(40, 30)).save(
        held, "JPEG", exif=exif, icc_profile=b"profile" * 20000, comment=b"words", dpi=(300, 300)
    )
    record = core.dct_encode(held.getvalue())
    with (
        Image.open(io.BytesIO(held.getvalue())) as before,
        Image.open(io.BytesIO(core.dct_to_jpeg(record))) as after,
    ):
        assert {**after.info} == {**before.info}
        assert after.getexif()[0x010E] == "a description"
    metadata = dct_reference.read(record).metadata
    assert metadata == held.getvalue()[2 : 2 + len(metadata)]
    bare = core.dct_encode(held.getvalue(), keep_metadata=False)
    assert len(record) - len(bare) > 140000
    for kept in (record, bare):
        np.testing.assert_array_equal(decoder.whole(kept, 40, 30), pillow(held.getvalue()))


def test_a_small_image_takes_half_its_jpeg(core: ModuleType) -> None:
    source = jpeg(texture(32, 32, roughness=6), 75)
    assert len(core.dct_encode(source)) < 0.6 * len(source)


def test_a_batch_of_records_is_the_batch_of_their_jpegs(
    core: ModuleType, decoder: Decoder, photos: Path, count: Callable[[int, int], int]
) -> None:
    sources = [path.read_bytes() for path in sorted(photos.rglob("*.jpg"))]
    _assert_same_batches(core, decoder, sources[: count(12, 24)])


def test_a_batch_of_real_photos_is_the_batch_of_their_jpegs(
    core: ModuleType, decoder: Decoder, test_data: Path, count: Callable[[int, int], int]
) -> None:
    paths = sorted(
        path for path in test_data.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg")
    )
    step = max(1, len(paths) // count(30, len(paths)))
    _assert_same_batches(core, decoder, [path.read_bytes() for path in paths[::step]])


def _assert_same_batches(core: ModuleType, decoder: Decoder, sources: list[bytes]) -> None:
    assert sources
    rng = np.random.default_rng(1)
    boxes = []
    for source in sources:
        with Image.open(io.BytesIO(source)) as image:
            w, h = (int(side * rng.uniform(0.3, 1)) for side in image.size)
            x, y = (
                int(rng.integers(0, side - cut + 1))
                for side, cut in zip(image.size, (w, h), strict=True)
            )
        boxes.append((x, y, w, h))
    records = [core.dct_encode(source) for source in sources]
    expected_status, expected = decoder.batch(sources, ENCODED, boxes, (96, 64))
    assert (expected_status == OK).all()
    for mapped in (True, False):
        for threads in (0, 2):
            status, got = decoder.batch(
                records, DCT, boxes, (96, 64), mapped=mapped, threads=threads
            )
            assert (status == OK).all()
            np.testing.assert_array_equal(got, expected)


def test_without_the_hook_the_pixels_are_the_same(core: ModuleType, tmp_path: Path) -> None:
    source = jpeg(texture(90, 70, seed=4), 88)
    (tmp_path / "record").write_bytes(core.dct_encode(source))
    program = (
        "import sys, hashlib; from pathlib import Path\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"sys.path.insert(0, {str(Path(__file__).parent.parent)!r})\n"
        "from test_dct import Decoder; from fastload import _native\n"
        "core = _native.load(); folder = Path(sys.argv[1])\n"
        "pixels = Decoder(core, folder).whole((folder / 'record').read_bytes(), 90, 70)\n"
        "print(core.dct_usable(), hashlib.sha256(pixels.tobytes()).hexdigest())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "FASTLOAD_NO_DCT_HOOK": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == ["False", hashlib.sha256(pillow(source).tobytes()).hexdigest()]


def _saved(mode: str, **options: Any) -> bytes:
    held = io.BytesIO()
    Image.fromarray(texture(64, 48)).convert(mode).save(held, **options)
    return held.getvalue()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (b"", "empty"),
        (_saved("RGB", format="PNG"), "Not a JPEG"),
        (_saved("CMYK", format="JPEG"), "CMYK"),
        (_saved("RGB", format="JPEG")[:-200], "libjpeg warned"),
        (_saved("RGB", format="JPEG")[:-200] + b"\xff\xd9", "libjpeg warned"),
    ],
    ids=["nothing", "png", "cmyk", "truncated", "short"],
)
def test_jpegs_that_a_record_cannot_hold_are_refused_with_a_reason(
    core: ModuleType, source: bytes, reason: str
) -> None:
    with pytest.raises(ValueError, match=f"(?i){reason}"):
        core.dct_encode(source)


def test_a_progressive_jpeg_without_its_last_scans_is_refused(core: ModuleType) -> None:
    source = _saved("RGB", format="JPEG", progressive=True)
    last_scan = source.rindex(b"\xff\xda")
    with pytest.raises(ValueError, match="incomplete"):
        core.dct_encode(source[:last_scan] + b"\xff\xd9")


@pytest.mark.parametrize("column_block", [0, 3, 256, -4])
def test_a_column_block_that_is_no_power_of_two_is_refused(
    core: ModuleType, column_block: int
) -> None:
    with pytest.raises(ValueError, match="power of two"):
        core.dct_encode(jpeg(texture(16, 16)), column_block=column_block)


def test_every_truncation_is_corrupt(core: ModuleType, decoder: Decoder) -> None:
    record = core.dct_encode(jpeg(texture(60, 40), 85))
    cuts = [record[:length] for length in range(len(record))]
    cuts = cuts[:200] + cuts[200::17] + cuts[-100:]
    status, _ = decoder.batch(cuts[1:], DCT, [(0, 0, 60, 40)] * (len(cuts) - 1))
    assert (status == CORRUPT).all()
    for cut in cuts[::20]:
        with pytest.raises(ValueError, match="corrupt"):
            core.dct_to_jpeg(cut)


def test_damaged_records_give_a_status_and_nothing_else(
    core: ModuleType, decoder: Decoder, simd: str, count: Callable[[int, int], int]
) -> None:
    rng = np.random.default_rng(6)
    seeds = [
        core.dct_encode(jpeg(texture(61, 45, seed=i), quality, sampling), column_block=2)
        for i, (quality, sampling) in enumerate(
            [(30, "4:2:0"), (95, "4:4:4"), (100, "gray"), (80, "4:1:1")]
        )
    ]
    damaged = []
    for i in range(count(1500, 20000)):
        record = bytearray(seeds[i % len(seeds)])
        for _ in range(int(rng.integers(1, 4))):
            # Half of the damage goes to the header and the tables, where it misleads most.
            end = 48 if rng.random() < 0.5 else len(record)
            record[int(rng.integers(0, end))] = int(rng.integers(0, 256))
        damaged.append(bytes(record))
    status, _ = decoder.batch(damaged, DCT, [(0, 0, 40, 40)] * len(damaged), threads=2)
    assert set(status.tolist()) <= {OK, CORRUPT, _native.SIZE}
    assert (status == CORRUPT).any()
    assert (status == OK).any()
    for record in damaged[:: count(20, 2)]:
        try:
            restored = core.dct_to_jpeg(record)
        except ValueError:
            continue
        assert restored.startswith(b"\xff\xd8")
        assert restored.endswith(b"\xff\xd9")


@pytest.mark.parametrize("sampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("size", [(33, 17), (64, 64), (5, 3)])
def test_small_images_of_one_header_do_not_depend_on_those_before(
    core: ModuleType, decoder: Decoder, sampling: str, size: tuple[int, int]
) -> None:
    width, height = size
    sources = [jpeg(texture(width, height, seed=seed), sampling=sampling) for seed in range(12)]
    box = (width // 3, height // 3, width // 2, height // 2)
    expected = [
        pillow(source)[box[1] : box[1] + box[3], box[0] : box[0] + box[2]] for source in sources
    ]
    for kind, samples in (
        (DCT, [core.dct_encode(source) for source in sources]),
        (ENCODED, sources),
    ):
        # Truncate every third one.
        cut = [s[: -len(s) // 8 or -1] if i % 3 == 2 else s for i, s in enumerate(samples)]
        alone = [decoder.batch([sample], kind, [box]) for sample in cut]
        status, pixels = decoder.batch(cut, kind, [box] * len(cut))
        for i, ((one_status, one_pixels), sample) in enumerate(zip(alone, cut, strict=True)):
            assert status[i] == one_status[0]
            if status[i] == OK:
                np.testing.assert_array_equal(pixels[i], one_pixels[0])
            if sample is samples[i]:
                assert status[i] == OK
                np.testing.assert_array_equal(pixels[i], expected[i])


def test_the_size_is_read_from_the_header(core: ModuleType, tmp_path: Path) -> None:
    record = core.dct_encode(jpeg(texture(61, 45)))
    path = tmp_path / "record"
    path.write_bytes(record)
    name = os.fsencode(path)
    size, status = np.zeros((1, 2), np.int32), np.zeros(1, np.int32)
    files = core.Files(name, np.array([len(name)], np.int64), np.zeros(1, np.uint8))
    core.probe(
        files,
        np.zeros(1, np.int32),
        np.zeros(1, np.int64),
        np.array([-1], np.int64),
        np.array([DCT], np.uint8),
        size,
        status,
        0,
    )
    assert status[0] == OK
    assert size.tolist() == [[61, 45]]
