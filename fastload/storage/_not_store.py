"""Files that are no store: which of them ``pack`` reads, and what to type next.

``pack`` reads lists, and MNIST's and CIFAR's files, which it knows by their names.
"""

from __future__ import annotations

import os
import re
import shlex

from ..errors import type_next
from ._mapped import compressed_by
from .folder import is_image

LISTS = (".csv", ".tsv", ".jsonl", ".ndjson")
IDX = re.compile(r"(.*)images[.-]idx3-ubyte(\.gz)?$")
CIFAR = re.compile(r"(data_batch(_\d)?(\.bin)?|test_batch(\.bin)?|(train|test)(\.bin)?)$")
CIFAR_FOLDERS = ("cifar-10-batches-py", "cifar-10-batches-bin", "cifar-100-python",
                 "cifar-100-binary")  # fmt: skip
CIFAR_TARS = ("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz", "cifar-100-python.tar.gz",
              "cifar-100-binary.tar.gz")  # fmt: skip


def is_packable(path: str) -> bool:
    """Whether ``pack`` reads the file ``path``, which is no store."""
    above, name = os.path.split(path)
    return (
        name.endswith(LISTS)
        or IDX.match(name) is not None
        or name in CIFAR_TARS
        or (os.path.basename(above) in CIFAR_FOLDERS and CIFAR.match(name) is not None)
    )


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
