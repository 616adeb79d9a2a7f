"""The part of a transform that stays in Python, after the part that an engine does.

If a chain starts with transforms that fastload recognises and continues with something else (a
function, Albumentations, a user's transform), the engine decodes and runs the first part for a
whole batch. ``PythonSuffix`` runs the rest sample by sample, on the same type as in the user's
chain: a PIL image, or a tensor after ToTensor, PILToTensor or ToImage.

Note [Image.info]
    A PIL image carries the metadata of its file (``Image.info``: EXIF, ICC profile, resolution)
    through every crop and resize, and a user's function may read it (``ImageOps.exif_transpose``
    does). So the image that a suffix gets has it too: Pillow reads the file's header again. It
    decodes pixels only for files with transparent colours.

    torchvision drops it where it creates a new image: in Pad, crops that pad, brightness, contrast
    and hue, Grayscale(3), GaussianBlur. Which of these run may be random, so here it is kept.
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
    from PIL import Image

    from .plan import Plan


@dataclasses.dataclass(frozen=True)
class PythonSuffix:
    """The transforms after the last one that an engine does.

    Attributes:
        transforms: in order; if empty, the samples are the images that the engine's part gives.
        tensor: type of the tensor that the first of them gets; None: a PIL image.
    """

    transforms: tuple[Callable[[Any], Any], ...]
    tensor: type[torch.Tensor] | None

    @property
    def words(self) -> tuple[str, ...]:
        """The transforms, in words."""
        if not self.transforms:
            return ("samples are PIL images",)
        return tuple(map(words, self.transforms))

    def __call__(self, image: Image.Image | torch.Tensor) -> Any:
        """The sample, from a PIL image or a tensor of the type ``tensor``."""
        for transform in self.transforms:
            image = transform(image)
        return image


@dataclasses.dataclass(frozen=True)
class Part:
    """A chain split into an engine's part and a Python part.

    Attributes:
        plan: what an engine does.
        suffix: what Python does after that; None: nothing.
    """

    plan: Plan
    suffix: PythonSuffix | None = None

    @property
    def as_pillow(self) -> bool:
        """Whether the suffix gets a PIL image, so that an HWC layout saves a copy."""
        return self.suffix is not None and self.suffix.tensor is None

    def sample(self, image: torch.Tensor, info: dict[str | tuple[int, int], Any]) -> Any:
        """The sample, from the engine's image (3, h, w). A PIL image gets ``info``."""
        if self.suffix is None:
            return image
        if self.suffix.tensor is not None:
            return self.suffix(image.as_subclass(self.suffix.tensor))
        return self.suffix(_as_pillow(image, info))


@dataclasses.dataclass(frozen=True)
class Parts:
    """One chain, or one for each view of an image.

    Attributes:
        each: the chains.
        views: whether a sample is a list of views, even if there is only one.
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
            images: for each chain, the engine's images of all records.
            store: the store that holds the records.
            records: int64 (n,).
            before: called with each sample's position before Python works on it.
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


def infos_of(store: Store, records: np.ndarray) -> list[dict[str | tuple[int, int], Any]]:
    """``Image.info`` of each record. See Note [Image.info]."""
    from PIL import Image, ImageOps

    infos: list[dict[str | tuple[int, int], Any]] = []
    kinds = store.kinds(records)
    encoded = records[(kinds == ENCODED) | (kinds == TURNED)]
    files = iter(store.read(encoded) if len(encoded) else [])
    for kind in kinds.tolist():
        if kind not in (ENCODED, TURNED):
            infos.append({})
            continue
        with Image.open(io.BytesIO(next(files))) as opened:
            image = ImageOps.exif_transpose(opened) if kind == TURNED else opened
            # Converting a palette changes the value that marks transparency; Pillow computes it.
            found = image.convert("RGB") if "transparency" in image.info else image
            infos.append(dict(found.info))
    return infos


def words(transform: object) -> str:
    """A transform in one line; a function by its name."""
    inner = getattr(transform, "lambd", None)  # torchvision's Lambda
    if inner is not None:
        return f"{type(transform).__name__}({words(inner)})"
    name = getattr(transform, "__qualname__", None) or getattr(transform, "__name__", None)
    if name is not None:
        return str(name).rpartition("<locals>.")[2]
    try:
        text = " ".join(str(transform).split())
    except (TypeError, ValueError, AttributeError):
        # torchvision's transforms fail to print settings of unexpected types
        return type(transform).__qualname__
    # the repr of object, whose address would say nothing
    return type(transform).__qualname__ if text.endswith(f"at {id(transform):#x}>") else text


def _as_pillow(image: torch.Tensor, info: dict[str | tuple[int, int], Any]) -> Image.Image:
    from PIL import Image

    pillow = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    pillow.info = info
    return pillow
