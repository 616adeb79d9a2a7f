"""``concat`` and ``append``: stores made from stores."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._base.keywords import names_nearest
from .._base.progress_bar import Progress
from ..errors import StoreError, UsageError
from ..storage import Store, format_of, open_store
from ..storage._fields import field_column, label_column, type_of_labels, types_of_fields
from ..storage._local import is_url, local_path
from ..storage._writer import KEPT
from ..storage.concat import ConcatStore, shortly
from . import _overwrite
from ._labels import CHOSEN, Chosen
from ._open import open_source
from ._pack import pack
from ._report import PackReport
from ._source import Sample
from ._store_source import StoreSource
from ._workplace import Workplace, companions_of

_WHAT = "appending"


@functools.partial(names_nearest, passes_to=pack)
def concat(
    sources: Sequence[str | os.PathLike[str]],
    destination: str | os.PathLike[str],
    *,
    progress: Progress | bool | None = None,
    **options: Any,
) -> PackReport:
    """Copy the records of several stores, one after the other, into a new store.

    Records are compared with their checksums and copied unchanged. (Reading several stores as one
    needs no copy: ``FastLoader(["a.lmdb", "b.lmdb"])``.)

    Example:
        >>> concat(["a.lmdb", "b.lmdb"], "both.lmdb").records
        2000

    Args:
        sources: stores of any format, or folders, with the same classes, labels and fields.
        destination: the new store.
        progress: as for ``pack``.
        options: other arguments of ``pack``, such as ``shards``.

    Returns:
        A report as of ``pack``.

    Raises:
        UsageError, StoreError: as ``pack`` does, or stores that do not fit together.
    """
    return pack(open_store(list(sources)), destination, progress=progress, **options)


@functools.partial(names_nearest, passes_to=pack)
def append(
    path: str | os.PathLike[str],
    source: Any,
    *,
    progress: Progress | bool | None = None,
    **options: Any,
) -> PackReport:
    """Add the samples of ``source`` after the records of the store at ``path``.

    A new store is written beside the old one and then replaces it. Readers that are open continue
    to read the old one. If the process is killed, either the old store or the new one is there.
    This takes the time and the disk space of a copy.

    Example:
        >>> append("imgs.lmdb", "more").records
        1100

    Args:
        path: a store of one file.
        source: as for ``pack``, with the store's type of labels and fields. New classes get the
            numbers after those of the store.
        progress: as for ``pack``.
        options: other arguments of ``pack`` for the new images, except shards, shard_nbytes and
            split.

    Returns:
        A report on the new store, as of ``pack``: ``records`` counts the old records, too;
        ``skipped`` and ``kept`` are about the new images.

    Raises:
        UsageError: a set of shards, or a format of several files (pack into another store, and read
            both as one); a source that does not fit, or that has keys of the store; another process
            is appending to this store.
        StoreError: as ``pack`` does.
    """
    path = local_path(path)
    if format_of(path) is None or not os.path.isfile(path):
        open_store(path).close()  # raises if there is none
        raise UsageError(
            f"{path!r}: expected a store of one file: pack the new images into another store, and "
            "read both as one, FastLoader([a, b])"
        )
    for name in ("shards", "shard_nbytes", "split"):
        if options.get(name) is not None:
            raise UsageError(
                f"expected no {name} when appending to a store of one file, got "
                f"{options[name]!r}: pack the new images into another store with it"
            )
    run = functools.partial(_append, path, source, progress, options)
    return _overwrite.replacing(path, [path], run, _WHAT)


def _append(
    path: str, source: Any, progress: Progress | bool | None, options: dict[str, Any], staged: str
) -> PackReport:
    """Pack the records of ``path`` and of ``source`` to ``staged``, or leave nothing there."""
    work = Workplace(path, _WHAT)
    more = work.file(f"added{os.path.splitext(path)[1]}")
    _clear(work, staged, more)  # of a run that was killed
    store = open_store(path)
    try:
        # A function is only called for the copy: both steps count from 0.
        shown = False if callable(progress) else progress
        opened, options = _opened(store, source, options)
        added = pack(opened, more, progress=shown, **options)
        extra = open_store(more)
        both = _together(store, extra, source)
        _check_keys(store, extra.keys(np.arange(len(extra))))
        records = StoreSource(both)
        records.noted = {**records.noted, **_noted([store, extra])}
        report = pack(records, staged, progress=progress)
        both.close()
    except BaseException as error:
        _clear(work, staged)
        if isinstance(error, KeyboardInterrupt):
            error.args = ("the store is as it was",)
        if isinstance(error, StoreError) and KEPT in error.message:  # not true here
            said = error.message.replace(KEPT, "; the store is as it was")
            raise StoreError(said, path=path) from error
        raise
    finally:
        _clear(work, more)
    return dataclasses.replace(
        report,
        skipped=added.skipped,
        left_out=added.left_out,
        kept=added.kept,
        seconds=added.seconds + report.seconds,
    )


def _opened(
    store: Store, source: object, options: Mapping[str, Any]
) -> tuple[object, dict[str, Any]]:
    """``source`` as ``pack`` takes it, and the other options, compared with ``store``.

    That is before all images are read; what is at a URL is compared once it was packed.
    """
    if is_url(source):
        return source, dict(options)
    chosen = Chosen.of(**{name: options.get(name) for name in CHOSEN})
    opened = open_source(source, chosen)
    _classes_of_both(store, opened.classes, source)
    _check_keys(store, opened.keys)
    good = (index for index in range(len(opened)) if index not in opened.faults)
    sampled = np.array([next(good, 0)])
    first = next(opened.read(sampled), None) if len(opened) else None
    if isinstance(first, Sample):
        annotations = opened.annotate(sampled, [first])
        labels = None if annotations.labels is None else label_column(annotations.labels)
        fields = {
            name: field_column(name, values, annotations.field_kinds.get(name)).field
            for name, values in annotations.fields.items()
        }
        for what, own, other in (
            ("type of labels", type_of_labels(store.labels), type_of_labels(labels)),
            ("fields", types_of_fields(store.fields.values()), types_of_fields(fields.values())),
        ):
            if own != other:
                raise UsageError(
                    f"{store.path!r}: expected images with its {what}, {shortly(own)}, got "
                    f"{shortly(other)} in {str(source)!r}: pack them into a new store"
                )
    return opened, {name: value for name, value in options.items() if name not in CHOSEN}


def _check_keys(store: Store, keys: Sequence[str]) -> None:
    twice = set(store.keys(np.arange(len(store)))).intersection(keys)
    if twice:
        raise UsageError(
            f"{store.path!r} already has a record called {min(twice)!r}: rename or remove it in "
            "what is added"
        )


def _classes_of_both(store: Store, own: Sequence[str], source: object) -> list[str]:
    """The classes of ``store``, and then those of ``own`` that are new."""
    classes = list(store.classes)
    counted = store.labels is None or store.labels.ndim > 1
    if bool(own) != bool(classes) or (counted and list(own) != classes):
        raise UsageError(
            f"{store.path!r}: expected images of its classes {shortly(classes)}, got "
            f"{shortly(list(own))} in {str(source)!r}: pack the images of all classes into a new "
            "store"
        )
    return classes + [name for name in own if name not in set(classes)]


def _together(store: Store, more: Store, source: object) -> ConcatStore:
    """``store`` and then ``more``, which was packed from ``source``, with the classes of both."""
    own = list(more.classes)
    classes = _classes_of_both(store, own, source)
    labels = None
    if own != list(store.classes) and store.labels is not None and more.labels is not None:
        place = {name: number for number, name in enumerate(classes)}
        numbers = np.array([place[name] for name in own], store.labels.dtype)
        labels = np.concatenate([store.labels, numbers[more.labels]])
    both = ConcatStore.checked([store, more], labels)
    both.classes = classes
    return both


def _noted(stores: Sequence[Store]) -> dict[str, Any]:
    """Source and options of the records: the values of all stores, if they differ."""
    sources = [str(store.metadata.get("source", os.path.basename(store.path))) for store in stores]
    metadata: dict[str, Any] = {"source": ", ".join(dict.fromkeys(sources))}
    for name in ("encode", "resize", "quality", "exif"):
        values = [store.metadata.get(name) for store in stores]
        metadata[name] = values[0]
        if any(value != values[0] for value in values):
            listed = ", ".join("none" if value is None else str(value) for value in values)
            # a value may list several already
            metadata[name] = ", ".join(dict.fromkeys(listed.split(", ")))
    return metadata


def _clear(work: Workplace, *stores: str) -> None:
    names = [
        file for store in stores for file in (store, f"{store}.partial", *companions_of(store))
    ]
    work.remove(map(os.path.basename, names))
