"""Requests to the Hugging Face Hub, through huggingface_hub's file system of fsspec.

A branch may move while it is read, and a request does not say so. So files are read at the commit
that their branch had when the store was opened: a commit never changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .fsspec_service import FsspecService
from .service import Permanent
from .urls import RemoteUrl


class HubService(FsspecService):
    """The files of ``hf://``; ``RemoteObject.version`` is the commit."""

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
            found = api.repo_info(place.repo_id, repo_type=place.repo_type, revision=place.revision)
            self._commits[key] = str(found.sha)
        return self._commits[key]

    def _path(self, url: RemoteUrl, version: str) -> str:
        if not version:
            return super()._path(url, version)
        place = self._resolved(url)
        kind = "" if place.repo_type == "model" else f"{place.repo_type}s/"
        return f"{kind}{place.repo_id}@{version}/{place.path_in_repo}".rstrip("/")
