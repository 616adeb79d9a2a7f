"""WebDataset tar archives: reader and writer of ``NAME.tar``. The layout is in SPECIFICATION.md.

A sample is a run of members with the same name before the first dot of its last part: key.cls,
key.json, key.jpg; members that are skipped do not end it. Everything else lies in the sidecar.
Archives that other programs wrote are scanned when they are opened.

    block 0   name 100 | mode 8 | uid 8 | gid 8 | size 12 | mtime 12 | checksum 8 | type 1
              | link 100 | magic 6 | version 2 | user 32 | group 32 | device 16 | prefix 155, zeros
    data      `size` bytes, zeros up to a multiple of 512
    end       blocks of zeros

The core reads ustar, pax (path and size from extended headers), GNU (long names, sizes in base 256)
and the old form without a magic. Sources: POSIX.1-2017, "pax", ustar and pax formats; GNU tar's
manual, "Basic Tar Format"; for what a sample is, WebDataset.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ... import _native
from ...errors import StoreError, UsageError
from .._fields import (
    RESERVED,
    Blobs,
    Field,
    FieldColumn,
    Strings,
    encode_json,
    encode_text,
    json_object,
    label_column,
)
from .._mapped import Mapped, MappedFiles
from .._probe import image_format
from .._read import part_of, read_places
from ..base import DCT, ENCODED, RAW, Batch, Spans
from ..folder import IMAGE_SUFFIXES, SPLITS
from ..registry import Apart, Format
from ..stream import SHARD, STORE, StreamWriter, open_ranged, read_stream
from ..table import Framing, Table, TableStore

BLOCK = 512

_PAX = b"x"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Members:
    """The regular files of an archive that belong to samples, in order.

    Attributes:
        names: as bytes, without a leading "./".
        stem: int32 (n,), length of the part of the name that all members of a sample share.
        extension: int16 (n,), index into ``extensions`` of the part after the following dot.
        extensions: in lower case.
        first: uint8 (n,), 1 where a sample starts.
        offset, nbytes: int64 (n,), of the data.
    """

    names: Blobs
    stem: np.ndarray
    extension: np.ndarray
    extensions: list[bytes]
    first: np.ndarray
    offset: np.ndarray
    nbytes: np.ndarray


def members(data: Mapped, path: str) -> Members:
    """The members of a whole archive."""
    core = _native.required("a tar archive without a sidecar needs the native core")
    at, why, name, *parts = core.tar_members(data)
    if why:
        shown = repr(name[:200].decode("utf-8", "replace"))
        message = f"{why.replace('{name}', shown)}; copy it again or pack it again"
        raise StoreError(message, path=path, offset=at)
    names, ends, stem, extension, first, offset, nbytes, extensions = parts
    return Members(
        names=Blobs(np.frombuffer(names, np.uint8), np.frombuffer(ends, np.int64)),
        stem=np.frombuffer(stem, np.int32),
        extension=np.frombuffer(extension, np.int16),
        extensions=list(extensions),
        first=np.frombuffer(first, np.uint8),
        offset=np.frombuffer(offset, np.int64),
        nbytes=np.frombuffer(nbytes, np.int64),
    )


def check(data: Mapped, begin: int, end: int) -> tuple[int, list[tuple[int, str]]]:
    """As ``Framing.check``, of the headers from ``begin`` on; the first damaged one ends it."""
    stop = min(len(data), end + -end % BLOCK)
    core = _native.load()
    if core is None:
        return stop, []  # as without the core no archive is scanned
    at, why, *_ = core.tar_members(memoryview(data)[begin:stop])
    if begin + at == stop < len(data):
        why = ""  # only the part that was given ends there, not the archive
    return stop, [(begin + at, why)] if why else []


_REST = (
    b"0000644\0" b"0000000\0" b"0000000\0"  # mode, uid, gid; then size
    b"%s\0" b"00000000000\0" b"%s\0 %s" + bytes(100) + b"ustar\00000" + bytes(80)
)  # fmt: skip
_CONSTANT = sum(_REST.replace(b"%s", b"")) + 8 * ord(" ") - ord(" ")


def header(name: bytes, nbytes: int, kind: bytes = b"0") -> bytes:
    """The header of a new member: one block, or three for a long name."""
    short, prefix = name, b""
    if len(name) > 100:
        cut = name.find(b"/", len(name) - 101)
        if 0 < cut <= 155:
            prefix, short = name[:cut], name[cut + 1 :]
        else:
            line = _pax_line(b"path", name)
            return (
                header(b"pax", len(line), _PAX) + line + bytes(-len(line) % BLOCK)
                + header(b"long", nbytes, kind)
            )  # fmt: skip
    size = b"%011o" % nbytes
    checksum = _CONSTANT + sum(short) + sum(prefix) + sum(size) + kind[0]
    rest = _REST % (size, b"%06o" % checksum, kind)
    return b"".join((short.ljust(100, b"\0"), rest, prefix.ljust(167, b"\0")))


def owned(member: bytes, user: bytes, group: bytes) -> bytes:
    """``member``, which starts with a ``header``, with the names of its user and group."""
    block = bytearray(member[:BLOCK])
    block[265:329] = user.ljust(32, b"\0") + group.ljust(32, b"\0")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + member[BLOCK:]


def owner(begin: bytes) -> tuple[bytes, bytes]:
    """The names of user and group in the header at the start of ``begin``."""
    return begin[265:297].rstrip(b"\0"), begin[297:329].rstrip(b"\0")


def _pax_line(key: bytes, value: bytes) -> bytes:
    """ "LENGTH KEY=VALUE": the length counts itself."""
    body = b" " + key + b"=" + value + b"\n"
    length = len(body)
    while len(b"%d" % length) + len(body) != length:
        length = len(b"%d" % length) + len(body)
    return b"%d" % length + body


NAME = "tar"
KINDS = {b"rgb": RAW, b"dct": DCT}  # extensions of records that only fastload reads
_IMAGES = {*(suffix[1:].encode() for suffix in IMAGE_SUFFIXES), b"gif", *KINDS}  # extensions
_LABEL, _JSON = b"cls", b"json"
_MAX_DIGITS = 20  # of a label


_FIELD_KINDS = {b"json": "json", b"txt": "text", b"cls": "text"}


def scan(files: Sequence[str]) -> Table:
    """The table of archives; members that are neither image nor label are fields."""
    return _Scan(files).table


class MemberStrings(Strings):
    """The contents of members of archives, one for each sample, read when they are used.

    Where a length is -1, the sample has no such member, and ``nothing`` is its value.
    """

    def __init__(self, files: Sequence[str], spans: Spans, nothing: bytes) -> None:
        self._files, self._spans, self._nothing = files, spans, nothing

    def take(self, indices: np.ndarray, path: str | None = None) -> list[bytes]:
        values = [self._nothing] * len(indices)
        spans = part_of(self._spans, indices)
        order = np.argsort(spans.file, kind="stable")  # one archive after the other
        there = order[spans.nbytes[order] >= 0]
        found = read_places(self._files, indices[there], part_of(spans, there))
        for at, value in zip(there.tolist(), found):
            values[at] = value
        return values

    def whole(self) -> Blobs:
        return Blobs.of(self.take(np.arange(len(self._spans.file))))

    def check(self, count: int, name: str, path: str | None) -> None:
        """The archives were checked when they were scanned."""


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

    def _fields(self, extras: Mapping[bytes, Spans]) -> Iterator[tuple[str, FieldColumn]]:
        for ending, spans in extras.items():
            name = ending.decode("utf-8", "replace")
            name = f"member.{name}" if name in RESERVED else name
            kind = _FIELD_KINDS.get(ending.rsplit(b".", 1)[-1], "bytes")
            if 0 < len(name) <= 100 and name.isprintable():
                nothing = b"null" if kind == "json" else b""
                strings = MemberStrings(self._files, spans, nothing)
                yield name, FieldColumn(Field(name, kind), strings)

    def _with(self, extension: bytes) -> np.ndarray:
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
                f"expected an image in every sample, found none in {self._key(member)!r}; "
                "the members of a sample must follow one another (tar --sort=name)",
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
        places = (column[chosen].tolist() for column in (self._file, self._offset, self._nbytes))
        return [bytes(self._data[file][at : at + n]) for file, at, n in zip(*places, strict=True)]

    def _class_labels(self) -> np.ndarray | None:
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

    def _others(self, images: np.ndarray, used: set[bytes]) -> dict[bytes, Spans]:
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
            spans = Spans(
                file=np.zeros(self._count, np.int32),
                offset=np.zeros(self._count, np.int64),
                nbytes=np.full(self._count, -1, np.int64),
            )
            spans.file[samples], spans.offset[samples] = self._file[chosen], self._offset[chosen]
            spans.nbytes[samples] = self._nbytes[chosen]
            extras[extension] = spans
        return extras

    def _kinds(self, images: np.ndarray) -> np.ndarray:
        table = [KINDS.get(extension, ENCODED) for extension in self._extensions]
        kinds: np.ndarray = np.array([*table, ENCODED], np.uint8)[self._extension[images]]
        return kinds

    def _described_labels(self) -> tuple[np.ndarray | None, bool]:
        """The "label" in each member "json", if all have one that is one; whether any has."""
        texts = (text for text in self._read(self._with(_JSON)) if b"label" in text)
        values = [value for text in texts if (value := json_object(text).get("label")) is not None]
        if len(values) == self._count:
            with contextlib.suppress(UsageError):  # no numbers: they stay in the field
                return label_column(values), True
        return None, bool(values)

    def _sizes(self, kinds: np.ndarray) -> np.ndarray | None:
        raw = np.flatnonzero(kinds == RAW)
        if not len(raw):
            return None
        sizes = np.zeros((self._count, 2), np.int32)
        chosen = self._with(_JSON)
        texts = dict(zip(self._sample[chosen].tolist(), self._read(chosen)))
        for row in raw.tolist():
            described = json_object(texts.get(row, b""))
            size = [described.get("width"), described.get("height")]
            if not all(type(side) is int and 0 < side < 1 << 24 for side in size):
                raise StoreError(
                    "expected width and height of raw pixels in the json member, found none",
                    path=self._files[0],
                    record=row,
                )
            sizes[row] = np.array(size)
        return sizes


def _merged(archives: Sequence[Members]) -> tuple[list[bytes], np.ndarray]:
    number_of: dict[bytes, int] = {}
    parts = []
    for archive in archives:
        numbers = [number_of.setdefault(ending, len(number_of)) for ending in archive.extensions]
        parts.append(np.array([*numbers, -1], np.int64)[archive.extension])
    return list(number_of), np.concatenate(parts)


_ENDINGS = {"jpeg": b"jpg", "tiff": b"tif", "other": b"img"}
# Parts of a name that every reader understands in the same way.
_SAFE = re.compile(rb"(?!__)(?!.*~\d+\Z)[^\0-\x1f\\:.]+\Z")


# The user name of a store's first member; its group name is the mark. Readers ignore both.
_USER = b"fastload"


def _mark_of(begin: bytes) -> bytes | None:
    user, group = owner(begin)
    return group if user == _USER and group in (STORE, SHARD) else None


def read_tar(path: str) -> Table:
    """The table of WebDataset shards; without a sidecar, other members are fields."""
    framing = Framing(sums_records=False, check=check)
    return read_stream(path, NAME, mark=_mark_of, scan=scan, framing=framing)


class TarWriter(StreamWriter):
    """Writes WebDataset shards."""

    format = NAME

    @staticmethod
    def shard_name(path: str, number: int, count: int) -> str:
        """As WebDataset's own writer names them."""
        stem, suffix = os.path.splitext(os.path.basename(path))
        return f"{stem}-{number:06d}{suffix}"

    def trailer(self) -> bytes:
        return bytes(2 * BLOCK)

    def frames(self, first: int, batch: Batch) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """Label, JSON and fields, then the header of the image; its padding."""
        before, after = [], []
        labels = None if batch.labels is None else label_column(batch.labels).tolist()
        kinds, sizes = batch.kinds.tolist(), batch.sizes.tolist()
        # The extension of the store's first key; keys with another one get an index.
        ending = self.first_key(batch).rpartition(b"/")[2].partition(b".")[2]
        for i, (data, key) in enumerate(zip(batch.data, batch.keys)):
            name, described = _stem(encode_text(key), ending, first + i)
            facts: dict[str, Any] = {} if described else {"key": key}
            parts = []
            if labels is not None:
                if type(labels[i]) is int:
                    parts.append(_member(name + b".cls", b"%d" % labels[i]))
                else:
                    facts["label"] = labels[i]
            if kinds[i] == RAW:
                facts["width"], facts["height"] = sizes[i]
            for field, values in batch.fields.items():
                kind = batch.field_kinds.get(field, "bytes")
                if isinstance(values, np.ndarray):
                    facts[field] = values[i].tolist()
                elif kind == "bytes":
                    ending_ = _member_ending(field, values[i])
                    parts.append(_member(b"%s.%s" % (name, ending_), values[i]))
                else:
                    facts[field] = _decoded(Field(field, kind), bytes(values[i]), key)
            if facts:
                parts.append(_member(name + b".json", encode_json(facts)))
            own = b".%s" % _image_ending(data, kinds[i])
            parts.append(header(name + own, len(data)))
            if first + i == 0:
                parts[0] = owned(parts[0], _USER, SHARD if self._sharded else STORE)
            before.append(b"".join(parts))
            after.append(bytes(-len(data) % BLOCK))
        return before, after


def _decoded(field: Field, value: bytes, key: str) -> object:
    try:
        return field.decode(value)
    except ValueError as error:
        raise UsageError(
            f"{key!r}: expected {field.kind} in the field {field.name!r}, found something else: "
            f"{error}"
        ) from error


def _stem(key: bytes, ending: bytes, index: int) -> tuple[bytes, bool]:
    """The name of a sample's members, and whether ``key`` can be restored from it.

    No two keys get the same name: keys with the store's own extension keep the part before it, all
    others get their index.
    """
    parts = key.split(b"/")
    base, _, own = parts[-1].partition(b".")
    safe = all(_SAFE.match(part) for part in (*parts[:-1], base)) and len(key) < 1000
    name = b"/".join((*parts[:-1], base)) if safe else b"sample"
    if safe and own == ending:
        return name, True
    return b"%s~%08d" % (name, index), False


def _image_ending(data: bytes | memoryview, kind: int) -> bytes:
    if kind != ENCODED:
        return next(ending for ending, own in KINDS.items() if own == kind)
    form = image_format(data)
    return _ENDINGS.get(form, form.encode())


def _member_ending(field: str, value: bytes | memoryview) -> bytes:
    """The extension of the member that holds a field of bytes, such as mask.png."""
    name = re.sub(rb"[^\w-]", b"_", encode_text(field)).lower()
    form = image_format(value)
    return name + b"." + (b"bin" if form == "other" else _ENDINGS.get(form, form.encode()))


def _member(name: bytes, data: bytes | memoryview) -> bytes:
    return b"".join((header(name, len(data)), data, bytes(-len(data) % BLOCK)))


FORMAT = Format(
    name="tar",
    title="tar",
    suffixes=(".tar",),
    open=functools.partial(TableStore, read=read_tar),
    writer=TarWriter,
    options=frozenset({"shards"}),
    ranged=functools.partial(open_ranged, format=NAME, read=read_tar),
    apart=Apart(writer=TarWriter, name=TarWriter.shard_name),
)
