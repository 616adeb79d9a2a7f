"""The contract of what sends requests, for sizes, listings and ranges of objects; one for each URL.

Nothing of HTTP or of signing is ours: obstore speaks to object stores and to web servers, fsspec to
everything else (``hf://``, ``ftp://`` ...).
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import install, needed
from .urls import RemoteUrl

OBSTORE = ("s3", "s3a", "gs", "az", "adl", "abfs", "abfss", "azure", "http", "https")
"""Schemes that obstore reads."""


_S3 = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_AZURE = "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
_GOOGLE = "GOOGLE_APPLICATION_CREDENTIALS"
_KEYS = {"s3": _S3, "s3a": _S3, "gs": _GOOGLE, "http": "", "https": "", "hf": "HF_TOKEN"}


def what_to_check(url: RemoteUrl) -> str:
    """The end of the message about a request that failed: what to do."""
    cloud = url.scheme in OBSTORE
    keys = _KEYS.get(url.scheme, _AZURE if cloud else "")
    named = f" ({keys})" if keys else ""
    public = "; a public bucket needs skip_signature=True (in fsspec, anon=True)"
    return (
        f"check the URL, the network, and the credentials in the environment{named} or in "
        f"storage_options{public if cloud and keys else ''}"
    )


class Permanent(Exception):
    """A request that would fail again: no permission, an option that is not known."""


class Changed(Permanent):
    """The object is not the one that was opened."""


@dataclasses.dataclass(frozen=True)
class RemoteObject:
    """One object as it was when it was opened.

    Attributes:
        tag: differs between its versions: the ETag, or when it was last modified.
        version: which one to ask for, where older ones stay there; else "".
    """

    url: RemoteUrl
    nbytes: int
    tag: str
    version: str = ""


class Service(abc.ABC):
    """Requests to one bucket, server or file system. Methods are called in one event loop.

    They raise FileNotFoundError for what is not there, ``Permanent`` for what need not be tried
    again, and anything else for what may succeed later.
    """

    @abc.abstractmethod
    async def look(self, url: RemoteUrl) -> RemoteObject:
        """Size and tag of an object."""

    @abc.abstractmethod
    async def read(self, what: RemoteObject, start: int, stop: int) -> bytes | memoryview:
        """All bytes from ``start`` up to ``stop``. Raises Changed if it was since ``look``."""

    @abc.abstractmethod
    async def below(self, url: RemoteUrl) -> Sequence[RemoteObject]:
        """All objects whose URL continues ``url``; it ends in "/" for a folder."""


def service_of(url: RemoteUrl, options: Mapping[str, Any]) -> Service:
    """What sends requests for ``url``."""
    url.refuse_query()
    name = "obstore" if url.scheme in OBSTORE else "fsspec"
    module = needed(
        f"{__package__}.{name}_service", f"{url.scheme}:// needs {name}: {install('remote')}"
    )
    service: Service = module.service(url, options)
    return service
