"""Stores: ``open_store`` and ``open_writer`` find the format by suffix.

A format is one module here and one line in ``FORMATS``; its module, and the library it needs, is
imported when it is used. The contract is in ``base.py``.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import StoreError, StoreNotFoundError, UsageError
from ..hints import Compression
from . import huggingface
from ._local import local_path
from .base import DCT, ENCODED, RAW, Batch, Field, Record, Spans, Store, Writer

__all__ = [
    "DCT",
    "ENCODED",
    "FORMATS",
    "RAW",
    "Batch",
    "Field",
    "Format",
    "Record",
    "Spans",
    "Store",
    "Writer",
    "open_store",
    "open_writer",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """One storage format: where its reader and writer are.

    Attributes:
        module: of this package.
        store: class of the reader in ``module``, or a function; called with the path.
        writer: class of the writer, or a function; None where fastload only reads.
        suffixes: of file names.
        options: arguments of ``open_writer`` that the writer knows beside those that all know:
            "shards" (with "shard_nbytes"), "compression".
        folders: whether a store may be a folder.
        pixels: "only" where records are raw pixels of one size, "one size" where they may be; None
            where raw pixels may have any size.
    """

    module: str
    store: str
    writer: str | None
    suffixes: tuple[str, ...]
    options: frozenset[str] = frozenset()
    pixels: str | None = None
    folders: bool = False

    def load_store(self) -> Callable[[str], Any]:
        """The reader's class, or what chooses one."""
        found: Callable[[str], Any] = getattr(importlib.import_module(self.module), self.store)
        return found

    def load_writer(self) -> Callable[..., Any]:
        """The writer's class, or what chooses one.

        Raises:
            UsageError: the format is only read.
        """
        if self.writer is None:
            raise UsageError(f"this format ({', '.join(self.suffixes) or 'folder'}) is only read")
        found: Callable[..., Any] = getattr(importlib.import_module(self.module), self.writer)
        return found


FORMATS: dict[str, Format] = {
    "lmdb": Format(
        module="fastload.storage.formats.lmdb",
        store="open_lmdb",
        writer="LmdbWriter",
        suffixes=(".lmdb",),
        folders=True,
    ),
    "hdf5": Format(
        module="fastload.storage.formats.hdf5",
        store="Hdf5Store",
        writer="write_hdf5",
        suffixes=(".h5", ".hdf5"),
        options=frozenset({"compression", "shards"}),
        pixels="one size",
    ),
    "pth": Format(
        module="fastload.storage.formats.pth",
        store="PthStore",
        writer="write_pth",
        suffixes=(".pth",),
        options=frozenset({"shards"}),
        pixels="only",
    ),
    "n5": Format(
        module="fastload.storage.formats.n5",
        store="N5Store",
        writer="N5Writer",
        suffixes=(".n5",),
        folders=True,
        options=frozenset({"shards"}),
        pixels="only",
    ),
    "zarr": Format(
        module="fastload.storage.formats.zarr",
        store="ZarrStore",
        writer="ZarrWriter",
        suffixes=(".zarr",),
        folders=True,
        options=frozenset({"shards"}),
        pixels="only",
    ),
    "tfrecord": Format(
        module="fastload.storage.formats.tfrecord",
        store="TFRecordStore",
        writer="TFRecordWriter",
        suffixes=(".tfrecord", ".tfrecords"),
        options=frozenset({"shards"}),
    ),
    "recordio": Format(
        module="fastload.storage.formats.recordio",
        store="RecordIOStore",
        writer="RecordIOWriter",
        suffixes=(".rec",),
        options=frozenset({"shards"}),
    ),
    "tar": Format(
        module="fastload.storage.formats.tar",
        store="TarStore",
        writer="TarWriter",
        suffixes=(".tar",),
        options=frozenset({"shards"}),
    ),
    "folder": Format(
        module="fastload.storage.folder",
        store="FolderStore",
        writer=None,
        suffixes=(),
        folders=True,
    ),
}


def format_of(path: str | os.PathLike[str]) -> str | None:
    """Name of the format by the suffix of ``path``, or None."""
    name = os.fspath(path).rstrip(os.sep).lower()
    for format_name, format_ in FORMATS.items():
        if name.endswith(format_.suffixes):
            return format_name
    return None


def open_store(
    path: str | os.PathLike[str] | Store | Sequence[str | os.PathLike[str] | Store],
) -> Store:
    """The store at ``path``.

    Example:
        >>> store = open_store("imgs.lmdb")

    Args:
        path: a packed store (the format follows the suffix), or a folder of images; a pattern such
            as ``name-*.tar`` or ``name-{000000..000012}.tar`` for the files of one store. An open
            store is returned. Also a Hugging Face ``Dataset`` with an Image column, or the folder
            that its ``save_to_disk`` wrote. Several in a list are read as one, one after the other.

    Raises:
        UsageError: stores that do not fit together; a URL.
        StoreNotFoundError: nothing there, or only an unfinished ``.partial``.
        StoreError: damaged, or of no format that fastload knows.
    """
    if isinstance(path, Store):
        return path
    if huggingface.known(path):
        from .arrow import ArrowStore

        return ArrowStore(path)
    if isinstance(path, Sequence) and not isinstance(path, str):
        from .concat import ConcatStore

        return ConcatStore.checked([open_store(one) for one in path])
    path = local_path(path)
    if path.endswith(".partial"):
        raise StoreError(
            "this is an unfinished store: run the pack command that began it again", path=path
        )
    name = format_of(path)
    if name is None and os.path.isdir(path):
        name = "lmdb" if os.path.isfile(os.path.join(path, "data.mdb")) else "folder"
    if name is None:
        if not os.path.exists(path):
            raise StoreNotFoundError(
                "expected a store or a folder of images, found nothing", path=path
            )
        known = ", ".join(suffix for f in FORMATS.values() for suffix in f.suffixes)
        raise StoreError(f"expected a folder or a file ending in {known}", path=path)
    if name == "folder":
        from .arrow import is_saved, open_saved

        if is_saved(path):
            return open_saved(path)
    if not FORMATS[name].folders and os.path.isdir(path):
        raise StoreError(
            f"expected a file where the name ends in {os.path.splitext(path)[1]}, found a folder: "
            "if it holds images, give it another name",
            path=path,
        )
    store: Store = FORMATS[name].load_store()(path)
    return store


def open_writer(
    path: str | os.PathLike[str],
    *,
    classes: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    shards: int | None = None,
    shard_nbytes: int | None = None,
    total: int | None = None,
    compression: Compression | None = None,
) -> Writer:
    """A writer for a new store at ``path``; the format follows the suffix.

    Example:
        >>> with open_writer("imgs.lmdb", classes=["cat", "dog"]) as writer:
        ...     writer.append([Record(data=jpeg, label=0, key="cat/1.jpg", width=40, height=30)])

    Args:
        path: where the finished store will appear; nothing may be there.
        classes: class names, position = label.
        metadata: free-form and JSON-able; the reader gives it back.
        settings: JSON-able; an unfinished store is resumed only by a writer with equal settings.
        shards: write so many files of equally many records, for which ``total`` must be given.
        shard_nbytes: write several files, of at most so many bytes each.
        total: how many records will come, if that is known.
        compression: of the container, where the format has one.

    Raises:
        UsageError: something is there, another process writes it, or an unfinished one was begun
            with other settings; or the format has no shards, or no compression.
    """
    path = local_path(path)
    name = format_of(path)
    if name is None:
        known = ", ".join(suffix for f in FORMATS.values() if f.writer for suffix in f.suffixes)
        raise UsageError(f"{path!r}: expected a file name ending in {known}")
    given = {"shards": shards, "shard_nbytes": shard_nbytes, "compression": compression}
    options: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    for option in options:
        feature = "shards" if option == "shard_nbytes" else option
        if feature not in FORMATS[name].options:
            raise UsageError(f"{name} stores have no {feature}, got {option}={options[option]!r}")
    if "shards" in FORMATS[name].options:
        options["total"] = total
    writer: Writer = FORMATS[name].load_writer()(
        path, classes=classes, metadata=metadata, settings=settings, **options
    )
    return writer
