"""Random parameters have the same distribution as those that torchvision draws.

Two samples of one size with fixed seeds, ours and torchvision's; Kolmogorov-Smirnov for numbers
on a scale, chi-square for choices, both at one in a thousand.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

import torchvision_oracle
from fastload._transforms.geometry.draws import Numbers
from fastload._transforms.pixels import erasing
from fastload._transforms.pixels import operations as pixels
from fastload._transforms.recognise import recognise
from fastload._transforms.sample_params import SampleParams, draw

N = 3000
W, H = 120, 90


def drawn(*chain: Any, n: int = N) -> SampleParams:
    plan = recognise(v1.Compose(list(chain)))
    sizes = np.tile(np.array([[W, H]], np.int32), (n, 1))
    params = draw(plan, sizes, Numbers(12, 3, np.arange(n)))[1]
    assert params is not None
    return params


def ours(transform: Any) -> SampleParams:
    return drawn(transform, v1.PILToTensor())


def values(params: SampleParams, code: int, value: int = 0) -> np.ndarray:
    return params.values[:, :, value][params.codes == code]


def same_scale(mine: Sequence[float], theirs: Sequence[float]) -> None:
    """Kolmogorov-Smirnov for two samples."""
    a, b = np.sort(mine), np.sort(theirs)
    at = np.concatenate([a, b])
    below = [np.searchsorted(x, at, side="right") / len(x) for x in (a, b)]
    distance = np.abs(below[0] - below[1]).max()
    assert distance < 1.95 * math.sqrt((len(a) + len(b)) / (len(a) * len(b)))


def same_choices(mine: Sequence[Any], theirs: Sequence[Any]) -> None:
    """Chi-square for two samples; rare outcomes count together."""
    outcomes = sorted({*mine, *theirs}, key=str)
    counts = np.array([[list(x).count(o) for o in outcomes] for x in (mine, theirs)], float)
    rare = counts.sum(axis=0) < 10
    if rare.any():
        counts = np.column_stack([counts[:, ~rare], counts[:, rare].sum(axis=1)])
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
    used = expected.min(axis=0) > 0
    chi = ((counts - expected)[:, used] ** 2 / expected[:, used]).sum()
    free = max(1, int(used.sum()) - 1)
    # Wilson and Hilferty: the cube root of chi-square is nearly normal; 3.1 is one in a thousand
    assert ((chi / free) ** (1 / 3) - 1 + 2 / (9 * free)) / math.sqrt(2 / (9 * free)) < 3.1


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(5)
    random.seed(5)


def test_the_tests_tell_distributions_apart() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(AssertionError):
        same_scale(rng.uniform(0, 1, N), rng.uniform(0, 1, N) ** 1.2)
    with pytest.raises(AssertionError):
        same_choices(rng.integers(0, 10, N).tolist(), rng.integers(0, 11, N).tolist())


def test_color_jitter() -> None:
    jitter = v1.ColorJitter(0.4, (0.3, 1.5), 0.9, 0.3)
    params = ours(jitter)
    ranges = jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue
    theirs = [jitter.get_params(*ranges) for _ in range(N)]
    codes = (pixels.BRIGHTNESS, pixels.CONTRAST, pixels.SATURATION)
    for k, code in enumerate(codes):
        same_scale(values(params, code), [params[1 + k] for params in theirs])
    shifts = [int(np.int32(params[4] * 255).astype(np.uint8)) for params in theirs]
    same_scale(values(params, pixels.HUE), shifts)
    orders = [tuple(row) for row in params.codes.tolist()]
    names = (*codes, pixels.HUE)
    same_choices(orders, [tuple(names[i] for i in params[0].tolist()) for params in theirs])


def test_probabilities() -> None:
    for transform, code in (
        (v1.RandomGrayscale(0.1), pixels.GRAYSCALE),
        (v1.RandomInvert(0.7), pixels.INVERT),
        (v1.RandomApply([v1.Grayscale(3)], p=0.25), pixels.GRAYSCALE),
    ):
        share = float((ours(transform).codes == code).mean())
        p = transform.p
        assert abs(share - p) < 3.3 * math.sqrt(p * (1 - p) / N)


def test_choices_and_orders() -> None:
    def kinds(transform: Any) -> list[Any]:
        return [tuple(code for code in row if code) for row in ours(transform).codes.tolist()]

    three = [v1.RandomInvert(1.0), v1.Grayscale(3), v1.RandomEqualize(1.0)]
    codes = [pixels.INVERT, pixels.GRAYSCALE, pixels.EQUALIZE]
    chosen = [(code,) for code in random.choices(codes, weights=[1, 2, 5], k=N)]
    same_choices(kinds(v1.RandomChoice(three, p=[1, 2, 5])), chosen)
    same_choices(kinds(v2.RandomChoice(three, p=[0.1, 0.2, 0.5])), chosen)
    orders = random.choices(list(itertools.permutations(codes)), k=N)
    same_choices(kinds(v1.RandomOrder(three)), orders)


def test_rotation_and_affine() -> None:
    rotation = v1.RandomRotation((-20, 50))
    turned = ours(rotation)
    angles = np.degrees(np.arctan2(turned.values[:, 0, 3], turned.values[:, 0, 0]))
    theirs = [rotation.get_params(rotation.degrees) for _ in range(N)]
    same_scale(np.abs(angles), np.abs(theirs))
    affine = v1.RandomAffine(0, (0.2, 0.4), (0.5, 1.5))
    moved = ours(affine).values[:, 0]
    params = [
        affine.get_params(affine.degrees, affine.translate, affine.scale, None, [W, H])
        for _ in range(N)
    ]
    same_scale(1 / moved[:, 0], [scale for _, _, scale, _ in params])
    # matrix[2] = cx - (cx + tx) / scale
    same_scale((W / 2 - moved[:, 2]) / moved[:, 0] - W / 2, [t[0] for _, t, _, _ in params])
    same_scale((H / 2 - moved[:, 5]) / moved[:, 4] - H / 2, [t[1] for _, t, _, _ in params])
    sheared = ours(v1.RandomAffine(0, shear=(-5, 20, 1, 9))).values[:, 0]
    params = [affine.get_params([0, 0], None, None, [-5, 20, 1, 9], [W, H]) for _ in range(N)]
    same_scale(np.degrees(np.arctan(sheared[:, 3])), [shear[1] for *_, shear in params])


def test_blur() -> None:
    blur = v1.GaussianBlur(9, (0.3, 3.0))
    sigmas = [blur.get_params(*blur.sigma) for _ in range(N)]
    ratio = values(ours(blur), pixels.BLUR, 3) / values(ours(blur), pixels.BLUR, 2)
    same_scale(np.sqrt(-0.5 / np.log(ratio)), sigmas)


@pytest.mark.parametrize("version", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("name", ["RandAugment", "TrivialAugmentWide", "AutoAugment"])
def test_policies(name: str, version: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operations and magnitudes that torchvision applies, against those in the slots."""
    from torchvision.transforms import autoaugment

    count = 800
    policy = getattr(version, name)()
    applied: list[tuple[str, float]] = []

    def note(image: Any, op: str, magnitude: float, *args: Any, **kwargs: Any) -> Any:
        applied.append((op, round(magnitude, 3)))
        return image

    if version is v1:
        monkeypatch.setattr(autoaugment, "_apply_op", note)
    else:
        monkeypatch.setattr(
            type(policy), "_apply_image_or_video_transform", lambda s, *a, **k: note(*a, **k)
        )
    from PIL import Image

    image = Image.new("RGB", (W, H))
    for _ in range(count):
        policy(image)
    names = {
        "Brightness": pixels.BRIGHTNESS,
        "Color": pixels.SATURATION,
        "Contrast": pixels.CONTRAST,
        "Sharpness": pixels.SHARPNESS,
        "Posterize": pixels.POSTERIZE,
        "Solarize": pixels.SOLARIZE,
        "AutoContrast": pixels.AUTOCONTRAST,
        "Equalize": pixels.EQUALIZE,
        "Invert": pixels.INVERT,
        "Identity": pixels.NONE,
    }
    params = drawn(policy, v1.PILToTensor(), n=count)
    mine = [code for code in params.codes.reshape(-1).tolist() if code]
    theirs = [names.get(op, pixels.AFFINE) for op, _ in applied if op != "Identity"]
    # a rotation or translation by zero is an affine map in torchvision and no operation here
    if name == "TrivialAugmentWide":
        turned = [k for k, (op, m) in enumerate(applied) if op == "Rotate" and m == 0]
        applied = [pair for k, pair in enumerate(applied) if k not in turned]
        theirs = [names.get(op, pixels.AFFINE) for op, _ in applied if op != "Identity"]
    same_choices(mine, theirs)
    factors = [1 + m for op, m in applied if op in ("Brightness", "Color", "Contrast", "Sharpness")]
    codes = [names[op] for op in ("Brightness", "Color", "Contrast", "Sharpness")]
    ours_factors = np.concatenate([values(params, code) for code in codes])
    same_scale(ours_factors.round(3), np.round(factors, 3))


@pytest.mark.parametrize("alpha", [1.0, 0.4, 3.0])
def test_shares_of_a_mixture(alpha: float) -> None:
    mix = v1.AugMix(mixture_width=2, alpha=alpha)
    params = ours(mix)
    own = values(params, pixels.MIX_BEGIN)
    theirs = mix._sample_dirichlet(torch.tensor([alpha, alpha]).expand(N, -1)).numpy()
    same_scale(own, theirs[:, 0])
    shares = params.values[:, :, 0][params.codes == pixels.MIX_ADD].reshape(N, 2)
    assert np.abs(own + shares.sum(axis=1) - 1).max() < 1e-6
    parts = mix._sample_dirichlet(torch.tensor([alpha, alpha]).expand(N, -1)).numpy()
    same_scale(shares[:, 0], parts[:, 0] * theirs[:, 1])


@pytest.mark.parametrize("version", [v1, v2], ids=["v1", "v2"])
def test_chains_of_a_mixture(version: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number, kinds and magnitudes of the operations that torchvision applies."""
    from PIL import Image
    from torchvision.transforms import autoaugment

    mix, count = version.AugMix(severity=8), 400
    applied: list[tuple[str, float]] = []

    def note(image: Any, op: str, magnitude: float, *args: Any, **kwargs: Any) -> Any:
        applied.append((op, magnitude))
        return image

    if version is v1:
        monkeypatch.setattr(autoaugment, "_apply_op", note)
    else:
        monkeypatch.setattr(
            type(mix), "_apply_image_or_video_transform", lambda s, *a, **k: note(*a, **k)
        )
    image, depths = Image.new("RGB", (W, H)), []
    for _ in range(count):
        before = len(applied)
        mix(image)
        depths.append(len(applied) - before)
    params = drawn(mix, v1.PILToTensor(), n=count)
    operations = (params.codes >= pixels.TORCH_BRIGHTNESS) | np.isin(
        params.codes, (pixels.POSTERIZE, pixels.SOLARIZE, pixels.EQUALIZE)
    )
    same_choices(operations.sum(axis=1).tolist(), depths)
    codes = {
        "Brightness": pixels.TORCH_BRIGHTNESS,
        "Color": pixels.TORCH_SATURATION,
        "Contrast": pixels.TORCH_CONTRAST,
        "Sharpness": pixels.TORCH_SHARPNESS,
        "AutoContrast": pixels.TORCH_AUTOCONTRAST,
        "Posterize": pixels.POSTERIZE,
        "Solarize": pixels.SOLARIZE,
        "Equalize": pixels.EQUALIZE,
    }
    theirs = [codes.get(op, pixels.TORCH_AFFINE) for op, _ in applied]
    same_choices(params.codes[operations].tolist(), theirs)
    for name in ("Brightness", "Color", "Contrast", "Sharpness"):
        same_scale(
            values(params, codes[name]).round(4),
            np.round([1 + m for op, m in applied if op == name], 4),
        )


def test_erasing() -> None:
    erase = v1.RandomErasing(0.6, value=3)
    params = drawn(v1.ToTensor(), erase)
    boxes = params.boxes[:, 0]
    there = boxes[boxes[:, 2] > 0]
    assert abs(len(there) / N - 0.6) < 3.3 * math.sqrt(0.24 / N)
    image = torch.zeros(3, H, W)
    params = [erase.get_params(image, erase.scale, erase.ratio, [3.0]) for _ in range(N)]
    for column, part in ((1, 0), (0, 1), (3, 2), (2, 3)):
        same_scale(there[:, column], [each[part] for each in params])


def test_noise_is_standard_normal() -> None:
    bits = torchvision_oracle.noise(0x0123456789ABCDEF, 20_000)
    same_scale(erasing.quantiles()[bits], torch.randn(20_000).tolist())
    channels = bits.reshape(4, 5000)
    assert np.abs(np.corrcoef(channels) - np.eye(4)).max() < 0.06
    quantiles = torch.from_numpy(erasing.quantiles()).double()
    assert abs(float(quantiles.mean())) < 1e-6
    assert abs(float(quantiles.std()) - 1) < 1e-3
