"""Loose image files: class folders as for torchvision's ImageFolder, or one flat folder."""

from __future__ import annotations

import collections
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np

from ..errors import StoreError, StoreNotFoundError, UsageError
from ._nearby import empty_folders, nothing_at, without_images
from ._probe import UNKNOWN, by_core, by_pillow, core_files, known_sizes
from .base import LeftOut, Spans, Store
from .registry import Format, format_of

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""torchvision.datasets.folder.IMG_EXTENSIONS"""

# What Pillow registers without reading pixels: it only identifies them (BUFR, GRIB, HDF5, MPEG,
# WMF), only writes them (PALM, PDF), or has another program draw them (EPS).
_NO_PIXELS = frozenset(("BUFR", "EPS", "GRIB", "HDF5", "MPEG", "PALM", "PDF", "WMF"))
# If a folder has only subfolders of these names, which have subfolders, they are not classes.
SPLITS = frozenset(
    ("train", "training", "val", "valid", "validation", "test", "testing", "dev", "eval")
)
METADATA = ("metadata.jsonl", "metadata.csv")
"""What Hugging Face's imagefolder calls the list of a folder's images."""


class PathList(Sequence[str]):
    """Paths in one byte string with the position where each ends, so that none is a Python object.

    Attributes:
        blob: the paths as the file system encodes them, one after the other.
        ends: int64 (n,).
    """

    def __init__(self, paths: Iterable[bytes]) -> None:
        paths = list(paths)
        self.blob = b"".join(paths)
        self.ends = np.cumsum([len(path) for path in paths], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        start = int(self.ends[at - 1]) if at else 0
        return os.fsdecode(self.blob[start : int(self.ends[at])])

    def many(self, indices: np.ndarray) -> list[bytes]:
        """The paths ``indices`` (int64, in range) as bytes."""
        ends = self.ends[indices].tolist()
        starts = np.where(indices > 0, self.ends[indices - 1], 0).tolist()
        blob = self.blob
        return [blob[start:end] for start, end in zip(starts, ends)]


class FolderStore(Store):
    """Image files in a folder: those whose suffix Pillow, as it is installed, can read.

    With subfolders, each one is a class; order, labels and class names are those of torchvision's
    ImageFolder, which knows fewer suffixes (``IMAGE_SUFFIXES``). Without subfolders the images have
    no labels and are sorted by name.

    Raises:
        StoreNotFoundError: no such folder, no images in it, or a class folder without images.
        UsageError: the folder is a split dataset, whose parts have their own class folders.
    """

    format = "folder"
    mapped = False

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.path.expanduser(os.fspath(root)))
        if not os.path.isdir(self.path):
            raise StoreNotFoundError(
                f"expected a folder of images, found none{nothing_at(self.path)}", path=self.path
            )
        folders, files = _entries(self.path)
        names = [name for name in folders if not _is_unfinished(name)]
        left_out = _LeftOutCounts()
        loose = left_out.images_of(self.path, files)
        splits = [name for name in names if name.lower() in SPLITS]
        if splits and splits == names and any(map(self._is_dataset, splits)):
            raise UsageError(
                f"{self.path!r}: expected class folders, found those of a split dataset "
                f"({', '.join(splits)}): give one of them, {os.path.join(self.path, splits[0])!r}, "
                f"or pack one with split={splits[0]!r}"
            )
        if not names:
            if not loose:
                raise StoreNotFoundError(
                    "expected class folders, or files that Pillow can read as images (.jpg, .png "
                    f"...); found neither{without_images(self.path)}",
                    path=self.path,
                )
            prefix = os.fsencode(os.path.join(self.path, ""))
            self._set([prefix + os.fsencode(name) for name in loose], None, [])
            self.left_out = left_out.sorted()
            return
        if loose:
            one = len(loose) == 1
            warnings.warn(
                f"{'1 image lies' if one else f'{len(loose):,} images lie'} in {self.path!r} "
                f"itself, beside its class folders: {'it is' if one else 'they are'} ignored, as "
                "by torchvision's ImageFolder",
                stacklevel=2,
            )
            left_out.add(self.path, loose, "it lies beside the class folders")
        paths: list[bytes] = []
        counts: list[int] = []
        for name in names:
            before = len(paths)
            _collect(os.path.join(self.path, name), paths, left_out)
            counts.append(len(paths) - before)
        empty = [name for name, count in zip(names, counts, strict=True) if not count]
        if empty:
            within = _LeftOutCounts()
            for name in empty:
                _collect(os.path.join(self.path, name), [], within)
            others = "; ".join(map(str, within.sorted()[:3]))
            more = " ..." * (len(empty) > 20) + f" ({others})" * bool(others)
            raise StoreNotFoundError(
                f"expected images in every class folder, found none in {', '.join(empty[:20])}"
                f"{more}: delete these folders or fill them"
                f"{empty_folders(self.path, empty)}",
                path=self.path,
            )
        self._set(paths, np.repeat(np.arange(len(names)), counts), names)
        self.left_out = left_out.sorted()

    @classmethod
    def from_samples(
        cls,
        samples: Sequence[tuple[str, int]],
        classes: Sequence[str],
        *,
        root: str | os.PathLike[str] | None = None,
    ) -> FolderStore:
        """The files of a torchvision ``DatasetFolder``: its ``samples`` and ``classes``.

        ``root``: the folder that keys are relative to; None: keys are the paths.
        """
        self = cls.__new__(cls)
        self.path = os.path.abspath(os.path.expanduser(os.fspath(root))) if root is not None else ""
        paths = [os.fsencode(os.path.abspath(path)) for path, _ in samples]
        labels = np.fromiter((label for _, label in samples), np.int64, len(samples))
        self._set(paths, labels, list(classes))
        return self

    def _set(self, paths: list[bytes], labels: np.ndarray | None, classes: list[str]) -> None:
        self._paths = PathList(paths)
        self._labels = labels
        self.classes = classes
        self.metadata: dict[str, Any] = {}
        if self._labels is not None:
            self._labels.flags.writeable = False
        self._sizes = np.full((len(paths), 2), UNKNOWN, np.int32)

    def _is_dataset(self, name: str) -> bool:
        with os.scandir(os.path.join(self.path, name)) as entries:
            return any(entry.is_dir() or entry.name in METADATA for entry in entries)

    def __len__(self) -> int:
        return len(self._paths)

    @property
    def files(self) -> PathList:
        return self._paths

    def file_table(self) -> tuple[bytes, np.ndarray]:
        return self._paths.blob, self._paths.ends

    def spans(self, indices: np.ndarray) -> Spans:
        count = len(indices)
        return Spans(
            file=np.ascontiguousarray(indices, np.int32),
            offset=np.zeros(count, np.int64),
            nbytes=np.full(count, -1, np.int64),
        )

    def kinds(self, indices: np.ndarray) -> np.ndarray:
        return np.zeros(len(indices), np.uint8)

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """A file's header is read once per process, when it is needed."""
        return known_sizes(self._sizes, indices, self._probe)

    def _probe(self, indices: np.ndarray) -> np.ndarray:
        paths = PathList(self._paths.many(indices))
        files = core_files(paths.blob, paths.ends, {})
        sizes = np.zeros((len(indices), 2), np.int32)
        good = by_core(files, self.spans(np.arange(len(indices))), sizes)
        for at in np.flatnonzero(~good).tolist():
            sizes[at] = by_pillow(self._paths[int(indices[at])])[:2]
        return sizes

    @property
    def labels(self) -> np.ndarray | None:
        return self._labels

    def keys(self, indices: np.ndarray) -> list[str]:
        """Paths below the folder, with forward slashes."""
        prefix = os.fsencode(os.path.join(self.path, "")) if self.path else b""
        paths = self._paths.many(np.asarray(indices, np.int64))
        return [os.fsdecode(path.removeprefix(prefix)).replace(os.sep, "/") for path in paths]


def images_below(folder: str) -> list[str]:
    """The images in ``folder`` and the folders in it, as paths below it with forward slashes."""
    if not os.path.isdir(folder):
        raise StoreNotFoundError(
            f"expected a folder of images, found none{nothing_at(folder)}", path=folder
        )
    paths: list[bytes] = []
    _collect(folder, paths, _LeftOutCounts())
    start = len(os.path.join(folder, ""))
    return [os.fsdecode(path)[start:].replace(os.sep, "/") for path in paths]


def is_image(name: str) -> bool:
    """Whether a file of this name is an image that Pillow, as it is installed, can read."""
    if name.lower().endswith(IMAGE_SUFFIXES):
        return True
    suffix = _suffix(name)
    if not suffix:
        return False
    from PIL import Image

    # also of plugins; the first call loads Pillow's own, in 30 ms
    format_ = Image.registered_extensions().get(suffix)
    return format_ is not None and format_ not in _NO_PIXELS


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()


class _LeftOutCounts:
    def __init__(self) -> None:
        self._files: collections.Counter[str] = collections.Counter()
        self._first: dict[str, str] = {}

    def images_of(self, folder: str, names: Sequence[str]) -> list[str]:
        """The images among the files ``names`` of ``folder``, sorted; counts the others."""
        images = sorted(filter(is_image, names))
        if len(images) < len(names):
            by_suffix: dict[str, list[str]] = {}
            for name in set(names).difference(images):
                by_suffix.setdefault(_suffix(name), []).append(name)
            for suffix, others in by_suffix.items():
                what = f"ending in {suffix}" if suffix else "without a suffix"
                self.add(folder, others, f"Pillow, as installed, reads no image {what}")
        return images

    def add(self, folder: str, names: Sequence[str], reason: str) -> None:
        self._files[reason] += len(names)
        first = os.path.join(folder, min(names))
        self._first[reason] = min(first, self._first.get(reason, first))

    def sorted(self) -> tuple[LeftOut, ...]:
        """What was counted, the most files first."""
        return tuple(
            LeftOut(reason=reason, files=files, example=self._first[reason])
            for reason, files in sorted(
                self._files.items(), key=lambda counted: (-counted[1], counted[0])
            )
        )


def _is_unfinished(name: str) -> bool:
    """Whether a folder was left by an interrupted ``pack`` that writes among its images."""
    stem, end = os.path.splitext(name)
    return end == ".partial" and format_of(stem) is not None


def _entries(folder: str) -> tuple[list[str], list[str]]:
    """The folders and the files in ``folder``, sorted; a link that leads nowhere is a file."""
    by_kind: tuple[list[str], list[str]] = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            by_kind[not entry.is_dir()].append(entry.name)
    return sorted(by_kind[0]), sorted(by_kind[1])


def _collect(folder: str, paths: list[bytes], left_out: _LeftOutCounts) -> None:
    """Append the images below ``folder``: folders in the order of their paths, files by name."""
    images_in = [(root, left_out.images_of(root, names)) for root, names in walk(folder)]
    for root, names in sorted(images_in):
        prefix = os.fsencode(os.path.join(root, ""))
        paths.extend(prefix + os.fsencode(name) for name in names)


def walk(folder: str) -> Iterator[tuple[str, list[str]]]:
    """``folder`` and the folders below it, also by links, each with the names of its files."""

    def refuse(error: OSError) -> None:
        raise StoreError(
            f"a folder cannot be read: {error.strerror}", path=error.filename
        ) from error

    _refuse_loop(folder)
    for root, folders, names in os.walk(folder, followlinks=True, onerror=refuse):
        yield root, names
        for name in folders:
            _refuse_loop(os.path.join(root, name))


def _refuse_loop(folder: str) -> None:
    """Raise StoreError for a link to a folder that contains it, which has no end."""
    if not os.path.islink(folder):
        return
    target, above = os.stat(folder), os.path.dirname(folder)
    while not os.path.samestat(target, os.stat(above)):
        if above == os.path.dirname(above):
            return
        above = os.path.dirname(above)
    raise StoreError(
        f"expected folders below one another, found a link back to {above!r}: delete it",
        path=folder,
    )


FORMAT = Format(
    name="folder", title="folder", open=FolderStore, recognise=os.path.isdir, folders=True
)
