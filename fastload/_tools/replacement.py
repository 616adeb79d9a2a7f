"""``install`` and ``patched``: use FastLoader in place of torch's DataLoader in any code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .._base.rebind import rebind
from .._base.torch_loader import DataLoader as TorchLoader
from .._loader import FastLoader
from .._run.config import Sample


class _Same(type):
    """The metaclass of ``DataLoader``: ``isinstance`` and ``issubclass`` check torch's class.

    So loaders made before ``install``, also of derived classes, are still recognised.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        if cls is DataLoader:
            return isinstance(instance, TorchLoader)
        return super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        if cls is DataLoader:
            return issubclass(subclass, TorchLoader)
        return super().__subclasscheck__(subclass)


class DataLoader(FastLoader[Sample], metaclass=_Same):
    """A FastLoader under torch's name, while ``install`` is in effect.

    A separate class, so that ``uninstall`` finds every module that refers to it.
    """


def install() -> None:
    """Make every DataLoader that is created from now on a FastLoader, also in other people's code.

    ``torch.utils.data.DataLoader`` is replaced, and so is the name in every module that has
    imported it: in Lightning, transformers, accelerate, timm, and in your own modules. Modules
    imported later find the replacement in torch. ``isinstance(x, DataLoader)`` is still true for
    every loader for which it was true before. Classes already derived from torch's do not change.

    A second call replaces the name in modules that were imported since the first.

    Example:
        >>> fastload.install()
        >>> from their_project import train
        >>> train.main()
    """
    rebind(TorchLoader, DataLoader)


def uninstall() -> None:
    """Give other packages back what fastload has exchanged in them, in this process.

    - After ``install``, every module that refers to the replacement gets torch's DataLoader back.
      Loaders created in between stay FastLoaders, and so do classes derived in between.
    - Functions of Pillow, torchvision, torch and OpenCV that a loader has redirected for a Dataset
      of your own (docs/your-dataset.md) have their own code again. A loader that makes another
      batch of such a Dataset redirects them again.

    Example:
        >>> fastload.install()
        >>> fastload.uninstall()
    """
    from .._sources.deferred import switch

    rebind(DataLoader, TorchLoader)
    switch.uninstall()


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """``install`` for the duration of a ``with`` block; no effect if already installed.

    Example:
        >>> with fastload.patched():
        ...     trainer.fit(model, datamodule)
    """
    before = _installed()
    install()
    try:
        yield
    finally:
        if not before:
            uninstall()


def _installed() -> bool:
    from torch.utils import data

    return bool(data.DataLoader is DataLoader)
