"""``--storage-option NAME=VALUE``, which commands that take URLs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..errors import UsageError

if TYPE_CHECKING:
    from ..storage import Store

_Command = TypeVar("_Command", bound=Callable[..., Any])


def parsed(
    ctx: click.Context | None, param: click.Parameter | None, values: tuple[str, ...]
) -> dict[str, str | bool] | None:
    """``("region=eu-west-1", "anon=true")`` as a dict; None without any."""
    found: dict[str, str | bool] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not name or not equals:
            shown = name or "nothing before ="  # what follows may be secret
            raise click.BadParameter(f"expected NAME=VALUE, got {shown!r}", ctx, param)
        found[name] = {"true": True, "false": False}.get(text.lower(), text)
    return found or None


def storage_options(command: _Command) -> _Command:
    """Add the option to a command, as the argument ``storage_options``."""
    option: Callable[[_Command], _Command] = click.option(
        "--storage-option",
        "storage_options",
        metavar="NAME=VALUE",
        multiple=True,
        callback=parsed,
        help="For a URL: an option of obstore or fsspec, such as region=eu-central-1; may be "
        "repeated. Others see it in the list of processes: leave credentials to the environment.",
    )
    return option(command)


def opened(path: str, storage_options: dict[str, str | bool] | None) -> str | Store:
    """``path``, or the store at this URL, opened with options.

    Raises:
        UsageError: options without a URL.
    """
    if storage_options is None:
        return path
    from ..storage import open_store
    from ..storage._local import is_url
    from ..storage.remote.options import RemoteOptions

    if not is_url(path):
        raise UsageError(f"--storage-option: expected the URL of a store, got {path!r}")
    return open_store(path, remote=RemoteOptions(storage_options=storage_options))
