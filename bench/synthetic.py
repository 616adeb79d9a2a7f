"""Synthetic photo-like JPEGs for the demo, the benchmarks and the tests.

The time to load a JPEG depends on its size, bytes per pixel and chroma subsampling. These follow a
sample of 300 ImageNet photos: 462 x 399 pixels and 107 KB on average, three quarters 4:4:4, luma
power falling as frequency to the -2.5. Each picture is a lit background, a few coloured shapes with
edges, and texture with that spectrum. The main colour depends on the class, so that a small network
can learn to classify the pictures.

The same arguments give the same pictures, on any number of threads. (Bytes may differ between
versions of NumPy, Pillow and libjpeg.)
"""

from __future__ import annotations

import colorsys
import dataclasses
import functools
import io
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

_FIELD = 1024  # side of the texture fields from which pictures are cut


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """The statistics of a set of pictures.

    Attributes:
        sizes: (width, height) in pixels to choose from; each is varied by up to ``jitter``.
        quality: JPEG quality, as in Pillow.
        texture: standard deviation of the luma texture, in grey levels.
        shares: probability of each size; they sum to 1.
        jitter: largest relative change of a side.
        full_chroma: share of pictures stored 4:4:4; the others are 4:2:0.
        gray: share of grayscale pictures.
    """

    sizes: tuple[tuple[int, int], ...]
    quality: int
    texture: float
    shares: tuple[float, ...] = (1.0,)
    jitter: float = 0.0
    full_chroma: float = 0.0
    gray: float = 0.0


PHOTO = Kind(
    sizes=((500, 375), (500, 333), (375, 500), (333, 500), (400, 300), (600, 450), (500, 500)),
    shares=(0.36, 0.16, 0.12, 0.08, 0.1, 0.1, 0.08),
    jitter=0.15,
    quality=96,
    full_chroma=0.77,
    gray=0.025,
    texture=20.0,
)
SMALL = Kind(sizes=((32, 32),), quality=75, texture=26.0)
# Like photos of a phone: 12 megapixels, about 4 MB.
LARGE = Kind(sizes=((4000, 3000), (3000, 4000)), shares=(0.7, 0.3), quality=93, texture=12.0)


def make_images(
    directory: str | os.PathLike[str],
    count: int,
    *,
    kind: Kind = PHOTO,
    classes: int = 10,
    seed: int = 0,
    threads: int | None = None,
) -> Path:
    """Write ``count`` JPEGs into the class folders ``class0 ..`` of ``directory``; return its path.

        make_images("photos", 300)              # about 110 KB each
        make_images("small", 10_000, kind=SMALL)

    The pictures of all classes together are ``count``, assigned in turn; files of the same name are
    overwritten. Another ``seed`` gives other pictures. ``threads`` None: the CPUs of this process.
    """
    root = Path(directory)
    for label in range(min(classes, count)):
        (root / f"class{label}").mkdir(parents=True, exist_ok=True)

    def write(index: int) -> None:
        label = index % classes
        data = jpeg(index, label=label, classes=classes, kind=kind, seed=seed)
        (root / f"class{label}" / f"{index:06d}.jpg").write_bytes(data)

    _fields()  # computed once, before all threads need it
    with ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool:
        list(pool.map(write, range(count)))
    return root


def jpeg(index: int, *, label: int, classes: int, kind: Kind = PHOTO, seed: int = 0) -> bytes:
    """Return picture ``index`` of class ``label`` as the bytes of a JPEG file."""
    from PIL import Image

    rng = np.random.default_rng((seed, index))
    pixels = _paint(rng, _size(rng, kind), label / classes, kind)
    picture = Image.fromarray(pixels)
    if rng.random() < kind.gray:
        picture = picture.convert("L")
    subsampling = 0 if rng.random() < kind.full_chroma else 2
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=kind.quality, subsampling=subsampling)
    return file.getvalue()


def _size(rng: np.random.Generator, kind: Kind) -> tuple[int, int]:
    width, height = kind.sizes[rng.choice(len(kind.sizes), p=kind.shares)]
    vary = 1 + rng.uniform(-kind.jitter, kind.jitter, size=2)
    return round(width * vary[0]), round(height * vary[1])


def _paint(
    rng: np.random.Generator, size: tuple[int, int], hue: float, kind: Kind
) -> NDArray[np.uint8]:
    """uint8 (height, width, 3): shapes lit from one side, with texture."""
    from PIL import ImageFilter

    width, height = size
    picture = _shapes(rng, size, hue)
    if min(size) > 64:  # edges in photos are a pixel or two wide; small pictures stay sharp
        picture = picture.filter(ImageFilter.GaussianBlur(rng.uniform(0.5, 1.2)))
    pixels = np.asarray(picture, dtype=np.float32)

    slope = rng.uniform(-0.25, 0.25, size=2).astype(np.float32)
    light = 1 + slope[0] * np.linspace(-1, 1, width, dtype=np.float32)
    pixels = (
        pixels
        * (light + slope[1] * np.linspace(-1, 1, height, dtype=np.float32)[:, None])[..., None]
    )
    # Photos differ in detail: from a fifth to twice the average number of bytes.
    amplitude = kind.texture * float(np.exp(rng.normal(-0.2, 0.65)))
    pixels += amplitude * _texture(rng, size)[..., None]
    tint = rng.normal(size=3).astype(np.float32)
    tint -= tint.mean()
    pixels += 0.35 * amplitude * _texture(rng, size)[..., None] * tint
    painted: NDArray[np.uint8] = np.clip(pixels, 0, 255).astype(np.uint8)
    return painted


def _shapes(rng: np.random.Generator, size: tuple[int, int], hue: float) -> Image.Image:
    """An RGB picture of a few plain ellipses and polygons; most colours are near ``hue``."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", size, _colour(rng, hue))
    draw = ImageDraw.Draw(picture)
    for _ in range(int(rng.integers(3, 9))):
        centre = rng.uniform(0, 1, size=2) * size
        radius = rng.uniform(0.06, 0.35, size=2) * size
        colour = _colour(rng, hue if rng.random() < 0.6 else rng.random())
        if rng.random() < 0.5:
            low, high = centre - radius, centre + radius
            draw.ellipse((low[0], low[1], high[0], high[1]), fill=colour)
        else:
            angles = np.sort(rng.uniform(0, 2 * np.pi, size=int(rng.integers(3, 7))))
            corners = centre + radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
            draw.polygon([(float(x), float(y)) for x, y in corners], fill=colour)
    return picture


def _colour(rng: np.random.Generator, hue: float) -> tuple[int, int, int]:
    saturation, value = rng.uniform(0.2, 0.7), rng.uniform(0.25, 0.85)
    red, green, blue = colorsys.hsv_to_rgb(
        (hue + rng.normal(0, 0.03)) % 1, float(saturation), float(value)
    )
    return round(255 * red), round(255 * green), round(255 * blue)


def _texture(rng: np.random.Generator, size: tuple[int, int]) -> NDArray[np.float32]:
    """float32 (height, width): a random part of a random field, randomly mirrored."""
    fields = _fields()
    width, height = size
    x, y = (int(rng.integers(0, max(1, _FIELD - side + 1))) for side in size)
    field = fields[int(rng.integers(len(fields)))]
    cut: NDArray[np.float32]
    if max(size) <= _FIELD:
        cut = field[y : y + height, x : x + width]
    else:  # fields are periodic
        rows, columns = ((at + np.arange(side)) % _FIELD for at, side in ((y, height), (x, width)))
        cut = field[rows[:, None], columns]
    if rng.random() < 0.5:
        cut = cut[::-1]
    return cut[:, ::-1] if rng.random() < 0.5 else cut


@functools.cache
def _fields() -> NDArray[np.float32]:
    """float32 (4, 1024, 1024) of mean 0 and deviation 1, power falling as frequency^-2.5.

    Computed once: a Fourier transform for each picture would take most of the time.
    """
    rng = np.random.default_rng(0)
    fy = np.fft.fftfreq(_FIELD)[:, None]
    fx = np.fft.rfftfreq(_FIELD)[None]
    # Waves longer than a quarter of the field are left out, so that all parts look alike.
    radius = np.hypot(fx, fy)
    gain = np.where(radius * _FIELD < 4, 0.0, 1 / np.maximum(radius, 1 / _FIELD) ** 1.25)
    shape = (4, _FIELD, _FIELD // 2 + 1)
    spectrum = gain * (rng.standard_normal(shape) + 1j * rng.standard_normal(shape))
    fields = np.fft.irfft2(spectrum, s=(_FIELD, _FIELD)).astype(np.float32)
    fields -= fields.mean(axis=(1, 2), keepdims=True)
    fields /= fields.std(axis=(1, 2), keepdims=True)
    fields.flags.writeable = False
    return fields
