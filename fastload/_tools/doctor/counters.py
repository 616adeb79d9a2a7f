"""Counts what datasets do, in the script's process and in the workers it forks.

The counters are in shared memory, one row per process, so no locks are needed.
"""

from __future__ import annotations

import functools
import mmap
import os
import sys
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from PIL import Image, ImageFile

from ..._base.machine import cpu
from .profiler import Profiler

_Loaded = TypeVar("_Loaded")

_ROWS = 256
SUMS = (
    "fetch_s", "fetch_cpu_s", "fetched", "loads", "load_s", "load_pixels", "resizes", "resize_s",
    "opens", "open_nbytes",
)  # fmt: skip
"""The counters that an ``Observation`` has, summed over all processes."""

_NAMES = (*SUMS, "threads", "batches")


class Counters:
    """Patches torch, Pillow and ``open`` to count calls in the code of datasets.

    It tells ``profiler`` when that code runs.
    """

    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler
        memory = mmap.mmap(-1, _ROWS * len(_NAMES) * 8)
        self._table = np.frombuffer(memory, np.float64).reshape(_ROWS, len(_NAMES))
        self._row = 0
        self._pid = os.getpid()
        self._inside = 0  # depth of calls into a dataset
        self._whole = (0, 0)  # size of the last decoded image

    def add(self, name: str, value: float = 1.0) -> None:
        """Add to a counter of this process."""
        if os.getpid() != self._pid:  # a forked worker uses another row
            from torch.utils.data import get_worker_info

            self._pid = os.getpid()
            info = get_worker_info()
            self._row = 0 if info is None else 1 + info.id % (_ROWS - 1)
        self._table[self._row, _NAMES.index(name)] += value

    def total(self, name: str) -> float:
        """The sum of a counter over all processes."""
        return float(self._table[:, _NAMES.index(name)].sum())

    def most(self, name: str) -> float:
        """The largest value in any worker process."""
        return float(self._table[1:, _NAMES.index(name)].max())

    def install(self) -> None:
        """Start counting."""
        from torch.utils.data._utils import fetch

        for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            kind.fetch = self._fetching(kind.fetch)  # type: ignore[method-assign]
        sys.addaudithook(self._audit)
        ImageFile.ImageFile.load = self._loading(ImageFile.ImageFile.load)  # type: ignore[assignment, method-assign]
        Image.Image.resize = self._resizing(Image.Image.resize)  # type: ignore[method-assign]

    def _fetching(self, fetch: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(fetch)
        def counted(fetcher: object, indices: object) -> object:
            import torch

            begin, begin_cpu = time.perf_counter(), cpu.wanted()
            self._inside += 1
            self._profiler.enter()
            try:
                return fetch(fetcher, indices)
            finally:
                self._inside -= 1
                self._profiler.leave()
                self.add("batches")
                self.add("fetch_s", time.perf_counter() - begin)
                self.add("fetch_cpu_s", cpu.wanted() - begin_cpu)
                self.add("fetched", len(indices) if hasattr(indices, "__len__") else 1)
                # Not a sum, but the current number of the process.
                self._table[self._row, _NAMES.index("threads")] = torch.get_num_threads()

        return counted

    def _loading(
        self, load: Callable[[ImageFile.ImageFile], _Loaded]
    ) -> Callable[[ImageFile.ImageFile], _Loaded]:
        @functools.wraps(load)
        def counted(image: ImageFile.ImageFile) -> _Loaded:
            if not self._inside or not image.tile:  # decoded already
                return load(image)
            begin = time.perf_counter()
            loaded = load(image)
            self.add("load_s", time.perf_counter() - begin)
            self.add("loads")
            self.add("load_pixels", image.width * image.height)
            self._whole = image.size
            return loaded

        return counted

    def _resizing(self, resize: Callable[..., Image.Image]) -> Callable[..., Image.Image]:
        @functools.wraps(resize)
        def counted(
            image: Image.Image, size: object, *arguments: object, **named: object
        ) -> Image.Image:
            if not self._inside or named.get("box") is not None or len(arguments) > 1:
                return resize(image, size, *arguments, **named)
            begin = time.perf_counter()
            resized = resize(image, size, *arguments, **named)
            # Only whole images: they give the same result in every epoch, random crops do not.
            if image.size == self._whole and resized.width * resized.height < (
                image.width * image.height
            ):
                self.add("resizes")
                self.add("resize_s", time.perf_counter() - begin)
            return resized

        return counted

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        """Called by Python for every audit event, ``open`` among them."""
        if event != "open" or not self._inside:
            return
        path, mode, _ = arguments
        if not isinstance(path, (str, bytes)) or (isinstance(mode, str) and "r" not in mode):
            return
        try:
            size = os.stat(path).st_size
        except OSError:
            return
        self.add("opens")
        self.add("open_nbytes", size)
