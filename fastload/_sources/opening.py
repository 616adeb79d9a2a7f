"""Opening: what a loader was given as its dataset becomes one, with the loader's transforms."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.utils.data import ConcatDataset, Subset

from ..errors import UsageError
from . import huggingface
from .kinds import is_image_stream, is_mix, is_mix_dataset, is_packed

if TYPE_CHECKING:
    from ..storage.base import Store
    from .mix import Mix
    from .packed import PackedDataset
    from .streams import ImageStream


def open_dataset(
    dataset: Any,
    *,
    seed: int | None,
    transform: Callable[[Any], Any] | None,
    target_transform: Callable[[Any], Any] | None,
) -> Any:
    """The dataset of a loader: opened if it is a path, with the loader's transforms.

    Args:
        dataset: a dataset; a path; a list of paths of stores; or a Mix. (A list of other things is
            a dataset by itself, as it is for torch.)
        seed: for a PackedDataset made here.
        transform, target_transform: of a PackedDataset; None if not given. They are never applied
            to a dataset that has another one.

    Raises:
        UsageError: it is not a dataset of fastload, or it already has another transform.
    """
    transforms = {"transform": transform, "target_transform": target_transform}
    return _open(dataset, seed, {name: x for name, x in transforms.items() if x is not None})


_Transforms = dict[str, Any]
"""The transforms that a loader was given, by name."""


def _open(dataset: Any, seed: int | None, transforms: _Transforms) -> Any:
    mix = dataset.mix if is_mix_dataset(dataset) else dataset if is_mix(dataset) else None
    if mix is not None:
        return dataset.opened(lambda inner: _as_component(mix, _open(inner, seed, transforms)))
    if isinstance(dataset, (str, os.PathLike)) or _are_stores(dataset):
        from .packed import PackedDataset

        return PackedDataset(dataset, seed=seed, **transforms)
    if not transforms:
        return dataset
    if huggingface.is_stream(dataset) or is_image_stream(dataset):
        return _of_stream(dataset, transforms)
    opened = _nested(dataset, lambda table: _of_table(table, seed, transforms))
    if opened is None:
        raise UsageError(
            f"{' and '.join(transforms)} can be given for a path, a PackedDataset, a Hugging Face "
            "dataset, and a Subset or ConcatDataset of these; "
            + _instead(dataset, next(iter(transforms)))
        )
    return opened


def _nested(dataset: Any, opened: Callable[[Any], PackedDataset]) -> Any | None:
    """``opened`` of each packed or Hugging Face dataset, in the same Subsets and ConcatDatasets.

    None if ``dataset`` contains anything else.
    """
    if is_packed(dataset) or huggingface.is_dataset(dataset):
        return opened(dataset)
    if type(dataset) is Subset:
        inner = _nested(dataset.dataset, opened)
        return None if inner is None else Subset(inner, dataset.indices)
    if type(dataset) is ConcatDataset:
        components: list[Any] = [_nested(component, opened) for component in dataset.datasets]
        return None if any(inner is None for inner in components) else ConcatDataset(components)
    return None


def _instead(dataset: object, name: str) -> str:
    """What to do for a dataset that is not given the argument ``name`` by its loader."""
    if isinstance(dataset, dict):
        return f"{type(dataset).__name__} holds several: pass one"
    inner = dataset
    while isinstance(inner, Subset):
        inner = inner.dataset
    kind = type(inner).__name__
    if hasattr(inner, name):
        own = f"{kind} applies its own: {kind}(..., {name}=...)"
        root = getattr(inner, "root", None)
        if kind != "ImageFolder" or not isinstance(root, (str, os.PathLike)):
            return own
        folder = f"PackedDataset({os.fspath(root)!r})"
        return f"{own}, or pass {folder}, which takes the loader's, in a Subset too"
    return f"{kind} is none of them: do it in its own code"


def _with_transforms(dataset: PackedDataset, transforms: _Transforms) -> PackedDataset:
    """``dataset``, or a copy with the transforms that it lacks.

    Raises:
        UsageError: it has another one already.
    """
    missing = {}
    for name, value in transforms.items():
        present = getattr(dataset, name)
        if present is None:
            missing[name] = value
        elif present is not value:
            raise UsageError(
                f"the PackedDataset already has another {name}: leave it out there, and give each "
                "loader its own"
            )
    from .packed import copy_with

    # A trainer that rebuilds the loader passes values that the dataset already has.
    return copy_with(dataset, **missing) if missing else dataset


def _as_component(mix: Mix, dataset: Any) -> Any:
    """``dataset``, whose samples are dicts where ``mix`` adds the number of the component."""
    if mix.numbered and is_packed(dataset) and dataset.fields is None:
        from .packed import copy_with

        return copy_with(dataset, fields=())
    return dataset


def _of_table(dataset: Any, seed: int | None, transforms: _Transforms) -> PackedDataset:
    """A Hugging Face dataset, opened; or a packed one, with ``transforms`` applied."""
    if huggingface.is_dataset(dataset):
        from .packed import PackedDataset

        return PackedDataset(dataset, seed=seed, **transforms)
    return _with_transforms(dataset, transforms)


def _of_stream(dataset: Any, transforms: _Transforms) -> ImageStream:
    """A streaming dataset with the transform of its images; or one that has it already."""
    if "transform" not in transforms:
        raise UsageError("target_transform: a streaming dataset takes it only with a transform")
    if not is_image_stream(dataset):
        from .streams import ImageStream

        return ImageStream(dataset, **transforms)
    for name, value in transforms.items():  # a trainer that rebuilds the loader passes them again
        if getattr(dataset, name) is not value:
            raise UsageError(f"the dataset already has another {name}: set it in one place only")
    return dataset


def _are_stores(dataset: object) -> bool:
    """Whether it is a list of stores or paths of stores.

    Raises:
        UsageError: one of them is a store that exists, and another one is none.
    """
    if not isinstance(dataset, (list, tuple)):
        return False
    from ..storage.base import Store
    from ..storage.registry import known_suffixes

    if not any(issubclass(kind, (Store, str, os.PathLike)) for kind in set(map(type, dataset))):
        return False  # without a look at each of a million samples
    suffixes = tuple(known_suffixes())
    named = [
        isinstance(item, Store)
        or (isinstance(item, (str, os.PathLike)) and _has_suffix(item, suffixes))
        for item in dataset
    ]
    if all(named):
        return True
    store = next(
        (item for item, is_named in zip(dataset, named) if is_named and _exists(item)), None
    )
    if store is None:
        return False
    for position, (item, is_named) in enumerate(zip(dataset, named)):
        if not is_named and not (isinstance(item, (str, os.PathLike)) and _exists(item)):
            raise UsageError(
                f"{store!r} is a store, but item {position} of the same list, "
                f"{reprlib.repr(item)}, is none: pass stores only, or, if these are samples, a "
                "Dataset that returns them"
            )
    return True


def _has_suffix(path: str | os.PathLike[str], suffixes: tuple[str, ...]) -> bool:
    return os.fspath(path).rstrip(os.sep).lower().endswith(suffixes)


def _exists(store: Store | str | os.PathLike[str]) -> bool:
    from ..storage._local import is_url
    from ..storage._sidecar import is_manifest
    from ..storage.base import Store

    if isinstance(store, Store) or is_url(store):
        return True
    path = os.path.expanduser(store)
    return os.path.lexists(path) or is_manifest(path)
