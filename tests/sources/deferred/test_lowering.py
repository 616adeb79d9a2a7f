"""What the core makes of recordings is what the libraries' own functions make of them."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

import releases
from combinations import combinations
from fastload._base.slabs import SlabRing
from fastload._sources.deferred import lowering
from fastload._sources.deferred.batch import BatchDecoder
from fastload._sources.deferred.recording import Opened, Operation, Recording
from fastload._sources.deferred.replay import replay
from fastload._transforms.pixels import operations as pixels
from native_core import core

pytestmark = pytest.mark.native

NORMALIZE: Operation = ("normalize", (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
TAILS: list[list[Operation]] = [
    [("to_tensor",), NORMALIZE],
    [("to_image",)],
    [("to_image",), ("to_dtype", "float16", True)],
    [("to_tensor",), ("mul", 255.0), ("sub", 3.5)],
]


KERNELS = ["BLUR", "CONTOUR", "DETAIL", "EDGE_ENHANCE", "EDGE_ENHANCE_MORE", "EMBOSS",
           "FIND_EDGES", "SHARPEN", "SMOOTH", "SMOOTH_MORE"]  # fmt: skip


def photo(seed: int, mode: str) -> Opened:
    generator = np.random.default_rng(seed)
    size = int(generator.integers(40, 70)), int(generator.integers(40, 70))
    noise = Image.fromarray(generator.integers(0, 256, (5, 5, 3), np.uint8))
    stream = io.BytesIO()
    noise.resize(size, Image.Resampling.BICUBIC).convert(mode).save(stream, "JPEG")
    return Opened(None, stream.getvalue(), None, size, mode, "JPEG")


class Program:
    """Random operations on one image."""

    def __init__(self, opened: Opened, rng: random.Random) -> None:
        self.rng = rng
        self.opened = opened
        self.size, self.mode = opened.size, opened.mode
        self.operations: list[Operation] = []

    def add(self, count: int) -> None:
        for _ in range(count):
            self._add()

    def add_of(self, name: str) -> None:
        """An operation of this name, with other numbers."""
        while True:
            before = len(self.operations), self.size, self.mode
            self._add()
            if self.operations[-1][0] == name:
                return
            del self.operations[before[0] :]
            _, self.size, self.mode = before

    def _add(self) -> None:
        rng, (w, h) = self.rng, self.size
        kind = rng.choice(
            ["crop", "crop beyond", "resize", "flip", "expand", "rot90", "affine", "perspective",
             "pixels", "convert", "blur", "kernel", "point", "pad"]
        )  # fmt: skip
        operation: Any
        if kind == "crop":
            cw, ch = rng.choice([(w, h), (rng.randint(8, w), rng.randint(8, h))])
            operation = "crop", rng.randint(0, w - cw), rng.randint(0, h - ch), cw, ch
            self.size = cw, ch
        elif kind == "crop beyond":
            left, top = rng.randint(-5, 5), rng.randint(-5, 5)
            self.size = rng.randint(min(12, w), w + 3), rng.randint(min(12, h), h + 3)
            operation = "crop", left, top, *self.size
        elif kind == "resize":
            self.size = rng.randint(16, 60), rng.randint(16, 60)
            operation = "resize", *self.size, rng.randrange(6)
        elif kind == "expand":
            sides = [rng.randint(0, 5) for _ in range(4)]
            self.size = w + sides[0] + sides[2], h + sides[1] + sides[3]
            fill = rng.choice([0, 77, (9, 8, 7)]) if self.mode == "RGB" else rng.choice([0, 50])
            operation = "expand", *sides, fill
        elif kind == "pad":
            sides = [rng.randint(0, 7) for _ in range(4)]
            self.size = w + sides[0] + sides[2], h + sides[1] + sides[3]
            operation = "pad", *sides, rng.choice(["edge", "reflect", "symmetric"])
        elif kind == "rot90":
            turns = rng.randint(1, 3)
            self.size = (w, h) if turns == 2 else (h, w)
            operation = "rot90", turns
        elif kind == "affine":
            if rng.random() < 0.3:
                self.size = rng.randint(16, 50), rng.randint(16, 50)
            matrix = tuple(rng.uniform(-0.3, 0.3) + (k in (0, 4)) for k in range(6))
            fill = (3, 200, 100) if self.mode == "RGB" else 90
            operation = "affine", *self.size, matrix, rng.choice([0, 2, 3]), fill
        elif kind == "perspective":
            if rng.random() < 0.3:
                self.size = rng.randint(16, 50), rng.randint(16, 50)
            numbers = tuple(rng.uniform(-0.3, 0.3) + (k in (0, 4)) for k in range(6))
            numbers += (rng.uniform(-0.01, 0.02), rng.uniform(-0.01, 0.02))
            fill = rng.choice([None, 7])
            operation = "perspective", *self.size, numbers, rng.choice([0, 2, 3]), fill
        elif kind == "blur":
            name = rng.choice(["gaussian_blur", "box_blur"])
            radii = [rng.choice([0, 0.0, 0.3, 1, 2.5, rng.uniform(0.1, 80)]) for _ in range(2)]
            if not releases.HAS_TWO_RADII:
                radii[1] = radii[0]
            operation = name, *radii
        elif kind == "kernel":
            side = rng.choice([3, 5])
            weights = tuple(rng.uniform(-1, 2) for _ in range(side * side))
            operation = rng.choice(
                [
                    ("filter", rng.choice(KERNELS)),
                    ("kernel", side, rng.uniform(5, 20), rng.uniform(-20, 20), weights),
                ]
            )
        elif kind == "point":
            bands = 3 if self.mode == "RGB" and rng.random() < 0.5 else 1
            operation = "point", tuple(rng.randrange(256) for _ in range(256 * bands))
        elif kind == "convert":
            self.mode = rng.choice(["RGB", "L"])
            operation = "convert", self.mode
        elif kind == "pixels":
            operation = rng.choice(
                [
                    ("brightness", rng.uniform(0.2, 2)), ("contrast", rng.uniform(0.2, 2)),
                    ("saturation", rng.uniform(0, 2)), ("sharpness", rng.uniform(0, 3)),
                    ("hue", rng.uniform(-0.5, 0.5)), ("solarize", 100),
                    ("posterize", 3), ("equalize",), ("autocontrast",), ("copy",),
                ]
            )  # fmt: skip
        else:
            operation = "flip", rng.random() < 0.5
        self.operations.append(operation)

    def recording(self, tail: list[Operation]) -> Recording:
        self.operations.append(("resize", 24, 20, 2))
        if self.rng.random() < 0.5:
            self.operations.append(("flip", False))
        tail = [one for one in tail if one is not NORMALIZE or self.mode == "RGB"]
        return Recording(self.opened, (*self.operations, *tail), (24, 20), self.mode)


@pytest.mark.parametrize("tail", range(len(TAILS)))
def test_the_core_makes_what_the_libraries_make(tail: int, count: Any) -> None:
    rng = random.Random(tail)
    decoder = BatchDecoder(2, SlabRing(2))
    made = 0
    for round_ in range(count(5, 300)):
        recordings = []
        for _ in range(6):
            program = Program(photo(rng.randrange(1000), rng.choice(["RGB", "RGB", "L"])), rng)
            program.add(rng.randint(0, 5))
            recordings.append(program.recording(list(TAILS[tail])))
        for mode in ("RGB", "L"):
            some = [one for one in recordings if one.mode == mode]
            if not some:
                continue
            expected = torch.stack([replay(one) for one in some])  # type: ignore[arg-type]
            filling = decoder.begin(tuple(expected.shape), tuple(expected.stride()), expected.dtype)
            filling.add(0, some)
            got = filling.result()
            for one, mine, theirs in zip(some, got, expected, strict=True):
                assert torch.equal(mine, theirs), (round_, one.operations)
            made += len(some)
    assert decoder.counts.native == made
    assert decoder.counts.replayed == 0


def test_recordings_of_one_kind_are_made_together(count: Any) -> None:
    """The same operations with other numbers, on images of one size or of many."""
    rng = random.Random(5)
    decoder = BatchDecoder(0, SlabRing(2))
    made = 0
    for round_ in range(count(25, 1500)):
        first = Program(photo(rng.randrange(1000), "RGB"), rng)
        first.add(rng.randint(1, 6))
        tail: list[Operation] = [("to_tensor",)]
        names = [name for name, *_ in first.operations]
        recordings = [first.recording(tail)]
        while len(recordings) < 5:
            seed = rng.randrange(1000)
            opened = first.opened if rng.random() < 0.5 else photo(seed, "RGB")
            program = Program(opened, rng)
            for name in names:
                program.add_of(name)
            recordings.append(program.recording(tail))
        for mode in ("RGB", "L"):
            some = [one for one in recordings if one.mode == mode]
            if not some:
                continue
            expected = torch.stack([replay(one) for one in some])  # type: ignore[arg-type]
            filling = decoder.begin(tuple(expected.shape), tuple(expected.stride()), expected.dtype)
            filling.add(0, some)
            for one, mine, theirs in zip(some, filling.result(), expected, strict=True):
                assert torch.equal(mine, theirs), (round_, one.operations)
            made += len(some)
    assert decoder.counts.native == made
    assert decoder.counts.replayed == 0


def erased(*boxes: tuple[int, int, int, int, Any]) -> Recording:
    program = Program(photo(1, "RGB"), random.Random(0))
    tail: list[Operation] = [("to_tensor",), NORMALIZE, *(("erase", *box) for box in boxes)]
    return program.recording(tail)


def test_rectangles_are_erased_where_they_were_in_one_call() -> None:
    recordings = [
        erased(),
        erased((2, 3, 5, 6, (0.0,))),
        erased((2, 3, 5, 6, (0.0,)), (8, 9, 3, 4, (1.0, -2.0, 0.25))),
        erased((0, 0, 20, 24, (0.0,))),
    ]
    assert len(lowering.lower(recordings, (24, 20))) == 1
    decoder = BatchDecoder(0, SlabRing(1))
    filling = decoder.begin((4, 3, 20, 24), (1440, 480, 24, 1), torch.float32)
    filling.add(0, recordings)
    expected = torch.stack([replay(one) for one in recordings])  # type: ignore[arg-type]
    assert torch.equal(filling.result(), expected)
    assert decoder.counts.native == 4


def test_an_optional_flip_or_colour_does_not_split_a_group() -> None:
    recordings = []
    for seed in range(8):
        program = Program(photo(seed, "RGB"), random.Random(seed))
        program.operations.append(("crop", 1, 2, 30, 31))
        program.operations.append(("resize", 30, 28, 3))
        if seed % 2:
            program.operations += [("brightness", 1.5), ("hue", 0.1)][: seed % 3]
        recordings.append(program.recording([("to_tensor",)]))
    assert len(lowering.lower(recordings, (24, 20))) == 1


COLORS: list[Operation] = [
    ("brightness", 1.5), ("contrast", 0.4), ("contrast", 1.8), ("saturation", 1.9), ("hue", 0.3),
    ("solarize", 90), ("posterize", 3),
    ("point", tuple(range(255, -1, -1))), ("convert", "L"), ("convert", "RGB"),
]  # fmt: skip
OTHERS: list[Operation] = [
    ("sharpness", 2.5), ("equalize",), ("autocontrast",), ("flip", True), ("rot90", 1),
    ("expand", 2, 0, 1, 3, 0), ("resize", 50, 48, 2),
]  # fmt: skip


def test_crops_among_colours_give_what_pillow_gives(simd: None, count: Any) -> None:
    rng = random.Random(8)
    decoder = BatchDecoder(0, SlabRing(1))
    recordings = []
    for seed in range(count(60, 2000)):
        program = Program(photo(seed, "RGB"), rng)
        for _ in range(rng.randint(1, 3)):
            chosen = rng.choices(COLORS, k=rng.randint(0, 4)) + rng.choices(OTHERS, k=seed % 4 == 0)
            chosen += [("flip", False)] * rng.randint(0, 1)
            program.operations += rng.sample(chosen, len(chosen))
            program.operations.append(("resize", 44, 42, 3) if rng.random() < 0.2 else ("copy",))
            program.size = replayed_size(program)
            w, h = program.size
            box = rng.randint(0, w - 9), rng.randint(0, h - 9)
            program.size = rng.randint(9, w - box[0]), rng.randint(9, h - box[1])
            program.operations.append(("crop", *box, *program.size))
        program.operations.append(("convert", "RGB"))
        recordings.append(program.recording([("to_tensor",)]))
    expected = torch.stack([replay(one) for one in recordings])  # type: ignore[arg-type]
    filling = decoder.begin(tuple(expected.shape), tuple(expected.stride()), expected.dtype)
    filling.add(0, recordings)
    for recording, mine, theirs in zip(recordings, filling.result(), expected, strict=True):
        assert torch.equal(mine, theirs), recording.operations
    assert decoder.counts.native == len(recordings)


def replayed_size(program: Program) -> tuple[int, int]:
    made = replay(Recording(program.opened, tuple(program.operations), (1, 1), "RGB"))
    assert isinstance(made, Image.Image)
    return made.size


def test_operations_on_single_pixels_leave_out_what_a_crop_after_them_drops() -> None:
    def steps(*operations: Operation) -> Any:
        opened = Opened(None, b"", None, (100, 80), "RGB", "JPEG")
        crop: Operation = ("crop", 30, 20, 50, 40)
        ended = (*operations, crop, ("resize", 24, 20, 2), ("to_tensor",))
        (call,) = lowering.lower([Recording(opened, ended, (24, 20), "RGB")], (24, 20))
        geometry, params, _ = call.parameters()
        assert params is not None
        slots = tuple(
            (code, tuple(values[: 5 if code == pixels.CONTRAST_CROP else 1]))
            for code, values in zip(
                params.codes[0].tolist(), params.values[0].tolist(), strict=True
            )
        )
        return tuple(geometry.box[0].tolist()), int(geometry.flip[0]), slots

    brightness, contrast = ("brightness", 1.5), ("contrast", 0.5)
    bright, contrasted = (pixels.BRIGHTNESS, (1.5,)), (pixels.CONTRAST, (0.5,))
    box = 30, 20, 50, 40
    assert steps(brightness) == (box, 0, (bright,))
    assert steps(brightness, ("flip", False)) == ((20, 20, 50, 40), 1, (bright,))
    assert steps(("flip", False), brightness) == ((20, 20, 50, 40), 1, (bright,))
    assert steps(brightness, contrast, brightness) == (
        (0, 0, 100, 80),
        0,
        (bright, (pixels.CONTRAST_CROP, (0.5, *box)), bright),
    )
    assert steps(contrast, ("flip", False), brightness) == (
        (0, 0, 100, 80),
        1,
        ((pixels.CONTRAST_CROP, (0.5, *box)), bright),
    )
    assert steps(contrast, ("crop", 5, 6, 90, 70), brightness) == (
        (0, 0, 100, 80),
        0,
        ((pixels.CONTRAST_CROP, (0.5, 35, 26, 50, 40)), bright),
    )
    # A filter has to see the neighbours of what is kept.
    assert steps(contrast, ("sharpness", 2.0))[2] == (contrasted, (pixels.SHARPNESS, (2.0,)))


@pytest.mark.parametrize(
    "box", [(-1, 0, 5, 5), (0, 0, 8, 10), (5, 0, 5, 5), (0, 5, 9, 6), (0, 0, 0, 1), (0, 0, 1, 0.5)]
)
def test_a_contrast_that_keeps_what_is_not_there_is_refused(box: tuple[float, ...]) -> None:
    image = np.zeros((10, 9, 3), np.uint8)
    code, values = np.array([pixels.CONTRAST_CROP], np.int32), np.array([[0.5, *box]])
    inside = 0 <= box[0] and box[0] + box[2] <= 9 and box[1] + box[3] <= 10 and min(box[2:]) >= 1
    if inside:
        values[0, 1] = np.nan
    with pytest.raises(ValueError):
        core().pixels(image, code, values)


@pytest.mark.parametrize("how", range(3))
def test_padding_is_numpys(how: int) -> None:
    image = np.random.default_rng(how).integers(0, 256, (5, 7, 3), np.uint8)
    most = 9 if how == 0 else 4 if how == 1 else 5
    for sides in [(0, 0, 0, 0), (1, 2, 3, 4), (most, 0, 0, most), (0, most, most, 0)]:
        left, top, right, bottom = sides
        padded = np.pad(
            image,
            [(top, bottom), (left, right), (0, 0)],
            mode=("edge", "reflect", "symmetric")[how],
        )
        # The core's function changes an image in place, so it keeps its size here.
        x, y = (padded.shape[1] - 7) // 2, (padded.shape[0] - 5) // 2
        made = image.copy()
        matrix = (1, 0, x, 0, 1, y, 0, 0, 0, 0, 7, 5)
        codes = np.array([pixels.PAD, pixels.AFFINE_TO], np.int32)
        values = np.zeros((2, 12))
        values[0, :5], values[1] = (*sides, how), matrix
        core().pixels(made, codes, values)
        np.testing.assert_array_equal(made, padded[y : y + 5, x : x + 7])


@pytest.mark.parametrize(
    "values",
    [
        (-1, 0, 0, 0, 0),
        (0, 0, 0, 0, 3),
        (0, 0, 0, 0, 0.5),
        (7, 0, 0, 0, 1),
        (0, 0, 0, 5, 1),
        (8, 0, 0, 0, 2),
        (0, 6, 0, 0, 2),
        (65_535, 0, 0, 0, 0),
        (np.nan, 0, 0, 0, 0),
    ],
)
def test_padding_that_is_too_wide_is_refused(values: tuple[float, ...]) -> None:
    code = np.array([pixels.PAD], np.int32)
    with pytest.raises(ValueError, match=r"values as pixels\.h lists"):
        core().pixels(np.zeros((5, 7, 3), np.uint8), code, np.array([values], np.float64))


def test_padding_wider_than_the_image_is_left_to_the_libraries() -> None:
    for mode, sides in [("reflect", (60, 0, 0, 0)), ("symmetric", (0, 0, 0, 61))]:
        pad: Operation = ("pad", *sides, mode)
        opened = Opened(None, b"", None, (60, 60), "RGB", "JPEG")
        size = 60 + sides[0], 60 + sides[3]
        recording = Recording(opened, (pad, ("to_tensor",)), size, "RGB")
        assert not lowering.lower([recording], size)
        less: Operation = ("pad", *(max(0, side - 1) for side in sides), mode)
        size = 60 + less[1], 60 + less[4]
        recording = Recording(opened, (less, ("to_tensor",)), size, "RGB")
        assert lowering.lower([recording], size)


def test_each_sample_has_its_own_filter_in_one_call() -> None:
    recordings = []
    for filter in range(6):
        size: Operation = ("resize", 24, 20, filter)
        more: list[Operation] = [("brightness", 1.5)] if filter % 2 else []
        operations = (size, *more, ("to_tensor",), NORMALIZE)
        recordings.append(Recording(photo(1, "RGB"), operations, (24, 20), "RGB"))
    assert len(lowering.lower(recordings, (24, 20))) == 1
    decoder = BatchDecoder(0, SlabRing(1))
    filling = decoder.begin((6, 3, 20, 24), (1440, 480, 24, 1), torch.float32)
    filling.add(0, recordings)
    expected = torch.stack([replay(one) for one in recordings])  # type: ignore[arg-type]
    assert torch.equal(filling.result(), expected)
    assert decoder.counts.native == 6


@pytest.mark.parametrize(
    ("format", "mode"),
    [
        ("PNG", "RGB"),
        ("PNG", "L"),
        ("PNG", "P"),
        ("PNG", "LA"),
        ("PNG", "RGBA"),
        ("WEBP", "RGB"),
        ("WEBP", "RGBA"),
        ("BMP", "RGB"),
    ],
)
def test_the_core_decodes_every_format_as_pillow_converts_it(format: str, mode: str) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (6, 7, 4), np.uint8)
    image = Image.fromarray(noise).resize((40, 30), Image.Resampling.BICUBIC)
    # Pillow makes no palette of an image with alpha.
    image = (image.convert("RGB") if mode == "P" else image).convert(mode)
    stream = io.BytesIO()
    image.save(stream, format)
    opened = Opened(None, stream.getvalue(), None, (40, 30), mode, format)
    operations: tuple[Operation, ...] = (
        ("convert", "RGB"),
        ("crop", 3, 2, 30, 25),
        ("resize", 24, 20, 2),
        ("flip", False),
        ("to_tensor",),
        NORMALIZE,
    )
    recording = Recording(opened, operations, (24, 20), "RGB")
    decoder = BatchDecoder(0, SlabRing(1))
    filling = decoder.begin((1, 3, 20, 24), (1440, 480, 24, 1), torch.float32)
    filling.add(0, [recording])
    assert torch.equal(filling.result()[0], replay(recording))  # type: ignore[arg-type]
    assert decoder.counts.native == 1


def test_what_is_not_converted_to_rgb_keeps_its_channels() -> None:
    opened = Opened(None, b"", None, (40, 30), "RGBA", "PNG")
    resized: tuple[Operation, ...] = (("resize", 24, 20, 2), ("to_tensor",))
    assert not lowering.decodes(Recording(opened, resized, (24, 20), "RGBA"))
    converted: tuple[Operation, ...] = (("resize", 24, 20, 2), ("convert", "RGB"), ("to_tensor",))
    assert not lowering.decodes(Recording(opened, converted, (24, 20), "RGB"))


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (8, 1), (2, 3), (40, 30)])
def test_blurs_are_pillows_at_every_radius(size: tuple[int, int]) -> None:
    noise = np.random.default_rng(2).integers(0, 256, (*size[::-1], 3), np.uint8)
    for code in (0.0, 1.0):
        for radius in (0, 1e-4, 0.1, 0.5, 0.99, 1, 1.01, 2, 6.7, 7, 39.5, 300, 65_535):
            pairs = [(radius, 0.0), (0.0, radius), (radius, 1.3), (radius, radius)]
            for x, y in pairs if releases.HAS_TWO_RADII else pairs[-1:]:
                values = [x, y, code]
                made = noise.copy()
                core().pixels(made, np.array([pixels.BOX_BLUR], np.int32), np.array([values]))
                kind = ImageFilter.GaussianBlur if code else ImageFilter.BoxBlur
                pillows = Image.fromarray(noise).filter(kind(x if x == y else (x, y)))
                assert np.array_equal(made, np.asarray(pillows)), values


@pytest.mark.parametrize("filter", [0, 2, 3])
def test_a_perspective_of_no_number_is_pillows(filter: int) -> None:
    noise = np.random.default_rng(3).integers(0, 256, (8, 9, 3), np.uint8)
    numbers = [
        [0, 0, 0, 0, 0, 0, -2, 0],  # 0 / 0 in the first column
        [0, 0, 3, 0, 0, 0, -2, 0],
        [0, 0, 0, 0, 0, 3, 0, -2],
        [1, 0, 0, 0, 1, 0, -1, -1],
        [1e9, 0, 0, 0, -1e9, 0, 0, 0],
    ]
    for eight in numbers:
        values = [*map(float, eight), filter, 10, 20, 30, 9, 8]
        made = noise.copy()
        core().pixels(made, np.array([pixels.PERSPECTIVE], np.int32), np.array([values], float))
        pillows = mapped(noise, pixels.PERSPECTIVE, values)
        assert np.array_equal(made, np.asarray(pillows)), eight


WARPED = [(1, 1), (2, 1), (3, 40), (63, 5), (64, 3), (65, 4), (130, 20), (200, 150)]


@pytest.mark.parametrize(("to", "filter"), combinations(WARPED, [2, 3]))
def test_maps_of_every_size_are_pillows(simd: None, to: tuple[int, int], filter: int) -> None:
    rng = np.random.default_rng(to[0] + filter)
    for w, h in WARPED:
        noise = rng.integers(0, 256, (h, w, 3), np.uint8)
        for spread in (0.0, 0.4, 3.0):
            map = rng.uniform(-spread, spread, 6) + (1, 0, 0, 0, 1, 0)
            map[[2, 5]] += rng.uniform(-0.2, 0.8, 2) * (w, h)
            levels = [40, 50, 60]
            operations = [
                (pixels.AFFINE_TO, [*map, filter, *levels, *to]),
                (pixels.PERSPECTIVE, [*map, *rng.uniform(-0.01, 0.02, 2), filter, *levels, *to]),
            ]
            for code, values in operations:
                got = warped(noise, code, values)
                assert np.array_equal(got, mapped(noise, code, values)), values


def mapped(image: np.ndarray, code: int, values: list[float]) -> np.ndarray:
    """What Pillow makes of it."""
    affine = code == pixels.AFFINE_TO
    *numbers, filter, red, green, blue, w, h = values
    made = Image.fromarray(image).transform(
        (int(w), int(h)),
        Image.Transform.AFFINE if affine else Image.Transform.PERSPECTIVE,
        numbers,
        Image.Resampling(int(filter)),
        fillcolor=(int(red), int(green), int(blue)),
    )
    return np.asarray(made)


def warped(image: np.ndarray, code: int, values: list[float]) -> np.ndarray:
    """What the core makes of an image with a map of its own size."""
    h, w, _ = image.shape
    to_w, to_h = int(values[-2]), int(values[-1])
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    opened = Opened(None, stream.getvalue(), None, (w, h), "RGB", "PNG")
    numbers = 6 if code == pixels.AFFINE_TO else 8
    map, filter, fill = values[:numbers], int(values[numbers]), values[numbers + 1 : numbers + 4]
    name = "affine" if code == pixels.AFFINE_TO else "perspective"
    operation = (name, to_w, to_h, tuple(map), filter, tuple(int(v) for v in fill))
    recording = Recording(opened, (operation, ("to_image",)), (to_w, to_h), "RGB")
    decoder = BatchDecoder(0, SlabRing(1))
    shape, strides = (1, 3, to_h, to_w), (3 * to_h * to_w, 1, 3 * to_w, 3)
    filling = decoder.begin(shape, strides, torch.uint8)
    filling.add(0, [recording])
    made = filling.result()[0].permute(1, 2, 0).numpy()
    assert decoder.counts.native == 1
    return made


@pytest.mark.parametrize("size", [(2, 9), (3, 3), (4, 5), (5, 5), (40, 31)])
def test_kernels_are_pillows(simd: None, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(4)
    noise = rng.integers(0, 256, (*size[::-1], 3), np.uint8)
    given = [getattr(ImageFilter, name).filterargs for name in KERNELS]
    for side in (3, 5):
        for scale in (1, 2.5, -7):
            weights = rng.uniform(-2, 3, side * side).tolist()
            given.append(((side, side), scale, rng.uniform(-50, 50), weights))
    for (side, _), scale, offset, weights in given:
        values = [float(side), scale, offset, *weights]
        made = noise.copy()
        core().pixels(made, np.array([pixels.KERNEL], np.int32), np.array([values], float))
        pillows = Image.fromarray(noise).filter(
            ImageFilter.Kernel((side, side), weights, scale, offset)
        )
        assert np.array_equal(made, pillows), values


def test_what_the_core_refuses_is_not_lowered() -> None:
    opened = photo(1, "RGB")
    for operation in (
        ("gaussian_blur", 70_000, 0),
        ("affine", 20, 20, (1e10, 0, 0, 0, 1, 0), 2, 0),
        ("perspective", 20, 20, (1, 0, 0, 0, 1, 0, 0, 2e9), 2, 0),
        ("perspective", 20, 20, (1, 0, 0, 0, 1, 0, 0, 0), 2, "red"),
        ("kernel", 3, 1e-9, 0, (1,) * 9),
        ("kernel", 3, 1, 0, (1e10,) * 9),
    ):
        recording = Recording(opened, (operation, ("to_tensor",)), (20, 20), "RGB")  # type: ignore[arg-type]
        assert not lowering.lower([recording], (20, 20))
