"""Random programs over Pillow, torchvision and torch, and what they come to.

A program opens a small file and does things to what it got. ``run`` gives its outcome in values
that can be compared: of a program that is run with deferred images, and of the same one without.
"""

from __future__ import annotations

import collections.abc
import contextlib
import copy
import dataclasses
import io
import math
import pickle
import random
import re
import warnings
import zipfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import functional as F
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F2

# Sources.

DAMAGED = "damaged.jpg"


def write_sources(folder: Path) -> list[Path]:
    """Small files of every kind that Datasets open, sound and not."""
    rng = np.random.default_rng(7)
    rgb = Image.fromarray(rng.integers(0, 256, (17, 23, 3), np.uint8)).resize((46, 34))
    gray = rgb.convert("L")
    exif = Image.Exif()
    exif[0x0112] = 6
    resolution = Image.Exif()
    resolution[0x0112] = 3
    resolution[0x0128] = 2
    resolution[0x011A] = 300.0
    palette = rgb.convert("P", palette=Image.Palette.ADAPTIVE, colors=16)
    alpha = rgb.convert("RGBA")
    alpha.putalpha(gray)
    files: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "a.jpg": (rgb, {"quality": 90}),
        "gray.jpg": (gray, {}),
        "cmyk.jpg": (rgb.convert("CMYK"), {}),
        "progressive.jpeg": (rgb, {"progressive": True, "subsampling": 0}),
        "turned.jpg": (rgb, {"exif": exif}),
        "resolution.jpg": (rgb, {"exif": resolution, "dpi": (300, 300), "comment": b"a comment"}),
        "icc.jpg": (rgb, {"icc_profile": b"p" * 300}),
        "one.jpg": (rgb.resize((1, 1)), {}),
        "a.png": (rgb, {}),
        "gray.png": (gray, {}),
        "alpha.png": (alpha, {}),
        "la.png": (alpha.convert("LA"), {}),
        "palette.png": (palette, {}),
        "clear.png": (palette, {"transparency": 3}),
        "colour.png": (rgb, {"transparency": (1, 2, 3)}),
        "bits.png": (rgb.convert("1"), {}),
        "deep.png": (Image.fromarray(rng.integers(0, 65535, (9, 11)).astype(np.uint16)), {}),
        "a.webp": (rgb, {"lossless": True}),
        "alpha.webp": (alpha, {"lossless": True}),
        "a.bmp": (rgb, {}),
        "a.gif": (palette, {}),
        "a.tif": (rgb, {}),
    }
    for name, (image, options) in files.items():
        image.save(folder / name, **options)
    whole = (folder / "a.jpg").read_bytes()
    (folder / DAMAGED).write_bytes(whole[: len(whole) * 2 // 3])
    (folder / "cut.jpg").write_bytes(whole[:100])
    (folder / "text.jpg").write_text("no image")
    (folder / "empty.png").write_bytes(b"")
    return sorted(folder.iterdir()) + [folder / "missing.jpg", folder]


class Reader:
    """A file-like object of somebody's own."""

    def __init__(self, data: bytes) -> None:
        self._inner = io.BytesIO(data)

    def read(self, count: int = -1) -> bytes:
        return self._inner.read(count)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._inner.seek(offset, whence)

    def tell(self) -> int:
        return self._inner.tell()


class Stream:
    """One that cannot seek."""

    def __init__(self, data: bytes) -> None:
        self._inner = io.BytesIO(data)

    def read(self, count: int = -1) -> bytes:
        return self._inner.read(count)


def _zip_member(path: Path) -> Any:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("member", path.read_bytes())
    return zipfile.ZipFile(packed).open("member")


def _open_in_with(path: Path) -> Any:
    with open(path, "rb") as file:
        image = Image.open(file)
        image.load()
    return image


def _convert_in_with(path: Path) -> Any:
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


def _after_its_file(path: Path) -> Any:
    with open(path, "rb") as file:
        return Image.open(file)


def _image_in_with(path: Path) -> Any:
    with Image.open(path) as image:
        return image.convert("RGB")


def _image_after_with(path: Path) -> Any:
    with Image.open(path) as image:
        return image


def _image_loaded_in_with(path: Path) -> Any:
    with Image.open(path) as image:
        image.load()
        return image


OPENERS: list[Callable[[Path], Any]] = [
    lambda path: Image.open(path),
    lambda path: Image.open(str(path)).convert("RGB"),
    lambda path: Image.open(str(path).encode()),
    lambda path: Image.open(io.BytesIO(path.read_bytes())),
    lambda path: Image.open(io.BytesIO(path.read_bytes())).convert("RGB"),
    lambda path: Image.open(Reader(path.read_bytes())),
    lambda path: Image.open(Stream(path.read_bytes())),
    lambda path: Image.open(_zip_member(path)),
    _open_in_with,
    _convert_in_with,
    _after_its_file,
    _image_in_with,
    _image_after_with,
    _image_loaded_in_with,
]

# Steps. Each takes what there is and gives what there is afterwards.

Step = Callable[[Any], Any]
small = st.integers(-6, 60)
positive = st.integers(1, 50)
factor = st.sampled_from([0, 0.0, 0.3, 0.5, 1.0, 1, 1.7, 3.0])
resampling = st.sampled_from([0, 1, 2, 3, 4, 5, None])
fills = st.sampled_from([None, 0, 7, (1, 2, 3), (9,), [4, 5, 6], 3.5, "red"])
modes = st.sampled_from(
    ["RGB", "RGB", "L", "RGBA", "CMYK", "P", "1", "HSV", "YCbCr", "LA", "F", "I", None, "X"]
)
sides = st.one_of(st.integers(0, 9), st.tuples(small, small), st.tuples(*[st.integers(0, 9)] * 4))


def step(function: Callable[..., Any], **arguments: Any) -> st.SearchStrategy[Step]:
    """``function(value, **drawn)``."""
    return st.fixed_dictionaries(arguments).map(lambda drawn: _Step(function, drawn))


class _Step:
    def __init__(self, function: Callable[..., Any], drawn: dict[str, Any]) -> None:
        self.function, self.drawn = function, drawn

    def __call__(self, value: Any) -> Any:
        return self.function(value, **self.drawn)

    def __repr__(self) -> str:
        code = self.function.__code__
        return f"{self.function.__name__}:{code.co_firstlineno}({self.drawn})"


def _enhance(x: Any, kind: str, f: float) -> Any:
    return getattr(ImageEnhance, kind)(x).enhance(f)


def _written(x: Any, at: int) -> Any:
    x.putpixel((at % x.size[0], 0), 0)
    return x


def _pixel(x: Any) -> Any:
    access = x.load()
    return x.convert("L") if access[0, 0] else x


def _described(x: Any) -> Any:
    return x, x.size, x.mode, x.format, x.width, x.height, x.getbands(), isinstance(x, Image.Image)


def _informed(x: Any) -> Any:
    return x, dict(x.info), dict(x.getexif()), x.readonly if x.format is None else None


def _marked(x: Any) -> Any:
    x.info["mark"] = [1, 2]
    return x.transpose(Image.Transpose.ROTATE_90)


def _thumbnail(x: Any, size: Any, gap: Any) -> Any:
    x.thumbnail(size, reducing_gap=gap)
    return x


def _drafted(x: Any) -> Any:
    return x, x.draft("L", (8, 8))


def _pasted(x: Any, at: int) -> Any:
    board = Image.new(x.mode, (30, 30))
    board.paste(x, (at, at))
    return board


def _drawn(x: Any, xy: Any, fill: Any, how: int) -> Any:
    """A rectangle, alone or among what else is drawn; what came of the image before has none."""
    before = x.transpose(1) if how % 2 else None
    draw = ImageDraw.Draw(x, x.mode if how == 3 else None)
    if how == 2:
        draw.fontmode = "1"
    if how == 4:
        draw.ellipse((1, 1, 9, 9), fill=fill)
    if how == 5:
        x = x.resize((20, 20), 2)  # another image
    draw.rectangle(xy, fill)
    if how == 6:
        draw.rectangle((0, 0, 5, 5), outline=fill, width=2)
    if how == 7:
        draw.rectangle(((2, 2), (2, 7)), 0)
        assert isinstance(draw, ImageDraw.ImageDraw)
    return x if before is None else [x, before]


CORNERS = st.one_of(
    st.tuples(*[st.integers(-5, 20)] * 2, *[st.integers(10, 60)] * 2),
    st.lists(st.floats(-5, 60), min_size=4, max_size=4),
    st.tuples(*[st.tuples(st.integers(-60, 60), st.integers(-60, 60))] * 2),
    st.sampled_from([(), (0, 0, 9), ([0, 0], (np.int64(9), 3.7)), "0099", (0, 0, 1e30, 1e30)]),
)
INKS = st.one_of(
    st.tuples(*[st.integers(0, 255)] * 3),
    st.sampled_from([None, 0, 7, 255, 300, 0x123456, "white", "#102030", "no colour", (1,), (1, 2),
                     (1, 2, 3, 4), (256, 0, 0), (-1, 0, 0), True, 1.5, (1.0, 2.0, 3.0), [1, 2, 3]]),
)  # fmt: skip


def _left(x: Any) -> Any:
    kept = x.convert("RGB")
    x.close()
    return kept


def _closed(x: Any) -> Any:
    x.close()
    return x


SQUARE = [[0, 0], [9, 0], [9, 9], [0, 9]]


def _split_and_merged(x: Any) -> Any:
    return Image.merge(x.mode, x.split())


def _reordered(x: Any, order: Any, touch: int) -> Any:
    """Merged in another order; what is done in between may not be overlooked."""
    bands = [x.getchannel(one) for one in order] if touch % 2 else [x.split()[k] for k in (2, 1, 0)]
    if touch > 3:
        bands[1].putpixel((0, 0), 9)
    elif touch > 2:
        x.putpixel((0, 0), (1, 2, 3))
    merged = Image.merge("RGB", bands)
    return (merged, bands, len(x.split()), bands[0].info, bands[0].size)[0 if touch < 5 else 1]


IMAGE_STEPS: list[st.SearchStrategy[Step]] = [
    step(lambda x, m: x.convert(m), m=modes),
    step(lambda x: x.copy()),
    step(lambda x: copy.copy(x)),
    step(lambda x: copy.deepcopy(x)),
    step(lambda x: pickle.loads(pickle.dumps(x))),
    step(lambda x, b: x.crop(b), b=st.one_of(st.none(), st.tuples(small, small, small, small))),
    step(lambda x, b: x.crop(b), b=st.tuples(*[st.floats(-3, 40)] * 4)),
    step(lambda x, b: x.crop(np.array(b)), b=st.tuples(*[st.integers(0, 20)] * 4)),
    step(lambda x, s, r: x.resize(s, r), s=st.tuples(positive, positive), r=resampling),
    step(lambda x, s, r: x.resize(s, r), s=st.tuples(small, small), r=st.integers(-1, 8)),
    step(
        lambda x, s, r, b: x.resize(s, r, box=b),
        s=st.tuples(positive, positive),
        r=resampling,
        b=st.tuples(st.floats(0, 5), st.floats(0, 5), st.floats(6, 30), st.floats(6, 30)),
    ),
    step(lambda x, s: x.resize(s, 2, reducing_gap=2.0), s=st.tuples(positive, positive)),
    step(lambda x, s: x.resize(np.array(s)), s=st.tuples(positive, positive)),
    step(lambda x, s: x.resize((np.int64(s), s + 0.5)), s=positive),
    step(lambda x, s: x.resize([np.int32(s), True]), s=positive),
    step(lambda x, m: x.transpose(m), m=st.integers(-1, 7)),
    step(
        lambda x, a, r, e, f: x.rotate(a, r, expand=e, fillcolor=f),
        a=st.sampled_from([0, 90, 180, 270, -90, 360, 33.3, 45]),
        r=resampling.filter(lambda r: r is not None),
        e=st.booleans(),
        f=fills,
    ),
    step(
        lambda x, s, d, r, f: x.transform(s, Image.Transform.AFFINE, d, r, fillcolor=f),
        s=st.tuples(positive, positive),
        d=st.tuples(*[st.floats(-2, 2)] * 6),
        r=st.sampled_from([0, 2, 3, 1]),
        f=fills,
    ),
    step(
        lambda x, d, r: x.transform(x.size, Image.Transform.PERSPECTIVE, d, r),
        d=st.tuples(*[st.floats(-1, 1)] * 8),
        r=st.sampled_from([0, 2, 3]),
    ),
    step(lambda x: x.transform((9, 9), Image.Transform.EXTENT, (0, 0, 20, 20))),
    step(
        lambda x, f: x.filter(f),
        f=st.sampled_from(
            [
                ImageFilter.SMOOTH,
                ImageFilter.EDGE_ENHANCE(),
                ImageFilter.GaussianBlur(2),
                ImageFilter.GaussianBlur((1, 0.5)),
                ImageFilter.GaussianBlur(-1),
                ImageFilter.BoxBlur(1.5),
                ImageFilter.BoxBlur(0),
                ImageFilter.Kernel((3, 3), [1, 0.5, 0, -1, 3, 0, 2, 0, 1]),
                ImageFilter.Kernel((5, 5), [1] * 25, 20, 7.5),
                ImageFilter.MedianFilter(3),
                ImageFilter.UnsharpMask(),
                ImageFilter.GaussianBlur,
                7,
            ]
        ),
    ),
    step(
        _enhance,
        kind=st.sampled_from(["Brightness", "Contrast", "Color", "Sharpness"]),
        f=factor
        | st.builds(
            lambda kind, f: kind(f),
            st.sampled_from([torch.tensor, np.float32, np.array, Fraction, str, bool]),
            st.sampled_from([0.0, 0.75, 1.5]),
        ),
    ),
    step(
        lambda x, b, f: ImageOps.expand(x, b, f), b=sides, f=fills.filter(lambda f: f is not None)
    ),
    step(lambda x: ImageOps.mirror(x)),
    step(lambda x: ImageOps.flip(x)),
    step(lambda x: ImageOps.invert(x)),
    step(lambda x: ImageOps.grayscale(x)),
    step(lambda x, t: ImageOps.solarize(x, t), t=st.sampled_from([0, 100, 256, 1.5])),
    step(lambda x, b: ImageOps.posterize(x, b), b=st.integers(-1, 9)),
    step(lambda x: ImageOps.equalize(x)),
    step(lambda x: ImageOps.autocontrast(x)),
    step(lambda x: ImageOps.autocontrast(x, cutoff=2)),
    step(lambda x: ImageOps.exif_transpose(x)),
    step(lambda x, s: ImageOps.fit(x, s), s=st.tuples(positive, positive)),
    step(lambda x, s: ImageOps.pad(x, s), s=st.tuples(positive, positive)),
    step(lambda x, f: Image.blend(x, x.transpose(0), f), f=factor),
    step(lambda x, f: Image.blend(x.convert("L").convert("RGB"), x, f), f=factor),
    step(
        lambda x, f, m: x.point(f, m),
        f=st.sampled_from(
            [
                lambda v: 255 - v,
                lambda v: 1.7 * v - 40.5,
                lambda v: v > 99,
                lambda v: float("nan"),
                list(range(256)),
                [300 - v for v in range(768)],
                tuple(range(9)),
            ]
        ),
        m=st.sampled_from([None, None, None, "L", "1"]),
    ),
    step(lambda x: _described(x)[0]),
    step(lambda x: Image.fromarray(np.asarray(x))),
    step(lambda x: Image.fromarray(np.array(x)[:, ::-1])),
    step(_split_and_merged),
    step(
        _reordered,
        order=st.sampled_from([(2, 1, 0), "BGR", "RRG", (1, 1, 1), (0, 1, 5), ("R", 1, 2)]),
        touch=st.integers(0, 5),
    ),
    step(lambda x, c: x.getchannel(c).resize((9, 7)), c=st.sampled_from([0, 2, -1, "G", "", "RG"])),
    step(lambda x: x.split()[-1].convert("RGB")),
    step(lambda x: x.convert("RGB") if len(x.split()) == 1 else x),
    step(lambda x, b: x.getchannel(b), b=st.sampled_from([0, 2, 3, -1, "G", "L", "X"])),
    step(_pixel),
    step(_written, at=st.integers(0, 50)),
    step(_marked),
    step(
        _thumbnail,
        size=st.tuples(st.one_of(positive, st.floats(1, 50)), positive),
        gap=st.sampled_from([2.0, 1, 1.5, None]),
    ),
    step(_pasted, at=st.integers(-5, 20)),
    step(_drawn, xy=CORNERS, fill=INKS, how=st.integers(0, 8)),
    step(_left),
    step(_closed),
    # torchvision
    step(
        lambda x, s, i: F.resize(x, s, i),
        s=st.sampled_from([8, [8], [7, 9], [50, 3]]),
        i=st.sampled_from(list(v1.InterpolationMode)),
    ),
    step(lambda x, s: F.center_crop(x, s), s=st.sampled_from([5, [7, 9], [60, 3], [60, 60]])),
    step(lambda x, t: F.crop(x, *t), t=st.tuples(small, small, positive, positive)),
    step(
        lambda x, t: F.resized_crop(x, *t, [6, 7]),
        t=st.tuples(st.integers(0, 5), st.integers(0, 5), positive, positive),
    ),
    step(lambda x: F.hflip(x)),
    step(lambda x: F2.vertical_flip(x)),
    step(
        lambda x, p, f, m: F.pad(x, p, f, m),
        p=st.one_of(st.integers(0, 5), st.lists(st.integers(-2, 5), min_size=1, max_size=4)),
        f=st.sampled_from([0, 5, (1, 2, 3), None, "x"]),
        m=st.sampled_from(["constant", "edge", "reflect", "symmetric", "other"]),
    ),
    step(lambda x, p: F2.pad(x, p), p=st.integers(0, 5)),
    step(
        lambda x, f, w: getattr(F, "adjust_" + w)(x, f),
        f=factor,
        w=st.sampled_from(["brightness", "contrast", "saturation", "sharpness", "gamma"]),
    ),
    step(lambda x, f: F.adjust_hue(x, f), f=st.sampled_from([-0.6, -0.5, -0.1, 0, 0.25, 0.5])),
    step(lambda x, f: F2.adjust_hue(x, f), f=st.sampled_from([-0.1, 0.25])),
    step(lambda x, n: F.to_grayscale(x, n), n=st.sampled_from([1, 3, 2])),
    step(lambda x, n: F2.rgb_to_grayscale(x, n), n=st.sampled_from([1, 3])),
    step(
        lambda x, k, s: F.gaussian_blur(x, k, s),
        k=st.sampled_from([3, [3, 5], [2, 3], 1]),
        s=st.sampled_from([None, 1.0, [0.5, 2.0], 0, [1]]),
    ),
    step(lambda x, k: F2.gaussian_blur(x, k), k=st.sampled_from([3, [3, 5], [2, 3]])),
    step(
        lambda x, a, e: F.rotate(x, a, expand=e, fill=3),
        a=st.sampled_from([0.0, 30.5, 90.0]),
        e=st.booleans(),
    ),
    step(lambda x, a: F.affine(x, a, [1, 2], 1.2, [3.0, 0.0]), a=st.floats(-90, 90)),
    step(lambda x: F.perspective(x, SQUARE, [[1, 1], [8, 0], [9, 7], [0, 9]])),
    step(lambda x: F.invert(x)),
    step(lambda x: F2.equalize(x)),
    step(lambda x: F.posterize(x, 3)),
    step(lambda x: F.solarize(x, 77)),
    step(lambda x: F.autocontrast(x)),
    step(lambda x: v1.RandomResizedCrop(9)(x)),
    step(lambda x: v2.RandomResizedCrop(9, antialias=True)(x)),
    step(lambda x: v1.RandomCrop(12, padding=3, pad_if_needed=True)(x)),
    step(lambda x: v1.RandomHorizontalFlip()(x)),
    step(lambda x: v1.ColorJitter(0.4, 0.4, 0.4, 0.1)(x)),
    step(lambda x: v2.ColorJitter(0.4, 0.4, 0.4, 0.1)(x)),
    step(lambda x: v1.RandAugment()(x)),
    step(lambda x: v2.TrivialAugmentWide()(x)),
    step(lambda x: v1.AutoAugment()(x)),
    step(lambda x: v1.AugMix()(x)),
    step(lambda x: v1.RandomPerspective(p=1)(x)),
    step(lambda x: v2.RandomGrayscale(0.5)(x)),
    step(lambda x: random.choice(v1.FiveCrop(4)(x))),
    step(lambda x: v2.RandomPhotometricDistort(p=0.5)(x)),
]

TO_TENSOR: list[st.SearchStrategy[Step]] = [
    step(lambda x: F.to_tensor(x)),
    step(lambda x: v1.ToTensor()(x)),
    step(lambda x: v1.PILToTensor()(x)),
    step(lambda x: F2.to_image(x)),
    step(lambda x: v2.ToImage()(x)),
    step(lambda x: tv_tensors.Image(x)),
    step(lambda x: tv_tensors.Mask(x)),
    step(lambda x: torch.from_numpy(np.array(x))),
]


def _in_place(x: Any, f: float) -> Any:
    y = x.mul_(f)
    assert y is x or not isinstance(x, torch.Tensor) or isinstance(x, tv_tensors.Image)
    return x


def _shared(x: Any) -> Any:
    y = x.as_subclass(torch.Tensor)
    y.mul_(2)
    return x


def _assigned(x: Any) -> Any:
    x[0, 0, 0] = 1
    return x


def _boxed(x: Any, box: Any, value: Any, channels: Any) -> Any:
    """A box of all channels, or of each of ``channels`` in turn, is assigned a value."""
    top, bottom, left, right = box
    if channels is None:
        x[:, top:bottom, left:right] = value
    else:
        for channel in channels:
            x[channel, top:bottom, left:right] = value
    return x


def _masked(x: Any, boxes: Any, how: int) -> Any:
    """Cutout."""
    made = np.ones(x.shape[1:], np.float32)
    for top, bottom, left, right in boxes:
        made[top:bottom, left:right] = 0.0
    mask = torch.from_numpy(made)
    if how == 1:
        return mask[None] * x
    if how == 2:
        x *= mask
        return x
    return x * mask.expand_as(x)


def _rows(x: Any, n: int) -> Any:
    batch = torch.stack([x] * n)
    return x, batch, batch.shape, batch.stride(), batch.is_contiguous()


def _shaped(x: Any) -> Any:
    asked = ("shape", "dtype", "ndim", "device", "requires_grad", "layout", "is_leaf")
    called = ("dim", "numel", "stride", "is_contiguous", "is_floating_point", "type", "__len__")
    return [getattr(x, name) for name in asked], [getattr(x, name)() for name in called], str(x)


def _part(x: Any, whole: bool) -> Any:
    y = x[..., 1:9, 2:8]
    (x if whole else y).add_(1)
    return y if whole else x


def _batch(x: Any) -> Any:
    y = torch.stack([x, x.clone()])
    x.add_(1)
    return torch.cat([y, torch.stack([x, x])])


def _unsqueezed(x: Any, how: int) -> Any:
    """Views with a dimension in front, which see what changes, and what is put together of them."""
    y = (x.unsqueeze(0), torch.unsqueeze(x, -x.ndim - 1), x[None])[how % 3]
    batch = torch.cat([y, x[None]], 0)
    if how == 3:
        x.add_(1)
    elif how == 4:
        y.mul_(2)
    return x, y, batch, y.shape, y.stride(), y.squeeze(0), y[0], torch.cat([batch, y])


def taken_apart(x: Any, how: int) -> Any:
    """Rows of a batch, which see what changes, and what is stacked of them and of batches."""
    batch = torch.stack([F.hflip(x), x, x])
    rows = (list(batch), batch.unbind(), [batch[0], batch[1], batch[-1]])[how % 3]
    moved = torch.stack([row * 2 for row in rows])
    if how == 3:
        rows[1].mul_(2)
    elif how == 4:
        batch.add_(1)
    elif how == 5:
        rows[0][:, 1:3, 2:5] = 1
    both = torch.stack([batch, torch.stack(list(rows)), torch.stack([x, x, x]).clone()])
    joined = torch.cat([both, both]) if how < 6 else torch.stack([moved, batch * 2])
    return rows, moved, both, both.stride(), joined, joined.shape, batch[1:]


def _saved(x: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(x, buffer)
    return torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)


def _listed(values: Any) -> bool:
    return isinstance(values, (tuple, list))


means = st.sampled_from(
    [(0.5, 0.4, 0.3), [0.5], [0.1, 0.2, 0.3], (0.5, 0.5), torch.tensor([0.4, 0.5, 0.6]),
     np.array([0.4, 0.5, 0.6]), 0.5, (1, 2, 3)]
)  # fmt: skip
deviations = st.sampled_from(
    [(0.2, 0.3, 0.4), [0.5], [1, 2, 3], (0.0, 1.0, 1.0), (1e-50, 1.0, 1.0), 0.5]
)
dtypes = st.sampled_from(
    [torch.float32, torch.float16, torch.uint8, torch.int64, torch.float64, torch.bfloat16]
)

numbers = st.sampled_from(
    [1, 0.3, -2.5, 0, -0.0, 255, True, np.float64(0.7), np.float32(0.7), math.nan, math.inf, 1e39]
)
bounds = st.one_of(st.none(), numbers)

TENSOR_STEPS: list[st.SearchStrategy[Step]] = [
    step(lambda x, m, s, i: F.normalize(x, m, s, i), m=means, s=deviations, i=st.booleans()),
    step(lambda x, m, s: F2.normalize(x, m, s), m=means, s=deviations),
    step(
        lambda x, m, s: v2.Normalize(m, s)(x), m=means.filter(_listed), s=deviations.filter(_listed)
    ),
    step(lambda x, d: F.convert_image_dtype(x, d), d=dtypes),
    step(lambda x, d, s: F2.to_dtype(x, d, scale=s), d=dtypes, s=st.booleans()),
    step(lambda x, d: v2.ToDtype(d, scale=True)(x), d=dtypes),
    step(lambda x, d: x.to(d), d=dtypes),
    step(lambda x: x.to("cpu")),
    step(lambda x: x.float()),
    step(lambda x: x.half()),
    step(lambda x: x.double()),
    step(lambda x: x / 255),
    step(lambda x: x.div(255.0)),
    step(lambda x: x * 2 - 1),
    step(lambda x: 2 * x + 1.5),
    step(lambda x, n: n - x, n=numbers),
    step(lambda x, n: x * n, n=numbers),
    step(lambda x, a, b: torch.clamp(x, a, b), a=bounds, b=bounds),
    step(lambda x, a, b: x.clip(min=a, max=b), a=bounds, b=bounds),
    step(lambda x, a, b: (x.clamp_(a, b), x), a=bounds, b=bounds),
    step(lambda x: x - x.float().mean()),
    step(lambda x, f: _in_place(x, f), f=factor),
    step(_shared),
    step(_assigned),
    step(
        _boxed,
        box=st.tuples(small, small, small, small),
        value=st.sampled_from([0, 0.0, 0.3, 255, -1, 1e39, -0.0, torch.tensor(0.5)]),
        channels=st.sampled_from([None, None, [0, 1, 2], [0], [2, 1, 0]]),
    ),
    step(
        _masked,
        boxes=st.lists(st.tuples(*[st.integers(0, 40)] * 4), max_size=3),
        how=st.integers(0, 2),
    ),
    step(_rows, n=st.integers(1, 3)),
    step(_batch),
    step(_unsqueezed, how=st.integers(0, 4)),
    step(taken_apart, how=st.integers(0, 8)),
    step(_saved),
    step(lambda x: pickle.loads(pickle.dumps(x))),
    step(lambda x: copy.deepcopy(x)),
    step(lambda x: copy.copy(x)),
    step(lambda x: x.clone()),
    step(lambda x: x.detach()),
    step(lambda x: x.contiguous()),
    step(lambda x: x.permute(1, 2, 0)),
    step(lambda x: x.permute(1, 2, 0).numpy()),
    step(lambda x: x[:, 1:, :2]),
    step(lambda x: (x > 0.5).long()),
    step(lambda x: torch.cat([x, x])),
    step(lambda x: torch.flip(x, [-1])),
    step(lambda x: torch.as_tensor(x)),
    step(lambda x: torch.tensor(x.tolist())),
    step(lambda x: np.asarray(x)),
    step(lambda x: x.requires_grad_(True).sum()),
    step(lambda x: list(x)),
    step(lambda x: x.numpy()),
    step(_shaped),
    step(lambda x: torch.nn.functional.interpolate(x[None].float(), (5, 5))),
    step(lambda x, m: F.to_pil_image(x, m), m=st.sampled_from([None, None, "RGB", "L", "F"])),
    step(lambda x: F.to_tensor(F.to_pil_image(x).resize((7, 5)))),
    step(lambda x: F.resize(x, [6, 7], antialias=True)),
    step(lambda x: v2.Resize((6, 7))(x)),
    step(
        lambda x, s, i, a: F2.resize(x, s, i, antialias=a),
        s=st.sampled_from([8, [8], [7, 9], [50, 3], [1, 5], None]),
        i=st.sampled_from(["bilinear", "bicubic", "nearest", 2, v1.InterpolationMode.BICUBIC]),
        a=st.sampled_from([True, True, False, None]),
    ),
    step(lambda x, s: F2.resize(x, s, max_size=40), s=st.sampled_from([8, 39, [7, 9], 40])),
    step(lambda x: v2.RandomResizedCrop(9)(x)),
    step(lambda x: v1.RandomCrop(7)(x)),
    step(lambda x, t: F.crop(x, *t), t=st.tuples(small, small, positive, positive)),
    step(lambda x, t: F2.crop(x, *t), t=st.tuples(*[st.integers(0, 20)] * 4)),
    step(
        lambda x, f: F2.pad(x, 2, fill=f), f=st.sampled_from([None, 0, 7, [255, 0, 9], [3, 3, 3]])
    ),
    step(lambda x, s: F2.center_crop(x, s), s=st.sampled_from([5, [7, 9], [60, 3]])),
    step(lambda x: F2.vertical_flip(x)),
    step(lambda x, d: x.flip(d), d=st.sampled_from([-1, [-2], (1, 2), 0])),
    step(lambda x: x[:, :, 1:]),
    step(lambda x, o: x[o], o=st.sampled_from([[2, 1, 0], [2, 1, 0], [0, 0, -1], [1], [2, 1, 3]])),
    step(_part, whole=st.booleans()),
    step(lambda x: F.hflip(x)),
    step(lambda x: F.erase(x, 1, 2, 3, 4, torch.tensor([0.5])[:, None, None])),
    step(lambda x: v1.RandomErasing(p=1)(x)),
    step(lambda x: v1.RandomErasing(p=1, value="random")(x)),
    step(lambda x: v2.RandomErasing(p=1, value=[0.1, 0.2, 0.3], inplace=True)(x)),
    step(lambda x: v2.ToPureTensor()(x)),
    step(lambda x: tv_tensors.wrap(x, like=x)),
    step(lambda x: torch.utils.data.default_collate([(x, 1), (x, 2)])),
    step(lambda x: torch.utils.data.default_collate([{"a": x}])["a"].float().div(255)),
]

ENDINGS: list[st.SearchStrategy[Step]] = [
    step(lambda x: x),
    step(_described),
    step(_informed),
    step(_drafted),
    step(lambda x: x.getpixel((0, 0))),
    step(lambda x: x.histogram()),
    step(lambda x: x.tobytes()),
    step(lambda x: x.getextrema()),
    step(lambda x: x.verify()),
    step(lambda x: (x.seek(0), x.tell())),
    step(lambda x: x.seek(1)),
    step(lambda x: x == x.copy()),
    step(lambda x: x.filename if hasattr(x, "filename") else "-"),
    step(lambda x: x.quantization),
    step(lambda x: hasattr(x, "layers")),
    step(lambda x: getattr(x, "n_frames", 1)),
    step(lambda x: x.getpalette()),
    step(lambda x: x.no_such_thing),
    step(lambda x: (isinstance(x, Image.Image), x.__class__.__name__)),
    step(lambda x: np.asarray(x)),
    step(lambda x: isinstance(x, collections.abc.Hashable)),
    step(lambda x: [x, x.rotate(90), x.convert("L")]),
]


@dataclasses.dataclass
class Program:
    """What is opened and done."""

    path: Path
    opener: Callable[[Path], Any]
    steps: list[Step]
    seed: int


@st.composite
def programs(draw: st.DrawFn, paths: list[Path]) -> Program:
    """Random programs over these files."""
    sound = [path for path in paths if path.suffix == ".jpg" and len(path.stem) < 6]
    path = draw(st.one_of(st.sampled_from(sound), st.sampled_from(paths)))
    opener = draw(st.sampled_from(OPENERS))
    steps = draw(st.lists(st.one_of(IMAGE_STEPS), max_size=5))
    if draw(st.booleans()):
        steps.append(draw(st.one_of(TO_TENSOR[:6] * 3 + TO_TENSOR)))
        steps += draw(st.lists(st.one_of(TENSOR_STEPS), max_size=4))
    else:
        steps.append(draw(st.one_of(ENDINGS)))
    return Program(path, opener, steps, draw(st.integers(0, 9)))


# Outcomes.


def described(value: Any) -> Any:
    """A value in comparable terms, down to the last bit."""
    if isinstance(value, Image.Image):
        data = value.tobytes()
        return (
            "image",
            value.__class__.__name__,
            value.mode,
            value.size,
            value.format,
            described(value.info),
            value.getpalette() if value.mode == "P" else None,
            data,
        )
    if isinstance(value, torch.Tensor):
        kind = "tensor" if not isinstance(value, tv_tensors.TVTensor) else _kind(value)
        head = (kind, str(value.dtype), tuple(value.shape), value.stride(), value.requires_grad)
        real = value.detach().as_subclass(torch.Tensor)
        flat = torch.empty(real.numel(), dtype=real.dtype).copy_(real.reshape(-1))
        return (*head, flat.view(torch.uint8).numpy().tobytes())
    if isinstance(value, np.ndarray):
        return "array", value.dtype.str, value.shape, value.strides, value.tobytes()
    if isinstance(value, dict):
        return {str(key): described(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return [described(part) for part in value]
    return re.sub(r"0x[0-9a-fA-F]+", "0x", repr(value))


def _kind(value: Any) -> str:
    return next(t.__name__ for t in (tv_tensors.Image, tv_tensors.Mask) if isinstance(value, t))


def run(program: Program, context: contextlib.AbstractContextManager[None]) -> Any:
    """The outcome: what it gives, or the exception; the warnings; the next random numbers."""
    torch.manual_seed(program.seed)
    random.seed(program.seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with context:
                value = program.opener(program.path)
                for done in program.steps:
                    value = done(value)
                outcome: Any = ("value", described(value))
        except Exception as error:  # whatever it is has to be the same
            # Python's own words name the type. Who sees them is told in docs/your-dataset.md.
            words = re.sub(r"[\w.]*Image(File)?\b", "Image", str(error))
            words = re.sub(r"index -?\d+ is out", "index is out", words)  # of several: any thread's
            message = re.sub(r"0x[0-9a-fA-F]+", "0x", words)
            outcome = ("error", type(error).__name__, message)
    told = sorted({str(w.message) for w in caught if w.category is not ResourceWarning})
    return outcome, told, torch.rand(2).tolist(), random.random()
