"""torch's own DataLoader class, even if its name was rebound.

Users may replace it: ``torch.utils.data.DataLoader = FastLoader``. Modules that need torch's class
import it from here, because some of them are imported after that.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
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

__all__ = ["DataLoader", "PlainLoader", "exchanged", "has_own_order", "is_torchs", "no_warning"]

_Item = TypeVar("_Item", covariant=True)


def is_torchs(function: object) -> bool:
    """Whether ``function`` is torch's, or fastload's: not what others have put in its place."""
    module = getattr(function, "__globals__", {}).get("__name__", "")
    return module.partition(".")[0] in ("torch", __name__.partition(".")[0])


def _torchs(function: Any) -> Any:
    """What others have wrapped, if they say so; Lightning wraps ``__init__`` while it asks a module
    for its loaders.
    """
    while not is_torchs(function) and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def no_warning() -> None:
    """Takes the place of ``check_worker_number_rationality``."""


class PlainLoader(DataLoader[_Item]):
    """A DataLoader that is torch's, even while ``fastload.install`` makes others FastLoaders.

    Nor does it give its arguments and items to what another package has put in the place of torch's
    ``__init__``, ``__iter__`` and ``_get_iterator``.
    """

    if not TYPE_CHECKING:  # mypy would take them for attributes
        __init__ = _torchs(DataLoader.__init__)
        __iter__ = _torchs(DataLoader.__iter__)
        _get_iterator = _torchs(DataLoader._get_iterator)

    warns = False
    """Whether torch warns of too many workers: not where this is made for another loader."""

    @property
    def check_worker_number_rationality(self) -> Callable[[], None]:
        return super().check_worker_number_rationality if self.warns else no_warning


# What torch's iteration calls. fastload's calls none of it, or with tasks in the place of indices.
# InfoBatch puts a ``__next__`` of its own there, FKD a ``fetch``, LitData a ``_worker_loop``.
_CALLED: tuple[tuple[Any, str, str], ...] = (
    (_module, "_BaseDataLoaderIter", "__next__"),
    (_module, "_BaseDataLoaderIter", "_next_index"),
    (_module, "_SingleProcessDataLoaderIter", "_next_data"),
    (_module, "_MultiProcessingDataLoaderIter", "_next_data"),
    (_module, "_MultiProcessingDataLoaderIter", "_get_data"),
    (_module, "_MultiProcessingDataLoaderIter", "_process_data"),
    (_module, "_MultiProcessingDataLoaderIter", "_try_put_index"),
    (_module, "_DatasetKind", "create_fetcher"),
    (_fetch, "_MapDatasetFetcher", "fetch"),
    (_fetch, "_IterableDatasetFetcher", "fetch"),
)


def _getter(module: Any) -> Callable[[Any], tuple[Any, ...]]:
    """What gives each kind and function of ``module`` in ``_CALLED``: that is asked often."""
    called = [(kind, function) for one, kind, function in _CALLED if one is module]
    names = [name for kind, function in called for name in (kind, f"{kind}.{function}")]
    return operator.attrgetter(*names)


_loaders, _fetchers = _getter(_module), _getter(_fetch)


def exchanged() -> str:
    """The name of a function of torch's iteration that other code is in the place of; or ""."""
    called = *_loaders(_module), *_fetchers(_fetch)
    return _not_torchs(_worker._worker_loop, DataLoader._get_iterator, *called)


@functools.lru_cache(1)
def _not_torchs(loop: Any, get_iterator: Any, *called: Any) -> str:
    """As ``exchanged``, of the functions in its order, which hardly ever change."""
    if not is_torchs(loop):
        return f"{_worker.__name__}._worker_loop"
    if not is_torchs(get_iterator):
        return "DataLoader._get_iterator"
    for name in ("__init__", "__iter__", "_get_iterator"):  # as they were at fastload's import
        if not is_torchs(getattr(PlainLoader, name)):
            return f"DataLoader.{name}"
    for (module, name, function), kind, callee in zip(
        _CALLED, called[::2], called[1::2], strict=True
    ):
        if kind.__module__ != module.__name__ or not is_torchs(callee):
            return f"{name}.{function}"
    return ""


def has_own_order(loader: object) -> bool:
    """Whether other code than torch's says what torch's iterators draw indices from."""
    kind: Any = type(loader)
    said_by = kind._index_sampler, kind._auto_collation
    return not all(is_torchs(getattr(each, "fget", None)) for each in said_by)
