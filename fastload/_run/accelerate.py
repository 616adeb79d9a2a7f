"""A FastLoader that accelerate prepares stays one.

accelerate's ``prepare`` reads torch's arguments off a loader and makes a plain DataLoader of them,
inside an adapter (its DataLoaderShard or DataLoaderDispatcher) that divides the batches among ranks
and puts them on the device. ``skip_first_batches`` does the same with what was prepared. accelerate
has no way for a loader to say what it is to be made of, so it takes two steps:

``prepare`` first asks whether the loader is prepared already (``Asked``). Then the loader's
``collate_fn``, which accelerate passes on as it is, becomes a ``Carrier`` that knows the loader,
and accelerate's adapter is taught, once, to put a FastLoader with the same arguments in the place
of a plain loader that has such a ``collate_fn``. All other loaders are made as before, and all that
accelerate does, it does by itself.

An accelerate without that adapter cannot be taught: there the ``Carrier`` collates in a plain
DataLoader and applies ``batch_transform``, and a warning says what is lost.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset

from .._base.torch_loader import DataLoader

_ADAPTERS = "accelerate.data_loader"
_ASKED = "_is_accelerate_prepared"  # the attribute that accelerate asks for

# Arguments of ours that are in the dataset already, or in what a file said.
_APPLIED = frozenset(("transform", "target_transform", "fields", "joint", "tuned", "trace"))

_taught: weakref.WeakSet[type] = weakref.WeakSet()


class Carrier:
    """A ``collate_fn`` that knows the loader it is of.

    Args:
        collate_fn: what it does.
        batch_transform: called with each batch, where no FastLoader does so; or None.
        loader: whose it is; it is not kept, nor sent to other processes.
    """

    def __init__(
        self,
        collate_fn: Callable[[Any], Any],
        batch_transform: Callable[[Any], Any] | None,
        loader: Any | None = None,
    ) -> None:
        self.collate_fn = collate_fn
        self._batch_transform = batch_transform
        self._loader = None if loader is None else weakref.ref(loader)

    def __call__(self, samples: Any) -> Any:
        batch = self.collate_fn(samples)
        return batch if self._batch_transform is None else self._batch_transform(batch)

    @property
    def loader(self) -> Any | None:
        """The loader, if it still exists."""
        return None if self._loader is None else self._loader()

    def __getattr__(self, name: str) -> Any:
        if name == "collate_fn":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self.collate_fn, name)

    def __reduce__(self) -> Any:
        return type(self), (self.collate_fn, self._batch_transform)


def collate_of(given: Any) -> Any:
    """What collates: ``given`` itself, or what it carries."""
    return given.collate_fn if isinstance(given, Carrier) else given


class Asked:
    """The attribute ``_is_accelerate_prepared``, by which accelerate asks before it prepares.

    No property, as accelerate may set it.
    """

    def __get__(self, loader: Any | None, kind: type) -> bool:
        if loader is not None:
            _carry(loader)
        return False


def _carry(loader: Any) -> None:
    """Let ``loader``'s collate_fn carry what accelerate, which is about to read it, leaves out."""
    module = sys.modules.get(_ADAPTERS)
    if module is None:  # somebody else who asks
        return
    taught = _teach(module)
    if not taught:
        version = getattr(sys.modules.get("accelerate"), "__version__", "this version")
        warnings.warn(
            f"accelerate {version} makes a plain DataLoader of this FastLoader: batch_transform "
            "is kept, and what a PackedDataset does; on_error, seed, device, cache, state_dict() "
            "and fastload's engines for other datasets are not. accelerate 1.0 or newer keeps all",
            stacklevel=4,
        )
    transform = None if taught else loader.batch_transform
    loader.collate_fn = Carrier(collate_of(loader.collate_fn), transform, loader)


def _teach(module: Any) -> bool:
    """Teach accelerate's adapter to keep FastLoaders; whether it can be taught."""
    adapter = getattr(module, "DataLoaderAdapter", None)
    if adapter in _taught:
        return True
    begin: Any = getattr(adapter, "__init__", None)
    if adapter is None or "use_stateful_dataloader" not in inspect.signature(begin).parameters:
        return False

    @functools.wraps(begin)
    def adapt(self: Any, *given: Any, use_stateful_dataloader: bool = False, **named: Any) -> None:
        carrier = named.get("collate_fn")
        loader = carrier.loader if isinstance(carrier, Carrier) else None
        if loader is None:
            begin(self, *given, use_stateful_dataloader=use_stateful_dataloader, **named)
            return
        # Not torchdata's loader, which begins an epoch to know its state: a FastLoader has one.
        begin(self, *given, use_stateful_dataloader=False, **named)
        self.use_stateful_dataloader = use_stateful_dataloader
        made = _again(loader, self.base_dataloader)
        made._adapter = weakref.ref(self)
        self.base_dataloader = made
        if made._unordered:
            self.state_dict, self._update_state_dict = made.state_dict, _nothing
            return
        self.dl_state_dict = made.state_dict()
        if isinstance(self, module.DataLoaderDispatcher):
            self.adjust_state_dict_for_prefetch = Settled(self)

    adapter.__init__ = adapt
    _taught.add(adapter)
    return True


def _nothing() -> None:
    """Instead of a state, which a loader whose batches come out of order has not."""


class Settled:
    """Keeps the state of accelerate's dispatcher at what all ranks have been given.

    The main process takes a batch for each rank before it hands out any, and accelerate asks for
    the state before each of them: it is the first of these that counts. accelerate calls this each
    time, by a name that it says may be overridden.
    """

    def __init__(self, adapter: Any) -> None:
        self._adapter = weakref.ref(adapter)
        self._state = adapter.dl_state_dict

    def __call__(self) -> None:
        adapter: Any = self._adapter()
        progress = adapter.base_dataloader._cursor.progress
        each = 1 if adapter.split_batches else adapter.state.num_processes
        if progress is None or progress.ended or progress.since % each == 0:
            self._state = adapter.dl_state_dict
        adapter.dl_state_dict = self._state

    def __reduce__(self) -> Any:
        return type(self), (self._adapter(),)


def _again(loader: Any, plain: DataLoader[Any]) -> Any:
    """A loader like ``loader`` over the dataset and the batches of ``plain``."""
    kind: Any = next(kind for kind in type(loader).__mro__ if _ASKED in vars(kind))
    ours = inspect.signature(kind.__init__).parameters.keys()
    torchs = inspect.signature(DataLoader.__init__).parameters.keys()
    arguments = {name: getattr(loader, name) for name in ours - torchs - _APPLIED}
    order = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")
    arguments |= {
        name: getattr(plain, name) for name in torchs & ours - {"self", "dataset", *order}
    }
    arguments["collate_fn"] = collate_of(plain.collate_fn)
    arguments |= _order(plain)
    if loader._resources.governor is not None:
        arguments["num_workers"] = "auto"
    if arguments["on_error"] == "refill" and "batch_sampler" in arguments:
        arguments["on_error"] = "replace"  # ranks need equal numbers of batches
    made = kind.__new__(type(loader))
    kind.__init__(made, plain.dataset, **arguments)
    for name in _APPLIED | {"_timeline"}:
        setattr(made, name, getattr(loader, name))
    for name, value in loader.__getstate__().items():  # a state, and what is of a user's class
        vars(made).setdefault(name, value)
    made._cursor = copy.copy(loader._cursor)
    made._resources.choice = loader._resources.choice
    made._left_out = getattr(plain.batch_sampler, "skip_batches", 0)
    made.collate_fn = Carrier(made.collate_fn, None, made)
    return made


def _order(plain: DataLoader[Any]) -> dict[str, Any]:
    """The arguments that say which samples make which batch."""
    batches = plain.batch_sampler
    if plain.batch_size is None and batches is not None and type(batches) is not BatchSampler:
        return {"batch_sampler": batches}
    cut: Any = plain if batches is None else batches
    arguments = {"batch_size": plain.batch_size, "drop_last": plain.drop_last}
    if type(batches) is BatchSampler:
        arguments = {"batch_size": batches.batch_size, "drop_last": batches.drop_last}
    if not isinstance(plain.dataset, IterableDataset):
        arguments["sampler"] = cut.sampler
    return arguments


def follow(loader: Any) -> None:
    """Tell ``loader`` the epoch that accelerate is about to iterate over, where it prepared it."""
    adapter = _adapter(loader)
    if adapter is None:
        return
    resume = loader._cursor.resume
    if resume is not None and adapter.iteration == 0:  # a state from before ``prepare``
        adapter.iteration = resume.epoch
    loader.set_epoch(adapter.iteration)


def resume(loader: Any, epoch: int) -> None:
    """Tell accelerate the epoch that ``loader`` resumes, where it prepared it."""
    adapter = _adapter(loader)
    if adapter is not None:
        adapter.iteration = epoch


def prepared(loader: Any) -> bool:
    """Whether it is accelerate that says which epoch comes."""
    return _adapter(loader) is not None


def _adapter(loader: Any) -> Any:
    """accelerate's adapter around ``loader``, or None."""
    adapter = None if loader._adapter is None else loader._adapter()
    return adapter if adapter is not None and "iteration" in vars(adapter) else None
