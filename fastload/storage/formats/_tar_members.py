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
MAX_NAME = 4096  # bytes of a name that is read
MAX_EXTENSIONS = 1000  # different ones in one archive

_REGULAR, _PAX, _GLOBAL, _LONG_NAME, _LONG_LINK = b"\0007", b"x", b"g", b"L", b"K"
_FOLDER, _LABEL = b"5", b"V"
_REFUSED = {
    b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device",
    b"6": "a pipe", b"S": "a sparse file", b"M": "a part of a file", b"D": "a listing",
}  # fmt: skip


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


class _Refused(Exception):
    """Why a header cannot be accepted; "{name}" stands for the name."""

    def __init__(self, why: str, name: bytes = b"") -> None:
        self.why, self.name = why, name
        super().__init__(why)


def members(data: Mapped, path: str) -> Members:
    """The members of a whole archive.

    Args:
        data: the file, mapped.
        path: for messages.

    Raises:
        StoreError: truncated, damaged, not a tar, or with members that lead out of the folder or
            are not plain files.
    """
    from ... import _native

    core = _native.load()
    walk = _Walk()
    at, why, name, *parts = walk.run(data) if core is None else core.tar_members(data)
    if why:
        shown = repr(name[:200].decode("utf-8", "replace"))
        message = f"{why.replace('{name}', shown)}; copy it again or pack it again"
        raise StoreError(message, path=path, offset=at)
    if core is None:
        return walk.members()
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


class _Walk:
    """``members`` without the core."""

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self.stems: list[int] = []
        self.kinds: list[int] = []
        self.firsts: list[int] = []
        self.offsets: list[int] = []
        self.lengths: list[int] = []
        self.extensions: dict[bytes, int] = {}
        self._last: bytes | None = None  # the stem of the member before

    def members(self) -> Members:
        return Members(
            names=Blobs.of(self.names),
            stem=np.array(self.stems, np.int32),
            extension=np.array(self.kinds, np.int16),
            extensions=list(self.extensions),
            first=np.array(self.firsts, np.uint8),
            offset=np.array(self.offsets, np.int64),
            nbytes=np.array(self.lengths, np.int64),
        )

    def run(self, data: Mapped) -> tuple[int, str, bytes]:
        """Where the walk ended, what is wrong there ("" if nothing is), and the member's name."""
        try:
            self._run(data, 0)
        except _Refused as error:
            return self._at, error.why, error.name
        return self._at, "", b""

    def _run(self, data: Mapped, at: int) -> None:
        end = len(data)
        name: bytes | None = None  # from a pax or GNU header before the member
        size: int | None = None
        while True:
            self._at = at
            if end - at < BLOCK:
                raise _Refused("the archive is truncated: expected another header or the end mark")
            header = bytes(data[at : at + BLOCK])
            if header.count(0) == BLOCK:
                if name is not None or size is not None:
                    raise _Refused("the archive ends after an extended header")
                if np.frombuffer(data, np.uint8, offset=at).any():
                    raise _Refused("something follows the end mark of the archive")
                return
            _check(header)
            kind = header[156:157]
            own = _number(header[124:136])
            holds = kind not in (_FOLDER, b"1", b"2", b"3", b"4", b"6", _LABEL)
            nbytes = (
                own if size is None or kind in (_PAX, _GLOBAL, _LONG_NAME, _LONG_LINK) else size
            )
            if not holds:
                nbytes = 0
            begin = at + BLOCK
            if nbytes > end - begin:
                raise _Refused(
                    f"the archive is truncated: expected {nbytes} bytes of data, found "
                    f"{end - begin}"
                )
            at = min(end, begin + nbytes + (-nbytes % BLOCK))
            if kind in (_PAX, _GLOBAL):
                found = _extended(data, begin, begin + nbytes)
                if kind == _PAX:
                    name = found.get(b"path", name)
                    size = int(found[b"size"]) if b"size" in found else size
                elif found:
                    raise _Refused("an extended header gives all members one path or size")
                continue
            if kind == _LONG_NAME:
                if nbytes > MAX_NAME:
                    raise _Refused(f"a name of {nbytes} bytes")
                name = bytes(data[begin : begin + nbytes]).split(b"\0")[0]
                continue
            if kind == _LONG_LINK:
                continue
            full = _plain_name(header) if name is None else name
            name = size = None
            if kind in _REFUSED:
                raise _Refused(f"{{name}} is {_REFUSED[kind]}", full)
            if kind in (_FOLDER, _LABEL):
                continue
            if kind not in (b"\0", b"0", b"7"):
                raise _Refused("{name} is of an unknown type", full)
            if kind != b"7" and full.endswith(b"/"):
                continue  # a folder in the oldest archives
            self._member(full, begin, nbytes)

    def _member(self, name: bytes, begin: int, nbytes: int) -> None:
        while name.startswith(b"./"):
            name = name[2:]
        if len(name) > MAX_NAME:
            raise _Refused(f"a name of {len(name)} bytes")
        if name.startswith(b"/") or b".." in name.split(b"/") or b"\0" in name:
            raise _Refused("the name {name} leads out of its folder", name)
        base = name.rfind(b"/") + 1
        dot = name.find(b".", base)
        if dot <= base or name.startswith(b"__", base):
            # WebDataset's own notes, hidden files, names without an extension: also among the
            # members of a sample, as macOS's tar writes them
            return
        extension = name[dot + 1 :].lower()
        if len(self.extensions) >= MAX_EXTENSIONS and extension not in self.extensions:
            raise _Refused(f"more than {MAX_EXTENSIONS} different endings of names")
        self.names.append(name)
        self.stems.append(dot)
        self.kinds.append(self.extensions.setdefault(extension, len(self.extensions)))
        self.firsts.append(int(name[:dot] != self._last))
        self.offsets.append(begin)
        self.lengths.append(nbytes)
        self._last = name[:dot]


def _check(header: bytes) -> None:
    """The checksum: of all bytes, its own taken as blanks; unsigned, or signed in old archives."""
    stored = _number(header[148:156])
    without = header[:148] + b" " * 8 + header[156:]
    unsigned = sum(without)
    signed = unsigned - 256 * sum(1 for byte in without if byte > 127)
    if stored not in (unsigned, signed):
        raise _Refused("expected the header of a tar member, found other bytes or a damaged one")


def _number(field: bytes) -> int:
    """Octal digits ended by blanks or zeros; or base 256 where the first bit is set."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    text = field.split(b"\0")[0].strip(b" ")
    if text.strip(b"01234567"):
        raise _Refused("expected a number in octal digits in a tar header, found other bytes")
    return int(text or b"0", 8)


def _plain_name(header: bytes) -> bytes:
    name = header[:100].split(b"\0")[0]
    if header[257:263] == b"ustar\0":
        prefix = header[345:500].split(b"\0")[0]
        if prefix:
            return prefix + b"/" + name
    return name


def _extended(data: Mapped, begin: int, end: int) -> dict[bytes, bytes]:
    """path and size from the extended header [begin, end): lines "LENGTH KEY=VALUE"."""
    found: dict[bytes, bytes] = {}
    at = begin
    while at < end and data[at] != 0:
        blank = data.find(b" ", at, min(at + 12, end))
        digits = bytes(data[at:blank]) if blank > at else b""
        if not digits.isdigit() or not blank - at + 2 < int(digits) <= end - at:
            raise _Refused("an extended header is damaged")
        stop = at + int(digits)
        equals = data.find(b"=", blank, stop)
        if equals < 0 or data[stop - 1] != 10:
            raise _Refused("an extended header is damaged")
        key = bytes(data[blank + 1 : equals])
        if key.startswith(b"GNU.sparse"):
            raise _Refused("a sparse file")
        if key in (b"path", b"size"):
            value = bytes(data[equals + 1 : stop - 1])
            if len(value) > MAX_NAME or (
                key == b"size" and not (value.isdigit() and len(value) < 19)
            ):
                raise _Refused(f"an extended header holds no {key.decode()}")
            found[key] = value
        at = stop
    return found


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
