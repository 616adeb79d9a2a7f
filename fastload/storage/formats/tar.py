"""WebDataset tar archives: reader and writer of ``NAME.tar``. The layout is in SPECIFICATION.md.

A sample is a run of members with the same name before the first dot: key.cls, key.json, key.jpg.
Everything else lies in the sidecar. Archives that other programs wrote are scanned when they are
opened (``_tar_scan.py``).
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import UsageError
from .._fields import Field, encode_json, encode_text, label_column
from .._signatures import image_format
from ..base import ENCODED, RAW, Batch
from ..registry import Apart, Format
from ..stream import SHARD, STORE, StreamWriter, open_ranged, read_stream
from ..table import Table, TableStore
from . import _tar_scan
from ._tar_members import BLOCK, header, owned, owner

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
    return read_stream(path, _tar_scan.NAME, mark=_mark_of, scan=_tar_scan.scan)


class TarWriter(StreamWriter):
    """Writes WebDataset shards."""

    format = _tar_scan.NAME

    @staticmethod
    def shard_name(path: str, number: int, count: int) -> str:
        """As WebDataset's own writer names them."""
        stem, suffix = os.path.splitext(os.path.basename(path))
        return f"{stem}-{number:06d}{suffix}"

    def trailer(self) -> bytes:
        """Two blocks of zeros."""
        return bytes(2 * BLOCK)

    def frames(self, first: int, batch: Batch) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """Label, JSON and fields, then the header of the image; its padding."""
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

    def _ending(self, batch: Batch) -> bytes:
        """The extension of the store's first key; keys with another one get an index."""
        key = self.first_key(batch)
        return key[key.rfind(b"/") + 1 :].partition(b".")[2]


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
        return next(ending for ending, known in _tar_scan.KINDS.items() if known == kind)
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
    ranged=functools.partial(open_ranged, format=_tar_scan.NAME, read=read_tar),
    apart=Apart(writer=TarWriter, name=TarWriter.shard_name),
)
