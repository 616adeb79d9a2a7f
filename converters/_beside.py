"""Labels and fields of loose image files: what lies beside them.

Every source of loose files has one ``Beside``. What is known when the source is opened, such as the
columns of a list, is held in memory. A ``Column`` makes the rest when its image is read: masks,
other files, boxes that are checked against the image. ``_annotations.py`` adds boxes and classes.
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from ..errors import DecodeError, StoreError, UsageError
from ..hints import JointKind
from ..storage._fields import gather_fields, json_object
from ..storage.base import LeftOut
from ..storage.folder import FolderStore, images_below, walk
from ._gather import Files
from ._headers import opened
from ._labels import Chosen, labelled, labels_in_text
from ._source import LabelsAndFields, Sample, update_digest

MASK = "mask"  # the field of masks, whose files are compared with their images
_KINDS = {".json": "json", ".txt": "text", ".cls": "text"}  # of files; bytes for all others
_MASK_MODES = ("1", "L", "P", "I", "F")  # and all of 16 bits: one channel, as ``joint`` wants them


class Column(abc.ABC):
    """A field whose values are made when the images are read.

    Attributes:
        kind: of its bytes, as of ``Field``.
        joint: what it is for ``PackedDataset(joint=...)``.
        paths: of the file for each image, "" for none; None if no files are read.
    """

    kind: str = "json"
    joint: JointKind | None = None
    paths: Sequence[str] | None = None

    @abc.abstractmethod
    def value(self, index: int, data: bytes | None, size: tuple[int, int]) -> bytes:
        """The value for image ``index`` of ``size`` (width, height), of its file in ``paths``.

        Raises DataError, whose message names that file, where it does not fit the image.
        """


class FileColumn(Column):
    """Files as they are. Masks must have one channel, and the size of their images."""

    def __init__(self, name: str, paths: Sequence[str]) -> None:
        self.name, self.paths = name, paths
        first = next(filter(None, paths), "")
        self.kind = _KINDS.get(os.path.splitext(first)[1].lower(), "bytes")
        self.joint = "mask" if name == MASK and self.kind == "bytes" else None

    def value(self, index: int, data: bytes | None, size: tuple[int, int]) -> bytes:
        assert data is not None and self.paths is not None  # it has files
        path = self.paths[index]
        try:
            if self.kind == "json":
                json.loads(data)
            elif self.kind == "text":
                data.decode()
        except (ValueError, RecursionError) as error:
            what = "JSON" if self.kind == "json" else "text in UTF-8"
            raise DecodeError(
                f"beside it, {path!r} is no {what}: {error}: save it as {what}"
            ) from error
        if self.joint is not None:
            _check_mask(data, path, size)
        return data


def _check_mask(data: bytes, path: str, size: tuple[int, int]) -> None:
    try:
        with opened(data) as mask:
            sides, mode = mask.size, mask.mode
    except DecodeError as error:
        raise DecodeError(f"its mask {path!r}: {error.message}") from error
    if sides != size:
        raise DecodeError(
            f"its mask {path!r} has {sides[0]}x{sides[1]} pixels, the image {size[0]}x{size[1]}"
        )
    if mode not in _MASK_MODES and not mode.startswith("I;16"):
        raise DecodeError(
            f"its mask {path!r} has mode {mode}, and one channel of numbers is expected (a list, "
            "CSV, takes any file in a column of another name)"
        )


class Beside:
    """Labels and fields of images, by their index.

    Attributes:
        labels, classes: as in a store; at first those of class folders.
        columns: fields that are made when the images are read.
        joint: which fields are moved with the images, and their kinds.
        faults: as of ``PackSource``.
        left_out: files that belong to no image.
        noted: further entries of the store's metadata.
    """

    def __init__(
        self,
        labels: np.ndarray | None = None,
        classes: Sequence[str] = (),
        left_out: Sequence[LeftOut] = (),
    ) -> None:
        self.labels, self.classes = labels, classes
        self.left_out = list(left_out)
        self._values: dict[str, np.ndarray | Sequence[bytes]] = {}
        self._kinds: dict[str, str] = {}
        self.columns: dict[str, Column] = {}
        self.joint: dict[str, JointKind] = {}
        self.faults: dict[int, str] = {}
        self.noted: dict[str, object] = {}
        self._read = b""

    def label(self, values: Sequence[Any], where: Callable[[int], str]) -> None:
        """Take ``values``, one for each image, as labels: numbers, class names or lists of numbers.

        None or "" is a fault, unless all are. ``where``: what messages call the place of one.
        """
        classes, labels, faults = labelled(values, where)
        if labels is not None:
            self.classes, self.labels = classes, labels
        self.faults = faults | self.faults

    def fault(self, index: int, reason: str) -> None:
        """Note what is wrong with an image; the first reason stays."""
        self.faults.setdefault(index, reason)

    def add(self, name: str, values: Sequence[Any], joint: JointKind | None = None) -> None:
        """Add a field of known values. Raises UsageError if they are none of a field."""
        fields, kinds = gather_fields([{name: value} for value in values])
        self._values |= fields
        self._kinds |= kinds
        if joint is not None:
            self.joint[name] = joint

    def make(self, name: str, column: Column) -> None:
        """Add a field that is made when the images are read."""
        if name in self._kinds:
            raise UsageError(f"expected one field called {name!r}, got two: rename a column")
        self.columns[name], self._kinds[name] = column, column.kind
        if column.joint is not None:
            self.joint[name] = column.joint
        for path in column.paths or ():
            try:
                status = os.stat(path) if path else None
            except OSError:
                status = None  # reading it is the error
            if status is not None:
                version = path, status.st_size, status.st_mtime_ns, status.st_ctime_ns
                self.read(repr(version).encode("utf-8", "surrogateescape"))

    def read(self, data: bytes) -> None:
        """Note a part of what labels and fields were made of, for ``digest``."""
        digest = hashlib.blake2b(self._read, digest_size=16)
        digest.update(data)
        self._read = digest.digest()

    def annotate(self, indices: np.ndarray, samples: Sequence[Sample]) -> LabelsAndFields:
        fields: dict[str, np.ndarray | Sequence[bytes]] = {
            name: values[indices]
            if isinstance(values, np.ndarray)
            else [values[index] for index in indices.tolist()]
            for name, values in self._values.items()
        }
        for name in self.columns:
            fields[name] = [cast("bytes", sample.fields[name]) for sample in samples]
        return LabelsAndFields(None if self.labels is None else self.labels[indices], fields,
                           self._kinds)  # fmt: skip

    def update(self, digest: hashlib.blake2b) -> None:
        update_digest(digest, self.labels, self.classes)
        if self._kinds:
            digest.update(self._read)


def stem_of(key: str) -> str:
    """The name by which files belong together: ``cat/a`` for ``cat/a.jpg``."""
    return os.path.splitext(key)[0]


def by_stem(folder: str, names: Sequence[str]) -> dict[str, str]:
    """stem -> path of the files ``names`` (below ``folder``). Raises StoreError for two of one."""
    path_of: dict[str, str] = {}
    for name in names:
        path = os.path.join(folder, name)
        other = path_of.setdefault(stem_of(name), path)
        if other != path:
            raise StoreError(
                f"expected one file for each image, found two of one name, {other!r} and {path!r}: "
                "move one away",
                path=folder,
            )
    return path_of


def matched(
    beside: Beside, keys: Sequence[str], folder: str, names: Sequence[str], what: str
) -> list[str]:
    """The file of ``names`` (below ``folder``) for each of ``keys``, by its stem; "" if none.

    Files without an image are left out, and said.
    """
    unmatched = by_stem(folder, names)
    paths = [unmatched.pop(stem_of(key), "") for key in keys]
    if not any(paths):
        example = os.path.join(folder, stem_of(keys[0]))
        raise StoreError(
            f"expected the {what} of {keys[0]!r} as {example + '.*'!r}, found "
            f"{', '.join(sorted(names)[:3]) or 'no such file'}: none of {len(keys):,} images has "
            "one; give the folder whose names are those of the images, or a list (CSV) with a "
            "column for each (file_columns)",
            path=folder,
        )
    if unmatched:
        left = min(unmatched.values())
        reason = f"no image has this name, so it is the {what} of none"
        beside.left_out.append(LeftOut(reason=reason, files=len(unmatched), example=left))
    return paths


def add_masks(beside: Beside, keys: Sequence[str], folder: str) -> None:
    """Add the field ``mask``: the images in ``folder`` with the names of the images."""
    paths = matched(beside, keys, folder, images_below(folder), "mask")
    for index, path in enumerate(paths):
        if not path:
            beside.fault(index, f"it has no mask {os.path.join(folder, stem_of(keys[index]))}.*")
    beside.make(MASK, FileColumn(MASK, paths))


def of_folder(store: FolderStore, keys: Sequence[str], chosen: Chosen) -> Beside:
    """Labels of class folders, masks, and the JSON and text files beside the images.

    ``a.json``, ``a.txt`` and ``a.cls`` become fields if every image has one, as in tar archives:
    the label is in ``a.cls``, or an entry of ``a.json``.
    """
    beside = Beside(store.labels, store.classes, store.left_out)
    if chosen.masks is not None:
        add_masks(beside, keys, chosen.masks)
    taken = ["masks"]
    for suffix in sorted({os.path.splitext(files.example)[1] for files in store.left_out}):
        if suffix in _KINDS and _add_beside(beside, store, suffix) and suffix != ".txt":
            taken.append("label")
    chosen.refuse(repr(store.path), *taken)
    if "label" in taken and (beside.labels is None or chosen.label is not None):
        _label_beside(beside, chosen)
    return beside


def _add_beside(beside: Beside, store: FolderStore, suffix: str) -> bool:
    """Add the files with this suffix as a field, if every image has one of its own."""
    paths = [stem_of(path) + suffix for path in store.files]
    count = sum(map(os.path.isfile, paths))
    all_there = count == len(set(paths)) == len(paths)
    if all_there:
        beside.make(suffix[1:], FileColumn(suffix[1:], paths))
    for left_out in list(beside.left_out):
        if os.path.splitext(left_out.example)[1] != suffix or not count:
            continue
        beside.left_out.remove(left_out)
        if not all_there:
            reason = (
                f"{count:,} of {len(paths):,} images {'has' if count == 1 else 'have'} such a "
                "file: it is no field"
            )
            beside.left_out.append(dataclasses.replace(left_out, reason=reason))
        elif left_out.files > count:
            used = set(paths)
            every = (os.path.join(root, name) for root, names in walk(store.path)
                     for name in names if name.endswith(suffix))  # fmt: skip
            beside.left_out.append(LeftOut(
                reason="no image has its name", files=left_out.files - count,
                example=min((path for path in every if path not in used), default=left_out.example),
            ))  # fmt: skip
    return all_there


def _label_beside(beside: Beside, chosen: Chosen) -> None:
    """Take the labels from ``a.cls``, or from an entry of ``a.json``."""
    if "cls" in beside.columns and chosen.label in (None, "cls"):
        paths = beside.columns["cls"].paths or ()
        texts = [data.decode("utf-8", "replace").rstrip("\r\n") for data in Files().contents(paths)]
        beside.label(labels_in_text(texts), lambda index: repr(paths[index]))
    elif "json" in beside.columns:
        paths = beside.columns["json"].paths or ()
        # What is no object is an error when its image is read.
        objects = list(map(json_object, Files().contents(paths)))
        names = dict.fromkeys(name for entries in objects for name in entries)
        entry = chosen.label_of(list(names))
        if entry is not None:
            values = [entries.get(entry) for entries in objects]
            beside.label(values, lambda index: f"{entry!r} of {paths[index]!r}")
