"""What ``pack`` reads: numbered samples, in any order, and what is known of them beforehand."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DataError
from ..hints import Encoding
from ..storage import ENCODED

if TYPE_CHECKING:
    from PIL import Image

    from ._gather import Gatherer


@dataclasses.dataclass(frozen=True)
class Sample:
    """One sample of a source.

    Attributes:
        data: a record's bytes, or an image that has none.
        kind: of the bytes: ENCODED, RAW or DCT.
        size: width and height, where they are known.
        crc32c: of the bytes, where it is known to be right.
        written: whether the store that it comes from was written record by record with checksums:
            what is in it is not judged anew.
        label, fields: as in ``Record``, of sources that know them only when they read.
    """

    data: bytes | Image.Image
    kind: int = ENCODED
    size: tuple[int, int] | None = None
    crc32c: int | None = None
    written: bool = False
    label: Any = None
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Annotations:
    """Labels and fields of some samples, as ``Batch`` takes them."""

    labels: np.ndarray | None = None
    fields: Mapping[str, np.ndarray | Sequence[bytes]] = dataclasses.field(default_factory=dict)
    field_kinds: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Source(abc.ABC):
    """Samples to pack.

    Attributes:
        path: what the source is called in settings and messages.
        classes: class names, position = label.
        keys: name of every sample, each one once.
        encoding: what ``encode=None`` means for it.
        noted: what the store's metadata say of it, in the place of the options of ``pack``.
        identity: what stands for ``digest`` and the times of files, where these say nothing.
        concurrent: whether ``read`` may run in several threads at once.
        streamed: samples come out of ``stream``, from the first to the last, and how many there are
            is not known: no ``keys``, no ``read``.
    """

    path: str
    classes: Sequence[str] = ()
    keys: Sequence[str]
    encoding: Encoding = "keep"
    concurrent: bool = True
    streamed: bool = False
    identity: str | None = None
    noted: Mapping[str, Any] = MappingProxyType({})

    def __len__(self) -> int:
        return len(self.keys)

    @abc.abstractmethod
    def read(self, indices: np.ndarray) -> Iterator[Sample | DataError]:
        """The samples ``indices`` (int64) in turn; in the place of one, why it cannot be read."""

    @abc.abstractmethod
    def annotate(self, indices: np.ndarray, samples: Sequence[Sample]) -> Annotations:
        """Labels and fields of ``indices``, of which ``samples`` were read."""

    @abc.abstractmethod
    def digest(self) -> str:
        """A hash of what the source consists of; work on another one is not resumed."""

    def stream(self) -> Iterator[Sample | DataError]:
        """All samples, where ``streamed``."""
        raise NotImplementedError

    def key(self, index: int) -> str:
        """Name of one sample."""
        return self.keys[index]

    def gatherer(self) -> Gatherer | None:
        """What reads the samples faster than ``read``, where they are whole files."""
        return None

    def where(self, index: int) -> str:
        """The file of a sample, for messages."""
        return self.path

    def offset(self, index: int) -> int | None:
        """Where a sample begins in that file, of a source of which a file holds several."""
        return None

    def changed(self, index: int, since_ns: int) -> bool:
        """Whether a sample was changed after this time."""
        return False

    def sizes(self) -> np.ndarray | None:
        """int32 (n, 2), width and height of every image; None where they are not known."""
        return None
