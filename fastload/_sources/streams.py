"""Streaming datasets of Hugging Face: images decoded by the core, a batch at a time.

The dataset runs as it is, with its own shuffle buffer and shards, in worker processes or in this
one; only its images stay encoded. The collate function decodes and transforms those of a whole
batch, in the process that collates. A transform gets deferred images, so torchvision's own code
draws its random numbers, as it would with torch's DataLoader.

``map`` and ``filter`` have their rows decoded by the dataset itself, for their function. Encoding
these images again would change them, so the transform then gets them as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from ..errors import DataError, DecodeError, UsageError
from ..storage._column_store import ColumnStore, files_in_memory, likely_label
from ..storage.base import Spans
from .collate import Collate, collate
from .in_python import PythonSamples

if TYPE_CHECKING:
    from .._native import _core


class ImageStream(IterableDataset[Any]):
    """A streaming dataset whose images stay encoded until they are collated.

    Samples have all columns but other images; ``dataset.select_columns`` chooses some.

    Args:
        dataset: a ``datasets.IterableDataset`` with an Image column.
        transform: called with each image, RGB.
        target_transform: called with each label; None: labels stay as they are.

    Attributes:
        image, label: names of these columns; None: there is no label.
        decoded: the dataset itself decodes its images, for ``map`` or ``filter``.
        keeps_loaded_state: as ``huggingface.keeps_loaded_state`` says.

    Raises:
        UsageError: no Image column.
    """

    keeps_loaded_state = True

    def __init__(
        self,
        dataset: Any,
        transform: Callable[[Any], Any],
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        from ..storage.arrow import chosen_image, is_feature

        resolved = dataset if dataset.features is not None else dataset._resolve_features()
        features = resolved.features
        pictures = [name for name in features if is_feature(features[name], "Image")]
        self.image = chosen_image(features, pictures)
        self.label = likely_label(features, lambda name: is_feature(features[name], "ClassLabel"))
        self.names = [name for name in features if name == self.image or name not in pictures]
        self.decoded = _is_mapped(dataset._ex_iterable)
        undecoded = sys.modules["datasets"].Image(decode=False)
        for name in () if self.decoded else pictures:
            resolved = resolved.cast_column(name, undecoded)
        self._rows = resolved.select_columns(self.names)
        self.dataset = dataset
        self.transform, self.target_transform = transform, target_transform

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in self._rows:
            row[self.image] = Undecoded(row[self.image])
            yield row

    def set_epoch(self, epoch: int) -> None:
        """Shuffle another epoch."""
        self._rows.set_epoch(epoch)

    def state_dict(self) -> Any:
        """Where the dataset is."""
        return self._rows.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Continue there; None: begin again."""
        self._rows.load_state_dict(state)

    def collating(self, collate_fn: Collate | None) -> Collate:
        """The collate function that decodes, and then does what ``collate_fn`` does."""
        if isinstance(collate_fn, DecodingCollate):  # a trainer that rebuilds the loader
            collate_fn = collate_fn.then
        return DecodingCollate(self, collate if collate_fn is None else collate_fn)


class Undecoded:
    """An image of a row, as ``datasets.Image(decode=False)`` gives it.

    Attributes:
        data: the bytes of its file; None where there are none.
        path: of the file, as the dataset names it.
        other: what it was, if it was neither bytes nor a path.
    """

    def __init__(self, value: Any) -> None:
        known = isinstance(value, Mapping)
        self.data: bytes | None = value["bytes"] if known else None
        self.path: str | None = value["path"] if known else None
        self.other = None if known else value


class DecodingCollate:
    """Decodes and transforms the images of the rows of a batch, and collates these.

    Args:
        stream: where they come from.
        then: what makes a batch of samples.
    """

    def __init__(self, stream: ImageStream, then: Collate) -> None:
        self.stream, self.then = stream, then
        self._samples = PythonSamples()

    def __call__(self, rows: list[dict[str, Any]]) -> Any:
        """The batch of ``rows``.

        Raises:
            DataError: an image cannot be read or decoded.
        """
        stream = self.stream
        images = self._images([row[stream.image] for row in rows])
        if stream.label is not None and stream.target_transform is not None:
            for row in rows:
                row[stream.label] = stream.target_transform(row[stream.label])
        if self.then is not collate:
            return self.then(
                [{**row, stream.image: image} for row, image in zip(rows, images, strict=True)]
            )
        whole = images if isinstance(images, torch.Tensor) else collate(images)
        return {
            name: whole if name == stream.image else _column([row[name] for row in rows])
            for name in rows[0]
        }

    def _images(self, undecoded: Sequence[Undecoded]) -> torch.Tensor | list[Any]:
        transform = self.stream.transform
        if self.stream.decoded:
            return [transform(_rgb(image, at)) for at, image in enumerate(undecoded)]
        store = _BatchStore(undecoded)
        try:
            return self._samples(
                store,
                np.arange(len(store), dtype=np.int64),
                lambda image, i: transform(image),
            )
        except DataError as error:
            at = "" if error.record is None else f"image {error.record} of a batch: "
            raise type(error)(f"{at}{error.message}", path=error.path) from error


class _BatchStore(ColumnStore):
    """The encoded images of one batch."""

    format = "batch"
    mapped = False
    remote = True  # their bytes are in no file

    def __init__(self, images: Sequence[Undecoded]) -> None:
        self.path, self.classes, self.metadata = "<streaming dataset>", (), {}
        self._names = [image.path or self.path for image in images]
        data = [_bytes_of(image) for image in images]
        self._memory = [np.frombuffer(one or b"\0", np.uint8) for one in data]
        self._nbytes = np.array([len(one) for one in data], np.int64)
        self._fields, self._labels = {}, None
        self._forget_sizes(len(images))

    def __len__(self) -> int:
        return len(self._names)

    @property
    def files(self) -> Sequence[str]:
        return self._names

    def spans(self, indices: np.ndarray) -> Spans:
        return Spans(
            file=(-1 - indices).astype(np.int32),
            offset=np.zeros(len(indices), np.int64),
            nbytes=self._nbytes[indices],
            memory=self._memory,
        )

    def places(self, indices: np.ndarray) -> Spans:
        spans = self.spans(indices)
        return Spans(file=indices.astype(np.int32), offset=spans.offset, nbytes=spans.nbytes)

    def _core_files(self, spans: Spans) -> _core.Files | None:
        return files_in_memory(self._memory)

    def _numbers_at(self, name: str, indices: np.ndarray) -> np.ndarray:
        raise NotImplementedError("it has images alone")

    def _given(self, name: str, indices: np.ndarray) -> list[Any]:
        raise NotImplementedError("it has images alone")

    def class_names(self, name: str) -> list[str]:
        """None."""
        return []


def _is_mapped(examples: Any) -> bool:
    """Whether a chain of the dataset's iterables has one that gives rows to a function."""
    if examples is None:
        return False
    if any(one.__name__ == "MappedExamplesIterable" for one in type(examples).__mro__):
        return True
    several = getattr(examples, "ex_iterables", None) or ()
    return any(map(_is_mapped, (getattr(examples, "ex_iterable", None), *several)))


def _rgb(image: Undecoded, at: int) -> Any:
    """An image that the dataset decoded, as RGB.

    Raises:
        DataError: there is none.
    """
    given: Any = image.other
    if not hasattr(given, "convert"):
        raise DecodeError(
            f"image {at} of a batch: expected an image in the dataset's rows, found "
            f"{'none' if given is None else type(given).__name__}",
            path="<streaming dataset>",
        )
    return given.convert("RGB")


def _bytes_of(image: Undecoded) -> bytes:
    """The bytes of an image's file, which ``datasets`` opens where they are not in the row."""
    if image.data is not None:
        return bytes(image.data)
    if image.path is not None:
        from datasets.utils.file_utils import xopen

        with xopen(image.path, "rb") as file:
            data: bytes = file.read()
            return data
    if image.other is None:
        return b""  # refused as an image that is empty
    raise UsageError(
        f"expected the bytes or the path of an image in the dataset's rows, found a "
        f"{type(image.other).__name__}: give the transform of images to FastLoader instead of "
        "dataset.map"
    )


def _column(values: list[Any]) -> Any:
    """A column of a batch: see Note [Columns] of ``storage/_column_store.py``."""
    kinds = {type(value) for value in values}
    if kinds <= {bool} or kinds <= {int} or kinds <= {float} or kinds <= {torch.Tensor}:
        return collate(values)
    return values
