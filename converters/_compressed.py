"""Compressed archives (.tar.gz, .tgz, .tfrecord.gz, .tar.zst ...) as sources.

They are decompressed into a temporary folder, which goes with the source; the next run deletes what
a killed one has left (``_turn.py``).
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import importlib
import lzma
import os
import shutil
import weakref
import zlib
from collections.abc import Callable
from typing import Any

from ..errors import MissingDependencyError, StoreError, install
from ..storage import open_store
from ..storage._mapped import compressed_by
from ._labels import Chosen
from ._store_source import StoreSource
from ._turn import scratch

_FORMATS = ("tar", "tfrecord", "recordio")  # what people compress


class CompressedSource(StoreSource):
    """The records of the archive ``inside``, which was decompressed from the file ``path``."""

    def __init__(self, path: str, inside: str, chosen: Chosen) -> None:
        store = open_store(inside)
        if store.format not in _FORMATS:
            raise StoreError(f"expected a compressed {' or '.join(_FORMATS)}, found {store.format}")
        super().__init__(store, chosen.label)
        self.path = path
        status = os.stat(path)
        version = path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, chosen.label
        self.identity = repr(version)

    def paths(self) -> list[str]:
        return [self.path]

    def where(self, index: int) -> str:
        return self.path

    def offset(self, index: int) -> None:
        """None: it would be that in the decompressed file."""


def compressed_source(path: str, chosen: Chosen) -> CompressedSource | None:
    """The records of ``path`` if it is a compressed file, else None."""
    tool = compressed_by(path)
    if tool is None:
        return None
    chosen.refuse(repr(path), "label")
    stem, suffix = os.path.splitext(os.path.basename(path))
    name = f"{stem}.tar" if suffix.lower() in (".tgz", ".tbz2", ".tbz", ".txz", ".tzst") else stem
    with contextlib.ExitStack() as stack:
        inside = os.path.join(stack.enter_context(scratch(path)), name)
        try:
            with _decompressing(path, tool) as source, open(inside, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        except (EOFError, zlib.error, lzma.LZMAError) as error:
            raise StoreError(f"the file is damaged: {error}", path=path) from error
        except OSError as error:
            if error.errno is None:  # not the system's
                raise StoreError(f"the file is damaged: {error}", path=path) from error
            raise StoreError(
                f"it cannot be decompressed into {os.path.dirname(inside)!r}: {error}; if there is "
                "no room, set TMPDIR to another folder",
                path=path,
            ) from error
        try:
            records = CompressedSource(path, inside, chosen)
        except StoreError as error:
            raise StoreError(f"decompressed by {tool}: {error.message}", path=path) from error
        weakref.finalize(records, stack.pop_all().close)
        return records


def _decompressing(path: str, tool: str) -> Any:
    openers: dict[str, Callable[[str], Any]]
    openers = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}
    if tool in openers:
        return openers[tool](path)
    for module in ("compression.zstd", "pyarrow"):  # Python 3.14 has the first
        with contextlib.suppress(ImportError):
            library = importlib.import_module(module)
            if module == "pyarrow":
                return library.input_stream(path, compression="zstd")  # whatever the file is called
            return library.open(path)
    raise MissingDependencyError(
        f"{path!r}: decompressing zstd needs pyarrow: {install('parquet')}"
    )
