"""Headers of plain JPEG, PNG and WebP files, read faster than Pillow does.

Only what Pillow is certain to open without a warning is accepted, and only size and mode are found
out. Whatever else is in a header is Pillow's to read.

Sources: JPEG, ITU-T T.81, annex B; Exif 2.32; PNG, third edition; WebP, RFC 9649, sections 2.3 to
2.6; VP8, RFC 6386, section 9.1; Pillow's plugins for these for what they refuse.
"""

from __future__ import annotations

import functools
import mmap
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from ..._base.pixel_limit import is_within
from .stamps import Stamp

SETTLED = frozenset({"JPEG", "BMP"})
"""Formats whose ``info`` is complete once the header is read, and knows no transparent colour."""

HEAD = 2048  # bytes that are read first: tables and frame header of a file without thumbnail
PNG_HEAD = 26  # up to the depth and the colour type
_MOST_SEGMENTS = 200
# Quantization tables, frames, the scan, and applications whose segments Pillow takes apart.
_LOOKED_INTO = frozenset({0xDB, 0xC0, 0xC1, 0xC2, 0xDA, 0xE0, 0xE1, 0xE2, 0xED, 0xEE})
_MODES = {1: "L", 3: "RGB", 4: "CMYK"}
_PLAIN_CHUNKS = frozenset(
    (b"IHDR", b"IDAT", b"IEND", b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"pHYs", b"tIME", b"tEXt")
)
_PNG_MODES = {b"\x08\x00": "L", b"\x08\x02": "RGB", b"\x10\x00": "I;16"}  # by depth and colour type
_PNG_MODES_OF_8_BITS = {0: "L", 2: "RGB", 3: "P", 4: "LA", 6: "RGBA"}  # by colour type
# Chunks that Pillow keeps or passes over where it opens a PNG, and the fewest bytes that it takes.
_NOTED_CHUNKS = {
    b"PLTE": 0, b"gAMA": 4, b"cHRM": 32, b"sRGB": 1, b"pHYs": 9, b"tEXt": 0, b"bKGD": 0,
    b"sBIT": 0, b"tIME": 0,
}  # fmt: skip
MOST_SIDE = 65_535  # that the core takes
_EMPTY_CHUNK = 12  # bytes
_WINDOW = 1 << 15  # of zlib, the largest one
_EXIF_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8}


class Header(NamedTuple):
    """What a header says."""

    size: tuple[int, int]  # width and height
    mode: str  # Pillow's
    plain: bool  # it is known that ``getexif`` would find nothing
    end: int  # where Pillow stops reading: after the header of the first scan or of the pixels
    format: str = "JPEG"


def of_file(read: Callable[[int, int], bytes]) -> Header | None:
    """The header of a plain JPEG, PNG or WebP; None: let Pillow read it.

    ``read(count, offset)`` gives the bytes that are there, fewer at the end of the file.
    """
    head = read(HEAD, 0)
    if head[:1] == b"\x89":
        return _png(head)
    return _webp(read, head) if head[:1] == b"R" else jpeg(read, head)


def _png(head: bytes) -> Header | None:
    """The header of a PNG whose pixels begin in ``head``, without a transparent colour."""
    if head[:16] != b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" or len(head) < 29:
        return None
    width, height, depth, colors, *methods = struct.unpack_from(">LLBBBBB", head, 16)
    mode = _PNG_MODES_OF_8_BITS.get(colors)
    if depth != 8 or mode is None or not width or not height or any(methods[:2]):
        return None
    kinds = set()
    for kind, begin, end in _chunks(head):
        if kind == b"IDAT":
            if mode == "P" and b"PLTE" not in kinds:
                return None
            return Header((width, height), mode, False, begin + 8, "PNG")
        if kind == b"tEXt" and head[begin + 8 : begin + 20] == b"transparency":
            return None  # which Pillow takes for a colour
        if begin > 8 and end - begin - _EMPTY_CHUNK < _NOTED_CHUNKS.get(kind, len(head)):
            return None
        checksum = int.from_bytes(head[end - 4 : end], "big")
        if end > len(head) or zlib.crc32(memoryview(head)[begin + 4 : end - 4]) != checksum:
            return None
        kinds.add(kind)
    return None


def _webp(read: Callable[[int, int], bytes], head: bytes) -> Header | None:
    """The header of a whole WebP file of one image and nothing else; ``head``: its begin."""
    if head[:4] != b"RIFF" or head[8:12] != b"WEBP" or len(head) < 30:
        return None
    riff, nbytes = struct.unpack_from("<L8xL", head, 4)
    end = riff + 8
    if riff != 12 + nbytes + (nbytes & 1) or len(read(2, end - 1)) != 1:
        return None
    if head[12:16] == b"VP8 ":
        tag = int.from_bytes(head[20:23], "little")
        shown_key_frame, profile, first_part = tag & 0x11 == 0x10, tag >> 1 & 7, tag >> 5
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", head, 26))
        sound = head[23:26] == b"\x9d\x01\x2a" and width and height
        if sound and shown_key_frame and profile <= 3 and first_part < nbytes:
            return Header((width, height), "RGB", True, end, "WEBP")
    elif head[12:16] == b"VP8L" and head[20] == 0x2F and nbytes >= 5:
        bits = int.from_bytes(head[21:25], "little")
        size = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        if not bits >> 29:  # the version
            return Header(size, "RGBA" if bits >> 28 else "RGB", True, end, "WEBP")
    return None


def jpeg(read: Callable[[int, int], bytes], head: bytes | None = None) -> Header | None:
    """The header of a JPEG; ``head``: its first bytes, if they were read."""
    head, base, offset = read(HEAD, 0) if head is None else head, 0, 2
    if head[:3] != b"\xff\xd8\xff":
        return None
    size: tuple[int, int] | None = None
    mode, dpi, exif, plain = "", False, None, True
    there = len(head)
    for _ in range(_MOST_SEGMENTS):
        # The segment begins at ``offset``, and is all there, or all of it that matters.
        if offset + 4 > there:
            base, offset, head = base + offset, 0, read(HEAD, base + offset)
            there = len(head)
            if there < 4:
                return None
        if head[offset] != 0xFF:
            return None
        marker, length = head[offset + 1], head[offset + 2] << 8 | head[offset + 3]
        if length < 2:
            return None
        needed = length + 2
        if offset + needed > there and marker in _LOOKED_INTO:
            base, offset, head = base + offset, 0, read(needed + HEAD, base + offset)
            there = len(head)
            if there < needed:
                return None
        body = offset + 4
        if marker == 0xC4 or marker == 0xDD or marker == 0xFE:
            pass
        elif marker == 0xDB:
            bytes_left = length - 2
            while bytes_left > 0:
                table = 65 if head[body] < 16 else 129
                bytes_left -= table
                body += table
            if bytes_left:
                return None
        elif marker == 0xE0:
            if head[body : body + 4] == b"JFIF":
                if length < 16:
                    return None
                dpi = dpi or head[body + 7] in (1, 2)
        elif marker == 0xC0 or marker == 0xC1 or marker == 0xC2:
            if length < 8:
                return None
            components = head[body + 5]
            if size is not None or head[body] != 8 or length != 8 + 3 * components:
                return None
            if components not in _MODES:
                return None
            size = head[body + 3] << 8 | head[body + 4], head[body + 1] << 8 | head[body + 2]
            mode = _MODES[components]
        elif marker == 0xDA:
            if size is None or size[0] == 0 or size[1] == 0:
                return None
            if exif is not None and not dpi and not exif_is_plain(exif):
                return None  # Pillow looks for the resolution, and may warn of what it finds
            return Header(size, mode, plain, base + offset + needed)
        elif marker == 0xE1:
            plain = False
            if head[body : body + 6] == b"Exif\0\0":
                if exif is not None:
                    return None
                exif = head[body : body + length - 2]
        elif marker == 0xE2:
            start = head[body : body + 12]
            if start[:4] == b"MPF\0" or (start == b"ICC_PROFILE\0" and length < 16):
                return None
        elif marker == 0xED:
            segment = head[body : body + length - 2]
            if segment.startswith(b"Photoshop 3.0\0") and not _photoshop_is_plain(segment):
                return None
        elif marker == 0xEE:
            if head[body : body + 5] == b"Adobe" and length < 14:
                return None
        elif marker < 0xE0 or marker > 0xEF:
            return None
        offset += needed
    return None


def _photoshop_is_plain(segment: bytes) -> bool:
    """Whether Pillow gets through the resources in a segment, or stops where it may."""
    offset, end = 14, len(segment)
    while segment[offset : offset + 4] == b"8BIM":
        offset += 6
        if offset > end:
            return True
        if offset == end:
            return False  # the length of the name
        offset += 1 + segment[offset]
        offset += offset & 1
        if offset + 4 > end:
            return True
        offset += 4 + int.from_bytes(segment[offset : offset + 4], "big")
        offset += offset & 1
    return True


def png(head: bytes) -> tuple[str, tuple[int, int]] | None:
    """Mode and size of a PNG: "RGB", "L", or "I;16", as Pillow calls gray of 16 bits.

    None: it has another mode, is empty or too large, or the first ``PNG_HEAD`` bytes of a file are
    not those of a PNG.

    Source: PNG, third edition, section 11.2.1.
    """
    if head[:16] != b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" or head[24:26] not in _PNG_MODES:
        return None
    size = int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    sound = 0 < min(size) and max(size) <= MOST_SIDE and is_within(*size)
    return (_PNG_MODES[head[24:26]], size) if sound else None


def is_plain_png(data: bytes) -> bool:
    """Whether a PNG file is whole, and nothing but its pixels changes what a decoder gives.

    No checksum is wrong, and there is no palette, transparent colour, orientation or animation.

    Source: PNG, third edition, sections 5.3 to 5.6.
    """
    begun = False
    for kind, begin, end in _chunks(data):
        if kind not in _PLAIN_CHUNKS or end > len(data):
            return False
        if kind == b"IDAT" and end - begin > _EMPTY_CHUNK and not begun:
            begun = True
            if not _may_refer_to_all(data, data[begin + 8]):
                return False
        checksum = int.from_bytes(data[end - 4 : end], "big")
        if zlib.crc32(memoryview(data)[begin + 4 : end - 4]) != checksum:
            return False
        if kind == b"IEND":
            return True
    return False


def _may_refer_to_all(data: bytes, method: int) -> bool:
    """Whether the pixels of a PNG of a known mode fit the window that its first byte announces.

    libpng refuses what refers further back. Source: zlib, RFC 1950, section 2.2.
    """
    window = 1 << (method >> 4) + 8
    if window >= _WINDOW:
        return True
    mode, (width, height) = png(data) or ("", (0, 0))
    row = 1 + width * {"RGB": 3, "I;16": 2}.get(mode, 1)
    return not data[28] and height * row <= window  # byte 28: interlaced


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Kind, begin and end of each chunk of a PNG file."""
    begin = 8
    while begin + 12 <= len(data):
        end = begin + 12 + int.from_bytes(data[begin : begin + 4], "big")
        yield data[begin + 4 : begin + 8], begin, end
        begin = end


def png_ends_with_pixels(data: bytes) -> bool:
    """Whether nothing comes after the pixels of a PNG file that Pillow might add to ``info``."""
    return [kind for kind, _, _ in _chunks(data)][-2:] == [b"IDAT", b"IEND"]


def png_without_exif(data: bytes) -> bool:
    """Whether no chunk of a whole PNG file has something that Pillow's ``getexif`` would find.

    Source: PNG, third edition, sections 5.3 and 11.3.
    """
    for kind, _, _ in _chunks(data):
        if kind in (b"eXIf", b"tEXt", b"zTXt", b"iTXt"):
            return False
        if kind == b"IEND":
            return True
    return False


def exif_is_plain(segment: bytes) -> bool:
    """Whether Pillow reads an EXIF segment ("Exif" first) without a warning: every value in it.

    Only the first directory is looked at, as Pillow does when it opens a file.
    """
    data = segment[6:]
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(data[:4])
    if order is None or len(data) < 8:
        return False
    (directory,) = struct.unpack_from(order + "L", data, 4)
    if directory + 2 > len(data):
        return False
    (count,) = struct.unpack_from(order + "H", data, directory)
    if directory + 2 + 12 * count + 4 > len(data) or directory < 8:
        return False
    entry = struct.Struct(order + "HHL4s")
    for k in range(count):
        tag, kind, values, inline = entry.unpack_from(data, directory + 2 + 12 * k)
        unit = _EXIF_SIZES.get(kind)
        if unit is None:
            return False
        if tag in (0x011A, 0x011B, 0x0128) and values != 1:
            return False
        if unit * values > 4:
            (offset,) = struct.unpack(order + "L", inline)
            if offset + unit * values > len(data):
                return False
    return True


# 12 MB of memory that is taken as it is written to, by all workers together.
_PLACES: Final = 1 << 19
_WORDS: Final = 3
_PROBES: Final = 4  # places where an entry may be; when they are all taken, it is not kept

# Format and mode, which an entry has 4 bits for.
_KINDS: Final = (
    *(("JPEG", mode) for mode in _MODES.values()),
    *(("PNG", mode) for mode in _PNG_MODES_OF_8_BITS.values()),
    ("WEBP", "RGB"),
    ("WEBP", "RGBA"),
)
_NUMBERS: Final = {kind: number for number, kind in enumerate(_KINDS)}
_SIDE: Final = 0xFFFF
_END: Final = 0xFFFFFFFF
_WHOLE: Final = 0xFFFFFFFFFFFFFFFF


class HeaderTable:
    """Headers of files that were read before, by path and stamp: for all workers, in any epoch.

    To open a file, read its header and take that apart costs three times what asking for its stamp
    does.

    Note [No lock]
        Workers share one table of fixed size, forked from the process that made it, and write to it
        at any time. A place is written once, its tag last. Two writers may still leave parts of two
        entries in one place. So each word has a part of the key in it, and an entry counts only if
        all of them fit: a file is taken for another one in less than one case of 2^60.
    """

    def __init__(self) -> None:
        self._words = memoryview(mmap.mmap(-1, _PLACES * _WORDS * 8)).cast("Q")

    def find(self, path: str, stamp: Stamp) -> Header | None:
        """The header of the file at ``path``, which is absolute, if it is known.

        The time of change in its stamp tells of changed permissions, too.
        """
        tag, check = _key(path, stamp)
        words = self._words
        for probe in range(_PROBES):
            word = (tag + probe) % _PLACES * _WORDS
            stored_tag = words[word]
            if stored_tag == tag:
                facts, end = words[word + 1], words[word + 2]
                if facts >> 40 != check & 0xFFFFFF or end >> 32 != check >> 24:
                    return None
                size = facts & _SIDE, facts >> 16 & _SIDE
                format, mode = _KINDS[facts >> 32 & 15]
                return Header(size, mode, bool(facts >> 36 & 1), end & _END, format)
            if not stored_tag:
                return None
        return None

    def keep(self, path: str, stamp: Stamp, header: Header) -> None:
        """Keep a header, if there is a place for it. Arguments as for ``find``."""
        tag, check = _key(path, stamp)
        words = self._words
        (width, height), mode, plain, end, format = header
        if width > _SIDE or height > _SIDE or end > _END:
            return
        for probe in range(_PROBES):
            word = (tag + probe) % _PLACES * _WORDS
            if not words[word]:
                facts = width | height << 16 | _NUMBERS[format, mode] << 32 | plain << 36
                words[word + 1] = facts | (check & 0xFFFFFF) << 40
                words[word + 2] = end | check >> 24 << 32
                words[word] = tag
                return


def _key(path: str, stamp: Stamp) -> tuple[int, int]:
    """A tag of 64 bits that is not 0, and 56 further bits."""
    # ``hash`` of a str is salted, but the same in forked workers, which share the table.
    return hash((path, stamp)) & _WHOLE | 1, hash((stamp, path)) & 0xFFFFFFFFFFFFFF


@functools.cache
def header_table() -> HeaderTable:
    """The one of this process and of the workers that it forks after the first call."""
    return HeaderTable()
