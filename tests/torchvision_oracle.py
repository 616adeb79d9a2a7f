"""What torchvision makes of an image with the random numbers that a sample has.

The numbers come from ``_philox``. What each transform draws from them is written down here once
more, in scalars, out of torchvision's sources; the work is done by torchvision's own functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import autoaugment
from torchvision.transforms import functional as F1
from torchvision.transforms.v2 import functional as F2

from fastload._base import philox
from fastload._transforms.pixels import augmix, erasing

GEOMETRIC = "RandomResizedCrop Resize CenterCrop RandomCrop RandomHorizontalFlip Pad".split()
PLAIN = (
    "ToTensor PILToTensor ToImage ToDtype ConvertImageDtype Normalize ToPureTensor Identity RGB "
    "ImageClassification"
).split()
PIXELS, ERASING = 4096, 8192  # positions of the random numbers, see _transforms/sample_params.py


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth shapes with noise on top, so that both rounding and clipping happen."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = np.stack([np.sin(x / 7 + c) * np.cos(y / 5 - c) for c in range(3)], axis=2)
    noise = rng.integers(-90, 91, (height, width, 3))
    return Image.fromarray(np.clip(128 + 127 * waves + noise, 0, 255).astype(np.uint8))


def leaves(transform: Any) -> list[Any]:
    """The transforms of any nest of Compose and Sequential, in order."""
    if type(transform).__name__ == "Compose":
        children = transform.transforms
    elif isinstance(transform, torch.nn.Sequential):
        children = list(transform)
    else:
        return [transform]
    return [leaf for child in children for leaf in leaves(child)]


def noise(key: int, count: int) -> np.ndarray:
    """The 16 random bits of each of ``count`` values: eight to a Philox block, low halves first."""
    blocks = np.arange(-(-count // 8), dtype=np.int64)
    words = philox.words(key, 0, blocks, [0]).reshape(4, -1).T
    halves = np.stack([words & np.uint64(0xFFFF), words >> np.uint64(16)], axis=2)
    return halves.reshape(-1)[:count].astype(np.uint16)


def sample(transform: Any, image: Image.Image, index: int, seed: int = 0, epoch: int = 0) -> Any:
    """The user's chain, run by torchvision, with the numbers that sample ``index`` has."""
    result: Any = image
    geometry, pixels, erased = 0, PIXELS, ERASING

    def numbers(position: int, count: int) -> list[float]:
        return philox.uniform(seed, epoch, np.array([index]), position, count)[0].tolist()

    for leaf in leaves(transform):
        name = type(leaf).__name__
        if name in GEOMETRIC:
            result = geometric(leaf, result, numbers(geometry, 40))
            geometry += 1
        elif name in PLAIN:
            result = leaf(result)
        elif name == "RandomErasing":
            key = philox.words(seed, epoch, np.array([index]), [erased * 65536 + 65535]).reshape(4)
            result = erase(leaf, result, numbers(erased, 41), int(key[0]) | int(key[1]) << 32)
            erased += 1
        else:
            u = iter(numbers(pixels, 400))
            result = pixel(leaf, result, u)
            pixels += 1
    return result


def functional_of(transform: Any) -> Any:
    return F2 if ".v2" in type(transform).__module__ else F1


def geometric(leaf: Any, image: Any, u: list[float]) -> Any:
    name, functional = type(leaf).__name__, functional_of(leaf)
    if name == "RandomResizedCrop":
        box = resized_crop_box(F1.get_image_size(image), leaf.scale, leaf.ratio, u)
        return functional.resized_crop(
            image, *box, size=list(leaf.size), interpolation=leaf.interpolation
        )
    if name == "RandomCrop":
        return random_crop(functional, image, leaf, u)
    if name == "RandomHorizontalFlip":
        return functional.hflip(image) if u[0] < leaf.p else image
    return leaf(image)


def resized_crop_box(size: Any, scale: Any, ratio: Any, u: list[float]) -> tuple[int, ...]:
    """RandomResizedCrop.get_params of torchvision in scalars, with numbers given."""
    width, height = size
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for t in range(10):
        area = width * height * (scale[0] + u[4 * t] * (scale[1] - scale[0]))
        aspect = math.exp(low + u[4 * t + 1] * (high - low))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            top = int(u[4 * t + 2] * (height - h + 1))
            return top, int(u[4 * t + 3] * (width - w + 1)), h, w
    aspect = width / height
    w = round(height * max(ratio)) if aspect > max(ratio) else width
    h = round(width / min(ratio)) if aspect < min(ratio) else height
    return (height - h) // 2, (width - w) // 2, h, w


def random_crop(functional: Any, image: Any, crop: Any, u: list[float]) -> Any:
    """RandomCrop.forward of torchvision, with numbers given."""
    padding = crop.padding
    if padding is not None and functional is F2:
        left, right, top, bottom = padding
        padding = [left, top, right, bottom]
    if padding is not None:
        image = functional.pad(image, padding, fill=crop.fill)
    height, width = crop.size
    now_w, now_h = F1.get_image_size(image)
    if crop.pad_if_needed:
        more = [max(width - now_w, 0), max(height - now_h, 0)]
        if any(more):
            image = functional.pad(image, more, fill=crop.fill)
    now_w, now_h = F1.get_image_size(image)
    if width > now_w or height > now_h:
        raise ValueError("as torchvision does, whose crop itself would pad")
    left, top = int(u[0] * (now_w - width + 1)), int(u[1] * (now_h - height + 1))
    return functional.crop(image, top, left, height, width)


def between(ends: Sequence[float], u: float) -> float:
    """As float32, as ``uniform_`` of a tensor gives it."""
    return float(np.float32(ends[0] + u * (ends[1] - ends[0])))


def pixel(leaf: Any, image: Any, u: Any) -> Any:
    """One transform of pixels; takes from ``u`` what fastload documents that it takes."""
    name, F = type(leaf).__name__, functional_of(leaf)
    if name in ("RandomApply", "Compose", "Sequential"):
        wanted = name != "RandomApply" or next(u) < leaf.p
        for child in leaf.transforms if hasattr(leaf, "transforms") else leaf:
            made = pixel(child, image, u)
            image = made if wanted else image
        return image
    if name == "RandomChoice":
        weights = leaf.p or [1] * len(leaf.transforms)
        point, chosen = next(u) * sum(weights), 0
        while chosen < len(weights) - 1 and point >= sum(weights[: chosen + 1]):
            chosen += 1
        return [pixel(child, image, u) for child in leaf.transforms][chosen]
    if name == "RandomOrder":
        keys = [next(u) for _ in leaf.transforms]
        taken = [[next(u) for _ in range(count(child))] for child in leaf.transforms]
        for k in sorted(range(len(keys)), key=keys.__getitem__):
            image = pixel(leaf.transforms[k], image, iter(taken[k]))
        return image
    if name in POLICIES:
        return policy(leaf, image, u)
    if name == "AugMix":
        return aug_mix(leaf, image, u)
    if name == "ColorJitter":
        return jitter(leaf, image, u)
    if name == "GaussianBlur":
        sigma = between(leaf.sigma, next(u))
        return F.gaussian_blur(image, list(leaf.kernel_size), [sigma, sigma])
    if name == "RandomRotation":
        return F.rotate(
            image,
            between(leaf.degrees, next(u)),
            leaf.interpolation,
            leaf.expand,
            leaf.center,
            leaf.fill,
        )
    if name == "RandomAffine":
        return affine(leaf, F, image, u)
    if name in SIMPLE:
        return SIMPLE[name](F, image, leaf) if next(u) < leaf.p else image
    if name == "Grayscale":
        return leaf(image)
    assert name in PLAIN, name
    return image


SIMPLE = {
    "RandomHorizontalFlip": lambda F, image, leaf: F.hflip(image),
    "RandomVerticalFlip": lambda F, image, leaf: F.vflip(image),
    "RandomGrayscale": lambda F, image, leaf: F.rgb_to_grayscale(image, 3),
    "RandomInvert": lambda F, image, leaf: F.invert(image),
    "RandomSolarize": lambda F, image, leaf: F.solarize(image, leaf.threshold),
    "RandomPosterize": lambda F, image, leaf: F.posterize(image, leaf.bits),
    "RandomAutocontrast": lambda F, image, leaf: F.autocontrast(image),
    "RandomEqualize": lambda F, image, leaf: F.equalize(image),
    "RandomAdjustSharpness": lambda F, image, leaf: F.adjust_sharpness(
        image, leaf.sharpness_factor
    ),
}
POLICIES = ("RandAugment", "TrivialAugmentWide", "AutoAugment")


def count(leaf: Any) -> int:
    """How many numbers a transform of pixels takes."""
    name = type(leaf).__name__
    if name in SIMPLE or name in ("GaussianBlur", "RandomRotation"):
        return 1
    children = leaf if name == "Sequential" else getattr(leaf, "transforms", ())
    inner = sum(count(child) for child in children)
    extra = {"RandomApply": 1, "RandomChoice": 1, "Compose": 0, "Sequential": 0}
    extra |= {"RandomAffine": 6, "AutoAugment": 5}
    if name == "AugMix":
        depth = leaf.chain_depth if leaf.chain_depth > 0 else 3
        numbers = augmix.gamma_numbers(leaf.alpha)
        return (2 + leaf.mixture_width) * numbers + leaf.mixture_width * (1 + 3 * depth)
    if name in extra:
        return inner + extra[name]
    if name == "RandomOrder":
        return inner + len(leaf.transforms)
    if name == "ColorJitter":
        return 2 * sum(limits is not None for limits in jitter_limits(leaf))
    return {"RandAugment": 3 * getattr(leaf, "num_ops", 0), "TrivialAugmentWide": 3}.get(name, 0)


def jitter_limits(leaf: Any) -> list[Any]:
    return [leaf.brightness, leaf.contrast, leaf.saturation, leaf.hue]


def jitter(leaf: Any, image: Any, u: Any) -> Any:
    F = functional_of(leaf)
    functions = [F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue]
    steps = [(f, ends) for f, ends in zip(functions, jitter_limits(leaf)) if ends is not None]
    keys = [next(u) for _ in steps]
    factors = [between(ends, next(u)) for _, ends in steps]
    for k in sorted(range(len(steps)), key=keys.__getitem__):
        image = steps[k][0](image, factors[k])
    return image


def affine(leaf: Any, F: Any, image: Any, u: Any) -> Any:
    values = [next(u) for _ in range(6)]
    move = [0, 0]
    if leaf.translate is not None:
        move = [
            round(between((-share * side, share * side), v))
            for v, share, side in zip(values[1:3], leaf.translate, image.size)
        ]
    scale = 1.0 if leaf.scale is None else between(leaf.scale, values[3])
    shear = [0.0, 0.0]
    if leaf.shear is not None:
        shear = [
            between(leaf.shear[2 * k : 2 * k + 2], values[4 + k])
            for k in range(len(leaf.shear) // 2)
        ]
    shear = (shear + [0.0])[:2]
    return F.affine(
        image,
        angle=between(leaf.degrees, values[0]),
        translate=move,
        scale=scale,
        shear=shear,
        interpolation=leaf.interpolation,
        fill=leaf.fill,
        center=leaf.center,
    )


def policy(leaf: Any, image: Any, u: Any) -> Any:
    name = type(leaf).__name__
    size = (image.height, image.width)
    if name == "AutoAugment":
        policies = leaf._policies if hasattr(leaf, "_policies") else leaf.policies
        chosen = policies[int(next(u) * len(policies))]
        chances, signs = [next(u), next(u)], [next(u), next(u)]
        space = augmentation_space(leaf, 10, size)
        for (step, p, at), chance, sign in zip(chosen, chances, signs):
            if chance < p:
                image = policy_step(leaf, image, step, space[step], at or 0, sign)
        return image
    bins = leaf.num_magnitude_bins
    space = augmentation_space(leaf, bins, size)
    for _ in range(1 if name == "TrivialAugmentWide" else leaf.num_ops):
        step = list(space)[int(next(u) * len(space))]
        at = int(next(u) * bins) if name == "TrivialAugmentWide" else (next(u), leaf.magnitude)[1]
        image = policy_step(leaf, image, step, space[step], at, next(u))
    return image


def aug_mix(leaf: Any, image: Any, u: Any) -> Any:
    """AugMix.forward of torchvision, with numbers given."""
    v2 = ".v2" in type(leaf).__module__
    each = augmix.gamma_numbers(leaf.alpha)

    def dirichlet(count: int) -> torch.Tensor:
        drawn = np.array([[next(u)] for _ in range(count * each)])
        return torch.from_numpy(augmix.dirichlet(drawn, leaf.alpha, count))

    batch = F1.pil_to_tensor(image)[None]
    own = dirichlet(2)
    shares = dirichlet(leaf.mixture_width) * own[:, 1].reshape(1, -1)
    mix = own[:, 0].reshape(1, 1, 1, 1) * batch
    size = (image.height, image.width)
    if v2 and not leaf.all_ops:
        known = leaf._PARTIAL_AUGMENTATION_SPACE
        space = {name: (make(10, *size), signed) for name, (make, signed) in known.items()}
    else:
        space = augmentation_space(leaf, 10, size)
    for chain in range(leaf.mixture_width):
        depth = leaf.chain_depth if leaf.chain_depth > 0 else 3
        wanted = 1 + int(next(u) * 3) if leaf.chain_depth <= 0 else (next(u), depth)[1]
        made = batch
        for k in range(depth):
            step = list(space)[int(next(u) * len(space))]
            at, sign = int(next(u) * leaf.severity), next(u)
            if k < wanted:
                made = policy_step(leaf, made, step, space[step], at, sign)
        mix.add_(shares[:, chain].reshape(1, 1, 1, 1) * made)
    return F1.to_pil_image(mix[0].to(torch.uint8))


def augmentation_space(leaf: Any, bins: int, size: tuple[int, int]) -> dict[str, Any]:
    if ".v2" in type(leaf).__module__:
        space = leaf._AUGMENTATION_SPACE
        return {name: (make(bins, *size), signed) for name, (make, signed) in space.items()}
    if type(leaf).__name__ == "TrivialAugmentWide":
        return dict(leaf._augmentation_space(bins))
    return dict(leaf._augmentation_space(bins, size))


def policy_step(leaf: Any, image: Any, step: str, entry: Any, at: int, sign: float) -> Any:
    magnitudes, signed = entry
    magnitude = 0.0
    if magnitudes is not None and magnitudes.ndim:
        magnitude = float(magnitudes[at])
    if signed and sign < 0.5:
        magnitude = -magnitude
    if ".v2" in type(leaf).__module__:
        return leaf._apply_image_or_video_transform(
            image, step, magnitude, interpolation=leaf.interpolation, fill=leaf._fill
        )
    return autoaugment._apply_op(
        image, step, magnitude, interpolation=leaf.interpolation, fill=leaf.fill
    )


def erase(leaf: Any, image: Any, u: list[float], key: int) -> Any:
    """RandomErasing.forward of torchvision, with numbers given."""
    height, width = image.shape[-2:]
    if u[0] >= leaf.p:
        return image
    low, high = (math.log(end) for end in leaf.ratio)
    for t in range(10):
        area = height * width * (leaf.scale[0] + u[1 + 4 * t] * (leaf.scale[1] - leaf.scale[0]))
        aspect = math.exp(low + u[2 + 4 * t] * (high - low))
        h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if h < height and w < width:
            top = int(u[3 + 4 * t] * (height - h + 1))
            left = int(u[4 + 4 * t] * (width - w + 1))
            value = leaf.value
            if value in (None, "random"):
                bits = noise(key, 3 * h * w).astype(np.int64)
                v = torch.from_numpy(erasing.quantiles()[bits]).reshape(3, h, w)
            else:
                listed = [value] if isinstance(value, (int, float)) else value
                v = torch.tensor([float(one) for one in listed])[:, None, None]
            return functional_of(leaf).erase(image, top, left, h, w, v)
    return image
