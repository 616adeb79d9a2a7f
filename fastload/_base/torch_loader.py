"""torch's own DataLoader, whatever its name is bound to meanwhile.

Users put FastLoader in its place: ``torch.utils.data.DataLoader = FastLoader``. What fastload
builds on torch's class, in modules that are imported later too, it takes from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.data import dataloader as _module

if TYPE_CHECKING:
    from torch.utils.data import DataLoader
else:
    # Whoever put another class there first has derived it from torch's.
    DataLoader = next(
        kind for kind in _module.DataLoader.__mro__ if kind.__module__ == _module.__name__
    )

__all__ = ["DataLoader"]
