"""Which objects a URL stands for: a file and its sidecar, a set of shards, a pattern, a folder."""

from __future__ import annotations

import concurrent.futures
import fnmatch
import os
import re
from collections.abc import Sequence

from ...errors import StoreError, StoreNotFoundError
from .._shards import expand, whole_set
from .._sidecar import SUFFIX
from . import requests
from .requests import Origin
from .service import RemoteObject
from .urls import WEB, RemoteUrl

_MAGIC = re.compile(r"[*?\[]")
_MOST = 1_000_000


class Finder:
    """Looks for objects."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._unlisted = ""  # why

    def find(self, url: RemoteUrl) -> dict[str, RemoteObject]:
        """Path below the store's folder -> object, the sidecar included.

        A set of shards that has a manifest is found as that alone: ``shards`` completes it.
        """
        if "{" in url.text:
            urls = [RemoteUrl(text) for text in expand(url.text)]
            return self._several(urls, [each.name for each in urls])
        if _MAGIC.search(url.shown):
            return self._matching(url)
        urls = [] if url.text.endswith("/") else [url, RemoteUrl(url.text + SUFFIX)]
        found = [_found(asked) for asked in [self._look(each) for each in urls]]
        objects = {what.url.name: what for what in found if what is not None}
        return objects or self._folder(url) or self._numbered(url)

    def shards(self, url: RemoteUrl, names: Sequence[str]) -> dict[str, RemoteObject]:
        """The files that a manifest lists, by their path below its folder."""
        return self._several([url.sibling(name) for name in names], names)

    def _look(self, url: RemoteUrl) -> concurrent.futures.Future[RemoteObject]:
        return requests.of_process().call(self._origin.service.look, url, self._origin)

    def _below(self, url: RemoteUrl) -> Sequence[RemoteObject]:
        service = self._origin.service
        return requests.of_process().call(service.below, url, self._origin).result()

    def _several(self, urls: Sequence[RemoteUrl], names: Sequence[str]) -> dict[str, RemoteObject]:
        if len(urls) > _MOST:
            raise StoreError(f"expected a set of up to {_MOST} files", path=urls[0].shown)
        asked = [self._look(url) for url in urls]
        objects: dict[str, RemoteObject] = {}
        for name, url, answer in zip(names, urls, asked, strict=True):
            there = _found(answer)
            if there is None:
                raise StoreNotFoundError("a file of the set is missing", path=url.shown)
            objects[name] = there
        return objects

    def _matching(self, url: RemoteUrl) -> dict[str, RemoteObject]:
        if url.scheme in WEB:
            raise StoreError(
                "expected the names of the files, as a web server lists none: give their numbers "
                "in braces, such as imgs-{000..012}.tar",
                path=url.shown,
            )
        begin = RemoteUrl(_MAGIC.split(url.text)[0])
        pattern = url.shown
        objects = {
            what.url.name: what
            for what in self._below(begin)
            if fnmatch.fnmatchcase(what.url.shown, pattern) and not what.url.name.endswith(SUFFIX)
        }
        if not objects:
            raise StoreNotFoundError("expected files that match, found none", path=url.shown)
        return objects

    def _folder(self, url: RemoteUrl) -> dict[str, RemoteObject]:
        folder = url.text.rstrip("/") + "/"
        name = url.name
        return {
            f"{name}/{what.url.text[len(folder) :]}": what
            for what in self._listed(RemoteUrl(folder))
            if ".." not in what.url.text[len(folder) :].split("/")
        }

    def _listed(self, url: RemoteUrl) -> Sequence[RemoteObject]:
        """``_below``, or nothing: web servers list no folders in a way that all of them share."""
        if url.scheme in WEB:
            return ()
        try:
            return self._below(url)
        except StoreError as error:
            self._unlisted = f", nor in its folder ({error.message})"
            return ()

    def _numbered(self, url: RemoteUrl) -> dict[str, RemoteObject]:
        stem, suffix = os.path.splitext(url.text)
        there = {what.url.text: what for what in self._listed(RemoteUrl(f"{stem}-"))}
        names = whole_set(there, stem, suffix)
        if not names:
            raise StoreNotFoundError(
                f"expected a store, found nothing{self._unlisted}: check the URL",
                path=url.shown,
            )
        missing = [RemoteUrl(name).shown for name in names if name not in there]
        if missing:
            raise StoreNotFoundError("a file of the set is missing", path=missing[0])
        return {there[name].url.name: there[name] for name in names}


def _found(asked: concurrent.futures.Future[RemoteObject]) -> RemoteObject | None:
    # Not caught: the traceback of an error in a future keeps all who wait for it.
    return None if isinstance(asked.exception(), StoreNotFoundError) else asked.result()
