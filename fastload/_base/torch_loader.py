"""torch's own DataLoader class, even if its name was rebound.

Users may replace it: ``torch.utils.data.DataLoader = FastLoader``. Modules that need torch's class
import it from here, because some of them are imported after that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from torch.utils.data import dataloader as _module
from torch.utils.data._utils import fetch as _fetch
from torch.utils.data._utils import worker as _worker

if TYPE_CHECKING:
    from torch.utils.data import DataLoader
else:
    # A class that replaced it before this import is derived from torch's.
    DataLoader = next(
        kind for kind in _module.DataLoader.__mro__ if kind.__module__ == _module.__name__
    )

__all__ = ["DataLoader", "PlainLoader", "exchanged", "has_own_order", "is_torchs"]

_Item = TypeVar("_Item", covariant=True)


class PlainLoader(DataLoader[_Item]):
    """A DataLoader that is torch's, even while ``fastload.install`` makes others FastLoaders.

    Nor does it give its arguments and items to what another package has put in the place of torch's
    ``__init__``, ``__iter__`` and ``_get_iterator``.
    """

    if not TYPE_CHECKING:  # mypy would take them for attributes
        __init__ = DataLoader.__init__
        _get_iterator = DataLoader._get_iterator

    def __iter__(self) -> Any:
        if not (self.persistent_workers and self.num_workers > 0):
            return self._get_iterator()
        if self._iterator is None:
            self._iterator = self._get_iterator()
        else:
            self._iterator._reset(self)
        return self._iterator

    def check_worker_number_rationality(self) -> None:
        """Does nothing: torch has warned of too many workers for the loader that this serves."""


# What torch's iteration calls. fastload's calls none of it, or with tasks in the place of indices.
# InfoBatch puts a ``__next__`` of its own there, FKD a ``fetch``, LitData a ``_worker_loop``.
_CALLED: tuple[tuple[Any, str], ...] = (
    (DataLoader, "_get_iterator"),
    (_module._BaseDataLoaderIter, "__next__"),
    (_module._BaseDataLoaderIter, "_next_index"),
    (_module._SingleProcessDataLoaderIter, "_next_data"),
    (_module._MultiProcessingDataLoaderIter, "_next_data"),
    (_module._MultiProcessingDataLoaderIter, "_get_data"),
    (_module._MultiProcessingDataLoaderIter, "_process_data"),
    (_module._MultiProcessingDataLoaderIter, "_try_put_index"),
    (_worker, "_worker_loop"),
    (_module._DatasetKind, "create_fetcher"),
    (_fetch._MapDatasetFetcher, "fetch"),
    (_fetch._IterableDatasetFetcher, "fetch"),
)


def is_torchs(function: object) -> bool:
    """Whether ``function`` is torch's, or fastload's: not what others have put in its place."""
    module = getattr(function, "__globals__", {}).get("__name__", "")
    return module.partition(".")[0] in ("torch", __name__.partition(".")[0])


def exchanged() -> str:
    """The name of a function of torch's iteration that other code is in the place of; or ""."""
    for kind, name in _CALLED:
        if not is_torchs(getattr(kind, name)):
            return f"{kind.__name__}.{name}"
    return ""


def has_own_order(loader: object) -> bool:
    """Whether the class of ``loader`` says itself what torch's iterators draw indices from."""
    kind: Any = type(loader)
    return not (
        kind._index_sampler is DataLoader._index_sampler
        and kind._auto_collation is DataLoader._auto_collation
    )
