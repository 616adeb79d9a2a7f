"""Strings of variable length in an HDF5 file, read without the library.

They lie in heaps ("global heap collections" in section III.E of the HDF5 File Format Specification
3.0), which the library trusts: a damaged one can crash it, or put it into an endless loop.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import numpy as np

from ...errors import StoreError
from .._read import pread_all

if TYPE_CHECKING:
    import h5py

_REFERENCE = np.dtype([("length", "<u4"), ("heap", "<u8"), ("index", "<u4")])
_HEAP = struct.Struct("<4sB3xQ")  # signature, version, size of it all
_OBJECT = struct.Struct("<HH4xQ")  # index, references, size; followed by as many bytes
_NOWHERE = 2**64 - 1
_MOST = 1 << 30  # bytes of a heap


def strings(dataset: h5py.Dataset, path: str) -> list[bytes] | None:
    """The strings of a dataset, in order; None if they do not lie in heaps as described.

    Args:
        dataset: of strings of variable length, in one piece inside the file.
        path: of the file.

    Raises:
        StoreError: a heap is damaged.
    """
    import h5py

    kind, properties = h5py.check_string_dtype(dataset.dtype), dataset.id.get_create_plist()
    if kind.length is not None or properties.get_layout() != h5py.h5d.CONTIGUOUS:
        return None
    if dataset.is_virtual or dataset.external:
        return None
    offset, nbytes = dataset.id.get_offset(), dataset.size * _REFERENCE.itemsize
    plist = dataset.file.id.get_create_plist()
    if offset is None or plist.get_userblock() or plist.get_sizes() != (8, 8):
        return None
    with open(path, "rb", buffering=0) as file:
        if offset + nbytes > os.fstat(file.fileno()).st_size:
            raise StoreError(
                f"expected {nbytes} bytes of {dataset.name!r}, found fewer: the file was truncated",
                path=path,
                offset=offset,
            )
        data = pread_all(file.fileno(), nbytes, offset)
        found: list[bytes] = []
        left = os.fstat(file.fileno()).st_size  # heaps of an intact file do not overlap
        heaps: dict[int, tuple[bytes, dict[int, tuple[int, int]]]] = {}
        for length, address, index in np.frombuffer(data, _REFERENCE).tolist():
            if not length or address in (0, _NOWHERE):
                found.append(b"")
                continue
            if address not in heaps:
                heaps[address] = _heap(file.fileno(), address, path)
                left -= len(heaps[address][0])
                if left < 0:
                    raise _damaged(address, path)
            heap, objects = heaps[address]
            begin, nbytes = objects.get(index, (0, -1))
            if length > nbytes:
                raise _damaged(address, path)
            found.append(heap[begin : begin + length].split(b"\0", 1)[0])
    return found


def _heap(file: int, address: int, path: str) -> tuple[bytes, dict[int, tuple[int, int]]]:
    """A heap, and the offset and length in it of each of its objects, by index."""
    size = os.fstat(file).st_size
    if address > size - _HEAP.size:
        raise _damaged(address, path)
    signature, version, nbytes = _HEAP.unpack(os.pread(file, _HEAP.size, address))
    if signature != b"GCOL" or version != 1 or nbytes > min(size - address, _MOST):
        raise _damaged(address, path)
    data = os.pread(file, nbytes, address)
    objects: dict[int, tuple[int, int]] = {}
    at = _HEAP.size
    while at + _OBJECT.size <= len(data):
        index, _, length = _OBJECT.unpack_from(data, at)
        if not index:  # the rest is free
            break
        at += _OBJECT.size
        if length > len(data) - at:
            raise _damaged(address, path)
        objects[index] = at, length
        at += length + (-length % 8)
    return data, objects


def _damaged(address: int, path: str) -> StoreError:
    return StoreError(
        "expected strings in a heap of the HDF5 file, found other bytes: it is damaged, copy it "
        "again or pack it again",
        path=path,
        offset=address,
    )
