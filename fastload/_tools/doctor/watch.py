"""Observes the DataLoaders and the model of a script that runs in this process."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeAlias, TypeVar

import torch
from torch import nn
from torch.utils.data import RandomSampler

from ..._base.nested import tensors
from ..._base.progress_bar import Bar
from ..._base.torch_loader import DataLoader
from ..._base.trace import batch_length
from ..._loader import FastLoader
from ..._run.workers.copy_on_write import object_memory
from .observation import LoaderSeen, Observation
from .places import Places

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Loader: TypeAlias = DataLoader[Any]

_READS = ("item", "tolist", "cpu", "numpy")
_TORCH = "torch."


class Enough(BaseException):
    """Ends the script after enough steps. Not an Exception, which the script may catch."""


class Watch:
    """Patches torch to observe loops over DataLoaders and FastLoaders.

    After ``steps`` training steps it ends the script. ``places`` distinguishes the user's code;
    ``bar``, if there is one, shows the steps.
    """

    def __init__(self, steps: int, places: Places) -> None:
        self.seen = Observation()
        self.bar: Bar | None = None
        self._steps = steps
        self._places = places
        self._made: weakref.WeakKeyDictionary[_Loader, Creation] = weakref.WeakKeyDictionary()
        self._loaders: dict[int, LoaderSeen] = {}
        self._kept: list[_Loader] = []  # kept alive, so that no other loader gets the same id
        self._now: LoaderSeen | None = None
        self._depth = 0
        self._over = False

    def install(self) -> None:
        """Start watching."""
        DataLoader.__init__ = self._making(DataLoader.__init__)  # type: ignore[method-assign]
        kinds: tuple[type[_Loader], ...] = (DataLoader, FastLoader)
        for kind in kinds:
            kind.__iter__ = self._iterating(kind, kind.__iter__)  # type: ignore[assignment, method-assign]
        torch.Tensor.backward = self._going_backward(torch.Tensor.backward)  # type: ignore[method-assign]
        for name in _READS:
            setattr(torch.Tensor, name, self._reading(getattr(torch.Tensor, name)))
        nn.modules.module.register_module_forward_pre_hook(self._forward)
        nn.modules.module.register_module_forward_hook(self._forwarded, always_call=True)

    def training(self) -> tuple[LoaderSeen, dict[str, object]] | None:
        """The observation of the training loop's DataLoader, and its arguments; or None."""
        seen = self.seen.training
        for loader in self._kept:
            if self._loaders[id(loader)] is seen and not isinstance(loader, FastLoader):
                return seen, self._made[loader].arguments
        return None

    def end(self) -> None:
        """Stop watching, and end the worker processes that loaders keep between epochs."""
        self._over = True
        for loader in self._kept:
            iterator: Any = getattr(loader, "_iterator", None)
            if hasattr(iterator, "_shutdown_workers"):
                iterator._shutdown_workers()
                loader._iterator = None

    def _making(self, make: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(make)
        def watched(loader: _Loader, *arguments: object, **named: object) -> None:
            make(loader, *arguments, **named)
            given = inspect.signature(make).bind(loader, *arguments, **named).arguments
            given.pop(next(iter(given)))
            self._made[loader] = Creation(self._places.calling(), dict(given))

        return watched

    def _iterating(
        self, kind: type[_Loader], iterate: Callable[[_Loader], Iterator[object]]
    ) -> Callable[[_Loader], Iterator[object]]:
        @functools.wraps(iterate)
        def watched(loader: _Loader) -> Iterator[object]:
            inner = kind is DataLoader and isinstance(loader, FastLoader)  # called by FastLoader
            if inner or self._over:
                return iterate(loader)
            return self._batches(loader, iterate(loader), self._places.calling())

        return watched

    def _batches(
        self, loader: _Loader, iterator: Iterator[object], looped: str
    ) -> Iterator[object]:
        seen = self._of(loader)
        seen.looped = seen.looped or looped
        try:
            first = True
            while True:
                begin = time.perf_counter()
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                got = time.perf_counter()
                (seen.starts_s if first else seen.waits_s).append(got - begin)
                if first:
                    self._epoch(seen, loader)
                self._look(seen, batch)
                outer, self._now = self._now, seen
                try:
                    yield batch
                finally:
                    self._now = outer
                    now = time.perf_counter()
                    seen.steps_s.append(now - got)
                    if not first:
                        seen.laps_s.append(now - begin)
                    first = False
                if self.bar is not None:
                    self.bar.update(max(0, min(seen.backwards, self._steps) - self.bar.n))
                if seen.backwards >= self._steps:
                    raise Enough
        finally:
            if isinstance(loader, FastLoader):
                _fetched(seen, loader)
            del iterator

    def _of(self, loader: _Loader) -> LoaderSeen:
        if id(loader) not in self._loaders:
            self._kept.append(loader)
            native = isinstance(loader, FastLoader) and loader.stats()["engine"] != "torch"
            workers = 0 if native else loader.num_workers
            objects = object_memory(loader.dataset, workers) if workers else None
            seen = LoaderSeen(
                kind="FastLoader" if isinstance(loader, FastLoader) else type(loader).__name__,
                made=self._made[loader].where if loader in self._made else "",
                dataset=type(loader.dataset).__name__,
                batches=_length(loader),
                samples=_length(loader.dataset),
                num_workers=loader.num_workers,
                batch_size=loader.batch_size or int(getattr(loader.batch_sampler, "batch_size", 1)),
                pin_memory=bool(loader.pin_memory),
                persistent_workers=bool(loader.persistent_workers),
                shuffled=isinstance(_sampler(loader), RandomSampler),
                held="" if objects is None else objects.words(workers),
            )
            self._loaders[id(loader)] = seen
            self.seen.loaders.append(seen)
        return self._loaders[id(loader)]

    def _epoch(self, seen: LoaderSeen, loader: _Loader) -> None:
        sampler = _sampler(loader)
        epoch = getattr(sampler, "epoch", None)
        if (
            hasattr(sampler, "set_epoch")
            and type(epoch) is int
            and getattr(sampler, "shuffle", True)
        ):
            seen.epochs.append(epoch)

    def _look(self, seen: LoaderSeen, batch: object) -> None:
        held = tensors(batch)
        seen.images += batch_length(batch)
        seen.batch_nbytes = max(seen.batch_nbytes, sum(tensor.nbytes for tensor in held))
        images = next((tensor for tensor in held if tensor.dim() == 4), None)
        if images is None:
            return
        shape, last = list(images.shape), seen.image_shape
        # A smaller batch with images of the same shape is the last one of an epoch.
        if shape != last and not (last and shape[0] < last[0] and shape[1:] == last[1:]):
            seen.image_shapes += 1
            seen.image_shape = shape
        seen.image_dtype = str(images.dtype).removeprefix("torch.")

    def _going_backward(self, backward: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(backward)
        def watched(*arguments: _P.args, **named: _P.kwargs) -> _R:
            if self._now is not None:
                self._now.backwards += 1
            return backward(*arguments, **named)

        return watched

    def _reading(self, read: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(read)
        def watched(*arguments: _P.args, **named: _P.kwargs) -> _R:
            caller = sys._getframe(1)
            # Calls by torch are skipped: optimisers read their step counts, which are on the host.
            if self._now is not None and not caller.f_globals.get("__name__", "").startswith(
                _TORCH
            ):
                where = self._places.of(caller)
                self._now.items[where] = self._now.items.get(where, 0) + 1
            return read(*arguments, **named)

        return watched

    def _forward(self, module: nn.Module, inputs: object) -> None:
        self._depth += 1
        seen = self._now
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            self.seen.convolutions = True
        if self._depth > 1 or seen is None or isinstance(module, nn.modules.loss._Loss):
            return
        seen.called = seen.called or self._places.calling()
        seen.forwards += 1
        seen.grad += torch.is_grad_enabled()
        seen.train_mode += module.training
        seen.autocast += torch.is_autocast_enabled() or torch.is_autocast_enabled("cpu")
        images = next((tensor for tensor in tensors(inputs) if tensor.dim() == 4), None)
        if images is not None:
            seen.channels_last += images.is_contiguous(memory_format=torch.channels_last)

    def _forwarded(self, module: nn.Module, inputs: object, output: object) -> None:
        self._depth -= 1


@dataclasses.dataclass(frozen=True)
class Creation:
    """Where the user created a loader (``file:line``), with which arguments of DataLoader."""

    where: str
    arguments: dict[str, object]


def _fetched(seen: LoaderSeen, loader: FastLoader[Any]) -> None:
    """Add what the epoch that ends has fetched of remote stores."""
    stats = loader.stats()
    remote = stats["remote"]
    if remote is not None:
        seen.network_s += stats["stages_s"].get("network", 0.0)
        seen.remote_nbytes += remote["nbytes"]
        seen.remote_requests += remote["requests"]
        seen.remote_hit_nbytes += remote["hit_nbytes"]


def _sampler(loader: _Loader) -> object:
    return getattr(loader.batch_sampler, "sampler", loader.sampler)


def _length(sized: object) -> int:
    """``len``; 0 if there is none."""
    try:
        return len(sized)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return 0
