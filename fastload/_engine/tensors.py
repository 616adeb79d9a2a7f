"""Operations on pixels as torchvision does them on tensors: pixels/torch.cpp in NumPy, bit for bit.

Arrays are float32; Note [Fused] there says where they are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from PIL import Image

from .._transforms.pixels import operations

if TYPE_CHECKING:
    import numpy.typing as npt

    Levels: TypeAlias = npt.NDArray[np.uint8]
    Floats: TypeAlias = npt.NDArray[np.float32]

_F = np.float32


class Mix:
    """The weighted sum that MIX_BEGIN and MIX_ADD make of one image."""

    def __init__(self) -> None:
        self._kept: Image.Image | None = None
        self._sum: Floats = np.zeros(0, np.float32)

    def apply(self, image: Image.Image, code: int, values: list[float]) -> Image.Image:
        """The image that the next operation gets."""
        weighted = np.asarray(image) * _F(values[0])
        if code == operations.MIX_BEGIN:
            self._kept, self._sum = image, weighted
            return image
        assert self._kept is not None, "MIX_ADD without MIX_BEGIN"
        self._sum = self._sum + weighted
        return Image.fromarray(_cut(self._sum)) if values[1] else self._kept


def apply(image: Image.Image, code: int, values: list[float]) -> Image.Image:
    """The RGB image after one operation."""
    levels = np.asarray(image)
    if code == operations.TORCH_AFFINE:
        return Image.fromarray(_affine(levels, values))
    if code == operations.TORCH_AUTOCONTRAST:
        return Image.fromarray(_autocontrast(levels, bool(values[0])))
    if code == operations.TORCH_BRIGHTNESS:
        return Image.fromarray(_cut(levels * _F(values[0])))
    return Image.fromarray(_BLENDS[code](levels, values[0], bool(values[1])))


def _cut(values: np.ndarray) -> Levels:
    cut: Levels = np.clip(values, 0, 255).astype(np.uint8)
    return cut


def _fused(a: npt.ArrayLike, b: npt.ArrayLike, c: npt.ArrayLike) -> Floats:
    total = np.asarray(a, np.float64) * np.asarray(b, np.float64) + np.asarray(c, np.float64)
    return total.astype(np.float32)


def _gray(levels: Levels, fused: bool) -> Floats:
    """(h, w, 1): luma, rounded down to whole levels."""
    red, green, blue = (levels[:, :, c : c + 1].astype(np.float32) for c in range(3))
    if fused:
        gray = _fused(blue, _F(0.114), _fused(green, _F(0.587), red * _F(0.2989)))
    else:
        gray = (_F(0.2989) * red + _F(0.587) * green) + _F(0.114) * blue
    return np.floor(gray)


def _blend(levels: Levels, other: Floats | np.float32, ratio: float, fused: bool) -> Levels:
    mine = levels * _F(ratio)
    share = _F(1.0 - ratio)
    return _cut(_fused(other, share, mine) if fused else mine + share * other)


def _contrast(levels: Levels, factor: float, fused: bool) -> Levels:
    gray = _gray(levels, fused)
    mean = _F(gray.sum(dtype=np.float64)) / _F(gray.size)
    return _blend(levels, mean, factor, fused)


def _saturation(levels: Levels, factor: float, fused: bool) -> Levels:
    return _blend(levels, _gray(levels, fused), factor, fused)


def _sharpness(levels: Levels, factor: float, fused: bool) -> Levels:
    height, width = levels.shape[:2]
    if height < 3 or width < 3:
        return levels
    wide = levels.astype(np.int32)
    inner = wide[1:-1, 1:-1]
    around = sum(
        wide[dy : height - 2 + dy, dx : width - 2 + dx] for dy in range(3) for dx in range(3)
    )
    smooth = ((2 * (around + 4 * inner) + 13) // 26).astype(np.float32)
    if fused:  # the border does not change
        sharp: Levels = levels.copy()
        moved = _fused(smooth - inner.astype(np.float32), _F(1.0 - factor), inner)
        sharp[1:-1, 1:-1] = _cut(moved)
        return sharp
    soft = levels.astype(np.float32)
    soft[1:-1, 1:-1] = smooth
    return _blend(levels, soft, factor, fused=False)


def _autocontrast(levels: Levels, v2: bool) -> Levels:
    out: Levels = levels.copy()
    for c in range(3):
        low, high = _F(levels[:, :, c].min()), _F(levels[:, :, c].max())
        if low == high:
            continue
        above = levels[:, :, c] - low
        if v2:
            out[:, :, c] = _cut(above / ((high - low) * _F(1.0 / 255.0)))
        else:
            out[:, :, c] = _cut(above * ((_F(1) / (high - low)) * _F(255)))
    return out


def _place(row: Floats, x: Floats, y: Floats, fused: bool) -> Floats:
    across = x * row[0]
    total: Floats = (_fused(y, row[1], across) if fused else across + y * row[1]) + row[2]
    return total


def _affine(levels: Levels, values: list[float]) -> Levels:
    """``grid_sample`` over an affine grid, zeros or a colour outside."""
    height, width = levels.shape[:2]
    half = np.array([[0.5 * width], [0.5 * height]], np.float32)
    a = np.array(values[:6], np.float32).reshape(2, 3) / half
    x = np.arange(width, dtype=np.float32) - _F(0.5) * _F(width - 1)
    y = (np.arange(height, dtype=np.float32) - _F(0.5) * _F(height - 1))[:, None]
    u, v = (
        _fused(_place(row, x, y, bool(values[11])) + _F(1), _F(0.5) * _F(side), _F(-0.5))
        for row, side in zip(a, (width, height))
    )
    fill = np.array(values[8:11], np.float32)
    if values[6] == 0:
        sampled, there = _taken(levels, np.rint(u), np.rint(v))
        if values[7]:
            sampled = np.where(there < _F(0.5), fill, sampled)
        nearest: Levels = sampled.astype(np.uint8)
        return nearest
    left, top = np.floor(u), np.floor(v)
    w, n = u - left, v - top
    e, s = _F(1) - w, _F(1) - n
    total, inside = (part * (e * s)[:, :, None] for part in _taken(levels, left, top))
    for dx, dy, weight in ((1, 0, w * s), (0, 1, e * n), (1, 1, w * n)):
        sampled, there = _taken(levels, left + _F(dx), top + _F(dy))
        total = _fused(sampled, weight[:, :, None], total)
        inside = _fused(there, weight[:, :, None], inside)
    if values[7] == 1:
        total = total * inside + (_F(1) - inside) * fill
    elif values[7] == 2:
        total = (total - fill) * inside + fill
    return _cut(np.rint(total))


def _taken(levels: Levels, x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Levels (h, w, 3) at whole coordinates, 0 outside; and (h, w, 1) 1 inside, 0 outside."""
    height, width = levels.shape[:2]
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    column = np.where(inside, x, 0).astype(np.int64)
    row = np.where(inside, y, 0).astype(np.int64)
    there = inside[:, :, None].astype(np.float32)
    return levels[row, column] * there, there


_BLENDS = {
    operations.TORCH_CONTRAST: _contrast,
    operations.TORCH_SATURATION: _saturation,
    operations.TORCH_SHARPNESS: _sharpness,
}
