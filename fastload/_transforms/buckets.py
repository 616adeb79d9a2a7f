"""``Buckets``: a few sizes for images of many aspect ratios, and the crop that brings each to one.

The bucket of an image depends on its width and height alone. So the transform needs nobody to tell
it the size of its batch: it finds the same bucket as the sampler that put the batch together.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.value_class import value_class
from ..errors import UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

# torchvision's names. Pillow has them all; tensors can be resized by some of them.
_INTERPOLATIONS = ("nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos")


@dataclasses.dataclass(frozen=True, init=False)
class Buckets:
    """The sizes that images are brought to, one for each range of aspect ratios.

    An image belongs to the bucket whose aspect ratio is nearest to its own, measured as a factor.
    With ``FastLoader(..., batch_by=buckets)``, each batch has images of one bucket, and
    ``buckets.crop()`` is the transform that brings them to its size.

    Example:
        >>> buckets = Buckets([(512, 512), (448, 576), (576, 448)])
        >>> buckets = Buckets.around(512 * 512, step=64)        # the same, and more of them
        >>> tf = T.Compose([buckets.crop(), T.RandomHorizontalFlip(), T.ToTensor()])
        >>> loader = FastLoader("imgs.lmdb", 32, shuffle=True, transform=tf, batch_by=buckets)

    Args:
        sizes: (height, width) in pixels of each bucket, of different aspect ratios.
        batch_pixels: each batch has as many samples as have so many pixels together, at least one,
            and at most the loader's ``batch_size`` if that is above 1. None: ``batch_size`` alone.

    Attributes:
        sizes: the same as a tuple, from the tallest to the widest.
        batch_pixels: as given.

    Raises:
        UsageError: no sizes, one that is no pair of positive integers, or two of one aspect ratio;
            or ``batch_pixels`` is no positive integer.
    """

    sizes: tuple[tuple[int, int], ...]
    batch_pixels: int | None

    def __init__(
        self, sizes: Iterable[tuple[int, int]], *, batch_pixels: int | None = None
    ) -> None:
        if batch_pixels is not None and (not isinstance(batch_pixels, int) or batch_pixels < 1):
            raise UsageError(
                f"Buckets: expected a positive integer as batch_pixels, got {batch_pixels!r}"
            )
        try:
            pairs = [tuple(size) for size in sizes]
        except TypeError as error:
            raise UsageError(
                f"Buckets: expected a list of pairs (height, width), got {sizes!r}"
            ) from error
        for size in pairs:
            if len(size) != 2 or not all(isinstance(side, int) and side > 0 for side in size):
                raise UsageError(f"Buckets: expected pairs (height, width) of pixels, got {size}")
        ordered = sorted(pairs, key=lambda size: size[1] / size[0])
        if not ordered:
            raise UsageError("Buckets: expected at least one size (height, width), got none")
        for (h, w), (next_h, next_w) in itertools.pairwise(ordered):
            if w * next_h == next_w * h:
                raise UsageError(
                    f"Buckets: expected sizes of different aspect ratios, got {(h, w)} and "
                    f"{(next_h, next_w)}"
                )
        object.__setattr__(self, "sizes", tuple(ordered))
        object.__setattr__(self, "batch_pixels", batch_pixels)

    @classmethod
    def around(
        cls,
        pixels: int,
        *,
        step: int = 64,
        ratio: float = 2.0,
        batch_pixels: int | None = None,
    ) -> Buckets:
        """Buckets of about ``pixels`` pixels each, and never more.

        Example:
            >>> Buckets.around(512 * 512).sizes
            ((704, 320), (640, 384), (576, 448), (512, 512), (448, 576), (384, 640), (320, 704))

        Args:
            pixels: at most so many pixels in a bucket, such as 512 * 512.
            step: heights and widths are multiples of it.
            ratio: the longer side is at most about so many times the shorter side: widths go up
                to the multiple of ``step`` that is nearest to ``sqrt(pixels * ratio)``.
            batch_pixels: as for the class.

        Raises:
            UsageError: there are no such sizes.
        """
        if not isinstance(step, int) or step < 1 or ratio < 1 or pixels < step * step:
            raise UsageError(
                "Buckets.around: expected step >= 1, ratio >= 1 and at least step * step pixels, "
                f"got {pixels=}, {step=}, {ratio=}"
            )
        side = math.isqrt(pixels) // step * step
        longest = max(round((pixels * ratio) ** 0.5 / step) * step, side)
        wide = [(pixels // w // step * step, w) for w in range(side, longest + 1, step)]
        wide = [(h, w) for h, w in wide if step <= h <= w] + [(side, side)]
        largest: dict[tuple[int, int], tuple[int, int]] = {}  # the largest of each aspect ratio
        for h, w in wide + [(w, h) for h, w in wide]:
            divisor = math.gcd(h, w)
            before = largest.setdefault((h // divisor, w // divisor), (h, w))
            if before < (h, w):
                largest[h // divisor, w // divisor] = h, w
        return cls(largest.values(), batch_pixels=batch_pixels)

    def nearest(self, height: int, width: int) -> tuple[int, int]:
        """The bucket (height, width) of an image of this height and width in pixels."""
        return self.sizes[int(self.numbers(np.array([[width, height]], np.int64))[0])]

    def numbers(self, sizes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """The number of the bucket of each image: int64 (n,), indices of ``self.sizes``.

        Args:
            sizes: (n, 2), width and height in pixels, at least 1.
        """
        # The bound between two ratios is their geometric mean; squares are compared, because they
        # are the same on every machine, where roots and logarithms need not be.
        h, w = np.array(self.sizes, np.float64).T
        bounds = (w[:-1] * w[1:]) / (h[:-1] * h[1:])
        width, height = np.asarray(sizes, np.float64).T
        indices = np.searchsorted(bounds, (width * width) / (height * height), side="right")
        numbers: npt.NDArray[np.int64] = indices.astype(np.int64)
        return numbers

    def crop(self, *, random: bool = False, interpolation: Any = "bilinear") -> BucketCrop:
        """A transform: resizes an image until it covers its bucket, and cuts off what is over.

        Example:
            >>> tf = T.Compose([buckets.crop(random=True), T.ToTensor()])

        Args:
            random: cut at a random position; False: around the centre.
            interpolation: as for torchvision's Resize, an InterpolationMode or its name.

        Returns:
            A callable that takes a PIL image, or an image tensor (..., h, w), or a sample of
            ``tv_tensors`` as transforms of v2 take it. FastLoader runs it natively.

        Raises:
            UsageError: there is no such interpolation.
        """
        name = getattr(interpolation, "value", interpolation)
        if name not in _INTERPOLATIONS:
            raise UsageError(
                f"interpolation: expected one of {', '.join(_INTERPOLATIONS)}, got "
                f"{interpolation!r}"
            )
        return BucketCrop(self, bool(random), name)


@value_class()
class BucketCrop:
    """What ``Buckets.crop`` returns.

    Attributes:
        buckets: the sizes.
        random: whether the position is random; else it is the centre.
        interpolation: the name of torchvision's InterpolationMode.
    """

    buckets: Buckets
    random: bool
    interpolation: str

    def __call__(self, *inputs: Any) -> Any:
        """The image in the size of its bucket, as torchvision's functions make it.

        A tuple, list or dict of several things, or several arguments, are treated as by the
        transforms of ``torchvision.transforms.v2``: masks, boxes and points that are ``tv_tensors``
        follow the image, and all else stays as it is.

        Raises:
            UsageError: there is no image among several things.
        """
        if len(inputs) == 1 and not isinstance(inputs[0], (tuple, list, dict)):
            return self._cropped(inputs[0])
        image = next(_images(inputs), None)
        if image is None:
            raise UsageError(
                "Buckets.crop: expected an image among the arguments, a PIL image or a "
                f"tv_tensors.Image, got {', '.join(type(value).__name__ for value in inputs)}"
            )
        from torchvision.transforms import InterpolationMode, v2

        height, width = v2.functional.get_size(image)
        bucket = self.buckets.nearest(height, width)
        w, h = covering(width, height, bucket[1], bucket[0])
        mode = InterpolationMode(self.interpolation)
        crop = v2.RandomCrop if self.random else v2.CenterCrop
        steps = [v2.Resize([int(h), int(w)], mode, antialias=True), crop(list(bucket))]
        return v2.Compose(steps)(*inputs)

    def _cropped(self, image: Any) -> Any:
        from torchvision.transforms import InterpolationMode, RandomCrop
        from torchvision.transforms import functional as F

        width, height = F.get_image_size(image)
        bucket = self.buckets.nearest(height, width)
        w, h = covering(width, height, bucket[1], bucket[0])
        mode = InterpolationMode(self.interpolation)
        image = F.resize(image, [int(h), int(w)], interpolation=mode, antialias=True)
        if self.random:
            return F.crop(image, *RandomCrop.get_params(image, bucket))
        return F.center_crop(image, list(bucket))

    def __str__(self) -> str:
        position = "random" if self.random else "central"
        return f"{position} crop to one of {len(self.buckets.sizes)} buckets"


def covering(
    width: npt.ArrayLike, height: npt.ArrayLike, least_w: npt.ArrayLike, least_h: npt.ArrayLike
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The smallest width and height in proportion that cover ``least_w`` x ``least_h`` pixels.

    One side is exact, the other is rounded down, as in torchvision's Resize.
    """
    width, height, least_w, least_h = (
        np.asarray(side, np.int64) for side in (width, height, least_w, least_h)
    )
    tall = least_w * height >= least_h * width
    w = np.where(tall, least_w, least_h * width // height)
    h = np.where(tall, least_w * height // width, least_h)
    return w, h


def _images(values: Any) -> Iterator[Any]:
    """The images among ``values``, which may be nested in tuples, lists and dicts."""
    from PIL import Image
    from torchvision import tv_tensors

    if isinstance(values, (Image.Image, tv_tensors.Image)):
        yield values
    elif isinstance(values, (tuple, list, dict)):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _images(value)
