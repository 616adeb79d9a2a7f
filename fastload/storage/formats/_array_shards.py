"""Files of arrays, .h5 and .pth, as the shards of one store: what they hold together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from ...errors import StoreError
from .._columns import join_columns
from .._sums import Sums
from ..table import Table


def scan_shards(read: Callable[[str], Table], files: Sequence[str]) -> Table:
    """The table of ``files``, each of which is a whole store that ``read`` reads."""
    tables = []
    for file in files:
        shard = read(file)
        if shard.indirect is not None:
            raise StoreError(f"{shard.indirect.why}; or open the files as a list", path=file)
        tables.append(shard.checked())
    return joined(tables)


def joined(tables: Sequence[Table]) -> Table:
    """The checked tables of several files of one format as one; empty ones may lack columns."""
    filled = [table for table in tables if len(table)] or tables[:1]
    first = filled[0]
    for other in filled[1:]:
        mine, theirs = _facts(first), _facts(other)
        if mine != theirs:
            raise StoreError(
                "expected shards with the same classes, labels and fields as the first one, "
                f"{first.files[0]!r}: open these files one by one, or as a list",
                path=other.files[0],
            )
    have_sums = [table.check_columns() for table in filled]  # before they are copied into one
    counts = [len(table.files) for table in tables]
    begins = np.cumsum([0, *counts[:-1]])
    whole = dataclasses.replace(
        first,
        files=[file for table in tables for file in table.files],
        file=np.concatenate(
            [table.file + begin for table, begin in zip(tables, begins.tolist(), strict=True)]
        ).astype(np.int32),
        fingerprints=[each for table in tables for each in table.fingerprints or ()],
        sums=Sums(first.files[0] if first.files else "", {} if all(have_sums) else None),
        watch=None,  # everything was copied
        **join_columns(filled, ("offset", "nbytes", "labels", "sizes", "kinds", "crc32c")),
    )
    for table in tables:
        if table.watch is not None:
            table.watch.check()
    return whole


def _facts(table: Table) -> tuple[object, ...]:
    labels = table.labels
    return (
        list(table.classes),
        None if labels is None else (labels.dtype, labels.shape[1:]),
        {name: column.field for name, column in table.fields.items()},
        [getattr(table, name) is None for name in ("sizes", "kinds", "crc32c")],
    )
