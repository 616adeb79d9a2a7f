"""Several stores read as one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .base import Spans, Store


class ConcatStore(Store):
    """The records of ``stores``, one store after the other.

    Args:
        stores: at least one. Labels are kept only where every store has them; classes are those of
            the first store.
    """

    format = "concat"

    def __init__(self, stores: Sequence[Store]) -> None:
        self.stores = list(stores)
        self.path = ", ".join(store.path for store in self.stores)
        self.classes = self.stores[0].classes
        self.metadata: dict[str, Any] = {}
        self.mapped = all(store.mapped for store in self.stores)
        self._labels: np.ndarray | None = None
        self._ends = np.cumsum([len(store) for store in self.stores], dtype=np.int64)
        self._first_file = np.cumsum([0] + [len(store.files) for store in self.stores[:-1]])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def files(self) -> Sequence[str]:
        return list(itertools.chain.from_iterable(store.files for store in self.stores))

    def file_table(self) -> tuple[bytes, np.ndarray]:
        tables = [store.file_table() for store in self.stores]
        starts = np.cumsum([0] + [len(blob) for blob, _ in tables[:-1]])
        ends = [end + start for (_, end), start in zip(tables, starts, strict=True)]
        return b"".join(blob for blob, _ in tables), np.concatenate(ends)

    def mapped_files(self) -> np.ndarray:
        return np.concatenate([store.mapped_files() for store in self.stores])

    def _gather(
        self, indices: np.ndarray, empty: np.ndarray, part: Callable[[int, np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """Fill ``empty`` (len(indices), ...) with ``part(number of the store, local indices)``."""
        which = np.searchsorted(self._ends, indices, side="right")
        for number in np.unique(which):
            mine = which == number
            start = self._ends[number - 1] if number else 0
            empty[mine] = part(int(number), indices[mine] - start)
        return empty

    def spans(self, indices: np.ndarray) -> Spans:
        def part(number: int, local: np.ndarray) -> np.ndarray:
            spans = self.stores[number].spans(local)
            file = spans.file + self._first_file[number]
            return np.stack([file, spans.offset, spans.nbytes], axis=1)

        table = self._gather(indices, np.empty((len(indices), 3), np.int64), part)
        return Spans(
            file=table[:, 0].astype(np.int32),
            offset=np.ascontiguousarray(table[:, 1]),
            nbytes=np.ascontiguousarray(table[:, 2]),
        )

    def tables(self) -> Spans:
        parts = [store.tables() for store in self.stores]
        files = [part.file + first for part, first in zip(parts, self._first_file, strict=True)]
        return Spans(
            file=np.concatenate(files, dtype=np.int32),
            offset=np.concatenate([part.offset for part in parts]),
            nbytes=np.concatenate([part.nbytes for part in parts]),
        )

    def kinds(self, indices: np.ndarray) -> np.ndarray:
        kinds = np.empty(len(indices), np.uint8)
        return self._gather(indices, kinds, lambda k, local: self.stores[k].kinds(local))

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        sizes = np.empty((len(indices), 2), np.int32)
        return self._gather(indices, sizes, lambda k, local: self.stores[k].sizes(local))

    @property
    def labels(self) -> np.ndarray | None:
        if self._labels is None:
            columns = [store.labels for store in self.stores]
            known = [column for column in columns if column is not None]
            if len(known) == len(columns):
                self._labels = np.concatenate(known)
                self._labels.flags.writeable = False
        return self._labels

    def keys(self, indices: np.ndarray) -> list[str]:
        names = np.empty(len(indices), object)

        def part(number: int, local: np.ndarray) -> np.ndarray:
            return np.array(self.stores[number].keys(local), object)

        return list(self._gather(indices, names, part))

    def checksums(self, indices: np.ndarray) -> np.ndarray | None:
        none = np.empty(0, np.int64)
        if any(store.checksums(none) is None for store in self.stores):
            return None

        def part(number: int, local: np.ndarray) -> np.ndarray:
            column = self.stores[number].checksums(local)
            assert column is not None  # checked above
            return column

        return self._gather(indices, np.empty(len(indices), np.uint32), part)

    def close(self) -> None:
        for store in self.stores:
            store.close()
