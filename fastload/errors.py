"""The exceptions fastload raises.

    FastloadError
    ├── UsageError (also ValueError)               an argument that cannot work
    ├── MissingDependencyError (also ImportError)  an optional package or the core is missing
    ├── DataError                                  an error in the data: path, record, offset
    │   ├── DecodeError                            an image that cannot be decoded
    │   ├── ChecksumError                          a record whose CRC32C does not match
    │   ├── TooManyErrors                          more bad samples than max_errors allows
    │   └── StoreError                             a store that is corrupt or incomplete
    │       ├── StoreNotFoundError (also FileNotFoundError)
    │       └── UnreadableError (also OSError)     a file that the system does not read
    ├── ScriptError                                a script run by doctor fails or does not train
    └── InternalError                              a bug in fastload: please report it

A message says where the error is (file, record, byte offset; or the argument), what was expected
and what was found, and at the end what to do. The last line of those that everybody meets in the
first hour is one line to type (``type_next``).
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from ._printable import URL, printable, without_credentials
from ._version import DISTRIBUTION


class FastloadError(Exception):
    """Base of every exception of this package. URLs in messages are without credentials."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(
            *(without_credentials(one) if isinstance(one, str) else one for one in arguments)
        )


class UsageError(FastloadError, ValueError):
    """An argument, or a combination of arguments, that cannot work."""


class MissingDependencyError(FastloadError, ImportError):
    """An optional package or the native core is missing; the message says how to install it."""


def type_next(line: str) -> str:
    """The last line of a message that a beginner may meet: what to type next, ready to copy."""
    return f"\ntype next: {line}"


def advise(error: Exception, line: str) -> None:
    """Note the line to type next below a message of torch's own, which stays as it is."""
    if sys.version_info >= (3, 11):
        error.add_note(type_next(line).strip())


FIXED_SIZE = "transform=T.Compose([T.RandomResizedCrop(224), T.ToTensor()])"
"""The line that makes all images one size."""

COLOR = 'image = Image.open(path).convert("RGB")'
"""The line that gives all images three channels."""


def install(extra: str) -> str:
    """The command that installs an extra of fastload, for messages."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def needed(module: str, message: str) -> ModuleType:
    """An optional module. Raises MissingDependencyError with ``message`` if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(message) from error


class ScriptError(FastloadError):
    """A training script run by ``fastload doctor`` failed, or has no training loop.

    Attributes:
        where: ``file:line`` of the script's code at which it failed, or "".
    """

    def __init__(self, message: str, *, where: str = "") -> None:
        self.where = where
        super().__init__(message)


class DataError(FastloadError):
    """An error in the data.

    Attributes:
        path: file that holds the data, or its URL without credentials; None without a file.
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
        self.message = message = without_credentials(message)
        self.path = path = without_credentials(path) if path and URL.match(path) else path
        self.record = record
        self.offset = offset
        # Names in the message may come from the data, with control characters for a terminal.
        message = printable(message, keep="\n")
        where = [repr(path)] if path is not None else []
        where += [f"record {record}"] if record is not None else []
        where += [f"byte offset {offset}"] if offset is not None else []
        super().__init__(f"{', '.join(where)}: {message}" if where else message)

    def at(
        self, *, path: str | None = None, record: int | None = None, offset: int | None = None
    ) -> DataError:
        """This error with its place completed: arguments fill attributes that are None."""
        path = path if self.path is None else self.path
        record = record if self.record is None else self.record
        offset = offset if self.offset is None else self.offset
        if (path, record, offset) == (self.path, self.record, self.offset):
            return self
        placed = type(self)(self.message, path=path, record=record, offset=offset)
        placed.__cause__ = self.__cause__
        return placed

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.path, self.record, self.offset)


def _rebuild(
    cls: type[DataError],
    message: str,
    path: str | None,
    record: int | None,
    offset: int | None,
) -> DataError:
    """Rebuild a DataError in another process, with its place."""
    return cls(message, path=path, record=record, offset=offset)


class DecodeError(DataError):
    """An image that cannot be decoded."""


class ChecksumError(DataError):
    """A record whose CRC32C differs from the one written with it."""


class TooManyErrors(DataError):
    """More samples of an epoch could not be read than ``max_errors`` allows."""


class StoreError(DataError):
    """A store that is corrupt, incomplete, or of an unsupported version."""


class StoreNotFoundError(StoreError, FileNotFoundError):
    """No store under this path."""


class UnreadableError(StoreError, OSError):
    """A record whose file the system does not read: no permission, a folder, a broken disk.

    Also an OSError, as where torchvision opens the file.
    """


class InternalError(FastloadError):
    """A bug in fastload. Please report it with the message."""


def sample_error(
    error: Exception,
    *,
    path: str | None = None,
    record: int | None = None,
    offset: int | None = None,
) -> DataError:
    """An error raised while reading or decoding a sample, as a DataError with the sample's place.

    Every engine and ``pack`` convert errors here, because libraries raise errors of any type
    (NotImplementedError, struct.error, MemoryError ...) and ``on_error`` handles DataErrors. Errors
    raised by the user's own code are not converted.

    Args:
        error: the error. A DataError keeps its type and its place.
        path, record, offset: place of the sample.

    Raises:
        FastloadError: ``error``, if it is not about data: misuse, or a bug.
    """
    if isinstance(error, DataError):
        return error.at(path=path, record=record, offset=offset)
    if isinstance(error, FastloadError):
        raise error
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    failure = DecodeError(
        f"the sample cannot be made: {reason}", path=path, record=record, offset=offset
    )
    failure.__cause__ = error
    return failure
