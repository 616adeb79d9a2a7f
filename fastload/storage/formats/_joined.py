"""The tables of several files as one: shards that hold their own columns, .h5 and .pth."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import StoreError
from .._fields import Blobs, FieldColumn
from .._shards import data_files
from .._sidecar import read_sidecar
from .._sums import Sums
from ..table import Table


def read_shards(path: str, format: str, one: Callable[[str], Table]) -> Table:
    """The table of the shards that ``path`` stands for: their manifest's, or all of theirs.

    Args:
        path: of a store that is no file: of a manifest, or a pattern.
        format: name of the format.
        one: path of a file -> its table; raises StoreError where it cannot be read in place.

    Raises:
        StoreNotFoundError: nothing there, or a shard is missing.
        StoreError: shards that do not fit together.
    """
    table = read_sidecar(path, format)
    return joined([one(file) for file in data_files(path)]) if table is None else table


def joined(tables: Sequence[Table]) -> Table:
    """All of ``tables``, of files of one format, as one.

    Raises:
        StoreError: they differ in classes, labels or fields.
    """
    tables = [table for table in tables if len(table)] or tables[:1]  # empty ones lack fields
    first = tables[0]
    for other in tables[1:]:
        mine, theirs = _facts(first), _facts(other)
        if mine != theirs:
            raise StoreError(
                "expected shards with the same classes, labels and fields as the first one, "
                f"{first.files[0]!r}: open these files one by one, or as a list",
                path=other.files[0],
            )
    known = [table.check_columns() for table in tables]  # those of all are copied together
    counts = [len(table.files) for table in tables]
    begins = np.cumsum([0, *counts[:-1]])

    def column(name: str) -> Any:
        parts = [getattr(table, name) for table in tables]
        return None if parts[0] is None else np.concatenate(parts)

    fields = {
        name: FieldColumn(
            column.field,
            Blobs.join([table.fields[name].values for table in tables])  # type: ignore[misc]
            if isinstance(column.values, Blobs)
            else np.concatenate([table.fields[name].values for table in tables]),
        )
        for name, column in first.fields.items()
    }
    whole = dataclasses.replace(
        first,
        files=[file for table in tables for file in table.files],
        file=np.concatenate(
            [table.file + begin for table, begin in zip(tables, begins.tolist(), strict=True)]
        ).astype(np.int32),
        keys=Blobs.join([table.keys for table in tables]),
        fields=fields,
        fingerprints=None,
        sums=Sums(first.files[0] if first.files else "", {} if all(known) else None),
        watch=None,  # everything was copied
        offset=column("offset"),
        nbytes=column("nbytes"),
        labels=column("labels"),
        sizes=column("sizes"),
        kinds=column("kinds"),
        crc32c=column("crc32c"),
    )
    for table in tables:
        if table.watch is not None:
            table.watch.check()
    return whole


def _facts(table: Table) -> Any:
    labels = table.labels
    return (
        list(table.classes),
        None if labels is None else (labels.dtype, labels.shape[1:]),
        {name: column.field for name, column in table.fields.items()},
        [getattr(table, name) is None for name in ("sizes", "kinds", "crc32c")],
    )
