"""How core.submit checks a BatchSpec: it names the wrong field and decodes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import native_core
from fastload import _native

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two images of 45 x 37 pixels."""
    folder = tmp_path_factory.mktemp("jpegs")
    for seed in range(2):
        (folder / f"{seed}.jpg").write_bytes(native_core.encode(native_core.photo(45, 37, seed)))
    return sorted(folder.iterdir())


def readonly(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("file", np.zeros(2, np.int64), TypeError),
        ("offset", np.zeros(3, np.int64), ValueError),
        ("file", np.array([0, 2], np.int32), ValueError),
        ("file", np.array([0, -1], np.int32), ValueError),
        ("file", [0, 0], TypeError),
        ("offset", np.array([0, -1], np.int64), ValueError),
        ("offset", np.zeros(2, np.float64), TypeError),
        ("offset", np.zeros(4, np.int64)[::2], TypeError),
        ("offset", np.zeros(2, ">i8"), TypeError),
        ("nbytes", np.array([0, -2], np.int64), ValueError),
        ("kind", np.array([0, 4], np.uint8), ValueError),
        ("kind", np.zeros(2, np.int8), TypeError),
        ("size", np.zeros((2, 3), np.int32), ValueError),
        ("size", np.array([[5, 0], [0, 0]], np.int32), ValueError),
        ("size", np.array([[-5, -5], [0, 0]], np.int32), ValueError),
        ("box", np.array([[0, 0, 0, 8], [0, 0, 8, 8]], np.int32), ValueError),
        ("box", np.array([[-1, 0, 8, 8], [0, 0, 8, 8]], np.int32), ValueError),
        ("box", np.array([[2**31 - 1, 0, 8, 8], [0, 0, 8, 8]], np.int32), ValueError),
        ("box", np.zeros((4, 2), np.int32).T, TypeError),
        ("box", np.zeros((4, 2), np.int32), ValueError),
        ("resized", np.array([[0, 8], [8, 8]], np.int32), ValueError),
        ("resized", np.array([[-8, 8], [8, 8]], np.int32), ValueError),
        ("window", np.array([[2**31 - 1, 0], [0, 0]], np.int32), ValueError),
        ("window", np.array([[-(2**31), 0], [0, 0]], np.int32), ValueError),
        ("flip", np.zeros(2, np.bool_), TypeError),
        ("checksum", np.zeros(2, np.int32), TypeError),
        ("rows", np.array([0, 2]), ValueError),
        ("rows", np.array([0, -1]), ValueError),
        ("rows", np.array([0, 2**63 - 1]), ValueError),
        ("rows", np.array([0, 1], np.int32), TypeError),
        ("out", np.zeros(2 * 3 * 8 * 8 - 1, np.uint8), ValueError),
        ("out", np.zeros((2, 3 * 8 * 8), np.uint8), ValueError),
        ("out", readonly(np.zeros(2 * 3 * 8 * 8, np.uint8)), TypeError),
        ("out", np.zeros(2 * 3 * 8 * 8, np.float32), TypeError),
        ("lut", np.zeros(767, np.uint8), ValueError),
        ("status", np.zeros(2, np.int64), TypeError),
        ("status", readonly(np.zeros(2, np.int32)), TypeError),
        ("detail", np.zeros(1, np.int32), ValueError),
        ("dtype", 4, ValueError),
        ("filter", 8, ValueError),
        ("filter", -1, ValueError),
        ("order", 3, ValueError),
        ("fill", (0, 0), ValueError),
        ("fill", (0, 0, 256), ValueError),
        ("threads", -1, ValueError),
        ("out_h", 0, ValueError),
    ],
)
def test_a_wrong_argument_is_named(
    jpegs: list[Path],
    name: str,
    value: Any,
    error: type[Exception],
) -> None:
    files = native_core.open_files(jpegs)
    fields = native_core.fields(files, [(0, 0, 8, 8)] * 2)
    with pytest.raises(error, match=name):
        native_core.start(files, {**fields, name: value})


def test_a_name_that_is_no_field_is_refused() -> None:
    with pytest.raises(AttributeError, match="chanels"):
        native_core.core().BatchSpec().chanels = 1


def test_a_copied_spec_shares_no_later_change(jpegs: list[Path]) -> None:
    core = native_core.core()
    files = native_core.open_files(jpegs)
    fields = native_core.fields(files, [(0, 0, 8, 8)] * 2)
    kernel = core.BatchSpec()
    for name in ("channels_last", "filter", "order"):
        setattr(kernel, name, fields.pop(name))
    spec = core.BatchSpec(kernel)
    for name, value in fields.items():
        setattr(spec, name, value)
    core.submit(files, spec).wait()
    assert fields["status"].tolist() == [_native.OK] * 2
    assert np.array_equal(
        fields["out"], native_core.submit(files, [(0, 0, 8, 8)] * 2).wait().memory
    )
    assert (kernel.file, kernel.out_h, kernel.threads) == (None, 1, 0)


def test_a_box_outside_of_an_image_of_known_size_is_refused(jpegs: list[Path]) -> None:
    files = native_core.open_files(jpegs[:1])
    with pytest.raises(ValueError, match="box: sample 0: expected a box inside the image"):
        native_core.submit(files, [(38, 0, 8, 8)], size=[45, 37])


def test_floats_need_a_table(jpegs: list[Path]) -> None:
    files = native_core.open_files(jpegs[:1])
    with pytest.raises(ValueError, match="lut"):
        native_core.submit(files, [(0, 0, 8, 8)], dtype=1)


def test_files_of_another_class_are_a_type_error() -> None:
    with pytest.raises(TypeError, match="files"):
        native_core.submit([], np.zeros((0, 4)))


@pytest.mark.parametrize(
    "large",
    [
        {"size": [[70_000, 37], [45, 37]]},
        {"size": [[46, 37], [45, 37]], "most_pixels": 45 * 37},
        {"resized": [[8, 70_000], [8, 8]], "window": [[0, 40_000_000], [0, 0]]},
        {"size": [[2**31 - 1] * 2, [45, 37]], "box": [[2**31 - 9, 0, 8, 8], [0, 0, 8, 8]]},
    ],
)
def test_a_sample_with_a_side_above_65535_is_left_to_pillow(
    jpegs: list[Path], large: dict[str, Any]
) -> None:
    files = native_core.open_files(jpegs)
    given = {
        name: value if isinstance(value, int) else np.array(value, np.int32)
        for name, value in large.items()
    }
    box = given.pop("box", [(0, 0, 8, 8)] * 2)
    result = native_core.submit(files, box, **given).wait()
    assert result.status.tolist() == [_native.UNSUPPORTED, _native.OK]


def test_samples_with_a_side_above_65535_are_left_to_pillow(jpegs: list[Path]) -> None:
    files = native_core.open_files(jpegs)
    wide = native_core.submit(files, [(0, 0, 8, 8)] * 2, out_w=70_000, out_h=8).wait()
    assert wide.status.tolist() == [_native.UNSUPPORTED] * 2
    assert (wide.memory == 77).all()


def test_a_number_is_no_batch_to_mix() -> None:
    with pytest.raises(ValueError, match="batch: expected at least one dimension"):
        native_core.core().mix_up(np.array(1.0, np.float32), 0.5, 0.5)
