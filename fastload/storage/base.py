"""The contract of every store: files plus arrays.

A store is a numbered list of records. A *span* says where the bytes of a record lie: file number,
offset, length. Spans of many records are arrays, never a Python object per record, so that one
call of the engine can read a whole batch. Labels, keys, image sizes and checksums are columns.

One module per format holds its reader and its writer; ``registry.py`` finds it.
"""

from __future__ import annotations

import abc
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from .._base.value_class import value_class
from ..errors import StoreError, UsageError
from ._crc import crc32c
from ._fields import Field, gather_fields, label_column
from ._spans import DCT, ENCODED, RAW, TURNED, Held, Located, Spans

__all__ = [
    "DCT",
    "ENCODED",
    "RAW",
    "TURNED",
    "Batch",
    "Field",
    "Located",
    "Record",
    "Spans",
    "Store",
    "Writer",
]

BLOCK_NBYTES = 8 << 20
"""What is read at once of a remote store: S3 advises 8 to 16 MB; more delays the start."""

Fetch: TypeAlias = Callable[[Sequence[tuple[str, int, int]]], "Held | None"]
"""Fetches ranges of files, (file, offset, bytes), which stay as long as the result is not released.

None: they stay in any case. -1 bytes: the whole file."""


UNSIZED = (
    "its width and height could not be read before, but can be now: was the file replaced? Create "
    "the dataset again"
)
"""The error of a sample whose width and height could not be read, though it can be decoded."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """One record on its way into a store.

    Attributes:
        data: encoded image file, raw pixels, or DCT form, as ``kind`` says: bytes, a memoryview, or
            a contiguous uint8 array (n,).
        label: class index, another number, several numbers (the same count in every record), or
            None in a store without labels.
        key: name of the sample, unique in the store: the path below the source folder, with "/".
        width, height: of the image in pixels.
        kind: ENCODED, RAW or DCT.
        fields: name -> value, the same names in every record. A number or an array (of one dtype
            and shape in all records) is stored in a column, bytes and str unchanged, anything else
            as JSON.

    Raises UsageError if ``data`` are no bytes, or the size is none.
    """

    data: bytes
    label: int | float | Sequence[int] | Sequence[float] | np.ndarray | None
    key: str
    width: int
    height: int
    kind: int = ENCODED
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            view = memoryview(self.data)
            one_by_one = view.c_contiguous and view.itemsize == view.ndim == 1
        except (TypeError, ValueError):
            one_by_one = False
        if not one_by_one:
            raise UsageError(
                f"record {self.key!r}: expected bytes as data, or a contiguous uint8 array (n,), "
                f"such as those of an image file, got {type(self.data).__name__}"
            )
        for name, value in (("width", self.width), ("height", self.height)):
            number = isinstance(value, (int, float, np.integer, np.floating))
            if isinstance(value, bool) or not (number and 0 <= value < 1 << 31 and value % 1 == 0):
                raise UsageError(f"record {self.key!r}: expected a {name} in pixels, got {value!r}")


@value_class(kw_only=True)
class Batch:
    """Records on their way into a store, as columns: the argument of ``Writer.extend``.

    Attributes:
        data: bytes-like, one item per record.
        keys: one per record.
        labels: int64, float32 or float64, (n,) or (n, k); None in a store without labels.
        sizes: int32 (n, 2), width and height in pixels.
        kinds: uint8 (n,): ENCODED, RAW or DCT.
        crc32c: uint32 (n,), of each item of ``data``.
        fields: name -> array (n, ...), or n byte strings (UTF-8 for "text" and "json").
        field_kinds: name -> "bytes", "text" or "json" for byte strings; "bytes" by default.
    """

    data: Sequence[bytes | memoryview]
    keys: Sequence[str]
    labels: np.ndarray | None
    sizes: np.ndarray
    kinds: np.ndarray
    crc32c: np.ndarray
    fields: Mapping[str, np.ndarray | Sequence[bytes]] = dataclasses.field(default_factory=dict)
    field_kinds: Mapping[str, str] = dataclasses.field(default_factory=dict)


@value_class(kw_only=True)
class LeftOut:
    """How many files of a folder of images are no records for one reason; ``example`` is one."""

    reason: str
    files: int
    example: str

    def __str__(self) -> str:
        count = "1 file" if self.files == 1 else f"{self.files:,} files"
        such = "" if self.files == 1 else "such as "
        return f"{count}, {such}{self.example}: {self.reason}"


class Store(abc.ABC):
    """Random access to the records of one store. Picklable: reopens by path, lazily, per process.

    Attributes:
        format: name of its format.
        path: as given to ``open_store``, absolute.
        classes: class names, position = label; empty if the source had none.
        metadata: the JSON-able dict that the writer was given (fastload version, source ...).
        mapped: True if the core may map ``files`` into memory (local packed files that are only
            ever replaced as a whole); False for loose and network files, which are read with pread.
        indirect: why the records do not lie in ``files`` as they are (compressed, another order),
            and what to do about it; then only ``read`` returns their bytes, and spans are empty.
            None in every other store.
        remote: records have to be fetched, or decoded, many at a time: ``spans`` does that,
            and ``ahead`` does so in advance.
        generation: how often ``files`` had to be opened anew; who has mapped them maps them again.
        identity: identifies the content of ``memory``: equal only for equal content.
        names: what the image and its label are called in a sample that is a dict.
        sample_fields: the fields of a sample if none are asked for; None: it is then not a dict.
        left_out: files in the folder that are no records; empty for packed stores.
    """

    format: str
    path: str
    classes: Sequence[str]
    metadata: dict[str, Any]
    mapped: bool
    indirect: str | None = None
    remote: bool = False
    generation: int = 0
    identity: str = ""
    names: tuple[str, str] = ("image", "label")
    sample_fields: tuple[str, ...] | None = None
    left_out: Sequence[LeftOut] = ()

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @property
    @abc.abstractmethod
    def files(self) -> Sequence[str]:
        """The files that spans refer to, absolute. May be lazy (a million loose files)."""

    @property
    def joint(self) -> dict[str, Any]:
        """The fields that move with the images, and their kinds, as the metadata has them."""
        kinds = self.metadata.get("joint")
        return dict(kinds) if isinstance(kinds, dict) else {}

    def file_table(self) -> tuple[bytes, np.ndarray]:
        """``files`` for the core: all encoded paths in one string, and where each ends (int64)."""
        paths = [os.fsencode(path) for path in self.files]
        return b"".join(paths), np.cumsum([len(path) for path in paths], dtype=np.int64)

    def mapped_files(self) -> np.ndarray:
        """uint8 (len(files),): 1 where the core may map the file; by default ``mapped``."""
        return np.full(len(self.files), self.mapped, np.uint8)

    def memory(self) -> Mapping[int, np.ndarray]:
        """Arrays that replace files, by file number; by default none.

        Either uint8 (n,), contiguous: the file's bytes. Or (n, h, w, 3) with any strides that are
        not negative: raw images, each a span from its first to its last byte. ``mapped_files`` is 1
        for these numbers.
        """
        return {}

    @abc.abstractmethod
    def spans(self, indices: np.ndarray) -> Spans:
        """Where the records ``indices`` (int64, in range) lie, to be read from there."""

    def places(self, indices: np.ndarray) -> Spans:
        """As ``spans``, for whoever does not read the bytes: nothing is fetched for it."""
        return self.spans(indices)

    def shown(self, file: int) -> str:
        """What messages call a file."""
        return self.files[file]

    def ahead(self, indices: np.ndarray, *, urgency: float, blocks: bool = False) -> Held | None:
        """Fetch what ``spans`` would fetch, without waiting for it; only if ``remote``.

        The smallest ``urgency`` is fetched first. ``blocks``: fetch whole blocks of 8 MB, whose
        other records are wanted soon. What is returned keeps the bytes until ``spans`` is asked for
        them; None: there is no room for them.
        """
        raise NotImplementedError(f"{type(self).__name__} has nothing to fetch")

    def expect(  # noqa: B027 - most have all bytes here
        self, indices: np.ndarray, positions: np.ndarray, *, length: int, blocks: bool = False
    ) -> None:
        """An epoch begins that reads ``indices`` (int64) at these positions (int64, ascending).

        The epoch has ``length`` positions; those from there on belong to the next epoch, as far as
        it is known. ``blocks``: it reads whole blocks, as of ``ahead``. So a store that is remote
        evicts what is used last.
        """

    def passed(self, position: int) -> None:  # noqa: B027
        """The epoch has come to this position."""

    def check_window(self, blocks: int) -> None:  # noqa: B027
        """Raise UsageError if an order by windows of so many blocks would be fetched repeatedly."""

    def doubt(self, indices: np.ndarray) -> bool:
        """Whether to read the records ``indices`` (int64) again, which were found damaged.

        A store that is remote drops what it keeps of them, so they are fetched again; once.
        """
        return False

    def read_through(self, fetch: Fetch) -> None:
        """Read the files through ``fetch``: nothing of them may be there. Only if ``remote``."""
        raise NotImplementedError(f"{type(self).__name__} does not read files itself")

    def hint(self, *, windowed: bool) -> str | None:
        """What makes an epoch slow, and what to do; ``windowed``: its order is by windows."""
        return None

    def fetched(self) -> Mapping[str, float] | None:
        """What remote reading has cost so far (``remote/counters.py``); None: all is local."""
        return None

    def check_whole(self) -> None:
        """Raise StoreError if ``labels``, ``keys`` or fields that were just read may be wrong.

        They may be if they are views of a file that was truncated meanwhile. By default nothing.
        """
        return

    def check_columns(self) -> bool:
        """Compare labels, keys and fields with their checksums; whether there are any.

        Raises StoreError on a mismatch.
        """
        return False

    @abc.abstractmethod
    def kinds(self, indices: np.ndarray) -> np.ndarray:
        """uint8: ENCODED, RAW or DCT for each of ``indices``."""

    @abc.abstractmethod
    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """int32 (n, 2): width and height in pixels; (0, 0) if the store does not know them."""

    def _checked(self, kinds: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """``kinds`` of the records ``indices``. Raises StoreError for an unknown kind."""
        if len(kinds) and int(kinds.max()) > DCT:
            at = int(kinds.argmax())
            raise StoreError(
                f"expected 0 (an image file), 1 (pixels) or 2 (DCT) as the kind of a record, found "
                f"{int(kinds[at])}: the store is damaged, pack it again",
                path=self.path,
                record=int(indices[at]),
            )
        return kinds

    def locate(self, indices: np.ndarray) -> Located:
        """Spans, kinds and sizes of the records ``indices`` (int64, in range)."""
        return Located(
            spans=self.spans(indices), kinds=self.kinds(indices), sizes=self.sizes(indices)
        )

    @property
    @abc.abstractmethod
    def labels(self) -> np.ndarray | None:
        """int64, float32 or float64, (len,) or (len, k); None in a store without labels.

        A read-only view.
        """

    @property
    def fields(self) -> Mapping[str, Field]:
        """What records have in addition to image, label and key; by default nothing."""
        return {}

    def column(self, name: str) -> np.ndarray:
        """The field ``name`` of kind "array": (len, *shape), a read-only view.

        Raises UsageError for no such field, or one of another kind.
        """
        return self._column(self._field_of(name, array=True))

    def values(self, name: str, indices: np.ndarray) -> list[bytes]:
        """The field ``name``, of kind "bytes", "text" or "json", of ``indices``; not decoded.

        Raises UsageError for no such field, or one of kind "array"; StoreError for damaged values.
        """
        return self._values(self._field_of(name, array=False), indices)

    def batch(self, name: str, indices: np.ndarray) -> np.ndarray | list[Any]:
        """The field ``name`` of ``indices`` for a batch: an array (n, ...), or n decoded values.

        Raises ValueError for a value that is not of its field's kind.
        """
        field = self.fields[name]
        if field.kind == "array":
            rows: np.ndarray = self.column(name)[indices]
            return rows
        return [field.decode(value) for value in self.values(name, indices)]

    def _field_of(self, name: str, *, array: bool) -> Field:
        field = self.fields.get(name)
        if field is None or (field.kind == "array") != array:
            kind = "array" if array else "bytes, text or json"
            there = ", ".join(f"{field.name} ({field.kind})" for field in self.fields.values())
            raise UsageError(
                f"{self.path!r}: expected a field of kind {kind} named {name!r}, found "
                f"{there or 'no fields'}"
            )
        return field

    def _column(self, field: Field) -> np.ndarray:
        raise NotImplementedError

    def _values(self, field: Field, indices: np.ndarray) -> list[bytes]:
        raise NotImplementedError

    @abc.abstractmethod
    def keys(self, indices: np.ndarray) -> list[str]:
        """Names of the samples."""

    def checksums(self, indices: np.ndarray) -> np.ndarray | None:
        """uint32 CRC32C of each record's bytes; None, the default: there are no checksums."""
        return None

    def read(self, indices: np.ndarray) -> list[bytes]:
        """The bytes of records. Loading uses spans instead, unless ``indirect`` is set."""
        from ._read import read_records

        return list(read_records(self, indices))

    def tables(self) -> Spans:
        """Where in ``files`` the columns lie that every batch looks up; empty if in memory.

        Looking up random records faults in one page after the other until the columns are in the
        page cache, so read-ahead requests them as a whole.
        """
        nothing = np.empty(0, np.int64)
        return Spans(file=nothing.astype(np.int32), offset=nothing, nbytes=nothing)

    def close(self) -> None:  # noqa: B027 - most stores have nothing to close
        """Release what is open. The store reopens by itself when it is used again."""

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Writer(abc.ABC):
    """Writes one store, which appears under its name only when ``commit`` returns.

    Until then the work lies in ``NAME.partial``, which no reader opens. Records arrive in order.
    Opening a writer on an existing partial with the same settings resumes it: ``len(writer)``
    records are already there, and the caller continues with the next one.
    """

    path: str

    @abc.abstractmethod
    def __len__(self) -> int:
        """Number of records in the partial store, including those not yet durable."""

    @property
    @abc.abstractmethod
    def nbytes(self) -> int:
        """Total size of those records."""

    @property
    @abc.abstractmethod
    def started_ns(self) -> int:
        """When the partial store was started, in nanoseconds since 1970."""

    @abc.abstractmethod
    def keys(self) -> list[str]:
        """Keys of the records that are in it, in order: what a resumed run need not add again."""

    @abc.abstractmethod
    def checksums(self) -> np.ndarray:
        """uint32, CRC32C of the bytes of each record that is in it, in order."""

    @abc.abstractmethod
    def extend(self, batch: Batch) -> None:
        """Add records, in order. They are durable at the latest after the next ``sync``."""

    def append(self, records: Sequence[Record]) -> None:
        """Add records, in order: ``extend`` for records that are objects.

        Raises UsageError if some have a label and some have none, or if they differ in what their
        labels or fields are.
        """
        if not records:
            return
        labels = [record.label for record in records if record.label is not None]
        if labels and len(labels) != len(records):
            raise UsageError(
                "expected a label in every record or in none, found "
                f"{len(labels)} in {len(records)}"
            )
        fields, field_kinds = gather_fields([record.fields for record in records])
        self.extend(
            Batch(
                data=[record.data for record in records],
                keys=[record.key for record in records],
                labels=label_column(labels) if labels else None,
                sizes=np.array([(r.width, r.height) for r in records], np.int32),
                kinds=np.array([record.kind for record in records], np.uint8),
                crc32c=np.array([crc32c(record.data) for record in records], np.uint32),
                fields=fields,
                field_kinds=field_kinds,
            )
        )

    @abc.abstractmethod
    def sync(self) -> None:
        """Make everything appended so far survive a crash."""

    @abc.abstractmethod
    def commit(self) -> None:
        """Finish: write the columns, fsync, rename to the final name."""

    @abc.abstractmethod
    def abort(self, *, keep_partial: bool = True) -> None:
        """Stop. The partial stays for a later resume unless ``keep_partial`` is False.

        Does nothing after ``commit`` or an earlier ``abort``.
        """

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Commit on success; on an error keep the partial for a later resume."""
        try:
            if kind is None:
                self.commit()
        finally:
            self.abort()  # does nothing after a commit
