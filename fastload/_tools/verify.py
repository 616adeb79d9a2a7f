"""``verify``: check that every record of a store is present, unchanged, and decodes."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from .. import _native
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
    threads = workers or available()
    local, ended = threading.local(), threading.Event()
    damaged: list[Damage] = []
    done = nbytes = 0

    def check(indices: np.ndarray) -> tuple[int, list[Damage]]:
        decoder = _decoder_of(opened, local) if decode else None
        return check_records(opened, indices, decoder, ended.is_set)

    pool = ThreadPoolExecutor(threads, thread_name_prefix="fastload-verify")
    ahead: collections.deque[tuple[int, Future[tuple[int, list[Damage]]]]] = collections.deque()
    parts = parts_of(opened, order, 64 if decode else READ_RECORDS)
    with contextlib.ExitStack() as stack:
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
        stack.callback(ended.set)  # before: a part of large images takes seconds to decode
        report = stack.enter_context(reporting("verifying", progress))
        if report is not None:
            report(0, len(order), 0)
        for part in fetched_ahead(opened, parts):
            ahead.append((len(part), pool.submit(check, part)))
            if len(ahead) < 2 * threads:
                continue
            done, nbytes = _take(ahead, damaged, done, nbytes, len(order), report)
        while ahead:
            done, nbytes = _take(ahead, damaged, done, nbytes, len(order), report)
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


def _take(
    ahead: collections.deque[tuple[int, Future[tuple[int, list[Damage]]]]],
    damaged: list[Damage],
    done: int,
    nbytes: int,
    total: int,
    progress: Progress | None,
) -> tuple[int, int]:
    count, future = ahead.popleft()
    read, damages = future.result()
    damaged.extend(damages)
    if progress is not None:
        progress(done + count, total, nbytes + read)
    return done + count, nbytes + read


def _decoder_of(store: Store, local: threading.local) -> Callable[[int], None]:
    """A function that decodes one record as loading does, and raises DataError if that fails."""
    if _native.load() is None:
        from .._engine.pillow import decode_record

        return lambda index: decode_record(store, index, check=False).close()
    decoder = getattr(local, "decoder", None)
    if decoder is None:
        from .._base.slabs import SlabRing
        from .._engine.image_engine import EngineOptions
        from .._engine.registry import make_engine
        from .._transforms.recognise import Plan, recognise

        plan = recognise(None)
        assert isinstance(plan, Plan)  # None is always recognised
        options = EngineOptions(threads=0, ring=SlabRing(1), check_crc="never")
        decoder = local.decoder = make_engine("auto", store, plan, options)

    def decode(index: int) -> None:
        decoder.submit(np.array([index], np.int64), seed=0, epoch=0).result()

    return decode
