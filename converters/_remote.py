"""Sources and destinations that are URLs, such as ``s3://bucket/imgs.lmdb``, through fsspec.

A source is first fetched into a temporary folder. A store is written into a folder below the
system's temporary folder, where an interrupted run is resumed, and uploaded when it is complete;
the file that makes it exist is uploaded last.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..errors import (
    FastloadError,
    MissingDependencyError,
    StoreError,
    StoreNotFoundError,
    UsageError,
    install,
)
from ..storage._sidecar import SUFFIX as SIDECAR
from ._labels import Chosen
from ._list_source import SUFFIXES, listed_files
from ._open import open_source
from ._report import PackReport
from ._source import Source

if TYPE_CHECKING:
    import fsspec

_TAGS = ("ETag", "etag", "mtime", "created")  # by which file systems tell versions apart


@contextlib.contextmanager
def _asking(url: str, what: str) -> Iterator[None]:
    """Turn errors of a file system, which may have any type, into a StoreError.

    Args:
        url: of the file or folder.
        what: the start of the message.
    """
    try:
        yield
    except FastloadError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())
        raise StoreError(
            f"{what}: {type(error).__name__}: {said}; check the URL, and the credentials that its "
            "file system needs",
            path=url,
        ) from error


def _file_system(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system of ``url``, and the path in it."""
    try:
        import fsspec
    except ImportError as error:
        raise MissingDependencyError(f"URLs need fsspec: {install('remote')}") from error
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:  # fsspec says which package the protocol needs
        raise MissingDependencyError(f"{url!r}: {error}") from error
    except ValueError as error:
        raise UsageError(f"{url!r}: {error}") from error
    return system, str(path).rstrip("/")


@contextlib.contextmanager
def fetched(url: str, chosen: Chosen) -> Iterator[Source]:
    """The source at ``url``, fetched while the block lasts: a store with its sidecar or shards, a
    folder, or a list with the files that it names.

    Raises:
        StoreNotFoundError: nothing there.
        StoreError: it cannot be fetched.
        MissingDependencyError: fsspec, or its package for this protocol, is not installed.
    """
    system, path = _file_system(url)
    folder = tempfile.mkdtemp(prefix="fastload-")
    try:
        with _asking(url, "it cannot be fetched"):
            local, files = _fetch(system, path, folder, chosen)
        source = open_source(local, chosen)
        source.path = url
        source.identity = hashlib.blake2b(repr(files).encode(), digest_size=16).hexdigest()
        yield source
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fetch(
    system: fsspec.AbstractFileSystem, path: str, folder: str, chosen: Chosen
) -> tuple[str, list[tuple[str, int, str]]]:
    """Fetch the files of ``path``; returns its local path, and name, size and tag of every file."""
    parent, name = os.path.split(path)
    local = os.path.join(folder, name)
    if system.isdir(path):
        found = system.find(path)
    elif system.isfile(path):
        found = [path]
        if path.endswith(SUFFIXES):
            system.get_file(path, local)
            found += [f"{parent}/{file}" for file in dict.fromkeys(listed_files(local, chosen))]
        elif system.isfile(path + SIDECAR):
            found.append(path + SIDECAR)
    else:
        stem, suffix = os.path.splitext(path)
        found = sorted(system.glob(path)) or sorted(system.glob(f"{stem}-*{suffix}"))
        found += [path + SIDECAR] if system.isfile(path + SIDECAR) else []
    if not found:
        raise StoreNotFoundError("expected a store, a folder or a list, found nothing", path=path)
    places = []
    for one in found:
        inside = os.path.normpath(os.path.relpath(one, parent))
        if inside.startswith(".."):
            raise StoreError("expected files below the list's folder", path=one)
        places.append(os.path.join(folder, inside))
        os.makedirs(os.path.dirname(places[-1]), exist_ok=True)
    system.get(found, places)
    described = []
    for one in found:
        info = system.info(one)
        tags = [str(info[key]) for key in _TAGS if key in info]
        described.append((one, int(info["size"]), "".join(tags[:1])))
    return local, described


def pack_to(url: str, run: Callable[[str], PackReport]) -> PackReport:
    """Call ``run`` with a local path, and upload the stores that it writes there to ``url``.

    Raises:
        UsageError: something exists there.
        StoreError: it cannot be uploaded.
        MissingDependencyError: fsspec, or its package for this protocol, is not installed.
    """
    system, path = _file_system(url)
    for taken in (path, path + SIDECAR):
        with _asking(url, "it cannot be written"):
            exists = system.exists(taken)
        if exists:
            raise UsageError(f"{url!r} exists: delete it or choose another name")
    mark = hashlib.blake2b(url.encode(), digest_size=8).hexdigest()
    folder = os.path.join(tempfile.gettempdir(), f"fastload-{os.getuid()}-{mark}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if os.stat(folder, follow_symlinks=False).st_uid != os.getuid():
        raise UsageError(f"{folder!r} belongs to another user: set TMPDIR to a folder of your own")
    try:
        report = run(os.path.join(folder, os.path.basename(path)))
    except BaseException:
        if not os.listdir(folder):
            os.rmdir(folder)
        raise
    parent, remote = os.path.dirname(path), os.path.dirname(url)
    with _asking(url, f"the finished store lies in {folder!r} and cannot be uploaded"):
        for name in in_order(folder):
            system.makedirs(os.path.dirname(f"{parent}/{name}"), exist_ok=True)
            system.put_file(os.path.join(folder, name), f"{parent}/{name}")
    shutil.rmtree(folder)
    parts = [
        dataclasses.replace(part, path=f"{remote}/{os.path.basename(part.path)}")
        for part in report.parts
    ]
    return dataclasses.replace(report, parts=tuple(parts))


def in_order(folder: str) -> list[str]:
    """The files below ``folder``: sidecars of single files first, manifests of shards last."""
    found = [
        os.path.relpath(os.path.join(root, name), folder)
        for root, _, names in os.walk(folder)
        for name in names
    ]

    def turn(name: str) -> int:
        if not name.endswith(SIDECAR):
            return 1
        return 0 if os.path.lexists(os.path.join(folder, name[: -len(SIDECAR)])) else 2

    return sorted(found, key=lambda name: (turn(name), name))
