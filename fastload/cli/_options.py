"""Options that several commands have, and what they share beside them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, get_args

import click

from .._base import byte_sizes
from ..errors import UsageError
from ..hints import Encoding, OnPackError

if TYPE_CHECKING:
    from ..storage import Store


def size_of(
    ctx: click.Context | None, param: click.Parameter | None, value: str | None
) -> int | None:
    """The bytes of an option such as 256MB or 1.5GiB."""
    if value is None:
        return None
    nbytes = byte_sizes.parse(value)
    if nbytes is None:
        raise click.BadParameter(f"expected a size such as 256MB, got {value!r}", ctx, param)
    return nbytes


def _storage_options(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
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


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
quiet = click.option("-q", "--quiet", is_flag=True, help="No progress and no summary.")
COUNT = click.IntRange(1, 1_000_000)  # of threads or files
workers = click.option("--workers", type=COUNT, help="Threads. [default: one per CPU]")
storage_options = click.option(
    "--storage-option", "storage_options", metavar="NAME=VALUE", multiple=True,
    callback=_storage_options,
    help="For a URL: an option of obstore or fsspec, such as region=eu-central-1; may be "
    "repeated. Others see it in the list of processes: leave credentials to the environment.",
)  # fmt: skip
shards = click.option("--shards", type=COUNT, help="Write this many files of equal counts.")
shard_size = click.option(
    "--shard-size", "shard_nbytes", callback=size_of, metavar="SIZE",
    help="Write several files, of at most this size: 256MB.",
)  # fmt: skip
overwrite = click.option(
    "--overwrite", is_flag=True,
    help="Replace the store DESTINATION once the new one is complete.",
)  # fmt: skip

_OF_IMAGES = (
    click.option(
        "--encode", type=click.Choice(get_args(Encoding)),
        help="What a record holds: the file's bytes (keep), JPEGs without Huffman coding (dct: the "
        "same pixels, 1.3 times the size, decoded several times faster), or the image in another "
        "encoding. [default: keep; jpeg with --resize]",
    ),
    click.option(
        "--resize", metavar="SIZE",
        help="256: scale the shorter side to 256 pixels, as torchvision's Resize(256). "
        "longest:256: scale the longer side down to 256. 224x160: width and height. "
        "crop:224: scale the shorter side to 224 and crop the central square.",
    ),
    click.option(
        "--quality", type=click.IntRange(1, 100),
        help="Of JPEGs that are encoded: --encode jpeg, --resize. [default: 95]",
    ),
    click.option("--exif", is_flag=True, help="Rotate images by their EXIF orientation."),
    click.option(
        "--image-column", metavar="NAME",
        help="For a list: the column of paths. [default: path, filename, image ...]",
    ),
    click.option(
        "--label-column", metavar="NAME",
        help="For a list, a dataset, the fields of a store, or the JSON beside images: the label. "
        "[default: label, class, target ...] 'cat,dog' or 'is_*': several columns of 0 and 1.",
    ),
    click.option(
        "--file-column", "file_columns", metavar="NAME", multiple=True,
        help="For a list: a column of paths whose files become a field, such as mask.",
    ),
    click.option(
        "--masks", type=click.Path(), metavar="PATH",
        help="For a folder of images: the folder of their masks, of the same names; or the path of "
        "--annotations, whose polygons are drawn.",
    ),
    click.option(
        "--annotations", type=click.Path(), metavar="PATH",
        help="For a folder of images: their boxes and classes: COCO's .json, a folder of VOC's "
        ".xml or YOLO's .txt, or a .txt of VOC's ImageSets.",
    ),
    click.option(
        "--on-error", type=click.Choice(get_args(OnPackError)), default="raise", show_default=True,
        help="For a file that is truncated or not an image: stop with an error, or skip and list "
        "it.",
    ),
    click.option(
        "--check", is_flag=True,
        help="Decode every image before it is stored, to find damage after an intact header.",
    ),
)  # fmt: skip


def of_images(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` the options about the images that are packed, and what lies beside them."""
    for option in reversed(_OF_IMAGES):
        command = option(command)
    return command


def progress(quiet: bool, as_json: bool) -> bool | None:
    """Whether to show progress on stderr: beside JSON only on a terminal."""
    return False if quiet else None if as_json else True


def kept_for_json(as_json: bool) -> AbstractContextManager[object]:
    """Redirects what the user's modules print to stderr: stdout is for one JSON document."""
    return contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()


def opened(path: str, storage_options: dict[str, str | bool] | None) -> str | Store:
    """``path``, or the store at this URL, opened with options."""
    if storage_options is None:
        return path
    from ..storage import open_store
    from ..storage._local import is_url
    from ..storage.remote.options import RemoteOptions

    if not is_url(path):
        raise UsageError(f"--storage-option: expected the URL of a store, got {path!r}")
    return open_store(path, remote=RemoteOptions(storage_options=storage_options))
