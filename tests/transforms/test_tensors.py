"""Chains that make a tensor first, as torchvision's v2 recommends, give torch's own levels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode as Mode
from torchvision.transforms import v2

import native_core
import releases
import torchvision_oracle
from fastload import _native
from fastload._base.slabs import SlabRing
from fastload._engine.image_engine import EngineOptions
from fastload._engine.registry import NATIVE, make_engine
from fastload._transforms.recognise import Plan, recognise
from fastload.storage.folder import FolderStore

pytestmark = pytest.mark.native

SIZES = [(61, 47), (37, 64), (50, 50), (9, 120), (3, 2), (300, 210), (5, 5)]
FLOATS = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4])]
CHAINS: dict[str, Callable[[], list[Any]]] = {
    "recommended": lambda: [
        v2.ToImage(),
        v2.RandomResizedCrop((24, 32), antialias=True),
        v2.RandomHorizontalFlip(),
        *FLOATS,
    ],
    "bicubic": lambda: [
        v2.PILToTensor(),
        v2.RandomResizedCrop((31, 17), interpolation=Mode.BICUBIC),
    ],
    "larger": lambda: [v2.ToImage(), v2.Resize((140, 150))],
    "larger bicubic": lambda: [v2.ToImage(), v2.Resize((140, 333), Mode.BICUBIC)],
    "one side": lambda: [v2.ToImage(), v2.Resize((60, 50))],
    "one pixel of a crop": lambda: [v2.ToImage(), v2.RandomResizedCrop(1, (0.1, 0.5))],
    "evaluation": lambda: [v2.ToImage(), v2.Resize(40), v2.CenterCrop(32), *FLOATS],
    "no larger than": lambda: [v2.ToImage(), v2.Resize(20, max_size=70), v2.CenterCrop((20, 70))],
    "Pillow, then torch": lambda: [v2.Resize((70, 90)), v2.ToImage(), v2.Resize((33, 20))],
    "padded": lambda: [v2.ToImage(), v2.Pad(3, fill=9), v2.Resize((30, 31), Mode.BICUBIC)],
    "point operations": lambda: [
        v2.ToImage(),
        v2.Resize((40, 44)),
        v2.RandomVerticalFlip(),
        v2.RandomInvert(),
        v2.RandomPosterize(3),
        v2.RandomSolarize(77.0),
        v2.RandomCrop(32),
        *FLOATS,
    ],
    "turned upside down as floats": lambda: [v2.ToImage(), *FLOATS, v2.RandomVerticalFlip(0.7)],
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FolderStore:
    folder = tmp_path_factory.mktemp("tensors") / "a"
    folder.mkdir()
    for number, size in enumerate(SIZES):
        torchvision_oracle.picture(*size, seed=number).save(folder / f"{number}.bmp")
    return FolderStore(str(folder.parent))


def made(store: FolderStore, plan: Plan, index: int, seed: int) -> torch.Tensor:
    decoder = make_engine(NATIVE, store, plan, EngineOptions(threads=0, ring=SlabRing(2)))
    images = decoder.submit(np.array([index]), seed=seed, epoch=0).result()
    assert isinstance(images, torch.Tensor)
    return images[0].clone()


@releases.in_integers
@pytest.mark.parametrize("name", CHAINS)
def test_tensors_are_what_torchvision_makes_of_them(
    name: str, store: FolderStore, count: Callable[[int, int], int]
) -> None:
    chain = v2.Compose(CHAINS[name]())
    plan = recognise(chain)
    assert isinstance(plan, Plan), plan
    for index, size in enumerate(SIZES):
        image = torchvision_oracle.picture(*size, seed=index)
        for seed in range(count(2, 50)):
            theirs = torchvision_oracle.sample(chain, image, index, seed).as_subclass(torch.Tensor)
            ours = made(store, plan, index, seed)
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs), (index, seed)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.usefixtures("simd")
def test_any_size_to_any_size(mode: str, count: Callable[[int, int], int]) -> None:
    rng = np.random.default_rng(3)
    for _ in range(count(60, 2000)):
        h, w, to_h, to_w = (int(side) for side in np.exp(rng.uniform(0, 6, 4)).astype(int))
        if to_h == to_w == 1:  # torch fails with an internal error
            continue
        levels = rng.integers(0, 2, (h, w, 3), np.uint8) * np.uint8(255)
        out = np.zeros(to_h * to_w * 3, np.uint8)
        status = native_core.resample(
            levels, (to_w, to_h), (0, 0), out=out, out_h=to_h, out_w=to_w,
            filter=6 if mode == "bilinear" else 7, order=1,
        )  # fmt: skip
        assert status.tolist() == [_native.OK]
        theirs = torch.nn.functional.interpolate(
            torch.from_numpy(levels).permute(2, 0, 1)[None].contiguous(),
            (to_h, to_w), mode=mode, antialias=True,
        )  # fmt: skip
        expected = theirs[0].permute(1, 2, 0).numpy()
        np.testing.assert_array_equal(out.reshape(to_h, to_w, 3), expected)


@releases.in_integers
def test_colours_on_tensors_stay_in_python() -> None:
    found = recognise(v2.Compose([v2.ToImage(), v2.Resize(8), v2.ColorJitter(0.3)]))
    assert "ColorJitter comes after the image is a tensor" in found.reason  # type: ignore[union-attr]
    for late in (
        [v2.ToImage(), *FLOATS, v2.Resize((8, 8))],
        [v2.ToImage(), v2.Resize((8, 8), antialias=False)],
        [v2.ToImage(), v2.Resize((8, 8), Mode.NEAREST)],
        [v2.ToImage(), v2.RandomErasing(), v2.RandomVerticalFlip()],
    ):
        assert not isinstance(recognise(v2.Compose(late)), Plan), late
