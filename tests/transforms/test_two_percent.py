"""Random parameters have the right distribution to 2 %, tested on large samples.

test_distributions.py asks torchvision itself, a few thousand times, which distribution that is.
Here it is written down (torchvision draws nothing but uniform numbers, choices and signs), and a
large sample is held against it: a range that ends early or a choice that is a little off fails.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from torchvision import transforms as v1
from torchvision.transforms import v2

import torchvision_oracle
from fastload._transforms.geometry import draws
from fastload._transforms.geometry.draws import Numbers
from fastload._transforms.pixels import augmix, operations, policies, timm_policy
from fastload._transforms.pixels.affine import Look
from fastload._transforms.plan import Plan
from fastload._transforms.recognise import recognise
from fastload._transforms.sample_params import SampleParams, draw

N = 100_000
W, H = 120, 90


def drawn(*chain: Any, n: int = N) -> SampleParams:
    plan = recognise(v1.Compose([*chain]))
    assert isinstance(plan, Plan), plan
    sizes = np.tile(np.array([[W, H]], np.int32), (n, 1))
    params = draw(plan, sizes, Numbers(77, 5, np.arange(n)))[1]
    assert params is not None
    return params


def ours(transform: Any, n: int = N) -> SampleParams:
    return drawn(transform, v1.PILToTensor(), n=n)


def values(params: SampleParams, code: int, value: int = 0) -> np.ndarray:
    return params.values[:, :, value][params.codes == code]


def uniform(values: np.ndarray, low: float, high: float) -> None:
    """Kolmogorov-Smirnov, one in a thousand; and both ends are reached."""
    x = np.sort((values - low) / (high - low))
    n = len(x)
    assert n > N / 4
    at = np.arange(n + 1) / n
    assert max(np.abs(x - at[1:]).max(), np.abs(x - at[:-1]).max()) < 1.95 / math.sqrt(n)
    assert -1e-9 <= x[0] < 20 / n
    assert 1 - 20 / n < x[-1] <= 1 + 1e-9


def likely(counts: Mapping[Any, int], shares: Mapping[Any, float]) -> None:
    """Chi-square against ``shares``, one in a thousand (Wilson and Hilferty)."""
    assert set(counts) <= set(shares), set(counts) - set(shares)
    n = sum(counts.values())
    assert abs(sum(shares.values()) - 1) < 1e-9
    chi = sum((counts.get(what, 0) - n * p) ** 2 / (n * p) for what, p in shares.items())
    free = max(1, len(shares) - 1)
    assert ((chi / free) ** (1 / 3) - 1 + 2 / (9 * free)) / math.sqrt(2 / (9 * free)) < 3.1


def even(whole: np.ndarray, low: int, high: int) -> None:
    """Each of the integers from ``low`` to ``high`` is as likely."""
    cells = high - low + 1
    likely(collections.Counter(whole.tolist()), {low + k: 1 / cells for k in range(cells)})


# --- geometry -------------------------------------------------------------------------------------


def boxes(op: Any, size: tuple[int, int]) -> Any:
    sizes = np.tile(np.array([size], np.int32), (N, 1))
    return draw(Plan(ops=(op,)), sizes, Numbers(6, 1, np.arange(N)))[0]


def test_boxes_of_a_random_resized_crop() -> None:
    op = draws.RandomResizedCrop((8, 8), (0.2, 0.5), (0.9, 1.1))  # the first try always fits
    x, y, w, h = boxes(op, (6400, 6400)).box.T.astype(np.float64)
    uniform(np.clip(w * h / 6400**2, 0.2, 0.5), 0.2, 0.5)
    uniform(np.clip(np.log(w / h), math.log(0.9), math.log(1.1)), math.log(0.9), math.log(1.1))
    uniform(x / (6400 - w), 0, 1)
    uniform(y / (6400 - h), 0, 1)


def test_places_reach_the_last_pixel() -> None:
    op = draws.RandomResizedCrop((8, 8), (0.25, 0.25), (1.0, 1.0))
    box = boxes(op, (16, 12)).box
    assert (box[:, 2:] == 7).all()
    even(box[:, 0], 0, 9)
    even(box[:, 1], 0, 5)
    window = boxes(draws.RandomCrop((5, 7)), (16, 12)).window
    even(window[:, 0], 0, 9)
    even(window[:, 1], 0, 7)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_flips(p: float) -> None:
    flips = boxes(draws.RandomHorizontalFlip(p), (4, 4)).flip
    likely(collections.Counter(flips.tolist()), {1: p, 0: 1 - p})


# --- colours and maps -----------------------------------------------------------------------------


def test_factors_of_a_colour_jitter() -> None:
    params = ours(v1.ColorJitter(0.4, (0.3, 1.5), 0.9, (-0.1, 0.3)))
    uniform(values(params, operations.BRIGHTNESS), 0.6, 1.4)
    uniform(values(params, operations.CONTRAST), 0.3, 1.5)
    uniform(values(params, operations.SATURATION), 0.1, 1.9)
    shifts = values(params, operations.HUE).astype(int)
    # torchvision's: the factor times 255, towards zero, as a byte
    edges = {s & 255: 1.0 for s in range(-24, 76)} | {231: 0.5, 76: 0.5, 0: 2.0}
    total = 0.4 * 255
    likely(collections.Counter(shifts.tolist()), {s: k / total for s, k in edges.items()})
    orders = collections.Counter(map(tuple, params.codes.tolist()))
    assert len(orders) == 24
    likely(orders, dict.fromkeys(orders, 1 / 24))


def test_chances_and_choices() -> None:
    for transform, code in (
        (v1.RandomInvert(0.7), operations.INVERT),
        (v2.RandomGrayscale(0.5), operations.GRAYSCALE),
        (v1.RandomApply([v1.Grayscale(3)], p=0.9), operations.GRAYSCALE),
    ):
        there = (ours(transform).codes == code).reshape(-1)
        p = transform.p
        likely(collections.Counter(there.tolist()), {True: p, False: 1 - p})
    three = [v1.RandomInvert(1.0), v1.Grayscale(3), v1.RandomEqualize(1.0)]
    names = [operations.INVERT, operations.GRAYSCALE, operations.EQUALIZE]
    chosen = collections.Counter(ours(v1.RandomChoice(three, p=[1, 2, 5])).codes[:, 0].tolist())
    likely(chosen, dict(zip(names, (1 / 8, 2 / 8, 5 / 8), strict=True)))


def test_angles_and_the_rest_of_a_map() -> None:
    turned = ours(v1.RandomRotation((-20, 50))).values[:, 0]
    angles = np.degrees(np.arctan2(turned[:, 3], turned[:, 0]))
    uniform(angles, -20, 50)
    moved = ours(v1.RandomAffine(0, (0.2, 0.4), (0.5, 1.5))).values[:, 0]
    uniform(1 / moved[:, 0], 0.5, 1.5)
    for at, side, share in ((2, W, 0.2), (5, H, 0.4)):  # matrix[at] = middle - (middle + t) / scale
        shift = (side / 2 - moved[:, at]) / moved[:, 0] - side / 2
        whole = np.rint(shift).astype(int)
        most = round(share * side)
        inner = dict.fromkeys(range(1 - most, most), 0.5 / most)
        likely(collections.Counter(whole.tolist()), inner | {-most: 0.25 / most, most: 0.25 / most})
    sheared = ours(v1.RandomAffine(0, shear=(-5, 20, 1, 9))).values[:, 0]
    # the inverse of x + tan(a) y, tan(b) x + (1 - tan(a) tan(b)) y, without a rotation
    uniform(np.degrees(np.arctan(np.abs(sheared[:, 3] / sheared[:, 4]))), 1, 9)
    sheared = ours(v1.RandomAffine(0, shear=(-5, 20))).values[:, 0]
    uniform(np.degrees(np.arctan(sheared[:, 1])), -5, 20)
    turned = ours(v1.RandomAffine((10, 40))).values[:, 0]
    uniform(np.degrees(np.arctan2(np.abs(turned[:, 3]), turned[:, 0])), 10, 40)


def test_sigmas() -> None:
    params = ours(v1.GaussianBlur(9, (0.3, 3.0)))
    ratio = values(params, operations.BLUR, 3) / values(params, operations.BLUR, 2)
    sigmas = np.sqrt(-0.5 / np.log(ratio))
    uniform(np.clip(sigmas, 0.3, 3.0), 0.3, 3.0)


# --- policies -------------------------------------------------------------------------------------


def noted(monkeypatch: pytest.MonkeyPatch) -> collections.Counter[tuple[str, float]]:
    """Counts the operations and magnitudes that all policies draw from now on."""
    seen: collections.Counter[tuple[str, float]] = collections.Counter()

    def slots(self: Any, magnitude: np.ndarray, w: Any, h: Any, look: Look) -> Any:
        seen.update((self.name, round(m, 4)) for m in magnitude.tolist())
        return operations.empty(len(magnitude), 1, policies.WIDTH)

    def operation(self: Any, name: str, magnitude: np.ndarray, w: Any, h: Any) -> Any:
        seen.update((name, round(m, 4)) for m in magnitude.tolist())
        return operations.INVERT, np.zeros((len(magnitude), augmix.WIDTH))

    monkeypatch.setattr(policies.Step, "slots", slots)
    monkeypatch.setattr(augmix.AugMix, "_operation", operation)
    return seen


def spread(space: Mapping[str, Any], bins: Mapping[str, range]) -> dict[tuple[str, float], float]:
    """The share of each (operation, how much): operations, bins and signs are equally likely."""
    shares: dict[tuple[str, float], float] = collections.defaultdict(float)
    for name, (table, signed) in space.items():
        levels = [0.0]
        if table is not None and table.ndim:
            levels = [float(table[k]) for k in bins[name]]
        if name == "Solarize" and max(levels) <= 1:
            levels = [255.0 * level for level in levels]
        for level in levels:
            for sign in (-1, 1) if signed else (1,):
                part = 1 / len(space) / len(levels) / (2 if signed else 1)
                shares[name, round(sign * level, 4) + 0.0] += part
    return shares


@pytest.mark.parametrize("version", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("name", ["RandAugment", "TrivialAugmentWide", "AugMix"])
def test_operations_of_policies(name: str, version: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = getattr(version, name)()
    bins = {"RandAugment": 31, "TrivialAugmentWide": 31, "AugMix": 10}[name]
    space = torchvision_oracle.augmentation_space(policy, bins, (H, W))
    which = {"RandAugment": range(9, 10), "TrivialAugmentWide": range(31), "AugMix": range(3)}[name]
    seen = noted(monkeypatch)
    params = ours(policy)
    likely(seen, spread(space, dict.fromkeys(space, which)))
    if name == "AugMix":
        depths = (params.codes == operations.INVERT)[:, 1:4].sum(axis=1)
        even(depths, 1, 3)


def test_operations_of_a_sample_are_chosen_apart() -> None:
    params = ours(v1.RandAugment(), N // 2)
    first, second = (params.codes[:, k].tolist() for k in range(2))
    for pair in (
        (operations.EQUALIZE, operations.EQUALIZE),
        (operations.EQUALIZE, operations.POSTERIZE),
    ):
        there = collections.Counter(both == pair for both in zip(first, second, strict=True))
        likely(there, {True: 1 / 14**2, False: 1 - 1 / 14**2})


@pytest.mark.parametrize("version", [v1, v2], ids=["v1", "v2"])
def test_operations_of_auto_augment(version: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = version.AutoAugment()
    space = torchvision_oracle.augmentation_space(policy, 10, (H, W))
    theirs = policy._policies if hasattr(policy, "_policies") else policy.policies
    shares: dict[tuple[str, float], float] = collections.defaultdict(float)
    for one in theirs:
        for step, p, at in one:
            bins = {step: range(at or 0, (at or 0) + 1)}
            for what, part in spread({step: space[step]}, bins).items():
                shares[what] += p * part / len(theirs)
    seen = noted(monkeypatch)
    n = 3 * N
    ours(policy, n)
    for what, p in shares.items():  # how often in a sample: a sample may have it twice
        assert abs(seen.pop(what, 0) / n - p) < 5 * math.sqrt(p / n), what
    assert not seen


def test_shares_of_a_mixture() -> None:
    """Beta(1, 1) is uniform; Beta(3, 3) has this variance."""
    own = values(ours(v1.AugMix(mixture_width=2, alpha=1.0)), operations.MIX_BEGIN)
    uniform(own, 0, 1)
    own = values(ours(v1.AugMix(mixture_width=2, alpha=3.0)), operations.MIX_BEGIN)
    assert abs(own.var() / (1 / 28) - 1) < 0.015
    assert abs(own.mean() - 0.5) < 0.003


# --- timm and erasing -----------------------------------------------------------------------------


def timm(**given: Any) -> tuple[np.ndarray, np.ndarray]:
    """Codes and values that an operation of timm draws."""
    settings = {"p": 0.5, "magnitude": 5.0, "std": 0.5, "most": 10.0, "reach": 0.45}
    op = timm_policy.Operation(**{"look": Look(), **settings, **given})
    u = np.random.default_rng(4).uniform(size=(5, 2 * N))
    sides = np.full(2 * N, 50.0)
    codes, drawn_values = op.fill(*operations.empty(2 * N, 1, policies.WIDTH), u, sides, sides)
    return codes[:, 0], drawn_values[:, 0, 0]


def test_operations_of_timm() -> None:
    codes, factors = timm(name="Brightness")
    there = codes == operations.BRIGHTNESS
    likely(collections.Counter(there.tolist()), {True: 0.5, False: 0.5})
    magnitudes = (factors[there] - 0.1) / 0.18
    assert abs(magnitudes.mean() - 5) < 0.01
    assert abs(magnitudes.std() / 0.5 - 1) < 0.01
    _, factors = timm(name="Brightness", std=math.inf)
    uniform((factors - 0.1) / 0.18, 0, 5)
    _, factors = timm(name="BrightnessIncreasing", std=0.0)
    likely(collections.Counter((factors > 1).tolist()), {True: 0.5, False: 0.5})
    assert np.allclose(np.abs(factors - 1), 0.45)
    choices = tuple(
        timm_policy.Operation(name, 1.0, 5.0, 0.0, 10.0, 0.45, Look())
        for name in ("AutoContrast", "Equalize", "Invert", "Contrast")
    )
    u = np.random.default_rng(5).uniform(size=(5, N))
    sides = np.full(N, 50.0)
    codes = timm_policy.RandAugment(choices, 1).draw(u, sides, sides)[0][:, 0]
    likely(collections.Counter(codes.tolist()), dict.fromkeys(np.unique(codes).tolist(), 0.25))
    assert len(np.unique(codes)) == 4


def test_rectangles() -> None:
    plan = recognise(v1.Compose([v1.ToTensor(), v1.RandomErasing(0.8, (0.02, 0.1), (0.5, 3.0))]))
    assert isinstance(plan, Plan)
    (erase,) = plan.erasing
    u = np.random.default_rng(6).uniform(size=(N, 41))
    x, y, w, h = erase.boxes(u, 3000, 3000).T.astype(np.float64)
    there = w > 0
    likely(collections.Counter(there.tolist()), {True: 0.8, False: 0.2})
    x, y, w, h = (side[there] for side in (x, y, w, h))
    uniform(np.clip(w * h / 3000**2, 0.02, 0.1), 0.02, 0.1)
    low, high = math.log(0.5), math.log(3.0)
    uniform(np.clip(np.log(h / w), low, high), low, high)
    (small,) = recognise(  # type: ignore[union-attr]
        v1.Compose([v1.ToTensor(), v1.RandomErasing(1.0, (0.25, 0.25), (1.0, 1.0))])
    ).erasing
    box = small.boxes(u, 16, 12)
    assert (box[:, 2:] == 7).all()
    even(box[:, 0], 0, 9)
    even(box[:, 1], 0, 5)


def test_the_tests_see_two_percent() -> None:
    rng = np.random.default_rng(0)
    failing: list[Callable[[], None]] = [
        lambda: uniform(rng.uniform(0, 0.98, N), 0, 1),
        lambda: uniform(rng.uniform(0.02, 1, N), 0, 1),
        lambda: even((rng.uniform(0, 0.98, N) * 14).astype(int), 0, 13),
        lambda: likely(
            collections.Counter((rng.uniform(size=N) < 0.48).tolist()), {True: 0.5, False: 0.5}
        ),
    ]
    for check in failing:
        with pytest.raises(AssertionError):
            check()
