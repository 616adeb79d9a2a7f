"""Views of a sample that begin alike share that; those that differ in anything do not."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload._transforms.pixels import operations
from native_core import encode, fields, open_files, photo, start

pytestmark = pytest.mark.native

W, H = 40, 30  # of the photo
FIRST_W, FIRST_H = 24, 20  # after the first crop stage, some of it filled
OPERATIONS = [operations.BRIGHTNESS, operations.SATURATION]
VALUES = [[0.7, 0.0], [1.6, 0.0]]

BASE: dict[str, Any] = {
    "box": [3, 4, 30, 20],
    "resized": [26, 18],
    "window": [-2, 1],
    "flip": 0,
    "filter": 2,
    "fill": (1, 2, 3),
    "first_size": [FIRST_W, FIRST_H],
    "codes": OPERATIONS,
    "values": VALUES,
    "frames": [[0, 0, 20, 16, 10, 9, 0, 0, 0, 10, 9]],
    "settings": [[2, 2, 0, 0, 0]],
}
VIEWS: dict[str, dict[str, Any]] = {
    "the same": {},
    "another size": {"frames": [[2, 1, 18, 16, 12, 12, 0, 0, 1, 12, 12]]},
    "another filter of the size": {"settings": [[2, 3, 0, 0, 0]]},
    "another place": {"box": [4, 4, 30, 20]},
    "another box": {"box": [3, 4, 29, 20]},
    "resized otherwise": {"resized": [25, 18]},
    "another window": {"window": [-2, 0]},
    "mirrored": {"flip": 1},
    "another filter": {"filter": 3},
    "filled otherwise": {"fill": (200, 2, 3)},
    "smaller at first": {"first_size": [FIRST_W - 1, FIRST_H]},
    "another factor": {"values": [[0.7, 0.0], [1.5, 0.0]]},
    "another operation": {"codes": [operations.BRIGHTNESS, operations.CONTRAST]},
    "one operation less": {
        "codes": OPERATIONS[:1],
        "values": VALUES[:1],
        "settings": [[1, 2, 0, 0, 0]],
    },
    "values that nobody reads": {"values": [[0.7, 0.0, 0.0], [1.6, 0.0, 0.0]]},
    "a third stage": {
        "codes": [*OPERATIONS, operations.INVERT],
        "values": [*VALUES, [0.0, 0.0]],
        "frames": [
            [0, 0, 20, 16, 20, 16, 0, 0, 0, 20, 16],
            [0, 0, 20, 16, 10, 9, 0, 0, 0, 10, 9],
        ],
        "settings": [[2, 2, 0, 0, 0], [1, 2, 0, 0, 0]],
    },
}


def submission(files: Any, view: str) -> dict[str, Any]:
    """Fields of a BatchSpec for a view."""
    given = {**BASE, **VIEWS[view]}
    frames = np.array([given["frames"]], np.int32)
    found = fields(
        files,
        [given["box"]],
        size=[[W, H]],
        resized=[given["resized"]],
        window=[given["window"]],
        flip=given["flip"],
        filter=given["filter"],
        fill=given["fill"],
        out_w=int(frames[0, -1, 9]),
        out_h=int(frames[0, -1, 10]),
    )
    found["stages"] = (
        np.array([given["first_size"]], np.int32),
        np.array([given["codes"]], np.int32),
        np.array([given["values"]], np.float64),
        frames,
        np.array(given["settings"], np.int32),
    )
    return found


def alone(files: Any, view: str) -> np.ndarray:
    found = submission(files, view)
    start(files, found).wait()
    assert found["status"].tolist() == [0], view
    made: np.ndarray = found["out"]
    return made


def together(files: Any, views: list[str], region: list[int]) -> list[np.ndarray]:
    made = [submission(files, view) for view in views]
    jobs = [start(files, {**each, "begin": False}) for each in made[1:]]
    regions = np.array([region], np.int32)
    start(files, {**made[0], "views": (jobs, regions)}).wait()
    assert [each["status"].tolist() for each in made] == [[0]] * len(views), views
    return [each["out"] for each in made]


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_windows_of_one_resized_image_are_as_they_are_alone(tmp_path: Path, format: str) -> None:
    path = tmp_path / "photo"
    path.write_bytes(encode(photo(W, H), format))
    files = open_files([path])
    rows = 3

    def view(window: list[int], flip: int, resized: list[int], row: int) -> dict[str, Any]:
        found = fields(
            files,
            [[3, 4, 30, 20]],
            size=[[W, H]],
            resized=[resized],
            window=[window],
            flip=flip,
            out_w=12,
            out_h=11,
        )
        found["out"] = np.full(rows * found["out"].size, 7, np.uint8)
        return {**found, "rows": np.array([row])}

    crops = [(window, flip) for window in ([0, 0], [9, 0], [-2, 5], [5, 4]) for flip in (0, 1)]
    for resized in ([20, 15], [41, 37], [30, 20], [20, 20]):
        alone = [view(*crop, resized, 1) for crop in crops]
        for each in alone:
            start(files, each).wait()
        together = [view(*crop, resized, 1) for crop in crops]
        jobs = [start(files, {**each, "begin": False}) for each in together[1:]]
        regions = np.array([[3, 4, 30, 20]], np.int32)
        start(files, {**together[0], "views": (jobs, regions)}).wait()
        for one, other in zip(alone, together, strict=True):
            assert one["status"].tolist() == other["status"].tolist() == [0]
            assert np.array_equal(one["out"], other["out"])
            first, made, last = other["out"].reshape(rows, -1)
            assert (first == 7).all() and (last == 7).all() and (made != 7).any()


@pytest.mark.parametrize("format", ["BMP", "JPEG"])
@pytest.mark.parametrize("region", [[0, 0, 0, 0], [1, 2, 35, 26]])
def test_views_are_as_they_are_alone_however_they_begin(
    tmp_path: Path, format: str, region: list[int]
) -> None:
    path = tmp_path / "photo"
    path.write_bytes(encode(photo(W, H), format))
    files = open_files([path])
    expected = {view: alone(files, view) for view in VIEWS}
    different = {view: made.tobytes() for view, made in expected.items()}
    same = {view for view, made in different.items() if made == different["the same"]}
    assert same == {"the same", "values that nobody reads", "smaller at first"}
    for views in itertools.product(VIEWS, repeat=2):
        for order in (list(views), [views[0], *views]):
            for view, made in zip(order, together(files, order, region), strict=True):
                assert np.array_equal(made, expected[view]), (order, view)
