"""Python programs in processes that have torch imported already: forked off one that did it once.

Importing torch and torchvision takes a second or two, and is most of what a short program does.

    run(words, ...)    stands for subprocess.run([sys.executable, *words], text=True, ...)
    Program(words)     for subprocess.Popen with stdout=PIPE, stderr=PIPE, text=True

``words`` are a file or begin with -c or -m. Such a process runs and ends as one that was started:
the interpreter is finalized, exceptions and signals have their exit status. To finalize torch takes
a while; ``finalize=False`` leaves it out, where a program's end is not what is tested. With
``only_torch`` neither fastload nor torchvision are imported yet. What the import of torch costs has
to be tested in a program that was started.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Mapping, Sequence
from typing import IO, Any, NoReturn

import huge_pages

_TORCH = ["torch.utils.data", "PIL.Image"]
_IMPORTED = [
    *_TORCH,
    "torchvision.transforms.v2",
    "torchvision.datasets",
    "fastload._loader",
    "fastload.converters",
    "fastload._tools.doctor",
]
_servers: dict[bool, socket.socket] = {}


class Program:
    """A running program; its attributes are those of ``subprocess.Popen``.

    Args:
        words: a file, -c and code, or -m and the name of a module; then the arguments.
        cwd, env, start_new_session: as for ``subprocess.Popen``.
        stdin: a descriptor; the default is empty.
        stdout: a descriptor; the default is a pipe, whose end is ``self.stdout``.
        stderr: a descriptor; the default is a file, which ``communicate`` reads.
        finalize: whether the interpreter is; threads are joined and exit functions run in any case.
        only_torch: whether the program imports fastload and torchvision itself.
    """

    def __init__(
        self,
        words: Sequence[object],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        start_new_session: bool = False,
        finalize: bool = True,
        only_torch: bool = False,
    ) -> None:
        request = {
            "words": [os.fspath(w) if isinstance(w, os.PathLike) else str(w) for w in words],
            "cwd": os.fspath(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
            "session": start_new_session,
            "finalize": finalize,
        }
        self.args = request["words"]
        self.returncode: int | None = None
        read, write = os.pipe()
        self.stdout: IO[str] = os.fdopen(read)
        if stderr is None:
            self._stderr = tempfile.TemporaryFile("w+")  # closed in communicate()
            stderr = self._stderr.fileno()
        status, report = os.pipe()
        self._status = os.fdopen(status)
        with open(os.devnull) as nothing:
            given = [
                nothing.fileno() if stdin is None else stdin,
                write if stdout is None else stdout,
                stderr,
            ]
            server = _started(only_torch)
            socket.send_fds(server, [json.dumps(request).encode()], [*given, report])
        os.close(write)
        os.close(report)
        self.pid = int(self._status.readline())

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status; for a signal, less than zero."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = os.waitstatus_to_exitcode(int(self._status.readline()))
            self._status.close()
        return self.returncode

    def poll(self) -> int | None:
        """Its exit status, or None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it wrote on stdout (the rest) and on stderr, once it has ended."""
        end = None if timeout is None else time.monotonic() + timeout
        text = []
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not select.select([self.stdout], [], [], left)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            line = self.stdout.readline()
            if not line:
                break
            text.append(line)
        self.wait(None if end is None else max(0.0, end - time.monotonic()))
        self.stdout.close()
        self._stderr.seek(0)
        with self._stderr:
            # At its end triton reports what is not freed, as what was frozen is not.
            return "".join(text), self._stderr.read().partition("nanobind: leaked")[0]

    def send_signal(self, number: int) -> None:
        """As ``kill(2)``; nothing where it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run(
    words: Sequence[object],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    stdout: int | None = None,
    timeout: float | None = 120,
    check: bool = False,
    finalize: bool = True,
    only_torch: bool = False,
) -> subprocess.CompletedProcess[str]:
    """The program once it has ended, with what it wrote; see ``Program``."""
    program = Program(
        words, cwd=cwd, env=env, stdout=stdout, finalize=finalize, only_torch=only_torch
    )
    try:
        written, errors = program.communicate(timeout)
    except BaseException:
        program.kill()
        program.communicate()
        raise
    code = program.wait()
    if check and code:
        raise subprocess.CalledProcessError(code, program.args, written, errors)
    return subprocess.CompletedProcess(program.args, code, written, errors)


def _run_command(command: Sequence[object], **options: Any) -> subprocess.CompletedProcess[str]:
    return run(command[1:], finalize=False, **options)


# In the place of ``subprocess`` in a module that runs [sys.executable, *words].
SUBPROCESS = types.SimpleNamespace(run=_run_command, TimeoutExpired=subprocess.TimeoutExpired)


def _started(only_torch: bool) -> socket.socket:
    """The connection to the process that forks; those for each process that runs tests."""
    server = _servers.get(only_torch)
    if server is None:
        server, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        imported = _TORCH if only_torch else _IMPORTED
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno()), *imported]
            child = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        atexit.register(_end, server, child)
        _servers[only_torch] = server
    return server


def _end(server: socket.socket, child: subprocess.Popen[bytes]) -> None:
    """It ends when its connection does."""
    server.close()
    child.wait()


def _serve(connection: socket.socket) -> dict[str, Any]:
    """Fork for each request; returns it in the child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who runs the tests
    ended, wake = os.pipe()
    os.set_blocking(ended, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    reports: dict[int, int] = {}
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.register(ended, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if ended in ready:
            os.read(ended, 1 << 10)
            for pid, report in list(reports.items()):
                gone, status = os.waitpid(pid, os.WNOHANG)
                if gone:
                    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
                        os.write(report, f"{status}\n".encode())
                    os.close(reports.pop(pid))
        if connection.fileno() not in ready:
            continue
        message, given, _, _ = socket.recv_fds(connection, 1 << 20, 4)
        if not message:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, descriptor in enumerate(given[:3]):
                os.dup2(descriptor, number)
            for descriptor in (connection.detach(), ended, wake, *given, *reports.values()):
                os.close(descriptor)
            request: dict[str, Any] = json.loads(message)
            return request
        for descriptor in given[:3]:
            os.close(descriptor)
        reports[pid] = given[3]
        os.write(given[3], f"{pid}\n".encode())


def _run_to_its_end(request: Mapping[str, Any]) -> NoReturn:
    """Run the program, and end the process without finalizing the interpreter."""
    code: object = 0
    try:
        _become(request)
    except SystemExit as ended:
        code = ended.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def _become(request: Mapping[str, Any]) -> None:
    """Run the program in this process, as ``python WORDS`` does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = open(
        2, "w", buffering=1, errors="backslashreplace", closefd=False
    )
    if request["session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    importlib.invalidate_caches()
    kind, *arguments = request["words"]
    if not kind.startswith("-"):
        sys.argv = [kind, *arguments]
        sys.path[0] = os.path.dirname(kind)
        runpy.run_path(kind, run_name="__main__")
        return
    what, *arguments = arguments
    sys.argv = [kind, *arguments]
    sys.path[0] = ""
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return
    assert kind == "-c", kind
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(what, "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        importlib.import_module(name)
    # A collection in a child would copy every page of what was imported, and so would the last ones
    # of an interpreter that ends: that is most of the time it takes.
    gc.freeze()
    huge_pages.collapse()
    wanted = _serve(socket.socket(fileno=int(sys.argv[1])))
    if wanted["finalize"]:
        _become(wanted)
    else:
        _run_to_its_end(wanted)
