"""The format of an image file, from its first bytes."""

from __future__ import annotations

_SIGNATURES = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG", "png"),
    (b"BM", "bmp"),
    (b"GIF8", "gif"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"P5", "pgm"),
    (b"P6", "ppm"),
)


def image_format(data: bytes | memoryview) -> str:
    """By the first 12 bytes: jpeg, png, bmp, gif, tiff, pgm, ppm, webp, or other."""
    start = bytes(data[:12])
    if start[:4] == b"RIFF" and start[8:] == b"WEBP":
        return "webp"
    return next((name for magic, name in _SIGNATURES if start.startswith(magic)), "other")
