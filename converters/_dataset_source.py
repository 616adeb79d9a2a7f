"""Any torch Dataset as a source, map-style or iterable, also by ``module:object``."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.import_object import import_object
from ..errors import DataError, DecodeError, UsageError
from ..storage._fields import gather_fields, label_column
from ._labels import Chosen, warn_of_others
from ._source import LabelsAndFields, PackSource, Sample

if TYPE_CHECKING:
    from PIL import Image

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def is_object_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


class DatasetSource(PackSource):
    """The samples of a Dataset: (image, label), an image, or a dict with image and label.

    An image is a PIL image, a uint8 tensor (3 or 1, height, width), a uint8 array (height, width,
    3) or (height, width), a uint16 array (height, width), or the bytes of an image file. In a dict,
    image and label are found by their names (``_labels.py``); other entries become fields. The
    dataset is only used in the calling thread. ``name`` is for settings and messages.
    """

    encoding = "png"
    concurrent = False

    def __init__(self, dataset: Any, name: str, chosen: Chosen | None = None) -> None:
        # torch's IterableDataset inherits a __getitem__ that does not work. An instance exists only
        # if torch was imported, so torch is not imported here, which takes a second.
        torch_data = sys.modules.get("torch.utils.data")
        iterable = torch_data is not None and isinstance(dataset, torch_data.IterableDataset)
        sized = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        self.streamed = (iterable or not sized) and hasattr(dataset, "__iter__")
        if not sized and not self.streamed:
            raise UsageError(
                "expected a Dataset with __len__ and __getitem__, or one with __iter__, got "
                f"{name} ({type(dataset).__name__})"
            )
        self.path = name
        self._dataset = dataset
        self._chosen = chosen or Chosen()
        self._entries: tuple[str, str | None] | None = None  # of a dict: image, label
        self.classes = [str(one) for one in getattr(dataset, "classes", ())]
        self.keys = [] if self.streamed else list(map(self.key, range(len(dataset))))

    def key(self, index: int) -> str:
        return f"{index:08d}"

    def stream(self) -> Iterator[Sample | DataError]:
        """As in ``PackSource``; errors of the dataset are not caught."""
        return map(self._sample, self._dataset)

    def read(self, indices: np.ndarray) -> Iterator[Sample | DataError]:
        """As in ``PackSource``; errors of the dataset are not caught."""
        for index in indices.tolist():
            yield self._sample(self._dataset[index])

    def _sample(self, item: Any) -> Sample | DataError:
        """One sample of the dataset, or the error if it is not an image."""
        fields: dict[str, object] = {}
        label = None
        if isinstance(item, Mapping):
            image, named = self._entries = self._entries or self._found(item)
            fields = {str(name): _kept(value) for name, value in item.items() if name != image}
            label = None if named is None else fields.pop(named, None)
            item = item.get(image)
        elif isinstance(item, (tuple, list)) and len(item) == 2:
            item, label = item[0], _kept(item[1])
        try:
            return Sample(_image(item), label=label, fields=fields)
        except DecodeError as error:
            return error

    def _found(self, item: Mapping[object, object]) -> tuple[str, str | None]:
        """The names of image and label, from the first dict."""
        names = [str(name) for name in item]
        image = self._chosen.image_of(names) or "image"
        others = [name for name in names if name != image]
        label = self._chosen.label_of(others)
        if label != self._chosen.label and label != "label" and isinstance(item.get(label), str):
            label = None  # class names can only be numbered if all of them are known
        warn_of_others(self.path, label, {name: () for name in others if name != label})
        return image, label

    def annotate(self, indices: np.ndarray, samples: Sequence[Sample]) -> LabelsAndFields:
        labels = [sample.label for sample in samples]
        missing = sum(label is None for label in labels)
        if missing not in (0, len(labels)):
            raise UsageError("expected a label in every sample of the dataset or in none")
        fields, kinds = gather_fields([sample.fields for sample in samples])
        return LabelsAndFields(None if missing else label_column(labels), fields, kinds)

    def digest(self) -> str:
        """Of name and length: the contents are unknown."""
        return hashlib.blake2b(f"{self.path}\0{len(self)}".encode(), digest_size=16).hexdigest()


def named_object(text: str) -> object:
    """The dataset ``module:object``; a class or a function is called."""
    imported = import_object(text)
    made = isinstance(imported, type) or not (
        hasattr(imported, "__getitem__") or hasattr(imported, "__iter__")
    )
    if not made or not callable(imported):
        return imported
    try:
        with contextlib.suppress(ValueError):  # one in C may not say what it takes
            inspect.signature(imported).bind()
    except TypeError as error:
        raise UsageError(
            f"expected a Dataset, or what makes one without arguments, got {text}: {error}"
        ) from error
    return imported()


def _plain(value: object) -> object:
    """A tensor as an array or a number; anything else unchanged."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        array: np.ndarray = value.detach().cpu().numpy()
        return array[()] if array.ndim == 0 else array
    return value


def _kept(value: object) -> object:
    """As ``_plain``, but copied: a dataset may reuse one array for every sample."""
    value = _plain(value)
    return np.array(value) if isinstance(value, np.ndarray) else value


def _image(item: object) -> bytes | Image.Image:
    """Bytes of a file, or a PIL image."""
    from PIL import Image

    if isinstance(item, (bytes, Image.Image)):
        return item
    array = _plain(item)
    if isinstance(array, np.ndarray) and array.dtype == np.uint8:
        if item is not array and array.ndim == 3 and array.shape[0] in (1, 3):  # it was a tensor
            array = np.moveaxis(array, 0, 2)
        if array.ndim == 3 and array.shape[2] == 1:
            array = array[:, :, 0]
        if array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3):
            return Image.fromarray(np.array(array, order="C"))  # a copy, as in ``_kept``
    if isinstance(array, np.ndarray) and array.dtype == np.uint16 and array.ndim == 2:
        return Image.fromarray(np.array(array, order="C"))
    what = type(item).__name__
    if isinstance(array, np.ndarray):
        what = f"{array.dtype} of {array.shape}"
    raise DecodeError(
        "expected a PIL image, a uint8 tensor (3, h, w), a uint8 array (h, w, 3) or the bytes of "
        f"an image file, found {what}: pack the dataset without its transform to a float tensor"
    )
