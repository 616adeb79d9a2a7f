"""Tar, as WebDataset has it: reader and writer of ``NAME.tar``. The layout is in docs/formats.md.

A sample is a run of members with one name before the first dot: key.cls, key.json, key.jpg. What
a store of ours knows beyond that lies in its sidecar; archives that others wrote are scanned once
when they are opened (``_tar_scan.py``).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._fields import RESERVED, Field, encode_text, label_column
from .._read import open_regular
from .._sidecar import SHARD, STORE, stream_table
from .._signatures import image_format
from ..table import Table, TableStore
from ..base import ENCODED, RAW, Batch
from ..registry import Format
from . import _tar_scan
from ..stream import StreamWriter
from ._tar_members import BLOCK, header, owned, owner

_ENDINGS = {"jpeg": b"jpg", "tiff": b"tif", "other": b"img"}
_FIELD_KINDS = {b"json": "json", b"txt": "text", b"cls": "text"}
# What a part of a name may be, so that every reader takes it for what it is.
_SAFE = re.compile(rb"(?!__)(?!.*~\d+\Z)[^\0-\x1f\\:.]+\Z")


_USER = (
    b"fastload"  # of a store's first member; its group is the mark: no reader needs to know them
)


def _mark_of(begin: bytes) -> bytes | None:
    user, group = owner(begin)
    return group if user == _USER and group in (STORE, SHARD) else None


class TarStore(TableStore):
    """Reads WebDataset shards: one archive, or several."""

    format = _tar_scan.NAME
    _extras: Mapping[str, tuple[Field, Any]] = {}

    def _load(self, path: str) -> Table:
        return stream_table(path, self.format, mark=_mark_of, scan=self._scanned)

    def _scanned(self, files: Sequence[str]) -> Table:
        scan = _tar_scan.Scan(files)
        self._extras = dict(_named(scan.extras))
        return scan.table

    @property
    def fields(self) -> Mapping[str, Field]:
        """As in the contract; without a sidecar, the other members of the samples."""
        found = super().fields
        return {**found, **{name: field for name, (field, _) in self._extras.items()}}

    def values(self, name: str, indices: np.ndarray) -> list[bytes]:
        """As in the contract. A sample without this member has nothing there, or JSON's null."""
        table = self._table
        if name not in self._extras:
            return super().values(name, indices)
        field, places = self._extras[name]
        nothing = b"null" if field.kind == "json" else b""
        found = []
        opened: dict[int, int] = {}
        try:
            for file, offset, nbytes in zip(*(place[indices].tolist() for place in places)):
                if file not in opened and nbytes >= 0:
                    opened[file] = open_regular(table.files[file])
                found.append(os.pread(opened[file], nbytes, offset) if nbytes >= 0 else nothing)
        finally:
            for descriptor in opened.values():
                os.close(descriptor)
        return found

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_extras", None)
        return state


def _named(extras: Mapping[bytes, Any]) -> list[tuple[str, tuple[Field, Any]]]:
    """Members as fields, by their endings."""
    named = []
    for ending, places in extras.items():
        name = ending.decode("utf-8", "replace")
        name = f"member.{name}" if name in RESERVED else name
        kind = _FIELD_KINDS.get(ending.rsplit(b".", 1)[-1], "bytes")
        if 0 < len(name) <= 100 and name.isprintable():
            named.append((name, (Field(name, kind), places)))
    return named


class TarWriter(StreamWriter):
    """Writes WebDataset shards."""

    format = _tar_scan.NAME

    def shard_name(self, number: int, count: int) -> str:
        """As WebDataset's own writer counts them."""
        stem, suffix = os.path.splitext(os.path.basename(self.path))
        return f"{stem}-{number:06d}{suffix}"

    def trailer(self) -> bytes:
        """Two blocks of zeros."""
        return bytes(2 * BLOCK)

    def frames(self, first: int, batch: Batch) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """As in the contract: label, JSON and fields, then the header of the image; its padding."""
        before, after = [], []
        labels = None if batch.labels is None else label_column(batch.labels).tolist()
        kinds, sizes = batch.kinds.tolist(), batch.sizes.tolist()
        ending = self._ending(batch)
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
                    text = bytes(values[i]).decode("utf-8")
                    facts[field] = json.loads(text) if kind == "json" else text
            if facts:
                parts.append(_member(name + b".json", _json(facts)))
            own = b".%s" % _image_ending(data, kinds[i])
            parts.append(header(name + own, len(data)))
            if first + i == 0:
                parts[0] = owned(parts[0], _USER, SHARD if self._sharded else STORE)
            before.append(b"".join(parts))
            after.append(bytes(-len(data) % BLOCK))
        return before, after

    def _ending(self, batch: Batch) -> bytes:
        """The ending of the store's first key; others get their index into the name."""
        chunks = self._partial.chunks
        earlier = chunks[0].keys if chunks else self._columns[0].keys if self._columns else None
        key = (
            encode_text(batch.keys[0])
            if earlier is None
            else earlier.take(np.zeros(1, np.int64))[0]
        )
        return key[key.rfind(b"/") + 1 :].partition(b".")[2]


def _stem(key: bytes, ending: bytes, index: int) -> tuple[bytes, bool]:
    """What the members of a sample are called, and whether ``key`` can be told from it.

    Two keys never get one name: those that end in the store's own ending keep what is before it,
    all others get their index.
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
        return next(ending for ending, known in _tar_scan.KINDS.items() if known == kind)
    found = image_format(data)
    return _ENDINGS.get(found, found.encode())


def _member_ending(field: str, value: bytes | memoryview) -> bytes:
    """A field of bytes is a member of its own, called after it: mask.png."""
    name = re.sub(rb"[^\w-]", b"_", encode_text(field)).lower()
    found = image_format(value)
    return name + b"." + (b"bin" if found == "other" else _ENDINGS.get(found, found.encode()))


def _member(name: bytes, data: bytes | memoryview) -> bytes:
    return b"".join((header(name, len(data)), data, bytes(-len(data) % BLOCK)))


def _json(facts: Mapping[str, Any]) -> bytes:
    return json.dumps(facts, ensure_ascii=False).encode("utf-8", "surrogateescape")


FORMAT = Format(
    name="tar",
    title="tar",
    suffixes=(".tar",),
    open=TarStore,
    writer=TarWriter,
    options=frozenset({"shards"}),
)
