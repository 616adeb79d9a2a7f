"""RemoteOptions: how a store at a URL is read and where it is cached."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from ..._base import byte_sizes
from ...errors import UsageError
from .._local import local_path


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemoteOptions:
    """How URLs are read.

    Example:
        >>> RemoteOptions(cache_dir="/nvme/fastload", disk_limit="200GB").limit
        200000000000

    Attributes:
        storage_options: for obstore or fsspec, such as ``{"region": "eu-central-1"}``. Values may
            be secret, so they are never shown.
        cache_dir: a folder on a local disk; None: ``fastload`` in the user's cache folder.
        disk_limit: bytes that the cache may take on the disk, such as "200GB"; None: half of what
            is free there. 0: nothing is kept on a disk.

    Raises:
        UsageError: another type, or no size.
    """

    storage_options: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)
    cache_dir: str | os.PathLike[str] | None = None
    disk_limit: int | str | None = None

    def __post_init__(self) -> None:
        options, folder = self.storage_options, self.cache_dir
        if options is not None and not (
            isinstance(options, Mapping) and all(isinstance(name, str) for name in options)
        ):
            raise UsageError(
                f"storage_options: expected a dict of options by name, got {type(options).__name__}"
            )
        try:
            _ = self.folder
        except (UsageError, TypeError):
            raise UsageError(f"cache_dir: expected a local folder, got {folder!r}") from None
        _ = self.limit  # raises for what is no size

    @property
    def limit(self) -> int | None:
        """``disk_limit`` in bytes; None where it was not given."""
        limit = self.disk_limit
        if limit is None:
            return None
        return 0 if str(limit).strip() == "0" else byte_sizes.argument("disk_limit", limit)

    @property
    def folder(self) -> str:
        """The cache's folder, absolute."""
        if self.cache_dir is not None:
            return local_path(self.cache_dir)
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        return os.path.join(base, "fastload")

    def secrets(self) -> tuple[str, ...]:
        """Values that must not be shown: those of options that are not known to be harmless."""
        return secrets_of(self.storage_options or {})


_HARMLESS = (
    "region",
    "endpoint",
    "base_url",
    "bucket",
    "allow_http",
    "virtual",
    "anon",
    "skip_signature",
)


def secrets_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Values of ``storage_options`` that must not be shown, those inside of dicts too."""
    secrets: list[str] = []
    for name, value in options.items():
        if isinstance(value, Mapping):
            secrets += secrets_of(value)
        elif not any(word in name.lower() for word in _HARMLESS):
            secrets.append(str(value))
    return tuple(secrets)
