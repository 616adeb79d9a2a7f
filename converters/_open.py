"""From the ``source`` argument of ``pack`` to a ``PackSource``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TypeGuard

import numpy as np

from .._sources import huggingface
from ..errors import UsageError
from ..storage import Store, open_store
from ..storage._column_store import ColumnStore
from ..storage._local import is_url
from ..storage._not_store import LISTS
from ..storage.arrow import ArrowStore
from ..storage.folder import FolderStore
from ._annotations import annotated, is_annotations
from ._array_source import array_source
from ._beside import of_folder
from ._compressed import compressed_source
from ._dataset_source import DatasetSource, is_object_name, named_object
from ._labels import Chosen
from ._list_source import list_source, metadata_of
from ._source import PackSource
from ._store_source import FolderSource, StoreSource, TableSource


def open_source(source: object, chosen: Chosen | None = None) -> PackSource:
    """The samples of ``source``: a path, ``module:object``, a store or several, a Dataset."""
    chosen = chosen or Chosen()
    if isinstance(source, PackSource):
        return source
    if isinstance(source, (str, os.PathLike)):
        return _at(os.fspath(source), chosen)
    if _is_stores(source):
        return _of_store(open_store(source), chosen)
    return _of_object(source, type(source).__name__, chosen)


def part_of(source: object, part: str) -> object:
    """The part of ``source`` called ``part``: a folder in it, or one of several datasets."""
    parts: list[str] = []
    if isinstance(source, (str, os.PathLike)):
        text = os.fspath(source)
        inner = os.path.join(text, part)
        if is_url(text) or os.path.isdir(os.path.expanduser(inner)):
            return inner
        if os.path.isdir(os.path.expanduser(text)):
            entries = os.scandir(os.path.expanduser(text))
            parts = sorted(entry.name for entry in entries if entry.is_dir())
        elif is_object_name(text) and not os.path.lexists(text):
            source = named_object(text)
    if isinstance(source, Mapping):
        if part in source:
            return source[part]
        parts = list(map(str, source))
    raise UsageError(
        "split: expected NAME=SHARE, such as val=0.1, or the name of a folder or a dataset in the "
        f"source, got {part!r}" + (f": it has {', '.join(parts[:20])}" if parts else "")
    )


def _is_stores(source: object) -> TypeGuard[Store | Sequence[str | os.PathLike[str] | Store]]:
    return isinstance(source, Store) or (
        isinstance(source, Sequence)
        and all(isinstance(part, (str, os.PathLike, Store)) for part in source)
    )


def _at(text: str, chosen: Chosen) -> PackSource:
    path = os.path.abspath(os.path.expanduser(text))
    if not os.path.lexists(path) and is_object_name(text):
        return _of_object(named_object(text), text, chosen)
    if os.path.isdir(path):
        if chosen.annotations is not None or (
            chosen.masks is not None and is_annotations(chosen.masks)
        ):
            return annotated(path, chosen)
        listed = metadata_of(path)
        if listed is not None:
            return list_source(listed, chosen)
    if path.endswith(LISTS) and os.path.isfile(path):
        return list_source(path, chosen)
    arrays = array_source(path)
    if arrays is not None:
        chosen.refuse(repr(path))
        return arrays
    compressed = compressed_source(path, chosen) if os.path.isfile(path) else None
    return compressed or _of_store(open_store(text), chosen, path)


def _of_object(source: object, name: str, chosen: Chosen) -> PackSource:
    if huggingface.is_dataset(source):
        return _of_store(ArrowStore(source), chosen, name)
    if isinstance(source, Mapping) and any(isinstance(name, str) for name in source):
        names = ", ".join(map(str, source))
        raise UsageError(
            f"{name}: expected one dataset, found several ({names}): name one with "
            f"split={next(iter(source))!r}"
        )
    chosen.refuse(name, "image", "label")
    files = _image_files(source, chosen)
    return DatasetSource(source, name, chosen) if files is None else files


def _image_files(given: object, chosen: Chosen) -> FolderSource | None:
    """The files of torchvision's ImageFolder, if its samples are what they hold."""
    if "torchvision.datasets.folder" not in sys.modules:
        return None  # this cannot be one; below, torch is imported, which takes a second
    from .._sources.kinds import is_image_folder
    from .._sources.source import check_loader, folder_store
    from .._sources.unreadable import Unreadable

    if not is_image_folder(given) or (given.transform, given.target_transform) != (None, None):
        return None
    try:
        check_loader(given)
        store = folder_store(given)
    except Unreadable:
        return None  # what only its own code makes
    chosen.refuse(repr(store.path))
    return FolderSource(store)


def _of_store(store: Store, chosen: Chosen, name: str | None = None) -> PackSource:
    if isinstance(store, FolderStore):
        keys = store.keys(np.arange(len(store)))
        return FolderSource(store, of_folder(store, keys, chosen), keys)
    chosen.refuse(repr(name or store.path), "label")  # a store has its images
    if isinstance(store, ColumnStore) or store.format == "parquet":  # also one at a URL
        return TableSource(store, name or store.path, chosen.label)
    return StoreSource(store, chosen.label)
