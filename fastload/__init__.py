"""fastload: the training loop stops waiting for images.

    from fastload import FastLoader      # instead of torch.utils.data.DataLoader

``FastLoader`` takes any Dataset, a torchvision ImageFolder, or the path of a packed store that
``fastload pack`` or ``pack`` wrote. ``PackedDataset`` is such a store as a map-style dataset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._exports import lazily
from ._version import __version__
from .errors import (
    ChecksumError,
    DataError,
    DecodeError,
    FastloadError,
    InternalError,
    MissingDependencyError,
    StoreError,
    StoreNotFoundError,
    TooManyErrors,
    UnreadableError,
    UsageError,
)

if TYPE_CHECKING:
    from ._base.timeline import trace
    from ._loader import FastLoader
    from ._sources.mix import Mix
    from ._sources.packed import PackedDataset
    from ._tools.replacement import install, patched, uninstall
    from ._tools.show import show
    from ._tools.summary import info
    from ._tools.tuning import autotune
    from ._tools.unpack import unpack
    from ._tools.verify import verify
    from ._tools.watch import watch
    from ._transforms.buckets import Buckets
    from .converters import append, concat, pack
    from .storage import open_store, open_writer

__all__ = [
    "Buckets",
    "ChecksumError",
    "DataError",
    "DecodeError",
    "FastLoader",
    "FastloadError",
    "InternalError",
    "MissingDependencyError",
    "Mix",
    "PackedDataset",
    "StoreError",
    "StoreNotFoundError",
    "TooManyErrors",
    "UnreadableError",
    "UsageError",
    "__version__",
    "append",
    "autotune",
    "concat",
    "info",
    "install",
    "open_store",
    "open_writer",
    "pack",
    "patched",
    "show",
    "trace",
    "uninstall",
    "unpack",
    "verify",
    "watch",
]

# Loaded when first used: `import fastload` alone costs milliseconds, and the command line does not
# import torch to print its help.
_LAZY = {
    "_base.timeline": ("trace",),
    "_loader": ("FastLoader",),
    "_sources.mix": ("Mix",),
    "_sources.packed": ("PackedDataset",),
    "_tools.replacement": ("install", "patched", "uninstall"),
    "_tools.show": ("show",),
    "_tools.summary": ("info",),
    "_tools.tuning": ("autotune",),
    "_tools.unpack": ("unpack",),
    "_tools.verify": ("verify",),
    "_tools.watch": ("watch",),
    "_transforms.buckets": ("Buckets",),
    "converters": ("append", "concat", "pack"),
    "storage": ("open_store", "open_writer"),
}

__getattr__ = lazily(globals(), _LAZY)


def __dir__() -> list[str]:
    return sorted(__all__)
