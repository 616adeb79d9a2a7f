"""Geometry: torchvision's sizes and distributions, purity, and what fits the normal form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import functional as F

from fastload._transforms.geometry.crop_geometry import Geometry, Unfit
from fastload._transforms.geometry.draws import (
    CenterCrop,
    Numbers,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    fit,
)
from fastload._transforms.plan import Plan
from fastload._transforms.sample_params import draw as draw_params
from fastload.errors import DataError, UsageError

sides = st.integers(1, 700)


def draw(ops: Any, sizes: Any, *, seed: int = 0, epoch: int = 0, first: int = 0) -> Geometry:
    array = np.asarray(sizes, np.int32).reshape(-1, 2)
    indices = np.arange(first, first + len(array))
    plan = Plan(ops=tuple(ops))
    return draw_params(plan, array, Numbers(seed=seed, epoch=epoch, indices=indices))[0]


def same_distribution(ours: Any, theirs: Any) -> bool:
    """Kolmogorov-Smirnov over two samples: false below p = 0.001."""
    ours, theirs = np.sort(ours), np.sort(theirs)
    points = np.concatenate([ours, theirs])
    gap = np.searchsorted(ours, points, "right") / len(ours)
    gap = abs(gap - np.searchsorted(theirs, points, "right") / len(theirs)).max()
    return bool(gap < 1.95 * np.sqrt(1 / len(ours) + 1 / len(theirs)))


def evenly(values: Any, cells: int) -> bool:
    """Chi-square over ``cells`` equally likely integers from 0: false below about p = 1e-4."""
    counts = np.bincount(values, minlength=cells)
    assert len(counts) == cells
    expected = len(values) / cells
    freedom = cells - 1
    limit = freedom + 4 * np.sqrt(2 * freedom) + 8
    return bool(((counts - expected) ** 2 / expected).sum() < limit)


def no_stretch(size: tuple[int, int]) -> Image.Image:
    return Image.new("1", size)


def test_without_operations_the_whole_image_is_the_window() -> None:
    drawn = draw((), [[7, 5], [7, 5]])
    assert drawn.box.tolist() == [[0, 0, 7, 5]] * 2
    assert drawn.resized.tolist() == [[7, 5]] * 2
    assert drawn.window.tolist() == [[0, 0]] * 2
    assert drawn.flip.tolist() == [0, 0]
    assert (drawn.out_h, drawn.out_w) == (5, 7)


def test_the_arrays_have_the_dtypes_that_the_core_takes() -> None:
    drawn = draw((RandomResizedCrop((4, 4)), RandomHorizontalFlip()), [[9, 9]] * 3)
    for array, dtype, shape in [
        (drawn.box, np.int32, (3, 4)),
        (drawn.resized, np.int32, (3, 2)),
        (drawn.window, np.int32, (3, 2)),
        (drawn.flip, np.uint8, (3,)),
    ]:
        assert array.dtype == dtype
        assert array.shape == shape
        assert array.flags.c_contiguous


# Sizes that follow from the image alone.


@given(w=sides, h=sides, size=st.integers(1, 300), extra=st.none() | st.integers(1, 200))
def test_resize_gives_torchvisions_size(w: int, h: int, size: int, extra: int | None) -> None:
    most = None if extra is None else size + extra
    expected = F._compute_resized_output_size((h, w), [size], most)
    chain = (Resize(size, most), CenterCrop((2, 3)))  # which is smaller than any memory bomb
    if min(expected) < 1 or max(expected) > 1 << 24:
        with pytest.raises(DataError, match="gives an empty image, or a side above"):
            draw(chain, [[w, h]])
        return
    assert draw(chain, [[w, h]]).resized[0].tolist() == expected[::-1]
    if expected[0] * expected[1] <= 1 << 28:
        drawn = draw(chain[:1], [[w, h]])
        assert [drawn.out_h, drawn.out_w] == expected


@given(w=sides, h=sides, most=st.integers(1, 300))
def test_resize_to_a_longer_side_gives_torchvisions_size(w: int, h: int, most: int) -> None:
    # torchvision 0.20 and newer; older ones have no such Resize
    other = int(most * min(w, h) / max(w, h))
    expected = [other, most] if w <= h else [most, other]
    if other >= 1:
        assert draw((Resize(None, most),), [[w, h]]).resized[0].tolist() == expected


@given(w=st.integers(1, 40), h=st.integers(1, 40), size=st.tuples(*[st.integers(1, 40)] * 2))
def test_center_crop_takes_torchvisions_pixels(w: int, h: int, size: tuple[int, int]) -> None:
    drawn = draw((CenterCrop(size),), [[w, h]])
    source = np.arange(1, w * h + 1, dtype=np.int32).reshape(h, w)
    left, top = drawn.window[0]
    ours = np.zeros(size, np.int32)
    for y in range(size[0]):
        for x in range(size[1]):
            if 0 <= top + y < h and 0 <= left + x < w:
                ours[y, x] = source[top + y, left + x]
    theirs = np.asarray(F.center_crop(Image.fromarray(source), list(size)))
    assert ours.tolist() == theirs.tolist()


def test_a_strip_that_would_be_a_memory_bomb_is_refused() -> None:
    crop = CenterCrop((224, 224))
    with pytest.raises(
        DataError, match=r"gives an empty image, or a side above .* for this 1x90000 image"
    ):
        draw((Resize(256), crop), [[300, 300], [1, 90000]])
    with pytest.raises(DataError, match="at most 268435456 pixels, got 20x15000000") as info:
        draw((Resize(20),), [[300, 300], [2, 1500000]])
    assert info.value.record == 1
    assert draw((Resize(20), crop), [[2, 1500000]]).out_w == 224  # little is computed


# Random boxes.


@pytest.mark.parametrize("size", [(500, 375), (33, 47), (640, 97)])
@pytest.mark.parametrize(
    ("scale", "ratio"), [((0.08, 1.0), (3 / 4, 4 / 3)), ((0.5, 2.0), (0.2, 0.9))]
)
def test_random_resized_crop_has_torchvisions_distribution(
    size: tuple[int, int], scale: Any, ratio: Any
) -> None:
    n = 3000
    drawn = draw((RandomResizedCrop((8, 8), scale, ratio),), [size] * n, seed=3)
    x, y, w, h = drawn.box.T.astype(np.float64)
    torch.manual_seed(4)
    image = no_stretch(size)
    theirs = np.array([v1.RandomResizedCrop.get_params(image, scale, ratio) for _ in range(n)])
    top, left, height, width = theirs.T.astype(np.float64)
    assert same_distribution(w * h, width * height)
    assert same_distribution(w / h, width / height)
    assert same_distribution(w, width)
    assert same_distribution(h, height)
    assert same_distribution(x, left)
    assert same_distribution(y, top)
    assert same_distribution(x + w, left + width)
    assert same_distribution(y + h, top + height)


@given(w=sides, h=sides, seed=st.integers(0, 2**64 - 1))
def test_a_random_box_lies_inside_the_image(w: int, h: int, seed: int) -> None:
    drawn = draw((RandomResizedCrop((8, 9)),), [[w, h]] * 20, seed=seed)
    x, y, box_w, box_h = drawn.box.T
    assert (x >= 0).all() and (y >= 0).all() and (box_w > 0).all() and (box_h > 0).all()
    assert (x + box_w <= w).all() and (y + box_h <= h).all()
    assert (drawn.resized == [9, 8]).all() and (drawn.window == 0).all()


@pytest.mark.parametrize("size", [(1000, 10), (10, 1000), (1, 700), (701, 3)])
def test_where_no_try_fits_the_central_box_is_torchvisions(size: tuple[int, int]) -> None:
    scale, ratio = (0.9, 1.0), (3 / 4, 4 / 3)
    drawn = draw((RandomResizedCrop((8, 8), scale, ratio),), [size] * 5)
    top, left, height, width = v1.RandomResizedCrop.get_params(
        no_stretch(size), list(scale), list(ratio)
    )
    assert drawn.box.tolist() == [[left, top, width, height]] * 5


def test_tries_that_fit_and_tries_that_do_not_share_a_batch() -> None:
    drawn = draw(
        (RandomResizedCrop((8, 8), (0.9, 1.0)),), [[1000, 10], [100, 100], [10, 1000]], seed=1
    )
    assert drawn.box[0].tolist() == [493, 0, 13, 10]
    assert drawn.box[2].tolist() == [0, 493, 10, 13]
    assert drawn.box[1, 2] * drawn.box[1, 3] >= 8900


def test_random_crop_places_are_uniform_and_reach_both_ends() -> None:
    drawn = draw((RandomCrop((32, 30), (4, 4, 4, 4)),), [[32, 32]] * 4000, seed=5)
    assert evenly(drawn.window[:, 0] + 4, 11)
    assert evenly(drawn.window[:, 1] + 4, 9)
    both = (drawn.window[:, 0] + 4) * 9 + drawn.window[:, 1] + 4
    assert evenly(both, 99)


def test_random_crop_pads_only_as_needed_on_both_sides_as_torchvision() -> None:
    drawn = draw((RandomCrop((10, 12), pad_if_needed=True),), [[7, 30]] * 3000, seed=6)
    assert evenly(drawn.window[:, 0] + 5, 6)  # 5 on both sides: 17 pixels, 12 of them
    assert evenly(drawn.window[:, 1], 21)  # high enough: no padding


def test_random_crop_of_a_whole_image_is_the_image() -> None:
    drawn = draw((RandomCrop((5, 7)),), [[7, 5]] * 4)
    assert drawn.window.tolist() == [[0, 0]] * 4


def test_random_crop_larger_than_an_image_names_the_record() -> None:
    with pytest.raises(DataError, match=r"32x32 pixels is larger than this image of 20x40") as info:
        draw((RandomCrop((32, 32)),), [[40, 40], [20, 40]], first=100)
    assert info.value.record == 101


@pytest.mark.parametrize("p", [0.0, 0.2, 0.5, 1.0])
def test_flips_have_their_probability(p: float) -> None:
    flips = draw((RandomHorizontalFlip(p),), [[4, 4]] * 4000, seed=7).flip
    assert abs(flips.mean() - p) <= 4 * np.sqrt(p * (1 - p) / 4000)


def test_two_flips_undo_each_other() -> None:
    once = draw((RandomHorizontalFlip(1.0),), [[4, 4]])
    twice = draw((RandomHorizontalFlip(1.0), RandomHorizontalFlip(1.0)), [[4, 4]])
    assert (once.flip[0], twice.flip[0]) == (1, 0)


def test_crop_and_flip_are_independent() -> None:
    ops = (RandomResizedCrop((8, 8)), RandomHorizontalFlip(), RandomHorizontalFlip(0.3))
    drawn = draw(ops, [[300, 200]] * 4000, seed=8)
    for values in drawn.box.T:
        assert abs(np.corrcoef(values, drawn.flip)[0, 1]) < 0.06


# What the random numbers depend on.

OPS = (RandomResizedCrop((8, 8)), RandomHorizontalFlip())


def as_lists(drawn: Geometry, rows: Any = slice(None)) -> Any:
    return [a[rows].tolist() for a in (drawn.box, drawn.resized, drawn.window, drawn.flip)]


def test_a_sample_is_drawn_alike_in_any_batch() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(20, 500, (50, 2)).astype(np.int32)
    plan = Plan(ops=OPS)
    whole, _ = draw_params(plan, sizes, Numbers(seed=1, epoch=2, indices=np.arange(50)))
    some = rng.permutation(50)[:20]
    part, _ = draw_params(plan, sizes[some], Numbers(seed=1, epoch=2, indices=some))
    assert as_lists(part) == as_lists(whole, some)


def test_seed_epoch_and_index_each_change_the_draw() -> None:
    sizes = [[300, 200]] * 4
    drawn = [
        as_lists(draw(OPS, sizes, seed=1, epoch=1, first=8)),
        as_lists(draw(OPS, sizes, seed=2, epoch=1, first=8)),
        as_lists(draw(OPS, sizes, seed=1, epoch=2, first=8)),
        as_lists(draw(OPS, sizes, seed=1, epoch=1, first=80)),
    ]
    assert all(drawn[i] != drawn[j] for i in range(4) for j in range(i))


def test_an_operation_does_not_change_what_another_one_draws() -> None:
    without = draw((RandomResizedCrop((8, 8)),), [[300, 200]] * 9)
    with_flip = draw(OPS, [[300, 200]] * 9)
    assert without.box.tolist() == with_flip.box.tolist()


# What fits the normal form.


@pytest.mark.parametrize(
    ("ops", "size", "padding"),
    [
        ((), None, None),
        ((RandomResizedCrop((8, 9)),), (8, 9), None),
        ((Resize(16), CenterCrop((12, 12))), (12, 12), None),
        ((Resize(16), CenterCrop((20, 12))), (20, 12), 1),
        ((Resize(16, 20), CenterCrop((12, 12))), (12, 12), 1),
        ((Resize(16), RandomCrop((12, 12))), (12, 12), None),
        ((Resize((10, 20)), RandomHorizontalFlip()), (10, 20), None),
        ((Resize(16),), None, None),
        ((CenterCrop((30, 30)),), (30, 30), 0),
        ((RandomCrop((9, 9)), Resize(5)), (5, 5), None),
        ((RandomCrop((32, 32), (4, 4, 4, 4)), CenterCrop((28, 28))), (28, 28), 0),
        ((RandomHorizontalFlip(), RandomCrop((9, 9), pad_if_needed=True)), (9, 9), 1),
        ((RandomCrop((20, 20)), RandomCrop((20, 20), (4, 4, 4, 4))), (20, 20), 1),
        ((RandomCrop((20, 20)), RandomResizedCrop((8, 8)), CenterCrop((4, 4))), (4, 4), None),
    ],
)
def test_fitting_chains_tell_their_size_and_what_pads(
    ops: Any, size: tuple[int, int] | None, padding: int | None
) -> None:
    made = fit(ops)
    assert (made.size, made.padding) == (size, padding)


@pytest.mark.parametrize(
    ("ops", "reason"),
    [
        ((Resize(20), Resize(10)), "resizes an image that was already resized"),
        ((Resize(20), RandomResizedCrop((8, 8))), "already resized and cropped"),
        ((RandomCrop((32, 32), (4, 4, 4, 4)), Resize(16)), "resizes an image that may be"),
        ((CenterCrop((32, 32)), Resize(16)), "resizes an image that may be padded already"),
        ((RandomHorizontalFlip(), RandomResizedCrop((8, 8))), "put the flip last"),
        (
            (Resize(20), CenterCrop((20, 20)), RandomCrop((20, 20), (2, 2, 2, 2))),
            "pads an image that was already resized and cropped",
        ),
        (
            (RandomCrop((32, 32), (4, 4, 4, 4)), RandomCrop((32, 32), (4, 4, 4, 4))),
            "pads an image that may be padded already",
        ),
        ((Resize((8, 8)), RandomCrop((9, 9))), "larger than this image of 8x8"),
    ],
)
def test_chains_that_do_not_fit_are_refused_with_the_reason(ops: Any, reason: str) -> None:
    with pytest.raises(Unfit, match=reason):
        fit(ops)


def test_images_of_different_sizes_are_no_batch() -> None:
    with pytest.raises(DataError, match=r"got 20x10 here and 10x10 in record 5") as info:
        draw((), [[10, 10], [10, 10], [20, 10]], first=5)
    assert info.value.record == 7


def test_an_unknown_size_names_the_record() -> None:
    with pytest.raises(DataError, match="unknown") as info:
        draw(OPS, [[10, 10], [0, 0]], first=5)
    assert info.value.record == 6


def test_no_samples_make_an_empty_batch_only_where_the_size_is_known() -> None:
    drawn = draw((RandomCrop((4, 4)),), np.empty((0, 2)))
    assert drawn.box.shape == (0, 4)
    with pytest.raises(UsageError, match="at least one sample"):
        draw((), np.empty((0, 2)))
