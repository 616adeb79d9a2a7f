"""The engines by name: what each can do, without importing it.

Everything that depends on which engine runs asks here. An engine is an ``EngineKind`` in ``KINDS``;
a name that users may choose is also in ``hints.Engine``.
"""

from __future__ import annotations

import abc
from typing import ClassVar

import numpy as np
import torch

from .. import _native
from .._transforms.plan import Plan, Views
from ..errors import MissingDependencyError, UsageError
from ..storage.base import Store
from ..storage.tensors import gathers
from .base import BatchEngine, one_tensor
from .image_engine import EngineOptions, ImageEngine

_TORCH = "torch"
_RAY = "ray"


class EngineKind(abc.ABC):
    """What is known of an engine before it is made.

    Attributes:
        name: as ``FastLoader(engine=...)`` and ``stats()["engine"]`` have it.
        on_device: it decodes where batches are wanted, which may be a GPU, and finishes images
            there; it has batches in flight of its own, and takes no cache.
        takes_processes: processes may decode what it leaves to Pillow, if it was asked for by name.
    """

    name: ClassVar[str]
    on_device: ClassVar[bool] = False
    takes_processes: ClassVar[bool] = False

    @abc.abstractmethod
    def make(self, store: Store, plan: Plan, options: EngineOptions) -> BatchEngine:
        """The engine itself."""

    def missing(self) -> MissingDependencyError | None:
        """The error that says what to install if it is not available here; else None."""
        return None

    @abc.abstractmethod
    def refusal(self, store: Store, plan: Plan | Views | None = None) -> str | None:
        """Why it cannot read ``store``, or do what ``plan`` says; None: it can."""

    def no_dct_cache(self) -> str | None:
        """Why its cache cannot hold DCT records; None: it can."""
        return "only the native engine makes these"

    def describe(self) -> str:
        """Its name and version for ``explain()``."""
        return self.name


class _Native(EngineKind):
    name = "native"
    takes_processes = True

    def make(self, store: Store, plan: Plan, options: EngineOptions) -> ImageEngine:
        from .native import NativeEngine

        return NativeEngine(store, plan, options)

    def missing(self) -> MissingDependencyError | None:
        return _native.missing() if _native.load() is None else None

    def refusal(self, store: Store, plan: Plan | Views | None = None) -> str | None:
        return None

    def no_dct_cache(self) -> str | None:
        if not _native.required().dct_usable():
            return "the libjpeg that is linked here does not decode these faster than JPEGs"
        return None


class _Rows(EngineKind):
    name = "gather"

    def make(self, store: Store, plan: Plan, options: EngineOptions) -> BatchEngine:
        from .rows import RowsEngine

        return RowsEngine(store, plan, options)

    def refusal(self, store: Store, plan: Plan | Views | None = None) -> str | None:
        return None if gathers(store) else "it copies rows of tensors and decodes nothing"


class _Dali(EngineKind):
    name = "dali"
    on_device = True

    def make(self, store: Store, plan: Plan, options: EngineOptions) -> ImageEngine:
        from .nvidia.dali import DaliEngine

        return DaliEngine(store, plan, options)

    def missing(self) -> MissingDependencyError | None:
        from .nvidia import dali_graph

        return dali_graph.missing() if dali_graph.absent() else None

    def refusal(self, store: Store, plan: Plan | Views | None = None) -> str | None:
        if gathers(store):
            return "rows of tensors are not decoded"
        from .nvidia import dali, dali_graph

        return dali_graph.absent() or dali.refusal(plan, store)

    def describe(self) -> str:
        from .nvidia import dali_graph

        return f"DALI {dali_graph.version()}"


NATIVE, ROWS, DALI = _Native(), _Rows(), _Dali()

KINDS: dict[str, EngineKind] = {kind.name: kind for kind in (NATIVE, ROWS, DALI)}
"""Every engine, by name."""


def chosen(engine: str, store: Store | None = None) -> EngineKind:
    """The engine on the CPU that ``FastLoader(engine=engine)`` means for ``store``.

    "auto" takes the native engine. For an engine on a device this is the one that decodes the
    samples that the device cannot. Rows of tensors always get the engine that copies them.

    Raises MissingDependencyError if it is not available here, UsageError if it cannot read
    ``store``.
    """
    if store is not None and ROWS.refusal(store) is None:
        return ROWS
    asked = KINDS.get(engine)
    if asked is None or asked.on_device:
        asked = NATIVE
    reason = None if store is None else asked.refusal(store)
    if reason is not None:
        raise UsageError(f"engine={engine!r} cannot read this store: {reason}")
    missing = asked.missing()
    if missing is not None:
        raise missing
    return asked


def make_engine(
    engine: str, store: Store, plan: Plan | Views, options: EngineOptions
) -> BatchEngine:
    """The engine on a device that has this name, or ``chosen(engine, store)``, which says what it
    raises.
    """
    if isinstance(plan, Views):
        from .views import ViewsEngine

        made = []
        for view, one in enumerate(plan.each):
            of_view = make_engine(engine, store, one, options.of_view(view))
            assert isinstance(of_view, ImageEngine), "rows of tensors have no views"
            made.append(of_view)
        return ViewsEngine(made)
    kind = KINDS[engine] if on_device(engine) else chosen(engine, store)
    return kind.make(store, plan, options)


def on_device(engine: str) -> bool:
    """Whether ``engine`` names an engine that decodes where batches are wanted."""
    return engine in KINDS and KINDS[engine].on_device


def on_ray(engine: str) -> bool:
    """Whether ``FastLoader(engine=engine)`` has tasks on a Ray cluster fill batches."""
    return engine == _RAY


def is_engine(engine: str) -> bool:
    """Whether ``FastLoader(engine=engine)`` asks for an engine by its name."""
    return engine in KINDS or on_ray(engine)


def is_torch(engine: str) -> bool:
    """Whether ``FastLoader(engine=engine)`` asks for torch's machinery."""
    return engine == _TORCH


def may_use_processes(engine: str) -> bool:
    """Whether ``FastLoader(engine=engine)`` may have processes decode with Pillow."""
    asked = KINDS.get(engine)
    return not is_torch(engine) and (asked is None or asked.takes_processes)


def images_of(
    engine: BatchEngine,
    records: np.ndarray,
    *,
    seed: int,
    epoch: int,
    repeats: np.ndarray | None = None,
) -> torch.Tensor | list[torch.Tensor]:
    """Wait for the images of ``records``: one tensor, or a list where their sizes differ.

    The arguments and the errors are those of ``BatchEngine.submit`` and ``Ticket.result``.
    """
    if engine.uniform(records):
        return one_tensor(engine.submit(records, seed=seed, epoch=epoch, repeats=repeats).result())
    each = zip(
        np.split(records, len(records)),
        [None] * len(records) if repeats is None else np.split(repeats, len(records)),
        strict=True,
    )
    return [
        one_tensor(engine.submit(one, seed=seed, epoch=epoch, repeats=times).result())[0]
        for one, times in each
    ]
