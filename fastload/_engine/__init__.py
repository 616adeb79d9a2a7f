"""The engines: what fills a batch.

``native`` is the C++ core, ``python`` gives the same results through Pillow and NumPy. Both are a
``Decoder`` (``decoder.py``). Everything that is neither goes through torch's own DataLoader
machinery, which FastLoader inherits: the ``workers`` engine.
"""

from __future__ import annotations

from .. import _native
from .._buffers import SlabRing
from .._transforms import Plan
from ..errors import UsageError
from ..storage.base import Store
from .decoder import Decoder


def chosen(engine: str, store: Store | None = None) -> str:
    """What ``engine`` comes to here, "native" or "python"; "auto" prefers the core.

    The core reads files: a ``store`` whose records do not lie there as they are is for "python".

    Raises MissingDependencyError for "native" where the core was not built; "auto" warns once.
    Raises UsageError for "native" where it cannot read ``store``.
    """
    if store is not None and store.indirect is not None:
        if engine == "native":
            raise UsageError(f"engine='native' cannot read this store: {store.indirect}")
        return "python"
    if engine == "python" or _native.load() is not None:
        return "python" if engine == "python" else "native"
    if engine == "native":
        raise _native.missing()
    _native.warn_missing()
    return "python"


def make_decoder(
    engine: str,
    store: Store,
    plan: Plan,
    *,
    threads: int,
    ring: SlabRing | None,
    channels_last: bool = False,
    check_crc: str = "first",
) -> Decoder:
    """The decoder of ``chosen(engine, store)``. See ``Decoder`` for the other arguments."""
    from .native import NativeDecoder
    from .python import PythonDecoder

    kind: type[Decoder] = NativeDecoder if chosen(engine, store) == "native" else PythonDecoder
    return kind(
        store,
        plan,
        threads=threads,
        ring=ring,
        channels_last=channels_last,
        check_crc=check_crc,
    )
