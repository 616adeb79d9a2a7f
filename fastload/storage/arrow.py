"""A Hugging Face dataset as a store: encoded images are read where they lie in its Arrow table.

Note [Columns] of ``_column_store.py`` says what a batch has beside the images.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UsageError, install, needed
from ._arrow_columns import features_of, images_of
from ._column_store import ColumnStore
from ._probe import core_files
from .base import Spans
from .folder import PathList
from .registry import Format

if TYPE_CHECKING:
    import pyarrow as pa

    from .._native import _core

SAVED = ("dataset_info.json", "state.json")  # files that ``save_to_disk`` writes
_SAVED_DICT = "dataset_dict.json"


class ArrowStore(ColumnStore):
    """The rows of a ``datasets.Dataset``; a record is a row's image.

    Of several Image columns it is the one called "image", or else the first; the others are fields,
    whose values are the bytes of the files.
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
        pictures = [name for name in columns if is_feature(features[name], "Image")]
        self._image = chosen_image(features, pictures)
        self._images = images_of(dataset.data.column(self._image), self._image)
        indices = getattr(dataset, "_indices", None)  # set by select() and shuffle()
        self._rows = np.arange(len(dataset), dtype=np.int64)
        if indices is not None:
            self._rows = indices.column(0).to_numpy().astype(np.int64)
        self._name_files()
        self._single: dict[str, Any] = {}  # datasets of one column
        self._schema = type(dataset.features)(features).arrow_schema
        self._features = features_of(self._schema)
        self._set_columns(self._image, pictures)
        # A hash of the contents of the dataset and of every operation on it.
        self.identity = str(getattr(dataset, "_fingerprint", ""))
        self._forget_sizes(len(self._images.file))
        self._probing: tuple[int, _core.Files | None] | None = None

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

    def _whole(self, name: str) -> pa.ChunkedArray:
        return self._dataset.data.column(name)

    def _has_nulls(self, name: str) -> bool | None:
        import pyarrow as pa

        column = self._whole(name)
        return None if pa.types.is_nested(column.type) else column.null_count > 0

    def _row_numbers(self, indices: np.ndarray) -> np.ndarray:
        rows: np.ndarray = self._rows[indices]
        return rows

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

    def _core_files(self, spans: Spans | None = None) -> _core.Files | None:
        if self._probing is None or self._probing[0] != os.getpid():
            self._probing = os.getpid(), core_files(*self.file_table(), self._memory)
        return self._probing[1]

    def _given(self, name: str, indices: np.ndarray) -> list[Any]:
        single = self._single.get(name)
        if single is None:
            kind = self._dataset.format["type"]
            single = self._dataset.with_format(None).select_columns([name]).with_format(kind)
            if is_feature(self._dataset.features[name], "Image"):
                single = single.cast_column(name, sys.modules["datasets"].Image(decode=False))
            self._single[name] = single
        return list(single[np.asarray(indices).tolist()][name])

    def __getstate__(self) -> dict[str, Any]:
        return {"_dataset": self._dataset}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._dataset = state["_dataset"]
        self._set()


def is_saved(path: str) -> bool:
    """Whether ``Dataset.save_to_disk`` wrote a folder."""
    if os.path.isfile(os.path.join(path, _SAVED_DICT)):
        parts = sorted(entry.name for entry in os.scandir(path) if entry.is_dir())
        raise UsageError(
            f"expected one dataset, found a DatasetDict of several in {path!r}: give the folder of "
            f"one of them ({', '.join(parts)})"
        )
    return all(os.path.isfile(os.path.join(path, name)) for name in SAVED)


def open_saved(path: str) -> ArrowStore:
    """The dataset that ``save_to_disk`` wrote into a folder."""
    datasets = needed(
        "datasets",
        f"{path!r} holds a Hugging Face dataset; reading it needs datasets: {install('datasets')}",
    )
    return ArrowStore(datasets.load_from_disk(path))


def is_feature(feature: object, name: str) -> bool:
    """Whether a feature is of the class of this name in datasets."""
    return type(feature) is getattr(sys.modules.get("datasets"), name, None)


def chosen_image(features: Mapping[str, Any], pictures: Sequence[str]) -> str:
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


FORMAT = Format(
    name="arrow", title="Hugging Face", open=open_saved, recognise=is_saved, folders=True
)
