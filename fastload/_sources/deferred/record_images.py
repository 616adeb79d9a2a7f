"""Records of a store as deferred images: what a transform that stays in Python is given.

Nothing is read when they are made: where a record lies, its size and its checksum come from the
store's columns. The batch is decoded from the mapped file (``batch.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL.Image import Image

from ..._base.pixel_limit import most_pixels
from ...storage._spans import RAW
from .image import COPY, seen_as
from .recording import Opened, Recording, Stored
from .thread_state import THREAD

if TYPE_CHECKING:
    from ...storage._spans import Located
    from ...storage.base import Store


def record_images(store: Store, records: np.ndarray) -> list[Image] | None:
    """Deferred images of ``records`` (int64, in range), RGB.

    None: this thread defers nothing; or the size of a record is not known, or is one that Pillow
    warns of or refuses, so that only decoding it says what is wrong with it.
    """
    if not THREAD.deferring:
        return None
    located = store.locate(records)
    pixels = located.sizes.prod(axis=1, dtype=np.int64)
    if not ((pixels > 0) & (pixels <= most_pixels())).all():
        return None
    images: list[Image] = []
    batch = THREAD.batch
    for opened in _opened(store, records, located):
        batch.opened += 1
        image = seen_as(Image)(Recording(opened, COPY, opened.size, "RGB"))
        image._batch = batch
        image._first_load()  # a transform gets images that are decoded
        if opened.stored is not None and opened.stored.kind == RAW:
            image.info = {}
        images.append(image)
    return images


def _opened(store: Store, records: np.ndarray, located: Located) -> list[Opened]:
    checksums = store.checksums(records)
    crcs = [None] * len(records) if checksums is None else checksums.tolist()
    sizes = list(map(tuple, located.sizes.tolist()))
    spans, memory = located.spans, store.memory()
    kinds, numbers = located.kinds.tolist(), spans.file.tolist()
    # What is remote lies in the cache's files only as long as its spans are held.
    remote = store.indirect is not None or store.remote
    if remote or any(number in memory for number in set(numbers)):
        return [
            Opened(None, data, None, size, "RGB", "", stored=Stored(kind, 0, len(data), False, crc))
            for data, size, kind, crc in zip(store.read(records), sizes, kinds, crcs, strict=True)
        ]
    files = store.files
    paths = {number: files[number] for number in set(numbers)}
    return [
        Opened(
            paths[number], None, None, size, "RGB", "",
            stored=Stored(kind, offset, nbytes, store.mapped, crc),
        )
        for number, size, kind, offset, nbytes, crc in zip(
            numbers, sizes, kinds, spans.offset.tolist(), spans.nbytes.tolist(), crcs, strict=True
        )
    ]  # fmt: skip
