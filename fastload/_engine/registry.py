"""The engines by name: what each can do, without importing it.

Everything that depends on which engine runs asks here. An engine is an ``EngineKind`` in ``KINDS``;
a name that users may choose is also in ``hints.Engine``.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from .. import _native
from ..errors import MissingDependencyError

if TYPE_CHECKING:
    from .._transforms.plan import Plan, Views
    from ..storage.base import Store
    from .base import BatchEngine
    from .image_engine import EngineOptions, ImageEngine

_TORCH = "torch"
_RAY = "ray"


class EngineKind(abc.ABC):
    """What is known of an engine before it is made.

    Attributes:
        name: as ``FastLoader(engine=...)`` and ``stats()["engine"]`` have it.
        on_device: it decodes where batches are wanted, which may be a GPU, and finishes images
            there; it has batches in flight of its own, and takes no cache.
    """

    name: ClassVar[str]
    on_device: ClassVar[bool] = False

    @abc.abstractmethod
    def make(self, store: Store, plan: Plan, options: EngineOptions) -> BatchEngine:
        """The engine itself."""

    def missing(self) -> MissingDependencyError | None:
        """The error that says what to install if it is not available here; else None."""
        return None

    def refusal(self, store: Store, plan: Plan | Views) -> str | None:
        """Why it cannot read ``store``, or do what ``plan`` says; None: it can."""
        return None

    def no_dct_cache(self) -> str | None:
        """Why its cache cannot hold DCT records; None: it can."""
        return "only the native engine makes these"

    def describe(self) -> str:
        """Its name and version for ``explain()``."""
        return self.name


class _Native(EngineKind):
    name = "native"

    def make(self, store: Store, plan: Plan, options: EngineOptions) -> ImageEngine:
        from .native import NativeEngine

        return NativeEngine(store, plan, options)

    def missing(self) -> MissingDependencyError | None:
        return _native.missing() if _native.load() is None else None

    def no_dct_cache(self) -> str | None:
        if not _native.required().dct_usable():
            return "the libjpeg that is linked here does not decode these faster than JPEGs"
        return None


class _Rows(EngineKind):
    name = "gather"

    def make(self, store: Store, plan: Plan, options: EngineOptions) -> BatchEngine:
        from .rows import RowsEngine

        return RowsEngine(store, plan, options)


class _Dali(EngineKind):
    name = "dali"
    on_device = True

    def make(self, store: Store, plan: Plan, options: EngineOptions) -> ImageEngine:
        from .nvidia.dali import DaliEngine

        return DaliEngine(store, plan, options)

    def missing(self) -> MissingDependencyError | None:
        from .nvidia import dali_graph

        return dali_graph.missing() if dali_graph.absent() else None

    def refusal(self, store: Store, plan: Plan | Views) -> str | None:
        from ..storage.memory import gathers

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


def native() -> EngineKind:
    """The engine on the CPU for images. Beside one on a device, it decodes what that cannot.

    Raises MissingDependencyError if it is not available here.
    """
    missing = NATIVE.missing()
    if missing is not None:
        raise missing
    return NATIVE


def make_engine(
    kind: EngineKind, store: Store, plan: Plan | Views, options: EngineOptions
) -> BatchEngine:
    """The engine of this kind; for several views, one that fills a batch for each."""
    from .._transforms.plan import Plan

    if isinstance(plan, Plan):
        return kind.make(store, plan, options)
    from .image_engine import ImageEngine
    from .views import ViewsEngine

    engines = []
    for view, view_plan in enumerate(plan.each):
        of_view = kind.make(store, view_plan, options.of_view(view))
        assert isinstance(of_view, ImageEngine), "rows of tensors have no views"
        engines.append(of_view)
    return ViewsEngine(engines)


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
    from .base import one_tensor

    if engine.uniform(records):
        return one_tensor(engine.submit(records, seed=seed, epoch=epoch, repeats=repeats).result())
    each = zip(
        np.split(records, len(records)),
        [None] * len(records) if repeats is None else np.split(repeats, len(records)),
        strict=True,
    )
    return [
        one_tensor(engine.submit(record, seed=seed, epoch=epoch, repeats=times).result())[0]
        for record, times in each
    ]
