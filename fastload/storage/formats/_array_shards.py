"""Shards of formats that keep a store in one file of arrays: .h5 and .pth.

Every shard is a whole store of its format, written by the format's own writer inside the partial
store. A finished one is noted in the journal; a shard that a kill interrupted is begun again. The
sidecar, as their manifest, has all columns and makes the set exist (``_sidecar.py``).
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import StoreError, UsageError
from .._columns import Columns, join
from .._shards import Sharding
from .._sidecar import is_manifest, sidecar_of, write_sidecar
from ..table import Table
from .._writer import PartialWriter
from ..base import RAW, Batch, Writer
from ..checking import READ_RECORDS, check_records, parts_of, reading_order
from ._array_writer import ArrayWriter, different_sizes

_KEPT = {"lock", "journal", "settings.json"}


def array_writer(
    made: type[ArrayWriter],
    path: str | os.PathLike[str],
    sharding: Sharding,
    **options: Any,
) -> Writer:
    """The writer of one file, or of shards, at ``path``.

    Args:
        made: the writer of one file.
        path: of the store.
        sharding: how it is cut.
        options: for ``made``.

    Raises:
        UsageError: a set of shards, or a file, is there.
    """
    path = os.path.abspath(os.fspath(path))
    if sharding.wanted:
        if os.path.lexists(path):
            raise UsageError(f"{path!r} exists: delete that store or choose another name")
        return ShardedWriter(made, path, sharding, **options)
    if is_manifest(path):
        raise UsageError(f"{sidecar_of(path)!r} exists: delete that store or choose another name")
    return made(path, **options)


class ShardedWriter(PartialWriter):
    """Writes shards ``NAME-00000-of-00016.SUFFIX`` and their manifest."""

    def __init__(
        self,
        made: type[ArrayWriter],
        path: str,
        sharding: Sharding,
        *,
        classes: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._made, self._options, self._sharding = made, options, sharding
        self._suffix = os.path.splitext(path)[1]
        self._shard: ArrayWriter | None = None
        begun = {"format": f"fastload-shards{self._suffix}", **sharding.settings()}
        super().__init__(
            path, begun, classes=classes, metadata=metadata, settings=settings,
            mark=sidecar_of(path),
        )  # fmt: skip
        self._number = 0  # of the shard that the next record goes to, unless that is full
        self._filled = 0  # bytes in it
        try:
            if self._partial.chunks:
                places = self._partial.chunks[-1].places
                assert places is not None  # our journal has them
                self._number = int(places[-1, 0]) + 1
            self._empty()
            self._check_shards()
        except BaseException:
            self._partial.close()
            raise

    def _check_shards(self) -> None:
        """Finished shards hold what the journal says."""
        from .. import open_store

        if not self._partial.chunks:
            return
        columns = join(self._partial.chunks)
        assert columns.places is not None  # our journal has them
        for number in sorted(set(_shards(columns))):
            path = self._partial.file(self._inner(number))
            mine = columns.part(*np.searchsorted(columns.places[:, 0], [number, number + 1]))
            try:
                with open_store(path) as shard:
                    shard.check_columns()
                    found = shard.checksums(np.arange(len(shard)))
                    damaged = [
                        one
                        for part in parts_of(shard, reading_order(shard), READ_RECORDS)
                        for one in check_records(shard, part, None)[1]
                    ]
            except StoreError as error:
                raise self._damaged(error.message, path) from error
            if damaged:
                raise self._damaged(damaged[0].reason, path)
            if found is None or not np.array_equal(found, mine.crc32c):
                raise self._damaged("expected other records in a finished shard", path)

    def _inner(self, number: int) -> str:
        """Name in the partial store."""
        return f"shard-{number:05d}{self._suffix}"

    def _empty(self) -> None:
        """Remove all but finished shards."""
        there = set(os.listdir(self._partial.folder))
        done = {self._inner(number) for chunk in self._partial.chunks for number in _shards(chunk)}
        if done - there:
            missing = self._partial.file(min(done - there))
            raise self._damaged("a finished shard is missing", missing)
        for name in there - done - _KEPT:
            left = self._partial.file(name)
            if os.path.isdir(left):
                shutil.rmtree(left)
            else:
                os.unlink(left)

    def extend(self, batch: Batch) -> None:
        """Add records, in order.

        Raises:
            UsageError, StoreError: as the writer of one file does.
        """
        if not batch.keys:
            return
        columns = self._admit(batch)
        self._one_size(columns)
        numbers = self._sharding.numbers(
            len(self), columns.nbytes, number=self._number, filled=self._filled
        )
        for number in sorted(set(numbers.tolist())):
            if self._shard is None or number != self._number:
                self._finish_shard()
                self._begin_shard(number)
            assert self._shard is not None  # begun
            start, stop = np.searchsorted(numbers, [number, number + 1]).tolist()
            self._shard.extend(_part(batch, start, stop))
            places = np.zeros((stop - start, 4), np.int64)
            places[:, 0] = number
            part = dataclasses.replace(columns.part(start, stop), places=places)
            self._columns.append(part)
            self._filled += int(part.nbytes.sum())

    def _one_size(self, columns: Columns) -> None:
        """Raw pixels have one size in all shards, as in one file."""
        first = (self._partial.chunks or self._columns or [columns])[0]
        other = np.flatnonzero((columns.sizes != first.sizes[0]).any(axis=1))
        if len(other) and bool((first.kinds == RAW).all() and (columns.kinds == RAW).all()):
            sizes = first.sizes[0].tolist(), columns.sizes[int(other[0])].tolist()
            raise UsageError(different_sizes(self.path, *sizes))

    def _begin_shard(self, number: int) -> None:
        self._number, self._filled = number, 0
        path = self._partial.file(self._inner(number))
        self._shard = self._made(
            path, classes=self._classes, metadata=self._metadata, **self._options
        )

    def _finish_shard(self) -> None:
        """The shard that is being written, whole; noted in the journal."""
        if self._shard is None:
            return
        self._shard.commit()  # where that fails, ``abort`` lets go of it
        self._shard = None
        if self._columns:
            try:
                self._partial.add(join(self._columns))
            except OSError as error:
                raise self._failed(error) from error
            self._columns.clear()

    def sync(self) -> None:
        """Does nothing: finished shards are durable, the one being written is begun again."""

    def commit(self) -> None:
        """Finish the shards, write the manifest, and give all their names."""
        self._finish_shard()
        columns = join(self._partial.chunks, labelled=bool(self._classes))
        assert columns.places is not None  # every chunk has them
        file = columns.places[:, 0].astype(np.int32)
        count = self._sharding.shards or (int(file[-1]) + 1 if len(file) else 1)
        try:
            for number in sorted(set(range(count)) - set(file.tolist())):
                self._begin_shard(number)  # without a record
                self._finish_shard()
            paths = [self._partial.file(self._inner(number)) for number in range(count)]
            table = Table.of(
                columns, self._offsets(paths, columns), format=self._made.format, files=paths,
                classes=self._classes, metadata=self._metadata,
            )  # fmt: skip
            names = [self._final(number, count) for number in range(count)]
            write_sidecar(self.path, table, names=names, target=self._partial.file("sidecar"))
            folder = os.path.dirname(self.path)
            renames = [
                (self._inner(number), os.path.join(folder, name))
                for number, name in enumerate(names)
            ]
            self._partial.publish([*renames, ("sidecar", sidecar_of(self.path))])
        except OSError as error:
            raise self._failed(error) from error
        self._closed = True

    def _final(self, number: int, count: int) -> str:
        stem, suffix = os.path.splitext(os.path.basename(self.path))
        return f"{stem}-{number:05d}-of-{count:05d}{suffix}"

    def _offsets(self, paths: Sequence[str], columns: Columns) -> np.ndarray:
        """Where the records lie, each shard opened as a reader would."""
        from .. import open_store

        parts = []
        for path in paths:
            with open_store(path) as store:
                parts.append(store.spans(np.arange(len(store))).offset)
        found = np.concatenate(parts) if parts else np.empty(0, np.int64)
        if len(found) != len(columns):
            raise StoreError(
                f"expected {len(columns)} records in the shards, found {len(found)}: delete the "
                f"folder {self._partial.folder!r} to start again",
                path=self._partial.folder,
            )
        return found

    def abort(self, *, keep_partial: bool = True) -> None:
        """As in the contract; finished shards are kept."""
        super().abort(keep_partial=keep_partial and bool(self._partial.chunks))

    def _release(self) -> None:
        shard, self._shard = self._shard, None
        if shard is not None:
            shard.abort()


def _shards(columns: Columns) -> Iterator[int]:
    assert columns.places is not None  # our journal has them
    yield from np.unique(columns.places[:, 0]).tolist()


def _part(batch: Batch, start: int, stop: int) -> Batch:
    """The records from ``start`` to ``stop``."""
    return Batch(
        data=batch.data[start:stop],
        keys=batch.keys[start:stop],
        labels=None if batch.labels is None else batch.labels[start:stop],
        sizes=batch.sizes[start:stop],
        kinds=batch.kinds[start:stop],
        crc32c=batch.crc32c[start:stop],
        fields={name: values[start:stop] for name, values in batch.fields.items()},
        field_kinds=batch.field_kinds,
    )
