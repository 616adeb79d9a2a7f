"""torchvision's Gaussian blur of images that are not decoded yet."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import functional as F
from torchvision.transforms import v2

from fastload._base.slabs import SlabRing
from fastload._sources.deferred import lowering, torch_blur
from fastload._sources.deferred.batch import BatchDecoder
from fastload._sources.deferred.switch import deferring
from fastload._sources.deferred.tensor import DeferredTensor
from fastload._transforms.pixels import operations as pixels
from native_core import core

pytestmark = pytest.mark.native

SIZE = (40, 33)


@pytest.fixture(params=["avx512", "avx2", "scalar"])
def simd(request: pytest.FixtureRequest) -> Iterator[None]:
    if not core().set_simd(request.param):
        pytest.skip(f"this processor lacks {request.param}")
    yield
    core().set_simd("")


@pytest.fixture(autouse=True)
def nothing_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_blur, "_alike", {})
    monkeypatch.setattr(torch_blur, "_COMPARED", 20_000)


def noise(size: tuple[int, int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)


@pytest.mark.parametrize("size", [(3, 2), (16, 4), (17, 5), (31, 64), (100, 61)])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (5, 1), (1, 3), (3, 23), (9, 7)])
def test_the_core_blurs_as_torchvision(
    simd: None, size: tuple[int, int], kernel: tuple[int, int]
) -> None:
    if kernel[0] // 2 >= size[0] or kernel[1] // 2 >= size[1]:
        pytest.skip("torch refuses to reflect more pixels than there are")
    image = noise(size)
    for sigma in (0.1, 0.8, 2.0):
        for functional, is_v2 in ((F, False), (v2.functional, True)):
            theirs = functional.gaussian_blur(Image.fromarray(image), list(kernel), [sigma, sigma])
            sides = [torch_blur.weights(is_v2, taps, sigma) for taps in kernel]
            values = list(torch_blur.values(*sides))  # type: ignore[arg-type]
            made = image.copy()
            core().pixels(made, np.array([pixels.TORCH_BLUR], np.int32), np.array([values], float))
            assert np.array_equal(made, theirs), (sigma, is_v2)


def opened(data: bytes, blur: Any) -> torch.Tensor:
    return F.to_tensor(blur(Image.open(io.BytesIO(data)).convert("RGB")))


def encoded(image: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    return stream.getvalue()


BLURS: list[Any] = [
    v1.GaussianBlur(5),
    v1.GaussianBlur((3, 9), (0.1, 2.0)),
    v1.RandomApply([v1.GaussianBlur(23)], p=0.5),
    v2.GaussianBlur(7),
    v1.Compose([v1.ColorJitter(0.4, 0.4), v1.GaussianBlur(3), v1.RandomHorizontalFlip()]),
]


@pytest.mark.parametrize("which", range(len(BLURS)))
def test_blurred_images_are_made_by_the_core(which: int) -> None:
    data = [encoded(noise(SIZE, seed)) for seed in range(6)]
    torch.manual_seed(which)
    expected = torch.stack([opened(one, BLURS[which]) for one in data])
    torch.manual_seed(which)
    with deferring():
        deferred = [opened(one, BLURS[which]) for one in data]
    recordings = []
    for one in deferred:
        assert isinstance(one, DeferredTensor)
        assert one.recording is not None
        recordings.append(one.recording)
    decoder = BatchDecoder(0, SlabRing(1))
    filling = decoder.begin(tuple(expected.shape), tuple(expected.stride()), torch.float32)
    filling.add(0, recordings)
    assert torch.equal(filling.result(), expected)
    assert decoder.counts.native == len(data)


def recording() -> Any:
    with deferring():
        made = opened(encoded(noise(SIZE)), v1.GaussianBlur(5))
    assert isinstance(made, DeferredTensor)
    return made.recording


def test_a_torch_that_sums_otherwise_blurs_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lowering.lower([recording()], SIZE)
    monkeypatch.setattr(torch_blur, "_alike", {})
    other = torch_blur.weights(False, 5, 1.2)
    monkeypatch.setattr(torch_blur, "weights", lambda v2, size, sigma: other)
    assert not lowering.lower([recording()], SIZE)


def test_images_of_many_sizes_are_not_compared() -> None:
    for side in range(30, 30 + torch_blur._MOST_COMPARED):
        assert torch_blur.blurs_alike(False, (3, 3), (side, side))
    assert not torch_blur.blurs_alike(False, (3, 3), (90, 90))
    assert torch_blur.blurs_alike(False, (3, 3), (30, 30))


def test_tiny_images_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def compared(*given: object) -> bool:
        raise AssertionError("it would take as many of them as have the pixels of a few others")

    monkeypatch.setattr(torch_blur, "_alike", {})
    monkeypatch.setattr(torch_blur, "_compared", compared)
    for size in ((2, 2), (5, 4), (23, 23), (1, 500)):
        assert not torch_blur.blurs_alike(False, (3, 3), size)


def test_a_torchvision_without_these_weights_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_blur, "weights", lambda v2, size, sigma: None)
    assert not lowering.lower([recording()], SIZE)
