"""The engines: what fills a batch.

``native`` is the C++ core, ``python`` gives the same results through Pillow and NumPy. Both are a
``Decoder`` (``decoder.py``). Everything that is neither goes through torch's own DataLoader
machinery, which FastLoader inherits: the ``workers`` engine.
"""

from __future__ import annotations

from .. import _native
from .._buffers import SlabRing
from .._transforms import Plan
from ..storage.base import Store
from .decoder import Decoder


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
    """The decoder of ``engine``: "native", "python", or "auto", which prefers the core.

    Raises MissingDependencyError for "native" where the core was not built; "auto" warns once.
    """
    from .native import NativeDecoder
    from .python import PythonDecoder

    core = None if engine == "python" else _native.load()
    if core is None:
        if engine == "native":
            raise _native.missing()
        if engine == "auto":
            _native.warn_missing()
        return PythonDecoder(
            store,
            plan,
            channels_last=channels_last,
            threads=threads,
            check_crc=check_crc,
            ring=ring,
        )
    return NativeDecoder(
        store,
        plan,
        core=core,
        channels_last=channels_last,
        threads=threads,
        check_crc=check_crc,
        ring=ring,
    )
