"""Requests through fsspec: what obstore does not read, such as ``hf://`` and ``ftp://``.

The object's version is compared when it is opened. fsspec has no ranges that a changed object
refuses, so a change while it is read shows only in the records' checksums.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import fsspec
from fsspec.registry import known_implementations

from ...errors import MissingDependencyError, StoreError, UsageError, type_next
from .options import secrets_of
from .service import OBSTORE, Permanent, RemoteObject, Service, what_to_check
from .urls import RemoteUrl, redacted

_TAGS = (
    *("ETag", "etag", "sha256", "blob_id", "xet_hash", "mtime"),
    *("created", "last_modified", "LastModified", "modified", "modify"),
)
# One connection, whose answers would be mixed up if two threads asked.
_ONE_AT_A_TIME = ("ftp", "sftp", "ssh", "smb")
_REFUSED = (400, 401, 403)  # statuses of HTTP: the same request would be refused again
_T = TypeVar("_T")


def file_system(
    url: RemoteUrl, options: Mapping[str, Any], **own: Any
) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system of ``url``, and the path in it; ``own`` are options that hold no secrets."""
    secrets = secrets_of(options)
    try:
        system, path = fsspec.core.url_to_fs(url.text, **own, **options)
    except ImportError as error:  # fsspec says which package the protocol needs
        described = known_implementations.get(url.scheme, {})
        package = str(described.get("class", "fsspec")).partition(".")[0]
        line = type_next(f"pip install {package}") if package != "fsspec" else ""
        only = url.scheme in OBSTORE  # packed stores are read without it
        what = " (folders, lists and destinations need it, packed stores do not)" if only else ""
        raise MissingDependencyError(f"{url.shown!r}: {error}{what}{line}") from error
    except (ValueError, TypeError) as error:  # TypeError: an option that it does not know
        raise UsageError(f"{url.shown!r}: {redacted(str(error), url, secrets)}") from None
    except Exception as error:  # noqa: BLE001 - some connect here, and raise anything
        said = redacted(f"{type(error).__name__}: {error}", url, secrets)
        raise StoreError(
            f"it cannot be reached: {said}; {what_to_check(url)}", path=url.shown
        ) from None
    return system, str(path)


class FsspecService(Service):
    """One file system of fsspec: that of ``url``."""

    def __init__(self, url: RemoteUrl, options: Mapping[str, Any]) -> None:
        self._lock: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        own: dict[str, Any] = {}
        if url.scheme in _ONE_AT_A_TIME:
            self._lock, own = threading.Lock(), {"skip_instance_cache": True}
        self._system, _ = file_system(url, options, **own)
        # File systems are shared by the whole process, and remember what folders had.
        self._system.invalidate_cache()

    def _path(self, url: RemoteUrl, version: str) -> str:
        return str(self._system._strip_protocol(url.text))

    def _version(self, url: RemoteUrl) -> str:
        """What ``RemoteObject.version`` is of files that are there now."""
        return ""

    async def look(self, url: RemoteUrl) -> RemoteObject:
        def look() -> RemoteObject:
            version = self._version(url)
            return self._object(url, self._system.info(self._path(url, version)), version)

        return await self._asked(look)

    def _object(self, url: RemoteUrl, info: Mapping[str, Any], version: str) -> RemoteObject:
        if info.get("type") == "directory":
            raise FileNotFoundError(url.shown)
        tag = next((str(info[key]) for key in _TAGS if info.get(key)), None)
        if tag is None:
            raise Permanent(
                f"fsspec gives none of {', '.join(_TAGS)}, so nobody could tell if the file changed"
            )
        return RemoteObject(url, int(info["size"]), tag, version)

    async def read(self, what: RemoteObject, start: int, stop: int) -> bytes:
        path = self._path(what.url, what.version)
        data: bytes = await self._asked(lambda: self._system.cat_file(path, start=start, end=stop))
        return data

    async def below(self, url: RemoteUrl) -> Sequence[RemoteObject]:
        def below() -> list[RemoteObject]:
            version = self._version(url)
            prefix = self._path(url, version)
            folder = prefix if url.text.endswith("/") else prefix.rpartition("/")[0]
            begin, length = url.text.rstrip("/"), len(prefix.rstrip("/"))
            return [
                self._object(RemoteUrl(begin + path[length:]), info, version)
                for path, info in self._system.find(folder, detail=True).items()
                if path.startswith(prefix)
            ]

        return await self._asked(below)

    async def _asked(self, call: Callable[[], _T]) -> _T:
        def locked() -> _T:
            with self._lock:
                return call()

        try:
            return await asyncio.get_running_loop().run_in_executor(None, locked)
        except Exception as error:
            if isinstance(error, PermissionError) or _status(error) in _REFUSED:
                raise Permanent(str(error)) from error
            raise


class HubService(FsspecService):
    """The files of ``hf://``; ``RemoteObject.version`` is the commit.

    A branch may move while it is read, and a request does not say so. So files are read at the
    commit that their branch had when the store was opened: a commit never changes.
    """

    def __init__(self, url: RemoteUrl, options: Mapping[str, Any]) -> None:
        super().__init__(url, options)
        self._commits: dict[tuple[str, str, str], str] = {}

    def _resolved(self, url: RemoteUrl) -> Any:  # of huggingface_hub, for a repository or a bucket
        from huggingface_hub.errors import RepositoryNotFoundError

        try:
            return self._system.resolve_path(super()._path(url, ""))
        except FileNotFoundError as error:
            if not isinstance(error.__cause__, RepositoryNotFoundError):
                raise
            raise Permanent(
                "the Hub has no such repository, or it is a private one, which needs a token"
            ) from None

    def _version(self, url: RemoteUrl) -> str:
        from huggingface_hub import HfApi

        place = self._resolved(url)
        if not hasattr(place, "repo_id"):
            return ""  # a bucket, which has no commits
        key = (place.repo_type, place.repo_id, place.revision)
        if key not in self._commits:
            api = HfApi(endpoint=self._system.endpoint, token=self._system.token)
            info = api.repo_info(place.repo_id, repo_type=place.repo_type, revision=place.revision)
            self._commits[key] = str(info.sha)
        return self._commits[key]

    def _path(self, url: RemoteUrl, version: str) -> str:
        if not version:
            return super()._path(url, version)
        place = self._resolved(url)
        kind = "" if place.repo_type == "model" else f"{place.repo_type}s/"
        return f"{kind}{place.repo_id}@{version}/{place.path_in_repo}".rstrip("/")


def service(url: RemoteUrl, options: Mapping[str, Any]) -> Service:
    """The one for a scheme."""
    return (HubService if url.scheme == "hf" else FsspecService)(url, options)


def _status(error: Exception) -> int | None:
    """The status of HTTP that libraries keep in their errors, each in its own place."""
    response = getattr(error, "response", None)
    for status in (getattr(response, "status_code", None), getattr(error, "status", None)):
        if isinstance(status, int):
            return status
    return None
