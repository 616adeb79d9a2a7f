"""Finding the columns of images and labels of a source, and numbering class names."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import UsageError
from ..storage._fields import encode_text, label_column
from ..storage._local import local_path

# Common names of columns, the likeliest first; case and punctuation do not matter.
_IMAGES = ("path", "file_name", "filename", "file", "filepath", "file_path", "image", "img",
           "image_path", "img_path", "image_file", "image_name", "image_file_name")  # fmt: skip
_LABELS = ("label", "class", "target", "category", "labels", "label_name", "class_name",
           "category_name", "class_label", "label_id", "class_id", "category_id", "label_idx",
           "class_idx", "cls", "y")  # fmt: skip
_OTHERS = ("split", "subset", "fold", "set", "usage", "source")  # few values, but not labels
_LIKE = re.compile(r"(^|_)(label|class|cls|target|category|categories)s?(_|$)")
_MOST_CHARACTERS = 64  # of a possible class name
_NUMBER = re.compile(r"[-+]?((0|[1-9]\d*)(\.\d*)?|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+")  # one number, not several


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chosen:
    """What the caller said about labels and fields, as in ``pack``."""

    image: str | None = None
    label: str | None = None
    files: tuple[str, ...] = ()
    masks: str | None = None
    annotations: str | None = None

    @classmethod
    def of(
        cls,
        image_column: str | None,
        label_column: str | None,
        file_columns: Sequence[str] | str | None,
        masks: str | os.PathLike[str] | None,
        annotations: str | os.PathLike[str] | None,
    ) -> Chosen:
        files = (file_columns,) if isinstance(file_columns, str) else tuple(file_columns or ())
        return cls(
            image=image_column,
            label=label_column,
            files=files,
            masks=None if masks is None else local_path(masks),
            annotations=None if annotations is None else local_path(annotations),
        )

    def of_part(self, part: str) -> Chosen:
        """For the folder ``part`` of a source: masks and annotations may have one, too."""

        def inner(path: str | None) -> str | None:
            folder = os.path.join(path or "", part)
            return folder if path is not None and os.path.isdir(folder) else path

        return dataclasses.replace(
            self, masks=inner(self.masks), annotations=inner(self.annotations)
        )

    def image_of(self, names: Sequence[str]) -> str | None:
        """The column of images; None if no column has a usual name."""
        return _find(self.image, names, _IMAGES, "image_column")

    def label_of(self, names: Sequence[str]) -> str | None:
        """The column of labels, likewise."""
        return _find(self.label, names, _LABELS, "label_column")

    def labels_of(self, names: Sequence[str]) -> list[str]:
        """The columns of labels: none, one, or those that make a vector.

        Several are given as names or patterns (``*``, ``?``) with commas between them.
        """
        if self.label is None or self.label in names or not re.search(r"[,*?]", self.label):
            column = self.label_of(names)
            return [] if column is None else [column]
        parts = [(pattern.strip(), fnmatch.filter(names, pattern.strip()))
                 for pattern in self.label.split(",")]  # fmt: skip
        for pattern, some in parts:
            if not some:
                _find(pattern, names, (), "label_column")
        return list(dict.fromkeys(name for _, some in parts for name in some))

    def refuse(self, source: str, *taken: str) -> None:
        """Raise UsageError for what the source does not take: all but the attributes ``taken``."""
        for name, what in _ARGUMENTS.items():
            given = getattr(self, name)
            if given and name not in taken:
                raise UsageError(
                    f"{what}: expected none, got {given!r}: {source} has no {_LACKS[name]}"
                )


CHOSEN = ("image_column", "label_column", "file_columns", "masks", "annotations")
"""The arguments of ``Chosen.of``."""
_ARGUMENTS = dict(zip(("image", "label", "files", "masks", "annotations"), CHOSEN))
_LACKS = {
    **dict.fromkeys(("image", "label", "files"), "columns to choose from"),
    **dict.fromkeys(("masks", "annotations"), "files to find them for: they go with a folder of "
                    "images (a list names masks in a column, see file_columns)"),
}  # fmt: skip


def _find(given: str | None, names: Sequence[str], usual: Sequence[str], what: str) -> str | None:
    if given is not None and given not in names:
        raise UsageError(f"{what}: expected one of {', '.join(names)}, got {given!r}")
    if given is not None:
        return given
    plain = {_plain(name): name for name in reversed(names)}
    return next((plain[name] for name in usual if name in plain), None)


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "_", name.strip().lower())


def called_like_images() -> str:
    return " or ".join(_IMAGES)


def numbered(values: Sequence[Any]) -> tuple[list[str], np.ndarray]:
    """Class names (none for numbers), and labels as a store holds them.

    If all of ``values`` hold numbers alone, and some several, such as "1 0 1", they are vectors.
    """
    if not all(isinstance(value, str) for value in values):
        return [], label_column(values)
    vectors = [
        [value] if _THOUSANDS.fullmatch(value) else re.split(r"[\s,;|]+", value.strip(" []()"))
        for value in values
    ]
    several = any(len(row) > 1 for row in vectors)
    if several and all(_NUMBER.fullmatch(part) for row in vectors for part in row):
        other = next((at for at, row in enumerate(vectors) if len(row) != len(vectors[0])), None)
        if other is not None:
            raise UsageError(
                f"expected equally long lists of numbers, found {values[0]!r} and "
                f"{values[other]!r}: put lists of different lengths into a field"
            )
        return [], label_column([as_numbers(row) for row in vectors])
    classes = sorted(set(values), key=encode_text)
    number = {name: index for index, name in enumerate(classes)}
    return classes, np.array([number[value] for value in values], np.int64)


def as_numbers(values: Sequence[str]) -> Sequence[str | int | float]:
    """``values`` as ints or floats if every one is such a number, and can be told from others."""
    for convert in (int, float):
        try:
            numbers = [convert(value) for value in values]
        except ValueError:
            continue
        return numbers if all(map(_is_exact, values, numbers)) else values
    return values


def _is_exact(text: str, number: float) -> bool:
    """Whether ``number`` says what ``text`` does: not for names (1_000, 007) and many digits."""
    text = text.strip()
    if "_" in text or re.match(r"[-+]?0\d", text):
        return False
    if isinstance(number, int):
        return abs(number) < 1 << 63
    return not text.lstrip("+-").isdigit() or f"{number:.0f}" == text.lstrip("+")


def labels_in_text(values: Sequence[str]) -> Sequence[str | int | float]:
    """As ``as_numbers``; text without a character, which is no label, stays as it is."""
    there = iter(as_numbers([value for value in values if not is_missing(value)]))
    return [value if is_missing(value) else next(there) for value in values]


def labelled(
    values: Sequence[Any], where: Callable[[int], str]
) -> tuple[Sequence[str], np.ndarray | None, dict[int, str]]:
    """As ``numbered``, of values of which some are None or "", which are missing.

    Class names, labels (None if all are missing), and what to say of those without one, by index.
    ``where``: what messages call the place of one.
    """
    there = [value for value in values if not is_missing(value)]
    if not there:
        return [], None, {}
    without = [index for index, value in enumerate(values) if is_missing(value)]
    filled = [there[0] if is_missing(value) else value for value in values]
    return *numbered(filled), {
        index: f"{where(index)} has no label, as others have" for index in without
    }


def is_missing(value: object) -> bool:
    """Whether ``value`` says that there is no label: nothing, or text without a character."""
    return value is None or (isinstance(value, str) and not value.strip())


def warn_of_others(
    path: str,
    label: str | None,
    columns: Mapping[str, Iterable[object]],
    why: Callable[[str], str] = lambda name: "",
    surely: Collection[str] = (),
) -> None:
    """Warn about columns that look like labels and become fields, as ``label`` has the labels.

    ``why``: what is wrong with one as labels. ``surely``: labels whatever they are called.
    """
    named = [one for one in columns if one in surely or _LIKE.search(_plain(one))]
    like = named if label is not None else [
        one for one in columns if one in named or _repeats(one, list(columns[one]))
    ]  # fmt: skip
    hot = [] if label is not None or like else [one for one in columns if _is_hot(columns[one])]
    took = "found no labels by name" if label is None else f"took the labels of {label!r}"
    if like:
        because = why(like[0])
        skip = " and on_error='skip'" if because else ""
        warnings.warn(
            f"{path!r}: {took}; {', '.join(map(repr, like))} may be labels, and became a field"
            f"{because}: to use it as label, give label_column={like[0]!r}{skip}",
            stacklevel=2,
        )
    elif len(hot) > 1:
        warnings.warn(
            f"{path!r}: {took}; the {len(hot)} columns of 0 and 1 became fields: to use them as "
            f"one label of several classes, give label_column={','.join(hot)!r}",
            stacklevel=2,
        )


def _is_hot(values: Iterable[object]) -> bool:
    """Whether a column holds 0 and 1, and nothing else."""
    return {value if isinstance(value, int) else None for value in values} == {0, 1}


def _repeats(name: str, values: Sequence[object]) -> bool:
    """Whether a column of text has few values that repeat."""
    texts = [value for value in values if isinstance(value, str)]
    if name.lower() in _OTHERS or len(texts) < len(values):
        return False
    different = set(texts)
    short = all(0 < len(text) <= _MOST_CHARACTERS for text in different)
    return short and 2 <= len(different) <= len(values) // 2
