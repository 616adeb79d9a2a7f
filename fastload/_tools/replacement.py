"""``install`` and ``patched``: make torch's DataLoader give FastLoaders in any code.

torch's class stays where it is, so whatever refers to it means the same as before: ``isinstance``,
pickles, classes that were derived from it, and their calls of its methods. Only what happens at two
moments changes:

- An object of torch's class itself, which ``__init__`` is about to set up, becomes a FastLoader.
- A class that is derived from torch's, of which ``__init_subclass__`` is told, is derived from
  FastLoader instead.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

from .._base.torch_loader import DataLoader, is_torchs
from .._loader import FastLoader


class _Replacement:
    """What ``install`` changes in torch's class, and ``undo`` changes back."""

    def __init__(self) -> None:
        self._active = True
        self._torchs = torchs = DataLoader.__init__

        @functools.wraps(torchs)
        def init(loader: DataLoader[Any], *given: Any, **named: Any) -> None:
            if self._active and type(loader) is DataLoader:
                loader.__class__ = FastLoader
            if self._active and isinstance(loader, FastLoader) and not loader._loader_begun:
                vars(loader)["_torchs_init"] = functools.partial(torchs, loader)
                FastLoader.__init__(loader, *given, **named)
            else:
                torchs(loader, *given, **named)

        self._init = _with_parameters(torchs, init)
        setattr(DataLoader, "__init__", self._init)  # noqa: B010
        setattr(DataLoader, "__init_subclass__", classmethod(_derive))  # noqa: B010

    def undo(self) -> None:
        self._active = False
        # Other code that has wrapped it meanwhile will put it back: then it is as torch's.
        if DataLoader.__init__ is self._init:
            setattr(DataLoader, "__init__", self._torchs)  # noqa: B010
        delattr(DataLoader, "__init_subclass__")


class _NotGiven(int):
    """torch's default of ``num_workers``: FastLoader's is another one."""


def _with_parameters(torchs: Callable[..., None], init: Callable[..., None]) -> Callable[..., None]:
    """``init`` with the parameters that torch's ``__init__`` has in its code, and any others.

    Public code passes on what ``__code__.co_varnames`` or ``inspect.getfullargspec`` name, which
    do not follow ``__wrapped__``. Where others have wrapped torch's, theirs are no use to anybody.
    """
    if not isinstance(torchs, types.FunctionType) or not is_torchs(torchs):
        return init
    code, named = torchs.__code__, inspect.signature(torchs, follow_wrapped=False).parameters
    if len(named) != code.co_argcount + code.co_kwonlyargcount:
        return init  # doctor's wrapper, of which torch's iteration is as without it
    stub = _stub.__code__
    made = types.FunctionType(
        stub.replace(
            co_argcount=code.co_argcount,
            co_kwonlyargcount=code.co_kwonlyargcount,
            co_varnames=(*named, "others"),
            co_nlocals=len(named) + 1,
            co_flags=stub.co_flags | inspect.CO_VARKEYWORDS,
        ),
        {"__name__": __name__, "locals": locals, "given": functools.partial(_given, init)},
        argdefs=tuple(
            _NotGiven(each.default) if name == "num_workers" else each.default
            for name, each in named.items()
            if each.kind is each.POSITIONAL_OR_KEYWORD and each.default is not each.empty
        ),
    )
    made.__kwdefaults__ = dict(torchs.__kwdefaults__ or {})
    made.__signature__ = inspect.signature(torchs)  # type: ignore[attr-defined] # without others
    return functools.wraps(torchs)(made)


def _stub() -> None:
    """Its code gets other parameters. It can name no local variable, which would be one of them."""
    given(locals())  # type: ignore[name-defined] # noqa: F821


def _given(init: Callable[..., None], arguments: dict[str, Any]) -> None:
    """Call ``init`` with what was given."""
    others = arguments.pop("others")
    if isinstance(arguments["num_workers"], _NotGiven):
        del arguments["num_workers"]
    init(arguments.pop("self"), **arguments, **others)


def _derive(kind: type[DataLoader[Any]], /, **named: Any) -> None:
    """``__init_subclass__``: derive ``kind`` from FastLoader where it is derived from torch's."""
    super(DataLoader, kind).__init_subclass__(**named)
    bases = tuple(FastLoader if base is DataLoader else base for base in kind.__bases__)
    if bases != kind.__bases__:
        kind.__bases__ = bases
        kind._loader_of_torch = True  # type: ignore[attr-defined]


_installed: _Replacement | None = None


def install() -> None:
    """Make every DataLoader that is created from now on a FastLoader, also in other people's code.

    It does not matter where that code has torch's DataLoader from, or when it imported it:
    Lightning, transformers, accelerate, timm, and your own modules. Classes that are derived from
    now on are derived from FastLoader. Loaders and classes that exist already do not change.

    Code that passes ``num_workers=0``, as trainers do by default, gets what it asks for: no thread
    works beside the loop. ``explain()`` says so.

    Example:
        >>> fastload.install()
        >>> from their_project import train
        >>> train.main()
    """
    global _installed
    if _installed is None:
        _installed = _Replacement()


def uninstall() -> None:
    """Give other packages back what fastload has exchanged in them, in this process.

    - After ``install``, torch's DataLoader is as it was. Loaders created in between stay
      FastLoaders,
      and so do classes derived in between.
    - Functions of Pillow, torchvision, torch and OpenCV that a loader has redirected for a Dataset
      of your own (docs/your-dataset.md) have their own code again. A loader that makes another
      batch of such a Dataset redirects them again.

    Example:
        >>> fastload.install()
        >>> fastload.uninstall()
    """
    from .._sources.deferred import switch

    global _installed
    if _installed is not None:
        _installed.undo()
        _installed = None
    switch.uninstall()


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """``install`` for the duration of a ``with`` block; no effect if already installed.

    Example:
        >>> with fastload.patched():
        ...     trainer.fit(model, datamodule)
    """
    before = _installed
    install()
    try:
        yield
    finally:
        if before is None:
            uninstall()
