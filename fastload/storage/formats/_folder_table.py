"""The table of a store that is a folder of arrays: N5 and Zarr."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .._fields import LateBlobs
from .._sums import Sums
from ..table import Fingerprint, Table
from ..base import RAW
from ._array_table import Arrays, checked_classes, checked_labels, numbered, same
from ._image_array import CLASSES, LABELS, Axes, first_of


def folder_table(
    path: str,
    get: Callable[[str], np.ndarray | None],
    *,
    format: str,
    axes: Axes,
    places: tuple[np.ndarray, np.ndarray],
    files: Sequence[str],
    fingerprints: Sequence[Fingerprint],
    in_place: bool,
    attributes: Mapping[str, Any],
    header: Mapping[str, Any],
) -> Table:
    """The table of raw pixels of one size, with the columns that lie beside them.

    Args:
        path: of the folder.
        get: name -> array of the folder, or None where there is none; raises StoreError.
        format: name of the store's format.
        axes: of the array of images.
        places, files, fingerprints: where each image lies: number of its file, and offset.
        in_place: whether it lies there as it is; else it is read in another way.
        attributes: of the folder; may have class names.
        header: as ``parse_header`` gives it.

    Raises:
        StoreError: an array that is not as it should be.
    """
    count = axes.count
    arrays = Arrays(path, count, get)
    labels = first_of(LABELS, [name for name in LABELS if os.path.isdir(f"{path}/{name}")])
    classes = first_of(CLASSES, attributes)
    return Table(
        format=format,
        files=files,
        file=places[0],
        offset=places[1],
        nbytes=same(count, axes.nbytes if in_place else 0, "<i8"),
        sizes=same(count, (axes.width, axes.height), "<i4"),
        kinds=same(count, RAW, "u1"),
        keys=LateBlobs(count, lambda: arrays.blobs("keys") or numbered(count), path),
        labels=checked_labels(get(labels), count, path) if labels else None,
        crc32c=arrays.optional("crc32c", "<u4"),
        fields=arrays.fields(header["fields"]),
        classes=checked_classes(attributes[classes], path) if classes else [],
        metadata=header["metadata"],
        fingerprints=fingerprints,
        sums=Sums(path, header.get("crc32c")),
    )
