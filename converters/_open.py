"""From what ``pack`` was given to a ``Source``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from fastload._datasets import huggingface
from fastload.errors import UsageError
from fastload.storage import Store, open_store
from fastload.storage.arrow import ArrowStore
from fastload.storage.folder import FolderStore

from ._array_source import array_source
from ._dataset_source import dataset_source, is_object_name, named_object
from ._list_source import SUFFIXES, ListSource
from ._source import Source
from ._store_source import FolderSource, StoreSource, TableSource


def open_source(source: Any) -> Source:
    """The samples of ``source``: a path, ``module:object``, a store or several, a Dataset.

    Raises:
        UsageError, StoreError: nothing that can be packed.
    """
    if isinstance(source, Source):
        return source
    if isinstance(source, (str, os.PathLike)):
        return _at(os.fspath(source))
    if isinstance(source, Store) or (
        isinstance(source, Sequence)
        and all(isinstance(one, (str, os.PathLike, Store)) for one in source)
    ):
        return _of_store(open_store(source))
    return _of_object(source, type(source).__name__)


def _at(text: str) -> Source:
    path = os.path.abspath(os.path.expanduser(text))
    if not os.path.lexists(path) and is_object_name(text):
        return _of_object(named_object(text), text)
    if path.endswith(SUFFIXES) and os.path.isfile(path):
        return ListSource(path)
    return array_source(path) or _of_store(open_store(text), path)


def _of_object(found: Any, name: str) -> Source:
    if huggingface.known(found):
        return TableSource(ArrowStore(found), name)
    if isinstance(found, dict) and any(isinstance(name, str) for name in found):
        raise UsageError(
            f"expected one dataset, got a {type(found).__name__} of several: give one of them "
            f"({', '.join(map(str, found))})"
        )
    return dataset_source(found, name)


def _of_store(store: Store, name: str | None = None) -> Source:
    if isinstance(store, ArrowStore):
        return TableSource(store, name or store.path)
    return FolderSource(store) if isinstance(store, FolderStore) else StoreSource(store)
