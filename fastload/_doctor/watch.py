"""Observes the DataLoaders and the model of a script that runs in this process."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import RandomSampler

from fastload._torch import DataLoader
from fastload._trace import batch_length
from fastload._workers.held import held

from .observation import LoaderSeen, Observation

_READS = ("item", "tolist", "cpu", "numpy")


class Enough(BaseException):
    """Ends the script: enough was seen. No Exception, which the script may catch."""


class Watch:
    """Patches torch so that loops over loaders are seen.

    Args:
        steps: of training after which the script is ended.
    """

    def __init__(self, steps: int) -> None:
        self.seen = Observation()
        self._steps = steps
        self._loaders: dict[int, LoaderSeen] = {}
        self._kept: list[Any] = []  # loaders: another one must not get the number of one that died
        self._now: LoaderSeen | None = None
        self._depth = 0

    def install(self, replacement: type[DataLoader[Any]] | None = None) -> None:
        """Begin to watch; ``replacement`` takes the place of torch's DataLoader."""
        kind = DataLoader if replacement is None else replacement
        kind.__iter__ = self._iterating(kind.__iter__)  # type: ignore[method-assign]
        if replacement is not None:
            torch.utils.data.DataLoader = replacement  # type: ignore[misc]
            torch.utils.data.dataloader.DataLoader = replacement  # type: ignore[misc]
        torch.Tensor.backward = self._going_backward(torch.Tensor.backward)  # type: ignore[method-assign]
        for name in _READS:
            setattr(torch.Tensor, name, self._reading(getattr(torch.Tensor, name)))
        nn.modules.module.register_module_forward_pre_hook(self._forward)
        nn.modules.module.register_module_forward_hook(self._forwarded, always_call=True)

    def _iterating(self, iterate: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(iterate)
        def watched(loader: Any) -> Iterator[Any]:
            return self._batches(loader, iterate(loader))

        return watched

    def _batches(self, loader: Any, iterator: Any) -> Iterator[Any]:
        seen = self._of(loader)
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
                first = False
                self._look(seen, batch)
                outer, self._now = self._now, seen
                try:
                    yield batch
                finally:
                    self._now = outer
                    seen.steps_s.append(time.perf_counter() - got)
                if seen.backwards >= self._steps:
                    raise Enough
        finally:
            del iterator

    def _of(self, loader: Any) -> LoaderSeen:
        if id(loader) not in self._loaders:
            self._kept.append(loader)
            workers = 0 if getattr(loader, "_native", False) else loader.num_workers
            objects = held(loader.dataset, workers) if workers else None
            seen = LoaderSeen(
                dataset=type(loader.dataset).__name__,
                samples=len(loader.dataset) if hasattr(loader.dataset, "__len__") else 0,
                num_workers=loader.num_workers,
                batch_size=loader.batch_size or 1,
                pin_memory=bool(loader.pin_memory),
                persistent_workers=bool(loader.persistent_workers),
                shuffled=isinstance(getattr(loader, "sampler", None), RandomSampler),
                held="" if objects is None else objects.words(workers),
            )
            self._loaders[id(loader)] = seen
            self.seen.loaders.append(seen)
        return self._loaders[id(loader)]

    def _look(self, seen: LoaderSeen, batch: Any) -> None:
        tensors = list(_tensors(batch))
        seen.images += batch_length(batch)
        seen.batch_nbytes = max(seen.batch_nbytes, sum(tensor.nbytes for tensor in tensors))
        images = next((tensor for tensor in tensors if tensor.dim() == 4), None)
        if images is None:
            return
        shape = list(images.shape)
        if len(images) == seen.batch_size and shape != seen.image_shape:
            seen.image_shapes += 1
            seen.image_shape = shape
        seen.image_dtype = str(images.dtype).removeprefix("torch.")

    def _going_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def watched(*arguments: Any, **named: Any) -> Any:
            if self._now is not None:
                self._now.backwards += 1
            return backward(*arguments, **named)

        return watched

    def _reading(self, read: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(read)
        def watched(*arguments: Any, **named: Any) -> Any:
            if self._now is not None:
                self._now.items += 1
            return read(*arguments, **named)

        return watched

    def _forward(self, module: nn.Module, inputs: Any) -> None:
        self._depth += 1
        seen = self._now
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            self.seen.convolutions = True
        if self._depth > 1 or seen is None or isinstance(module, nn.modules.loss._Loss):
            return
        seen.forwards += 1
        seen.grad += torch.is_grad_enabled()
        seen.train_mode += module.training
        seen.autocast += _autocast()
        images = next((tensor for tensor in _tensors(inputs) if tensor.dim() == 4), None)
        if images is not None:
            seen.channels_last += images.is_contiguous(memory_format=torch.channels_last)

    def _forwarded(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._depth -= 1


def _autocast() -> bool:
    return torch.is_autocast_enabled() or torch.is_autocast_enabled("cpu")


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, dict):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _tensors(value)
