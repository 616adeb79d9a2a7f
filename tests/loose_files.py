"""A store of records that a test writes, damages and moves as it likes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastload.storage._crc import crc32c
from fastload.storage.base import Spans, Store


class LooseFiles(Store):
    """Records one after the other in a file.

    Args:
        path: of the file, which is written.
        records: their bytes.
        sizes: (width, height) of each.
        kind: of all, or of each.
    """

    format = "test"
    classes: Sequence[str] = ()
    metadata: dict[str, Any] = {}
    mapped = False

    def __init__(
        self, path: Path, records: Sequence[bytes], sizes: Any, kind: int | Sequence[int]
    ) -> None:
        self.path = str(path)
        self._kinds = np.broadcast_to(np.array(kind, np.uint8), len(records))
        self._sizes = np.array(sizes, np.int32)
        self.crcs = np.array([crc32c(record) for record in records], np.uint32)
        lengths = np.array([len(record) for record in records])
        self._offset = np.cumsum(lengths) - lengths + 5
        self._nbytes = lengths
        path.write_bytes(b"head:" + b"".join(records))

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def files(self) -> Sequence[str]:
        return [self.path]

    def spans(self, indices: np.ndarray) -> Spans:
        return Spans(
            file=np.zeros(len(indices), np.int32),
            offset=self._offset[indices],
            nbytes=self._nbytes[indices],
        )

    def kinds(self, indices: np.ndarray) -> np.ndarray:
        return self._kinds[indices]

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        return self._sizes[indices]

    @property
    def labels(self) -> np.ndarray | None:
        return None

    def keys(self, indices: np.ndarray) -> list[str]:
        return [str(index) for index in indices]

    def checksums(self, indices: np.ndarray) -> np.ndarray | None:
        return self.crcs[indices]
