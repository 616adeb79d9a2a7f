"""``open_store`` and ``open_writer``: the format of a path is found, and its module imported."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._base import huggingface
from ..errors import FastloadError, StoreError, StoreNotFoundError, UsageError
from ..hints import Compression
from ._local import is_url, local_path
from ._nearby import nothing_at
from .base import Store, Writer
from .column_options import ColumnOptions
from .registry import (
    broken_formats,
    find_by_suffix,
    find_format,
    format_of,
    known_formats,
    known_suffixes,
)

if TYPE_CHECKING:
    from .remote.options import RemoteOptions


def open_store(
    path: str | os.PathLike[str] | Store | Sequence[str | os.PathLike[str] | Store],
    *,
    remote: RemoteOptions | None = None,
    columns: ColumnOptions | None = None,
) -> Store:
    """Open the store at ``path``.

    Example:
        >>> store = open_store("imgs.lmdb")

    Args:
        path: a packed store (its suffix names the format) or a folder of images; a pattern such as
            ``name-*.tar`` or ``name-{000000..000012}.tar`` for the files of one store. An open
            store is returned as it is. Also a Hugging Face ``Dataset`` with an Image column, or the
            folder that its ``save_to_disk`` wrote. A list of these is read as one store, in order.
            Also the URL of a packed store (docs/remote.md). Parquet files are stores too: a file, a
            pattern, a folder or a list of them (docs/formats.md).
        remote: how URLs are read and cached.
        columns: which column of Parquet files or of a Lance dataset holds the images, and how much
            memory they may take.

    Raises:
        UsageError: stores that do not fit together; options for URLs without a URL.
        StoreNotFoundError: nothing there, or only an unfinished ``.partial``.
        StoreError: damaged, or of an unknown format.
    """
    columns = columns or ColumnOptions()
    if columns.given and (isinstance(path, Store) or huggingface.is_dataset(path)):
        raise UsageError(
            f"{columns.given[0]}: expected the path of Parquet files or of a Lance dataset with "
            f"it, got a {type(path).__name__}: choose the columns where that is made"
        )
    if isinstance(path, Store):
        return path
    if huggingface.is_dataset(path):
        from .arrow import ArrowStore

        return ArrowStore(path)
    if isinstance(path, Sequence) and not isinstance(path, str):
        from .concat import ConcatStore

        if all(isinstance(each, (str, os.PathLike)) and not is_url(each) for each in path):
            paths = [local_path(each) for each in path if not isinstance(each, Store)]
            if paths and all(format_of(each) == "parquet" for each in paths):
                from .formats.parquet import ParquetStore

                return ParquetStore(paths, options=columns)  # whose columns are those of all
        return ConcatStore.checked(
            [open_store(each, remote=remote, columns=columns) for each in path]
        )
    if is_url(path):
        from .remote.options import RemoteOptions
        from .remote.store import RemoteStore

        remote = remote or RemoteOptions()
        if format_of(path) == "lance":
            from .formats.lance import LanceStore

            return LanceStore(os.fspath(path), options=columns, remote=remote)
        return RemoteStore(os.fspath(path), remote, columns)
    path = local_path(path)
    try:
        return _open_local(path, columns)
    except FastloadError:
        raise
    except OSError as error:  # of a file or a folder that is looked at before a format opens it
        raise StoreError(
            f"it cannot be read: {error.strerror or error}", path=str(error.filename or path)
        ) from error


def _open_local(path: str, columns: ColumnOptions) -> Store:
    if path.endswith(".partial"):
        raise StoreError(
            "this store is unfinished: run the pack command that started it again", path=path
        )
    form = find_format(path)
    if form is None:
        broken = broken_formats()
        if not os.path.exists(path):
            raise StoreNotFoundError(
                f"expected a store or a folder of images, found nothing{_noted(broken)}"
                f"{nothing_at(path)}",
                path=path,
            ) from next(iter(broken), None)
        from ._not_store import no_store

        raise StoreError(
            f"expected a folder or a file ending in {', '.join(known_suffixes())}{_noted(broken)}"
            f"{no_store(path)}",
            path=path,
        ) from next(iter(broken), None)
    if not form.folders and os.path.isdir(path):
        raise StoreError(
            f"expected a file because the name ends in {os.path.splitext(path)[1]}, found a "
            "folder: if it holds images, rename it",
            path=path,
        )
    return form.open(path, **form.taken(columns, path))


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
    """A writer for a new store at ``path``, whose suffix names the format.

    Example:
        >>> with open_writer("imgs.lmdb", classes=["cat", "dog"]) as writer:
        ...     writer.append([Record(data=jpeg, label=0, key="cat/1.jpg", width=40, height=30)])

    Args:
        path: where the finished store will appear; nothing may exist there.
        classes: class names, position = label.
        metadata: any JSON-able dict; the reader returns it.
        settings: JSON-able; an unfinished store is resumed only by a writer with equal settings.
        shards: write this many files with equally many records; needs ``total``.
        shard_nbytes: write several files of at most this many bytes each.
        total: the expected number of records, if known.
        compression: of the container, if the format has one.

    Raises:
        UsageError: something exists there, another process is writing it, or an unfinished store
            was started with other settings; or the format has no shards or no compression.
    """
    path = local_path(path)
    form = find_by_suffix(path)
    if form is None or form.writer is None:
        broken = broken_formats()
        writable = ", ".join(
            suffix for other in known_formats() if other.writer for suffix in other.suffixes
        )
        why = f" (fastload reads {form.title} stores, but does not write them)" if form else ""
        raise UsageError(
            f"{path!r}: expected a file name ending in {writable}{why}{_noted(broken)}"
        ) from next(iter(broken), None)
    given = {"shards": shards, "shard_nbytes": shard_nbytes, "compression": compression}
    options: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    for option in options:
        feature = "shards" if option == "shard_nbytes" else option
        if feature not in form.options:
            raise UsageError(
                f"{form.name} stores have no {feature}, got {option}={options[option]!r}"
            )
    if "shards" in form.options:
        options["total"] = total
    return form.writer(path, classes=classes, metadata=metadata, settings=settings, **options)


def _noted(broken: Sequence[UsageError]) -> str:
    """What a message about an unknown suffix adds if a package that may know it is broken."""
    return "".join(f"; {error}" for error in broken)
