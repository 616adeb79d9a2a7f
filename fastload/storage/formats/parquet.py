"""Parquet files as a store: encoded images are read where they lie in decoded row groups.

A row group is the smallest part of a Parquet file that can be read, so records are "elsewhere": in
files that have to be decoded, a row group at a time, into memory. ``spans`` does that for the row
groups of its records, ``ahead`` in advance, and ``_row_groups.py`` keeps them while there is room.
"""

from __future__ import annotations

import collections
import contextlib
import glob
import itertools
import os
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import _native
from ...errors import StoreError, StoreNotFoundError, UsageError
from .. import _row_groups
from .._arrow_columns import Images, numbers_of
from .._column_store import Column, ColumnStore
from .._row_groups import Part, RowGroups
from .._shards import data_files
from ..base import BLOCK_NBYTES, Fetch, Field, Located, Spans
from ..held import Held
from ..registry import Format, Need
from ._parquet_file import (
    ParquetFiles,
    check_group_sizes,
    features_of,
    is_binary,
    is_struct_of_image,
    shape_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from ..._native import _core

SUFFIX = ".parquet"
_SPLIT = re.compile(
    r"(?<![a-z])(train|training|test|testing|val|valid|validation|dev|eval)(?![a-z])"
)
_SAME_SPLIT = {"training": "train", "testing": "test", "valid": "val", "validation": "val"}
# Of a folder of images, in which Hugging Face's imagefolder keeps what belongs to them.
_METADATA = "metadata.parquet"
_DEEPEST = 2  # folders below a folder of Parquet files that may hold more of them
_FEWEST = 8  # a row group stays in memory for a batch that takes more than one of so many rows


class ParquetStore(ColumnStore):
    """The rows of Parquet files; a record is a row's image.

    Args:
        path: a file, a pattern, a folder of files, or a list of these; all files have the same
            columns.
        fetch: what to ask for before bytes of the files are read; None: they are all there.

    Raises:
        StoreError: a file is no Parquet file, damaged, or has row groups too large for the memory.
        UsageError: no column of images, or files with different columns.
        MissingDependencyError: pyarrow is not installed.
    """

    format = "parquet"
    remote = True
    mapped = False

    def __init__(self, path: str | Sequence[str], fetch: Fetch | None = None) -> None:
        self._sources = [path] if isinstance(path, str) else list(path)
        self.path = ", ".join(self._sources)
        self._fetch = fetch
        self._open()

    def _open(self) -> None:
        paths = [file for path in self._sources for file in _files_of(path)]
        files = ParquetFiles(self.path, paths, self._fetch)
        self._parquet = files
        features = features_of(files.schema)
        types = {field.name: field.type for field in files.schema}
        if len(types) != len(files.schema):
            raise UsageError(f"{self.path!r}: expected columns with different names")
        pictures = [
            name
            for name, kind in types.items()
            if features.get(name, {}).get("_type") == "Image" or is_struct_of_image(kind)
        ]
        self._image = _chosen(self.path, types, features, pictures)
        files.image = self._image
        self._offset, self._stored, self._decoded = files.chunks(self._image)
        check_group_sizes(files, self._decoded, self._groups.limit)
        self._features = features
        self._columns: dict[str, np.ndarray] = {}
        self._labels = None
        arrays = {
            name: shape
            for name, kind in types.items()
            if name not in pictures and name != self._image
            if (shape := shape_of(kind)) is not None and self._is_array(name, kind)
        }
        rest = [name for name in types if name != self._image]
        self._label = self._choose_label(rest, arrays)
        self.names = self._image, self._label or "label"
        names = None if self._label is None else features.get(self._label, {}).get("names")
        self.classes = list(map(str, names)) if isinstance(names, list) else []
        self._fields = {
            name: self._field(name, types[name], arrays.get(name), name in pictures)
            for name in rest
            if name != self._label
        }
        self.sample_fields = tuple(name for name in self._fields if name not in pictures)
        self.metadata: dict[str, Any] = {}
        self._forget_sizes(len(self))
        weakref.finalize(self, _forget, files)

    @property
    def _groups(self) -> RowGroups:
        return _row_groups.of_process()

    # --- columns ----------------------------------------------------------------------------------

    def _is_array(self, name: str, kind: pa.DataType) -> bool:
        """Whether a column of numbers has one in each row, which int64 can hold."""
        import pyarrow as pa

        nested = bool(shape_of(kind))
        if nested or pa.types.is_uint64(kind):  # statistics do not say it
            values = numbers_of(self._whole(name))
            if values is not None:
                self._columns[name] = values
            return values is not None
        nulls = self._parquet.has_nulls(name)
        if nulls is None:
            nulls = bool(self._whole(name).null_count)
        return not nulls

    def _choose_label(self, names: list[str], arrays: Mapping[str, tuple[int, ...]]) -> str | None:
        """The column of labels, if there is one: as ``ArrowStore`` chooses it."""
        classes = [n for n in names if self._features.get(n, {}).get("_type") == "ClassLabel"]
        named = [name for name in ("label", "labels") if name in names]
        for name in named[:1] or (classes if len(classes) == 1 else []):
            if arrays.get(name) == () and self._kind(name).kind in "iuf":
                return name
        return None

    def _kind(self, name: str) -> np.dtype[Any]:
        """The dtype of a column of numbers in its file."""
        import pyarrow as pa

        kind = self._parquet.schema.field(name).type
        while not (pa.types.is_primitive(kind)):
            kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind.value_type
        found: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return found

    def _field(
        self, name: str, kind: pa.DataType, shape: tuple[int, ...] | None, picture: bool
    ) -> Field:
        import pyarrow as pa

        if shape is not None:
            return Column(name, "array", self._dtype(self._kind(name)), shape)
        if picture:
            return Column(name, "bytes")
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        whole = (text or is_binary(kind)) and self._parquet.has_nulls(name) is False
        return Column(name, ("text" if text else "bytes") if whole else "json")

    def class_names(self, name: str) -> list[str]:
        """As in the contract of ``ColumnStore``."""
        names = self._features.get(name, {}).get("names")
        return list(map(str, names)) if isinstance(names, list) else []

    def _whole(self, name: str) -> pa.ChunkedArray:
        return self._parquet.read(name, range(len(self._parquet)))

    @property
    def labels(self) -> np.ndarray | None:
        if self._labels is None and self._label is not None:
            labels = self._values_of(self._label, np.arange(len(self), dtype=np.int64))
            labels.flags.writeable = False
            self._labels = labels
        return self._labels

    def _numbers_at(self, name: str, indices: np.ndarray) -> np.ndarray:
        values = self._columns.get(name)
        if values is None:
            values = numbers_of(self._whole(name)) if len(self) else self._none(name)
            if values is None:
                raise StoreError(
                    f"expected numbers in the column {name!r}, found nulls, of which its "
                    "statistics know nothing: the file is damaged, write it again",
                    path=self.path,
                )
            self._columns[name] = values
        rows: np.ndarray = values[indices]
        return rows

    def _none(self, name: str) -> np.ndarray:
        return np.empty((0, *self._fields_shape(name)), self._kind(name))

    def _fields_shape(self, name: str) -> tuple[int, ...]:
        return () if name == self._label else tuple(self._fields[name].shape)

    def _given(self, name: str, indices: np.ndarray) -> list[Any]:
        groups, rows = self._located(indices)
        values: list[Any] = [None] * len(indices)
        for group in np.unique(groups).tolist():
            with self._pinned(name, group) as part:
                column = self._groups.wait(part)
                for at in np.flatnonzero(groups == group).tolist():
                    values[at] = column[int(rows[at])].as_py()
        return values

    # --- records ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self._parquet.first[-1])

    @property
    def files(self) -> Sequence[str]:
        return self._parquet.paths

    def _located(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The row group of each record, and its row there: int64 (n,) each."""
        first = self._parquet.first
        indices = np.asarray(indices, np.int64)
        groups = np.searchsorted(first, indices, side="right") - 1
        return groups, indices - first[groups]

    def places(self, indices: np.ndarray) -> Spans:
        """As in the contract: where the row group of each record begins, and its mean length.

        Where in the row group a record lies is not known before that is decoded.
        """
        groups, _ = self._located(indices)
        rows = np.diff(self._parquet.first)[groups]
        return Spans(
            file=self._parquet.file[groups].astype(np.int32),
            offset=self._offset[groups],
            nbytes=self._stored[groups] // np.maximum(rows, 1),
        )

    def spans(self, indices: np.ndarray) -> Spans:
        """As in the contract: places in ``Spans.memory``, which is the memory of row groups.

        Raises:
            StoreError: a row group cannot be decoded.
        """
        groups, rows = self._located(indices)
        n = len(groups)
        file, offset = np.zeros(n, np.int32), np.zeros(n, np.int64)
        nbytes = np.zeros(n, np.int64)
        memory: list[np.ndarray] = []
        held = _Pins(self._groups)
        order = np.argsort(groups, kind="stable")
        edges = np.flatnonzero(np.diff(groups[order], prepend=-1, append=-1)).tolist()
        pieces = [order[begin:end] for begin, end in itertools.pairwise(edges)]
        wanted = iter(int(groups[mine[0]]) for mine in pieces)
        begun: collections.deque[Part] = collections.deque()
        try:
            for mine in pieces:
                # The next ones are decoded by threads meanwhile.
                for group in itertools.islice(wanted, _row_groups.THREADS - len(begun)):
                    begun.append(self._pin(self._image, group))
                images: Images = self._groups.wait(begun[0])
                its = rows[mine]
                if self._groups.roomy() or len(its) * _FEWEST > len(images.file):
                    file[mine] = -1 - len(memory) - images.file[its]
                    offset[mine], nbytes[mine] = images.offset[its], images.nbytes[its]
                    memory.extend(images.buffers)
                    held.add(begun.popleft())
                else:
                    file[mine] = -1 - len(memory)
                    copied, offset[mine], nbytes[mine] = _copied(images, its)
                    memory.append(copied)
                    self._groups.unpin(begun.popleft())
        finally:
            for part in begun:
                self._groups.unpin(part)
        return Spans(file=file, offset=offset, nbytes=nbytes, held=held, memory=memory)

    def locate(self, indices: np.ndarray) -> Located:
        """As in the contract: row groups are decoded once for all of it."""
        spans = self.spans(indices)
        self._probe(indices, spans)
        return Located(spans=spans, kinds=self.kinds(indices), sizes=self.sizes(indices))

    def ahead(self, indices: np.ndarray, *, urgency: float, blocks: bool = False) -> Held | None:
        """As in the contract: row groups are decoded as a whole in any case."""
        held = _Pins(self._groups)
        for group in np.unique(self._located(indices)[0]).tolist():
            part = self._groups.pin(
                self._parquet,
                (self._image, group),
                int(self._decoded[group]),
                urgency=urgency,
                ahead=True,
            )
            if part is None:
                held.release()
                return None
            held.add(part)
        return held

    def _pin(self, name: str, group: int) -> Part:
        nbytes = int(self._decoded[group]) if name == self._image else 0
        part = self._groups.pin(self._parquet, (name, group), nbytes)
        assert part is not None, "only what is ahead may find no room"
        return part

    @contextlib.contextmanager
    def _pinned(self, name: str, group: int) -> Any:
        part = self._pin(name, group)
        try:
            yield part
        finally:
            self._groups.unpin(part)

    def expect(self, indices: np.ndarray, positions: np.ndarray, *, length: int) -> None:
        """As in the contract."""
        self._parquet.expect(self._located(indices)[0], np.asarray(positions, np.int64))

    def passed(self, position: int) -> None:
        """As in the contract."""
        self._parquet.passed(position)

    def check_window(self, blocks: int) -> None:
        """As in the contract: the row groups of a window fit into half of the memory."""
        block = np.stack([self._parquet.file, self._offset // BLOCK_NBYTES], axis=1)
        which = np.unique(block, axis=0, return_inverse=True)[1].reshape(-1)
        nbytes = np.sort(np.bincount(which, self._decoded))[::-1]
        room = self._groups.limit // 2
        fitting = int(np.searchsorted(np.cumsum(nbytes), room, side="right"))
        if nbytes[:blocks].sum() > room:
            raise UsageError(
                f"shuffle_window: expected blocks whose row groups fit into {room} bytes of "
                f"memory, which are at most {fitting} here, got {blocks}: choose a smaller window, "
                "or write the files with smaller row groups"
            )

    def read_through(self, fetch: Fetch) -> None:
        """As in the contract."""
        self._fetch = self._parquet.fetch = fetch

    def hint(self, *, windowed: bool) -> str | None:
        """As in the contract."""
        total, limit = int(self._decoded.sum()), self._groups.limit
        if windowed or total <= limit // 2:
            return None
        return (
            f"with shuffle=True a row group is decoded for almost every record, as the row groups "
            f"have {total} bytes and {limit // 2} fit into memory; give shuffle_window=16 and a "
            "seed, or pack it (`fastload pack`)"
        )

    def _headers(self, indices: np.ndarray) -> Spans:
        groups, _ = self._located(indices)
        try:
            return self.spans(indices)
        except StoreError:
            good = np.isin(
                groups, [one for one in np.unique(groups).tolist() if self._readable(one)]
            )
        found = self.spans(indices[good])
        # Where a row group is damaged: no bytes, after the others.
        memory = [*(found.memory or ()), np.zeros(1, np.uint8)]
        file = np.full(len(indices), -len(memory), np.int32)
        offset, nbytes = np.zeros(len(indices), np.int64), np.zeros(len(indices), np.int64)
        file[good], offset[good], nbytes[good] = found.file, found.offset, found.nbytes
        return Spans(file=file, offset=offset, nbytes=nbytes, held=found.held, memory=memory)

    def _core_files(self, spans: Spans) -> _core.Files | None:
        core = _native.load()
        if core is None:
            return None
        memory = spans.memory or ()
        ends, mapped = np.zeros(len(memory), np.int64), np.ones(len(memory), np.uint8)
        files: _core.Files = core.Files(b"", ends, mapped, memory=dict(enumerate(memory)))
        return files

    def _readable(self, group: int) -> bool:
        """Whether a row group can be decoded; ``spans`` says what is wrong with it."""
        try:
            with self._pinned(self._image, group) as part:
                self._groups.wait(part)
        except StoreError:
            return False
        return True

    def close(self) -> None:
        self._groups.drop(self._parquet)

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self._sources}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ParquetStore.__init__(self, state["paths"])


class _Pins:
    """Row groups that stay in memory: a ``Held``."""

    def __init__(self, groups: RowGroups) -> None:
        self._groups, self._parts = groups, list[Part]()
        self._process = os.getpid()

    def add(self, part: Part) -> None:
        self._parts.append(part)

    def ready(self) -> bool:
        """As in the contract."""
        return all(part.ready() for part in self._parts)

    def wait(self, ended: Callable[[], bool] = lambda: False) -> None:
        """As in the contract; but ``spans`` raises what is wrong with a row group."""
        for part in self._parts:
            while not part.wait(0.05) and not ended():
                pass

    def release(self) -> None:
        """As in the contract."""
        parts, self._parts = self._parts, []
        if os.getpid() == self._process:  # what a forked child was left is not its own
            self._groups.drop(parts)

    def __del__(self) -> None:
        self.release()


def _copied(images: Images, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The bytes of some images, one after the other, and where each begins and how long it is."""
    nbytes = images.nbytes[rows]
    ends = np.cumsum(nbytes)
    data = np.zeros(max(1, int(nbytes.sum())), np.uint8)
    places = zip(
        images.file[rows].tolist(), images.offset[rows].tolist(), nbytes.tolist(), ends.tolist()
    )
    for file, offset, length, end in places:
        data[end - length : end] = images.buffers[file][offset : offset + length]
    return data, ends - nbytes, nbytes


def _forget(files: ParquetFiles) -> None:
    _row_groups.of_process().drop(files)


def _chosen(
    path: str,
    types: Mapping[str, pa.DataType],
    features: Mapping[str, Mapping[str, Any]],
    pictures: Sequence[str],
) -> str:
    """The column that holds the images."""
    listed = ", ".join(f"{name} ({kind})" for name, kind in types.items()) or "nothing"
    decoded = [name for name in pictures if features.get(name, {}).get("decode", True)]
    names = decoded or list(pictures)
    if not names:
        names = [name for name, kind in types.items() if is_binary(kind)]
        if len(names) > 1 and "image" not in names:
            raise UsageError(
                f"{path!r}: expected one column of images, found several of bytes "
                f"({', '.join(names)}): call the one that is meant 'image'"
            )
    if not names:
        raise UsageError(
            f"{path!r}: expected a column with the bytes of images, or with the struct of bytes "
            f"and path that datasets.Image makes, found {listed}"
        )
    name = "image" if "image" in names else names[0]
    kind = types[name]
    if not (is_binary(kind) or is_struct_of_image(kind)):
        raise UsageError(
            f"{path!r}: expected bytes, or bytes and path, in the column of images {name!r}, found "
            f"{kind}"
        )
    mode = features.get(name, {}).get("mode")
    if mode not in (None, "RGB"):
        raise UsageError(
            f"the column {name!r} has images of the mode {mode!r}, while fastload makes RGB of all "
            "images: put Grayscale into the transform if that is wanted, and write the column with "
            "datasets.Image(mode='RGB')"
        )
    return name


def _files_of(path: str) -> list[str]:
    """The files of the store ``path``, in order.

    Raises:
        StoreNotFoundError: none.
        UsageError: a folder that holds several splits.
    """
    if not os.path.isdir(path):
        return data_files(path)
    found = _below(path)
    if not found:
        raise StoreNotFoundError(f"expected Parquet files ({SUFFIX}) in the folder", path=path)
    splits: dict[str, str] = {}
    for file in found:
        for word in _SPLIT.findall(os.path.relpath(file, path).lower()):
            splits.setdefault(_SAME_SPLIT.get(word, word), file)
    if len(splits) > 1:
        some = os.path.relpath(next(iter(splits.values())), path)
        pattern = os.path.join(path, re.sub(r"\d+", "*", some, count=1))
        raise UsageError(
            f"{path!r}: expected the Parquet files of one split, found {', '.join(splits)}: give "
            f"a pattern for the files of one, such as {pattern!r}"
        )
    return found


def _below(folder: str) -> list[str]:
    """The Parquet files in a folder, and in folders in it, sorted."""
    levels = ["*/" * depth + f"*{SUFFIX}" for depth in range(_DEEPEST + 1)]
    found = [
        file
        for level in levels
        for file in glob.glob(os.path.join(glob.escape(folder), level))
        if os.path.isfile(file) and os.path.basename(file) != _METADATA
    ]
    return sorted(found)


def is_folder(path: str) -> bool:
    """Whether a folder holds Parquet files, in itself or in a folder called ``data``."""
    for folder in (path, os.path.join(path, "data")):
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            names = (entry.name for entry in entries if entry.is_file())
            if any(name.endswith(SUFFIX) and name != _METADATA for name in names):
                return True
    return False


def open_ranged(path: str, need: Need) -> ParquetStore:
    """The store ``path`` of files of which nothing is there yet: ``Format.ranged``."""

    def fetch(ranges: Sequence[tuple[str, int, int]]) -> None:
        need(ranges)

    return ParquetStore(path, fetch)


FORMAT = Format(
    name="parquet",
    title="Parquet",
    suffixes=(SUFFIX,),
    open=ParquetStore,
    recognise=is_folder,
    folders=True,
    ranged=open_ranged,
)
