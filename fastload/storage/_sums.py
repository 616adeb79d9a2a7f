"""CRC32C of the columns of a store that its format does not check: labels, names, fields, classes.

Each column is compared when it is first read, so that opening a store reads none of them. A sum is
of the column's numbers in little-endian order, of byte strings of their bytes and then their ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastload.errors import StoreError

from ._columns import Columns
from ._crc import crc32c
from ._fields import Blobs, FieldColumn, encode_text, little

# Columns of up to so many bytes (20 ms) are compared when they are read; of larger ones, such as
# masks, a batch reads a part. ``verify`` compares all.
_MOST_NBYTES = 64 << 20
_CHECKED = object()


def sums_of(columns: Columns, classes: Sequence[str]) -> dict[str, int]:
    """The sums of what a writer has: of ``labels``, ``keys``, ``classes`` and each ``/FIELD``."""
    return {name: _sum(values) for name, values in _named(
        columns.labels, columns.keys, columns.fields, classes
    ).items()}  # fmt: skip


class Sums:
    """The sums of one opened store, and which columns were not compared yet.

    Args:
        path: of the store, for messages.
        known: name -> CRC32C; None: the store has none.
    """

    def __init__(self, path: str, known: Mapping[str, Any] | None) -> None:
        self._path = path
        self._left = dict(known or {})
        self.known = known is not None

    def check(self, name: str, values: np.ndarray | Blobs | None, *, all: bool = False) -> None:
        """Compare a column that is about to be used; larger ones only with ``all``.

        Raises:
            StoreError: it is not what was written.
        """
        # Looked up once: another thread that compares the same column takes it out meanwhile.
        expected = self._left.get(name, _CHECKED)
        if expected is _CHECKED or values is None:
            return
        if not all and _nbytes(values) > _MOST_NBYTES:
            return
        found = _sum(values)
        if found != expected:
            what = f"the field {name[1:]!r}" if name.startswith("/") else name
            raise StoreError(
                f"expected CRC32C {_hex(expected)} of {what}, found {found:08x}: the store is "
                "damaged, copy or pack it again",
                path=self._path,
            )
        self._left.pop(name, None)

    def check_classes(self, classes: Sequence[str]) -> None:
        """``check`` of the class names. Raises StoreError."""
        self.check("classes", _texts(classes))

    def check_all(
        self,
        labels: np.ndarray | None,
        keys: Blobs,
        fields: Mapping[str, FieldColumn],
        classes: Sequence[str],
    ) -> bool:
        """Compare what was not yet; whether there was anything to compare with.

        Raises:
            StoreError: a column is not what was written, or missing.
        """
        there = _named(labels, keys, fields, classes)
        for name, values in there.items():
            self.check(name, values, all=True)
        if self._left:
            raise StoreError(
                f"expected the columns {', '.join(map(str, self._left))}, found none of them: the "
                "store is damaged, copy or pack it again",
                path=self._path,
            )
        return self.known


def _named(
    labels: np.ndarray | None,
    keys: Blobs,
    fields: Mapping[str, FieldColumn],
    classes: Sequence[str],
) -> dict[str, np.ndarray | Blobs]:
    found: dict[str, np.ndarray | Blobs] = {"keys": keys, "classes": _texts(classes)}
    if labels is not None:
        found["labels"] = labels
    return found | {f"/{name}": column.values for name, column in fields.items()}


def _texts(texts: Sequence[str]) -> Blobs:
    return Blobs.of([encode_text(text) for text in texts])


def _nbytes(values: np.ndarray | Blobs) -> int:
    parts = (values.data, values.ends) if isinstance(values, Blobs) else (values,)
    return sum(int(part.nbytes) for part in parts)


def _sum(values: np.ndarray | Blobs) -> int:
    crc = 0
    for part in (values.data, values.ends) if isinstance(values, Blobs) else (values,):
        crc = crc32c(little(part).reshape(-1).view(np.uint8).data, crc)
    return crc


def _hex(crc: Any) -> str:
    return f"{crc:08x}" if isinstance(crc, int) else repr(crc)[:50]
