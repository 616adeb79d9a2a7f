"""Source: the numbered samples that ``pack`` reads, and what is known about them beforehand."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from ..errors import DataError
from ..hints import Encoding, JointKind
from ..storage import ENCODED
from ..storage._local import is_url
from ..storage.base import LeftOut
from ..storage.remote.urls import RemoteUrl

if TYPE_CHECKING:
    from PIL import Image

    from ._gather import Gatherer


@dataclasses.dataclass(frozen=True)
class Sample:
    """One sample of a source. Label and fields: of sources that know them only after reading."""

    data: bytes | Image.Image
    kind: int = ENCODED  # of the bytes: ENCODED, RAW or DCT
    size: tuple[int, int] | None = None  # width and height, if known
    crc32c: int | None = None  # of the bytes, if it was compared already
    written: bool = False  # to a store with checksums, so that it is not examined again
    label: object = None  # as in ``Record``, as fields are
    fields: Mapping[str, object] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class LabelsAndFields:
    """Labels and fields of some samples, as in ``Batch``."""

    labels: np.ndarray | None = None
    fields: Mapping[str, np.ndarray | Sequence[bytes]] = dataclasses.field(default_factory=dict)
    field_kinds: Mapping[str, str] = dataclasses.field(default_factory=dict)


def update_digest(
    digest: hashlib.blake2b,
    labels: np.ndarray | None,
    classes: Sequence[str],
    keys: Sequence[str] | None = None,
) -> None:
    """Add what samples are called and labelled to ``digest``."""
    if labels is not None:
        digest.update(labels.tobytes())
    for names in (classes,) if keys is None else (classes, keys):
        digest.update("\0".join(names).encode("utf-8", "surrogateescape"))


class PackSource(abc.ABC):
    """Samples to pack.

    Attributes:
        path: the name of the source in settings and messages.
        keys: the unique name of each sample.
        encoding: the default of ``encode``.
        noted: entries of the store's metadata that replace the options of ``pack``.
        identity: replaces ``digest``; None: that is used.
        concurrent: whether ``read`` may run in several threads at once.
        streamed: samples come from ``stream``, in order, and their number is unknown: there are no
            ``keys``, and ``read`` is not called.
        left_out: files of a folder that are no samples.
        joint: the fields that move with their images, and their kinds.
        faults: what is known to be wrong with samples before they are read, by index.
    """

    path: str
    classes: Sequence[str] = ()
    keys: Sequence[str]
    encoding: Encoding = "keep"
    concurrent: bool = True
    streamed: bool = False
    left_out: Sequence[LeftOut] = ()
    identity: str | None = None
    noted: Mapping[str, object] = MappingProxyType({})
    joint: Mapping[str, JointKind] = MappingProxyType({})
    faults: Mapping[int, str] = MappingProxyType({})

    def __len__(self) -> int:
        return len(self.keys)

    @abc.abstractmethod
    def read(self, indices: np.ndarray) -> Iterator[Sample | DataError]:
        """The samples ``indices`` (int64) in order; an error for one that cannot be read."""

    def ahead(self, parts: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """``parts`` (int64 indices) in turn, which ``read`` gets; the next ones may be fetched."""
        return iter(parts)

    @abc.abstractmethod
    def annotate(self, indices: np.ndarray, samples: Sequence[Sample]) -> LabelsAndFields:
        """Labels and fields of ``indices``, whose ``samples`` were read."""

    @abc.abstractmethod
    def digest(self) -> str:
        """A hash of the contents; unfinished work is resumed only for the same hash."""

    def stream(self) -> Iterator[Sample | DataError]:
        """All samples in order, if ``streamed``."""
        raise NotImplementedError

    def key(self, index: int) -> str:
        return self.keys[index]

    def gatherer(self) -> Gatherer | None:
        """A faster reader than ``read``, if the samples are whole files; else None."""
        return None

    def paths(self) -> list[str]:
        """What it is made of: its path, or those of several stores."""
        return [self.path]

    def name(self) -> str:
        """What a store notes as its source: without the folders of this machine above it."""
        return ", ".join(
            RemoteUrl(path).shown if is_url(path) else os.path.basename(os.path.normpath(path))
            for path in self.paths()
        )

    def where(self, index: int) -> str:
        """The file of a sample, for messages."""
        return self.path

    def offset(self, index: int) -> int | None:
        """Where a sample starts in its file, if files hold several samples; else None."""
        return None

    def changed(self, index: int, since_ns: int) -> bool:
        """Whether a sample was changed after this time."""
        return False

    def sizes(self) -> np.ndarray | None:
        """int32 (n, 2), width and height of every image; None if unknown."""
        return None
