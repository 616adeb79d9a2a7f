"""PackedDataset: a packed store as a map-style dataset."""

from __future__ import annotations

import copy
import functools
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch.utils.data import Dataset

from .. import _native
from .._base.derived import derived
from .._base.indices import repeats_within
from .._base.keywords import names_nearest
from .._base.per_process import PerProcess
from .._base.slabs import SlabRing
from .._engine.registry import images_of, make_engine, native
from .._transforms.plan import Plan, Views, seed_of
from ..errors import UsageError
from ..hints import CheckCrc, JointKind
from ..storage._local import is_url
from ..storage.base import Store
from ..storage.column_options import ColumnOptions
from ..storage.opening import open_store
from .augmentation_checks import check_augmentation, epoch_number
from .collate import ReadyBatch, annotations_of, samples_of

if TYPE_CHECKING:
    from PIL.Image import Image

    from .._engine.base import BatchEngine
    from .._transforms.targets.joint import Joint
    from .in_python import PythonSamples

_NO_EPOCH = -1  # set_epoch was not called


class PackedDataset(Dataset[Any]):
    """A packed store as a map-style dataset, with the interface of torchvision's datasets.

    A sample is ``(image, label)``, or the image alone if the store has no labels. A label is an int
    or a float; it is a tensor if the store has float32, or several numbers, for each image. Without
    a transform, the image is a uint8 tensor (3, height, width), RGB. torch's own DataLoader decodes
    whole batches natively too, through ``__getitems__``.

    With ``fields``, a sample is a dict of "image", "label" (if there are labels) and the fields. By
    kind, a field is a tensor ("array"), bytes ("bytes"), a str ("text") or the parsed value
    ("json"). In a batch, an array is one tensor (n, ...), read from the column at once; any other
    field is a list of n values. (torch's own DataLoader needs a ``collate_fn`` for lists and dicts
    from JSON, because it transposes them; FastLoader does not.)

    Example:
        >>> dataset = PackedDataset("imgs.lmdb", transform=train_tf)
        >>> image, label = dataset[0]
        >>> sample = PackedDataset("imgs.lmdb", fields=("mask", "key"))[0]
        >>> sample["image"], sample["label"], sample["mask"], sample["key"]

    Args:
        path: a store written by ``fastload pack``, or an open ``Store``; a list of them is read as
            one store. Also Parquet files, or the URL of a store, such as "s3://bucket/imgs.lmdb"
            (docs/formats.md, docs/remote.md).
        transform: as for torchvision's ImageFolder. If fastload recognises it, it runs in the
            native core; any other callable gets a PIL image. A list of transforms gives a list of
            views in place of the image, each with its own random numbers.
        target_transform: called with each label.
        seed: an int makes augmentation a function of (seed, epoch, index), once ``set_epoch`` was
            called. Until then, and with None, each batch draws a seed from torch's global
            generator; otherwise a trainer that never calls ``set_epoch`` would get the same crops
            in every epoch.
        fields: names of the fields that samples have; "key" is the record's name. "all": every
            field of the store. None: samples are no dicts.
        joint: fields that follow the image through the crops, resizes, pads and flips of a
            torchvision v2 transform, and their kinds, such as ``{"mask": "mask", "boxes": "xyxy",
            "classes": "labels"}``. "mask" (a one-channel image file, or an array (h, w)) gives a
            tensor (h, w). "xyxy", "xywh" and "cxcywh" (boxes in pixels of the packed image, as JSON
            or an array) give float32 (k, 4). "points" gives float32 (..., 2). "labels", one for
            each box, gives a tensor of those that SanitizeBoundingBoxes keeps. See
            docs/transforms.md.
        storage_options: of a URL: options for obstore or fsspec, such as ``{"region":
            "eu-central-1"}``. Credentials are found as these libraries find them, unless they are
            given here.
        cache_dir: of a URL: the folder in which what was fetched is kept, on a local disk. Default:
            ``fastload`` in the user's cache folder.
        disk_limit: of a URL: the size of that folder in bytes, or a string such as "200GB". 0:
            nothing is kept on a disk. Default: half of what is free there.
        column: of Parquet files or a Lance dataset: the column that holds the images. Default: the
            one that can, or "image" (docs/formats.md).
        memory_limit: of these: bytes that what was read may take in the memory of each process, or
            a string such as "2GB". Default: a quarter of what is available, divided among the ranks
            and workers of the machine.
        check_crc: when to verify a record's checksum: "first" (the first time that this process
            reads it), "always" or "never".

    Attributes:
        store: the open store.
        column, memory_limit, check_crc: as given.
        fields: names of the fields, or None.
        joint: the fields that follow the image, or None.
        classes: class names.
        class_to_idx: class name -> label.

    Raises:
        StoreNotFoundError: there is nothing at ``path``.
        StoreError: the store is damaged, unfinished, or of an unknown version.
        UsageError: the store has no such field, or an argument has a wrong type.
    """

    @names_nearest
    def __init__(
        self,
        path: str | os.PathLike[str] | Store | Sequence[str | os.PathLike[str] | Store],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        seed: int | None = None,
        fields: Sequence[str] | str | None = None,
        joint: Mapping[str, JointKind] | Literal[True] | Joint | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        disk_limit: int | str | None = None,
        column: str | None = None,
        memory_limit: int | str | None = None,
        check_crc: CheckCrc = "first",
    ) -> None:
        check_augmentation(seed, transform, target_transform)
        if check_crc not in get_args(CheckCrc):
            choices = ", ".join(map(repr, get_args(CheckCrc)))
            raise UsageError(f"check_crc: expected one of {choices}, got {check_crc!r}")
        columns = ColumnOptions(column=column, memory_limit=memory_limit)
        self.store = _opened(path, storage_options, cache_dir, disk_limit, columns)
        self.column, self.memory_limit = column, memory_limit
        self.check_crc: CheckCrc = check_crc
        self.joint: Joint | None = None
        if joint is not None:
            from .._transforms.targets.joint import Joint

            self.joint = Joint.of(joint, self.store)
        self.fields = _chosen(self.store, fields, self.joint)
        if self.joint is not None:
            self.joint.check(self.store)
            if isinstance(transform, (list, tuple)):
                raise UsageError(
                    "joint: expected one transform, got a list, and masks and boxes "
                    "can follow only one view of an image"
                )
        self.transform = transform
        self.target_transform = target_transform
        self.seed = seed
        self.classes = list(self.store.classes)
        self.class_to_idx = {name: label for label, name in enumerate(self.classes)}
        # Shared memory, so that persistent workers see the epoch that the main process sets.
        self._epoch = torch.full((1,), _NO_EPOCH, dtype=torch.int64, device="cpu")
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]

    @derived
    def _made(self) -> PerProcess[list[BatchEngine]]:
        return PerProcess()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the augmentation, also in running workers.

        Raises:
            UsageError: ``epoch`` is not an integer below 2**62.
        """
        self._epoch[0] = epoch_number(epoch)

    @functools.cached_property
    def targets(self) -> list[Any]:
        """The label of every sample; an empty list in a store without labels.

        A label is an int or a float, or a list of them if the store has several for each image.
        """
        labels = self.store.labels
        return [] if labels is None else list(labels.tolist())

    @functools.cached_property
    def samples(self) -> list[tuple[str, Any]]:
        """(key, label) of every sample; the label is -1 in a store without labels."""
        keys = self.store.keys(np.arange(len(self), dtype=np.int64))
        return list(zip(keys, self.targets or [-1] * len(keys), strict=True))

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, index: int) -> Any:
        """Sample ``index``; negative indices count from the end. IndexError if out of range."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples ``indices``, decoded as one batch, which the list carries."""
        return fetch_samples(self, indices)

    def _images(self, records: np.ndarray, seeds: Sequence[int] | None) -> torch.Tensor | list[Any]:
        """The images of ``records``: one tensor, or a list if they do not make a batch."""
        from .._transforms.recognise import recognise

        # Recognised again for every batch (0.2 ms), because the transform may be changed in place.
        plan = None if _native.load() is None else recognise(self.transform)
        if isinstance(plan, Plan):
            return self._decoded([plan], records)[0]
        if isinstance(plan, Views):
            views = self._decoded(plan.each, records)
            return [list(sample) for sample in zip(*views, strict=True)]
        from .._base import randomness

        drawn = augmentation_of(self)
        if seeds is not None or drawn is None:
            return self._in_python(records, seeds)
        state = randomness.get()
        try:
            own = randomness.sample_seeds(*drawn, records.tolist(), None)
            return self._in_python(records, own)
        finally:
            randomness.put(state)

    @derived
    def _python_samples(self) -> PythonSamples:
        from .in_python import PythonSamples

        return PythonSamples()

    def _in_python(
        self, records: np.ndarray, seeds: Sequence[int] | None
    ) -> torch.Tensor | list[Any]:
        """The images that the transform, or each of a list of them, makes of ``records``."""
        from .._base.own_generators import OwnSeeds
        from .in_python import EveryView

        transform: Any = self._called()
        if isinstance(transform, (list, tuple)):
            transform = EveryView(transform)
        own_seeds = OwnSeeds(transform)

        def make(image: Image, i: int) -> Any:
            if seeds is not None:
                own_seeds.seed_all(seeds[i])
            return transform(image)

        return self._python_samples(self.store, records, make, check=self.check_crc != "never")

    def _called(self) -> Any:
        """The transform as Python calls it."""
        if self.transform is not None:
            return self.transform
        from torchvision.transforms import v2  # without the core

        return v2.PILToTensor()

    def _jointly(
        self, joint: Joint, records: np.ndarray
    ) -> tuple[torch.Tensor | list[Any], dict[str, Any]]:
        """The images of ``records``, and the fields that follow them."""
        from .._transforms.recognise import recognise
        from .._transforms.targets.moving import batched, in_python

        plan = recognise(self.transform, joint=joint)
        if not isinstance(plan, Plan) or _native.load() is None:
            from .._engine.pillow import decode_record

            return in_python(joint, self.store, records, self._called(), decode_record)
        (engine,), (seed, epoch, repeats) = self._engines([plan]), self._numbers([plan], records)
        sizes = () if plan.fixed_size else self.store.sizes(records)
        groups = [slice(0, len(records))]
        if len(np.unique(sizes, axis=0)) > 1:
            groups = [slice(i, i + 1) for i in range(len(records))]
        images: list[Any] = []
        moved: dict[str, Any] = {name: [] for name in joint.names}
        for group in groups:
            ticket = engine.submit(
                records[group],
                seed=seed,
                epoch=epoch,
                repeats=None if repeats is None else repeats[group],
            )
            images += [ticket.result()]
            assert ticket.moving is not None, "the plan has fields that follow the image"
            values = ticket.moving.result()
            if len(groups) == 1:
                moved = values
            else:
                moved = {name: [*before, *values[name]] for name, before in moved.items()}
        if len(groups) == 1:
            return images[0], moved
        fields = {name: batched(values, joint, name) for name, values in moved.items()}
        return [image[0] for image in images], fields

    def _numbers(
        self, plans: Sequence[Plan], records: np.ndarray
    ) -> tuple[int, int, np.ndarray | None]:
        """Seed, epoch and repeats of the random numbers for ``records``."""
        drawn = augmentation_of(self)
        if drawn is not None:
            return *drawn, None
        if not any(plan.random for plan in plans):
            return 0, 0, None
        seed = int(torch.empty((), dtype=torch.int64).random_())
        return seed, 0, repeats_within(records)

    def _decoded(
        self, plans: Sequence[Plan], records: np.ndarray
    ) -> list[torch.Tensor | list[torch.Tensor]]:
        """The images that an engine makes of ``records``, for each of ``plans``."""
        seed, epoch, repeats = self._numbers(plans, records)
        return [
            images_of(engine, records, seed=seed_of(seed, view), epoch=epoch, repeats=repeats)
            for view, engine in enumerate(self._engines(plans))
        ]

    def _engines(self, plans: Sequence[Plan]) -> list[BatchEngine]:
        engines = self._made.get()
        if engines is not None and len(engines) == len(plans):
            if all(engine.makes(plan) for engine, plan in zip(engines, plans)):
                return engines
        from .._engine.image_engine import EngineOptions
        from .in_python import own_threads

        threads, check = own_threads(), self.check_crc
        engines = [
            make_engine(
                native(),
                self.store,
                plan,
                EngineOptions(threads=threads, ring=SlabRing(2), check_crc=check),
            )
            for plan in plans
        ]
        return self._made.put(engines)

    def __getstate__(self) -> dict[str, Any]:
        # a copy's plans are its own
        return {name: value for name, value in vars(self).items() if name != "_made"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # the memory of a deep copy is not shared
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:
        return (
            f"PackedDataset({self.store.path!r}, {len(self)} samples, {len(self.classes)} classes)"
        )


def fetch_samples(
    dataset: PackedDataset,
    indices: Sequence[int],
    *,
    seeds: Sequence[int] | None = None,
) -> list[Any]:
    """The samples ``indices`` of ``dataset``, for a loader.

    Args:
        dataset: has them.
        indices: positions; negative ones count from the end.
        seeds: one for each sample; the global generators are seeded with it before Python
            transforms that sample. None: as the dataset's own seed says, if it has one.

    Raises:
        IndexError: an index is out of range.
        DataError: a record cannot be read or decoded.
    """
    store, joint = dataset.store, dataset.joint
    records = np.array([_position(index, len(store)) for index in indices], dtype=np.int64)
    images: torch.Tensor | list[Any]
    if joint is None:
        images, moved = dataset._images(records, seeds), None
    else:
        images, moved = dataset._jointly(joint, records)
        images = _stacked(images)
    annotations = annotations_of(
        store, records, store.labels, dataset.target_transform, dataset.fields, moved
    )
    samples = samples_of(images, annotations)
    if isinstance(images, torch.Tensor):
        return ReadyBatch(samples, images, annotations)
    return samples


def _position(index: int, count: int) -> int:
    position = operator.index(index)
    if not -count <= position < count:
        raise IndexError(f"index {position} is out of range for a dataset of {count} samples")
    return position % count


def augmentation_of(dataset: PackedDataset) -> tuple[int, int] | None:
    """Seed and epoch of the augmentation; None if torch's generator is used."""
    epoch = int(dataset._epoch[0])
    return None if dataset.seed is None or epoch == _NO_EPOCH else (dataset.seed, epoch)


def copy_with(dataset: PackedDataset, **attributes: Any) -> PackedDataset:
    """A copy of ``dataset`` with these attributes and an epoch of its own."""
    other = copy.copy(dataset)
    other.__setstate__({**attributes, "_epoch": dataset._epoch.clone()})
    return other


def _stacked(images: torch.Tensor | list[Any]) -> torch.Tensor | list[Any]:
    """One tensor of the images if they have one shape and dtype; else the list."""
    if isinstance(images, torch.Tensor) or not all(isinstance(x, torch.Tensor) for x in images):
        return images
    return torch.stack(images) if len({(x.shape, x.dtype) for x in images}) == 1 else images


def _chosen(
    store: Store, fields: Sequence[str] | str | None, joint: Joint | None
) -> tuple[str, ...] | None:
    """The names in ``fields`` and ``joint``. Raises UsageError if ``store`` lacks one."""
    if joint is not None:
        named = _chosen(store, fields, None) or ()
        return tuple(dict.fromkeys((*named, *joint.names)))
    if fields is None:
        return store.sample_fields
    if fields == "all":
        return tuple(store.fields)
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    if store.sample_fields is not None:  # without image and label, which samples have in any case
        names = tuple(name for name in names if name in store.fields or name not in store.names)
    unknown = [name for name in names if name not in store.fields and name != "key"]
    if unknown:
        raise UsageError(
            f"fields: {store.path!r} has {', '.join(map(repr, ['key', *store.fields]))}, got "
            f"{', '.join(map(repr, unknown))}"
        )
    return names


def _opened(
    path: str | os.PathLike[str] | Store | Sequence[str | os.PathLike[str] | Store],
    storage_options: Mapping[str, Any] | None,
    cache_dir: str | os.PathLike[str] | None,
    disk_limit: int | str | None,
    columns: ColumnOptions,
) -> Store:
    """The store at ``path``. Raises UsageError if options of URLs are given for another path."""
    options: dict[str, Any] = {
        "storage_options": storage_options,
        "cache_dir": cache_dir,
        "disk_limit": disk_limit,
    }
    named = [name for name, value in options.items() if value is not None]
    if not has_url(path):
        if named:
            raise UsageError(f"{named[0]}: expected a URL of a store, got {path!r}")
        return open_store(path, columns=columns)
    from ..storage.remote.options import RemoteOptions

    return open_store(path, remote=RemoteOptions(**options), columns=columns)


def has_url(path: object) -> bool:
    """Whether ``path`` is a URL, or a list with one."""
    if isinstance(path, (list, tuple)):
        return any(map(is_url, path))
    return is_url(path)
