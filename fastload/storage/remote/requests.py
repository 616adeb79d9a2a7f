"""Requests: many at a time, repeated where they fail, hedged where they are slow.

How it runs
    One thread with an event loop sends all requests of a process, the most urgent first. It starts
    with the first request and ends by itself a moment after the last one.
How many at a time
    ``RequestPace`` begins with a few and doubles or halves them as long as that makes the link
    faster. Large ones are fewer: all that are in flight share the link, so what is needed first
    would wait for what is needed later.
How it ends
    success    ``Request.deliver`` gets the bytes, on another thread, so that writing them to a disk
               does not delay the other requests.
    failure    an attempt that fails or exceeds its time is repeated up to ``_ATTEMPTS`` times,
               after a random pause that grows; then ``Request.fail`` gets a StoreError. What cannot
               succeed later fails at once.
    slow       an attempt that takes longer than 99 % of the last ones of its size is sent a second
               time; the first answer counts and the other request is cancelled.
    cancel     ``cancel`` ends a request that nobody waits for any more: neither ``deliver`` nor
               ``fail`` is called after that.
    exit       the thread is told to end and waited for.
    fork       obstore's own threads are not in a forked child, where a request would wait for ever.
               There every request fails at once and says so.
"""

from __future__ import annotations

import asyncio
import atexit
import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import heapq
import itertools
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ..._base.timeline import gauge
from ...errors import StoreError, StoreNotFoundError, UsageError
from .counters import RemoteCounters
from .service import Changed, Permanent, Service, what_to_check
from .urls import RemoteUrl, redacted

_ATTEMPTS = 8
_PAUSE_S = 0.1  # before the second attempt; doubled for each one after it
_MAX_PAUSE_S = 5.0
_JITTER = random.SystemRandom()  # Python's own generator is the user's: drawing would move it
_ATTEMPT_S = 20.0  # an attempt may take so long, and longer by what a slow link needs:
_SLOWEST_PER_S = 1 << 20  # bytes
# Before anything is known of requests of a size, beside what a slow link needs for so many bytes.
_HEDGE_S = 2.0
_FEW_SAMPLES, _HEDGE_SAMPLES = 8, 50
_LEAST_HEDGE_S = 0.25
_HEDGES = 2  # of one request: the second one may be slow too
_HEDGED_SHARE = 0.05  # of all requests, at most: a link that is slow as a whole needs no more load
_LINGER_S = 0.3  # the thread waits so long for another request
_EXIT_S = 5.0
_FIRST = float("-inf")  # an urgency

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where the bytes of a store come from; ``secrets`` must not be shown."""

    service: Service
    secrets: tuple[str, ...]
    counters: RemoteCounters


@dataclasses.dataclass(eq=False)
class Request:
    """What to ask for.

    Attributes:
        make: makes a coroutine of ``service`` that asks once.
        nbytes: of a range; 0 for anything else, such as a listing, which waits for no range.
        deliver: called once with what came, on any thread.
        fail: called instead with an error, on any thread.
    """

    origin: Origin
    url: RemoteUrl
    make: Callable[[], Awaitable[Any]]
    nbytes: int
    deliver: Callable[[Any], None]
    fail: Callable[[Exception], None]
    cancelled: bool = False
    task: asyncio.Task[None] | None = None


class RequestPace:
    """How many requests to send at a time, as the link proves to be.

    Throughput is compared between rounds of twice as many answers as requests are in flight: twice
    as many are tried as long as that makes it a quarter faster. If it gains less than a tenth, one
    step back, because what is needed first waits for all that is in flight. Refusals of a server
    reduce it. In flight are at most ``width`` requests, and at most 2 MB for each of them (16 small
    ones or four blocks of 8 MB, to begin with), but always ``least``.
    """

    least, most = 4, 128
    each_nbytes = 2 << 20

    def __init__(self, first: int = 16) -> None:
        self.width = first
        self._best = 0.0
        self._growing = True
        self._doubled = False  # since it began to grow
        self._begin()

    def _begin(self) -> None:
        self._since: float | None = None  # the first answer, which is not counted
        self._nbytes = self._answers = 0
        self._in_flight = 0  # the most since then: answers may come in waves

    def room(self, requests: int, nbytes: int) -> bool:
        """Whether another request may be sent beside so many, of ``nbytes`` with it."""
        if requests < self.least:
            return True
        return requests < self.width and nbytes <= self.width * self.each_nbytes

    def answered(self, nbytes: int, *, waiting: bool, in_flight: int) -> None:
        """``nbytes`` have arrived, of one of so many requests in flight.

        ``waiting``: more requests wait than may be sent.
        """
        if not waiting:  # the link is not what limits it
            self._begin()
            return
        if self._since is None:
            self._since = time.monotonic()
            return
        self._nbytes += nbytes
        self._answers += 1
        self._in_flight = max(self._in_flight, in_flight)
        if self._answers < 2 * self._in_flight:
            return
        rate = self._nbytes / max(1e-6, time.monotonic() - self._since)
        if not self._growing:
            self._best = max(rate, 0.9 * self._best)
            if rate < 0.7 * self._best:
                # The link has changed, or its first bytes came faster than it lasts: look again.
                # Compared with what was, fewer and fewer would be tried.
                self._best, self._growing, self._doubled = rate, True, False
        elif rate > 1.25 * self._best and self.width < self.most:
            self._best, self.width = rate, min(self.most, 2 * self.width)
            self._doubled = True
        else:
            if rate < 1.1 * self._best and self._doubled:
                self.width = max(self.least, self.width // 2)
            self._best, self._growing = max(rate, self._best), False
        self._begin()

    def refused(self) -> None:
        """A request has failed in a way that fewer requests may avoid."""
        self.width = max(self.least, self.width * 3 // 4)
        self._begin()


class Latencies:
    """How long requests took, by the magnitude of their size."""

    def __init__(self) -> None:
        self._seen: dict[int, collections.deque[float]] = {}

    def add(self, nbytes: int, seconds: float) -> None:
        kept = self._seen.setdefault(nbytes.bit_length(), collections.deque(maxlen=300))
        kept.append(seconds)

    def unusual_s(self, nbytes: int) -> float:
        """Seconds after which a request of this size takes longer than 99 % of them.

        Of few requests, three times what the slowest took.
        """
        seen = self._seen.get(nbytes.bit_length(), ())
        if len(seen) < _FEW_SAMPLES:
            return _HEDGE_S + nbytes / _SLOWEST_PER_S
        if len(seen) < _HEDGE_SAMPLES:
            return max(_HEDGE_S, 3 * max(seen))
        slowest = sorted(seen)[int(0.99 * len(seen))]
        return max(_LEAST_HEDGE_S, 1.5 * slowest)


class Requests:
    """The requests of one process. See the module."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        # Reentrant: a store may be deleted, and its requests cancelled, in the middle of anything.
        self._lock = threading.RLock()
        self._waiting: list[tuple[float, int, Request]] = []
        self._number = itertools.count()
        self._active: set[asyncio.Task[Any]] = set()
        self._sending = self._sending_nbytes = 0  # ranges that were begun and have no answer yet
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._ending = False
        self.pace = RequestPace()
        self._latencies = Latencies()
        self._in_flight = self._received = 0  # requests in flight, and bytes that have come

    def send(self, request: Request, urgency: float) -> None:
        """Send ``request`` as soon as there is room; the smallest ``urgency`` first."""
        with self._lock:
            heapq.heappush(self._waiting, (urgency, next(self._number), request))
            if self._thread is None:
                # A daemon: an abandoned loader must not keep the process alive. The exit ends it.
                self._thread = threading.Thread(
                    target=lambda: asyncio.run(self._main()), name="fastload-remote", daemon=True
                )
                self._thread.start()
            elif self._loop is not None and self._wake is not None:
                self._loop.call_soon_threadsafe(self._wake.set)

    def cancel(self, request: Request) -> None:
        """Nobody waits for ``request`` any more."""
        request.cancelled = True
        with self._lock:
            loop = self._loop
        if loop is not None and request.task is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(request.task.cancel)

    def call(
        self, ask: Callable[[RemoteUrl], Awaitable[_T]], url: RemoteUrl, origin: Origin
    ) -> concurrent.futures.Future[_T]:
        """The result of the coroutine ``ask(url)``, repeated as ranges are."""
        future: concurrent.futures.Future[_T] = concurrent.futures.Future()
        make = functools.partial(ask, url)
        self.send(Request(origin, url, make, 0, future.set_result, future.set_exception), _FIRST)
        return future

    def close(self) -> None:
        """End the thread; what is in flight is cancelled."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            thread, loop = self._thread, self._loop
            self._ending = True
            self._waiting.clear()
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._end)
        if thread is not None and thread is not threading.current_thread():
            thread.join(_EXIT_S)
        self._ending = False

    # --- the thread -------------------------------------------------------------------------------

    def _end(self) -> None:
        for task in self._active:
            task.cancel()
        assert self._wake is not None
        self._wake.set()

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            self._loop, self._wake = loop, asyncio.Event()
        wake = self._wake
        # For what writes the bytes to a disk, and for file systems that wait.
        with concurrent.futures.ThreadPoolExecutor(8, thread_name_prefix="fastload-remote") as pool:
            loop.set_default_executor(pool)
            while True:
                wake.clear()
                self._start(loop)
                busy = bool(self._active) and not self._ending
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(wake.wait(), None if busy else _LINGER_S)
                with self._lock:
                    idle = not self._waiting
                    if (idle or self._ending) and not self._active and not wake.is_set():
                        self._thread = self._loop = self._wake = None
                        return

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            with self._lock:
                while self._waiting and self._waiting[0][2].cancelled:
                    heapq.heappop(self._waiting)
                if not self._waiting:
                    return
                nbytes = self._waiting[0][2].nbytes
                if nbytes and not self.pace.room(self._sending, self._sending_nbytes + nbytes):
                    return
                _, _, request = heapq.heappop(self._waiting)
            self._sending += nbytes > 0
            self._sending_nbytes += nbytes
            request.task = loop.create_task(self._serve(request))
            self._active.add(request.task)
            request.task.add_done_callback(functools.partial(self._done, nbytes))

    def _done(self, nbytes: int, task: asyncio.Task[None]) -> None:
        self._sending -= nbytes > 0
        self._sending_nbytes -= nbytes
        self._active.discard(task)
        if self._wake is not None:
            self._wake.set()

    async def _serve(self, request: Request) -> None:
        origin = request.origin
        try:
            data = await self._insist(request.make, request.url, origin, request.nbytes)
            if request.nbytes:
                origin.counters.add(nbytes=len(data))
                self._received += len(data)
                gauge("bytes fetched", self._received)
                waiting = bool(self._waiting)
                self.pace.answered(len(data), waiting=waiting, in_flight=self._sending)
            if not request.cancelled:
                # Not cancelled half way: the bytes are there, and writing them takes no time.
                await asyncio.shield(
                    asyncio.get_running_loop().run_in_executor(None, request.deliver, data)
                )
        except asyncio.CancelledError:
            if not request.cancelled:
                request.fail(StoreError("reading was ended", path=request.url.shown))
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            request.fail(error)

    # Not given the request: an error that obstore keeps for a while keeps what these frames know,
    # and a request knows who waits for it, and the cache.
    async def _insist(
        self, make: Callable[[], Awaitable[_T]], url: RemoteUrl, origin: Origin, nbytes: int
    ) -> _T:
        """The result of ``make``, repeated while it fails and hedged while it is slow."""
        for attempt in itertools.count(1):
            try:
                return await self._attempt(make, origin.counters, nbytes)
            except FileNotFoundError:  # its message may hold credentials, as others' below
                raise StoreNotFoundError("nothing is there", path=url.shown) from None
            except Changed:
                raise StoreError(
                    "the object was replaced since it was opened: its ETag or its size is another "
                    "one; put it back, or open it again",
                    path=url.shown,
                ) from None
            except Exception as error:  # noqa: BLE001 - libraries raise anything
                permanent = isinstance(error, Permanent)
                if permanent or attempt == _ATTEMPTS:
                    said = str(error) if permanent else f"{type(error).__name__}: {error}"
                    times = "" if permanent else f", {attempt} times in a row"
                    raise StoreError(
                        f"it cannot be read{times}: {redacted(said, url, origin.secrets)}; "
                        f"{what_to_check(url)}",
                        path=url.shown,
                    ) from None
                self.pace.refused()
                origin.counters.add(retries=1)
                pause = min(_MAX_PAUSE_S, _PAUSE_S * 2 ** (attempt - 1))
                await asyncio.sleep(_JITTER.uniform(0.5, 1.5) * pause)
        raise AssertionError("the loop returns or raises")

    def _note_in_flight(self, more: int) -> None:
        self._in_flight += more
        gauge("requests in flight", self._in_flight)

    async def _attempt(
        self, make: Callable[[], Awaitable[_T]], counters: RemoteCounters, nbytes: int
    ) -> _T:
        begin = time.monotonic()
        deadline = begin + _ATTEMPT_S + nbytes / _SLOWEST_PER_S
        running: set[asyncio.Future[_T]] = set()

        def again() -> None:
            counters.add(requests=1)
            attempt = asyncio.ensure_future(make())
            running.add(attempt)
            self._note_in_flight(1)
            attempt.add_done_callback(lambda _: self._note_in_flight(-1))

        again()
        unusual_s = self._latencies.unusual_s(nbytes)
        hedge_at = begin + unusual_s
        hedges = 0
        failure: BaseException | None = None
        try:
            while running:
                until = deadline if hedges == _HEDGES else min(deadline, hedge_at)
                done, _ = await asyncio.wait(
                    running,
                    timeout=max(0.0, until - time.monotonic()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for attempt in done:
                    running.discard(attempt)
                    failure = attempt.exception()
                    if failure is None:
                        self._latencies.add(nbytes, time.monotonic() - begin)
                        return attempt.result()
                    if isinstance(failure, (Permanent, FileNotFoundError)):
                        raise failure
                if done:
                    continue
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"no answer in {deadline - begin:.0f} s")
                hedges, hedge_at = hedges + 1, hedge_at + 2 * unusual_s
                if counters.hedged <= _HEDGED_SHARE * counters.requests:
                    counters.add(hedged=1)
                    again()
            assert failure is not None  # else it was returned
            raise failure
        finally:
            for attempt in running:
                attempt.cancel()
            if running:
                await asyncio.gather(*running, return_exceptions=True)


_made: dict[int, Requests] = {}  # by process: the parent's must not be used or closed in a child


def of_process() -> Requests:
    """The requests of this process. Raises UsageError in a child of one that has made some."""
    if _made and os.getpid() not in _made:
        raise UsageError(
            "this process was forked from one that has read URLs, and obstore works in no "
            "forked process: pass multiprocessing_context='forkserver', or fetch everything "
            "beforehand, so that the cache has it"
        )
    if not _made:
        atexit.register(_made.setdefault(os.getpid(), Requests()).close)
    return _made[os.getpid()]
