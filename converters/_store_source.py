"""Stores and folders of images as sources."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from .. import _native
from ..errors import ChecksumError, DataError, StoreError, UsageError
from ..storage import Store
from ..storage._column_store import ColumnStore
from ..storage._crc import crc32c
from ..storage._read import decoded, fetched_ahead, read_each, where_of
from ..storage.base import TURNED
from ..storage.concat import ConcatStore
from ..storage.folder import FolderStore
from ._beside import Beside
from ._gather import Files, Gatherer
from ._headers import image_header
from ._labels import Chosen, is_missing, labelled, warn_of_others
from ._source import LabelsAndFields, PackSource, Sample, update_digest


class StoreSource(PackSource):
    """The unchanged records of any store, each compared with its checksum.

    ``label``: the field that replaces the labels.
    """

    _marks = True  # the fields that a sample has by default are labels that some records lack

    def __init__(self, store: Store, label: str | None = None) -> None:
        store.check_columns()  # of large columns too: a damaged copy would get new checksums
        self.store = store
        self.path = store.path
        self.classes, self.left_out = store.classes, store.left_out
        self.joint = store.joint
        if label is None and "category_ids" in store.metadata:  # they are those of its classes
            self.noted = {"category_ids": store.metadata["category_ids"]}
        self._everything = np.arange(len(store), dtype=np.int64)
        self._labels, self._field = store.labels, label
        self.keys = unique(store.keys(self._everything))
        if label is not None:
            Chosen(label=label).label_of(list(store.fields))
            self.classes, self._labels = self._numbered(label)
        if self._labels is None:
            fields = {name: () for name in store.fields if name not in store.joint}
            shown = store.sample_fields or ()
            warn_of_others(self.path, None, fields, self._without, shown if self._marks else ())

    def paths(self) -> list[str]:
        return _paths(self.store)

    def read(self, indices: np.ndarray) -> Iterator[Sample | DataError]:
        store = self.store
        kinds = store.kinds(indices).tolist()
        sizes = store.sizes(indices).tolist()
        expected = store.checksums(indices)
        damaged = self._damaged(indices) if expected is None else {}
        for at, (index, read) in enumerate(zip(indices.tolist(), read_each(store, indices))):
            data = damaged.get(at, read)
            if isinstance(data, DataError):
                yield data
                continue
            crc = crc32c(data)
            if expected is not None and crc != int(expected[at]):
                yield ChecksumError(
                    "the record's bytes changed since it was written: its CRC32C does not match",
                    path=self.where(index),
                    record=index,
                    offset=self.offset(index),
                )
                continue
            width, height = sizes[at]
            size = (width, height) if width > 0 and height > 0 else None
            yield Sample(data, kinds[at], size, crc, written=expected is not None)

    def _damaged(self, indices: np.ndarray) -> dict[int, StoreError]:
        """The records whose text or JSON is none, by position."""
        errors: dict[int, StoreError] = {}
        for name, field in self.store.fields.items():
            if field.kind in ("text", "json") and name != self._field:
                errors |= decoded(self.store, name, indices)[1]
        return errors

    def ahead(self, parts: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        return fetched_ahead(self.store, parts)

    def annotate(self, indices: np.ndarray, samples: Sequence[Sample]) -> LabelsAndFields:
        store, fields = self.store, self.store.fields
        return LabelsAndFields(
            None if self._labels is None else self._labels[indices],
            {
                name: store.column(name)[indices]
                if field.kind == "array"
                else store.values(name, indices)
                for name, field in fields.items()
                if name != self._field
            },
            {
                name: field.kind
                for name, field in fields.items()
                if field.kind != "array" and name != self._field
            },
        )

    def _values(self, name: str) -> list[object]:
        """A field as labels: of JSON objects, such as those of a tar, the entry "label"."""
        values = list(self.store.batch(name, self._everything))
        return [value.get("label") if isinstance(value, dict) else value for value in values]

    def _without(self, name: str) -> str:
        """Why a field is not the labels: what to say of records that have none; else ""."""
        without = [index for index, value in enumerate(self._values(name)) if is_missing(value)]
        if not without:
            return ""
        return (
            f", because {len(without):,} of {len(self.keys):,} records "
            f"{'has' if len(without) == 1 else 'have'} none, such as {self.keys[without[0]]!r}"
        )

    def _numbered(self, name: str) -> tuple[Sequence[str], np.ndarray | None]:
        """Class names and labels from a field."""
        try:
            classes, labels, self.faults = labelled(
                self._values(name), lambda index: f"the record {self.keys[index]!r}"
            )
        except (UsageError, ValueError) as error:
            raise UsageError(f"label_column: {name!r} holds no labels: {error}") from error
        return classes, labels

    def digest(self) -> str:
        """Files with their sizes and times, checksums, labels, classes and keys."""
        digest = hashlib.blake2b(digest_size=16)
        checksums = self.store.checksums(self._everything)
        for path in self.store.files:
            status = os.stat(path)
            version = [status.st_size, status.st_mtime_ns]
            if checksums is None:  # a new file may have the size and mtime of the old one
                version.append(status.st_ctime_ns)
            digest.update(f"{path}\0{version}\0".encode("utf-8", "surrogateescape"))
        if checksums is not None:
            digest.update(np.ascontiguousarray(checksums).tobytes())
        update_digest(digest, self._labels, self.classes, self.keys)
        return digest.hexdigest()

    def where(self, index: int) -> str:
        file = self.store.places(self._everything[index : index + 1]).file
        return self.store.shown(int(file[0]))

    def offset(self, index: int) -> int | None:
        return where_of(self.store, index)["offset"]

    def sizes(self) -> np.ndarray:
        """From the store's table, or from the images' headers."""
        return self.store.sizes(self._everything)


class TableSource(StoreSource):
    """The rows of a table; images with an EXIF orientation are decoded, as ``datasets`` does."""

    _marks = False

    def __init__(self, store: Store, name: str, label: str | None = None) -> None:
        super().__init__(store, label)
        self.path = name

    def read(self, indices: np.ndarray) -> Iterator[Sample | DataError]:
        for index in indices.tolist():
            record = np.array([index], np.int64)
            try:
                if int(self.store.kinds(record)[0]) == TURNED:
                    from .._engine.pillow import decode_record  # few images have an orientation

                    yield Sample(decode_record(self.store, index))
                else:
                    yield Sample(self.store.read(record)[0])
            except DataError as error:
                yield error

    def offset(self, index: int) -> None:
        """None: records lie in memory."""

    def digest(self) -> str:
        """Of the dataset's own fingerprint, labels, classes and keys."""
        if not self.store.identity:  # Parquet files
            return super().digest()
        digest = hashlib.blake2b(self.store.identity.encode(), digest_size=16)
        update_digest(digest, self._labels, self.classes, self.keys)
        return digest.hexdigest()

    def _numbered(self, name: str) -> tuple[Sequence[str], np.ndarray | None]:
        """As for other stores, with the names of a ClassLabel."""
        classes, labels = super()._numbered(name)
        if isinstance(self.store, ColumnStore):
            classes = self.store.class_names(name) or classes
        return classes, labels


def unique(keys: list[str]) -> list[str]:
    """``keys``, with a number after repeated ones."""
    if len(set(keys)) == len(keys):
        return keys
    seen: set[str] = set()
    following: dict[str, int] = {}  # those below were taken when the key came last
    names: list[str] = []
    for key in keys:
        name, number = key, following.get(key, 2)
        while name in seen:
            name, number = f"{key}#{number}", number + 1
        following[key] = number
        seen.add(name)
        names.append(name)
    return names


class FolderSource(PackSource):
    """Loose files: the bytes of each are a sample.

    ``beside``: their labels and fields; None: those of ``store``. ``keys``: None: their paths below
    the folder of ``store``.
    """

    def __init__(
        self, store: FolderStore, beside: Beside | None = None, keys: list[str] | None = None
    ) -> None:
        if beside is None:
            beside = Beside(store.labels, store.classes, store.left_out)
        self.store, self.beside, self.files = store, beside, Files()
        self.path = store.path
        self.classes, self.left_out = beside.classes, beside.left_out
        self.faults, self.joint, self.noted = beside.faults, beside.joint, beside.noted
        self.keys = unique(store.keys(np.arange(len(store))) if keys is None else keys)

    def read(self, indices: np.ndarray) -> Iterator[Sample | DataError]:
        columns = self.beside.columns
        images = self.files.read(list(map(os.fsdecode, self.store.files.many(indices))))
        if not columns:
            yield from (one if isinstance(one, StoreError) else Sample(one) for one in images)
            return
        others = [
            itertools.repeat(None)
            if column.paths is None
            else self.files.read([column.paths[index] for index in indices.tolist()])
            for column in columns.values()
        ]
        for index, image, *beside in zip(indices.tolist(), images, *others):
            try:
                yield self._sample(index, image, dict(zip(columns, beside)))
            except DataError as error:
                yield error

    def _sample(
        self, index: int, image: bytes | StoreError, beside: Mapping[str, bytes | StoreError | None]
    ) -> Sample:
        """One sample, of an image and the files beside it. Raises DataError."""
        if isinstance(image, StoreError):
            raise image
        size, _ = image_header(image)
        fields = {}
        for name, data in beside.items():
            if isinstance(data, StoreError):
                raise StoreError(f"the field {name!r}, {data.path!r}: {data.message}")
            fields[name] = self.beside.columns[name].value(index, data, size)
        return Sample(image, fields=fields)

    def gatherer(self) -> Gatherer | None:
        """By the native core, if it is built, and no field is made when its image is read."""
        if self.beside.columns or self.files.remote:
            return None
        core = _native.load()
        return None if core is None else Gatherer(core, *self.store.file_table())

    def annotate(self, indices: np.ndarray, samples: Sequence[Sample]) -> LabelsAndFields:
        return self.beside.annotate(indices, samples)

    def digest(self) -> str:
        """Names of the files, labels, class names, and what fields are made of."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(self.store.files.blob)
        digest.update(self.store.files.ends.tobytes())
        self.beside.update(digest)
        return digest.hexdigest()

    def where(self, index: int) -> str:
        return self.files.shown(self.store.files[index])

    def changed(self, index: int, since_ns: int) -> bool:
        """By mtime and ctime of the file: a new file may have the mtime of the old one.

        Of remote files, the ``identity`` says it.
        """
        if self.files.remote:
            return False
        status = os.stat(self.store.files[index])
        return max(status.st_mtime_ns, status.st_ctime_ns) > since_ns

    def sizes(self) -> np.ndarray | None:
        """From the files' headers; None if they are remote."""
        return None if self.files.remote else self.store.sizes(np.arange(len(self.store)))


def _paths(store: Store) -> list[str]:
    if isinstance(store, ConcatStore):
        return [path for inner in store.stores for path in _paths(inner)]
    return [store.path]
