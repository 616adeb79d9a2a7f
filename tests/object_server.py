"""A web server for the files of a folder, with ranges and ETags, that fails as it is told to.

    server = ObjectServer(folder)      # server.url, server.log; server.close()
    server.faults = Faults(unavailable=0.01, reset=0.01, stall=0.001, latency_s=0.02)

It also answers what clients of S3 need for reading: with ``server.url`` as the endpoint, folders
below ``folder`` are buckets. Signatures are not looked at. Faults are drawn from a generator with a
fixed seed, one for each request.
"""

from __future__ import annotations

import contextlib
import dataclasses
import email.utils
import http.server
import os
import random
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

_PIECE = 256 << 10  # of a body, sent at a time
_CREDIT_S = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class Faults:
    """What goes wrong.

    Attributes:
        unavailable: share of requests answered with 503.
        reset: share of requests whose connection is reset in the middle of the body.
        stall: share of requests whose body stops in the middle for ``stall_s``.
        stall_s: seconds.
        latency_s: before each answer.
        bytes_per_s: of all bodies together; 0: as fast as they can be sent.
        ignore_if_match: as servers that do not know it.
    """

    unavailable: float = 0.0
    reset: float = 0.0
    stall: float = 0.0
    stall_s: float = 30.0
    latency_s: float = 0.0
    bytes_per_s: float = 0.0
    ignore_if_match: bool = False


@dataclasses.dataclass(frozen=True)
class Asked:
    """One request that was answered: a body has ``stop - start`` bytes, HEAD has none."""

    method: str
    path: str
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        return self.stop - self.start if self.method == "GET" else 0


class ObjectServer:
    """Serves the files below ``folder``.

    Args:
        folder: of the files.
        tls: makes it a server of https.

    Attributes:
        authorization: the header that every request must bring; "": none.
    """

    def __init__(self, folder: Path, tls: ssl.SSLContext | None = None) -> None:
        self.folder = folder
        self.faults = Faults()
        self.authorization = ""
        self.log: list[Asked] = []
        self._times: list[tuple[float, float]] = []  # of answered requests
        self._free_at = 0.0  # when the link has sent what it was given
        self._random = random.Random(1)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._server.block_on_close = False
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def nbytes(self) -> int:
        """Bytes of all bodies so far."""
        return sum(one.nbytes for one in list(self.log))

    def round_trips(self) -> int:
        """The longest chain of requests, each sent after the one before was answered."""
        chains: list[tuple[float, int]] = []  # (when the last one was answered, how many)
        for begin, end in sorted(self._times):
            before = max((length for answered, length in chains if answered <= begin), default=0)
            chains.append((end, before + 1))
        return max(length for _, length in chains)

    def gets(self) -> list[Asked]:
        return [one for one in list(self.log) if one.method == "GET"]

    @contextlib.contextmanager
    def asked(self) -> Iterator[list[Asked]]:
        """What is asked for within the block."""
        begin, found = len(self.log), []
        yield found
        found += self.log[begin:]

    def _drawn(self) -> str | None:
        with self._lock:
            at = self._random.random()
        for name in ("unavailable", "reset", "stall"):
            at -= getattr(self.faults, name)
            if at < 0:
                return name
        return None

    def _wait_for_link(self, nbytes: int) -> None:
        """Return when the link can send so many bytes more."""
        if not self.faults.bytes_per_s:
            return
        with self._lock:
            # What a late wake-up or a write has taken is made up for, or one connection alone
            # would get less than the link has.
            begin = max(time.monotonic() - _CREDIT_S, self._free_at)
            self._free_at = begin + nbytes / self.faults.bytes_per_s
        time.sleep(max(0.0, self._free_at - time.monotonic()))

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Else the end of a body may wait 40 ms for the client's acknowledgement.
            disable_nagle_algorithm = True

            def log_message(self, *_: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                begin = time.monotonic()
                with contextlib.suppress(ConnectionError):  # a hedged request is cancelled
                    self._answer(begin)

            def _answer(self, begin: float) -> None:
                faults, fault = server.faults, server._drawn()
                time.sleep(faults.latency_s)
                server._times.append((begin, time.monotonic()))
                path = server.folder / unquote(urlsplit(self.path).path).lstrip("/")
                if fault == "unavailable":
                    self._empty(503)
                    return
                if server.authorization not in ("", self.headers.get("Authorization")):
                    self._empty(401)
                    return
                if not path.is_file():
                    self._empty(404)
                    return
                status = path.stat()
                tag = f'"{status.st_mtime_ns:x}-{status.st_size:x}"'
                wanted = self.headers.get("If-Match")
                if wanted not in (None, tag) and not faults.ignore_if_match:
                    self._empty(412)
                    return
                start, stop = 0, status.st_size
                ranged = self.headers.get("Range")
                if ranged is not None:
                    first, last = ranged.removeprefix("bytes=").split("-")
                    start, stop = int(first), min(int(last or stop) + 1, status.st_size)
                    self.send_response(206)
                    self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{status.st_size}")
                else:
                    self.send_response(200)
                server.log.append(Asked(self.command, self.path, start, stop))
                self.send_header("ETag", tag)
                self.send_header(
                    "Last-Modified", email.utils.formatdate(status.st_mtime, usegmt=True)
                )
                self.send_header("Content-Length", str(stop - start))
                self.end_headers()
                if self.command == "GET":
                    with open(path, "rb") as file:
                        self._body(os.pread(file.fileno(), stop - start, start), fault)

            def _body(self, data: bytes, fault: str | None) -> None:
                if fault is None:
                    for at in range(0, len(data), _PIECE):
                        server._wait_for_link(len(data[at : at + _PIECE]))
                        self.wfile.write(data[at : at + _PIECE])
                    return
                self.wfile.write(data[: len(data) // 2])
                self.wfile.flush()
                if fault == "stall":
                    server._ended.wait(server.faults.stall_s)
                # Without this, closing would say that the body is complete.
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.close_connection = True

            def _empty(self, code: int) -> None:
                self.send_response(code)
                self.send_header("Content-Length", "0")
                self.end_headers()

        return Handler
