"""Sizes in bytes as text, such as 256MB or 1.5 GiB, read and written."""

from __future__ import annotations

import re

from ..errors import UsageError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(I?))?B?", re.IGNORECASE)


def parse(text: str) -> int | None:
    """The bytes of ``text``, at least 1; None if it is not a size, or more than any file has.

    Units are KB, MB, GB, TB (powers of 1000) and KiB, MiB, GiB, TiB (powers of 1024), in any case,
    with or without the B.

    Example:
        >>> parse("1.5 GiB")
        1610612736
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    number, unit, binary = match.groups()
    power = " KMGT".index(unit.upper()) if unit else 0
    nbytes = float(number) * (1024 if binary else 1000) ** power
    return int(nbytes) or None if nbytes < 1 << 63 else None


def argument(name: str, value: object) -> int:
    """The bytes of the argument ``name``: a number, or text as for ``parse``; else UsageError."""
    nbytes = None if isinstance(value, (bool, float)) else parse(str(value))
    if nbytes is None:
        raise UsageError(
            f"{name}: expected bytes or a size such as '8GB' or '512MiB', got {value!r}"
        )
    return nbytes


def human(nbytes: float) -> str:
    """``nbytes`` in the largest binary unit below it: 1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def decimal(nbytes: int) -> str:
    """``nbytes`` in the largest power of 1000 below it: 1,500,000 -> "1.5 MB"."""
    for exponent, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "KB")):
        if nbytes >= 10**exponent:
            return f"{nbytes / 10**exponent:.1f} {unit}"
    return f"{nbytes} bytes"
