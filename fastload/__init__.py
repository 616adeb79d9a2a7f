"""fastload: the training loop stops waiting for images.

    from fastload import FastLoader      # instead of torch.utils.data.DataLoader

``FastLoader`` takes any Dataset, a torchvision ImageFolder, or the path of a packed store that
``fastload pack`` or ``pack`` wrote. ``PackedDataset`` is such a store as a map-style dataset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    "FastLoader": "fastload._loader",
    "Buckets": "fastload._transforms.buckets",
    "Mix": "fastload._sources.mix",
    "PackedDataset": "fastload._sources.packed",
    "open_store": "fastload.storage",
    "open_writer": "fastload.storage",
    "append": "fastload.converters",
    "autotune": "fastload._tools.tuning",
    "concat": "fastload.converters",
    "info": "fastload._tools.summary",
    "install": "fastload._tools.replacement",
    "pack": "fastload.converters",
    "patched": "fastload._tools.replacement",
    "show": "fastload._tools.show",
    "trace": "fastload._base.timeline",
    "uninstall": "fastload._tools.replacement",
    "unpack": "fastload._tools.unpack",
    "verify": "fastload._tools.verify",
    "watch": "fastload._tools.watch",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'fastload' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
