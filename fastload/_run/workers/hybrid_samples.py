"""Samples whose transform an engine begins and Python ends, in a worker process or in this one."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from ..._base.indices import as_indices, repeats_within
from ..._base.machine import cpu
from ..._base.slabs import SlabRing
from ..._engine import images_of, load, make_decoder
from ..._engine.decoder import Decoder
from ..._sources.collate import annotations_of, samples_of
from ..._sources.packed import PackedDataset
from ..._sources.source import Source, nested
from ..._transforms.python_suffix import Parts
from ..._transforms.views import seed_of
from . import randomness


class HybridSamples:
    """Makes samples: for a whole batch what an engine can do, then one by one what is left.

    Picklable: a process makes its own decoder. A worker process decodes on its own thread, as it is
    one of many; this process on as many as it may use.

    Args:
        source: whose ``halves`` say what is to be done.
        dataset: that it was resolved from; where it has an epoch, that counts.
        check_crc: as for ``Decoder``.
    """

    def __init__(self, source: Source, dataset: Any, check_crc: str) -> None:
        assert source.hybrid is not None
        self._source = source
        self._hybrid: Parts = source.hybrid
        self._packed = [one for one in nested(dataset) if isinstance(one, PackedDataset)][:1]
        self._check_crc = check_crc
        load(source.store)
        self._made: tuple[int, list[Decoder]] | None = None

    def __call__(
        self,
        indices: list[Any],
        *,
        seed: int | None,
        epoch: int,
        repeats: list[int] | None,
        seeds: list[int] | None,
    ) -> list[Any]:
        """The samples ``indices`` of the dataset.

        Args:
            indices: ints; TypeError for anything else, as of a list.
            seed, epoch: of the engine's random numbers; without a seed torch's generator draws one
                where the engine needs any.
            repeats: how often each index came before in this epoch; None: never.
            seeds: of Python's part, one for each sample: the global generators are seeded with it.

        Raises:
            DataError: a sample cannot be read; or whatever the transforms raise.
        """
        records = self._source.lookup(as_indices(indices))
        counts = None if repeats is None else np.asarray(repeats, np.int64)
        if seed is None:
            draw = self._packed[0].draw() if self._packed else None
            if draw is None:
                # Where the engine needs no chance, Python's part gets the numbers that torch gives.
                chance = any(part.plan.random for part in self._hybrid.each)
                draw = int(torch.empty((), dtype=torch.int64).random_()) if chance else 0, 0
                counts = repeats_within(records)
            seed, epoch = draw
        images = [
            images_of(decoder, records, seed=seed_of(seed, view), epoch=epoch, repeats=counts)
            for view, decoder in enumerate(self._decoders())
        ]

        def begin(i: int) -> None:
            if seeds is not None:
                randomness.seed_all(seeds[i])

        source = self._source
        samples = self._hybrid.samples(images, source.store, records, begin)
        annotations = annotations_of(
            source.store, records, source.labels, source.target_transform, source.fields
        )
        return samples_of(samples, annotations)

    def _decoders(self) -> list[Decoder]:
        """One for each chain, of this process: not those of before a fork, with their threads."""
        if self._made is None or self._made[0] != os.getpid():
            threads = 0 if get_worker_info() is not None else cpu.available()
            made = [
                make_decoder(
                    "auto",
                    self._source.store,
                    part.plan,
                    threads=threads,
                    ring=SlabRing(2),
                    channels_last=part.as_pillow,
                    check_crc=self._check_crc,
                )
                for part in self._hybrid.each
            ]
            self._made = os.getpid(), made
        return self._made[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}
