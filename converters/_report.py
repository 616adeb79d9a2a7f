"""The report of a run of ``pack``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from .._base.byte_sizes import human
from .._tools.summary import describe_count, describe_labels, labels_of
from ..errors import DecodeError
from ..storage import Store
from ..storage.base import LeftOut
from ..storage.table import Table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Skipped:
    """A source file that was left out; ``record`` is its number in the source."""

    path: str
    reason: str
    record: int


def no_images(skipped: Sequence[Skipped]) -> DecodeError:
    files = f"none of {len(skipped):,} files is an image: " if len(skipped) > 1 else ""
    return DecodeError(f"{files}{skipped[0].reason}", path=skipped[0].path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedPart:
    """One finished store.

    Attributes:
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

    @classmethod
    def of(cls, path: str, store: Store | Table, nbytes: int, resumed: int) -> PackedPart:
        """The entry of the store ``path``, of which ``store`` knows labels and number."""
        return cls(
            path=path,
            records=len(store),
            classes=len(store.classes),
            labels=labels_of(store),
            nbytes=nbytes,
            resumed=resumed,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackReport:
    """What ``pack`` returns. A notebook shows it as a table with some of the images.

    Attributes:
        parts: the stores; one, unless ``split`` was given.
        skipped: files that are no images, with ``on_error="skip"``.
        left_out: files of the folder whose names are not those of images, counted by the reason.
            Those that are images can be packed by a list (CSV) that names them.
        kept: with ``encode="dct"``, why files were kept unchanged instead -> number of such files.
            (Those of an earlier, interrupted run are not counted.)
        joint: the fields that ``PackedDataset(path, joint=True)`` moves with the images: their
            kinds.
        seconds: wall time.
    """

    parts: tuple[PackedPart, ...]
    skipped: tuple[Skipped, ...]
    left_out: tuple[LeftOut, ...]
    kept: Mapping[str, int]
    joint: Mapping[str, str]
    seconds: float

    @property
    def records(self) -> int:
        """Records in all parts."""
        return sum(part.records for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of the records of all parts."""
        return sum(part.nbytes for part in self.parts)

    def _repr_html_(self) -> str:
        from ._notebook import report_html

        return report_html(self)


def contents(part: PackedPart) -> str:
    """What a store holds, for a line of text."""
    resumed = f", {part.resumed:,} of them by an earlier run" if part.resumed else ""
    labels = describe_labels(part.classes, part.labels)
    return f"{describe_count(part.records)}, {labels}, {human(part.nbytes)}{resumed}"


def pace(report: PackReport) -> str:
    """How long it took, and the speed; what an earlier run had written does not count."""
    new = report.records - sum(part.resumed for part in report.parts)
    return f"{report.seconds:.1f} s, {new / max(report.seconds, 1e-6):,.0f} images/s"
