"""torch.save files: reader and writer of ``NAME.pth``. SPECIFICATION.md has the layout.

``torch.load("NAME.pth", weights_only=True, mmap=True)`` returns a dict with the images as a uint8
tensor (N, 3, H, W). Its strides are those of ``channels_last``: in the file an image lies as
(H, W, 3), which the engines read in place.

A .pth file is a zip archive, not compressed: ``ROOT/data.pkl`` is a pickle of the saved object, in
which a tensor is a call of ``torch._utils._rebuild_tensor_v2`` on a storage, and each storage lies
in an entry ``ROOT/data/KEY``. The unpickler here knows only the names a tensor needs and puts
stand-ins for them; it calls nothing of what a pickle asks for. Sources: the zip file format
(PKWARE's APPNOTE, 4.3.7 and 4.4), ``torch/serialization.py``.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import io
import math
import os
import pickle
import reprlib
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

import numpy as np

from ...errors import StoreError
from .._columns import Columns
from .._fields import Blobs, encode_text, numbered_keys
from .._mapped import MappedColumns
from .._read import open_regular, read_places
from ..base import Spans
from ..registry import Format
from ..table import Indirect, Table, TableStore, constant
from ._array_writer import ArrayWriter, apart, array_writer, read_shards, to_json
from ._image_table import (
    CLASSES,
    IMAGES,
    Axes,
    StoreHeader,
    arrays_of,
    axes_of,
    checked_classes,
    first_of,
    image_table,
)
from ._pickle_shape import check_shape

_LOCAL = struct.Struct("<4s5H3I2H")  # APPNOTE 4.3.7
_ALIGN = 64  # bytes, as torch aligns storages
_MAX_PICKLE = 1 << 30
_FREE = 1 << 20  # elements that a tensor may have without stored ones
_MAPPED = 1 << 16  # bytes of a tensor that is mapped instead of read
_STORAGES = {
    "BoolStorage": "?", "ByteStorage": "|u1", "CharStorage": "|i1", "ShortStorage": "<i2",
    "IntStorage": "<i4", "LongStorage": "<i8", "HalfStorage": "<f2", "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class StorageRef:
    """A storage of a file: its dtype, the key of its entry, how many elements."""

    dtype: np.dtype[Any]
    key: str
    count: int


@dataclasses.dataclass(frozen=True)
class TensorRef:
    """A tensor of a file; ``start`` and ``strides`` count elements of the storage."""

    storage: StorageRef
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def last(self) -> int:
        """Where the last element lies; without elements, no place in the storage."""
        return self.start + sum((n - 1) * s for n, s in zip(self.shape, self.strides))


class PthFile:
    """The content of a .pth file.

    Attributes:
        content: what was saved, with a ``TensorRef`` for each tensor.
        mapped: the columns that ``array`` leaves in the file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.mapped = MappedColumns(path)
        with open(path, "rb", opener=open_regular) as file:
            try:
                with zipfile.ZipFile(file) as archive:
                    self._entries = {info.filename: info for info in archive.infolist()}
            except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError) as error:
                raise self._bad(
                    f"expected a zip archive as torch.save writes it, found another file ({error})"
                    ": it was truncated, or saved by a torch before 1.6"
                ) from error
        roots = [name.rpartition("/")[0] for name in self._entries if name.endswith("/data.pkl")]
        if len(roots) != 1:
            raise self._bad("expected one data.pkl, as torch.save writes it, in the zip archive")
        self._root = roots[0]
        if f"{self._root}/byteorder" in self._entries:
            order = self._bytes("byteorder", 100)
            if order != b"little":
                raise self._bad(f"expected little-endian numbers, found {order!r}")
        pickled = self._bytes("data.pkl", _MAX_PICKLE)
        try:
            check_shape(pickled)
            self.content = _Unpickler(io.BytesIO(pickled), encoding="utf-8").load()
        except Exception as error:  # a damaged pickle may raise anything
            raise self._bad(
                f"expected tensors, texts, numbers and lists or dicts of them, found {error}"
            ) from error

    def _bad(self, message: str, offset: int | None = None) -> StoreError:
        return StoreError(message, path=self.path, offset=offset)

    def place(self, name: str) -> tuple[int, int]:
        info = self._entries.get(f"{self._root}/{name}")
        if info is None:
            raise self._bad(f"expected {name!r} in the zip archive, found none")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise self._bad(f"{name!r} is compressed or encrypted: save it again with torch.save")
        with open(self.path, "rb", buffering=0, opener=open_regular) as file:
            size = os.fstat(file.fileno()).st_size
            # Negative if bytes were removed from the archive.
            head = os.pread(file.fileno(), _LOCAL.size, max(info.header_offset, 0))
        outside = f"expected {name!r} inside a file of {size} bytes: the zip archive is damaged"
        if info.header_offset < 0 or len(head) != _LOCAL.size or not head.startswith(b"PK\3\4"):
            raise self._bad(outside, info.header_offset)
        *_, name_nbytes, extra_nbytes = _LOCAL.unpack(head)
        offset = info.header_offset + _LOCAL.size + name_nbytes + extra_nbytes
        if offset + info.file_size > size:
            raise self._bad(outside, offset)
        return offset, info.file_size

    def _bytes(self, name: str, limit: int) -> bytes:
        offset, nbytes = self.place(name)
        if nbytes > limit:
            raise self._bad(f"expected at most {limit} bytes in {name!r}, found {nbytes}")
        return self._read(offset, nbytes)

    def _read(self, offset: int, nbytes: int) -> bytes:
        with open(self.path, "rb", opener=open_regular) as file:
            file.seek(offset)
            return file.read(nbytes)

    def begin(self, tensor: TensorRef) -> int:
        """Where the storage of a tensor starts in the file."""
        storage = tensor.storage
        # Strides of 0 repeat elements, as for gray images with three channels, but not a million
        # times.
        if math.prod(tensor.shape) > 3 * storage.count + _FREE:
            raise self._bad(
                f"expected a tensor of the elements in data/{storage.key}, which are "
                f"{storage.count}, found a shape of {tensor.shape}"
            )
        offset, nbytes = self.place(f"data/{storage.key}")
        if nbytes != storage.count * storage.dtype.itemsize:
            raise self._bad(
                f"expected {storage.count} elements of {storage.dtype} in data/{storage.key}, "
                f"found {nbytes} bytes"
            )
        return offset

    def check(self, name: str, data: bytes | np.ndarray) -> None:
        """Compare ``data``, the content of an entry, with its checksum in the zip archive."""
        crc = zlib.crc32(data if isinstance(data, bytes) else data.data)
        if crc != self._entries[f"{self._root}/{name}"].CRC:
            raise self._bad(
                f"{name!r} changed since it was written: its CRC-32 does not match; copy it again "
                "or pack it again",
                self.place(name)[0],
            )

    def check_content(self) -> None:
        """Compare the pickle of ``content`` with its checksum. Raises StoreError."""
        self.check("data.pkl", self._bytes("data.pkl", _MAX_PICKLE))

    def array(self, tensor: TensorRef, *, check: bool = False) -> np.ndarray:
        """A tensor, mapped if it is large; ``check``: compared with its checksum first."""
        storage = tensor.storage
        offset, nbytes = self.begin(tensor), storage.count * storage.dtype.itemsize
        data: bytes | np.ndarray
        if nbytes >= _MAPPED:
            data = self.mapped.array(np.dtype(np.uint8), offset, (nbytes,))
        else:
            data = self._read(offset, nbytes)
        if check:
            self.check(f"data/{storage.key}", data)
        try:
            return strided(data, tensor, tensor.start)
        except ValueError as error:
            raise self._bad(f"no tensor: {error}") from error


def strided(data: bytes | np.ndarray, tensor: TensorRef, start: int) -> np.ndarray:
    """The tensor's view of ``data``, its first element at ``start`` (in elements). Read-only."""
    itemsize = tensor.storage.dtype.itemsize
    if 0 in tensor.shape:
        return np.empty(tensor.shape, tensor.storage.dtype)
    last = start + tensor.last - tensor.start
    if (last + 1) * itemsize > len(data):
        raise ValueError("the file was truncated")
    strides = [stride * itemsize for stride in tensor.strides]
    view: np.ndarray = np.ndarray(
        tensor.shape, tensor.storage.dtype, data, start * itemsize, strides
    )
    return view


def _rebuild(
    storage: object, start: int, shape: Iterable[int], strides: Iterable[int], *_: object
) -> TensorRef:
    if not isinstance(storage, StorageRef):
        raise ValueError("a tensor without a storage")
    tensor = TensorRef(storage, start, tuple(shape), tuple(strides))
    numbers = [tensor.start, *tensor.shape, *tensor.strides]
    if len(tensor.shape) != len(tensor.strides) or len(tensor.shape) > 16:
        shown = reprlib.repr(tensor.shape), reprlib.repr(tensor.strides)
        raise ValueError(f"shape {shown[0]} and strides {shown[1]}")
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"no sizes: {reprlib.repr(numbers)}")
    if 0 not in tensor.shape and tensor.last >= storage.count:
        raise ValueError(f"a tensor up to {tensor.last} in a storage of {storage.count}")
    return tensor


def _encode(text: object, encoding: object) -> bytes:
    """Replaces ``_codecs.encode``, by which bytes are pickled."""
    if encoding != "latin1" or not isinstance(text, str):
        raise ValueError(f"an encoding of {reprlib.repr(encoding)}")
    return text.encode("latin1")


_KNOWN: dict[tuple[str, str], object] = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch", "Size"): tuple,
    **{("torch", name): np.dtype(dtype) for name, dtype in _STORAGES.items()},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        stand_in = _KNOWN.get((module, name))
        if stand_in is None:
            raise ValueError(f"the object {module}.{name}")
        return stand_in

    def persistent_load(self, reference: Any) -> StorageRef:
        kind, dtype, key, _, count = reference
        if kind != "storage" or not isinstance(dtype, np.dtype) or not isinstance(key, str):
            raise ValueError(f"a reference to {reprlib.repr(kind)}")
        if type(count) is not int or count < 0:
            raise ValueError(f"a storage of {reprlib.repr(count)} elements")
        return StorageRef(dtype, key, count)


class _Pickler(pickle.Pickler):
    """Pickles a ``TensorRef`` as torch.save pickles a tensor."""

    def persistent_id(self, value: object) -> tuple[object, ...] | None:
        if not isinstance(value, StorageRef):
            return None
        import torch

        kind = next(name for name, stored in _STORAGES.items() if np.dtype(stored) == value.dtype)
        return "storage", getattr(torch, kind), value.key, "cpu", value.count

    def reducer_override(self, value: object) -> Any:
        if not isinstance(value, TensorRef):
            return NotImplemented
        import torch

        hooks: collections.OrderedDict[object, object] = collections.OrderedDict()
        arguments = value.storage, value.start, value.shape, value.strides, False, hooks
        return torch._utils._rebuild_tensor_v2, arguments


NAME = "pth"
_ROOT = "archive"  # of the zip archive
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
    begin, count = file.begin(images), axes.count
    offset, indirect = np.zeros(count, np.int64), None
    if _in_place(axes, images):
        offset += begin + images.start + np.arange(count, dtype=np.int64) * axes.nbytes
    elif count:
        indirect = Indirect(
            f"{os.path.basename(path)} has to be rearranged in Python, because its images do not "
            "lie as (height, width, 3): pack it again, or save "
            "images.contiguous(memory_format=torch.channels_last)",
            functools.partial(_read_images, path, axes, images, begin),
        )
    own = "fastload" in content
    if own:  # torch can be told to write no checksums
        file.check_content()
    header = StoreHeader.read(
        content.get("fastload"), NAME, PthWriter.version, path, content.__contains__
    )

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


def _read_images(
    path: str, axes: Axes, images: TensorRef, begin: int, indices: np.ndarray
) -> list[bytes]:
    """Images that lie in another order, rearranged."""
    item = TensorRef(images.storage, 0, images.shape[1:], images.strides[1:])
    spans = Spans(
        file=np.zeros(len(indices), np.int32),
        offset=begin + images.start + indices * images.strides[0],
        nbytes=np.full(len(indices), 1 + item.last),
    )
    records = read_places([path], indices, spans)
    return [axes.rgb(strided(data, item, 0)) for data in records]


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


class PthWriter(ArrayWriter):
    """Writes a .pth file, one storage after the other. See ``open_writer`` for the arguments."""

    format = NAME
    read = staticmethod(read_pth)

    _file: Any = None
    _archive: Any = None
    _images: Any = None  # the storage that is being written
    _storages = 0

    def _begin(self) -> None:
        self._file = open(self._partial.file("data"), "wb", buffering=1 << 20)
        self._archive = zipfile.ZipFile(self._file, "w", zipfile.ZIP_STORED, allowZip64=True)
        self._images = self._storage()

    def _storage(self) -> IO[bytes]:
        """A new storage, to be written next and closed; its size need not be known before."""
        info = zipfile.ZipInfo(f"{_ROOT}/data/{self._storages}")
        # The extra field follows the name: padding with torch's tag, then zipfile's own record of
        # 20 bytes for large files.
        fixed = self._file.tell() + _LOCAL.size + len(info.filename) + 20 + 4
        padding = -fixed % _ALIGN
        info.extra = struct.pack("<2sH", b"FB", padding) + b"Z" * padding
        self._storages += 1
        stream: IO[bytes] = self._archive.open(info, "w", force_zip64=True)
        return stream

    def _write(self, data: Sequence[bytes | memoryview]) -> None:
        for item in data:
            self._images.write(item)

    def _tensor(self, array: np.ndarray) -> TensorRef:
        """Write ``array`` as a storage."""
        array = np.ascontiguousarray(array)
        with self._storage() as stream:
            stream.write(array.reshape(-1).view(np.uint8).data)
        strides = tuple(stride // array.dtype.itemsize for stride in array.strides)
        storage = StorageRef(array.dtype, str(self._storages - 1), array.size)
        return TensorRef(storage, 0, array.shape, strides)

    def _close(self, columns: Columns) -> str:
        if self._file is None:
            self._begin()
        self._images.close()
        width, height = self._size or (1, 1)
        count, nbytes = len(columns), width * height * 3
        storage = StorageRef(np.dtype("|u1"), "0", count * nbytes)
        strides = nbytes, 1, width * 3, 3
        images = TensorRef(storage, 0, (count, 3, height, width), strides)
        arrays = arrays_of(columns, dtypes=_DTYPES, raw=True)
        arrays["crc32c"] = columns.crc32c.astype("<i8")  # storages of torch have no uint32
        content: dict[str, Any] = {"images": images, "fields": {}}
        for name, array in arrays.items():
            *groups, last = name.split("/", 2)
            target = content
            for group in groups:
                target = target.setdefault(group, {})
            target[last] = self._tensor(array)
        header = to_json(self.header(["images", "classes", "keys", *arrays])).decode("ascii")
        content |= {"classes": self._classes, "keys": columns.all_keys(), "fastload": header}
        pickled = io.BytesIO()
        _Pickler(pickled, protocol=2).dump(content)
        for name, data in (
            ("data.pkl", pickled.getvalue()), ("byteorder", b"little"), ("version", b"3\n"),
        ):  # fmt: skip
            self._archive.writestr(zipfile.ZipInfo(f"{_ROOT}/{name}"), data)
        self._archive.close()
        self._file.close()
        return "data"

    def _release(self) -> None:
        """Without finishing the archive: the file is deleted, so errors no longer matter."""
        for opened in (self._images, self._archive, self._file):
            if opened is not None:
                with contextlib.suppress(OSError, ValueError):
                    opened.close()
        self._images = self._archive = self._file = None


FORMAT = Format(
    name="pth",
    title="torch.save",
    suffixes=(".pth",),
    open=functools.partial(TableStore, read=read_pth),
    writer=functools.partial(array_writer, PthWriter),
    options=frozenset({"shards"}),
    pixels="only",
    apart=apart(PthWriter),
)
