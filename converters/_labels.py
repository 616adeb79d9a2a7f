"""Finding the columns of images and labels of a source, and numbering class names."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import UsageError
from ..storage._fields import encode_text, label_column

# Common names of columns, the likeliest first; case and punctuation do not matter.
_IMAGES = ("path", "file_name", "filename", "file", "filepath", "file_path", "image", "img",
           "image_path", "img_path", "image_file", "image_name")  # fmt: skip
_LABELS = ("label", "class", "target", "category", "labels", "label_name", "class_name",
           "category_name", "class_label", "label_id", "class_id", "category_id", "label_idx",
           "class_idx", "cls", "y")  # fmt: skip
_OTHERS = ("split", "subset", "fold", "set", "usage", "source")  # few values, but not labels
_LIKE = re.compile(r"(^|_)(label|class|cls|target|category|categories)s?(_|$)")
_MOST_CHARACTERS = 64  # of a possible class name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chosen:
    """The columns that the caller named; None: found by their usual names."""

    image: str | None = None
    label: str | None = None

    def image_of(self, names: Sequence[str]) -> str | None:
        """The column of images; None if no column has a usual name.

        Raises:
            UsageError: there is no column of the given name.
        """
        return _find(self.image, names, _IMAGES, "image_column")

    def label_of(self, names: Sequence[str]) -> str | None:
        """The column of labels, likewise."""
        return _find(self.label, names, _LABELS, "label_column")

    def refuse(self, source: str) -> None:
        """Raise UsageError if a column was named, but the source has none."""
        for name in ("image", "label"):
            given = getattr(self, name)
            if given is not None:
                raise UsageError(
                    f"{name}_column: expected none, got {given!r}: {source} has no columns to "
                    "choose from"
                )


def _find(given: str | None, names: Sequence[str], known: Sequence[str], what: str) -> str | None:
    if given is not None and given not in names:
        raise UsageError(f"{what}: expected one of {', '.join(names)}, got {given!r}")
    if given is not None:
        return given
    plain = {_plain(name): name for name in reversed(names)}
    return next((plain[name] for name in known if name in plain), None)


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "_", name.strip().lower())


def called_like_images() -> str:
    """The usual names of columns of images, for a message."""
    return " or ".join(_IMAGES)


def numbered(values: Sequence[Any]) -> tuple[list[str], np.ndarray]:
    """Class names (none for numbers), and labels as a store holds them.

    Raises:
        UsageError: neither text nor numbers, or lists of different lengths.
    """
    if all(isinstance(value, str) for value in values):
        classes = sorted(set(values), key=encode_text)
        number = {name: index for index, name in enumerate(classes)}
        return classes, np.array([number[value] for value in values], np.int64)
    return [], label_column(values)


def warn_of_others(path: str, label: str | None, columns: Mapping[str, Iterable[object]]) -> None:
    """Warn about columns that look like labels and become fields.

    Args:
        path: of the source.
        label: the column of labels.
        columns: the other ones.
    """
    named = [one for one in columns if _LIKE.search(_plain(one))]
    like = named if label is not None else [
        one for one in columns if one in named or _repeats(one, list(columns[one]))
    ]  # fmt: skip
    if like:
        taken = "found no labels by name" if label is None else f"took the labels of {label!r}"
        warnings.warn(
            f"{path!r}: {taken}; {', '.join(map(repr, like))} may be labels, and became a field: "
            f"to use it as label, give label_column={like[0]!r}",
            stacklevel=2,
        )


def _repeats(name: str, values: Sequence[object]) -> bool:
    """Whether a column of text has few values that repeat."""
    texts = [value for value in values if isinstance(value, str)]
    if name.lower() in _OTHERS or len(texts) < len(values):
        return False
    different = set(texts)
    short = all(0 < len(text) <= _MOST_CHARACTERS for text in different)
    return short and 2 <= len(different) <= len(values) // 2
