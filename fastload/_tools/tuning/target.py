"""``Target``: the dataset to tune (a store, a folder or a user's dataset) and loaders over it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np
from torch.utils.data import Dataset, IterableDataset, RandomSampler, Sampler

from ..._base.torch_loader import DataLoader, PlainLoader
from ..._loader import FastLoader
from ..._run.order import SeededSampler
from ..._run.tuned_file import ENDLESS, Point
from ..._sources.packed import PackedDataset
from ..._sources.source import resolve
from ..._sources.unreadable import Unreadable
from ...errors import UsageError
from ...storage.base import ENCODED
from ...storage.memory import gathers

_SMALL = 64  # images of one size up to this are not resized, like CIFAR's
_CHECKED = 1000  # records whose size is checked for that
_KEPT = ("collate_fn", "worker_init_fn", "multiprocessing_context", "pin_memory", "drop_last")


class Endless(Sampler[int]):
    """The indices below ``count``, again and again: as they are, or each time in a random order.

    All batches are full and no epoch has to be started, so a small dataset is measured like a large
    one.
    """

    def __init__(self, count: int, *, shuffled: bool) -> None:
        self._count, self._shuffled = count, shuffled

    def __iter__(self) -> Iterator[int]:
        generator = np.random.default_rng(0)
        while True:
            order = np.arange(self._count)
            yield from (generator.permutation(order) if self._shuffled else order).tolist()

    def __len__(self) -> int:
        return self._count


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A dataset and the arguments for loading it."""

    name: str  # the user's
    dataset: Dataset[Any]
    plain: Dataset[Any]  # the same for torch's DataLoader, which does not use fastload's engines
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of both loaders
    shuffled: bool = True
    batch_size: int | None = None  # of the given loader; None without one

    @property
    def iterable(self) -> bool:
        """Whether it is an IterableDataset, which has no indices."""
        return isinstance(self.dataset, IterableDataset)

    def __len__(self) -> int:
        """Number of samples; a large number for an IterableDataset without a length."""
        try:
            return len(self.dataset)  # type: ignore[arg-type]
        except TypeError:
            return ENDLESS

    def _order(self) -> dict[str, Sampler[int]]:
        if self.iterable:
            return {}
        return {"sampler": Endless(len(self), shuffled=self.shuffled)}

    def loader(self, point: Point) -> FastLoader[Any]:
        """A loader with this setting and an endless sampler (except for an IterableDataset)."""
        return FastLoader(self.dataset, **{**self.options, **self._order(), **point.arguments()})

    def torch_loader(self, batch_size: int) -> DataLoader[Any]:
        """torch's DataLoader with its defaults, over the same samples."""
        return PlainLoader(self.plain, batch_size, **{**self.options, **self._order()})

    def native(self) -> bool:
        """Whether an engine of fastload reads it."""
        return self.loader(Point(num_workers=0, batch_size=1)).stats()["engine"] != "torch"

    def kinds(self) -> set[int]:
        """What its first records hold: ENCODED, RAW or DCT; nothing where rows are gathered."""
        try:
            store = resolve(self.dataset).store
        except Unreadable:
            return {ENCODED}  # whatever it opens
        few = np.arange(min(len(store), _CHECKED))
        return set() if gathers(store) else set(store.kinds(few).tolist())


class _Decoded(Dataset[Any]):
    """The records of a store decoded by Pillow one by one, as in a typical Dataset."""

    def __init__(self, packed: PackedDataset) -> None:
        self._packed = packed

    def __len__(self) -> int:
        return len(self._packed)

    def __getitem__(self, index: int) -> Any:
        from ..._engine.pillow import decode_record

        image: Any = decode_record(self._packed.store, index)
        transform, labels = self._packed.transform, self._packed.store.labels
        image = image if transform is None else transform(image)
        return image if labels is None else (image, labels[index])


def target_of(source: object, transform: Callable[[Any], Any] | None = None) -> Target:
    """The target for a path, a Dataset, a DataLoader, or a function that returns one of them.

    Of a DataLoader, its dataset, collate_fn and similar arguments are used. ``transform`` is for a
    path; None: random crops of 224 x 224, flipped and normalised, or no crops if the images are
    small and of one size.
    """
    if isinstance(source, (str, os.PathLike)):
        target = _of_path(os.fspath(source), transform)
    else:
        if transform is not None:
            raise UsageError("transform: expected only with a path; a dataset has its own")
        if not isinstance(source, (Dataset, DataLoader)) and callable(source):
            source = source()
        target = _of_object(source)
    if len(target) == 0:
        raise UsageError(f"{target.name}: expected a dataset with samples, got an empty one")
    return target


def _of_path(path: str, transform: Callable[[Any], Any] | None) -> Target:
    packed = PackedDataset(path)
    packed.transform = _usual(packed) if transform is None else transform
    if packed.store.format == "folder" and packed.classes:  # scripts have it as an ImageFolder
        from torchvision.datasets import ImageFolder

        dataset = ImageFolder(path, packed.transform)
        return Target(name=path, dataset=dataset, plain=dataset)
    return Target(name=path, dataset=packed, plain=_Decoded(packed))


def _usual(packed: PackedDataset) -> Callable[[Any], Any]:
    """The usual augmentation: ImageNet's, or CIFAR's for small images."""
    from torchvision import transforms

    sizes = packed.store.sizes(np.arange(min(len(packed), _CHECKED)))
    if len(np.unique(sizes, axis=0)) == 1 and 0 < sizes.max() <= _SMALL:
        steps = [transforms.RandomHorizontalFlip(), transforms.ToTensor()]
        return cast(Callable[[Any], Any], transforms.Compose(steps))
    steps = [
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
    return cast(Callable[[Any], Any], transforms.Compose(steps))


def _of_object(source: Any) -> Target:
    if isinstance(source, DataLoader):
        options = {name: getattr(source, name) for name in _KEPT}
        sampler = source.sampler
        return Target(
            name=f"{type(source).__name__} over {type(source.dataset).__name__}",
            dataset=source.dataset,
            plain=source.dataset,
            options=options,
            batch_size=source.batch_size or getattr(source.batch_sampler, "batch_size", None),
            shuffled=isinstance(sampler, RandomSampler) or isinstance(sampler, SeededSampler),
        )
    if isinstance(source, Dataset) or hasattr(source, "__getitem__"):
        plain = _Decoded(source) if isinstance(source, PackedDataset) else source
        return Target(name=type(source).__name__, dataset=source, plain=plain)
    raise UsageError(
        "expected the path of a store or folder, a Dataset, a DataLoader, or a function that "
        f"returns one, got {type(source).__name__}"
    )
