"""JPEGs decoded at a fraction of their size equal Pillow's draft mode, bit for bit."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import native_core
from fastload import _native
from fastload._engine.kernel import _pass_order
from fastload._transforms.geometry.crop_geometry import scales
from native.test_jpeg import KINDS, make

pytestmark = pytest.mark.native

MADE_FROM_BASELINE = ("4:4:0", "4:1:1")  # so they are never progressive
FILTERS = [Image.Resampling.BOX, Image.Resampling.BILINEAR, Image.Resampling.HAMMING,
           Image.Resampling.BICUBIC, Image.Resampling.LANCZOS]  # fmt: skip
OURS = {filter: number + 1 for number, filter in enumerate(FILTERS)}


def expected(data: bytes, box: Any, size: tuple[int, int], filter: Any) -> tuple[np.ndarray, int]:
    """By Pillow alone: its draft mode, the pixels that the box touches, and `box` in those."""
    x, y, w, h = (int(v) for v in box)
    image = Image.open(io.BytesIO(data))
    scale = next(s for s in (8, 4, 2, 1) if min(w / size[0], h / size[1]) >= 2 * s or s == 1)
    if scale > 1:
        image.draft(None, (max(1, image.width // scale), max(1, image.height // scale)))
    image = image.convert("RGB")
    corners = np.array([x, y, x + w, y + h]) / scale
    outer = np.concatenate([np.floor(corners[:2]), np.ceil(corners[2:])]).astype(int)
    inner = corners - np.tile(outer[:2], 2)
    image = image.crop(tuple(outer.tolist()))
    return np.asarray(image.resize(size, filter, tuple(inner.tolist()))), scale


def ours(path: Path, boxes: Any, to: tuple[int, int], filter: Any, **given: Any) -> np.ndarray:
    files = native_core.open_files([path])
    done = native_core.submit(
        files, boxes, resized=to, out_w=to[0], out_h=to[1], scaled=True,
        filter=OURS[filter], order=_pass_order(), **given,
    ).wait()  # fmt: skip
    assert (done.status == _native.OK).all()
    return done.images


@pytest.mark.parametrize(
    ("progressive", "kind"),
    [(False, kind) for kind in KINDS]
    + [(True, kind) for kind in KINDS if kind not in MADE_FROM_BASELINE],
)
def test_scaled_crops_of_any_sampling_equal_pillow(
    kind: str, progressive: bool, tmp_path: Path
) -> None:
    rng = np.random.default_rng(5)
    scales = set()
    for width, height in ((203, 331), (640, 208)):
        data = make(kind, width, height, seed=width, quality=85, progressive=progressive)
        width, height = Image.open(io.BytesIO(data)).size
        (tmp_path / "image.jpg").write_bytes(data)
        for trial in range(40):
            size = int(rng.integers(3, 30)), int(rng.integers(3, 30))
            w, h = int(rng.integers(20, width + 1)), int(rng.integers(20, height + 1))
            if trial % 8 == 0:
                w, h = width, height
            box = int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1)), w, h
            filter = FILTERS[trial % len(FILTERS)]
            right, scale = expected(data, box, size, filter)
            scales.add(scale)
            got = ours(tmp_path / "image.jpg", [box], size, filter, size=[[width, height]])
            np.testing.assert_array_equal(got[0], right, err_msg=f"{box} {size} {scale}")
    assert scales == {1, 2, 4, 8}


@given(
    start=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    extent=st.tuples(st.integers(16, 200), st.integers(16, 200)),
    size=st.tuples(st.integers(2, 24), st.integers(2, 24)),
    filter=st.sampled_from(FILTERS),
)
def test_the_box_keeps_its_fractions(
    tmp_path_factory: pytest.TempPathFactory,
    start: tuple[int, int],
    extent: tuple[int, int],
    size: tuple[int, int],
    filter: Any,
) -> None:
    data = make("4:2:0", 240, 240, seed=1)
    path = tmp_path_factory.mktemp("scaled") / "image.jpg"
    path.write_bytes(data)
    box = (*start, *extent)
    got = ours(path, [box], size, filter)[0]
    np.testing.assert_array_equal(got, expected(data, box, size, filter)[0])


@pytest.mark.usefixtures("simd")
def test_shapes_near_the_limit_of_pass_order_equal_pillow(tmp_path: Path) -> None:
    """Shapes near the limit from which Pillow resizes vertically first."""
    data = make("4:4:4", 120, 640, seed=3)
    (tmp_path / "image.jpg").write_bytes(data)
    size = 12, 20
    for w in range(50, 64, 3):
        for h in range(2 * w - 14, 2 * w):
            box = (w % 5, h % 7, w, h)
            got = ours(tmp_path / "image.jpg", [box], size, Image.Resampling.BICUBIC)[0]
            np.testing.assert_array_equal(
                got, expected(data, box, size, Image.Resampling.BICUBIC)[0], err_msg=str(box)
            )


def test_dct_records_are_scaled_like_their_files(tmp_path: Path) -> None:
    core = native_core.core()
    rng = np.random.default_rng(9)
    for kind in KINDS:
        data = make(kind, 300, 220, seed=4)
        width, height = Image.open(io.BytesIO(data)).size
        record = core.dct_encode(data)
        (tmp_path / "image.jpg").write_bytes(data)
        (tmp_path / "record").write_bytes(record)
        for _ in range(20):
            w, h = int(rng.integers(60, width + 1)), int(rng.integers(60, height + 1))
            box = [int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1)), w, h]
            size = int(rng.integers(4, 20)), int(rng.integers(4, 20))
            both = [
                ours(tmp_path / name, [box], size, Image.Resampling.BILINEAR, kind=number)
                for name, number in (("image.jpg", 0), ("record", 2))
            ]
            np.testing.assert_array_equal(*both)


def test_the_scale_is_the_smallest_that_leaves_twice_the_size() -> None:
    box = np.array([[0, 0, w, 1000] for w in (39, 40, 79, 80, 159, 160, 900)], np.int32)
    resized = np.full((len(box), 2), 10, np.int32)
    assert scales(box, resized, 2).tolist() == [1, 2, 2, 4, 4, 8, 8]
    assert scales(box, resized, 0).tolist() == [1] * len(box)


def test_a_smaller_image_than_promised_is_refused(tmp_path: Path) -> None:
    (tmp_path / "image.jpg").write_bytes(make("4:2:0", 200, 200, seed=0))
    files = native_core.open_files([tmp_path / "image.jpg"])
    for box, size in (([0, 0, 201, 200], None), ([0, 0, 200, 200], [[201, 200]])):
        given = {} if size is None else {"size": size}
        done = native_core.submit(
            files, [box], resized=[10, 10], out_w=10, out_h=10, scaled=True, **given
        ).wait()
        assert done.status[0] == _native.SIZE
