"""``verify``: check that every record of a store is present, unchanged, and decodes."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable

import numpy as np

from .. import _native
from .._base.in_order import in_order
from .._base.machine.cpu import available
from .._base.progress_bar import Progress, reporting
from ..storage import open_store
from ..storage._fetched import fetched_ahead
from ..storage.base import Store
from ..storage.checking import (
    READ_RECORDS,
    Damage,
    check_columns,
    check_records,
    parts_of,
    reading_order,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """The result of ``verify``.

    Attributes:
        path, format: of the store.
        records: number of records in the store.
        nbytes: bytes read.
        checksums: whether the store has any; without, only missing and truncated files are found.
        decoded: whether every image was decoded.
        columns: state of labels, names and fields: "right", "no checksum", or what is wrong.
        damaged: the damaged records, in order.
    """

    path: str
    format: str
    records: int
    nbytes: int
    checksums: bool
    decoded: bool
    columns: str
    damaged: tuple[Damage, ...]


def verify(
    store: str | os.PathLike[str] | Store,
    *,
    decode: bool = False,
    workers: int | None = None,
    progress: Progress | bool | None = None,
) -> VerifyReport:
    """Read a store and compare every record, and labels, names and fields, with their checksums.

    Example:
        >>> verify("imgs.lmdb").damaged
        ()

    Args:
        store: path or URL of a store, or an open one.
        decode: also decode every image, as loading would.
        workers: number of threads; None: the number of CPUs.
        progress: as for ``pack``; bytes are those read.

    Returns:
        What is damaged: ``damaged`` lists the records, with path, byte offset and reason;
        ``columns`` is about labels, names and fields.

    Raises:
        StoreNotFoundError: there is no store.
        StoreError: the store itself cannot be opened, so its records are unknown.
    """
    opened = open_store(store)
    order = reading_order(opened)
    has_checksums = opened.checksums(np.arange(min(1, len(opened)))) is not None
    local, ended = threading.local(), threading.Event()
    damaged: list[Damage] = []
    done = nbytes = 0

    def check(indices: np.ndarray) -> tuple[int, int, list[Damage]]:
        decoder = _decoder_of(opened, local) if decode else None
        return len(indices), *check_records(opened, indices, decoder, ended.is_set)

    parts = fetched_ahead(opened, parts_of(opened, order, 64 if decode else READ_RECORDS))
    with (
        reporting("verifying", progress) as report,
        in_order(check, parts, workers or available(), "fastload-verify", ended) as checked,
    ):
        if report is not None:
            report(0, len(order), 0)
        for count, read, damages in checked:
            done, nbytes = done + count, nbytes + read
            damaged += damages
            if report is not None:
                report(done, len(order), nbytes)
    return VerifyReport(
        path=opened.path,
        format=opened.format,
        records=len(opened),
        nbytes=nbytes,
        checksums=has_checksums,
        decoded=decode,
        columns=check_columns(opened),
        damaged=tuple(sorted(damaged, key=lambda damage: damage.record)),
    )


def _decoder_of(store: Store, local: threading.local) -> Callable[[int], None]:
    """A function that decodes one record as loading does, and raises DataError if that fails."""
    if _native.load() is None:
        from .._engine.pillow import decode_record

        return lambda index: decode_record(store, index, check=False).close()
    decoder = getattr(local, "decoder", None)
    if decoder is None:
        from .._base.slabs import SlabRing
        from .._engine.image_engine import EngineOptions
        from .._engine.registry import chosen, make_engine
        from .._transforms.recognise import Plan, recognise

        plan = recognise(None)
        assert isinstance(plan, Plan)  # None is always recognised
        options = EngineOptions(threads=0, ring=SlabRing(1), check_crc="never")
        decoder = local.decoder = make_engine(chosen(store), store, plan, options)

    def decode(index: int) -> None:
        decoder.submit(np.array([index], np.int64), seed=0, epoch=0).result()

    return decode
