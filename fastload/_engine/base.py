"""The contract of the engines: records in, a batch out.

How it runs
    ``submit`` starts to fill a batch and returns a ticket at once; the caller may submit more
    batches before it waits for the first one. ``Ticket.result`` waits for the batch, or
    ``Ticket.settle`` where some samples may fail. With no threads the caller of these two does the
    work.
How it ends
    success   the ticket gives the batch, which belongs to the caller: the engine never writes to it
              again.
    failure   a sample that cannot be read or decoded is a DataError with its file, record and
              offset. ``result`` raises the first one; ``settle`` returns all, by position, beside
              the batch. What no engine can be asked to do is raised by ``submit``.
    cancel    ``Ticket.cancel`` stops the work and returns when nothing writes to the batch any
              more. Then ``result`` and ``settle`` raise CancelledError. From any thread.
    release   each user of an engine calls ``acquire`` before it iterates, and ``release`` after it
              has finished or cancelled its tickets. The last ``release`` ends threads and
              processes; they start again when needed.
    fork      an engine belongs to the process that made it, because its threads do. A child makes
              another one.
    pickle    an engine is pickled as what it was made of: store, plan and options, without slabs,
              threads and processes. What it has checked or remembers does not travel.
"""

from __future__ import annotations

import abc
import concurrent.futures
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from .._base.slabs import SlabRing
from .._transforms.geometry.crop_geometry import Refused
from .._transforms.geometry.draws import Numbers
from .._transforms.plan import Plan, Views
from ..errors import DataError, DecodeError
from ..storage._read import Where, read_records, where_of
from ..storage._spans import fetched_again
from ..storage.base import UNSIZED, Spans, Store

if TYPE_CHECKING:  # most batches are images alone
    from .._transforms.targets.moving import Moving

Images = torch.Tensor | list[torch.Tensor]
"""The images of a batch, (n, channels, h, w); or a list: those of each view, or a batch of the rows
of each tensor."""


def one_tensor(images: Images) -> torch.Tensor:
    """The images that an engine makes with one plan."""
    assert isinstance(images, torch.Tensor), "one plan gives one tensor"
    return images


class Ticket(abc.ABC):
    """A batch that is being filled. Its caller calls ``result`` or ``settle``, once.

    Attributes:
        times: int64 (n, TIMES), times of the samples (``_base/timeline.py``), complete after
            ``result``; None where they were not asked for, or the engine does not know them.
        nbytes: of the records, as far as their spans tell.
        hits: how many samples come from a cache; None without one.
        moving: the fields that move along with the images, or None.
    """

    times: np.ndarray | None = None
    nbytes: int = 0
    hits: int | None = None
    moving: Moving | None = None
    cancelled = False

    def result(self) -> Images:
        """Wait, and return the images.

        Raises:
            DataError: the first sample that failed, with its file, record and offset.
            concurrent.futures.CancelledError: the ticket was cancelled.
        """
        images, errors = self.settle()
        if errors:
            raise errors[min(errors)]
        return images

    @abc.abstractmethod
    def settle(self) -> tuple[Images, dict[int, DataError]]:
        """Wait, and return the images and the errors, by position.

        The images at these positions hold nothing of use.

        Raises:
            concurrent.futures.CancelledError: the ticket was cancelled.
        """

    @abc.abstractmethod
    def cancel(self) -> None:
        """Stop filling, and return when nothing writes to the batch any more. From any thread."""

    def stages_ns(self) -> Mapping[str, int]:
        """Work per stage in nanoseconds, summed over threads. Complete after ``result``."""
        return {}

    def check_cancelled(self) -> None:
        """Raise what ``settle`` raises of a ticket that was cancelled."""
        if self.cancelled:
            raise concurrent.futures.CancelledError("the batch was cancelled")


class _FetchedAgain(Ticket):
    """A batch of a remote store: filled a second time if its bytes had to be fetched again.

    ``begin`` starts to fill it; ``records``, int64 (n,), are those in it.
    """

    def __init__(self, begin: Callable[[], Ticket], store: Store, records: np.ndarray) -> None:
        self._begin, self._store, self._records = begin, store, records
        self._generation = store.generation
        self._fill()

    def _fill(self) -> None:
        ticket = self._ticket = self._begin()
        self.times, self.nbytes, self.hits = ticket.times, ticket.nbytes, ticket.hits
        self.moving = ticket.moving

    def settle(self) -> tuple[Images, dict[int, DataError]]:
        images, errors = self._ticket.settle()
        bad = self._records[sorted(errors)]
        reopened = self._store.generation != self._generation
        if not reopened and not (errors and self._store.doubt(bad)):
            return images, errors
        del images  # frees its memory for the second one
        self._fill()
        if self.cancelled:
            self._ticket.cancel()
        images, errors = self._ticket.settle()
        return images, {position: fetched_again(error) for position, error in errors.items()}

    def cancel(self) -> None:
        self.cancelled = True
        self._ticket.cancel()

    def stages_ns(self) -> Mapping[str, int]:
        return self._ticket.stages_ns()


def summed(each: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """``Ticket.stages_ns`` of several tickets, added up."""
    stages: dict[str, int] = {}
    for its in each:
        for stage, nanoseconds in its.items():
            stages[stage] = stages.get(stage, 0) + nanoseconds
    return stages


class BatchEngine(abc.ABC):
    """Fills batches from one store. The module says how; every engine can replace every other.

    Attributes:
        name: as in ``registry.py``.
        store: what is read, a cache in front included.
        origin: the store that errors name: without the cache.
        threads: that fill a batch; 0 means that the caller of ``Ticket.result`` does the work.
    """

    name: str

    def __init__(self, store: Store, threads: int) -> None:
        self.store = self.origin = store
        self.threads = threads
        self._users = set[int]()

    def submit(
        self,
        records: np.ndarray,
        *,
        seed: int,
        epoch: int,
        repeats: np.ndarray | None = None,
        timed: bool = False,
    ) -> Ticket:
        """Start to fill a batch with ``records`` (int64, in range).

        ``seed``, ``epoch`` and ``repeats`` are those of ``Numbers``; ``timed``: the ticket measures
        each sample.

        Raises:
            Refused: nothing can be made of a sample; with its position.
            DataError: the images make no batch.
        """
        numbers = Numbers(seed, epoch, records, repeats)

        def begin() -> Ticket:
            try:
                return self._submit(numbers, timed=timed)
            except Refused as refused:
                position = refused.position
                raise refused.of(position, **self.where(int(records[position]))) from None

        return _FetchedAgain(begin, self.origin, records) if self.origin.remote else begin()

    @abc.abstractmethod
    def _submit(self, numbers: Numbers, *, timed: bool) -> Ticket:
        """``submit`` of ``numbers.indices``; ``Refused`` need not say where the record lies."""

    @abc.abstractmethod
    def makes(self, plan: Plan | Views) -> bool:
        """Whether it makes of every record what ``plan`` says."""

    @abc.abstractmethod
    def uniform(self, records: np.ndarray) -> bool:
        """Whether the images of ``records`` have one size, so that they make a batch."""

    def readahead(self, spans: Sequence[Spans], *, wait: bool = False) -> None:  # noqa: B027
        """Advise the system to read these bytes, which will be needed soon. Spans may be anything.

        An engine need not do it. ``wait`` returns when the system has been asked; the bytes are
        never waited for.
        """

    @property
    @abc.abstractmethod
    def rings(self) -> tuple[SlabRing, ...]:
        """Where batches are allocated; none where torch allocates them."""

    def use_threads(self, threads: int) -> None:
        """Fill the batches submitted from now on with so many threads."""
        self.threads = threads

    def acquire(self, user: object) -> None:
        """``user`` iterates, until ``release``."""
        self._users.add(id(user))  # sets change atomically

    def release(self, user: object) -> None:
        """End one ``acquire``; the last one ends threads and processes. More calls do nothing."""
        self._users.discard(id(user))

    def where(self, record: int) -> Where:
        """Path, record and offset of a record in its store, for errors."""
        return where_of(self.origin, record)

    def error(self, kind: type[DataError], message: str, record: int) -> DataError:
        """An error about ``record``, which names its file and offset."""
        return kind(message, **self.where(record))

    def unsized(self, record: int) -> DataError:
        """Why the size of ``record`` is unknown: what reading or decoding it raises."""
        from .pillow import decode  # most loops never need it

        where = self.where(record)
        try:
            (data,) = read_records(self.origin, np.array([record], np.int64))
            decode(data, **where)
        except DataError as error:
            return error.at(**where)
        return DecodeError(UNSIZED, **where)
