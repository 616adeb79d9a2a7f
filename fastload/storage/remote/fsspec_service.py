"""Requests through fsspec: what obstore does not read, such as ``hf://``.

The object's version is compared when it is opened. fsspec has no ranges that a changed object
refuses, so a change while it is read shows only in the records' checksums.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import fsspec

from ...errors import MissingDependencyError, UsageError
from .service import Permanent, RemoteObject, Service
from .urls import RemoteUrl, redacted

_TAGS = ("ETag", "etag", "sha256", "blob_id", "xet_hash", "mtime", "created", "last_modified")
_T = TypeVar("_T")


class FsspecService(Service):
    """One file system of fsspec.

    Args:
        url: of any file in it.
        options: of the file system.
    """

    def __init__(self, url: RemoteUrl, options: Mapping[str, Any]) -> None:
        try:
            self._system, _ = fsspec.core.url_to_fs(url.text, **options)
        except ImportError as error:  # fsspec says which package the protocol needs
            raise MissingDependencyError(f"{url.shown!r}: {error}") from error
        except (ValueError, TypeError) as error:
            said = redacted(str(error), url, tuple(map(str, options.values())))
            raise UsageError(f"{url.shown!r}: {said}") from None

    def _path(self, url: RemoteUrl) -> str:
        return str(self._system._strip_protocol(url.text))

    async def look(self, url: RemoteUrl) -> RemoteObject:
        return self._object(url, await _asked(lambda: self._system.info(self._path(url))))

    def _object(self, url: RemoteUrl, info: Mapping[str, Any]) -> RemoteObject:
        if info.get("type") == "directory":
            raise FileNotFoundError(url.shown)
        tag = next((str(info[key]) for key in _TAGS if info.get(key)), None)
        if tag is None:
            raise Permanent(
                f"fsspec gives none of {', '.join(_TAGS)}, so nobody could tell if the file changed"
            )
        return RemoteObject(url, int(info["size"]), tag)

    async def read(self, what: RemoteObject, start: int, stop: int) -> bytes:
        path = self._path(what.url)
        data: bytes = await _asked(lambda: self._system.cat_file(path, start=start, end=stop))
        return data

    async def below(self, url: RemoteUrl) -> Sequence[RemoteObject]:
        prefix = self._path(url)
        folder = prefix if url.text.endswith("/") else prefix.rpartition("/")[0]
        listed = await _asked(lambda: self._system.find(folder, detail=True))
        root = url.text[: len(url.text.rstrip("/")) - len(prefix)]
        return [
            self._object(RemoteUrl(root + path), info)
            for path, info in listed.items()
            if path.startswith(prefix)
        ]


async def _asked(call: Callable[[], _T]) -> _T:
    """The result of a call that waits, made in a thread."""
    try:
        return await asyncio.get_running_loop().run_in_executor(None, call)
    except PermissionError as error:
        raise Permanent(str(error)) from error
