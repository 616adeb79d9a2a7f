"""What to type next where a file is no store: how to make one of it."""

from __future__ import annotations

import os
import shlex

from ..errors import type_next
from ._mapped import compressed_by
from ._packable import is_packable
from .folder import is_image


def no_store(path: str) -> str:
    """The end of a message about the file ``path``, which is no store: what to type next."""
    if is_packable(path):
        return f"; it has to be packed first{type_next(_pack(path))}"
    if is_image(path):
        line = f"fastload info {shlex.quote(os.path.dirname(path))}"
        return f"; an image is read as part of its folder{type_next(line)}"
    tool = compressed_by(path)
    if tool is not None:
        return f"; a file compressed by {tool} has to be packed first{type_next(_pack(path))}"
    if path.lower().endswith(".zip"):
        folder = path[: -len(".zip")]
        line = f"unzip -n {shlex.quote(path)} -d {shlex.quote(folder)} && {_pack(folder)}"
        return f"; its files have to be unpacked first{type_next(line)}"
    line = "fastload pack mymodule:MyDataset imgs.lmdb"
    return (
        "; no format that fastload reads: pack the images that it was made of, a list of them "
        f"(.csv), or a Dataset that reads it{type_next(line)}"
    )


def _pack(path: str) -> str:
    return f"fastload pack {shlex.quote(path)} imgs.lmdb"
