"""``fastload.show``: the images the network will see, next to the stored ones.

The pictures are a loader's own batches, converted back to levels by the inverse of the plan's
table, so they are exact. Chains that only Python can run have no table: their values are shown
directly if they are between 0 and 1, and stretched otherwise. Masks, boxes and points of ``joint``
are drawn over them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset, Subset

from .._base.import_object import one_line
from .._base.keywords import names_nearest
from .._base.torch_loader import DataLoader
from .._sources.kinds import nested
from .._sources.opening import open_dataset
from .._sources.packed import PackedDataset, copy_with
from .._sources.source import resolve
from .._sources.unreadable import Unreadable
from .._transforms.plan import Plan, Views
from ..errors import FastloadError, UsageError
from ..hints import Decode
from ..storage.base import Store
from . import picture as _picture
from .marks import as_stored, drawn
from .picture import label_text

if TYPE_CHECKING:
    from PIL import Image

_MOST = 10_000  # pictures; some gigabytes if each is as large as one may be
_MAX_SIDE = 512  # pixels; a larger picture is scaled down
_GAP = 4  # white pixels around each picture
_LEAST = 48  # pixels of a column, so that its name has room

_Levels = npt.NDArray[np.uint8]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tile:
    """One picture of the grid.

    Attributes:
        index: index of the sample in the dataset.
        name: its key in the store, or its file.
        label: its class, or its label in digits; "" without one.
        epoch: epoch of the augmentation; None: the stored image.
        box: x, y, width and height in the grid, in pixels.
        scale: 1.0, or the factor by which it was scaled down.
    """

    index: int
    name: str
    label: str
    epoch: int | None
    box: tuple[int, int, int, int]
    scale: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shown:
    """A grid of pictures: column names above, index, class and file below each row.

    Attributes:
        image: the grid, RGB.
        tiles: the position of each picture; a row of the grid is a sample.
        engine: the engine that made the samples: "native" or "torch".
        levels: how values were converted to levels.
    """

    image: Image.Image
    tiles: tuple[Tile, ...]
    engine: str
    levels: str


@names_nearest
def show(
    dataset: str | os.PathLike[str] | Dataset[Any],
    transform: Callable[[Any], Any] | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    samples: int | Sequence[int] = 8,
    views: int = 3,
    seed: int = 0,
    epoch: int = 0,
    decode: Decode = "exact",
) -> Shown:
    """A grid of images before and after the transform; also as ``fastload show``.

    Each row is a sample: the stored image (scaled down to fit), and the images that a FastLoader
    with this seed gives for it in ``views`` epochs. Up to 512 x 512 pixels, these are exactly the
    pixels that the network gets, before normalisation, but for masks, boxes and points, which are
    drawn over them. The same seed gives the same grid.

    Example:
        >>> fastload.show("imgs.lmdb", train_tf, out="grid.png")

    Args:
        dataset: the path of a store or of a folder of images, a PackedDataset, an ImageFolder or a
            DatasetFolder, or a Subset of these.
        transform: for a path or a PackedDataset without one.
        out: file to write the grid to, in the format of its suffix: .png, .jpg, .webp ...
        samples: number of samples, spread evenly over the dataset, or their indices.
        views: number of epochs shown for each sample, at least 1.
        seed, epoch: the augmentation is that of ``FastLoader(seed=seed)`` in this epoch and the
            following ones.
        decode: as for FastLoader.

    Returns:
        The grid as ``image``, a PIL image, and where each picture is in it (``tiles``).

    Raises:
        UsageError: there are no such samples, or the transform does not give one image.
        DataError: a sample cannot be read.
    """
    _picture.format_of("grid.png" if out is None else out)  # raises before any work is done
    if views < 1:
        raise UsageError(f"views: expected 1 or more, got {views}")
    opened = open_dataset(dataset, seed=seed, transform=transform, target_transform=None)
    if isinstance(opened, PackedDataset):
        opened = copy_with(opened)  # a copy, so that the caller's epoch does not change
    indices = _indices(samples, opened)
    if len(indices) * views > _MOST:
        raise UsageError(
            f"samples, views: expected at most {_MOST} pictures, got {len(indices)} x {views}"
        )
    # The dataset inside a Subset is not copied, so its epoch is restored afterwards.
    before = [(one, one._epoch.clone()) for one in nested(opened) if isinstance(one, PackedDataset)]
    try:
        epochs = list(range(epoch, epoch + views))
        made, engine, words = _made(opened, indices, epochs, seed, decode)
    finally:
        for one, number in before:
            one._epoch.copy_(number)
    rows = []
    for at, index in enumerate(indices):
        name, label, original = _original(opened, index)
        rows.append(_Row(index, name, label, [original, *(images[at] for images in made)]))
    shown = _grid(rows, epoch, engine, words)
    if out is not None:
        _picture.save(shown.image, out)
    return shown


def _indices(samples: int | Sequence[int], dataset: object) -> list[int]:
    if isinstance(dataset, DataLoader):
        raise UsageError("show: expected a dataset or a path, got a loader: pass its dataset")
    try:
        count = len(dataset)  # type: ignore[arg-type]
    except TypeError as error:
        raise UsageError(
            f"show: expected a map-style dataset or a path, got {type(dataset).__name__}"
        ) from error
    if count == 0:
        store = getattr(dataset, "store", None)
        named = f"{store.path!r}: " if isinstance(store, Store) else ""
        raise UsageError(f"{named}expected samples to show, found an empty dataset")
    if isinstance(samples, int):
        if samples < 1:
            raise UsageError(f"samples: expected 1 or more, got {samples}")
        return sorted({int(i) for i in np.linspace(0, count - 1, min(samples, count)).round()})
    beyond = [i for i in samples if not 0 <= i < count]
    if beyond or not samples:
        raise UsageError(
            f"expected indices from 0 to {count - 1}, got {', '.join(map(str, beyond)) or 'none'}"
        )
    return list(dict.fromkeys(samples))


def _made(
    dataset: Any, indices: list[int], epochs: list[int], seed: int, decode: Decode
) -> tuple[list[list[Image.Image]], str, str]:
    """The samples' images by epoch, the engine, and how values were converted to levels."""
    from PIL import Image

    from .._loader import FastLoader

    try:
        plan = resolve(dataset).plan
    except Unreadable:
        plan = None
    # Without a plan the transform may give images of different sizes, which form no batch.
    single = plan is None
    if isinstance(plan, Views):
        raise UsageError(f"show: expected one chain of transforms, got {len(plan.each)} views")
    loader: FastLoader[Any] = FastLoader(
        dataset,
        batch_size=None if single else 1,
        sampler=indices,
        collate_fn=(lambda sample: sample) if single else None,
        num_workers=0,
        seed=seed,
        decode=decode,
    )
    made, words = [], ""
    joint = next((one.joint for one in nested(dataset) if isinstance(one, PackedDataset)), None)
    for epoch in epochs:
        loader.set_epoch(epoch)
        images: list[Image.Image] = []
        batches = iter(loader)
        for index in indices:
            try:
                batch = next(batches)
            except FastloadError:
                raise
            except Exception as error:  # raised by the user's transform
                raise UsageError(
                    f"the transform fails on sample {index}: {one_line(error)}"
                ) from error
            levels, words = _levels(_image_of(batch, batched=not single), plan)
            image = Image.fromarray(levels)
            if joint is not None:
                values = {name: batch[name] if single else batch[name][0] for name in joint.names}
                image = drawn(image, joint, values)
            images.append(image)
        made.append(images)
    return made, str(loader.stats()["engine"]), words


def _image_of(batch: Any, *, batched: bool) -> Any:
    """The image of a sample or of a batch of one."""
    if isinstance(batch, Mapping):
        batch = batch["image"] if "image" in batch else next(iter(batch.values()), None)
    elif isinstance(batch, (list, tuple)) and len(batch):
        batch = batch[0]
    return batch[0] if batched else batch


def _levels(image: Any, plan: Plan | None) -> tuple[_Levels, str]:
    """A transform's output as levels, uint8 (h, w, 3), and how they were computed."""
    if isinstance(image, torch.Tensor):
        if image.ndim == 2:
            image = image[None]
        if image.ndim == 3 and image.shape[0] in (1, 3):
            image = image.detach().as_subclass(torch.Tensor).cpu().expand(3, -1, -1)
            levels, words = _of_tensor(image, plan)
            return np.ascontiguousarray(levels.permute(1, 2, 0).numpy()), words
    elif hasattr(image, "convert"):
        return np.asarray(image.convert("RGB")), "unchanged"
    elif isinstance(image, np.ndarray) and image.ndim == 3 and image.shape[2] == 3:
        return _levels(torch.from_numpy(image).permute(2, 0, 1), plan)
    what = type(image).__name__
    if isinstance(image, (torch.Tensor, np.ndarray)):
        what += f" of shape {tuple(image.shape)}"
    raise UsageError(f"show: expected an image of one or three channels as a sample, got {what}")


def _of_tensor(image: torch.Tensor, plan: Plan | None) -> tuple[torch.Tensor, str]:
    if plan is not None and plan.lut is not None:
        levels = plan.levels_of(image[: plan.channels]).expand(3, -1, -1)
        return levels, "by the inverse of the transform's table"
    if image.dtype == torch.uint8:
        return image, "unchanged"
    values = image.double()
    low, high = (float(end) for end in values.aminmax())
    if low >= 0 and high <= 1:
        return (255 * values).round().to(torch.uint8), "0 to 1 as 0 to 255"
    spread = (values - low) / max(high - low, 1e-12)
    return (255 * spread).round().to(torch.uint8), "stretched, each from its minimum to its maximum"


def _original(dataset: Any, index: int) -> tuple[str, str, Image.Image]:
    """A sample's name, its class or label, and its image before the transform."""
    if isinstance(dataset, Subset):
        return _original(dataset.dataset, int(dataset.indices[index]))
    if isinstance(dataset, PackedDataset):
        from .._engine.pillow import decode_record

        image = decode_record(dataset.store, index)
        image = as_stored(image, dataset.joint, dataset.store, index)
        (name,) = dataset.store.keys(np.array([index]))
        labels = dataset.targets
        return name, label_text(labels[index], dataset.classes) if labels else "", image
    if hasattr(dataset, "samples") and hasattr(dataset, "loader"):
        path = dataset.samples[index][0]
        label = label_text(dataset.targets[index], dataset.classes)
        return str(path), label, dataset.loader(path).convert("RGB")
    raise UsageError(
        "show: expected a path, a PackedDataset, an ImageFolder or a DatasetFolder, got "
        f"{type(dataset).__name__}, which does not give access to images before the transform"
    )


class _Row(NamedTuple):
    sample: int
    name: str
    label: str
    images: list[Image.Image]  # as stored, then of each epoch


def _grid(rows: list[_Row], epoch: int, engine: str, words: str) -> Shown:
    from PIL import Image

    most = (_MAX_SIDE, _MAX_SIDE)
    after = [[_fitted(image, most) for image in row.images[1:]] for row in rows]
    cell_w = max(_LEAST, *(image.width for some in after for image in some))
    heights = [max(image.height for image in some) for some in after]
    names = ["stored", *(f"epoch {epoch + view}" for view in range(len(after[0])))]
    lefts = [_GAP + column * (cell_w + _GAP) for column in range(len(names))]
    line = _picture.LINE + _GAP
    size = lefts[-1] + cell_w + _GAP, line + sum(heights) + len(rows) * (line + _GAP)
    grid = Image.new("RGB", size, "white")
    for left, name in zip(lefts, names):
        _picture.write(grid, (left, 0), name, cell_w)
    tiles, top = [], line
    for row, small, height in zip(rows, after, heights, strict=True):
        pictures = [_fitted(row.images[0], (cell_w, height)), *small]
        for column, (whole, picture) in enumerate(zip(row.images, pictures, strict=True)):
            grid.paste(picture, (lefts[column], top))
            tile = Tile(
                index=row.sample,
                name=row.name,
                label=row.label,
                epoch=epoch + column - 1 if column else None,
                box=(lefts[column], top, picture.width, picture.height),
                scale=picture.width / whole.width,
            )
            tiles.append(tile)
        top += height + _GAP
        told = "  ".join(filter(None, (str(row.sample), row.label, row.name)))
        _picture.write(grid, (_GAP, top - _GAP), told, size[0] - 2 * _GAP)
        top += line
    return Shown(image=grid, tiles=tuple(tiles), engine=engine, levels=words)


def _fitted(image: Image.Image, most: tuple[int, int]) -> Image.Image:
    """The image, scaled down if it is larger than ``most`` (width, height)."""
    fitted = image.copy()
    fitted.thumbnail(most)
    return fitted
