"""How a store is divided into shards, what a shard is called, and which files a path stands for:
one file, a pattern, or a complete set of numbered shards."""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from collections.abc import Iterable

import numpy as np

from .._printable import without_credentials
from ..errors import StoreError, StoreNotFoundError, UsageError
from ._nearby import nothing_at

_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MAX_FILES = 1_000_000


@dataclasses.dataclass(frozen=True)
class Sharding:
    """How a store is divided: the options of ``open_writer``.

    Attributes:
        shards: the number of files, with equally many records.
        shard_nbytes: a file has at most this many bytes of records, and at least one record.
        total: the expected number of records; if there are fewer, the last shards are smaller.
    """

    shards: int | None = None
    shard_nbytes: int | None = None
    total: int | None = None

    def __post_init__(self) -> None:
        if self.shards is not None and self.shard_nbytes is not None:
            raise UsageError(
                f"shards: expected this or shard_nbytes, not both, got shards={self.shards} and "
                f"shard_nbytes={self.shard_nbytes}"
            )
        if self.shards is not None and self.shards < 1:
            raise UsageError(f"shards: expected at least 1, got {self.shards}")
        if self.shards is not None and self.total is None:
            raise UsageError(
                f"shards: expected a known number of records, got shards={self.shards} for a "
                "source whose length is unknown: give shard_nbytes"
            )
        if self.shard_nbytes is not None and self.shard_nbytes < 1:
            raise UsageError(f"shard_nbytes: expected at least 1, got {self.shard_nbytes}")

    @property
    def wanted(self) -> bool:
        return self.shards is not None or self.shard_nbytes is not None

    def settings(self) -> dict[str, int | None]:
        options = {"shards": self.shards, "shard_nbytes": self.shard_nbytes}
        return {**options, "total": self.total} if self.shards is not None else options

    def numbers(
        self, first: int, nbytes: np.ndarray, *, number: int, filled: int, beside: int = 0
    ) -> np.ndarray:
        """The shard of each record, ascending.

        The shard ``number`` holds the record before, and ``filled`` bytes. ``beside``: bytes of a
        shard that are not of records. A record that needs more room than is left gets a shard of
        its own.
        """
        if self.shards is not None:
            index = np.arange(first, first + len(nbytes))
            shards: np.ndarray = index * self.shards // max(self.total or 0, 1)
            return shards.clip(max=self.shards - 1)
        numbers, ends = np.full(len(nbytes), number), np.cumsum(nbytes)
        done = 0
        while self.shard_nbytes is not None and done < len(nbytes):
            before = int(ends[done - 1]) if done else 0
            room = self.shard_nbytes - beside - filled
            fit = int(np.searchsorted(ends, before + room, side="right"))
            done = max(fit, done if filled else done + 1)
            numbers[done:] += 1
            filled = 0
        return numbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardStart:
    """One shard that is written apart from the others: what its bytes depend on beside its records.

    That is the index in the whole store of its ``first`` record, and the store's first key.
    """

    first: int
    first_key: str


def shard_name(path: str, number: int, count: int) -> str:
    """File name of shard ``number`` of ``count`` of the store ``path``."""
    stem, suffix = os.path.splitext(os.path.basename(path))
    return f"{stem}-{number:05d}-of-{count:05d}{suffix}"


def is_pattern(path: str) -> bool:
    """Whether ``path`` is a pattern rather than the name of a file or of a set."""
    magic = glob.has_magic(path) or _BRACES.search(path) is not None
    return magic and not os.path.exists(path)


def data_files(path: str) -> list[str]:
    """The files of the store ``path``, in order, if no sidecar lists them.

    ``path``: a file; a pattern with ``*``, ``?``, ``[...]`` or numbers in braces; or
    ``NAME.SUFFIX`` for shards ``NAME-00000-of-00016.SUFFIX``.
    """
    if os.path.exists(path):
        return [path]
    if _BRACES.search(path):
        files = expand(path)
    elif glob.has_magic(path):
        files = sorted(glob.glob(path))
    else:
        files = _numbered(path)
    missing = [name for name in files if not os.path.isfile(name)]
    if files and not missing:
        return files
    if missing:
        raise StoreNotFoundError("a file of the set is missing", path=missing[0])
    hint = nothing_at(path)
    stem, suffix = os.path.splitext(path)
    shard = f"{stem}-000000{suffix}"  # the names of tar shards do not say how many there are
    if os.path.exists(shard) and not os.path.isdir(path + ".partial"):
        pattern = f"{glob.escape(stem)}-*{glob.escape(suffix)}"
        hint = (
            f": expected {path + '.fastload'!r}, the manifest of {os.path.basename(shard)!r} and "
            f"the others: put it back, or open the files as {pattern!r} to read what they alone "
            "hold"
        )
    raise StoreNotFoundError(f"expected a store, found nothing{hint}", path=path)


def expand(path: str) -> list[str]:
    """Every name that a path with ``{000000..000012}`` stands for."""
    match = _BRACES.search(path)
    if match is None:
        return [path]
    first, last = int(match[1]), int(match[2])
    if not 0 <= last - first < _MAX_FILES:
        raise StoreError(f"expected {{FIRST..LAST}} for up to {_MAX_FILES} files", path=path)
    head, tail = path[: match.start()], path[match.end() :]
    names = [f"{head}{number:0{len(match[1])}d}{tail}" for number in range(first, last + 1)]
    return [name for inner in names for name in expand(inner)]


def _numbered(path: str) -> list[str]:
    """The shards of ``NAME.SUFFIX``, including missing ones; empty if there are none.

    Only names that contain the number of shards: an incomplete set must not open.
    """
    stem, suffix = os.path.splitext(path)
    if os.path.isdir(path + ".partial"):
        return []
    return whole_set(glob.glob(f"{glob.escape(stem)}-*-of-*{glob.escape(suffix)}"), stem, suffix)


def whole_set(names: Iterable[str], stem: str, suffix: str) -> list[str]:
    """All shards of the set that ``names`` are of, in order; empty if none is numbered so.

    Raises:
        StoreError: ``names`` are of several sets.
    """
    numbered = re.compile(rf"{re.escape(stem)}-(\d+)-of-(\d+){re.escape(suffix)}")
    found = list(filter(None, map(numbered.fullmatch, sorted(names))))
    if not found:
        return []
    digits, count = min(len(match[1]) for match in found), found[0][2]  # 8, 9, 10 or 08, 09, 10
    path = without_credentials(stem + suffix)
    if int(count) > _MAX_FILES:
        raise StoreError(f"expected a set of up to {_MAX_FILES} files", path=path)
    whole = [f"{stem}-{i:0{digits}d}-of-{count}{suffix}" for i in range(int(count))]
    there = [match.string for match in found]
    other = sorted({*there}.difference(whole))
    if other:
        two = next(filter(whole.__contains__, there), there[-1]), other[0]
        raise StoreError(
            "expected one set of numbered files, found several, which "
            f"{' and '.join(map(os.path.basename, sorted(two)))} are of: name one by a pattern, "
            f"such as {os.path.basename(stem)}-*-of-{count}{suffix}",
            path=path,
        )
    return whole
