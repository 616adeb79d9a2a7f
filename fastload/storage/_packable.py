"""The files that only ``pack`` reads, by their names: lists, and MNIST's and CIFAR's files."""

from __future__ import annotations

import os
import re

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
