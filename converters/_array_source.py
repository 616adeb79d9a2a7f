"""MNIST's idx files and CIFAR's batches, as downloaded.

Formats: yann.lecun.com/exdb/mnist (idx: big-endian magic, shape, then bytes) and
www.cs.toronto.edu/~kriz/cifar.html (binary: label bytes, then 3072 bytes R, G, B of 32 x 32;
Python: a pickled dict of ``data``, ``labels`` or ``fine_labels`` and ``coarse_labels``).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import DataError, StoreError, StoreNotFoundError
from ..storage import RAW
from ..storage._not_store import CIFAR, CIFAR_FOLDERS, CIFAR_TARS, IDX
from ._source import LabelsAndFields, PackSource, Sample

_MAX_NBYTES = 1 << 32  # of such a file, decompressed
_SIDE = 32


class ArraySource(PackSource):
    """Images that are already pixels: uint8 (n, h, w, 3), with labels."""

    encoding = "raw"

    def __init__(
        self,
        path: str,
        pixels: np.ndarray,
        labels: np.ndarray,
        classes: Sequence[str],
        fields: Mapping[str, np.ndarray],
    ) -> None:
        self.path = path
        self._pixels, self._labels, self._fields = pixels, labels, fields
        self.classes = classes
        self.keys = [f"{index:06d}" for index in range(len(pixels))]

    def read(self, indices: np.ndarray) -> Iterator[Sample | DataError]:
        for index in indices.tolist():
            pixels = self._pixels[index]
            height, width = pixels.shape[:2]
            rgb = pixels if pixels.ndim == 3 else np.stack([pixels] * 3, axis=2)
            yield Sample(rgb.tobytes(), RAW, (width, height))

    def annotate(self, indices: np.ndarray, samples: Sequence[Sample]) -> LabelsAndFields:
        fields = {name: column[indices] for name, column in self._fields.items()}
        return LabelsAndFields(self._labels[indices], fields)

    def digest(self) -> str:
        digest = hashlib.blake2b(self._pixels.data, digest_size=16)
        digest.update(self._labels.data)
        return digest.hexdigest()

    def sizes(self) -> np.ndarray:
        height, width = self._pixels.shape[1:3]
        return np.tile(np.array([width, height], np.int32), (len(self), 1))


def array_source(path: str) -> ArraySource | None:
    """The images of ``path`` if it is a file, folder or archive of MNIST or CIFAR, else None.

    A folder or an archive stands for its training part; for the test part give its file.
    """
    name = os.path.basename(os.path.normpath(path))
    if os.path.isfile(path) and IDX.match(name):
        return _mnist(path)
    if os.path.isfile(path) and name in CIFAR_TARS:
        return _cifar(path, _members(path))
    if os.path.isdir(path) and name in CIFAR_FOLDERS:
        return _cifar(path, {one: _file(os.path.join(path, one)) for one in os.listdir(path)})
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isfile(path) and os.path.basename(folder) in CIFAR_FOLDERS and CIFAR.match(name):
        others = [one for one in os.listdir(folder) if "meta" in one or one.endswith("names.txt")]
        files = {one: _file(os.path.join(folder, one)) for one in [*others, name]}
        return _cifar(path, files, only=name)
    if os.path.isdir(path):
        images = [one for one in os.listdir(path) if one.startswith("train") and IDX.match(one)]
        if images:
            return _mnist(os.path.join(path, min(images)))
    return None


def _file(path: str) -> bytes:
    with open(path, "rb") as file:
        data = file.read(_MAX_NBYTES + 1)
    if path.endswith(".gz"):
        try:
            with gzip.open(io.BytesIO(data)) as file:
                data = file.read(_MAX_NBYTES + 1)
        except (OSError, EOFError) as error:
            raise StoreError(f"the file is damaged: {error}", path=path) from error
    if len(data) > _MAX_NBYTES:
        raise StoreError(f"expected at most {_MAX_NBYTES} bytes", path=path)
    return data


def _members(path: str) -> dict[str, bytes]:
    """The files of an archive by name; nothing is unpacked to the disk."""
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = os.path.basename(member.name)
                if not member.isfile() or member.size > _MAX_NBYTES:
                    continue
                wanted = CIFAR.match(name) or "meta" in name or "names" in name
                content = archive.extractfile(member) if wanted else None
                if content is not None:
                    contents[name] = content.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise StoreError(f"the archive is damaged: {error}", path=path) from error
    return contents


# --- MNIST ----------------------------------------------------------------------------------------


def _mnist(path: str) -> ArraySource:
    pixels = _idx(path, 3)
    folder, name = os.path.split(path)
    match = IDX.match(name)
    assert match is not None  # the caller checked
    wanted = [f"{match[1]}labels{dash}idx1-ubyte{gz}" for dash in "-." for gz in ("", ".gz")]
    there = [one for one in wanted if os.path.isfile(os.path.join(folder, one))]
    if not there:
        raise StoreNotFoundError(f"expected its labels beside it, as {wanted[0]}", path=path)
    labels = _idx(os.path.join(folder, there[0]), 1)
    if len(labels) != len(pixels):
        raise StoreError(f"{len(pixels)} images have {len(labels)} labels", path=path)
    classes = [str(number) for number in range(int(labels.max(initial=0)) + 1)]
    return ArraySource(os.path.abspath(path), pixels, labels.astype(np.int64), classes, {})


def _idx(path: str, dimensions: int) -> np.ndarray:
    data = _file(path)
    head = 4 + 4 * dimensions
    if len(data) < head or data[:4] != bytes([0, 0, 8, dimensions]):
        raise StoreError(f"expected an idx file of bytes in {dimensions} dimensions", path=path)
    shape = tuple(np.frombuffer(data, ">i4", dimensions, 4).tolist())
    if min(shape) < 0 or int(np.prod([int(side) for side in shape])) != len(data) - head:
        raise StoreError(f"expected {shape} bytes, found {len(data) - head}", path=path)
    pixels: np.ndarray = np.frombuffer(data, np.uint8, offset=head).reshape(shape)
    return pixels


# --- CIFAR ----------------------------------------------------------------------------------------


def _cifar(path: str, files: Mapping[str, bytes], only: str | None = None) -> ArraySource:
    parts = sorted(name for name in files if CIFAR.match(name))
    parts = [name for name in parts if (name == only if only else not name.startswith("test"))]
    if not parts:
        raise StoreNotFoundError("expected CIFAR's batches, found none", path=path)
    hundred = "100" in os.path.basename(os.path.normpath(path)) or any(
        name in ("train", "test", "train.bin", "test.bin") for name in parts
    )
    batches = [
        (_binary_batch if name.endswith(".bin") else _python_batch)(files[name], hundred, path)
        for name in parts
    ]
    pixels, labels, coarse = map(np.concatenate, zip(*batches))
    planes = pixels.reshape(-1, 3, _SIDE, _SIDE)
    return ArraySource(
        os.path.abspath(path),
        np.ascontiguousarray(planes.transpose(0, 2, 3, 1)),
        labels,
        _class_names(files, path),
        {"coarse_label": coarse} if hundred else {},
    )


def _binary_batch(data: bytes, hundred: bool, path: str) -> tuple[np.ndarray, ...]:
    head = 2 if hundred else 1
    width = head + 3 * _SIDE * _SIDE
    if len(data) % width:
        raise StoreError(f"expected records of {width} bytes, found {len(data)} bytes", path=path)
    rows = np.frombuffer(data, np.uint8).reshape(-1, width)
    return rows[:, head:], rows[:, head - 1].astype(np.int64), rows[:, 0].astype(np.int64)


def _python_batch(data: bytes, hundred: bool, path: str) -> tuple[np.ndarray, ...]:
    batch = _load(data, path)
    try:
        pixels = np.asarray(batch[b"data"])
        labels = np.array(batch[b"fine_labels" if hundred else b"labels"], np.int64)
        coarse = np.array(batch[b"coarse_labels"], np.int64) if hundred else labels
        good = pixels.dtype == np.uint8 and pixels.shape == (len(labels), 3 * _SIDE * _SIDE)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"expected a batch of CIFAR, found something else: {error!r}",
                         path=path) from error  # fmt: skip
    if not good or len(coarse) != len(labels):
        raise StoreError(f"expected uint8 images, found {pixels.dtype} {pixels.shape}", path=path)
    return pixels, labels, coarse


def _class_names(files: Mapping[str, bytes], path: str) -> list[str]:
    for name in ("batches.meta.txt", "fine_label_names.txt"):
        if name in files:
            return files[name].decode("utf-8", "replace").split()
    for name, key in (("batches.meta", b"label_names"), ("meta", b"fine_label_names")):
        if name in files:
            names = _load(files[name], path).get(key, [])
            return [one.decode("utf-8", "replace") for one in names if isinstance(one, bytes)]
    return []


def _load(data: bytes, path: str) -> dict[bytes, Any]:
    """A pickled dict of CIFAR, which may name only what NumPy arrays need."""
    try:
        loaded = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:
        raise StoreError(f"expected a batch of CIFAR, found something else: {error!r}",
                         path=path) from error  # fmt: skip
    if not isinstance(loaded, dict):
        raise StoreError(f"expected a dict, found {type(loaded).__name__}", path=path)
    return loaded


def _empty_array(kind: object, shape: object, code: object) -> np.ndarray:
    if kind is not np.ndarray:
        raise pickle.UnpicklingError("no array")
    return np.empty(0, np.uint8)


def _encode_latin1(text: object, encoding: object) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("no bytes")
    return text.encode("latin1")


_KNOWN: dict[tuple[str, str], object] = {  # the names that a pickled array needs
    ("numpy", "dtype"): np.dtype,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("_codecs", "encode"): _encode_latin1,  # bytes as protocol 2 of Python 3 writes them
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed here")
        return _KNOWN[module, name]
