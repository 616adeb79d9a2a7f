"""The layout of an LMDB store (docs/formats.md): its names, and opening one with every check."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import struct
import warnings
from typing import Any

import numpy as np

from ...errors import StoreError, StoreNotFoundError
from .._columns import fields_of
from .._fields import Blobs, Field, FieldColumn, is_label_dtype, is_text
from .._sums import Sums, demand
from ._lmdb_pages import Pages, Tree

VERSIONS = (1, 2)  # 2: labels other than int64 (n,), or fields
LAYOUT = "fastload-lmdb"
RECORDS = b"records"  # names of the sub-databases
COLUMNS = b"columns"
KEY = struct.Struct(">Q")  # of a record

_LOOKED_UP = (b"labels", b"sizes", b"crc32c", b"kinds", b"nbytes", b"offsets")

_MAX_JSON = 1 << 28


@dataclasses.dataclass(frozen=True)
class Opened:
    """One opening of the file: the pages and the columns, which are views of them.

    ``places`` are (offset, nbytes) of the columns that are looked up for every batch.
    """

    pages: Pages
    format: dict[str, Any]
    metadata: dict[str, Any]
    classes: list[str]
    labels: np.ndarray | None
    sizes: np.ndarray
    crc32c: np.ndarray
    kinds: np.ndarray
    nbytes: np.ndarray
    offsets: np.ndarray
    keys: Blobs
    fields: dict[str, FieldColumn]
    places: list[tuple[int, int]]
    sums: Sums


def open_layout(path: str, *, rebuild: bool = True) -> Opened:
    """Map ``path`` and find the columns. No column is read but the small JSON ones.

    Args:
        path: the data file.
        rebuild: where the table of offsets does not fit the file, make another one, with a warning.

    Raises:
        StoreNotFoundError: nothing there.
        StoreError: damaged, or another layout; a table that does not fit, without ``rebuild``.
    """
    try:
        pages = Pages(path)
    except FileNotFoundError:
        name = path.removesuffix(os.sep + "data.mdb")
        hint = (
            "its packing was not finished: run the same pack command again"
            if os.path.isdir(name + ".partial")
            else "check the path"
        )
        raise StoreNotFoundError(
            f"expected an LMDB store, found nothing: {hint}", path=path
        ) from None
    except OSError as error:
        raise StoreError(f"the store cannot be read: {error.strerror}", path=path) from error
    records = pages.subtree(RECORDS)
    columns = pages.subtree(COLUMNS)
    if records is None or columns is None:
        raise StoreError(
            "expected an LMDB store that fastload wrote (sub-databases 'records' and 'columns'), "
            "found another layout",
            path=path,
        )
    read = _Reader(pages, columns, records.entries)
    format_ = read.json(b"format", dict)
    if format_.get("format") != LAYOUT or format_.get("version") not in VERSIONS:
        raise StoreError(
            f"expected format {LAYOUT} version 1 or 2, found {str(format_)[:200]}: "
            "a newer fastload may know it",
            path=path,
        )
    sums = read.json(b"checksums", dict, optional=True)
    listed = format_.get("columns", ["labels"] if "labels" in (sums or ()) else [])
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise StoreError(f"no list of columns: {str(listed)[:200]}", path=path)
    demand(listed, read.names().__contains__, path)
    classes = read.json(b"classes", list)
    if not all(map(is_text, classes)):
        raise StoreError("expected class names that are text", path=path)
    nbytes = read.array(b"nbytes", "<i8")
    offsets = read.array(b"offsets", "<i8")
    if not _table_fits(pages, records, read.json(b"fingerprint", dict), offsets, nbytes):
        if not rebuild:
            raise StoreError("the table of offsets does not fit the file", path=path)
        warnings.warn(
            f"{path!r} was changed or copied by an LMDB tool (such as mdb_copy -c) after it was "
            "packed: its table of offsets is rebuilt in memory each time it is opened; pack it "
            "again to have it open at once",
            stacklevel=4,
        )
        values = pages.walk(records)
        offsets, nbytes = values.offset, values.nbytes
    return Opened(
        pages=pages,
        format=format_,
        metadata=read.json(b"metadata", dict),
        classes=classes,
        labels=read.labels(format_.get("labels")),
        sizes=read.array(b"sizes", "<i4", 2).reshape(-1, 2),
        crc32c=read.array(b"crc32c", "<u4"),
        kinds=read.array(b"kinds", "u1"),
        nbytes=nbytes,
        offsets=offsets,
        keys=Blobs(read.value(b"keys"), read.array(b"key_ends", "<i8")),
        fields=read.fields(format_.get("fields", [])),
        sums=Sums(path, sums),
        places=[place for name in _LOOKED_UP if (place := pages.find(columns, name)) is not None],
    )


def _table_fits(
    pages: Pages,
    records: Tree,
    fingerprint: dict[str, Any],
    offsets: np.ndarray,
    nbytes: np.ndarray,
) -> bool:
    """Whether the table of offsets describes this file: same commit, same tree, spot checks."""
    if fingerprint != {"transaction": pages.transaction, "root": records.root}:
        return False
    count = records.entries
    return all(
        pages.find(records, KEY.pack(index)) == (int(offsets[index]), int(nbytes[index]))
        for index in ({0, count // 2, count - 1} if count else ())
    )


class _Reader:
    """Reads values of the columns tree, each checked against the number of records."""

    def __init__(self, pages: Pages, tree: Tree, count: int) -> None:
        self._pages = pages
        self._tree = tree
        self._count = count

    def names(self) -> set[str]:
        """Of all columns, in one walk: a search for each takes a third of the time of opening."""
        found = self._pages.walk(self._tree)
        places = zip(found.key.tolist(), found.key_nbytes.tolist())
        names = (self._pages.bytes[at : at + nbytes].tobytes() for at, nbytes in places)
        return {name.decode("utf-8", "replace") for name in names}

    def value(self, name: bytes) -> np.ndarray:
        """uint8, a view of the file."""
        found = self._pages.find(self._tree, name)
        if found is None:
            raise StoreError(f"the column {name.decode()!r} is missing", path=self._pages.path)
        return self._pages.bytes[found[0] : found[0] + found[1]]

    def array(self, name: bytes, dtype: str, width: int = 1, *, optional: bool = False) -> Any:
        """(count * width,) of ``dtype``; None if it is optional and absent."""
        if optional and self._pages.find(self._tree, name) is None:
            return None
        value = self.value(name)
        expected = self._count * width * np.dtype(dtype).itemsize
        if len(value) != expected:
            raise StoreError(
                f"expected {expected} bytes in the column {name.decode()!r} of {self._count} "
                f"records, found {len(value)}",
                path=self._pages.path,
            )
        return value.view(dtype)

    def labels(self, type_: Any) -> np.ndarray | None:
        """The labels; ``type_`` is their dtype and shape out of "format", None: int64 (n,)."""
        dtype, width = type_ if isinstance(type_, list) and len(type_) == 2 else ("<i8", None)
        if not (is_label_dtype(dtype) and (width is None or (type(width) is int and width >= 0))):
            raise StoreError(f"no type of labels: {str(type_)[:200]}", path=self._pages.path)
        found = self.array(b"labels", dtype, 1 if width is None else width, optional=True)
        if found is None or width is None:
            return None if found is None else np.asarray(found)
        return np.reshape(found, (self._count, width))

    def fields(self, described: Any) -> dict[str, FieldColumn]:
        """The fields that "format" describes."""
        arrays: dict[str, np.ndarray] = {}
        try:
            fields = [Field.from_json(field) for field in described]
        except (TypeError, ValueError) as error:
            raise StoreError(f"damaged fields: {error}", path=self._pages.path) from error
        for field in fields:
            if field.dtype is not None:
                width = math.prod(field.shape)
                column = self.array(f"/{field.name}".encode(), field.dtype.str, width)
                arrays[f"/{field.name}"] = column.reshape(self._count, *field.shape)
            else:
                arrays[f"/{field.name}/data"] = self.value(f"/{field.name}/data".encode())
                ends = self.array(f"/{field.name}/ends".encode(), "<i8")
                arrays[f"/{field.name}/ends"] = ends
        return fields_of(fields, arrays)

    def json(self, name: bytes, kind: type, *, optional: bool = False) -> Any:
        """The JSON value of a column, a ``kind``; None if it is optional and absent."""
        if optional and self._pages.find(self._tree, name) is None:
            return None
        value = self.value(name)
        try:
            if len(value) > _MAX_JSON:
                raise ValueError("too long")
            decoded = json.loads(value.tobytes())
            if not isinstance(decoded, kind):
                raise ValueError(f"expected a {kind.__name__}")
        except (ValueError, RecursionError) as error:
            raise StoreError(
                f"the column {name.decode()!r} is no valid JSON: {error}", path=self._pages.path
            ) from error
        return decoded


def is_foreign(path: str) -> bool:
    """Whether the LMDB file ``path`` is there, and lacks the sub-databases of a store of ours.

    Raises:
        StoreError: it is no LMDB file.
    """
    try:
        pages = Pages(path)
    except OSError:
        return False  # opening it as ours says what is wrong
    return pages.subtree(RECORDS) is None or pages.subtree(COLUMNS) is None
