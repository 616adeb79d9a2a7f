"""Operations on pixels the Pillow way, by the codes and values that are drawn for a sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from .._transforms.pixels import operations
from .tensors import Mix
from .tensors import apply as on_tensors

if TYPE_CHECKING:
    import numpy.typing as npt

_Operation = Callable[[Image.Image, list[float]], Image.Image]


def apply(
    image: Image.Image, code: int, values: list[float], mix: Mix | None = None
) -> Image.Image:
    """The RGB image after one operation; pixels/pixels.h numbers the codes and lists their values.

    ``mix``: one object for all operations of an image, where MIX_BEGIN and MIX_ADD may occur.
    """
    if code == operations.NONE:
        return image
    if code in (operations.MIX_BEGIN, operations.MIX_ADD):
        assert mix is not None, "MIX_BEGIN and MIX_ADD need a sum"
        return mix.apply(image, code, values)
    if operations.TORCH_BRIGHTNESS <= code <= operations.TORCH_AFFINE:
        return on_tensors(image, code, values)
    return _OPERATIONS[code](image, values)


def _hue(image: Image.Image, values: list[float]) -> Image.Image:
    """torchvision's ``adjust_hue``: the hue is shifted modulo 256."""
    hue, saturation, value = image.convert("HSV").split()
    shifted = np.array(hue) + np.uint8(values[0])
    hue = Image.fromarray(shifted)
    return Image.merge("HSV", (hue, saturation, value)).convert("RGB")


def _grayscale(image: Image.Image, values: list[float]) -> Image.Image:
    gray = image.convert("L")
    return Image.merge("RGB", (gray, gray, gray))


def _affine(image: Image.Image, values: list[float], sized: bool = False) -> Image.Image:
    red, green, blue = (int(level) for level in values[7:10])
    return image.transform(
        (int(values[10]), int(values[11])) if sized else image.size,
        Image.Transform.AFFINE,
        values[:6],
        Image.Resampling(int(values[6])),
        fillcolor=(red, green, blue),
    )


def _perspective(image: Image.Image, values: list[float]) -> Image.Image:
    red, green, blue = (int(level) for level in values[9:12])
    return image.transform(
        (int(values[12]), int(values[13])),
        Image.Transform.PERSPECTIVE,
        values[:8],
        Image.Resampling(int(values[8])),
        fillcolor=(red, green, blue),
    )


def _box_blur(image: Image.Image, values: list[float]) -> Image.Image:
    kind = ImageFilter.GaussianBlur if values[2] else ImageFilter.BoxBlur
    x, y = values[:2]
    return image.filter(kind(x if x == y else (x, y)))  # older versions of Pillow take one number


def _contrast_crop(image: Image.Image, values: list[float]) -> Image.Image:
    x, y, w, h = (int(value) for value in values[1:5])
    return ImageEnhance.Contrast(image).enhance(values[0]).crop((x, y, x + w, y + h))


def _pad(image: Image.Image, values: list[float]) -> Image.Image:
    left, top, right, bottom, how = (int(value) for value in values[:5])
    around = [(top, bottom), (left, right), (0, 0)]
    if how == 0:
        return Image.fromarray(np.pad(np.asarray(image), around, mode="edge"))
    mode: Literal["reflect", "symmetric"] = "reflect" if how == 1 else "symmetric"
    return Image.fromarray(np.pad(np.asarray(image), around, mode=mode))


def _levels(image: Image.Image, values: list[float]) -> Image.Image:
    table = np.array(values[1 : 1 + 64 * int(values[0])], "<u4").view(np.uint8).tolist()
    return image.point(table * (3 // int(values[0])))


def _kernel(image: Image.Image, values: list[float]) -> Image.Image:
    side = int(values[0])
    weights = values[3 : 3 + side * side]
    return image.filter(ImageFilter.Kernel((side, side), weights, values[1], values[2]))


def _blur(image: Image.Image, values: list[float]) -> Image.Image:
    """Both passes in float32, each sum in the order of the kernel, as in the core."""
    radius_x, radius_y = int(values[0]), int(values[1])
    levels = np.asarray(image).astype(np.float32)
    across, down = values[2 : 3 + radius_x], values[3 + radius_x : 4 + radius_x + radius_y]
    blurred = _pass(_pass(levels, across, 1), down, 0)
    return Image.fromarray(np.rint(np.clip(blurred, 0, 255)).astype(np.uint8))


def _torch_blur(image: Image.Image, values: list[float]) -> Image.Image:
    """As torch's convolution: products are exact in float64, so each sum is rounded once."""
    radius_x, radius_y = int(values[0]), int(values[1])
    taps_x, taps_y = 2 * radius_x + 1, 2 * radius_y + 1
    across = np.array(values[2 : 2 + taps_x], np.float32)
    down = np.array(values[2 + taps_x : 2 + taps_x + taps_y], np.float32)
    around = [(radius_y, radius_y), (radius_x, radius_x), (0, 0)]
    padded = np.pad(np.asarray(image), around, mode="reflect").astype(np.float64)
    h, w = image.height, image.width
    total = np.zeros((h, w, 3), np.float32)
    for y in range(taps_y):
        for x in range(taps_x):
            weight = np.float64(down[y] * across[x])
            total = (total + padded[y : y + h, x : x + w] * weight).astype(np.float32)
    return Image.fromarray(np.rint(np.clip(total, 0, 255)).astype(np.uint8))


def _pass(levels: npt.NDArray[np.float32], half: list[float], axis: int) -> np.ndarray:
    radius = len(half) - 1
    around = [(radius, radius) if axis == each else (0, 0) for each in range(3)]
    padded = np.pad(levels, around, mode="reflect")
    size = levels.shape[axis]
    total = np.zeros_like(levels)
    for k in range(2 * radius + 1):
        part = padded[k : k + size] if axis == 0 else padded[:, k : k + size]
        total += np.float32(half[abs(k - radius)]) * part
    return total


def _posterize(image: Image.Image, values: list[float]) -> Image.Image:
    """Also to 0 bits, which Pillow refuses and torchvision has for tensors."""
    bits = int(values[0])
    return ImageOps.posterize(image, bits) if bits else Image.new("RGB", image.size)


def _transpose(how: Image.Transpose) -> _Operation:
    return lambda image, values: image.transpose(how)


_OPERATIONS: dict[int, _Operation] = {
    operations.BRIGHTNESS: lambda image, v: ImageEnhance.Brightness(image).enhance(v[0]),
    operations.CONTRAST: lambda image, v: ImageEnhance.Contrast(image).enhance(v[0]),
    operations.CONTRAST_CROP: _contrast_crop,
    operations.PAD: _pad,
    operations.SATURATION: lambda image, v: ImageEnhance.Color(image).enhance(v[0]),
    operations.HUE: _hue,
    operations.SHARPNESS: lambda image, v: ImageEnhance.Sharpness(image).enhance(v[0]),
    operations.GRAYSCALE: _grayscale,
    operations.INVERT: lambda image, v: ImageOps.invert(image),
    operations.SOLARIZE: lambda image, v: ImageOps.solarize(image, v[0]),  # type: ignore[arg-type]
    operations.SOLARIZE_ADD: lambda image, v: image.point(
        [min(255, i + int(v[0])) if i < 128 else i for i in range(256)] * 3
    ),
    operations.POSTERIZE: _posterize,
    operations.AUTOCONTRAST: lambda image, v: ImageOps.autocontrast(image),
    operations.EQUALIZE: lambda image, v: ImageOps.equalize(image),
    operations.MIRROR: _transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    operations.UPSIDE_DOWN: _transpose(Image.Transpose.FLIP_TOP_BOTTOM),
    operations.ROTATE_180: _transpose(Image.Transpose.ROTATE_180),
    operations.ROTATE_90: _transpose(Image.Transpose.ROTATE_90),
    operations.ROTATE_270: _transpose(Image.Transpose.ROTATE_270),
    operations.AFFINE: _affine,
    operations.AFFINE_TO: lambda image, v: _affine(image, v, sized=True),
    operations.BLUR: _blur,
    operations.BOX_BLUR: _box_blur,
    operations.PERSPECTIVE: _perspective,
    operations.LEVELS: _levels,
    operations.KERNEL: _kernel,
    operations.TORCH_BLUR: _torch_blur,
}
