"""A CSV, TSV or JSONL list of image files, with labels and any other columns as fields."""

from __future__ import annotations

import base64
import codecs
import csv
import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import StoreError, UsageError
from ..storage.base import LeftOut
from ..storage.folder import METADATA, FolderStore, images_below, is_image
from ._beside import Beside, FileColumn
from ._labels import (
    Chosen,
    as_numbers,
    called_like_images,
    is_missing,
    labels_in_text,
    warn_of_others,
)
from ._store_source import FolderSource

_MAX_FIELD = 1 << 28  # characters of one value of a CSV file
_UNDECODED = re.compile("[\udc80-\udcff]")  # what "surrogateescape" makes of other bytes than UTF-8
_FILE_NAME = "_file_name"  # ends the names of Hugging Face's columns of files


def list_source(path: str, chosen: Chosen) -> FolderSource:
    """The files of a list, in its order.

    The columns of paths and labels are found by their names (``_labels.py``); paths are relative to
    the folder of the list. Labels are numbers, lists of numbers (JSONL), text such as "1 0 1",
    several columns of numbers, or class names, which are numbered in alphabetical order. Other
    columns become fields; a column of a CSV becomes an array if every value is a number, else text.
    """
    chosen.refuse(repr(path), "image", "label", "files")
    table = _read(path, chosen)
    columns = dict(table.columns)
    files = columns.pop(table.image)
    folder = os.path.dirname(os.path.abspath(path))
    places = [os.path.normpath(os.path.join(folder, file)) for file in files]
    store = FolderStore.from_samples([(place, 0) for place in places], [], root=folder)
    beside = Beside()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            beside.read(block)
    labels = _label(beside, table, columns, chosen, path)
    paths = {name: columns.pop(name) for name in table.files}
    others = {name: values for name, values in columns.items() if name not in labels}
    warn_of_others(path, ", ".join(labels) or None, others)
    try:
        for name, values in others.items():
            beside.add(name, [_value(value) for value in values])
        for name, values in paths.items():
            _add_files(beside, table, name, values, folder)
    except UsageError as error:
        raise StoreError(str(error), path=path) from error
    if os.path.basename(path) in METADATA:
        add_unlisted(beside, folder, places, f"{os.path.basename(path)} does not list it")
    source = FolderSource(store, beside, _keys(files, folder))
    source.path = os.path.abspath(path)
    return source


def listed_files(path: str, chosen: Chosen) -> list[str]:
    """The paths in the list at ``path``, unchanged: of images, and of files that become fields."""
    table = _read(path, chosen)
    return [file for name in (table.image, *table.files) for file in table.columns[name] if file]


def metadata_of(folder: str) -> str | None:
    """The list of Hugging Face's imagefolder in ``folder``: one with a column of file names."""
    lists = []
    for path in (os.path.join(folder, name) for name in METADATA):
        if os.path.isfile(path):
            table = _columns(path)[0]
            if any(f"_{column}".endswith(_FILE_NAME) for column in table):
                lists.append(path)
    if len(lists) > 1:
        raise StoreError(
            f"expected one list of its images, found {' and '.join(map(repr, lists))}: move one "
            "away",
            path=folder,
        )
    return lists[0] if lists else None


def add_unlisted(beside: Beside, folder: str, listed: Sequence[str], reason: str) -> None:
    """Note the images in ``folder`` that are not among the paths ``listed``."""
    used = set(listed)
    used.update(path for column in beside.columns.values() for path in column.paths or ())
    below = (os.path.join(folder, name) for name in images_below(folder))
    unlisted = [path for path in below if path not in used]
    if unlisted:
        beside.left_out.append(LeftOut(reason=reason, files=len(unlisted), example=min(unlisted)))


@dataclasses.dataclass(frozen=True)
class _ListTable:
    """A list: its columns by name, with a value for each image."""

    columns: Mapping[str, list[Any]]
    lines: Sequence[int]  # the number of the line of each
    image: str  # the column of paths
    files: Sequence[str]  # columns of paths whose files become fields
    text: bool  # whether all values are text, as in a CSV


def _read(path: str, chosen: Chosen) -> _ListTable:
    columns, lines = _columns(path)
    names = list(columns)
    image = chosen.image_of(names)
    if image is None and any(map(is_image, names)):
        raise StoreError(
            f"line 1 has to name the columns, such as path,label; found {', '.join(names)}",
            path=path,
        )
    if image is None:
        raise StoreError(
            f"expected a column called {called_like_images()}, found {', '.join(names)}: name one "
            f"with image_column={names[0]!r}",
            path=path,
        )
    for name in chosen.files:
        if name not in names or name == image:
            others = ", ".join(one for one in names if one != image)
            raise UsageError(f"file_columns: expected one of {others}, got {name!r}")
    named = [name for name in names if name.endswith(_FILE_NAME) and name != image]
    files = dict.fromkeys((*chosen.files, *(named if os.path.basename(path) in METADATA else ())))
    for name in (image, *files):
        columns[name] = [
            _path(value, name, line, path, needed=name == image)
            for value, line in zip(columns[name], lines)
        ]
    for name, values in columns.items():
        if name not in (image, *files):  # the bytes of a path name its file, whatever they encode
            _check_text(values, name, lines, path)
    return _ListTable(columns, lines, image, list(files), text=not path.endswith(_JSON_LINES))


def _label(
    beside: Beside, table: _ListTable, columns: Mapping[str, list[Any]], chosen: Chosen, path: str
) -> list[str]:
    """Take the labels; returns their columns. In ``columns`` of text, others become numbers."""
    labels = chosen.labels_of([name for name in columns if name not in table.files])
    for name, values in columns.items():
        if table.text and name not in table.files:
            values[:] = labels_in_text(values) if name in labels else as_numbers(values)
    values = columns[labels[0]] if labels else []
    if len(labels) > 1:
        for name in labels:
            odd = [isinstance(value, (str, list, dict)) for value in columns[name]]
            if any(odd):
                at = odd.index(True)
                raise StoreError(
                    f"line {table.lines[at]}: expected a number in each column of the label, found "
                    f"{columns[name][at]!r} in {name!r}",
                    path=path,
                )
        rows = zip(*(columns[name] for name in labels), strict=True)
        values = [None if None in row else list(row) for row in rows]
    try:
        beside.label(values, lambda index: f"line {table.lines[index]} of {path!r}")
    except UsageError as error:
        raise StoreError(f"column {', '.join(map(repr, labels))}: {error}", path=path) from error
    if len(labels) > 1:
        beside.classes = labels
    return labels


def _add_files(
    beside: Beside, table: _ListTable, name: str, values: Sequence[str], folder: str
) -> None:
    for index, value in enumerate(values):
        if not value:
            line = table.lines[index]
            beside.fault(index, f"line {line} of the list names no file in the column {name!r}")
    paths = [value and os.path.normpath(os.path.join(folder, value)) for value in values]
    field = name.removesuffix(_FILE_NAME)
    beside.make(field, FileColumn(field, paths))


def _keys(files: Sequence[str], folder: str) -> list[str]:
    """Names of the records: paths as they are written, if all lie in the folder of the list.

    Otherwise they are relative to the folder that has them all, so that none leads out of it, and
    none names the folders of this machine above it.
    """
    names = [os.path.normpath(file) for file in files]
    if any(os.path.isabs(name) or name.split(os.sep)[0] == ".." for name in names):
        names = [os.path.normpath(os.path.join(folder, name)) for name in names]
        above = os.path.commonpath([os.path.dirname(name) for name in names])
        names = [os.path.relpath(name, above) for name in names]
    return [name.replace(os.sep, "/") for name in names]


_JSON_LINES = (".jsonl", ".ndjson")


def _columns(path: str) -> tuple[dict[str, list[Any]], list[int]]:
    """The columns of a list, and the line that each row ends in."""
    rows = _read_jsonl(path) if path.endswith(_JSON_LINES) else _read_csv(path)
    if not rows:
        raise StoreError("expected a list of images, found no line with one", path=path)
    names = list(rows[0][1])
    return {name: [row[name] for _, row in rows] for name in names}, [line for line, _ in rows]


def _read_csv(path: str) -> list[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(_MAX_FIELD)
    try:
        with open(path, "rb") as file:
            utf_16 = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # Excel's "Unicode"
        encoding = "utf-16" if utf_16 else "utf-8-sig"
        with open(path, encoding=encoding, errors="surrogateescape", newline="") as file:
            separator = "\t" if path.endswith(".tsv") else ","
            reader = csv.DictReader(file, delimiter=separator, strict=True)
            names = reader.fieldnames or ()
            rows = [(reader.line_num, row) for row in reader]
    except (csv.Error, OSError, UnicodeError) as error:
        raise StoreError(f"the list cannot be read: {error}", path=path) from error
    other = next((mark for mark in ";\t,|" if len(names) == 1 and mark in names[0]), None)
    if other is not None:
        raise StoreError(
            f"expected {separator!r} between the columns, found {other!r} in line 1: save the list "
            "with commas, or with tabs as .tsv",
            path=path,
        )
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise StoreError(f"line 1 has two columns called {twice!r}: rename one", path=path)
    for line, row in rows:
        if None in row or None in row.values():
            raise StoreError(f"line {line} has not as many values as the first", path=path)
    return rows


def _read_jsonl(path: str) -> list[tuple[int, dict[str, Any]]]:
    rows: list[tuple[int, dict[str, Any]]] = []
    number = 0
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                number += 1
                if line.strip():
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise ValueError("not a JSON object")
                    rows.append((number, row))
    except OSError as error:
        raise StoreError(f"the list cannot be read: {error.strerror}", path=path) from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"line {number} is not valid: {error}", path=path) from error
    names = rows[0][1].keys() if rows else ()
    for line_number, row in rows:
        if row.keys() != names:
            raise StoreError(
                f"expected {', '.join(names)} in every line, found {', '.join(row)} in line "
                f"{line_number}: write null where there is no value",
                path=path,
            )
    return rows


def _path(value: object, column: str, line: int, path: str, *, needed: bool) -> str:
    """The path in a column; "" if there is none and none is ``needed``."""
    if not needed and is_missing(value):
        return ""
    if isinstance(value, (int, float)):  # JSON whose files are called 1, 2, 3
        value = str(value)
    if not isinstance(value, str) or not value or "\0" in value:
        raise StoreError(
            f"line {line}: expected the path of a file in {column!r}, found {value!r}", path=path
        )
    return value


def _check_text(values: Sequence[Any], column: str, lines: Sequence[int], path: str) -> None:
    """Raise StoreError if the list is in another encoding, such as Latin-1."""
    for value, line in zip(values, lines):
        within = isinstance(value, (dict, list))
        text = json.dumps(value, ensure_ascii=False) if within else value
        if isinstance(text, str) and _UNDECODED.search(text):
            raise StoreError(
                f"line {line}: expected text in UTF-8 in {column!r}, found {text!r}: save the list "
                "as UTF-8",
                path=path,
            )


def _value(value: Any) -> Any:
    """A value of a field: bytes if ``unpack`` wrote them as base64."""
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except ValueError as error:
            raise UsageError(f"invalid base64: {error}") from error
    return value
