"""Sample parameters for the core: the checks before anything runs, and what they write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import in_core
from fastload import _native
from native_core import encode, open_files, photo, submit

pytestmark = pytest.mark.native

W, H = 40, 30


@pytest.fixture
def files(tmp_path: Path) -> Any:
    (tmp_path / "a.bmp").write_bytes(encode(photo(W, H), "BMP"))
    return open_files([tmp_path / "a.bmp"])


def stages(**changed: Any) -> tuple[np.ndarray, ...]:
    """One sample through a mirror and a crop stage that keeps all of it."""
    parts: dict[str, Any] = {
        "first_size": [[W, H]],
        "codes": [[12]],
        "values": [[[0.0] * 10]],
        "frames": [[[0, 0, W, H, W, H, 0, 0, 0, W, H]]],
        "settings": [[1, 2, 0, 0, 0]],
    }
    parts.update(changed)
    return tuple(
        np.array(value, np.float64 if name == "values" else np.int32)
        for name, value in parts.items()
    )


def run(files: Any, **given: Any) -> np.ndarray:
    done = submit(files, [[0, 0, W, H]], **given).wait()
    assert done.status.tolist() == [0]
    return done.images[0]


def test_stages_are_applied(files: Any) -> None:
    assert np.array_equal(run(files, stages=stages()), np.asarray(photo(W, H))[:, ::-1])
    assert np.array_equal(run(files, stages=stages(codes=[[0]])), np.asarray(photo(W, H)))


def frame(**changed: int) -> list[list[list[int]]]:
    names = "x y w h resized_w resized_h left top flip out_w out_h".split()
    values = dict(zip(names, [0, 0, W, H, W, H, 0, 0, 0, W, H]))
    return [[[{**values, **changed}[name] for name in names]]]


AFFINE = [1.0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
WRONG = {
    "no frame": ({"settings": np.zeros((0, 5))}, "at least one frame"),
    "no size": ({"first_size": [[0, H]]}, "first_size: sample 0"),
    "an unknown code": ({"codes": [[999]]}, "codes: sample 0"),
    "a negative code": ({"codes": [[-1]]}, "codes: sample 0"),
    "a box outside": ({"frames": frame(x=1)}, "a box inside the current image"),
    "an empty box": ({"frames": frame(w=0)}, "a box inside the current image"),
    "a box that overflows": ({"frames": frame(x=2**31 - 1)}, "a box inside the current image"),
    "no side": ({"frames": frame(resized_w=0)}, "sides of 1 up to 65,535"),
    "a window far away": ({"frames": frame(left=2**25)}, "within 2\\*\\*24"),
    "another result": ({"frames": frame(out_w=W - 1)}, "a last frame of out_w x out_h"),
    "operations left over": ({"settings": [[0, 2, 0, 0, 0]]}, "each operation once"),
    "operations not there": ({"settings": [[2, 2, 0, 0, 0]]}, "each operation once"),
    "an unknown filter": ({"settings": [[1, 8, 0, 0, 0]]}, "a filter and three levels"),
    "a fill of 256": ({"settings": [[1, 2, 0, 256, 0]]}, "a filter and three levels"),
    "too few values": ({"codes": [[1]], "values": np.zeros((1, 1, 0))}, "values: sample 0"),
    "not a number": ({"codes": [[1]], "values": [[[np.nan] * 10]]}, "values: sample 0"),
    "infinite": ({"codes": [[17]], "values": [[[np.inf] * 10]]}, "values: sample 0"),
    "fewer than no bits": ({"codes": [[9]], "values": [[[-1.0] * 10]]}, "values: sample 0"),
    "a map of no number": (
        {"codes": [[17]], "values": [[[np.nan] * 6 + [0] * 4]]},
        "values: sample 0",
    ),
    "a hue of 256": ({"codes": [[4]], "values": [[[256.0] * 10]]}, "values: sample 0"),
    "a quarter turn, and a box as before": ({"codes": [[15]]}, "a box inside the current image"),
    "an affine filter": (
        {"codes": [[17]], "values": [[AFFINE[:6] + [1, 0, 0, 0]]]},
        "values: sample 0",
    ),
    "an affine fill": (
        {"codes": [[17]], "values": [[AFFINE[:6] + [0, 0, -1, 0]]]},
        "values: sample 0",
    ),
    "a blur as wide as the image": (
        {"codes": [[18]], "values": [[[float(W), 0.0] + [0.0] * 60]]},
        "values: sample 0",
    ),
    "a box blur of a negative radius": (
        {"codes": [[29]], "values": [[[-1.0, 0.0, 1.0]]]},
        "values: sample 0",
    ),
    "a box blur of a huge radius": (
        {"codes": [[29]], "values": [[[1.0, 65_536.0, 1.0]]]},
        "values: sample 0",
    ),
    "a box blur of neither kind": (
        {"codes": [[29]], "values": [[[1.0, 1.0, 2.0]]]},
        "values: sample 0",
    ),
    "a perspective without a size": (
        {"codes": [[30]], "values": [[[1.0] * 8 + [2.0, 0.0, 0.0, 0.0]]]},
        "values: sample 0",
    ),
    "a perspective of no size": (
        {"codes": [[30]], "values": [[[1.0] * 8 + [2.0, 0.0, 0.0, 0.0, 0.0, 9.0]]]},
        "values: sample 0",
    ),
    "a blur without its weights": (
        {"codes": [[18]], "values": [[[6.0, 6.0] + [0.0] * 8]]},
        "values: sample 0",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_stages_are_checked_before_anything_runs(files: Any, name: str) -> None:
    changed, message = WRONG[name]
    out = np.full(3 * W * H, 77, np.uint8)
    with pytest.raises(ValueError, match=message):
        submit(files, [[0, 0, W, H]], stages=stages(**changed), out=out)
    assert (out == 77).all()


def erased(**changed: Any) -> tuple[np.ndarray, ...]:
    parts = {
        "boxes": np.array([[[3, 4, 5, 6]]], np.int32),
        "keys": np.zeros((1, 1), np.uint64),
        "noise": np.zeros(1, np.uint8),
        "values": np.array([1, 2, 3, 0], np.uint8),
    }
    return tuple({**parts, **changed}.values())


def test_a_rectangle_is_erased_and_nothing_else(files: Any) -> None:
    expected = np.array(photo(W, H))
    expected[4:10, 3:8] = 1, 2, 3
    assert np.array_equal(run(files, erase=erased()), expected)


@pytest.mark.parametrize(
    "box", [[-1, 0, 2, 2], [0, 0, W + 1, 2], [W - 1, 0, 2, 2], [0, H, 1, 1], [2**31 - 1, 0, 9, 9]]
)
def test_a_rectangle_outside_is_refused(files: Any, box: list[int]) -> None:
    with pytest.raises(ValueError, match="a rectangle inside the result"):
        submit(files, [[0, 0, W, H]], erase=erased(boxes=np.array([[box]], np.int32)))


def test_a_wrong_number_of_erase_values_is_refused(files: Any) -> None:
    for changed in ({"noise": np.ones(1, np.uint8)}, {"values": np.zeros(3, np.uint8)}):
        with pytest.raises(ValueError, match="erase values"):
            submit(files, [[0, 0, W, H]], erase=erased(**changed))


def test_what_the_core_cannot_decode_is_left_to_pillow_with_its_parameters(tmp_path: Path) -> None:
    from torchvision import transforms as v1

    from fastload._base.slabs import SlabRing
    from fastload._engine.image_engine import EngineOptions
    from fastload._engine.registry import NATIVE, make_engine
    from fastload._transforms.recognise import recognise
    from fastload.storage.folder import FolderStore

    (tmp_path / "a").mkdir()
    for name in ("1.png", "2.tif"):
        photo(W, H).save(tmp_path / "a" / name)
    chain = [v1.ColorJitter(0.5, 0.5, 0.5, (0.2, 0.2)), v1.ToTensor(), v1.RandomErasing(1.0)]
    plan = recognise(v1.Compose(chain))
    store = FolderStore(str(tmp_path))
    decoder = make_engine(NATIVE, store, plan, EngineOptions(threads=1, ring=SlabRing(2)))
    made = decoder.submit(np.arange(2), seed=1, epoch=0).result()
    assert torch.equal(made[1], in_core.made(plan, photo(W, H), 1, seed=1))
    assert not torch.equal(made[0], made[1])


@pytest.mark.parametrize(
    "large", [{"frames": frame(resized_w=70_000)}, {"first_size": [[W, 70_000]]}]
)
def test_a_crop_stage_with_a_side_above_65535_is_left_to_pillow(
    files: Any, large: dict[str, Any]
) -> None:
    done = submit(files, [[0, 0, W, H]], stages=stages(**large)).wait()
    assert done.status.tolist() == [_native.UNSUPPORTED]
