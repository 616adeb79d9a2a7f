"""Several stores read as one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ..errors import UsageError
from ._fields import type_of_labels, types_of_fields
from ._spans import Held, HeldTogether
from .base import Field, Spans, Store

_Value = TypeVar("_Value")


class ConcatStore(Store):
    """The records of ``stores``, at least one, one store after the other.

    There are labels only if every store has them; classes are those of the first store. ``labels``:
    of all records, as numbers of the first store's classes; None: those of the stores.
    """

    format = "concat"

    def __init__(self, stores: Sequence[Store], labels: np.ndarray | None = None) -> None:
        self.stores = list(stores)
        self.path = ", ".join(store.path for store in self.stores)
        self.classes = self.stores[0].classes
        joint = self.stores[0].joint
        alike = all(store.joint == joint for store in self.stores)
        self.metadata: dict[str, Any] = {"joint": joint} if joint and alike else {}
        ids = [store.metadata.get("category_ids") for store in self.stores]
        if ids[0] is not None and all(others == ids[0] for others in ids):
            self.metadata["category_ids"] = ids[0]
        self.mapped = all(store.mapped for store in self.stores)
        self.remote = any(store.remote for store in self.stores)
        self.names = self.stores[0].names
        self.sample_fields = self.stores[0].sample_fields
        self.left_out = tuple(files for store in self.stores for files in store.left_out)
        self.indirect = next((s.indirect for s in self.stores if s.indirect is not None), None)
        self._given = labels
        self._labels: np.ndarray | None = None
        self._joined: dict[str, np.ndarray] = {}  # columns of fields
        self._ends = np.cumsum([len(store) for store in self.stores], dtype=np.int64)
        self._first_file = np.cumsum([0] + [len(store.files) for store in self.stores[:-1]])

    @classmethod
    def checked(cls, stores: Sequence[Store], labels: np.ndarray | None = None) -> ConcatStore:
        """``stores`` as one, if their labels mean the same, or ``labels`` replace them.

        Empty ones are left out.
        """
        if not stores:
            raise UsageError("expected at least one store, got an empty list")
        # Labels and fields that an empty store lacks are missing in no batch.
        stores = [store for store in stores if len(store)] or stores[:1]
        check_labels(stores, classes=labels is None)
        _check_same(stores, "fields", lambda store: types_of_fields(store.fields.values()))
        _check_same(stores, "names of image and label", lambda store: store.names)
        return cls(stores, labels)

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

    def check_whole(self) -> None:
        for store in self.stores:
            store.check_whole()

    def check_columns(self) -> bool:
        have_sums = [store.check_columns() for store in self.stores]
        return all(have_sums)

    def mapped_files(self) -> np.ndarray:
        return np.concatenate([store.mapped_files() for store in self.stores])

    def memory(self) -> Mapping[int, np.ndarray]:
        parts = zip(self.stores, self._first_file.tolist(), strict=True)
        return {
            first + number: array
            for store, first in parts
            for number, array in store.memory().items()
        }

    def _divided(self, indices: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Each store with some of ``indices``: its number, bool (n,) which, their local numbers."""
        which = np.searchsorted(self._ends, indices, side="right")
        for number in np.unique(which).tolist():
            mine = which == number
            yield number, mine, indices[mine] - (self._ends[number - 1] if number else 0)

    def _gather(
        self,
        indices: np.ndarray,
        empty: np.ndarray,
        of_store: Callable[[int, np.ndarray], np.ndarray],
    ) -> np.ndarray:
        """Fill ``empty`` (n, ...) with ``of_store(number of the store, local indices)``."""
        for number, mine, local in self._divided(indices):
            empty[mine] = of_store(number, local)
        return empty

    def _gather_values(
        self, indices: np.ndarray, of_store: Callable[[Store, np.ndarray], Iterable[_Value]]
    ) -> list[_Value]:
        """What ``of_store(store, local indices)`` gives, in the order of ``indices``."""
        by_position: dict[int, _Value] = {}
        for number, mine, local in self._divided(indices):
            values = of_store(self.stores[number], local)
            by_position |= zip(np.flatnonzero(mine).tolist(), values, strict=True)
        return [by_position[at] for at in range(len(indices))]

    def spans(self, indices: np.ndarray) -> Spans:
        return self._placed(indices, [store.spans for store in self.stores])

    def places(self, indices: np.ndarray) -> Spans:
        return self._placed(indices, [store.places for store in self.stores])

    def _placed(self, indices: np.ndarray, each: Sequence[Callable[[np.ndarray], Spans]]) -> Spans:
        held: list[Held] = []
        memory: list[np.ndarray] = []

        def part(number: int, local: np.ndarray) -> np.ndarray:
            spans = each[number](local)
            held.extend([] if spans.held is None else [spans.held])
            own = spans.file < 0
            file = np.where(own, spans.file - len(memory), spans.file + self._first_file[number])
            memory.extend(spans.memory or ())
            return np.stack([file, spans.offset, spans.nbytes], axis=1)

        table = self._gather(indices, np.empty((len(indices), 3), np.int64), part)
        return Spans(
            file=table[:, 0].astype(np.int32),
            offset=np.ascontiguousarray(table[:, 1]),
            nbytes=np.ascontiguousarray(table[:, 2]),
            held=HeldTogether(held) if held else None,
            memory=memory or None,
        )

    def shown(self, file: int) -> str:
        number = int(np.searchsorted(self._first_file, file, side="right")) - 1
        return self.stores[number].shown(file - int(self._first_file[number]))

    def ahead(self, indices: np.ndarray, *, urgency: float, blocks: bool = False) -> Held | None:
        held: list[Held] = []
        for number, _, local in self._divided(indices):
            if not self.stores[number].remote:
                continue
            hold = self.stores[number].ahead(local, urgency=urgency, blocks=blocks)
            if hold is None:
                for other in held:
                    other.release()
                return None
            held.append(hold)
        return HeldTogether(held)

    def expect(
        self, indices: np.ndarray, positions: np.ndarray, *, length: int, blocks: bool = False
    ) -> None:
        for number, mine, local in self._divided(indices):
            self.stores[number].expect(local, positions[mine], length=length, blocks=blocks)

    @property
    def generation(self) -> int:  # type: ignore[override]
        return sum(store.generation for store in self.stores)

    def doubt(self, indices: np.ndarray) -> bool:
        again = [self.stores[number].doubt(local) for number, _, local in self._divided(indices)]
        return any(again)

    def passed(self, position: int) -> None:
        for store in self.stores:
            store.passed(position)

    def check_window(self, blocks: int) -> None:
        for store in self.stores:
            store.check_window(blocks)

    def hint(self, *, windowed: bool) -> str | None:
        hints = (store.hint(windowed=windowed) for store in self.stores)
        return next((hint for hint in hints if hint is not None), None)

    def fetched(self) -> Mapping[str, float] | None:
        parts = [counts for store in self.stores if (counts := store.fetched()) is not None]
        if not parts:
            return None
        return {name: sum(counts[name] for counts in parts) for name in parts[0]}

    def tables(self) -> Spans:
        parts = [store.tables() for store in self.stores]
        files = [spans.file + first for spans, first in zip(parts, self._first_file, strict=True)]
        return Spans(
            file=np.concatenate(files, dtype=np.int32),
            offset=np.concatenate([spans.offset for spans in parts]),
            nbytes=np.concatenate([spans.nbytes for spans in parts]),
        )

    def kinds(self, indices: np.ndarray) -> np.ndarray:
        kinds = np.empty(len(indices), np.uint8)
        return self._gather(indices, kinds, lambda k, local: self.stores[k].kinds(local))

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        sizes = np.empty((len(indices), 2), np.int32)
        return self._gather(indices, sizes, lambda k, local: self.stores[k].sizes(local))

    @property
    def labels(self) -> np.ndarray | None:
        if self._given is not None:
            return self._given
        if self._labels is None:
            columns = [store.labels for store in self.stores]
            present = [column for column in columns if column is not None]
            if len(present) == len(columns):
                self._labels = np.concatenate(present)
                self._labels.flags.writeable = False
        return self._labels

    def keys(self, indices: np.ndarray) -> list[str]:
        return self._gather_values(indices, lambda store, local: store.keys(local))

    def checksums(self, indices: np.ndarray) -> np.ndarray | None:
        none = np.empty(0, np.int64)
        if any(store.checksums(none) is None for store in self.stores):
            return None

        def part(number: int, local: np.ndarray) -> np.ndarray:
            column = self.stores[number].checksums(local)
            assert column is not None  # checked above
            return column

        return self._gather(indices, np.empty(len(indices), np.uint32), part)

    @property
    def fields(self) -> Mapping[str, Field]:
        first, *others = (store.fields for store in self.stores)
        return {
            name: field
            for name, field in first.items()
            if all(other.get(name) == field for other in others)
        }

    def _column(self, field: Field) -> np.ndarray:
        if field.name not in self._joined:
            column = np.concatenate([store.column(field.name) for store in self.stores])
            column.flags.writeable = False
            self._joined[field.name] = column
        return self._joined[field.name]

    def _values(self, field: Field, indices: np.ndarray) -> list[bytes]:
        return self._gather_values(indices, lambda store, local: store.values(field.name, local))

    def batch(self, name: str, indices: np.ndarray) -> np.ndarray | list[Any]:
        field = self.fields[name]
        if field.kind == "array":

            def rows(number: int, local: np.ndarray) -> np.ndarray:
                return np.asarray(self.stores[number].batch(name, local))

            empty = np.empty((len(indices), *field.shape), field.dtype)
            return self._gather(indices, empty, rows)
        return self._gather_values(indices, lambda store, local: store.batch(name, local))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_labels": None, "_joined": {}}

    def read(self, indices: np.ndarray) -> list[bytes]:
        return self._gather_values(indices, lambda store, local: store.read(local))

    def close(self) -> None:
        for store in self.stores:
            store.close()


class NumberedConcatStore(ConcatStore):
    """Several stores read as one, with a field ``name``: the number of a record's store, int64."""

    def __init__(self, stores: Sequence[Store], name: str) -> None:
        super().__init__(stores)
        self._name = name

    @property
    def fields(self) -> Mapping[str, Field]:
        return {**super().fields, self._name: Field(self._name, "array", np.dtype("<i8"))}

    def _column(self, field: Field) -> np.ndarray:
        if field.name != self._name:
            return super()._column(field)
        return self._numbers(np.arange(len(self), dtype=np.int64))

    def batch(self, name: str, indices: np.ndarray) -> np.ndarray | list[Any]:
        if name != self._name:
            return super().batch(name, indices)
        return self._numbers(indices)

    def _numbers(self, indices: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._ends, indices, side="right").astype(np.int64)


def check_labels(stores: Sequence[Store], *, classes: bool = True) -> None:
    """Raise UsageError unless labels have the same type, and ``classes``, in all ``stores``."""
    if classes:
        _check_same(stores, "classes", lambda store: list(store.classes))
    _check_same(stores, "type of labels", lambda store: type_of_labels(store.labels))


def _check_same(stores: Sequence[Store], what: str, of: Callable[[Store], object]) -> None:
    for store in stores[1:]:
        first, other = of(stores[0]), of(store)
        if first != other:
            raise UsageError(
                f"expected stores with the same {what}, found {shortly(first)} in "
                f"{stores[0].path!r} and {shortly(other)} in {store.path!r}: pack one of them "
                f"again, with the {what} of the other"
            )


def shortly(value: object) -> str:
    """``value`` in a message: at most 200 characters of it."""
    text = str(value)
    return text if len(text) <= 200 else text[:200] + " ..."
