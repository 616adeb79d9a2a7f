"""Keeping a FastLoader a FastLoader through accelerate's ``prepare``.

accelerate's ``prepare`` reads torch's arguments from a loader and builds a plain DataLoader inside
an adapter (its DataLoaderShard or DataLoaderDispatcher), which divides the batches among ranks and
moves them to the device. ``skip_first_batches`` does the same with a prepared loader. accelerate
lets no loader choose the class that is built, so this takes two steps:

1. ``prepare`` first reads the attribute that says whether a loader is prepared already
   (``PreparedAttribute``). That is when the loader's ``collate_fn``, which accelerate passes on
   unchanged, becomes a ``LoaderCarrier`` that refers to the loader.
2. accelerate's adapter is patched, once: if the ``collate_fn`` of the plain DataLoader is such a
   carrier, a FastLoader with the same arguments takes its place. All other loaders are built as
   before, and everything else is left to accelerate.

An accelerate without that adapter cannot be patched. There the ``LoaderCarrier`` collates in a
plain DataLoader and applies ``batch_transform``, and a warning says what is lost.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from torch.utils.data import BatchSampler, IterableDataset

from .._base import callers
from .._base.torch_loader import DataLoader
from .._sources.collate import Collate

if TYPE_CHECKING:
    from .cursor import EpochCursor
    from .resources import Resources

_ADAPTERS = "accelerate.data_loader"
_PREPARED = "_is_accelerate_prepared"  # the attribute that accelerate reads

# fastload's arguments that the dataset has already, or that a file supplied.
_APPLIED = frozenset(("transform", "target_transform", "tuned"))

_patched: weakref.WeakSet[type] = weakref.WeakSet()


class Adapter(Protocol):
    """accelerate's DataLoaderShard or DataLoaderDispatcher, as far as it is used here."""

    iteration: int
    base_dataloader: Any  # the plain DataLoader, later the FastLoader
    use_stateful_dataloader: bool
    dl_state_dict: dict[str, Any]
    split_batches: bool
    state: Any  # accelerate's PartialState


class PreparableLoader(Protocol):
    """A FastLoader, as far as it is used here."""

    _adapter: weakref.ref[Adapter] | None
    _epoch_cursor: EpochCursor
    _loader_resources: Resources
    _left_out: int
    collate_fn: Any
    _loader_given: Mapping[str, Any] | None

    @property
    def _loader_own(self) -> Mapping[str, Any]: ...

    @property
    def _loader_stateless(self) -> bool: ...

    def set_epoch(self, epoch: int) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def __getstate__(self) -> dict[str, Any]: ...


class LoaderCarrier:
    """A ``collate_fn`` that refers to its loader, weakly; a pickle leaves the loader out.

    ``batch_transform`` is called with each batch, if no FastLoader does that; else it is None.
    """

    def __init__(
        self,
        collate_fn: Collate | None,
        batch_transform: Callable[[Any], Any] | None,
        loader: PreparableLoader | None = None,
    ) -> None:
        self.collate_fn = collate_fn
        self._batch_transform = batch_transform
        self._loader = None if loader is None else weakref.ref(loader)

    def __call__(self, samples: Any) -> Any:
        assert self.collate_fn is not None, "torch sets one where none was given"
        batch = self.collate_fn(samples)
        return batch if self._batch_transform is None else self._batch_transform(batch)

    @property
    def loader(self) -> PreparableLoader | None:
        """The loader, if it still exists."""
        return None if self._loader is None else self._loader()

    def __getattr__(self, name: str) -> Any:
        if name == "collate_fn":  # asked for by copy and pickle before __init__ has run
            raise AttributeError(name)
        return getattr(self.collate_fn, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.collate_fn, self._batch_transform)


def collate_of(given: Collate | None) -> Collate | None:
    """The ``collate_fn`` given, without a carrier around it."""
    return given.collate_fn if isinstance(given, LoaderCarrier) else given


class PreparedAttribute:
    """The attribute ``_is_accelerate_prepared``, which accelerate reads before it prepares.

    It is not a property, because accelerate may set it.
    """

    def __get__(self, loader: PreparableLoader | None, kind: type) -> bool:
        if loader is not None:
            _attach_carrier(loader)
        return False


def _attach_carrier(loader: PreparableLoader) -> None:
    """Make ``loader.collate_fn`` a carrier, as accelerate is about to read the arguments."""
    module = sys.modules.get(_ADAPTERS)
    if module is None:  # read by something other than accelerate
        return
    patched = _patch(module)
    if not patched:
        version = getattr(sys.modules.get("accelerate"), "__version__", "this version")
        warnings.warn(
            f"accelerate {version} builds a plain DataLoader from this FastLoader: batch_transform "
            "and what a PackedDataset does are kept; on_error, seed, device, cache, state_dict() "
            "and fastload's engines for other datasets are lost. accelerate 1.0 or newer keeps all",
            stacklevel=callers.stacklevel(),
        )
    transform = None if patched else loader._loader_own["batch_transform"]
    loader.collate_fn = LoaderCarrier(collate_of(loader.collate_fn), transform, loader)


def _patch(module: ModuleType) -> bool:
    """Patch accelerate's adapter to keep FastLoaders; return whether that is possible."""
    adapter: Any = getattr(module, "DataLoaderAdapter", None)
    if adapter in _patched:
        return True
    init: Any = getattr(adapter, "__init__", None)
    if adapter is None or "use_stateful_dataloader" not in inspect.signature(init).parameters:
        return False

    @functools.wraps(init)
    def patched_init(
        self: Any, *given: Any, use_stateful_dataloader: bool = False, **named: Any
    ) -> None:
        carrier = named.get("collate_fn")
        loader = carrier.loader if isinstance(carrier, LoaderCarrier) else None
        if loader is None:
            init(self, *given, use_stateful_dataloader=use_stateful_dataloader, **named)
            return
        # torchdata's loader would start an epoch to get a state; a FastLoader has its own state.
        init(self, *given, use_stateful_dataloader=False, **named)
        self.use_stateful_dataloader = use_stateful_dataloader
        rebuilt = _rebuild(loader, self.base_dataloader)
        rebuilt._adapter = weakref.ref(self)
        self.base_dataloader = rebuilt
        if rebuilt._loader_stateless:
            self.state_dict, self._update_state_dict = rebuilt.state_dict, _no_state
            return
        self.dl_state_dict = rebuilt.state_dict()
        if isinstance(self, module.DataLoaderDispatcher):
            self.adjust_state_dict_for_prefetch = DispatcherState(self)

    adapter.__init__ = patched_init
    _patched.add(adapter)
    return True


def _no_state() -> None:
    """Replaces accelerate's update of the state, for a loader that has none."""


class DispatcherState:
    """Keeps the state of accelerate's dispatcher at the batches that all ranks were given.

    The main process takes one batch for each rank before it hands out any of them, and accelerate
    updates the state before each. The first of these updates is the right one. accelerate calls
    this object after every update, under a name that it documents as one to override.
    """

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = weakref.ref(adapter)
        self._state = adapter.dl_state_dict

    def __call__(self) -> None:
        adapter = self._adapter()
        assert adapter is not None, "called by the adapter"
        progress = adapter.base_dataloader._epoch_cursor.progress
        each = 1 if adapter.split_batches else adapter.state.num_processes
        if progress is None or progress.ended or progress.since_start % each == 0:
            self._state = adapter.dl_state_dict
        adapter.dl_state_dict = self._state

    # The adapter refers to this object, and has nothing in it when a pickle makes both again.
    def __getstate__(self) -> tuple[Adapter | None, dict[str, Any]]:
        return self._adapter(), self._state

    def __setstate__(self, state: tuple[Adapter, dict[str, Any]]) -> None:
        adapter, self._state = state
        self._adapter = weakref.ref(adapter)


def _rebuild(loader: PreparableLoader, plain: DataLoader[Any]) -> Any:
    """A FastLoader with the arguments of ``loader`` over the dataset and batches of ``plain``."""
    kind: Any = next(kind for kind in type(loader).__mro__ if _PREPARED in vars(kind))
    ours = inspect.signature(kind.__init__).parameters.keys()
    torchs = inspect.signature(DataLoader.__init__).parameters.keys()
    own = loader._loader_own
    arguments = {
        name: own[name] if name in own else getattr(loader, name)
        for name in ours - torchs - _APPLIED
    }
    order = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")
    arguments |= {
        name: getattr(plain, name) for name in torchs & ours - {"self", "dataset", *order}
    }
    arguments["collate_fn"] = collate_of(plain.collate_fn)
    arguments |= _order_arguments(plain)
    if loader._loader_resources.governor is not None:
        arguments["num_workers"] = "auto"
    if arguments["on_error"] == "refill" and "batch_sampler" in arguments:
        arguments["on_error"] = "replace"  # ranks need equal numbers of batches
    made = kind.__new__(type(loader))
    kind.__init__(made, plain.dataset, **arguments)
    for name in _APPLIED:
        setattr(made, name, getattr(loader, name))
    state = loader.__getstate__()
    if loader._loader_given is not None:  # the attributes have another meaning
        made._loader_given = {**made._loader_own, "tuned": own["tuned"]}
        vars(made).update({name: state[name] for name in own})
    for name, value in state.items():  # attributes of a user's subclass
        vars(made).setdefault(name, value)
    made._epoch_cursor = copy.copy(loader._epoch_cursor)
    made._left_out = getattr(plain.batch_sampler, "skip_batches", 0)
    made.collate_fn = LoaderCarrier(made.collate_fn, None, made)
    return made


def _order_arguments(plain: DataLoader[Any]) -> dict[str, Any]:
    """The arguments that decide which samples make which batch."""
    batches = plain.batch_sampler
    if plain.batch_size is None and batches is not None and type(batches) is not BatchSampler:
        return {"batch_sampler": batches}
    divided: Any = plain if batches is None else batches
    arguments = {"batch_size": plain.batch_size, "drop_last": plain.drop_last}
    if type(batches) is BatchSampler:
        arguments = {"batch_size": batches.batch_size, "drop_last": batches.drop_last}
    if not isinstance(plain.dataset, IterableDataset):
        arguments["sampler"] = divided.sampler
    return arguments


def follow(loader: PreparableLoader) -> None:
    """Set the epoch that accelerate is about to iterate over, if it prepared ``loader``."""
    adapter = adapter_of(loader)
    if adapter is None:
        return
    resume = loader._epoch_cursor.resume
    if resume is not None and adapter.iteration == 0:  # the state was loaded before ``prepare``
        adapter.iteration = resume.epoch
    loader.set_epoch(adapter.iteration)


def resume(loader: PreparableLoader, epoch: int) -> None:
    """Set accelerate's epoch to the one that ``loader`` resumes, if accelerate prepared it."""
    adapter = adapter_of(loader)
    if adapter is not None:
        adapter.iteration = epoch


def adapter_of(loader: PreparableLoader) -> Adapter | None:
    """accelerate's adapter around ``loader``, which chooses its epochs; None: it prepared none."""
    adapter = None if loader._adapter is None else loader._adapter()
    return adapter if adapter is not None and "iteration" in vars(adapter) else None


def places(batches: object, length: int) -> np.ndarray | None:
    """Which samples of an order this rank takes, as accelerate's batch sampler divides its batches.

    int64, the place in the order, which is ``length`` long, of each sample that ``batches``
    gives; None if it is another batch sampler, which may do anything.
    """
    divided = _over_places(batches, length)
    if divided is None or type(batches) is BatchSampler:
        return None
    return np.fromiter(itertools.chain.from_iterable(divided), np.int64)


def _over_places(batches: object, length: int) -> Iterable[list[int]] | None:
    """A batch sampler like ``batches`` over 0 .. length - 1; None if there is none."""
    if type(batches) is BatchSampler:
        return BatchSampler(range(length), batches.batch_size, batches.drop_last)
    inner = getattr(batches, "batch_sampler", None)
    if type(batches).__module__ != _ADAPTERS or inner is None:
        return None
    made: Any = copy.copy(batches)
    made.batch_sampler = _over_places(inner, length)
    return None if made.batch_sampler is None else made
