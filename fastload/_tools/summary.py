"""``info``: the contents of a store in numbers, as shown by ``fastload info``."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..errors import StoreError
from ..storage import open_store
from ..storage._probe import image_format
from ..storage._read import read_records
from ..storage.base import DCT, RAW, Store
from ..storage.table import Table

_FETCHED = 64  # if the store is remote
_SAMPLED = 10_000  # records whose encoding is determined from their first bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spread:
    """Smallest, median and largest of a quantity."""

    min: int
    median: int
    max: int

    @classmethod
    def of(cls, values: np.ndarray) -> Spread | None:
        """The spread of ``values``, or None if there are none."""
        if not len(values):
            return None
        middle = np.partition(values, len(values) // 2)[len(values) // 2]
        return cls(min=int(values.min()), median=int(middle), max=int(values.max()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """The contents of a store.

    Attributes:
        path, format: of the store.
        records: number of records.
        nbytes: size of all records.
        file_nbytes: size of the store's files.
        classes: (name, number of records) in the order of the labels. The number is None where
            records have no class each, as where fields have the classes of objects.
        width, height: in pixels, over the records of known size; None if there are none.
        record_nbytes: size of a record.
        labels: type of the labels, such as "int64" or "float32 (40)"; None without labels.
        fields: name -> type of each field.
        files: number of files that hold the records.
        encodings: encoding -> number of records, counted on ``sampled`` records.
        sampled: number of records on which the encodings were counted.
        checksums: whether every record has one.
        metadata: the metadata written by the packer.
    """

    path: str
    format: str
    records: int
    nbytes: int
    file_nbytes: int
    classes: tuple[tuple[str, int | None], ...]
    width: Spread | None
    height: Spread | None
    record_nbytes: Spread | None
    labels: str | None
    fields: dict[str, str]
    files: int
    encodings: dict[str, int]
    sampled: int
    checksums: bool
    metadata: dict[str, object]


def info(path: str | os.PathLike[str] | Store | Sequence[str | os.PathLike[str]]) -> Summary:
    """The contents of a store: counts, sizes, encodings, classes, and the packer's metadata.

    Example:
        >>> info("imgs.lmdb").records
        1000

    Args:
        path: path of a store or a folder of images, an open store, or a list of them.

    Returns:
        What ``fastload info`` prints, as attributes: ``records``, ``classes``, ``width`` ...

    Raises:
        StoreNotFoundError: there is no store.
        StoreError: the store is damaged, or a file is missing.
    """
    if isinstance(path, Store):
        return summarise(path)
    with open_store(path) as store:
        return summarise(store)


def summarise(store: Store) -> Summary:
    """Count and measure ``store``. Raises StoreError if it is damaged, or a file is missing."""
    everything = np.arange(len(store))
    nbytes = _lengths(store, everything)
    sizes = store.sizes(everything)
    sized = sizes[(sizes > 0).all(axis=1)]
    most = _FETCHED if store.remote else _SAMPLED
    sampled = everything[:: max(1, -(-len(everything) // most))]
    on_disk, memory = store.files, store.memory()
    if memory:
        on_disk = [path for number, path in enumerate(on_disk) if number not in memory]
    return Summary(
        path=store.path,
        format=store.format,
        records=len(store),
        nbytes=int(nbytes.sum()),
        file_nbytes=(
            sum(map(os.path.getsize, on_disk)) if store.mapped and on_disk else int(nbytes.sum())
        ),
        classes=_classes(store),
        width=Spread.of(sized[:, 0]),
        height=Spread.of(sized[:, 1]),
        record_nbytes=Spread.of(nbytes),
        labels=labels_of(store),
        fields={
            name: field.kind if field.dtype is None else _type(field.dtype, field.shape)
            for name, field in store.fields.items()
        },
        files=len(on_disk) or len(store.files),
        encodings=_encodings(store, sampled),
        sampled=len(sampled),
        checksums=store.checksums(everything[:1]) is not None,
        metadata=store.metadata,
    )


def labels_of(store: Store | Table) -> str | None:
    """The type of a store's labels, such as "int64" or "float32 (40)"; None without labels."""
    return None if store.labels is None else _type(store.labels.dtype, store.labels.shape[1:])


def describe_count(count: int) -> str:
    """1 as "1 record", 1000 as "1,000 records"."""
    return f"{count:,} record{'' if count == 1 else 's'}"


def describe_labels(classes: int, labels: str | None) -> str:
    """The number of classes ("10 classes"), or without classes the type of the labels.

    Without labels, the classes are those of objects, which fields have (COCO ...).
    """
    if not classes:
        return "no labels" if labels is None else f"labels {labels}"
    count = "1 class" if classes == 1 else f"{classes:,} classes"
    return f"{count} of objects" if labels is None else count


def _type(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> str:
    return f"{dtype} ({', '.join(map(str, shape))})" if shape else str(dtype)


def _lengths(store: Store, indices: np.ndarray) -> np.ndarray:
    spans = store.places(indices)
    nbytes: np.ndarray = spans.nbytes.copy()
    if store.indirect is not None:  # the size of raw pixels is known without unpacking them
        raw = store.kinds(indices) == RAW
        nbytes[raw] = store.sizes(indices)[raw].astype(np.int64).prod(axis=1) * 3
    files = store.files
    for at in np.flatnonzero(nbytes < 0).tolist():
        path = files[int(spans.file[at])]
        try:
            nbytes[at] = os.stat(path).st_size - int(spans.offset[at])
        except OSError as error:
            raise StoreError(f"cannot read the file: {error.strerror}", path=path) from error
    return nbytes


def _classes(store: Store) -> tuple[tuple[str, int | None], ...]:
    labels = store.labels
    if labels is None or labels.dtype.kind != "i" or labels.ndim != 1:
        return tuple((name, None) for name in store.classes)
    inside = labels[(labels >= 0) & (labels < len(store.classes))]
    counts = np.bincount(inside, minlength=len(store.classes))
    return tuple(zip(store.classes, counts.tolist()))


def _encodings(store: Store, indices: np.ndarray) -> dict[str, int]:
    kinds = store.kinds(indices)
    counts = Counter({"raw": int((kinds == RAW).sum()), "dct": int((kinds == DCT).sum())})
    encoded = indices[(kinds != RAW) & (kinds != DCT)]
    counts.update(image_format(data) for data in read_records(store, encoded, limit=16))
    return {name: count for name, count in counts.most_common() if count}
