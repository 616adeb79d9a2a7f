"""Reading files and records in Python: for `info`, converters and tests, not for loading."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from ..errors import DataError, StoreError, StoreNotFoundError, UnreadableError
from ._spans import Held, Spans

if TYPE_CHECKING:
    from .base import Store

_FETCHED = 256  # records of a remote store that are fetched at a time
_AHEAD = 8  # parts of about 8 MB: enough for a link of 500 MB/s and a latency of 100 ms
_BEHIND = 64  # parts that threads may still have to begin with when the next one is given out

NOT_REGULAR = "it is not a regular file"
REPLACED = "was the file replaced? Create the dataset again to have its size read again"
"""What to do about an image whose size has changed."""


class Where(TypedDict, total=False):
    """Where a record lies, as errors name it."""

    path: str | None
    record: int | None
    offset: int | None


def where_of(store: Store, record: int) -> Where:
    """Where a record lies in ``store``."""
    spans = store.places(np.array([record], np.int64))
    file = int(spans.file[0])
    in_file = store.indirect is None and file not in store.memory()
    return {
        "path": store.shown(file),
        "record": record,
        "offset": int(spans.offset[0]) if in_file else None,
    }


def open_regular(path: str, flags: int = os.O_RDONLY) -> int:
    """A descriptor of the file ``path``; an ``opener`` for ``open``.

    Raises OSError also for a pipe, a device or a folder, which may block forever.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, NOT_REGULAR, path)


def read_regular(path: str, limit: int) -> bytes:
    """The content of a file. Raises OSError, or ValueError if it has more than ``limit`` bytes."""
    with open(path, "rb", opener=open_regular) as file:
        nbytes = os.fstat(file.fileno()).st_size
        if nbytes > limit:
            raise ValueError(f"{nbytes} bytes, more than {limit}")
        return file.read(nbytes)


def pread_all(descriptor: int, nbytes: int, offset: int) -> bytes:
    """``nbytes`` bytes of an open file from ``offset`` on; fewer only if the file ends before.

    One call of the system reads at most 2 GiB.
    """
    data = os.pread(descriptor, nbytes, offset)
    if len(data) == nbytes or not data:
        return data
    parts, missing = [data], nbytes - len(data)
    while missing and (more := os.pread(descriptor, missing, offset + nbytes - missing)):
        parts.append(more)
        missing -= len(more)
    return b"".join(parts)


def read_range(descriptor: int, nbytes: int, offset: int, *, path: str, record: int) -> bytes:
    """``nbytes`` bytes of an open file from ``offset`` on, which belong to a record."""
    try:
        data = pread_all(descriptor, nbytes, offset)
    except OSError as error:
        raise UnreadableError(
            f"the record cannot be read: {error.strerror}", path=path, record=record
        ) from error
    if len(data) != nbytes:
        raise StoreError(
            f"expected {nbytes} bytes, found {len(data)}: the file was truncated",
            path=path,
            record=record,
            offset=offset,
        )
    return data


def bytes_of(array: np.ndarray, offset: int, nbytes: int) -> bytes:
    """The bytes of a record in one of ``Store.memory``; of a raw image its packed pixels."""
    if array.ndim == 1:
        return bytes(array[offset : offset + nbytes])
    step = array.strides[0]
    return bytes(array[offset // step if step else 0].tobytes())


def read_records(store: Store, indices: np.ndarray, limit: int | None = None) -> Iterator[bytes]:
    """The bytes of each of ``indices`` (int64, in range) in turn, at most ``limit`` of each."""
    if store.remote and len(indices) > _FETCHED:
        for at in range(0, len(indices), _FETCHED):
            yield from read_records(store, indices[at : at + _FETCHED], limit)
        return
    if store.indirect is not None:
        for index in indices:
            yield store.read(np.array([index], np.int64))[0][:limit]
        return
    yield from read_spans(store, indices, store.spans(indices), limit)


def read_each(store: Store, indices: np.ndarray) -> Iterator[bytes | DataError]:
    """The bytes of each of ``indices`` (int64, in range) in turn; an error for a damaged one."""
    with contextlib.suppress(DataError):
        yield from store.read(indices)
        return
    for at in range(len(indices)):  # one by one, to find the damaged one
        try:
            yield store.read(indices[at : at + 1])[0]
        except DataError as error:
            yield error


def part_of(spans: Spans, which: slice | np.ndarray) -> Spans:
    """The spans at these positions."""
    return dataclasses.replace(
        spans, file=spans.file[which], offset=spans.offset[which], nbytes=spans.nbytes[which]
    )


def read_spans(
    store: Store, indices: np.ndarray, spans: Spans, limit: int | None = None
) -> Iterator[bytes]:
    """As ``read_records``, of records that lie at ``spans``."""
    memory = store.memory()
    return read_places(store.files, indices, spans, limit, memory=memory, shown=store.shown)


def read_places(
    files: Sequence[str],
    indices: np.ndarray,
    spans: Spans,
    limit: int | None = None,
    *,
    memory: Mapping[int, np.ndarray] = MappingProxyType({}),
    shown: Callable[[int], str] | None = None,
) -> Iterator[bytes]:
    """The bytes at each of ``spans``, of the records ``indices``; one file is open at a time.

    ``memory``: as ``Store.memory``. ``shown``: what errors call a file; None: its path.
    """
    own, shown = spans.memory or (), shown or files.__getitem__
    opened, descriptor = -1, -1
    try:
        for index, file, offset, nbytes in zip(
            indices.tolist(), spans.file.tolist(), spans.offset.tolist(), spans.nbytes.tolist()
        ):
            array = own[-1 - file] if file < 0 else memory.get(file)
            if array is not None:
                yield bytes_of(array, offset, nbytes)[:limit]
                continue
            try:
                if file != opened:
                    if descriptor >= 0:
                        os.close(descriptor)
                        descriptor = -1
                    descriptor, opened = open_regular(files[file]), file
                if nbytes < 0:
                    nbytes = os.fstat(descriptor).st_size - offset
            except OSError as error:
                missing = isinstance(error, FileNotFoundError)
                raise (StoreNotFoundError if missing else UnreadableError)(
                    f"the record cannot be read: {error.strerror}", path=shown(file), record=index
                ) from error
            wanted = nbytes if limit is None else min(nbytes, limit)
            yield read_range(descriptor, wanted, offset, path=shown(file), record=index)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def fetched_ahead(store: Store, parts: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """``parts`` (int64 record numbers) in turn; of a remote store, the next ones are fetched.

    What was given out stays until so many more were that no thread can still have to begin with it.
    """
    if not store.remote or store.indirect is not None:
        yield from parts
        return
    held: collections.deque[Held] = collections.deque()
    waiting: collections.deque[np.ndarray] = collections.deque()
    try:
        for number, part in enumerate(parts):
            hold = store.ahead(part, urgency=float(number))
            if hold is not None:
                held.append(hold)
            waiting.append(part)
            if len(waiting) > _AHEAD:
                yield waiting.popleft()
            if len(held) > _AHEAD + _BEHIND:
                held.popleft().release()
        yield from waiting
    finally:
        for hold in held:
            hold.release()


def decoded(
    store: Store, name: str, records: np.ndarray
) -> tuple[np.ndarray | list[Any], dict[int, StoreError]]:
    """The field ``name`` of ``records`` as ``Store.batch`` gives it, and the errors by position.

    Where a value is damaged, all are in a list, with None in its place.
    """
    try:
        return store.batch(name, records), {}
    except (ValueError, RecursionError):
        pass  # which one it is, is found below
    values: list[Any] = []
    errors: dict[int, StoreError] = {}
    for at, record in enumerate(records.tolist()):
        record_alone = records[at : at + 1]
        try:
            values += list(store.batch(name, record_alone))
        except (ValueError, RecursionError) as error:
            values.append(None)
            errors[at] = StoreError(
                f"expected {store.fields[name].kind} in the field {name!r}, found something else: "
                f"{error}; write that value again, or leave the record out with on_error='skip'",
                path=store.shown(int(store.places(record_alone).file[0])),
                record=record,
            )
            errors[at].__cause__ = error
    return values, errors


def check_decoded(store: Store, name: str, records: np.ndarray) -> np.ndarray | list[Any]:
    """``decoded``, if nothing is damaged. Raises StoreError, which names the first record."""
    values, errors = decoded(store, name, records)
    if errors:
        raise errors[min(errors)]
    return values
