"""Arrays of images with named columns beside them: HDF5, .pth, N5 and Zarr; LMDB's columns, too.

Each column is checked before it is used: it may be damaged, or written by another program.

An image that lies in a file as (height, width, 3) uint8 is a RAW record as it is. Gray images and
(3, height, width) are rearranged when they are read (``Axes.rgb``), which costs a copy.
"""

from __future__ import annotations

import dataclasses
import json
import math
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import StoreError, UsageError
from .._columns import Columns, field_arrays
from .._fields import Blobs, DeferredStrings, Field, FieldColumn, is_text, label_column
from .._sums import Sums
from ..base import RAW
from ..table import Table, constant

# Names under which files of other programs hold images, labels and class names; the first one found
# counts.
IMAGES = ("images", "image", "data", "x", "X", "img", "imgs")
LABELS = ("labels", "label", "targets", "target", "y", "Y")
CLASSES = ("classes", "class_names", "label_names")

_MAX_NBYTES = 1 << 30  # of one image: the most that the core reads
_MAX_RECORDS = 1 << 31
_MAX_RATIO = 1100  # deflate makes at most 1,032 bytes out of one
_FREE = 1 << 20  # records, or bytes, that are accepted without looking at the file


def least_stored(shape: Sequence[int], itemsize: int) -> int:
    """How many bytes an array of this shape takes at least in its file, however it is compressed.

    At least one for each record, because opening a store makes a table of its records. A million
    records, or a megabyte, are accepted without any bytes.
    """
    records = shape[0] if shape else 0
    return max(records - _FREE, (math.prod(shape) * itemsize - _FREE) // _MAX_RATIO)


@dataclasses.dataclass(frozen=True)
class Axes:
    """What the axes of an array of images are.

    Attributes:
        channels: 1 or 3.
        first: channels come before height and width.
        flat: there is no axis of channels.
    """

    count: int
    height: int
    width: int
    channels: int
    first: bool = False
    flat: bool = False

    @property
    def in_place(self) -> bool:
        """Whether an image in the file is a RAW record as it is (if its bytes are contiguous)."""
        return self.channels == 3 and not self.first

    @property
    def nbytes(self) -> int:
        return self.height * self.width * 3

    def rgb(self, image: np.ndarray) -> bytes:
        """One image of the array (without the first axis) as a RAW record."""
        if self.first:
            image = np.moveaxis(image, 0, 2)
        if self.flat:
            image = image[:, :, None]
        return np.broadcast_to(image, (self.height, self.width, 3)).tobytes()


def axes_of(shape: Sequence[int], dtype: np.dtype[Any], path: str, name: str) -> Axes:
    """Those of the array ``name``: (N, H, W, 3 or 1), (N, 3 or 1, H, W) or (N, H, W)."""
    if dtype != np.uint8:
        raise StoreError(
            f"expected uint8 images in {name!r}, found {dtype}: scale them to 0 to 255 and write "
            "them as uint8",
            path=path,
        )
    count, *rest = shape or (0,)
    if len(rest) == 2:
        axes = Axes(count, rest[0], rest[1], channels=1, flat=True)
    elif len(rest) == 3 and rest[2] in (1, 3):
        axes = Axes(count, rest[0], rest[1], channels=rest[2])
    elif len(rest) == 3 and rest[0] in (1, 3):
        axes = Axes(count, rest[1], rest[2], channels=rest[0], first=True)
    else:
        raise StoreError(
            "expected images of shape (N, H, W, 3), (N, 3, H, W), (N, H, W, 1) or (N, H, W) in "
            f"{name!r}, found {tuple(shape)}",
            path=path,
        )
    if not 0 <= count < _MAX_RECORDS or (
        count and (min(axes.height, axes.width) < 1 or axes.nbytes > _MAX_NBYTES)
    ):
        raise StoreError(
            f"expected fewer than {_MAX_RECORDS} images of at most {_MAX_NBYTES} bytes in "
            f"{name!r}, found a shape of {tuple(shape)}: the file is damaged, or holds no images",
            path=path,
        )
    return axes


def first_of(names: Iterable[str], present: Collection[str]) -> str | None:
    """The first of ``names`` that is in ``present``."""
    return next((name for name in names if name in present), None)


def arrays_of(columns: Columns, *, dtypes: str, raw: bool) -> dict[str, np.ndarray]:
    """The columns of a store as arrays, by name; keys are left out.

    Fields of types that are not among ``dtypes``, such as ``"u1 i8 f4"``, become bytes, and
    ``ColumnReader`` restores their type. ``raw``: all records are raw pixels of one size, which the
    array of images says.
    """
    arrays = {"crc32c": columns.crc32c.astype("<u4")}
    if columns.labels is not None:
        arrays["labels"] = columns.labels
    if not raw:
        arrays["offsets"] = np.concatenate([[0], np.cumsum(columns.nbytes)]).astype("<i8")
        arrays["sizes"] = columns.sizes.astype("<i4")
        arrays["kinds"] = columns.kinds
    arrays |= {f"fields{name}": array for name, array in field_arrays(columns.fields).items()}
    held = {np.dtype(name) for name in dtypes.split()}
    return {
        name: array if array.dtype in held else _as_bytes(array) for name, array in arrays.items()
    }


def _as_bytes(array: np.ndarray) -> np.ndarray:
    """``array`` (n, ...) as uint8 (n, bytes of an item)."""
    nbytes = array.dtype.itemsize * math.prod(array.shape[1:])
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(len(array), nbytes)


class ColumnReader:
    """The columns of a store of ``count`` records.

    A column may also be stored as the bytes of its numbers (uint8), if the format cannot hold its
    type or has bytes only. ``get`` returns None for a column that is not there; ``prefix`` begins
    the names of fields.
    """

    def __init__(
        self,
        path: str,
        count: int,
        get: Callable[[str], np.ndarray | None],
        *,
        prefix: str = "fields/",
    ) -> None:
        self._path, self._count, self._get, self._prefix = path, count, get, prefix

    def optional(
        self, name: str, dtype: str | np.dtype[np.generic], *shape: int
    ) -> np.ndarray | None:
        """The column ``name``, (count, *shape); None if there is none."""
        array = self._get(name)
        if array is None:
            return None
        kind, wanted = np.dtype(dtype), (self._count, *shape)
        nbytes = kind.itemsize * math.prod(shape)
        as_bytes = (self._count, nbytes), (self._count * nbytes,)
        if array.dtype == np.uint8 and array.shape in as_bytes:
            array = np.ascontiguousarray(array).reshape(-1).view(kind).reshape(wanted)
        if array.dtype != kind or array.shape != wanted:
            raise self._damaged(name, f"{kind} {wanted}", array)
        return array

    def column(self, name: str, dtype: str | np.dtype[np.generic], *shape: int) -> np.ndarray:
        """As ``optional``; a missing column raises StoreError too."""
        array = self.optional(name, dtype, *shape)
        if array is None:
            raise StoreError(
                f"the column {name!r} is missing: the store is damaged, pack it again",
                path=self._path,
            )
        return array

    def blobs(self, data: str, ends: str) -> Blobs | None:
        """Byte strings, one for each record; None if one of the two columns is missing."""
        values, positions = self._get(data), self.optional(ends, "<i8")
        if values is None or positions is None:
            return None
        if values.dtype != np.uint8 or values.ndim != 1:
            raise self._damaged(data, "uint8 (n,)", values)
        return Blobs(values, positions)

    def fields(self, fields: Sequence[Field]) -> Mapping[str, FieldColumn]:
        columns: dict[str, FieldColumn] = {}
        for field in fields:
            name = f"{self._prefix}{field.name}"
            values = (
                self.blobs(f"{name}/data", f"{name}/ends")
                if field.dtype is None
                else self.optional(name, field.dtype, *field.shape)
            )
            if values is None:
                raise self._damaged(name, "a field", None)
            columns[field.name] = FieldColumn(field, values)
        return columns

    def _damaged(self, name: str, expected: str, found: np.ndarray | None) -> StoreError:
        what = "nothing" if found is None else f"{found.dtype} {found.shape}"
        return StoreError(
            f"expected {expected} in the column {name!r} of {self._count} records, found {what}: "
            "the store is damaged, pack it again",
            path=self._path,
        )


def checked_labels(labels: np.ndarray | None, name: str, count: int, path: str) -> np.ndarray:
    """``labels`` of any program, as a store returns them; None: what has their name is no array."""
    if labels is None:
        raise StoreError(
            f"expected an array of labels under the name {name!r}, found something else: if it was "
            "one copy the store again, else give it another name",
            path=path,
        )
    try:
        labels = label_column(labels)
    except UsageError as error:
        raise StoreError(str(error), path=path) from error
    if len(labels) != count:
        raise StoreError(
            f"expected {count} labels, as there are images, found {len(labels)}", path=path
        )
    return labels


def checked_classes(classes: object, path: str) -> list[str]:
    if not isinstance(classes, (list, tuple)) or not all(map(is_text, classes)):
        # reprlib looks only a few levels into values that are nested or refer to themselves
        raise StoreError(
            f"expected a list of class names, found {reprlib.repr(classes)}", path=path
        )
    return list(classes)


@dataclasses.dataclass(frozen=True)
class StoreHeader:
    """What ``ArrayWriter.header`` wrote; empty for a store of another program.

    ``sums`` are the checksums of the columns by name; None: the store is another program's.
    """

    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fields: Sequence[Field] = ()
    sums: Mapping[str, Any] | None = None

    @classmethod
    def read(
        cls, text: object, name: str, version: int, path: str, has: Callable[[str], bool]
    ) -> StoreHeader:
        """The header, checked; ``has`` says whether the store has a column.

        ``text`` is JSON or the decoded object; None if the store has no header.
        """
        if text is None:
            if has("crc32c"):  # only fastload writes it
                raise StoreError(
                    "expected the header 'fastload' beside the column 'crc32c', found none: "
                    "deleted or renamed since the store was written; copy it again from an intact "
                    "copy, or pack it again",
                    path=path,
                )
            return cls()
        try:
            header = json.loads(text) if isinstance(text, (bytes, str)) else text
            if not isinstance(header, dict):
                raise TypeError(f"a {type(header).__name__}")
            if header["format"] != f"fastload-{name}":
                raise ValueError(f"a format of {header['format']!r}")
            if int(header["version"]) != version:
                raise StoreError(
                    f"expected version {version} of fastload-{name}, found {header['version']}: "
                    "update fastload, or pack it again",
                    path=path,
                )
            metadata, sums, listed = header["metadata"], header.get("crc32c"), header.get("columns")
            if not isinstance(metadata, dict):
                raise ValueError("metadata that are not an object")
            if not isinstance(sums, dict):
                raise ValueError("no checksums")
            if not isinstance(listed, list) or not all(isinstance(it, str) for it in listed):
                raise ValueError("no list of columns")
            fields = [Field.from_json(field) for field in header["fields"]]
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise StoreError(
                f"expected the header of a fastload-{name} store, found {error}: pack it again",
                path=path,
            ) from error
        lost = [name for name in listed if not has(name)]
        if lost:
            raise StoreError(
                f"expected the {'columns' if lost[1:] else 'column'} "
                f"{', '.join(map(repr, lost))} that the store was written with, found none: "
                "deleted or renamed since; copy the store from an intact copy, or pack it again",
                path=path,
            )
        return cls(metadata, fields, sums)


def image_table(
    path: str,
    get: Callable[[str], np.ndarray | None],
    keys: Callable[[], Blobs],
    header: StoreHeader,
    *,
    present: Collection[str],
    nbytes: np.ndarray,
    axes: Axes | None,
    **others: Any,
) -> Table:
    """The table of images with named arrays beside them.

    Args:
        get: name -> array, or None if there is none.
        keys: reads them, when they are used.
        present: the names of the arrays.
        nbytes: int64 (n,), of each record.
        axes: of raw pixels; None of image files, whose sizes and kinds are arrays.
    """
    count = len(nbytes)
    reader = ColumnReader(path, count, get)
    labels = first_of(LABELS, present)
    if axes is None:
        sizes, kinds = reader.optional("sizes", "<i4", 2), reader.optional("kinds", "u1")
    else:
        sizes = constant(count, (axes.width, axes.height), "<i4")
        kinds = constant(count, RAW, "u1")
    return Table(
        nbytes=nbytes,
        sizes=sizes,
        kinds=kinds,
        keys=DeferredStrings(count, keys, path),
        labels=checked_labels(get(labels), labels, count, path) if labels else None,
        crc32c=reader.optional("crc32c", "<u4"),
        fields=reader.fields(header.fields),
        metadata=header.metadata,
        sums=Sums(path, header.sums),
        **others,
    )
