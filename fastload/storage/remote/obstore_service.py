"""Requests through obstore: S3, Google Cloud Storage, Azure, and web servers that serve ranges."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

import obstore
from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import from_url

from ...errors import UsageError
from .options import secrets_of
from .service import Changed, Permanent, RemoteObject, Service, what_to_check
from .urls import WEB, RemoteUrl, redacted

_NEVER_LATER = (
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)

# Of listings and of requests for a role, whose errors have no type: no such bucket, no permission.
_REFUSED = re.compile(r"status code: 40[0134]\b")
_ROLE = "169.254.169.254"  # where machines in a cloud ask for theirs

# obstore's names, by scheme. In the environment those with a prefix are the same in capitals.
_S3 = ("endpoint", "endpoint_url", "aws_endpoint", "aws_endpoint_url", "aws_endpoint_url_s3")
_GOOGLE = ("base_url", "google_base_url")
_AZURE = ("endpoint", "azure_endpoint", "azure_storage_endpoint")
_ENDPOINTS = {"s3": _S3, "s3a": _S3, "gs": _GOOGLE}

# ``requests.py`` repeats requests, for every service in the same way: it counts them, and it can
# send a second one before the first one has failed.
_NO_RETRIES: dict[str, Any] = {"max_retries": 0}
# That a connection hangs is seen by ``requests.py``; this only frees what it has left behind.
_CLIENT: dict[str, Any] = {"timeout": "300s", "connect_timeout": "10s"}


class ObstoreService(Service):
    """One bucket, container or web server: that of ``url``.

    "client_options" among the options are for its client.
    """

    def __init__(self, url: RemoteUrl, options: Mapping[str, Any]) -> None:
        self._root = url.root
        if not self._root:
            raise UsageError(f"{url.shown!r}: expected SCHEME://BUCKET/PATH or SCHEME://HOST/PATH")
        options = {"retry_config": _NO_RETRIES, **options}
        client = {**_CLIENT, **options.pop("client_options", {})}
        endpoint = _endpoint(url, options)
        if endpoint and "://" not in endpoint:  # obstore would print a panic of Rust
            raise UsageError(
                f"{url.shown!r}: expected http://HOST:PORT or https://HOST as the endpoint in the "
                f"environment or in storage_options, got {endpoint.rpartition('@')[2]!r}"
            )
        if url.scheme == "http" or endpoint.startswith("http://"):
            client.setdefault("allow_http", True)
        try:
            # The types of obstore name each option of each store; these come from the user.
            self._store: Any = from_url(self._root, client_options=client, **options)  # type: ignore[call-overload]
        except (BaseError, ValueError, TypeError) as error:
            said = redacted(str(error), url, secrets_of(options))
            todo = f"; {what_to_check(url)}" if "must be specified" in said else ""  # the account
            raise UsageError(
                f"{url.shown!r}: obstore refuses these storage_options or this URL: {said}{todo}"
            ) from None

    def _path(self, url: RemoteUrl) -> str:
        path = url.text[len(self._root) :].lstrip("/")
        return unquote(path.split("#", 1)[0]) if url.scheme in WEB else path

    async def look(self, url: RemoteUrl) -> RemoteObject:
        meta = await _asked(obstore.head_async(self._store, self._path(url)))
        return RemoteObject(url, int(meta["size"]), _tag(meta))

    async def read(self, what: RemoteObject, start: int, stop: int) -> memoryview:
        options: dict[str, Any] = {"range": (start, stop)}
        if what.tag.startswith('"'):  # not a weak one, which If-Match never matches
            options["if_match"] = what.tag
        answer = await _asked(
            obstore.get_async(self._store, self._path(what.url), options=options)  # type: ignore[arg-type]
        )
        if _tag(answer.meta) != what.tag or answer.meta["size"] != what.nbytes:
            raise Changed
        data = await _asked(answer.bytes_async())
        return memoryview(data)

    async def below(self, url: RemoteUrl) -> Sequence[RemoteObject]:
        prefix = self._path(url)
        folder = prefix.rpartition("/")[0]
        scheme = f"{self._root.rstrip('/')}/"
        objects: list[RemoteObject] = []

        async def gather() -> None:
            async for page in obstore.list(self._store, folder or None, chunk_size=1000):
                for meta in page:
                    path = meta["path"]
                    if path.startswith(prefix):
                        place = quote(path) if url.scheme in WEB else path
                        url_ = RemoteUrl(scheme + place)
                        objects.append(RemoteObject(url_, int(meta["size"]), _tag(meta)))

        await _asked(gather())
        return objects


service = ObstoreService


def _endpoint(url: RemoteUrl, options: Mapping[str, Any]) -> str:
    """Where the user has said that the object store is, such as MinIO; or ""."""
    names = () if url.scheme in WEB else _ENDPOINTS.get(url.scheme, _AZURE)
    given = (options.get(name) for name in names)
    prefixed = (name for name in names if name.startswith(("aws_", "google_", "azure_")))
    from_environment = (os.environ.get(name.upper()) for name in prefixed)
    return str(next((endpoint for endpoint in (*given, *from_environment) if endpoint), ""))


def _tag(meta: Mapping[str, Any]) -> str:
    """The ETag, which is in quotation marks; else when the object was modified."""
    tag = meta.get("e_tag")
    if tag:
        # Azure lists it without quotation marks, and gives it with them for a single object.
        return str(tag) if str(tag).startswith(('"', "W/")) else f'"{tag}"'
    modified = meta.get("last_modified")
    if modified is None or modified.timestamp() == 0:  # obstore's value for a missing header
        raise Permanent(
            "the server gives neither an ETag nor a Last-Modified, so nobody could tell if the "
            "object changed"
        )
    return str(modified)


async def _asked(request: Any) -> Any:
    """The result of a coroutine of obstore, its errors sorted into permanent ones and others."""
    try:
        return await request
    except (asyncio.CancelledError, FileNotFoundError):
        raise
    except PreconditionError as error:
        raise Changed from error
    except (*_NEVER_LATER, ValueError) as error:
        raise Permanent(f"{type(error).__name__}: {error}") from error
    except BaseError as error:
        said = str(error)
        if _ROLE in said:
            said = f"no credentials were found, nor has this machine a role: {said}"
        raise (Permanent if _REFUSED.search(said) else type(error))(said) from error
