"""The engines: what fills a batch.

``native`` is the C++ core, ``python`` gives the same results through Pillow and NumPy, ``dali`` the
same crops through NVIDIA DALI, ``gather`` copies rows of tensors. They are ``Decoder``s
(``decoder.py``). Everything else goes through torch's own DataLoader machinery,
which FastLoader inherits: the ``workers`` engine.
"""

from __future__ import annotations

import functools

import numpy as np
import torch

from .. import _native
from .._base.slabs import SlabRing
from .._transforms.plan import Plan
from .._transforms.views import Views
from ..errors import UsageError
from ..storage.base import Store
from ..storage.tensors import gathers
from .decoder import Decoder, Ticket


def chosen(engine: str, store: Store | None = None) -> str:
    """What ``engine`` comes to here, "native" or "python"; "auto" prefers the core.

    The core reads files: a ``store`` whose records do not lie there as they are is for "python".
    Rows of tensors, of which nothing is to be made, are for "gather" in any case.

    "dali" stands for what decodes the samples that DALI cannot, and comes to what "auto" does.

    Raises MissingDependencyError for "native" where the core was not built; "auto" warns once.
    Raises UsageError for "native" where it cannot read ``store``.
    """
    if store is not None and gathers(store):
        return "gather"
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
    plan: Plan | Views,
    *,
    threads: int,
    ring: SlabRing | None,
    channels_last: bool = False,
    check_crc: str = "first",
    device: torch.device | None = None,
    hw_decoder_load: float | None = None,
) -> Decoder:
    """The decoder of "dali", or of ``chosen(engine, store)``.

    See ``Decoder`` and ``DaliDecoder`` for the other arguments; ``device`` None is the CPU.
    """
    if isinstance(plan, Views):
        from .views import ViewsDecoder

        return ViewsDecoder(
            [
                make_decoder(
                    engine,
                    store,
                    one,
                    threads=threads,
                    ring=None if ring is None else ring.another(),
                    channels_last=channels_last,
                    # the bytes are the same
                    check_crc="never" if number else check_crc,
                )
                for number, one in enumerate(plan.each)
            ]
        )
    if engine == "dali":
        from .nvidia.dali import HW_DECODER_LOAD, DaliDecoder

        return DaliDecoder(
            store,
            plan,
            device=device or torch.device("cpu"),
            fallback=functools.partial(make_decoder, "auto"),
            hw_decoder_load=HW_DECODER_LOAD if hw_decoder_load is None else hw_decoder_load,
            threads=threads,
            ring=ring,
            channels_last=channels_last,
            check_crc=check_crc,
        )
    return _kind(chosen(engine, store))(
        store,
        plan,
        threads=threads,
        ring=ring,
        channels_last=channels_last,
        check_crc=check_crc,
    )


def _kind(engine: str) -> type[Decoder]:
    """An engine's class. The others are not imported: that would take 10 ms of the first batch."""
    if engine == "native":
        from .native import NativeDecoder

        return NativeDecoder
    if engine == "gather":
        from .gather import GatherDecoder

        return GatherDecoder
    from .python import PythonDecoder

    return PythonDecoder


def load(store: Store) -> None:
    """Import what ``make_decoder("auto", store)`` needs: once, before processes are forked.

    Then they share what is remembered of its JPEGs, too.
    """
    if _kind(chosen("auto", store)).name == "native":
        from .entry_points import table_of

        table_of(store)


def images_of(
    decoder: Decoder,
    records: np.ndarray,
    *,
    seed: int,
    epoch: int,
    repeats: np.ndarray | None = None,
) -> torch.Tensor | list[torch.Tensor]:
    """The images of ``records``, waited for: one tensor, or a list where their sizes differ.

    The arguments and the errors are those of ``Decoder.submit`` and ``Ticket.result``.
    """
    assert isinstance(decoder.plan, Plan), "views are submitted, not asked for"
    # np.unique takes 50 ms when first used
    if decoder.plan.fixed_size or (
        not decoder.plan.drawn_size and len(np.unique(decoder.store.sizes(records), axis=0)) <= 1
    ):
        return _one(decoder.submit(records, seed=seed, epoch=epoch, repeats=repeats))
    each = zip(
        np.split(records, len(records)),
        [None] * len(records) if repeats is None else np.split(repeats, len(records)),
        strict=True,
    )
    return [
        _one(decoder.submit(one, seed=seed, epoch=epoch, repeats=times))[0] for one, times in each
    ]


def _one(ticket: Ticket) -> torch.Tensor:
    images = ticket.result()
    assert isinstance(images, torch.Tensor), "one plan makes one tensor"
    return images
