"""Tar archives without a sidecar: their table by WebDataset's grouping of members."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import StoreError, UsageError
from .._fields import RESERVED, Blobs, Field, FieldColumn, Strings, label_column
from .._mapped import MappedFiles
from .._read import open_regular, read_range
from ..base import DCT, ENCODED, RAW
from ..folder import SPLITS
from ..table import Table
from ._tar_members import Members, members

NAME = "tar"
KINDS = {b"rgb": RAW, b"dct": DCT}  # extensions of records that only fastload reads
_IMAGES = (
    b"jpg",
    b"jpeg",
    b"png",
    b"webp",
    b"bmp",
    b"gif",
    b"tif",
    b"tiff",
    b"ppm",
    b"pgm",
    *KINDS,
)
_LABEL, _JSON = b"cls", b"json"
_MAX_DIGITS = 20  # of a label


_FIELD_KINDS = {b"json": "json", b"txt": "text", b"cls": "text"}

_Places = tuple[np.ndarray, np.ndarray, np.ndarray]  # file, offset, nbytes


def scan(files: Sequence[str]) -> Table:
    """The table of archives; members that are neither image nor label are fields."""
    return _Scan(files).table


class MemberStrings(Strings):
    """The contents of members of archives, one for each sample, read when they are used.

    Where a length is -1, the sample has no such member, and ``nothing`` is its value.
    """

    def __init__(self, files: Sequence[str], places: _Places, nothing: bytes) -> None:
        self._files, self._places, self._nothing = files, places, nothing

    def __len__(self) -> int:
        return len(self._places[0])

    def take(self, indices: np.ndarray, path: str | None = None) -> list[bytes]:
        values = [self._nothing] * len(indices)
        files, offsets, lengths = (place[indices] for place in self._places)
        opened, descriptor = -1, -1
        try:
            # One archive after the other: a store may have more of them than files may be open.
            for at in np.argsort(files, kind="stable").tolist():
                file, nbytes, record = int(files[at]), int(lengths[at]), int(indices[at])
                if nbytes < 0:
                    continue
                name = self._files[file]
                if file != opened:
                    if descriptor >= 0:
                        os.close(descriptor)
                        opened, descriptor = -1, -1
                    try:
                        descriptor = open_regular(name)
                    except OSError as error:
                        raise StoreError(
                            f"the archive cannot be read: {error.strerror}",
                            path=name,
                            record=record,
                        ) from error
                    opened = file
                values[at] = read_range(
                    descriptor, nbytes, int(offsets[at]), path=name, record=record
                )
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        return values

    def whole(self) -> Blobs:
        return Blobs.of(self.take(np.arange(len(self))))

    def check(self, count: int, name: str, path: str | None) -> None:
        """The archives were checked when they were scanned."""
        assert len(self) == count  # one for each sample


class _Scan:
    """The samples of the archives ``files``, in order, and their ``table``."""

    def __init__(self, files: Sequence[str]) -> None:
        self._data = MappedFiles(files)
        self._files = list(files)
        archives = [members(self._data[number], path) for number, path in enumerate(files)]
        self._extensions, self._extension = _merged(archives)
        counts = [len(archive.stem) for archive in archives]
        self._file = np.repeat(np.arange(len(files), dtype=np.int32), counts)
        self._offset = np.concatenate([archive.offset for archive in archives])
        self._nbytes = np.concatenate([archive.nbytes for archive in archives])
        first = np.concatenate([archive.first for archive in archives])
        self._sample = np.cumsum(first, dtype=np.int64) - 1
        self._count = int(self._sample[-1]) + 1 if len(self._sample) else 0
        self._names = Blobs.join([archive.names for archive in archives])
        self._stem = np.concatenate([archive.stem for archive in archives])
        images = self._choose_images()
        used = {_LABEL} if (labels := self._class_labels()) is not None else set()
        extras = self._others(images, used)
        shown: tuple[str, ...] | None = None
        if labels is None:
            labels, described = self._described_labels()
            if labels is None and (described or _LABEL in extras):
                # see Note [Labels that are none]
                shown = tuple(ending.decode() for ending in (_LABEL, _JSON) if ending in extras)
        classes: list[str] = []
        if labels is None and not extras:
            classes, labels = self._class_folders(images)
        kinds = self._kinds(images)
        self.table = Table(
            format=NAME,
            files=self._files,
            file=self._file[images],
            offset=self._offset[images],
            nbytes=self._nbytes[images],
            keys=self._keys(images),
            labels=labels,
            sizes=self._sizes(kinds),
            kinds=kinds,
            classes=classes,
            fields=dict(self._fields(extras)),
            sample_fields=shown,
        )

    def _fields(self, extras: Mapping[bytes, _Places]) -> Iterator[tuple[str, FieldColumn]]:
        """Members as fields, by their extensions."""
        for ending, places in extras.items():
            name = ending.decode("utf-8", "replace")
            name = f"member.{name}" if name in RESERVED else name
            kind = _FIELD_KINDS.get(ending.rsplit(b".", 1)[-1], "bytes")
            if 0 < len(name) <= 100 and name.isprintable():
                nothing = b"null" if kind == "json" else b""
                strings = MemberStrings(self._files, places, nothing)
                yield name, FieldColumn(Field(name, kind), strings)

    def _with(self, extension: bytes) -> np.ndarray:
        """The members with this extension."""
        if extension not in self._extensions:
            return np.empty(0, np.int64)
        return np.flatnonzero(self._extension == self._extensions.index(extension))

    def _choose_images(self) -> np.ndarray:
        """The member of each sample that is its image: key.jpg rather than key.input.jpg."""
        rank = np.full(len(self._extensions) + 1, 9, np.int8)
        for number, extension in enumerate(self._extensions):
            if extension in _IMAGES:
                rank[number] = 0
            elif extension.rsplit(b".", 1)[-1] in _IMAGES:
                rank[number] = 1
        ranks = rank[self._extension]
        images = np.flatnonzero(ranks < 9)
        if (ranks[images] == 1).any() or len(images) != self._count:
            images = images[np.lexsort((images, ranks[images], self._sample[images]))]
            _, chosen = np.unique(self._sample[images], return_index=True)
            images = images[chosen]
        there = np.zeros(self._count, bool)
        there[self._sample[images]] = True
        without = np.flatnonzero(~there)
        if len(without):
            member = int(np.searchsorted(self._sample, without[0]))
            raise StoreError(
                f"expected an image in every sample, found none in {self._key(member)!r}",
                path=self._files[int(self._file[member])],
                record=int(without[0]),
                offset=int(self._offset[member]),
            )
        return images

    def _key(self, member: int) -> str:
        (name,) = self._names.take(np.array([member]))
        return name[: int(self._stem[member])].decode("utf-8", "replace")

    def _keys(self, images: np.ndarray) -> Blobs:
        names = self._names.take(images)
        return Blobs.of([name[:stem] for name, stem in zip(names, self._stem[images].tolist())])

    def _read(self, chosen: np.ndarray) -> list[bytes]:
        return [
            bytes(self._data[file][at : at + nbytes])
            for file, at, nbytes in zip(
                self._file[chosen].tolist(),
                self._offset[chosen].tolist(),
                self._nbytes[chosen].tolist(),
            )
        ]

    def _class_labels(self) -> np.ndarray | None:
        """The numbers in the members "cls"; None unless every sample has one."""
        chosen = self._with(_LABEL)
        if not np.array_equal(self._sample[chosen], np.arange(self._count)):
            return None
        if len(chosen) and int(self._nbytes[chosen].max()) > _MAX_DIGITS:
            return None
        try:
            return np.array([int(text) for text in self._read(chosen)], np.int64)
        except (ValueError, OverflowError):
            return None  # names, not numbers: they remain a field

    def _class_folders(self, images: np.ndarray) -> tuple[list[str], np.ndarray | None]:
        """Classes and labels of an archive of class folders, numbered as by ImageFolder.

        Folders above all images are not classes. There are no labels if an image lies beside the
        class folders, or if these are the parts of a split dataset.
        """
        folders = [name.split(b"/")[:-1] for name in self._names.take(images)]
        if not folders:
            return [], None
        ends = zip(min(folders), max(folders))  # what these two share, all share
        depth = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], ends))
        if min(map(len, folders)) <= depth:
            return [], None
        names = np.array([folder[depth] for folder in folders])
        distinct, labels = np.unique(names, return_inverse=True)
        classes = [name.decode("utf-8", "surrogateescape") for name in distinct.tolist()]
        if all(name.lower() in SPLITS for name in classes):
            return [], None
        return classes, labels.reshape(-1).astype(np.int64)

    def _others(self, images: np.ndarray, used: set[bytes]) -> dict[bytes, _Places]:
        """The members that are neither image nor label, by their extensions."""
        is_image = np.zeros(len(self._extension), bool)
        is_image[images] = True
        extras = {}
        for number, extension in enumerate(self._extensions):
            chosen = np.flatnonzero((self._extension == number) & ~is_image)
            if not len(chosen) or extension in used:
                continue
            samples = self._sample[chosen]
            twice = np.flatnonzero(np.diff(samples) == 0)
            if len(twice):
                member = int(chosen[twice[0] + 1])
                raise StoreError(
                    f"expected each member of a sample once, found two of {self._key(member)!r}",
                    path=self._files[int(self._file[member])],
                    record=int(samples[twice[0]]),
                    offset=int(self._offset[member]),
                )
            file = np.zeros(self._count, np.int32)
            offset = np.zeros(self._count, np.int64)
            nbytes = np.full(self._count, -1, np.int64)
            file[samples], offset[samples] = self._file[chosen], self._offset[chosen]
            nbytes[samples] = self._nbytes[chosen]
            extras[extension] = file, offset, nbytes
        return extras

    def _kinds(self, images: np.ndarray) -> np.ndarray:
        table = [KINDS.get(extension, ENCODED) for extension in self._extensions]
        kinds: np.ndarray = np.array([*table, ENCODED], np.uint8)[self._extension[images]]
        return kinds

    def _described_labels(self) -> tuple[np.ndarray | None, bool]:
        """The "label" in each member "json", if all have one that is one; whether any has."""
        texts = (text for text in self._read(self._with(_JSON)) if b"label" in text)
        values = [value for text in texts if (value := _described(text).get("label")) is not None]
        if len(values) == self._count:
            with contextlib.suppress(UsageError):  # no numbers: they stay in the field
                return label_column(values), True
        return None, bool(values)

    def _sizes(self, kinds: np.ndarray) -> np.ndarray | None:
        """The sizes of raw pixels, which are written in the member "json"."""
        raw = np.flatnonzero(kinds == RAW)
        if not len(raw):
            return None
        sizes = np.zeros((self._count, 2), np.int32)
        chosen = self._with(_JSON)
        texts = dict(zip(self._sample[chosen].tolist(), self._read(chosen)))
        for row in raw.tolist():
            described = _described(texts.get(row, b""))
            size = [described.get("width"), described.get("height")]
            if not all(type(side) is int and 0 < side < 1 << 24 for side in size):
                raise StoreError(
                    "expected width and height of raw pixels in the json member, found none",
                    path=self._files[0],
                    record=row,
                )
            sizes[row] = np.array(size)
        return sizes


def _described(text: bytes) -> dict[str, Any]:
    """The JSON object in a member "json"; empty if it is something else: the field shows that."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _merged(archives: Sequence[Members]) -> tuple[list[bytes], np.ndarray]:
    """The extensions in all archives, and that of each member."""
    number_of: dict[bytes, int] = {}
    parts = []
    for archive in archives:
        numbers = [number_of.setdefault(ending, len(number_of)) for ending in archive.extensions]
        parts.append(np.array([*numbers, -1], np.int64)[archive.extension])
    return list(number_of), np.concatenate(parts)
