"""A Hugging Face dataset as a store: encoded images are read where they lie in its Arrow table.

Note [Columns] says what a batch has beside the images.
"""

from __future__ import annotations

import copy
import datetime
import decimal
import functools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _native
from ..errors import MissingDependencyError, StoreError, UsageError, install
from ._arrow_columns import images_of, numbers_of
from ._probe import THREADS, UNKNOWN, UNREADABLE
from ._read import open_regular, read_records
from ._upright import by_core, size_and_kind
from .base import ENCODED, Field, Spans, Store
from .folder import PathList
from .registry import Format

if TYPE_CHECKING:
    from .._native import _core

# Note [Columns]
#     A sample is a dict with the columns of the dataset, like one of its rows. Numbers have the
#     dtypes that default_collate gives Python's numbers (int64, float64, bool), or those of the
#     format "torch" (float32). Lists of fixed length make one tensor (n, ...). Every other column,
#     and one that contains None, is a list of n values, each as the dataset returns it:
#     default_collate would transpose lists and fail at None, differently from batch to batch.

SAVED = ("dataset_info.json", "state.json")  # files that ``save_to_disk`` writes
_SAVED_DICT = "dataset_dict.json"


class Column(Field):
    """A column, which may have any name."""

    def __post_init__(self) -> None:
        pass


class ArrowStore(Store):
    """The rows of a ``datasets.Dataset``; a record is a row's image.

    Args:
        dataset: with an Image column, decoded or not. If there are several, the one called "image"
            or else the first; the others are fields, whose values are the bytes of the files.

    Raises:
        UsageError: no Image column, one with another mode than RGB, a format other than "torch", or
            images that are not local files.
    """

    format = "arrow"

    def __init__(self, dataset: Any) -> None:
        self._dataset = copy.copy(dataset)  # set_format and set_transform change it in place
        self._set()

    def _set(self) -> None:
        dataset = self._dataset
        kind = dataset.format["type"]
        if kind not in (None, "torch"):
            raise UsageError(
                f"expected a dataset without a format, or with the format 'torch', got {kind!r}, "
                "whose samples are made by its own code: give dataset.with_format(None), and the "
                "transform of its images as transform="
            )
        options = dataset.format["format_kwargs"]
        if options:
            raise UsageError(
                f"expected the format 'torch' without options, got {options}: FastLoader has "
                "dtype= and device="
            )
        whole = kind is None or dataset.format["output_all_columns"]
        columns = dataset.column_names if whole else dataset.format["columns"]
        features = {name: dataset.features[name] for name in columns}
        self._float = np.dtype(np.float32 if kind == "torch" else np.float64)
        pictures = [name for name in columns if _is(features[name], "Image")]
        self._image = _chosen(features, pictures)
        self._images = images_of(dataset.data.column(self._image), self._image)
        indices = getattr(dataset, "_indices", None)  # set by select() and shuffle()
        self._rows = np.arange(len(dataset), dtype=np.int64)
        if indices is not None:
            self._rows = indices.column(0).to_numpy().astype(np.int64)
        self._name_files()
        self._numbers: dict[str, np.ndarray] = {}
        self._single: dict[str, Any] = {}  # datasets of one column
        rest = [name for name in columns if name != self._image]
        for name in rest:
            values = None if name in pictures else numbers_of(dataset.data.column(name))
            if values is not None:
                self._numbers[name] = values
        label = self._label(rest, features)
        self.names = self._image, label or "label"
        self._fields = {name: self._field(name, pictures) for name in rest if name != label}
        self.sample_fields = tuple(name for name in self._fields if name not in pictures)
        self.metadata: dict[str, Any] = {}
        # A hash of the contents of the dataset and of every operation on it.
        self.identity = str(getattr(dataset, "_fingerprint", ""))
        rows = len(self._images.file)
        self._sizes = np.full((rows, 2), UNKNOWN, np.int32)
        self._kinds = np.full(rows, ENCODED, np.uint8)
        self._probing: tuple[int, _core.Files] | None = None

    def _name_files(self) -> None:
        images = self._images
        self.path = f"<Dataset, column {self._image!r}>"
        names = [os.fsencode(self.path)] * len(images.buffers)
        if images.none is not None:
            names[images.none] = f"<Dataset, column {self._image!r}, where it is None>".encode()
        self._paths = PathList(names)
        ends = images.ends + len(self._paths.blob)
        self._paths.blob += images.paths
        self._paths.ends = np.concatenate([self._paths.ends, ends])
        self.mapped = not len(ends)
        self._memory = dict(enumerate(images.buffers))

    def _label(self, names: list[str], features: Mapping[str, Any]) -> str | None:
        """The column of labels, if there is one."""
        self._labels: np.ndarray | None = None
        self.classes = []
        classes = [name for name in names if _is(features[name], "ClassLabel")]
        named = [name for name in ("label", "labels") if name in names]
        for name in named[:1] or (classes if len(classes) == 1 else []):
            values = self._numbers.get(name)
            if values is not None and values.ndim == 1 and values.dtype.kind in "iuf":
                self._labels = self._values_of(name, np.arange(len(self), dtype=np.int64))
                self._labels.flags.writeable = False
                self.classes = list(features[name].names or []) if name in classes else []
                return name
        return None

    def class_names(self, name: str) -> list[str]:
        """The class names of a ClassLabel column; empty for other columns."""
        feature = self._dataset.features[name]
        return list(feature.names or []) if _is(feature, "ClassLabel") else []

    def _field(self, name: str, pictures: Sequence[str]) -> Field:
        values = self._numbers.get(name)
        if values is not None:
            return Column(name, "array", self._dtype(values), values.shape[1:])
        column = self._dataset.data.column(name)
        if name in pictures:
            return Column(name, "bytes")
        kind = {"string": "text", "large_string": "text", "binary": "bytes"}.get(str(column.type))
        return Column(name, kind if kind and not column.null_count else "json")

    def _dtype(self, values: np.ndarray) -> np.dtype[Any]:
        """See Note [Columns]."""
        kinds = {"f": self._float, "b": np.dtype(bool)}
        return kinds.get(values.dtype.kind, np.dtype(np.int64))

    def _values_of(self, name: str, indices: np.ndarray) -> np.ndarray:
        values = self._numbers[name]
        rows: np.ndarray = values[self._rows[indices]]
        return rows.astype(self._dtype(values), copy=False)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def files(self) -> Sequence[str]:
        """Names for the buffers in ``memory``, then the files of paths."""
        return self._paths

    def file_table(self) -> tuple[bytes, np.ndarray]:
        return self._paths.blob, self._paths.ends

    def mapped_files(self) -> np.ndarray:
        mapped = np.zeros(len(self._paths), np.uint8)
        mapped[: len(self._memory)] = 1
        return mapped

    def memory(self) -> Mapping[int, np.ndarray]:
        return self._memory

    def spans(self, indices: np.ndarray) -> Spans:
        rows, images = self._rows[indices], self._images
        return Spans(file=images.file[rows], offset=images.offset[rows], nbytes=images.nbytes[rows])

    def kinds(self, indices: np.ndarray) -> np.ndarray:
        """ENCODED, or TURNED if EXIF says so, because ``datasets.Image`` applies it."""
        self._probe(indices)
        kinds: np.ndarray = self._kinds[self._rows[indices]]
        return kinds

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """As in the contract, after EXIF. A file's header is read when it is needed."""
        self._probe(indices)
        sizes: np.ndarray = np.maximum(self._sizes[self._rows[indices]], 0)
        return sizes

    def _probe(self, indices: np.ndarray) -> None:
        rows = self._rows[indices]
        unknown = self._sizes[rows, 0] == UNKNOWN
        if not unknown.any():
            return
        rows, first = np.unique(rows[unknown], return_index=True)
        indices = np.asarray(indices, np.int64)[unknown][first]
        spans, found = self.spans(indices), np.zeros((len(rows), 2), np.int32)
        good = by_core(self._core_files(), spans, found, THREADS)
        kinds = np.full(len(rows), ENCODED, np.uint8)
        for at in np.flatnonzero(~good).tolist():
            found[at], kinds[at] = UNREADABLE, ENCODED
            try:
                (data,) = read_records(self, indices[at : at + 1])
            except StoreError:
                continue  # raised again, with the place, when the record is decoded
            width, height, kinds[at] = size_and_kind(data)
            found[at] = width, height
        # Sizes last: another thread that sees a size must see the kind too.
        self._kinds[rows] = kinds
        self._sizes[rows] = found

    def _core_files(self) -> _core.Files | None:
        """The core's view of ``files`` in this process; None without a core."""
        core = _native.load()
        if core is None:
            return None
        if self._probing is None or self._probing[0] != os.getpid():
            files = core.Files(*self.file_table(), self.mapped_files(), memory=self._memory)
            self._probing = os.getpid(), files
        return self._probing[1]

    @property
    def labels(self) -> np.ndarray | None:
        return self._labels

    @property
    def fields(self) -> Mapping[str, Field]:
        """The other columns; other images as the bytes of their files."""
        return self._fields

    def column(self, name: str) -> np.ndarray:
        field = self._fields.get(name)
        if field is None or field.kind != "array":
            return super().column(name)
        return self._values_of(name, np.arange(len(self), dtype=np.int64))

    def batch(self, name: str, indices: np.ndarray) -> np.ndarray | list[Any]:
        """As in the contract; values other than numbers as the dataset returns them."""
        kind = self._fields[name].kind
        if kind == "array":
            return self._values_of(name, indices)
        return self._bytes(name, indices) if kind == "bytes" else self._given(name, indices)

    def _bytes(self, name: str, indices: np.ndarray) -> list[bytes | None]:
        """Byte strings, or the files of images; None for a row without an image."""
        return [
            _file_of(value, index) if isinstance(value, dict) else value
            for value, index in zip(self._given(name, indices), indices.tolist(), strict=True)
        ]

    def _given(self, name: str, indices: np.ndarray) -> list[Any]:
        single = self._single.get(name)
        if single is None:
            kind = self._dataset.format["type"]
            single = self._dataset.with_format(None).select_columns([name]).with_format(kind)
            if _is(self._dataset.features[name], "Image"):
                single = single.cast_column(name, sys.modules["datasets"].Image(decode=False))
            self._single[name] = single
        return list(single[np.asarray(indices).tolist()][name])

    def values(self, name: str, indices: np.ndarray) -> list[bytes]:
        field = self._fields.get(name)
        if field is None or field.kind == "array":
            return super().values(name, indices)
        if field.kind == "bytes":  # a missing image becomes an empty file
            return [value or b"" for value in self._bytes(name, indices)]
        values = self._given(name, indices)
        if field.kind == "text":
            return [value.encode("utf-8") for value in values]
        plain = functools.partial(_plain, name)
        return [json.dumps(value, default=plain).encode("utf-8") for value in values]

    def keys(self, indices: np.ndarray) -> list[str]:
        """Numbers of the rows."""
        return [f"{index:08d}" for index in np.asarray(indices).tolist()]

    def checksums(self, indices: np.ndarray) -> None:
        """None: Arrow has none."""

    def __getstate__(self) -> dict[str, Any]:
        return {"_dataset": self._dataset}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._dataset = state["_dataset"]
        self._set()


def is_saved(path: str) -> bool:
    """Whether ``Dataset.save_to_disk`` wrote a folder.

    Raises:
        UsageError: ``DatasetDict.save_to_disk`` wrote it.
    """
    if os.path.isfile(os.path.join(path, _SAVED_DICT)):
        parts = sorted(one.name for one in os.scandir(path) if one.is_dir())
        raise UsageError(
            f"expected one dataset, found a DatasetDict of several in {path!r}: give the folder of "
            f"one of them ({', '.join(parts)})"
        )
    return all(os.path.isfile(os.path.join(path, name)) for name in SAVED)


def open_saved(path: str) -> ArrowStore:
    """The dataset that ``save_to_disk`` wrote into a folder.

    Raises:
        MissingDependencyError: datasets is not installed.
        UsageError: as for ``ArrowStore``.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError(
            f"{path!r} holds a Hugging Face dataset; reading it needs datasets: "
            f"{install('datasets')}"
        ) from error
    return ArrowStore(datasets.load_from_disk(path))


def _is(feature: object, name: str) -> bool:
    """Whether a feature is of the class of this name in datasets."""
    return type(feature) is getattr(sys.modules.get("datasets"), name, None)


def _chosen(features: Mapping[str, Any], pictures: Sequence[str]) -> str:
    """The column that holds the images."""
    decoded = [name for name in pictures if features[name].decode] or list(pictures)
    if not decoded:
        raise UsageError(
            f"expected a dataset with an Image column, found {', '.join(features) or 'nothing'}: "
            "dataset.cast_column(name, datasets.Image()) makes one of paths or bytes"
        )
    name = "image" if "image" in decoded else decoded[0]
    if features[name].mode not in (None, "RGB"):
        raise UsageError(
            f"the column {name!r} has images of the mode {features[name].mode!r}, while fastload "
            "makes RGB of all images: cast it to datasets.Image(mode='RGB'), and put Grayscale "
            "into the transform if that is wanted"
        )
    return name


def _file_of(value: Mapping[str, Any], record: int) -> bytes | None:
    """The bytes of an undecoded image; None if there is none.

    Raises:
        StoreError: its file cannot be read.
    """
    if value["bytes"] is not None:
        return bytes(value["bytes"])
    if value["path"] is None:
        return None
    try:
        with open(value["path"], "rb", opener=open_regular) as file:
            return file.read()
    except OSError as error:
        raise StoreError(
            f"expected the file of an image, found none that can be read ({error.strerror}): put "
            "it back, or remove the column",
            path=value["path"],
            record=record,
        ) from error


def _plain(name: str, value: object) -> object:
    """A value of the column ``name`` that JSON cannot hold, as one that it can."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal)):
        return str(value)
    raise UsageError(
        f"expected numbers, text, dates, and lists and dicts of such in the column {name!r}, found "
        f"a {type(value).__name__}, which JSON cannot hold: remove it (dataset.remove_columns)"
    )


FORMAT = Format(
    name="arrow", title="Hugging Face", open=open_saved, recognise=is_saved, folders=True
)
