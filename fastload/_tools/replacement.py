"""FastLoader in the place of torch's DataLoader, under code that one does not own."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from typing import Any

from .._base.torch_loader import DataLoader as Torchs
from .._loader import FastLoader
from .._run.config import Sample


class _Same(type):
    """The class of ``DataLoader``: for ``isinstance`` and ``issubclass`` that is torch's class.

    So loaders that were made before, of classes that were derived before, are known still.
    """

    def __instancecheck__(cls, instance: Any) -> bool:
        if cls is DataLoader:
            return isinstance(instance, Torchs)
        return super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        if cls is DataLoader:
            return issubclass(subclass, Torchs)
        return super().__subclasscheck__(subclass)


class DataLoader(FastLoader[Sample], metaclass=_Same):
    """A FastLoader, by the name that it is found under while ``install`` is in effect.

    It is a class of its own so that ``uninstall`` finds every module that has come to hold it.
    """


def install() -> None:
    """Make every DataLoader that is made from now on a FastLoader, in code of others too.

    ``torch.utils.data.DataLoader`` is replaced, and so is the name in every module that has
    imported it: Lightning's, transformers', accelerate's, timm's, and the caller's own. Modules
    that are imported later find the replacement in torch. ``isinstance(x, DataLoader)`` holds for
    what it held for before. Classes that were derived from torch's before stay what they are.

    A second call does nothing but replace the name in what was imported since.

    Example:
        >>> fastload.install()
        >>> from their_project import train
        >>> train.main()
    """
    _rebind(Torchs, DataLoader)


def uninstall() -> None:
    """Undo ``install``: every module that holds the replacement has torch's DataLoader again.

    Loaders that were made meanwhile stay FastLoaders, and so do classes derived meanwhile.
    """
    _rebind(DataLoader, Torchs)


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """``install`` for the length of a ``with`` block; within ``install`` it changes nothing.

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


def _rebind(old: type, new: type) -> None:
    """In all modules but fastload's, each name that is bound to ``old`` is bound to ``new``."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "fastload" or not isinstance(module, types.ModuleType):
            continue
        names = vars(module)  # past __setattr__ and __getattr__, which modules may have
        for known in [known for known, value in list(names.items()) if value is old]:
            names[known] = new
