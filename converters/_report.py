"""The report of a run of ``pack``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class Skipped:
    """A source file that was left out.

    Attributes:
        path: of the file.
        reason: why, in words.
        record: number of the sample in the source.
    """

    path: str
    reason: str
    record: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedPart:
    """One finished store.

    Attributes:
        path: of the store.
        records: in it.
        classes: how many.
        labels: their type, such as "int64" or "float32 (40)"; None without labels.
        nbytes: total size of the records, without the store's own tables.
        resumed: how many of the records an earlier, interrupted run had written.
    """

    path: str
    records: int
    classes: int
    labels: str | None
    nbytes: int
    resumed: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackReport:
    """What ``pack`` returns.

    Attributes:
        parts: the stores; one, unless ``split`` was given.
        skipped: files left out, with ``on_error="skip"``.
        kept: with ``encode="dct"``, why files were kept unchanged instead -> number of such files.
            (Those of an earlier, interrupted run are not counted.)
        seconds: wall time.
    """

    parts: tuple[PackedPart, ...]
    skipped: tuple[Skipped, ...]
    kept: Mapping[str, int]
    seconds: float

    @property
    def records(self) -> int:
        """Records in all parts."""
        return sum(part.records for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of the records of all parts."""
        return sum(part.nbytes for part in self.parts)
