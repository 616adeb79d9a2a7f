"""A CSV, TSV or JSONL list of image files, with labels and any other columns as fields."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import StoreError, UsageError
from ..storage._fields import gather_fields
from ..storage.folder import FolderStore
from ._labels import Chosen, called_like_images, numbered, warn_of_others
from ._source import Annotations, Sample
from ._store_source import FolderSource, unique

_MAX_FIELD = 1 << 28  # characters of one value of a CSV file


class ListSource(FolderSource):
    """The files of a list, in its order.

    The columns of paths and labels are found by their names (``_labels.py``); paths are relative to
    the folder of the list. Labels are numbers, lists of numbers (JSONL), or class names, which are
    numbered in alphabetical order. Other columns become fields; a column of a CSV becomes an array
    if every value is a number, else text.

    Args:
        path: of the list.
        chosen: columns that the caller named.

    Raises:
        UsageError: there is no column of a given name.
        StoreError: the list is invalid.
    """

    def __init__(self, path: str, chosen: Chosen | None = None) -> None:
        chosen = chosen or Chosen()
        rows, column, files = _read(path, chosen)
        names = list(rows[0])
        folder = os.path.dirname(os.path.abspath(path))
        store = FolderStore.from_samples(
            [(os.path.join(folder, file), 0) for file in files], [], root=folder
        )
        super().__init__(store)
        self.path = os.path.abspath(path)
        self.keys = unique([os.path.normpath(file).replace(os.sep, "/") for file in files])
        self._labels: np.ndarray | None = None
        self.classes = []
        others = [name for name in names if name != column]
        label = chosen.label_of(others)
        if label is not None:
            self.classes, self._labels = _labels(rows, label, path)
            others.remove(label)
        warn_of_others(path, label, {name: [row[name] for row in rows] for name in others})
        try:
            self._fields, self._kinds = gather_fields(
                [{name: _value(row.get(name)) for name in others} for row in rows]
            )
        except UsageError as error:
            raise StoreError(str(error), path=path) from error
        digest = hashlib.blake2b(digest_size=16)
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        self._digest = digest.hexdigest()

    def annotate(self, indices: np.ndarray, samples: Sequence[Sample]) -> Annotations:
        """As in ``Source``."""
        return Annotations(
            None if self._labels is None else self._labels[indices],
            {
                name: values[indices]
                if isinstance(values, np.ndarray)
                else [values[index] for index in indices.tolist()]
                for name, values in self._fields.items()
            },
            self._kinds,
        )

    def digest(self) -> str:
        """Of the list."""
        return self._digest


def listed_files(path: str, chosen: Chosen | None = None) -> list[str]:
    """The paths in the list at ``path``, unchanged."""
    return _read(path, chosen or Chosen())[2]


def _read(path: str, chosen: Chosen) -> tuple[list[dict[str, Any]], str, list[str]]:
    """The rows of a list, the name of the column of paths, and the paths."""
    as_json = path.endswith((".jsonl", ".ndjson"))
    rows = _read_jsonl(path) if as_json else _read_csv(path)
    if not rows:
        raise StoreError("expected a list of images, found no line with one", path=path)
    names = list(rows[0])
    column = chosen.image_of(names)
    if column is None:
        raise StoreError(
            f"expected a column called {called_like_images()}, found {', '.join(names)}: name one "
            f"with image_column={names[0]!r}",
            path=path,
        )
    files = [_text(row, column, number, path) for number, row in enumerate(rows)]
    return rows if as_json else _with_numbers(rows, but=column), column, files


def _read_csv(path: str) -> list[dict[str, Any]]:
    csv.field_size_limit(_MAX_FIELD)
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            separator = "\t" if path.endswith(".tsv") else ","
            rows = list(csv.DictReader(file, delimiter=separator, strict=True))
    except (csv.Error, OSError) as error:
        raise StoreError(f"the list cannot be read: {error}", path=path) from error
    for number, row in enumerate(rows):
        if None in row or None in row.values():
            raise StoreError(f"line {number + 2} has not as many values as the first", path=path)
    return rows


def _with_numbers(rows: list[dict[str, Any]], *, but: str) -> list[dict[str, Any]]:
    """``rows`` of text with numbers in the columns that hold nothing else.

    ``but``: the column of paths, in which 007 is the name of a file.
    """
    columns = {
        name: [row[name] for row in rows] if name == but else _numbers([row[name] for row in rows])
        for name in rows[0]
    }
    return [{name: columns[name][i] for name in columns} for i in range(len(rows))]


def _numbers(values: list[str]) -> Sequence[str | int | float]:
    """``values`` as ints or floats if every one is such a number."""
    if any("_" in value for value in values):  # a name such as 1_000, which Python takes as 1000
        return values
    for convert in (int, float):
        try:
            return [convert(value) for value in values]
        except ValueError:
            continue
    return values


def _read_jsonl(path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    number = 0
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                number += 1
                if line.strip():
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise ValueError("not a JSON object")
                    rows.append(row)
    except OSError as error:
        raise StoreError(f"the list cannot be read: {error.strerror}", path=path) from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"line {number} is not valid: {error}", path=path) from error
    names = rows[0].keys() if rows else ()
    for at, row in enumerate(rows):
        if row.keys() != names:
            raise StoreError(
                f"expected {', '.join(names)} in every line, found {', '.join(row)} in number "
                f"{at + 1}",
                path=path,
            )
    return rows


def _text(row: dict[str, Any], column: str, number: int, path: str) -> str:
    value = row[column]
    if isinstance(value, (int, float)):  # a CSV whose files are called 1, 2, 3
        value = str(value)
    if not isinstance(value, str) or not value or "\0" in value:
        raise StoreError(f"expected the path of a file in record {number}, found {value!r}",
                         path=path)  # fmt: skip
    return value


def _value(value: Any) -> Any:
    """A value of a field: bytes if ``unpack`` wrote them as base64."""
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except ValueError as error:
            raise UsageError(f"invalid base64: {error}") from error
    return value


def _labels(rows: list[dict[str, Any]], name: str, path: str) -> tuple[list[str], np.ndarray]:
    try:
        return numbered([row[name] for row in rows])
    except UsageError as error:
        raise StoreError(f"column {name!r}: {error}", path=path) from error
