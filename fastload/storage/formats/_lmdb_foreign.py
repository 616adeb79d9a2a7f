"""LMDB files of other programs: a key and an image file, or a key and a Caffe Datum.

They are read through ``_lmdb_pages.py``, like our own: one walk over the tree gives every key and
value. Raw pixels of a Datum are planes of blue, green and red, and have to be put in order on the
way (``Store.indirect``).
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ...errors import StoreError
from .._fields import Blobs
from .._signatures import image_format
from ..table import Table, TableStore
from ..base import ENCODED, RAW
from . import _datum
from ._lmdb_pages import Pages, Values

_SAMPLED = 100  # values whose first bytes are looked at
_MAX_SIDE = 1 << 24
_NOTES = b"__"  # how keys begin that hold notes of the program, such as __len__


class ForeignLmdbStore(TableStore):
    """Reads an LMDB environment of another program: one file, or a folder with ``data.mdb``."""

    format = "lmdb"
    _raw: np.ndarray | None = None  # fields of Datum messages without encoded images

    def _load(self, path: str) -> Table:
        inside = os.path.join(path, "data.mdb")
        file = inside if os.path.isdir(path) else path
        pages = Pages(file)
        values = pages.walk(pages.main)
        keys = _keys(pages, values)
        if not all(key[:2] != _NOTES for key in keys):
            kept = np.array([key[:2] != _NOTES for key in keys])
            keys = [key for key in keys if key[:2] != _NOTES]
            values = Values(values.key[kept], values.key_nbytes[kept], values.offset[kept],
                            values.nbytes[kept])  # fmt: skip
        self.indirect = self._raw = None
        count = len(keys)
        columns: dict[str, Any] = {"offset": values.offset, "nbytes": values.nbytes}
        if not _are_images(pages, values):
            columns = self._datums(pages, values, file)
        return Table(
            format=self.format,
            files=[file],
            file=np.zeros(count, np.int32),
            keys=Blobs.of(keys),
            **columns,
        )

    def _datums(self, pages: Pages, values: Values, file: str) -> dict[str, Any]:
        """The columns of Datum messages."""
        found, wrong = _datum.find(pages.bytes.data, values.offset, values.nbytes)
        sides = found[:, [_datum.CHANNELS, _datum.HEIGHT, _datum.WIDTH]]
        encoded = found[:, _datum.ENCODED] != 0
        fits = np.isin(sides[:, 0], (1, 3)) & (sides > 0).all(axis=1)
        fits &= (sides <= _MAX_SIDE).all(axis=1)
        fits &= sides.astype(np.float64).prod(axis=1) == found[:, _datum.NBYTES]  # exact if equal
        bad = np.flatnonzero(~np.where(encoded, found[:, _datum.NBYTES] > 0, fits))
        if wrong >= 0 or len(bad) or not len(found):
            row = wrong if wrong >= 0 else int(bad[0]) if len(bad) else None
            raise StoreError(
                "expected an LMDB store that fastload wrote (sub-databases 'records' and "
                "'columns'), or values that are image files or Caffe's Datum; found another layout",
                path=file,
                record=row,
                offset=None if row is None else int(values.offset[row]),
            )
        kinds = np.where(encoded, ENCODED, RAW).astype(np.uint8)
        sizes = found[:, [_datum.WIDTH, _datum.HEIGHT]].astype(np.int32)
        sizes[encoded] = 0  # of what was encoded, maybe
        nbytes = np.ascontiguousarray(found[:, _datum.NBYTES])
        if not encoded.all():
            self.indirect = (
                "the pixels of Caffe's Datum are planes of blue, green and red, so each image is "
                "put in order in Python: pack it again"
            )
            self._raw = found
            nbytes = np.zeros_like(nbytes)
        labelled = bool(found[:, _datum.LABELLED].all())
        return {
            "offset": np.ascontiguousarray(found[:, _datum.OFFSET]),
            "nbytes": nbytes,
            "kinds": kinds,
            "sizes": None if encoded.all() else sizes,
            "labels": np.ascontiguousarray(found[:, _datum.LABEL]) if labelled else None,
        }

    def read(self, indices: np.ndarray) -> list[bytes]:
        """As in the contract; raw pixels of a Datum as RGB, row by row."""
        table = self._table
        if self._raw is None:
            return super().read(indices)
        out = []
        with open(table.files[0], "rb", buffering=0) as file:
            for index in indices.tolist():
                channels, height, width, offset, _, nbytes, encoded, _ = self._raw[index].tolist()
                data = os.pread(file.fileno(), nbytes, offset)
                if not encoded:
                    planes = np.frombuffer(data, np.uint8).reshape(channels, height, width)
                    rgb = planes[::-1] if channels == 3 else np.repeat(planes, 3, axis=0)
                    data = rgb.transpose(1, 2, 0).tobytes()
                out.append(data)
        return out

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_raw": None}


def _keys(pages: Pages, values: Values) -> list[bytes]:
    data = pages.bytes.data
    return [
        bytes(data[at : at + nbytes])
        for at, nbytes in zip(values.key.tolist(), values.key_nbytes.tolist())
    ]


def _are_images(pages: Pages, values: Values) -> bool:
    """Whether values begin as image files do; of many, some are looked at."""
    step = max(1, len(values.offset) // _SAMPLED)
    starts = [pages.bytes[at : at + 12].tobytes() for at in values.offset[::step].tolist()]
    return bool(starts) and all(image_format(start) != "other" for start in starts)
