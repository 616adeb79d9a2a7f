"""LMDB files of other programs: a key and an image file, or a key and a Caffe Datum.

They are read through ``_lmdb_pages.py``, like stores of fastload: one walk over the tree gives
every key and value.

    Datum  1: channels  2: height  3: width  4: data  5: label  6: float_data  7: encoded

``data`` is an image file if ``encoded`` is set, otherwise uint8 pixels of shape (channels, height,
width), BGR, which are rearranged when they are read (``Store.indirect``). Source: Caffe's
``caffe.proto``.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from ... import _native
from ...errors import StoreError
from .. import base
from .._fields import Blobs, field_column
from .._probe import image_format
from .._read import read_places
from ..base import Spans
from ..table import Indirect, Table, constant
from ._lmdb_pages import Entries, Pages

_SAMPLED = 100  # values whose first bytes are looked at
_MAX_SIDE = 1 << 24
# Columns of what ``find_datums`` returns.
CHANNELS, HEIGHT, WIDTH, OFFSET, LABEL, NBYTES, ENCODED, LABELLED = range(8)
_NOTES = b"__"  # prefix of keys that are not images but the program's own notes, such as __len__


def read_foreign(pages: Pages) -> Table:
    """The table of an LMDB environment of another program."""
    values = pages.walk(pages.main)
    keys = pages.keys(values)
    images = np.array([key[:2] != _NOTES for key in keys], bool)
    if not images.all():
        values = Entries(**{name: places[images] for name, places in vars(values).items()})
        keys = pages.keys(values)
    table = Table(
        format="lmdb",
        files=[pages.path],
        file=constant(len(keys), 0, "<i4"),
        offset=values.offset,
        nbytes=values.nbytes,
        keys=Blobs.of(keys),
    )
    return table if _are_images(pages, values) else _with_datums(table, pages)


def _with_datums(table: Table, pages: Pages) -> Table:
    """``table`` with the columns of its values, which are Datum messages."""
    datums, wrong = find_datums(pages.bytes.data, table.offset, table.nbytes)
    sides = datums[:, [CHANNELS, HEIGHT, WIDTH]]
    encoded = datums[:, ENCODED] != 0
    fits = np.isin(sides[:, 0], (1, 3)) & (sides > 0).all(axis=1)
    fits &= (sides <= _MAX_SIDE).all(axis=1)
    fits &= sides.astype(np.float64).prod(axis=1) == datums[:, NBYTES]  # exact if equal
    bad = np.flatnonzero(~np.where(encoded, datums[:, NBYTES] > 0, fits))
    if wrong >= 0 or len(bad) or not len(datums):
        row = wrong if wrong >= 0 else int(bad[0]) if len(bad) else None
        raise StoreError(
            "expected an LMDB store that fastload wrote (sub-databases 'records' and "
            "'columns'), or values that are image files or Caffe's Datum; found another layout",
            path=pages.path,
            record=row,
            offset=None if row is None else int(table.offset[row]),
        )
    sizes = datums[:, [WIDTH, HEIGHT]].astype(np.int32)
    sizes[encoded] = 0  # they may be those of the image before it was encoded
    nbytes = np.ascontiguousarray(datums[:, NBYTES])
    indirect = None
    if not encoded.all():
        indirect = Indirect(
            "the pixels of Caffe's Datum are planes of blue, green and red, so each image is "
            "rearranged in Python: pack it again",
            functools.partial(_read_datums, pages.path, datums),
        )
        nbytes = np.zeros_like(nbytes)
    labels, labelled = np.ascontiguousarray(datums[:, LABEL]), datums[:, LABELLED] != 0
    some = {}
    if labelled.any() and not labelled.all():  # see Note [Labels that are none]
        pairs = zip(labels.tolist(), labelled.tolist())
        rows = [b"%d" % label if has_label else b"null" for label, has_label in pairs]
        some["labels"] = field_column("labels", rows, "json")
    return dataclasses.replace(
        table,
        offset=np.ascontiguousarray(datums[:, OFFSET]),
        nbytes=nbytes,
        kinds=np.where(encoded, base.ENCODED, base.RAW).astype(np.uint8),
        sizes=None if encoded.all() else sizes,
        labels=labels if labelled.all() else None,
        fields=some,
        sample_fields=tuple(some) or None,
        indirect=indirect,
    )


def find_datums(data: memoryview, offset: np.ndarray, nbytes: np.ndarray) -> tuple[np.ndarray, int]:
    """int64 (n, 8): the columns above of n messages; and the first that is no Datum, or -1.

    OFFSET and NBYTES are those of ``data``, LABELLED is 1 if there is a label.
    """
    datums = np.zeros((len(offset), 8), np.int64)
    core = _native.required("an LMDB of Caffe's needs the native core")
    return datums, int(core.find_datums(data, offset, nbytes, datums))


def _read_datums(path: str, datums: np.ndarray, indices: np.ndarray) -> list[bytes]:
    """The images of Datum messages, raw pixels as RGB, row by row."""
    rows = datums[indices]
    offset, nbytes = (np.ascontiguousarray(rows[:, at]) for at in (OFFSET, NBYTES))
    spans = Spans(file=np.zeros(len(rows), np.int32), offset=offset, nbytes=nbytes)
    out: list[bytes] = []
    for row, data in zip(rows.tolist(), read_places([path], indices, spans)):
        if not row[ENCODED]:
            planes = np.frombuffer(data, np.uint8).reshape(row[CHANNELS], row[HEIGHT], row[WIDTH])
            rgb = planes[::-1] if len(planes) == 3 else np.repeat(planes, 3, axis=0)
            data = rgb.transpose(1, 2, 0).tobytes()
        out.append(data)
    return out


def _are_images(pages: Pages, values: Entries) -> bool:
    """Whether values start like image files; if there are many, some are looked at."""
    step = max(1, len(values.offset) // _SAMPLED)
    starts = [pages.bytes[at : at + 12].tobytes() for at in values.offset[::step].tolist()]
    return bool(starts) and all(image_format(start) != "other" for start in starts)
