"""Streaming datasets of Hugging Face with a transform of their images.

The dataset runs as it is, with its own shuffle buffer and shards, in worker processes or in this
one, over deferred images as any other IterableDataset (``_run/workers/deferral.py``).
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import IterableDataset

from ..errors import DecodeError
from .collate import collate

_NAMELESS = "<streaming dataset>"


class ImageStream(IterableDataset[Any]):
    """The rows of a streaming dataset, with one image of each transformed.

    Samples have all columns but other images; ``dataset.select_columns`` chooses some.

    Args:
        dataset: a ``datasets.IterableDataset`` with an Image column.
        transform: called with each image, RGB.
        target_transform: called with each label; None: labels stay as they are.

    Attributes:
        image, label: names of these columns; None: there is no label.
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
        from ..storage._column_store import likely_label
        from ..storage.arrow import chosen_image, is_feature

        resolved = dataset if dataset.features is not None else dataset._resolve_features()
        features = resolved.features
        pictures = [name for name in features if is_feature(features[name], "Image")]
        self.image = chosen_image(features, pictures)
        self.label = likely_label(features, lambda name: is_feature(features[name], "ClassLabel"))
        names = [name for name in features if name == self.image or name not in pictures]
        undecoded = sys.modules["datasets"].Image(decode=False)
        # `map` and `filter` get their rows decoded. To encode these images again would change them.
        for name in () if _is_mapped(dataset._ex_iterable) else pictures:
            resolved = resolved.cast_column(name, undecoded)
        self._rows = resolved.select_columns(names)
        self._decode = features[self.image].decode_example
        self.dataset = dataset
        self.transform, self.target_transform = transform, target_transform

    def __iter__(self) -> Iterator[dict[str, Any]]:
        # Not a generator, which a damaged image would end.
        return map(self._sample, self._rows, itertools.count())

    def _sample(self, row: dict[str, Any], position: int) -> dict[str, Any]:
        """The sample of a row; ``position``: how many came before it.

        Raises:
            DecodeError: it has no image, or a damaged one.
        """
        value = row[self.image]
        try:
            image = self._decode(value).convert("RGB")
        except Exception as error:  # whatever Pillow and the dataset's file system raise
            path = value.get("path") if isinstance(value, Mapping) else None
            raise DecodeError(
                f"row {position} of the stream: expected an image, but "
                f"{type(error).__name__}: {error}",
                path=path or _NAMELESS,
            ) from error
        row[self.image] = self.transform(image)
        if self.label is not None and self.target_transform is not None:
            row[self.label] = self.target_transform(row[self.label])
        return row

    def set_epoch(self, epoch: int) -> None:
        """Shuffle another epoch."""
        self._rows.set_epoch(epoch)

    def state_dict(self) -> Any:
        """Where the dataset is."""
        return self._rows.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Continue there; None: begin again."""
        self._rows.load_state_dict(state)


def collate_rows(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The columns of rows: see Note [Columns] of ``storage/_column_store.py``."""
    return {name: _column([row[name] for row in rows]) for name in rows[0]}


def _is_mapped(examples: Any) -> bool:
    """Whether a chain of the dataset's iterables has one that gives rows to a function."""
    if examples is None:
        return False
    if any(base.__name__ == "MappedExamplesIterable" for base in type(examples).__mro__):
        return True
    several = getattr(examples, "ex_iterables", None) or ()
    return any(map(_is_mapped, (getattr(examples, "ex_iterable", None), *several)))


def _column(values: list[Any]) -> Any:
    kinds = {type(value) for value in values}
    if kinds <= {bool} or kinds <= {int} or kinds <= {float} or isinstance(values[0], torch.Tensor):
        return collate(values)
    return values
