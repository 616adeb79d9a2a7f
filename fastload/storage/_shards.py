"""Which files a path stands for: one file, a pattern, or a complete set of numbered shards."""

from __future__ import annotations

import glob
import os
import re

from fastload.errors import StoreError, StoreNotFoundError

_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
_NUMBERED = re.compile(r"-(\d+)-of-(\d+)(\.[^.]*)$")
_MAX_FILES = 1_000_000


def data_files(path: str) -> list[str]:
    """The files of the store ``path``, in order, where no sidecar lists them.

    Example:
        >>> data_files("imgs-{000000..000002}.tar")
        ['imgs-000000.tar', 'imgs-000001.tar', 'imgs-000002.tar']

    Args:
        path: a file; a pattern with ``*``, ``?``, ``[...]`` or numbers in braces; or
            ``NAME.SUFFIX`` where shards ``NAME-00000-of-00016.SUFFIX`` lie.

    Raises:
        StoreNotFoundError: nothing matches, or a shard of a set is missing.
        StoreError: braces that stand for more than a million files.
    """
    if os.path.exists(path):
        return [path]
    if _BRACES.search(path):
        found = _expand(path)
    elif glob.has_magic(path):
        found = sorted(glob.glob(path))
    else:
        found = _numbered(path)
    missing = [name for name in found if not os.path.isfile(name)]
    if found and not missing:
        return found
    if missing:
        raise StoreNotFoundError("a file of the set is missing", path=missing[0])
    hint = (
        "its packing was not finished: run the same pack command again"
        if os.path.isdir(path + ".partial")
        else "check the path"
    )
    raise StoreNotFoundError(f"expected a store, found nothing: {hint}", path=path)


def _expand(path: str) -> list[str]:
    """Every name that ``path`` with ``{000000..000012}`` in it stands for."""
    match = _BRACES.search(path)
    if match is None:
        return [path]
    first, last = int(match[1]), int(match[2])
    if not 0 <= last - first < _MAX_FILES:
        raise StoreError(f"expected {{FIRST..LAST}} for up to {_MAX_FILES} files", path=path)
    head, tail = path[: match.start()], path[match.end() :]
    names = [f"{head}{number:0{len(match[1])}d}{tail}" for number in range(first, last + 1)]
    return [name for inner in names for name in _expand(inner)]


def _numbered(path: str) -> list[str]:
    """The shards of ``NAME.SUFFIX``, the missing ones too; nothing if there are none.

    Only names that say of how many they are: a set that is not complete must not open.
    """
    stem, suffix = os.path.splitext(path)
    if os.path.isdir(path + ".partial"):
        return []
    found = glob.glob(f"{glob.escape(stem)}-*-of-*{glob.escape(suffix)}")
    matches = [match for name in sorted(found) if (match := _NUMBERED.search(name)) is not None]
    matches = [match for match in matches if match.string[: match.start()] == stem]
    if not matches:
        return []
    number, count = len(matches[0][1]), matches[0][2]
    if int(count) > _MAX_FILES:
        raise StoreError(f"expected a set of up to {_MAX_FILES} files", path=matches[0].string)
    return [f"{stem}-{i:0{number}d}-of-{count}{suffix}" for i in range(int(count))]
