"""Tar archives: reading their members, and headers for new members.

    block 0   name 100 | mode 8 | uid 8 | gid 8 | size 12 | mtime 12 | checksum 8 | type 1
              | link 100 | magic 6 | version 2 | user 32 | group 32 | device 16 | prefix 155, zeros
    data      `size` bytes, zeros up to a multiple of 512
    end       blocks of zeros

It reads ustar, pax (path and size from extended headers), GNU (long names, sizes in base 256) and
the old form without a magic. Sources: POSIX.1-2017, "pax", ustar and pax formats; GNU tar's manual,
"Basic Tar Format". How members are grouped into samples is WebDataset's rule: a sample is a run of
members with one name up to the first dot of its last part; members that are skipped do not end it.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ...errors import StoreError
from .._fields import Blobs
from .._mapped import Mapped

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
    from ... import _native

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
