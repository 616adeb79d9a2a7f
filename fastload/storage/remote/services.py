"""Which service reads a URL.

Nothing of HTTP or of signing is ours: obstore speaks to object stores and to web servers, fsspec to
everything else (``hf://``, ``ftp://`` ...).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import MissingDependencyError, UsageError, install
from .service import Service
from .urls import RemoteUrl

OBSTORE = ("s3", "s3a", "gs", "az", "adl", "abfs", "abfss", "azure", "http", "https")
"""Schemes that obstore reads."""


def service_of(url: RemoteUrl, options: Mapping[str, Any]) -> Service:
    """What sends requests for ``url``."""
    if url.scheme in OBSTORE:
        if url.query:
            raise UsageError(
                f"{url.shown!r}: expected a URL without a query, because its parts and its sidecar "
                "are read too; give the credentials in storage_options, or fetch the file first"
            )
        try:
            from .obstore_service import ObstoreService
        except ImportError as error:
            raise MissingDependencyError(
                f"{url.scheme}:// needs obstore: {install('remote')}"
            ) from error
        return ObstoreService(url, options)
    try:
        from .fsspec_service import FsspecService
    except ImportError as error:
        raise MissingDependencyError(
            f"{url.scheme}:// needs fsspec: {install('remote')}"
        ) from error
    if url.scheme == "hf":
        from .hub_service import HubService

        return HubService(url, options)
    return FsspecService(url, options)
