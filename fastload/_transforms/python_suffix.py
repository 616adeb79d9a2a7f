"""The part of a transform that stays in Python, behind the part that an engine does.

Where a chain begins with transforms that fastload knows and goes on with something else (a
function, Albumentations, a transform of the user's), the engine decodes and does the beginning for
a whole batch, and ``Tail`` does the rest, sample by sample, on what the user's own chain would have
there: a PIL image, or a tensor behind ToTensor, PILToTensor or ToImage.

Note [What Pillow remembers]
    A PIL image carries what stood beside the pixels in its file (``Image.info``: EXIF, ICC profile,
    resolution), through every crop and resize, and a user's function may read it
    (``ImageOps.exif_transpose`` does). So the image that a tail gets has it too: the file's header
    is read again by Pillow, which decodes nothing but files with transparent colours.

    torchvision loses it where it makes a new image: in Pad, crops that pad, brightness, contrast
    and hue, Grayscale(3), GaussianBlur. Which of these happen may be chance, so here it is kept.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..storage.base import ENCODED, TURNED, Store

if TYPE_CHECKING:
    from .plan import Plan


@dataclasses.dataclass(frozen=True)
class Tail:
    """What comes behind the last transform that an engine does.

    Attributes:
        transforms: in order; none: the samples are what the engine's part ends with.
        tensor: the type of the tensor that the first of them gets; None: a PIL image.
    """

    transforms: tuple[Callable[[Any], Any], ...]
    tensor: type[torch.Tensor] | None

    @property
    def words(self) -> tuple[str, ...]:
        """The transforms, in words."""
        if not self.transforms:
            return ("samples are PIL images",)
        return tuple(map(words, self.transforms))

    def __call__(self, image: Any) -> Any:
        """The sample, made of an image of the type that was promised."""
        for transform in self.transforms:
            image = transform(image)
        return image


@dataclasses.dataclass(frozen=True)
class Part:
    """A chain in two halves.

    Attributes:
        plan: what an engine does.
        tail: what Python does then; None: nothing.
    """

    plan: Plan
    tail: Tail | None = None

    @property
    def as_pillow(self) -> bool:
        """Whether Python goes on with a PIL image, so that pixels had better lie as in one."""
        return self.tail is not None and self.tail.tensor is None

    def sample(self, image: torch.Tensor, info: dict[Any, Any]) -> Any:
        """The sample, out of what the engine made: (3, h, w). ``info`` is for a PIL image."""
        if self.tail is None:
            return image
        if self.tail.tensor is not None:
            return self.tail(image.as_subclass(self.tail.tensor))
        return self.tail(_as_pillow(image, info))


@dataclasses.dataclass(frozen=True)
class Parts:
    """What becomes of each image: one chain, or several, which give as many views of it.

    Attributes:
        each: the chains.
        views: whether a sample is a list of views, also where it is of one.
    """

    each: tuple[Part, ...]
    views: bool

    def samples(
        self,
        images: Sequence[torch.Tensor | list[torch.Tensor]],
        store: Store,
        records: np.ndarray,
        before: Callable[[int], None] | None = None,
    ) -> list[Any]:
        """The samples of ``records``, in order.

        Args:
            images: of each chain, what the engine made of the records.
            store: that they are in.
            records: int64 (n,).
            before: called with each sample's place before Python works on it.
        """
        infos = infos_of(store, records) if any(part.as_pillow for part in self.each) else None
        made: list[Any] = []
        for i in range(len(records)):
            if before is not None:
                before(i)
            info = {} if infos is None else infos[i]
            views = [
                part.sample(some[i], dict(info))
                for part, some in zip(self.each, images, strict=True)
            ]
            made.append(views if self.views else views[0])
        return made


def infos_of(store: Store, records: np.ndarray) -> list[dict[Any, Any]]:
    """``Image.info`` of each record. See Note [What Pillow remembers]."""
    from PIL import Image, ImageOps

    infos: list[dict[Any, Any]] = []
    kinds = store.kinds(records)
    encoded = records[(kinds == ENCODED) | (kinds == TURNED)]
    files = iter(store.read(encoded) if len(encoded) else [])
    for kind in kinds.tolist():
        if kind not in (ENCODED, TURNED):
            infos.append({})
            continue
        with Image.open(io.BytesIO(next(files))) as opened:
            image = ImageOps.exif_transpose(opened) if kind == TURNED else opened
            # What of a palette is transparent is another value among colours, which Pillow finds.
            found = image.convert("RGB") if "transparency" in image.info else image
            infos.append(dict(found.info))
    return infos


def words(transform: Any) -> str:
    """A transform in one line, by its name where it is a function."""
    inner = getattr(transform, "lambd", None)  # torchvision's Lambda
    if inner is not None:
        return f"{type(transform).__name__}({words(inner)})"
    name = getattr(transform, "__qualname__", None) or getattr(transform, "__name__", None)
    if name is not None:
        return str(name).rpartition("<locals>.")[2]
    try:
        text = " ".join(str(transform).split())
    except (TypeError, ValueError, AttributeError):
        # torchvision's own fail to print settings of other types than they expect
        return type(transform).__qualname__
    # what object says: a place in memory tells nobody anything
    return type(transform).__qualname__ if text.endswith(f"at {id(transform):#x}>") else text


def _as_pillow(image: torch.Tensor, info: dict[Any, Any]) -> Any:
    from PIL import Image

    pillow = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    pillow.info = info
    return pillow
