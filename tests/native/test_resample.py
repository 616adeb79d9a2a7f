"""The core's resize equals Pillow's, bit for bit, with every instruction set of this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import hypothesis
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import native_core
from fastload import _native
from native_core import HORIZONTAL_FIRST, PASS_ORDER, PILLOW_12_2, PILLOW_13

pytestmark = pytest.mark.native

NEAREST, BOX, BILINEAR, HAMMING, BICUBIC, LANCZOS = range(6)
FILTERS = {
    NEAREST: Image.Resampling.NEAREST,
    BOX: Image.Resampling.BOX,
    BILINEAR: Image.Resampling.BILINEAR,
    HAMMING: Image.Resampling.HAMMING,
    BICUBIC: Image.Resampling.BICUBIC,
    LANCZOS: Image.Resampling.LANCZOS,
}

# Elements of each dtype as integers: values are copied from the table, whatever they mean.
ELEMENTS = (np.uint8, np.uint32, np.uint16, np.uint16)
MANY = hypothesis.settings(
    max_examples=10 * hypothesis.settings().max_examples,
    # Choose the instruction set once for all examples.
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
FLOAT32 = 1  # its index there
FORMULAS = ("ToTensor", "Normalize", "of levels", "by a factor", "one value differs")
GUARD = 64  # bytes on both sides of the output that must not change


@pytest.fixture
def core(simd: str) -> Any:
    return native_core.core()


@dataclasses.dataclass(frozen=True)
class Case:
    """One resize; sizes are (w, h), the window (x, y, w, h)."""

    box: tuple[int, int]
    resized: tuple[int, int]
    window: tuple[int, int, int, int]
    filter: int = BILINEAR
    flip: bool = False
    channels_last: bool = False
    dtype: int = 0
    table: bool = False
    fill: tuple[int, int, int] = (0, 0, 0)
    extremes: bool = False  # levels 0 and 255 only, for which negative weights overshoot most
    seed: int = 0
    formula: str = ""  # what a table of float32 is made by; "": random bits

    def pixels(self) -> npt.NDArray[np.uint8]:
        shape = (self.box[1], self.box[0], 3)
        levels = np.random.default_rng(self.seed).integers(0, 256, shape, dtype=np.uint8)
        if self.extremes:
            levels = levels // 128 * np.uint8(255)
        return levels

    def lut(self) -> npt.NDArray[Any] | None:
        if not self.table and self.dtype == 0:
            return None
        if self.dtype == FLOAT32 and self.formula:
            return float_table(self.formula, self.seed).view(np.uint32)
        element = ELEMENTS[self.dtype]
        top = np.iinfo(element).max
        return np.random.default_rng(self.seed).integers(0, top, (3, 256), element, endpoint=True)


def float_table(formula: str, seed: int) -> npt.NDArray[np.float32]:
    """(3, 256): what a usual transform makes of each level; kernels compute some of them."""
    rng = np.random.default_rng(seed)
    levels = np.arange(256, dtype=np.float32)
    mean, deviation = np.float32(rng.random((2, 3, 1)).round(3))
    deviation += np.float32(0.1)
    if formula == "ToTensor":
        return np.repeat((levels / np.float32(255))[None], 3, axis=0)
    if formula == "of levels":
        return (levels - mean * np.float32(255)) / (deviation * np.float32(255))
    scaled = levels * np.float32(1 / 255) if formula == "by a factor" else levels / np.float32(255)
    table = (scaled - mean) / deviation
    if formula == "one value differs":
        channel, level = rng.integers(3), rng.integers(256)
        table[channel, level] = np.nextafter(table[channel, level], np.float32(9))
    return table


def by_pillow(case: Case, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    """The window by Pillow and NumPy: (h, w, 3)."""
    (width, height), (x, y, w, h) = case.resized, case.window
    resized = np.asarray(Image.fromarray(pixels).resize(case.resized, FILTERS[case.filter]))
    window = np.empty((h, w, 3), np.uint8)
    window[:] = case.fill
    left, right = max(x, 0), min(x + w, width)
    top, bottom = max(y, 0), min(y + h, height)
    if left < right and top < bottom:
        window[top - y : bottom - y, left - x : right - x] = resized[top:bottom, left:right]
    if case.flip:
        window = window[:, ::-1]
    lut = case.lut()
    if lut is None:
        return window
    values: npt.NDArray[Any] = np.stack([lut[c][window[..., c]] for c in range(3)], axis=-1)
    return values


def by_core(
    core: Any, case: Case, pixels: npt.NDArray[np.uint8], order: int = PASS_ORDER
) -> npt.NDArray[Any]:
    """The same by the core: (h, w, 3); checks that nothing else is written."""
    x, y, w, h = case.window
    element = np.dtype(ELEMENTS[case.dtype])
    nbytes = 3 * w * h * element.itemsize
    memory = np.full(nbytes + 2 * GUARD + 64, 0xA5, np.uint8)
    # Aligned to a cache line, as slabs are: resample/kernels.h, Note [Past the cache].
    memory = memory[-(memory.ctypes.data + GUARD) % 64 :][: nbytes + 2 * GUARD]
    lut = case.lut()
    status = native_core.resample(
        pixels,
        case.resized,
        (x, y),
        flip=int(case.flip),
        out=memory[GUARD : GUARD + nbytes],
        lut=None if lut is None else lut.reshape(-1).view(np.uint8),
        out_h=h,
        out_w=w,
        dtype=case.dtype,
        channels_last=case.channels_last,
        filter=case.filter,
        order=order,
        fill=case.fill,
    )
    assert status.tolist() == [_native.OK]
    assert (memory[:GUARD] == 0xA5).all(), "written before the output"
    assert (memory[-GUARD:] == 0xA5).all(), "written behind the output"
    out: npt.NDArray[Any] = memory[GUARD : GUARD + nbytes].copy().view(element)
    return out.reshape(h, w, 3) if case.channels_last else out.reshape(3, h, w).transpose(1, 2, 0)


def check(core: Any, case: Case, order: int = PASS_ORDER) -> None:
    pixels = case.pixels()
    np.testing.assert_array_equal(by_core(core, case, pixels, order), by_pillow(case, pixels))


def whole(size: tuple[int, int]) -> tuple[int, int, int, int]:
    return 0, 0, *size


SIDES = st.one_of(st.integers(1, 6), st.integers(1, 80), st.integers(1, 300))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    box = draw(st.tuples(SIDES, SIDES))
    # A side often keeps its size, which skips its pass.
    resized = (
        draw(st.one_of(st.just(box[0]), SIDES, SIDES)),
        draw(st.one_of(st.just(box[1]), SIDES, SIDES)),
    )
    window = whole(resized)
    if draw(st.booleans()):
        window = (
            draw(st.integers(-12, resized[0] + 3)),
            draw(st.integers(-12, resized[1] + 3)),
            draw(st.integers(1, resized[0] + 20)),
            draw(st.integers(1, resized[1] + 20)),
        )
    return Case(
        box,
        resized,
        window,
        filter=draw(st.integers(0, 5)),
        flip=draw(st.booleans()),
        channels_last=draw(st.booleans()),
        dtype=draw(st.integers(0, 3)),
        table=draw(st.booleans()),
        fill=draw(st.tuples(*[st.integers(0, 255)] * 3)),
        extremes=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
        formula=draw(st.sampled_from(("", *FORMULAS))),
    )


@MANY
@given(case=cases())
def test_any_resize_equals_pillow(core: Any, case: Case) -> None:
    check(core, case)


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("scale", [0.3, 0.9, 1.0, 1.12, 1.3, 2.0, 2.5, 2.6, 3.5, 5.5, 9.0])
def test_every_strength_of_shrinking_equals_pillow(core: Any, filter: int, scale: float) -> None:
    box = (round(97 * scale), round(41 * scale))
    check(core, Case(box, (97, 41), whole((97, 41)), filter, dtype=1, extremes=True))


@pytest.mark.parametrize("filter", FILTERS)
def test_one_and_two_pixels_equal_pillow(core: Any, filter: int) -> None:
    for box in (1, 2):
        for resized in (1, 2, 3, 40):
            sizes = ((box, box), (resized, resized))
            check(core, Case(*sizes, whole(sizes[1]), filter, extremes=True))


@pytest.mark.parametrize("filter", FILTERS)
def test_long_sides_equal_pillow(core: Any, filter: int) -> None:
    for box, resized in (
        ((40_000, 3), (5, 2)),
        ((3, 40_000), (2, 5)),
        ((65_535, 1), (1, 1)),
        ((1, 65_535), (2, 1)),
    ):
        check(core, Case(box, resized, whole(resized), filter))


def test_a_window_of_a_huge_resize_equals_pillow(core: Any) -> None:
    box, resized = (7, 5), (60_000, 9)
    check(core, Case(box, resized, (59_800, -1, 224, 11), BICUBIC, fill=(1, 2, 3)))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", range(4))
@pytest.mark.parametrize("width", [1, 15, 16, 31, 32, 33, 63, 64, 65, 127, 224, 255])
def test_a_copy_of_any_width_is_exact(
    core: Any, width: int, dtype: int, channels_last: bool
) -> None:
    for flip in (False, True):
        box = (width + 9, 7)
        case = Case(box, box, (4, 1, width, 5), 0, flip, channels_last, dtype)
        check(core, case)
        check(core, dataclasses.replace(case, window=(-4, -2, width, 12), fill=(9, 8, 7)))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", range(4))
@pytest.mark.parametrize("width", [224, 240, 333])
def test_an_image_stored_past_the_cache_is_exact(
    core: Any, width: int, dtype: int, channels_last: bool
) -> None:
    for flip in (False, True):
        box = (width + 9, 410)
        window = (4, -3, width, 400)
        check(core, Case(box, box, window, 0, flip, channels_last, dtype, True, (9, 8, 7)))


def test_a_window_outside_the_image_is_all_fill(core: Any) -> None:
    for window in ((30, 0, 8, 8), (0, -40, 8, 8), (-(2**23), 2**23, 8, 8)):
        check(core, Case((20, 20), (30, 30), window, fill=(200, 100, 50)))


def first_pass_is_vertical(order: int, box: tuple[int, int], resized: tuple[int, int]) -> bool:
    """Note [Pass order] of resample/plan.cpp, in Python."""
    (w, h), (new_w, new_h) = box, resized
    if order == HORIZONTAL_FIRST or new_h >= h:
        return False
    if order == PILLOW_12_2:
        return h > 100 * w
    return h - new_h > 2 * max(0, w - new_w)


@pytest.mark.parametrize("order", [HORIZONTAL_FIRST, PILLOW_13, PILLOW_12_2])
def test_the_order_of_passes_is_that_pillow_version_s(core: Any, order: int) -> None:
    """Two calls of Pillow, one per axis, give the result of either order in every version."""
    shown = 0
    for box, resized in (
        ((60, 50), (40, 30)),
        ((60, 71), (40, 30)),
        ((60, 70), (40, 30)),
        ((60, 72), (40, 30)),
        ((30, 31), (40, 30)),
        ((30, 29), (40, 30)),
        ((5, 501), (4, 9)),
        ((5, 499), (4, 9)),
        ((5, 501), (9, 502)),
    ):
        case = Case(box, resized, whole(resized), BICUBIC, extremes=True)
        pixels = case.pixels()
        image = Image.fromarray(pixels)
        horizontally = image.resize((resized[0], box[1]), Image.Resampling.BICUBIC)
        vertically = image.resize((box[0], resized[1]), Image.Resampling.BICUBIC)
        if first_pass_is_vertical(order, box, resized):
            first, second = vertically, horizontally
        else:
            first, second = horizontally, vertically
        expected, other = (
            np.asarray(half.resize(resized, Image.Resampling.BICUBIC)) for half in (first, second)
        )
        np.testing.assert_array_equal(by_core(core, case, pixels, order), expected)
        shown += not np.array_equal(expected, other)
    assert shown >= 8, "the images are too small or smooth to tell the orders apart"


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("formula", FORMULAS)
def test_every_level_becomes_the_value_in_the_table(
    core: Any, formula: str, channels_last: bool, count: Callable[[int, int], int]
) -> None:
    """Also where kernels compute what the table holds, and where one table follows another."""
    for seed in range(count(30, 3000)):
        for flip in (False, True):
            size = (256 + seed % 37, 3)
            case = Case(size, size, whole(size), dtype=FLOAT32, seed=seed, formula=formula)
            case = dataclasses.replace(case, flip=flip, channels_last=channels_last)
            levels = np.arange(size[0] * 9).reshape(3, size[0], 3).astype(np.uint8)
            np.testing.assert_array_equal(by_core(core, case, levels), by_pillow(case, levels))


@MANY
@given(
    box=st.tuples(st.integers(1, 60), st.integers(1, 150)),
    resized=st.tuples(st.integers(1, 60), st.integers(1, 60)),
)
def test_the_installed_pillow_follows_the_rule_for_its_version(
    box: tuple[int, int], resized: tuple[int, int]
) -> None:
    """Fails first when a new Pillow changes the order."""
    image = Image.fromarray(Case(box, resized, whole(resized), extremes=True).pixels())
    bicubic = Image.Resampling.BICUBIC
    if first_pass_is_vertical(PASS_ORDER, box, resized):
        steps = image.resize((box[0], resized[1]), bicubic).resize(resized, bicubic)
    else:
        steps = image.resize((resized[0], box[1]), bicubic).resize(resized, bicubic)
    assert np.array_equal(np.asarray(image.resize(resized, bicubic)), np.asarray(steps))


def test_more_sizes_than_the_cache_holds_stay_exact(core: Any) -> None:
    for side in [*range(1000, 1060), 1000, 1001]:
        box, resized = (side, 3), (side + 2000, 3)
        check(core, Case(box, resized, (side - 5, 0, 40, 3), LANCZOS))


def test_impossible_sizes_are_refused_and_long_sides_left_to_pillow() -> None:
    pixels = Case((4, 4), (4, 4), whole((4, 4))).pixels()
    for resized in ((0, 4), (4, -1)):
        with pytest.raises(ValueError, match="resized"):
            native_core.resample(pixels, resized, (0, 0))
    assert native_core.resample(pixels, (65_536, 4), (0, 0)).tolist() == [_native.UNSUPPORTED]


def test_an_unknown_instruction_set_is_refused_and_changes_nothing(core: Any) -> None:
    before = core.simd()
    assert not core.set_simd("mmx")
    assert core.simd() == before
