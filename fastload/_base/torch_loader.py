"""torch's own DataLoader class, even if its name was rebound.

Users may replace it: ``torch.utils.data.DataLoader = FastLoader``. Modules that need torch's class
import it from here, because some of them are imported after that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from torch.utils.data import dataloader as _module

if TYPE_CHECKING:
    from torch.utils.data import DataLoader
else:
    # A class that replaced it before this import is derived from torch's.
    DataLoader = next(
        kind for kind in _module.DataLoader.__mro__ if kind.__module__ == _module.__name__
    )

__all__ = ["DataLoader", "PlainLoader"]

_Item = TypeVar("_Item", covariant=True)


class PlainLoader(DataLoader[_Item]):
    """A DataLoader that is torch's, even while ``fastload.install`` makes others FastLoaders."""
