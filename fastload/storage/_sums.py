"""CRC32C of the columns of a store that its format does not check, and which columns there are.

A store that fastload wrote lists its columns: if one is missing, opening the store is an error. A
column is compared with its checksum when it is first used, so that opening a store reads no column.
The checksum of numbers is of their little-endian bytes; that of byte strings is of their bytes,
continued over their ends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import StoreError
from ._columns import Columns, RecordColumns
from ._crc import crc32c
from ._fields import Blobs, Strings, encode_text, little

# Columns of up to this many bytes (20 ms) are compared when they are first used; of larger ones,
# such as masks, a batch reads only a part. ``verify`` compares all of them.
_MOST_NBYTES = 64 << 20
_PIECE = 1 << 16  # rows
_CHECKED = object()


def sums_of(columns: Columns, classes: Sequence[str]) -> dict[str, int]:
    """The checksums of a writer's columns by name, of fields as ``/FIELD``."""
    as_written = dataclasses.replace(
        columns,
        sizes=columns.sizes.astype("<i4"),
        kinds=columns.kinds.astype("u1"),
        crc32c=columns.crc32c.astype("<u4"),
    )
    return {name: _sum(values) for name, values in _named(as_written, classes).items()}


class Sums:
    """The checksums of one opened store, and which columns were not compared yet.

    ``sums`` has the CRC32C by name; None: the store has no checksums.
    """

    def __init__(self, path: str, sums: Mapping[str, Any] | None) -> None:
        self._path = path
        self._left = dict(sums or {})
        self.known = sums is not None

    def check(self, name: str, values: np.ndarray | Strings | None, *, all: bool = False) -> None:
        """Compare a column that is about to be used; large ones only with ``all``."""
        # Looked up once: another thread that compares the same column removes it meanwhile.
        expected = self._left.get(name, _CHECKED)
        if expected is _CHECKED or values is None:
            return
        if not all and sum(array.nbytes for array in _parts(values)) > _MOST_NBYTES:
            return
        crc = _sum(values)
        if crc != expected:
            what = f"the field {name[1:]!r}" if name.startswith("/") else name
            raise StoreError(
                f"expected CRC32C {_hex(expected)} of {what}, found {crc:08x}: the store is "
                "damaged, copy it again or pack it again",
                path=self._path,
            )
        self._left.pop(name, None)

    def check_classes(self, classes: Sequence[str]) -> None:
        self.check("classes", _texts(classes))

    def check_all(self, columns: RecordColumns, classes: Sequence[str]) -> bool:
        """Compare every column not yet compared; whether the store has checksums."""
        for name, values in _named(columns, classes).items():
            self.check(name, values, all=True)
        return self.known


def _named(columns: RecordColumns, classes: Sequence[str]) -> dict[str, np.ndarray | Strings]:
    arrays = {
        "labels": columns.labels,
        "sizes": columns.sizes,
        "kinds": columns.kinds,
        "crc32c": columns.crc32c,
    }
    named: dict[str, np.ndarray | Strings] = {"keys": columns.keys, "classes": _texts(classes)}
    named |= {name: array for name, array in arrays.items() if array is not None}
    return named | {f"/{name}": column.values for name, column in columns.fields.items()}


def _texts(texts: Sequence[str]) -> Blobs:
    return Blobs.of([encode_text(text) for text in texts])


def _parts(values: np.ndarray | Strings) -> Sequence[np.ndarray]:
    if not isinstance(values, Strings):
        return (values,)
    whole = values.whole()
    return whole.data, whole.ends


def _sum(values: np.ndarray | Strings) -> int:
    crc = 0
    for array in _parts(values):
        whole = array.flags.c_contiguous
        # A column with one value for all records takes no memory; copying it here would.
        for piece in (
            [array] if whole else (array[at : at + _PIECE] for at in range(0, len(array), _PIECE))
        ):
            crc = crc32c(little(piece).reshape(-1).view(np.uint8).data, crc)
    return crc


def _hex(crc: object) -> str:
    return f"{crc:08x}" if isinstance(crc, int) else repr(crc)[:50]
