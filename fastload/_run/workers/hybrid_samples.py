"""HybridSamples: an engine does the first part of a transform, and Python the rest."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from ..._base.indices import as_indices, repeats_within
from ..._base.machine import cpu
from ..._base.slabs import SlabRing
from ..._engine.base import BatchEngine
from ..._engine.image_engine import EngineOptions
from ..._engine.registry import images_of, make_engine, preload
from ..._sources.collate import annotations_of, samples_of
from ..._sources.packed import PackedDataset
from ..._sources.source import Source, nested
from ..._transforms.python_suffix import Parts
from ..._transforms.views import seed_of
from ...hints import CheckCrc
from . import randomness


class HybridSamples:
    """Makes samples: the engine's part for a whole batch, then Python's part one by one.

    It can be pickled, as each process makes its own decoders. A worker process, one of many,
    decodes on its own thread; the training process uses a thread for each CPU.

    Args:
        source: its ``hybrid`` says what each part does.
        dataset: the dataset of ``source``; if it has a seed and an epoch, they are used.
        check_crc: as for ``EngineOptions``.
    """

    def __init__(self, source: Source, dataset: Any, check_crc: CheckCrc) -> None:
        assert source.hybrid is not None
        self._source = source
        self._hybrid: Parts = source.hybrid
        self._packed = [one for one in nested(dataset) if isinstance(one, PackedDataset)][:1]
        self._check_crc = check_crc
        preload(source.store)
        self._made: tuple[int, list[BatchEngine]] | None = None

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
            indices: ints; TypeError for anything else, as from a list.
            seed, epoch: of the engine's random numbers. If ``seed`` is None and the engine needs
                random numbers, one is drawn from torch's generator.
            repeats: how often each index occurred before in this epoch; None: never.
            seeds: one for each sample; the global generators are seeded with it before Python's
                part. None: they are not seeded.

        Raises:
            DataError: a sample cannot be read. Errors of the transforms are raised as they are.
        """
        records = self._source.lookup(as_indices(indices))
        counts = None if repeats is None else np.asarray(repeats, np.int64)
        if seed is None:
            draw = self._packed[0].draw() if self._packed else None
            if draw is None:
                # If the engine needs no random numbers, none are drawn, so that Python's part gets
                # the same numbers as in torch.
                random = any(part.plan.random for part in self._hybrid.each)
                draw = int(torch.empty((), dtype=torch.int64).random_()) if random else 0, 0
                counts = repeats_within(records)
            seed, epoch = draw
        images = [
            images_of(engine, records, seed=seed_of(seed, view), epoch=epoch, repeats=counts)
            for view, engine in enumerate(self._engines())
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

    def _engines(self) -> list[BatchEngine]:
        """The engines of this process, one for each view. After a fork, new ones are made."""
        if self._made is None or self._made[0] != os.getpid():
            threads = 0 if get_worker_info() is not None else cpu.available()
            made = [
                make_engine(
                    "auto",
                    self._source.store,
                    part.plan,
                    EngineOptions(
                        threads=threads,
                        ring=SlabRing(2),
                        channels_last=part.as_pillow,
                        check_crc=self._check_crc,
                    ),
                )
                for part in self._hybrid.each
            ]
            self._made = os.getpid(), made
        return self._made[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}
