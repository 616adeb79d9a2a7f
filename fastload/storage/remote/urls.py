"""URLs of objects, and how messages show them: without user names, passwords and queries."""

from __future__ import annotations

import dataclasses
import re

from ..._printable import user_of, without_credentials
from ...errors import UsageError

WEB = ("http", "https")  # whose URLs have queries and fragments


@dataclasses.dataclass(frozen=True)
class RemoteUrl:
    """The URL of an object or a folder.

    Example:
        >>> RemoteUrl("https://me:secret@host/imgs.tar?token=1").shown
        'https://host/imgs.tar'

    ``text`` is as it was given; it may hold credentials, so only requests use it.
    """

    text: str = dataclasses.field(repr=False)

    @property
    def shown(self) -> str:
        """The URL without credentials, for messages and names."""
        shown = without_credentials(self.text)
        return re.split("[?#]", shown, maxsplit=1)[0] if self.scheme in WEB else shown

    @property
    def scheme(self) -> str:
        """Such as "s3", in lower case."""
        return self.text.split("://", 1)[0].lower()

    @property
    def root(self) -> str:
        """Scheme and bucket, or host, with what it may hold of credentials; "": none is named."""
        host = re.split("[/?#]", self.text.partition("://")[2], maxsplit=1)[0]
        return f"{self.scheme}://{host}" if host else ""

    @property
    def query(self) -> str:
        """What follows a question mark; it may hold a signature."""
        if self.scheme not in WEB:
            return ""
        return self.text.split("#", 1)[0].partition("?")[2]

    @property
    def name(self) -> str:
        return self.shown.rstrip("/").rsplit("/", 1)[-1]

    def refuse_query(self) -> None:
        if self.query:
            raise UsageError(
                f"{self.shown!r}: expected a URL without a query, because its parts and its "
                "sidecar have URLs, too; give the credentials in storage_options, or use a local "
                "file"
            )

    def sibling(self, name: str) -> RemoteUrl:
        return RemoteUrl(f"{self.text.rstrip('/').rsplit('/', 1)[0]}/{name}")


def redacted(text: str, url: RemoteUrl, secrets: tuple[str, ...] = ()) -> str:
    """``text`` of another library's error, on one line, without credentials and ``secrets``."""
    text = " ".join(text.split()).split(" Debug source:")[0]  # obstore's
    before, _, behind = url.text.partition("://")
    user, _, password = user_of(before, behind).removesuffix("@").partition(":")
    # A library that ends the host at the slash of a password shows the part before it.
    parts = [f"{user}:{password}", password, f"{user}:{password.partition('/')[0]}"]
    parts += password.split("/")
    for secret in (*(parts if password else ()), url.query, *secrets):
        if len(secret) >= 4:  # shorter values are "true", "1" or a region's part
            text = text.replace(secret, "***")
    return without_credentials(text)
