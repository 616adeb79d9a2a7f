"""torch.save files: reader and writer of ``NAME.pth``. SPECIFICATION.md has the layout.

``torch.load("NAME.pth", weights_only=True, mmap=True)`` returns a dict with the images as a uint8
tensor (N, 3, H, W). Its strides are those of ``channels_last``: in the file an image lies as
(H, W, 3), which the engines read in place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import StoreError
from .._column_reader import checked_classes
from .._columns import Columns
from .._fields import Blobs, encode_text, numbered_keys
from .._read import open_regular
from ..registry import Format
from ..table import Indirect, Table, TableStore, constant
from ._array_shards import apart, array_writer, read_shards
from ._array_writer import ArrayWriter, to_json
from ._image_table import (
    CLASSES,
    IMAGES,
    Axes,
    Header,
    arrays_of,
    axes_of,
    first_of,
    image_table,
)
from ._pth_file import PthFile, PthWriter, TensorRef, strided

NAME = "pth"
VERSION = 1
_MAX_LISTED = 1 << 26  # numbers in lists
_DTYPES = "bool i1 u1 i2 i4 i8 f2 f4 f8"


def read_pth(path: str) -> Table:
    """The table of a .pth file with a uint8 tensor of images, or of shards."""
    if not os.path.exists(path):
        return read_shards(path, NAME, read_pth)
    file = PthFile(path)
    content = _content(file)
    name = first_of(IMAGES, content)
    images = content[name] if name is not None else None
    if not isinstance(images, TensorRef):
        raise StoreError(
            f"expected a tensor of images ({', '.join(IMAGES)}), found "
            f"{', '.join(list(content)[:20]) or 'nothing'}: is it a model?",
            path=path,
        )
    axes = axes_of(images.shape, images.storage.dtype, path, str(name))
    begin = file.begin(images)
    offset, indirect = np.zeros(axes.count, np.int64), None
    if _in_place(axes, images):
        offset += begin + images.start + np.arange(axes.count, dtype=np.int64) * axes.nbytes
    elif axes.count:
        indirect = Indirect(
            f"{os.path.basename(path)} has to be rearranged in Python, because its images do not "
            "lie as (height, width, 3): pack it again, or save "
            "images.contiguous(memory_format=torch.channels_last)",
            functools.partial(_read_images, path, axes, images, begin),
        )
    return _table(file, content, axes, offset, indirect)


def _read_images(
    path: str, axes: Axes, images: TensorRef, begin: int, indices: np.ndarray
) -> list[bytes]:
    """Images that lie in another order, rearranged."""
    item = TensorRef(images.storage, 0, images.shape[1:], images.strides[1:])
    nbytes = 1 + sum((n - 1) * s for n, s in zip(item.shape, item.strides))
    try:
        with open(path, "rb", opener=open_regular) as file:
            rearranged = []
            for index in indices.tolist():
                file.seek(begin + images.start + index * images.strides[0])
                rearranged.append(axes.rgb(strided(file.read(nbytes), item, 0)))
            return rearranged
    except (OSError, ValueError) as error:
        raise StoreError(f"the image cannot be read: {error}", path=path) from error


def _content(file: PthFile) -> dict[str, Any]:
    """What was saved, as a dict with flat names; a tuple is taken as images and labels."""
    content = file.content
    if isinstance(content, TensorRef):
        content = (content,)
    if isinstance(content, (tuple, list)):
        content = dict(zip(("images", "labels"), content))
    if not isinstance(content, Mapping):
        raise StoreError(f"expected a dict, found {type(content).__name__}", path=file.path)
    flat = {name: value for name, value in content.items() if isinstance(name, str)}
    fields = flat.pop("fields", None)
    for name, value in fields.items() if isinstance(fields, Mapping) else ():
        if not isinstance(name, str):
            continue
        if isinstance(value, Mapping):
            flat |= {f"fields/{name}/{part}": tensor for part, tensor in value.items()}
        else:
            flat[f"fields/{name}"] = value
    return flat


def _table(
    file: PthFile,
    content: dict[str, Any],
    axes: Axes,
    offset: np.ndarray,
    indirect: Indirect | None,
) -> Table:
    path, count = file.path, axes.count
    own = "fastload" in content
    if own:  # torch can be told to write no checksums
        file.check_content()
    header = Header.read(content.get("fastload"), NAME, VERSION, path, content.__contains__)

    def get(name: str) -> np.ndarray | None:
        value = content.get(name)
        if isinstance(value, TensorRef):
            array = file.array(value, check=own)
            # Storages of torch have no uint32.
            is_crc = name == "crc32c" and array.dtype == np.int64
            return array.astype("<u4") if is_crc else array
        return _numbers(value, count, path) if isinstance(value, (list, tuple)) else None

    there = {name for name, value in content.items() if value is not None}
    classes, keys = first_of(CLASSES, there), content.get("keys")
    if keys is not None and not (isinstance(keys, list) and len(keys) == count):
        raise StoreError(f"expected a list of {count} keys", path=path)
    table = image_table(
        path, get, functools.partial(_keys, path, count), header, present=there, axes=axes,
        nbytes=constant(count, 0 if indirect else axes.nbytes, "<i8"),
        format=NAME, files=[path], file=constant(count, 0, "<i4"), offset=offset, indirect=indirect,
        classes=checked_classes(content[classes], path) if classes else [],
    )  # fmt: skip
    return dataclasses.replace(table, watch=file.mapped.watch)  # set once a column was mapped


def _numbers(value: Sequence[Any], count: int, path: str) -> np.ndarray:
    """A list of numbers, or of equally long lists of them, as an array; else StoreError."""
    width = len(value[0]) if len(value) and isinstance(value[0], (list, tuple)) else None
    rows = [value] if width is None else value
    if (
        len(value) != count
        or count * (width or 1) > _MAX_LISTED
        or any(not isinstance(row, (list, tuple)) or len(row) != len(rows[0]) for row in rows)
        or any(not isinstance(number, (int, float)) for row in rows for number in row)
    ):
        raise StoreError(
            f"expected {count} numbers, or equally long lists of numbers, found "
            f"{reprlib.repr(value)}",
            path=path,
        )
    try:
        return np.asarray(value)
    except OverflowError as error:
        raise StoreError(f"a number is too large: {error}", path=path) from error


def _keys(path: str, count: int) -> Blobs:
    """The keys of a file that was read before."""
    keys = _content(PthFile(path)).get("keys")
    if keys is None:
        return numbered_keys(count)
    try:
        return Blobs.of([encode_text(key if type(key) is str else str(int(key))) for key in keys])
    except (TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"expected names as texts: {error}", path=path) from error


def _in_place(axes: Axes, images: TensorRef) -> bool:
    """Whether each image lies as (height, width, 3), one after the other."""
    if axes.channels != 3:
        return False
    strides = images.strides
    if axes.first:
        strides = (strides[0], strides[2], strides[3], strides[1])
    return strides == (axes.nbytes, axes.width * 3, 3, 1)


class PthStoreWriter(ArrayWriter):
    """Writes a .pth file. See ``open_writer`` for the arguments."""

    format = NAME
    version = VERSION
    read = staticmethod(read_pth)

    _file: Any = None
    _writer: PthWriter | None = None

    def _begin(self) -> None:
        self._file = open(self._partial.file("data"), "wb", buffering=1 << 20)
        self._writer = PthWriter(self._file)
        self._writer.begin()

    def _write(self, data: Sequence[bytes | memoryview]) -> None:
        assert self._writer is not None  # after _begin
        for item in data:
            self._writer.write(item)

    def _close(self, columns: Columns) -> str:
        if self._writer is None:
            self._begin()
        writer = self._writer
        assert writer is not None  # after _begin
        width, height = self._size or (1, 1)
        count, nbytes = len(columns), width * height * 3
        images = writer.view(
            writer.end(), np.dtype("|u1"), count * nbytes,
            (count, 3, height, width), (nbytes, 1, width * 3, 3),
        )  # fmt: skip
        arrays = arrays_of(columns, dtypes=_DTYPES, raw=True)
        arrays["crc32c"] = columns.crc32c.astype("<i8")  # storages of torch have no uint32
        content: dict[str, Any] = {"images": images, "fields": {}}
        for name, array in arrays.items():
            outer, _, inner = name.partition("/")
            target = content
            if inner:
                outer, _, part = inner.partition("/")
                target = content["fields"]
                if part:
                    target, outer = target.setdefault(outer, {}), part
            target[outer] = writer.tensor(array)
        content |= {
            "classes": self._classes,
            "keys": columns.all_keys(),
            "fastload": to_json(self.header(["images", "classes", "keys", *arrays])).decode(
                "ascii"
            ),
        }
        writer.finish(content)
        self._file.close()
        return "data"

    def _release(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abandon()
            with contextlib.suppress(OSError):  # buffered data of a file that is deleted
                self._file.close()


FORMAT = Format(
    name="pth",
    title="torch.save",
    suffixes=(".pth",),
    open=functools.partial(TableStore, read=read_pth),
    writer=functools.partial(array_writer, PthStoreWriter),
    options=frozenset({"shards"}),
    pixels="only",
    apart=apart(PthStoreWriter),
)
