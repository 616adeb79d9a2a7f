"""``unpack``: write the records of a store as image files in folders."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import errno
import functools
import io
import os
import shutil
from collections.abc import Iterator

import numpy as np

from .._base.in_order import in_order
from .._base.machine.cpu import available
from .._base.progress_bar import Progress, reporting
from .._engine.pillow import dct_to_jpeg, image_of
from ..errors import ChecksumError, StoreError, UsageError
from ..storage import open_store
from ..storage._crc import crc32c
from ..storage._durable import sync
from ..storage._fields import encode_json
from ..storage._local import local_path
from ..storage._probe import image_format
from ..storage._read import check_decoded, fetched_ahead, where_of
from ..storage.base import DCT, RAW, Store

LIST = "records.jsonl"  # labels and fields, in the folder of the images
_CHUNK = 64  # records per task


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnpackReport:
    """The result of ``unpack``.

    Attributes:
        folder: path of the folder.
        records: number of image files written.
        nbytes: their total size.
        listed: whether ``records.jsonl`` with labels and fields was written.
    """

    folder: str
    records: int
    nbytes: int
    listed: bool


def unpack(
    store: str | os.PathLike[str] | Store,
    folder: str | os.PathLike[str],
    *,
    workers: int | None = None,
    progress: Progress | bool | None = None,
) -> UnpackReport:
    """Write the records of a store as image files, in class folders if it has classes.

    A record that holds an image file is written byte for byte; raw pixels become a PNG, a DCT
    record a JPEG with the same coefficients. Fields, and labels that are not class indices, are
    written to ``records.jsonl``, which ``pack`` reads.

    Example:
        >>> unpack("imgs.lmdb", "imgs").records
        1000

    Args:
        store: path or URL of a store, or an open one.
        folder: new or empty folder. It appears when everything is written.
        workers: number of threads; None: the number of CPUs.
        progress: as for ``pack``.

    Returns:
        The folder, the number of files and their bytes, and whether there is a ``records.jsonl``.

    Raises:
        UsageError: the folder is not empty.
        StoreError: a key points outside the folder, or cannot be the name of a file beside the
            others; or writing failed, for instance on a full disk.
        ChecksumError, DecodeError: a record is damaged.
    """
    opened = open_store(store)
    target = local_path(folder)
    if os.path.islink(target) or (
        os.path.lexists(target) and not (os.path.isdir(target) and not os.listdir(target))
    ):
        raise UsageError(f"{target!r}: expected a new or empty folder; choose another")
    partial = target + ".partial"
    try:
        os.mkdir(partial)
    except FileExistsError:
        raise UsageError(
            f"{partial!r} exists: an interrupted run left it, or another one is running; delete it "
            "if none is"
        ) from None
    except OSError as error:
        raise _not_written(partial, error) from error
    try:
        with reporting("unpacking", progress) as report_progress:
            report = _write(opened, partial, workers or available(), report_progress)
        try:
            os.rename(partial, target)
            sync(os.path.dirname(target))
        except OSError as error:
            raise _not_written(partial, error) from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return dataclasses.replace(report, folder=target)


def _not_written(partial: str, error: OSError) -> StoreError:
    """The error of the folder that ``partial`` was to become."""
    target = partial.removesuffix(".partial")
    above = os.path.dirname(target)
    what = f"there is no folder {above!r}: create it first"
    if os.path.isdir(above):
        full = ", or make room in this one" * (error.errno in (errno.ENOSPC, errno.EDQUOT))
        what = f"{error.strerror}: choose another folder{full}"
    return StoreError(f"the folder cannot be written: {what}", path=target)


@contextlib.contextmanager
def _making(folder: str, name: str, store: Store, record: int | None = None) -> Iterator[None]:
    """A block that makes ``name`` in ``folder``: of a record, a class or the list."""
    try:
        yield
    except OSError as error:
        if isinstance(error, (FileExistsError, NotADirectoryError)):
            why = f"{name!r} is the name of two records, or of a record and a folder"
        elif error.errno == errno.ENAMETOOLONG:
            why = f"{name[:60]!r}... is too long for the name of a file"
        else:
            raise _not_written(folder, error) from error
        raise StoreError(
            f"{why}, so these records cannot be files: copy the store with `fastload pack`",
            path=store.path,
            record=record,
        ) from error


def _write(store: Store, folder: str, workers: int, progress: Progress | None) -> UnpackReport:
    labels = store.labels
    by_class = labels is not None and labels.ndim == 1 and labels.dtype.kind == "i"
    by_class = by_class and len(store.classes) > 0
    for name in store.classes if by_class else ():
        _safe(store, name, None)
        if "/" in name or not name:
            raise StoreError(f"expected class names that can be folders, got {name!r}",
                             path=store.path)  # fmt: skip
        with _making(folder, name, store):
            os.mkdir(os.path.join(folder, name))
    listed = bool(store.fields) or (labels is not None and not by_class)
    everything = np.arange(len(store))
    parts = (everything[start : start + _CHUNK] for start in range(0, len(store), _CHUNK))
    names: list[str] = []
    nbytes = 0
    if progress is not None:
        progress(0, len(store), 0)
    write = functools.partial(_write_chunk, store, folder, by_class)
    with in_order(write, fetched_ahead(store, parts), workers, "fastload-unpack") as written:
        for some, size in written:
            names += some
            nbytes += size
            if progress is not None:
                progress(len(names), len(store), nbytes)
    if listed:
        with _making(folder, LIST, store):
            _write_list(store, names, os.path.join(folder, LIST), with_labels=not by_class)
    return UnpackReport(folder=folder, records=len(names), nbytes=nbytes, listed=listed)


def _write_chunk(
    store: Store, folder: str, by_class: bool, indices: np.ndarray
) -> tuple[list[str], int]:
    names, nbytes = [], 0
    keys, kinds, sizes = store.keys(indices), store.kinds(indices), store.sizes(indices)
    crcs = store.checksums(indices)
    for at, data in enumerate(store.read(indices)):
        index = int(indices[at])
        if crcs is not None and crc32c(data) != int(crcs[at]):
            raise ChecksumError(
                "the record's bytes changed since it was written: copy the others with "
                "`fastload pack --on-error skip`, and unpack the copy",
                **where_of(store, index),
            )
        name = _safe(store, keys[at], index)
        if by_class:
            assert store.labels is not None  # by_class implies it
            label = int(store.labels[index])
            if not 0 <= label < len(store.classes):
                raise StoreError(
                    f"expected a label below {len(store.classes)}, got {label}",
                    path=store.path,
                    record=index,
                )
            inside = store.classes[label] + "/"
            name = name if name.startswith(inside) else inside + name
        data, suffix = _image_file(store, data, int(kinds[at]), sizes[at], index)
        if suffix and not _means(os.path.splitext(name)[1].lower(), suffix):
            name += suffix
        path = os.path.join(folder, *name.split("/"))
        with _making(folder, name, store, index):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(path, flags, 0o644), "wb") as file:
                file.write(data)
        names.append(name)
        nbytes += len(data)
    return names, nbytes


def _means(suffix: str, other: str) -> bool:
    """Whether both stand for one format, such as .jpg and .jpeg."""
    if suffix == other:
        return True
    from PIL import Image

    formats = Image.registered_extensions()
    return suffix in formats and formats[suffix] == formats[other]


_SUFFIXES = {"jpeg": ".jpg", "png": ".png", "bmp": ".bmp", "gif": ".gif", "tiff": ".tif",
             "pgm": ".pgm", "ppm": ".ppm", "webp": ".webp"}  # fmt: skip


def _image_file(
    store: Store, data: bytes, kind: int, size: np.ndarray, index: int
) -> tuple[bytes, str]:
    """The image file of a record, and the suffix of its name."""
    if kind == RAW:
        buffer = io.BytesIO()
        image_of(data, kind, (int(size[0]), int(size[1])), where_of(store, index)).save(
            buffer, "PNG"
        )
        return buffer.getvalue(), ".png"
    if kind == DCT:
        return dct_to_jpeg(data, where_of(store, index)), ".jpg"
    return data, _SUFFIXES.get(image_format(data), "")


def _safe(store: Store, key: str, index: int | None) -> str:
    """``key``, if it is a path inside the folder. Raises StoreError if not."""
    parts = key.split("/")
    if not key or "\0" in key or any(part in ("", ".", "..") for part in parts):
        raise StoreError(
            f"expected a key that is a path inside a folder, got {key[:200]!r}, which could point "
            "elsewhere",
            path=store.path,
            record=index,
        )
    return key


def _write_list(store: Store, names: list[str], path: str, *, with_labels: bool) -> None:
    """Write ``records.jsonl``: one line for each record, readable by ``pack``."""
    labels = store.labels if with_labels else None
    fields = store.fields
    with open(path, "wb") as file:
        for start in range(0, len(names), _CHUNK):
            indices = np.arange(start, min(start + _CHUNK, len(names)))
            columns: dict[str, list[object]] = {}
            for name, field in fields.items():
                if field.kind == "array":
                    columns[name] = store.column(name)[indices].tolist()
                    continue
                columns[name] = (
                    [
                        {"base64": base64.b64encode(value).decode()}
                        for value in store.values(name, indices)
                    ]
                    if field.kind == "bytes"
                    else list(check_decoded(store, name, indices))
                )
            for at, index in enumerate(indices.tolist()):
                line: dict[str, object] = {"path": names[index]}
                if labels is not None:
                    line["label"] = labels[index].tolist()
                elif store.labels is not None:
                    line["label"] = store.classes[int(store.labels[index])]
                line |= {name: column[at] for name, column in columns.items()}
                file.write(encode_json(line) + b"\n")
