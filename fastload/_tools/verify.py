"""``verify``: is every record of a store there, unchanged, and an image?"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from .._base.machine.cpu import available
from .._base.progress_bar import Progress, reporting
from ..errors import DataError, StoreError, sample_error
from ..storage import open_store
from ..storage._crc import crc32c
from ..storage.base import Store

# Read at a time: enough for a disk to be at its full speed, small against memory.
_READ_NBYTES = 8 << 20
_READ_RECORDS = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Damage:
    """One record that is not as it should be.

    Attributes:
        record: its index.
        key: its name.
        path: the file it lies in.
        offset: where it begins there, in bytes; None where it does not lie there as it is.
        reason: what is wrong, in words.
    """

    record: int
    key: str
    path: str
    offset: int | None
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What ``verify`` found.

    Attributes:
        path, format: of the store.
        records: in the store.
        nbytes: read.
        checksums: whether the store has any; without them only a missing or short file is noticed.
        decoded: whether every image was decoded.
        columns: "right"; "no checksum" of labels, names and fields; or what is wrong with them.
        damaged: the records that are not as they should be, in order.
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
    """Read a store, and compare every record, labels, names and fields with their checksums.

    Example:
        >>> verify("imgs.lmdb").damaged
        ()

    Args:
        store: path of a store, or an open one.
        decode: also decode every image, as loading would.
        workers: threads; None: as many as CPUs.
        progress: as for ``pack``; bytes are those that were read.

    Raises:
        StoreNotFoundError: nothing there.
        StoreError: the store itself cannot be opened, so that its records are not known.
    """
    opened = open_store(store)
    order = _reading_order(opened)
    has_checksums = opened.checksums(np.arange(min(1, len(opened)))) is not None
    threads = workers or available()
    local = threading.local()
    damaged: list[Damage] = []
    done = nbytes = 0

    def check(indices: np.ndarray) -> tuple[int, list[Damage]]:
        return _check(opened, indices, _decoder_of(opened, local) if decode else None)

    pool = ThreadPoolExecutor(threads, thread_name_prefix="fastload-verify")
    ahead: collections.deque[tuple[int, Future[tuple[int, list[Damage]]]]] = collections.deque()
    parts = _parts(opened, order, 64 if decode else _READ_RECORDS)
    with contextlib.ExitStack() as stack:
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
        report = stack.enter_context(reporting("verifying", progress))
        if report is not None:
            report(0, len(order), 0)
        for part in parts:
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
        columns=_columns(opened),
        damaged=tuple(sorted(damaged, key=lambda damage: damage.record)),
    )


def _columns(store: Store) -> str:
    try:
        return "right" if store.check_columns() else "no checksum"
    except StoreError as error:
        return str(error)


def _take(
    ahead: collections.deque[tuple[int, Future[tuple[int, list[Damage]]]]],
    damaged: list[Damage],
    done: int,
    nbytes: int,
    total: int,
    progress: Progress | None,
) -> tuple[int, int]:
    count, future = ahead.popleft()
    read, found = future.result()
    damaged.extend(found)
    if progress is not None:
        progress(done + count, total, nbytes + read)
    return done + count, nbytes + read


def _reading_order(store: Store) -> np.ndarray:
    """All records, in the order in which they lie on the disk."""
    everything = np.arange(len(store), dtype=np.int64)
    if store.indirect is not None:
        return everything
    spans = store.spans(everything)
    order: np.ndarray = np.lexsort((spans.offset, spans.file)).astype(np.int64)
    return order


def _parts(store: Store, order: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """Pieces of ``order`` of about 8 MB."""
    nbytes = np.maximum(store.spans(order).nbytes, 64 << 10 if not store.mapped else 0)
    which = np.maximum(np.cumsum(nbytes) // _READ_NBYTES, np.arange(len(order)) // most)
    edges = [*np.flatnonzero(np.diff(which, prepend=-1)).tolist(), len(order)]
    for start, stop in itertools.pairwise(edges):
        yield order[start:stop]


def _check(
    store: Store, indices: np.ndarray, decode: Callable[[int], None] | None
) -> tuple[int, list[Damage]]:
    """Bytes read, and what is wrong with ``indices``."""
    expected = store.checksums(indices)
    damaged: list[Damage] = []
    total = 0
    try:
        together = store.read(indices)
    except DataError:
        together = None  # one by one, to find the one at fault
    for at, index in enumerate(indices.tolist()):
        reason = None
        try:
            data = store.read(indices[at : at + 1])[0] if together is None else together[at]
            total += len(data)
            if expected is not None and (found := crc32c(data)) != int(expected[at]):
                reason = f"expected CRC32C {int(expected[at]):08x}, found {found:08x}"
            elif decode is not None:
                decode(index)
        except Exception as error:  # noqa: BLE001 - what a damaged record may have libraries raise
            reason = sample_error(error).message
        if reason is not None:
            damaged.append(_damage(store, index, reason))
    return total, damaged


def _damage(store: Store, index: int, reason: str) -> Damage:
    record = np.array([index], np.int64)
    spans = store.spans(record)
    try:
        (key,) = store.keys(record)
    except StoreError:
        key = ""
    return Damage(
        record=index,
        key=key,
        path=store.files[int(spans.file[0])],
        offset=int(spans.offset[0]) if store.indirect is None else None,
        reason=reason,
    )


def _decoder_of(store: Store, local: threading.local) -> Callable[[int], None]:
    """Decodes one record as loading does, and raises DataError where that fails."""
    decoder = getattr(local, "decoder", None)
    if decoder is None:
        from .._base.slabs import SlabRing
        from .._engine import make_decoder
        from .._transforms.recognise import Plan, recognise

        plan = recognise(None)
        assert isinstance(plan, Plan)  # None is always recognised
        decoder = local.decoder = make_decoder(
            "auto", store, plan, threads=0, ring=SlabRing(1), check_crc="never"
        )

    def decode(index: int) -> None:
        decoder.submit(np.array([index], np.int64), seed=0, epoch=0).result()

    return decode
