"""The sidecar ``NAME.fastload``: the columns of a store whose own format has no place for them.

SPECIFICATION.md has the layout and says what ``append`` does with it. A sidecar is mapped when it
is read; every length is checked first.
"""

from __future__ import annotations

import dataclasses
import json
import math
import mmap
import os
import re
import struct
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from ..errors import StoreError, StoreNotFoundError
from ._columns import field_arrays, fields_of
from ._crc import crc32c
from ._fields import Blobs, Field, is_text
from ._mapped import TruncationWatch, map_file
from ._read import open_regular
from ._sums import Sums
from .base import Fetch
from .table import FINGERPRINT_NBYTES, Table, fingerprint

SUFFIX = ".fastload"
_HEAD = struct.Struct("<8sIIQQ")  # magic, version, CRC32C and bytes of the header, of the file
_MAGIC = b"FLSIDE\r\n"
_VERSION = 1
_ALIGN = 64
_MAX_HEADER = 1 << 28
_SPOT_CHECKS = 32  # records that are read if the ends of a file have changed
_MAX_CHECKED = 1 << 28  # bytes of each
_NUMBERED = re.compile(r"-\d{5,}(-of-\d{5,})?\.[^.]*$")  # the name of a shard
_COLUMNS = ("file", "offset", "nbytes", "labels", "sizes", "kinds", "crc32c")
# What reading a damaged header raises. JSON has infinite numbers too; a dtype may be bad syntax.
_DAMAGE = (ValueError, TypeError, KeyError, OverflowError, RecursionError, SyntaxError)


def sidecar_of(path: str) -> str:
    """The path of the sidecar of the store ``path``."""
    return path + SUFFIX


def next_sidecar_of(path: str) -> str:
    """The path of a sidecar that fits ``path`` only once its data file is replaced."""
    return sidecar_of(path) + "-next"


def write_sidecar(target: str, table: Table, names: Sequence[str]) -> None:
    """Write the sidecar of a store of files called ``names`` into the file ``target``, durably."""
    prints = table.fingerprints
    prints = [fingerprint(file) for file in table.files] if prints is None else prints
    keys = table.keys.whole()
    arrays = {name: array for name in _COLUMNS if (array := getattr(table, name)) is not None} | {
        "keys": keys.data,
        "key_ends": keys.ends,
    }
    arrays |= field_arrays(table.fields)
    header: dict[str, Any] = {
        "format": table.format,
        "classes": list(table.classes),
        "metadata": dict(table.metadata),
        "files": [[os.fsencode(name).decode("utf-8", "surrogateescape"), *numbers]
                  for name, numbers in zip(names, prints, strict=True)],
        "fields": [column.field.as_json() for column in table.fields.values()],
    }  # fmt: skip
    with open(target, "wb") as file:
        _write(file, header, arrays)
        file.flush()
        os.fsync(file.fileno())


def _write(file: BinaryIO, header: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    listed: list[list[Any]] = []
    views = [memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
             for array in arrays.values()]  # fmt: skip
    for (name, array), view in zip(arrays.items(), views):
        listed.append([name, array.dtype.str, list(array.shape), crc32c(view)])
    text = json.dumps({**header, "arrays": listed}).encode("ascii")
    at = _HEAD.size + len(text)
    total = at
    for view in views:
        total += -total % _ALIGN + len(view)
    file.write(_HEAD.pack(_MAGIC, _VERSION, crc32c(text), len(text), total))
    file.write(text)
    for view in views:
        padding = -at % _ALIGN
        file.write(bytes(padding))
        file.write(view)
        at += padding + len(view)


def read_sidecar(path: str, format: str) -> Table | None:
    """The table in the sidecar of the store ``path``; its bounds are left to ``Table.checked``.

    None if there is no sidecar; None with a warning if the files are not those it was written for.
    If another one waits (``next_sidecar_of``), the one that fits the files is used.
    """
    changed = None
    mine = sidecar_of(path)  # last once more: the one that waited may have been renamed meanwhile
    for place in (mine, next_sidecar_of(path), mine):
        table = _read(path, place, format)
        wrong = None if table is None else _changed(table)
        if table is not None and wrong is None:
            return table
        changed = changed or wrong
    if changed is not None:
        warnings.warn(
            f"{changed!r} has changed since {mine!r} was written: the sidecar is ignored and the "
            "files are scanned each time they are opened, without checksums; put the files back, "
            "or pack the store again",
            stacklevel=6,
        )
    return None


def _read(path: str, place: str, format: str) -> Table | None:
    """The table in the file ``place``, whether it fits or not; None if there is no such file."""
    try:
        mapped = map_file(place)
    except StoreNotFoundError:
        return None
    try:
        header, arrays = _parse(memoryview(mapped))
        table = _table(path, header, arrays)
        if isinstance(mapped, mmap.mmap):
            table = dataclasses.replace(table, watch=TruncationWatch(mapped, place))
    except _DAMAGE as error:
        raise StoreError(
            f"the sidecar is damaged or was not written by this version of fastload ({error}): "
            "copy the store again or pack the store again",
            path=place,
        ) from error
    if table.format != format:
        raise StoreError(
            f"expected the sidecar of a store of format {format}, found {table.format[:100]}",
            path=place,
        )
    return table


def read_manifest(path: str, format: str, *, place: str) -> Table:
    """The table of ``path`` in the file ``place``, whose data files lie in other folders."""
    table = _read(path, place, format)
    if table is None:
        raise StoreError("expected a manifest, found nothing", path=place)
    return table


def _changed(table: Table) -> str | None:
    """A file that is not the one ``table`` was written for; None if all are."""
    for number, expected in enumerate(table.fingerprints or ()):
        current = fingerprint(table.files[number])
        if current != expected and not (current[0] == expected[0] and _only_damaged(table, number)):
            return table.files[number]
    return None


def listed_in(place: str) -> list[str]:
    """The files that the sidecar ``place`` is about, relative to its folder."""
    try:
        with open(place, "rb", opener=open_regular) as file:
            data = file.read(_HEAD.size)
            nbytes = _HEAD.unpack(data)[3] if len(data) == _HEAD.size else 0
            data += file.read(min(nbytes, _MAX_HEADER))
            size = os.fstat(file.fileno()).st_size
        names = [str(name) for name, *_ in _header(memoryview(data), size)[0]["files"]]
        if any(os.path.isabs(name) or ".." in name.split("/") for name in names):
            raise ValueError("a data file outside of the folder")
    except _DAMAGE as error:
        raise StoreError(f"the sidecar is damaged ({error})", path=place) from error
    return names


def need_by_sidecar(path: str, format: str, need: Fetch) -> bool:
    """Fetch what ``read_sidecar`` reads of the store ``path``, of which nothing is there yet.

    False: no sidecar fits its files, so they have to be fetched whole.
    """
    place = sidecar_of(path)
    table = None
    if os.path.lexists(place):
        need([(place, 0, -1)])
        table = _read(path, place, format)
    if table is None:
        return False
    sizes = [size for size, _, _ in table.fingerprints or ()]
    need(
        [
            (file, at, FINGERPRINT_NBYTES)
            for file, size in zip(table.files, sizes, strict=True)
            for at in (0, max(0, size - FINGERPRINT_NBYTES))
        ]
    )
    current = [fingerprint(file) for file in table.files]
    return current == list(table.fingerprints or ())


def is_manifest(path: str) -> bool:
    """Whether the sidecar of ``path`` belongs to a set of shards rather than to one file."""
    place = sidecar_of(path)
    if os.path.lexists(path) or not os.path.isfile(place):
        return False
    try:
        names = listed_in(place)
    except StoreError:
        return True  # damaged: reading it raises the error
    return names != [os.path.basename(path)] and not are_of_one(names)


def are_of_one(names: Sequence[str]) -> bool:
    """Whether these are the files of a store of one file, whatever it is called now."""
    return len(names) == 1 and os.sep not in names[0] and not _NUMBERED.search(names[0])


def _header(data: memoryview, size: int) -> tuple[dict[str, Any], int]:
    if len(data) < _HEAD.size:
        raise ValueError(f"expected at least {_HEAD.size} bytes, found {len(data)}")
    magic, version, crc, nbytes, total = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise ValueError(f"expected {_MAGIC!r} version {_VERSION}, found {magic!r} {version}")
    if total != size:
        raise ValueError(f"expected {total} bytes, found {size}: it was truncated")
    if nbytes > min(_MAX_HEADER, len(data) - _HEAD.size):
        raise ValueError(f"a header of {nbytes} bytes does not fit")
    text = bytes(data[_HEAD.size : _HEAD.size + nbytes])
    if crc32c(text) != crc:
        raise ValueError("the CRC32C of the header does not match")
    header = json.loads(text)
    if not isinstance(header, dict):
        raise ValueError("the header is not a JSON object")
    return header, _HEAD.size + nbytes


def _only_damaged(table: Table, file: int) -> bool:
    """Whether a file of the right size still holds its records, except for damaged ones.

    Then the sidecar is right, and reading names the damaged records. In another store of the same
    size hardly any record would lie where this sidecar says.
    """
    records = np.flatnonzero(table.file == file)
    if table.crc32c is None or len(records) < 2:
        return table.crc32c is not None
    records = records[:: -(-len(records) // _SPOT_CHECKS)]
    with open(table.files[file], "rb", buffering=0, opener=open_regular) as data:
        for record in records.tolist():
            nbytes = min(max(int(table.nbytes[record]), 0), _MAX_CHECKED)
            record_data = os.pread(data.fileno(), nbytes, max(int(table.offset[record]), 0))
            if crc32c(record_data) == int(table.crc32c[record]):
                return True
    return False


def _parse(data: memoryview) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays. Raises ValueError, TypeError or KeyError if they are damaged."""
    header, at = _header(data, len(data))
    arrays: dict[str, np.ndarray] = {}
    for name, dtype, shape, expected in header["arrays"]:
        kind = np.dtype(str(dtype))
        if kind.kind not in "biuf" or not all(type(side) is int and side >= 0 for side in shape):
            raise ValueError(f"the array {name!r} is a {dtype} of {shape}")
        at += -at % _ALIGN
        length = math.prod(shape) * kind.itemsize
        if length > len(data) - at:
            raise ValueError(f"the array {name!r} extends past the end")
        content = data[at : at + length]
        if crc32c(content) != expected:
            raise ValueError(f"the CRC32C of the array {name!r} does not match")
        arrays[name] = np.frombuffer(content, kind).reshape(shape)
        at += length
    return header, arrays


def _table(path: str, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Table:
    folder = os.path.dirname(path)
    files, prints = [], []
    for name, size, first, last in header["files"]:
        inside = os.fsdecode(str(name).encode("utf-8", "surrogateescape"))
        if os.path.isabs(inside) or ".." in inside.split("/") or "\0" in inside:
            raise ValueError(f"a data file outside of the folder: {name!r}")
        files.append(os.path.join(folder, inside))
        prints.append((int(size), int(first), int(last)))
    if len(files) == 1 and (os.path.isfile(path) or are_of_one([inside])):
        files = [path]  # maybe renamed; the fingerprint decides
    classes = header["classes"]
    if not all(map(is_text, classes)) or not isinstance(header["metadata"], dict):
        raise ValueError("class names that are not text, or metadata that are not an object")
    columns: dict[str, Any] = {name: arrays.get(name) for name in _COLUMNS[3:]}
    return Table(
        format=str(header["format"]),
        files=files,
        file=arrays["file"],
        offset=arrays["offset"],
        nbytes=arrays["nbytes"],
        keys=Blobs(arrays["keys"], arrays["key_ends"]),
        fields=fields_of([Field.from_json(field) for field in header["fields"]], arrays),
        classes=classes,
        metadata=header["metadata"],
        fingerprints=prints,
        sums=Sums(path, {}),  # the arrays were compared above
        **columns,
    )
