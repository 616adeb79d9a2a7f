"""What to type next where a file is no store: how to make one of it."""

from __future__ import annotations

import os
import shlex

from ..errors import MissingDependencyError, type_next
from ._mapped import COMPRESSED
from ._packable import is_packable
from ._read import open_regular
from .folder import is_image
from .registry import format_of

# How files of formats begin that have a suffix (offset, bytes, suffix).
_BEGINS = (
    (257, b"ustar", ".tar"),
    (0, b"\x89HDF\r\n\x1a\n", ".h5"),
    (0, b"PAR1", ".parquet"),
)
_TAR_SHORT = {".tgz": ".tar", ".tbz2": ".tar", ".tbz": ".tar", ".txz": ".tar", ".tzst": ".tar"}
_HEAD = 512  # bytes that are read of a file


def no_store(path: str) -> str:
    """The end of a message about the file ``path``, which is no store: what to type next."""
    if is_packable(path):
        return f"; it has to be packed first{type_next(_pack(path))}"
    if is_image(path):
        line = f"fastload info {shlex.quote(os.path.dirname(path))}"
        return f"; an image is read as part of its folder{type_next(line)}"
    head = _head(path)
    for begin, tool in COMPRESSED:
        if head.startswith(begin):
            return f"; {tool} has to decompress it first{type_next(_decompressed(path, tool))}"
    if head.startswith(b"PK\x03\x04") and path.lower().endswith(".zip"):
        folder = path[: -len(".zip")]
        line = f"unzip -n {shlex.quote(path)} -d {shlex.quote(folder)} && {_pack(folder)}"
        return f"; its files have to be unpacked first{type_next(line)}"
    suffix = _suffix_of(head)
    if suffix is not None:
        link = path + suffix
        line = f"ln -s {shlex.quote(path)} {shlex.quote(link)} && fastload info {shlex.quote(link)}"
        return f"; it looks like such a file, so link it by a name with {suffix}{type_next(line)}"
    line = "fastload pack mymodule:MyDataset imgs.lmdb"
    return (
        "; no format that fastload reads: pack the images that it was made of, a list of them "
        f"(.csv), or a Dataset that reads it{type_next(line)}"
    )


def _pack(path: str) -> str:
    return f"fastload pack {shlex.quote(path)} imgs.lmdb"


def _decompressed(path: str, tool: str) -> str:
    """The line that decompresses ``path`` and packs the result."""
    stem, suffix = os.path.splitext(path)
    out = stem + _TAR_SHORT.get(suffix.lower(), "")
    if format_of(out) is None and not is_packable(out):
        out += ".tar"  # what else is compressed
    if os.path.lexists(out):  # is not overwritten
        return _pack(out)
    return f"{tool} -dc {shlex.quote(path)} > {shlex.quote(out)} && {_pack(out)}"


def _head(path: str) -> bytes:
    try:
        with open(path, "rb", opener=open_regular) as file:
            return file.read(_HEAD)
    except OSError:
        return b""  # the message says what the name tells


def _suffix_of(head: bytes) -> str | None:
    """The suffix of the format that begins like this, if it is known."""
    for at, begin, suffix in _BEGINS:
        if head[at:].startswith(begin):
            return suffix
    from .formats import _tfrecord_frames as tfrecord

    try:
        begin = tfrecord.head(int.from_bytes(head[:8], "little"))  # with a checksum
    except MissingDependencyError:
        return None  # it cannot be told without checksums
    return ".tfrecord" if head.startswith(begin) else None
