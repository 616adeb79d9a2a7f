"""The exceptions fastload raises.

    FastloadError
    ├── UsageError (also ValueError)               an argument that cannot work
    ├── MissingDependencyError (also ImportError)  an optional package or the core is absent
    ├── DataError                                  the data is at fault: path, record, offset
    │   ├── DecodeError                            an image that cannot be decoded
    │   ├── ChecksumError                          a record whose CRC32C does not match
    │   ├── TooManyErrors                          more bad samples than max_errors lets pass
    │   └── StoreError                             a store that is corrupt or unfinished
    │       └── StoreNotFoundError (also FileNotFoundError)
    ├── ScriptError                                a script doctor runs fails or trains nothing
    └── InternalError                              a bug in fastload: please report it

A message says where it is (file, record, byte offset; or the argument), what was expected and what
came, and at its end what to do.
"""

from __future__ import annotations

from ._printable import printable
from ._version import DISTRIBUTION


class FastloadError(Exception):
    """Base of every exception of this package."""


class UsageError(FastloadError, ValueError):
    """An argument, or a combination of arguments, that cannot work."""


class MissingDependencyError(FastloadError, ImportError):
    """An optional package or the native core is needed and absent; the message has the remedy."""


def install(extra: str) -> str:
    """The command that installs what an extra of fastload names, for a message."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


class ScriptError(FastloadError):
    """A training script that ``fastload doctor`` runs failed, or trains nothing that it can see.

    Attributes:
        where: ``file:line`` of the script's own code at which it failed, or "".
    """

    def __init__(self, message: str, *, where: str = "") -> None:
        self.where = where
        super().__init__(message)


class DataError(FastloadError):
    """The data is at fault.

    Attributes:
        path: file that holds the data, or None where there is no file.
        record: index of the record in its store, or None.
        offset: byte offset of the record in ``path``, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        record: int | None = None,
        offset: int | None = None,
    ) -> None:
        self.message = message
        self.path = path
        self.record = record
        self.offset = offset
        # Names in the message may come from the data: a terminal is to show them, and do no more.
        message = printable(message, keep="\n")
        where = [repr(path)] if path is not None else []
        where += [f"record {record}"] if record is not None else []
        where += [f"byte offset {offset}"] if offset is not None else []
        super().__init__(f"{', '.join(where)}: {message}" if where else message)

    def at(
        self, *, path: str | None = None, record: int | None = None, offset: int | None = None
    ) -> DataError:
        """This error, with what it does not say of its place itself."""
        path = path if self.path is None else self.path
        record = record if self.record is None else self.record
        offset = offset if self.offset is None else self.offset
        if (path, record, offset) == (self.path, self.record, self.offset):
            return self
        found = type(self)(self.message, path=path, record=record, offset=offset)
        found.__cause__ = self.__cause__
        return found

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.path, self.record, self.offset)


def _rebuild(
    cls: type[DataError],
    message: str,
    path: str | None,
    record: int | None,
    offset: int | None,
) -> DataError:
    """Rebuild a DataError in another process, with where it happened."""
    return cls(message, path=path, record=record, offset=offset)


class DecodeError(DataError):
    """An image that cannot be decoded."""


class ChecksumError(DataError):
    """A record whose CRC32C differs from the one written with it."""


class TooManyErrors(DataError):
    """More samples of an epoch could not be read than ``max_errors`` lets pass."""


class StoreError(DataError):
    """A store that is corrupt, unfinished, or of a version this fastload does not know."""


class StoreNotFoundError(StoreError, FileNotFoundError):
    """No store under this path."""


class InternalError(FastloadError):
    """A bug in fastload. Please report it with the message."""


def sample_error(
    error: Exception,
    *,
    path: str | None = None,
    record: int | None = None,
    offset: int | None = None,
) -> DataError:
    """What reading, decoding or filling in a sample raised, as an error that says which it was.

    Every engine and ``pack`` turn what they meet into a DataError here: libraries raise anything
    (NotImplementedError, struct.error, MemoryError ...), and ``on_error`` is about DataErrors. Code
    of the user's does not come by: what that raises is raised as it is.

    Args:
        error: what was raised. A DataError keeps its type and what it says of its place.
        path, record, offset: where the sample lies.

    Raises:
        FastloadError: ``error``, where it is not about data: misuse, or a bug.
    """
    if isinstance(error, DataError):
        return error.at(path=path, record=record, offset=offset)
    if isinstance(error, FastloadError):
        raise error
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    found = DecodeError(
        f"the sample cannot be made: {reason}", path=path, record=record, offset=offset
    )
    found.__cause__ = error
    return found
