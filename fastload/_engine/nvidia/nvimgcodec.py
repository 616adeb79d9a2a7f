"""The nvImageCodec engine: JPEGs through NVIDIA's decoders alone, and torch for the rest.

For where DALI is not installed. A thread of its own has the files of a batch decoded, only the
boxes that are wanted, and puts the resizes into the same stream, image by image; the next batch is
in work meanwhile. What the library is not given and what is not taken of it is said in
``foreign.py``. A broken image comes back as none, and is decoded again by itself.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..._transforms.recognise import Plan
from ..._transforms.views import Views
from ...errors import DataError
from ...storage.base import Store
from ..decoder import Batch, Ticket
from . import foreign, nvimages
from .foreign import ForeignDecoder, ForeignTicket, as_promised, resizes
from .windows import FILTERS, can_shrink, windows


def refusal(plan: Plan | Views, store: Store) -> str | None:
    """Why nvImageCodec and torch cannot make what ``plan`` says of ``store``, or None."""
    missing = "box, Hamming and Lanczos, nor its nearest"
    return foreign.refusal(plan, store, "torch on a GPU", FILTERS, missing)


class NvimgcodecDecoder(ForeignDecoder):
    """Fills batches with nvImageCodec. See ``ForeignDecoder`` for the arguments."""

    name = "nvimgcodec"
    library = nvimages

    def open(self, hw_decoder_load: float) -> None:
        """As in ``ForeignDecoder``."""
        plan = self.plan
        self.filter = plan.filter if resizes(plan) else None
        self.fill = torch.tensor(plan.fill, dtype=torch.uint8, device=self.device).view(3, 1, 1)
        self.codec = nvimages.Codec(self.stream, max(1, self.threads), hw_decoder_load)
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None

    def thread(self) -> concurrent.futures.ThreadPoolExecutor:
        """The thread that the library is used in; made on first use."""
        if self._thread is None:
            begin, arguments = None, tuple[Any, ...]()
            if self.stream is not None:  # a thread begins with GPU 0
                begin, arguments = torch.cuda.set_device, (self.device,)
            self._thread = concurrent.futures.ThreadPoolExecutor(
                1, "fastload-nvimgcodec", initializer=begin, initargs=arguments
            )
        return self._thread

    def release(self, user: object) -> None:
        """As in the contract."""
        super().release(user)
        if not self._users:
            thread, self._thread = self._thread, None
            if thread is not None:
                thread.shutdown(wait=True, cancel_futures=True)
            self.codec.settle()

    def _start(self, batch: Batch) -> Ticket:
        return _NvimgcodecTicket(self, batch)


class _NvimgcodecTicket(ForeignTicket):
    _decoder: NvimgcodecDecoder
    _future: concurrent.futures.Future[tuple[torch.Tensor | None, np.ndarray]] | None = None
    _data: list[np.ndarray | None]
    _dropped = False
    _failed = False  # on every one of its images

    def takes(self, batch: Batch) -> np.ndarray:
        return can_shrink(batch.geometry)

    def begin(self, data: list[np.ndarray | None]) -> None:
        self._data = data
        if self._decoder.threads:
            self._future = self._decoder.thread().submit(self._decoded)

    def wait(self) -> tuple[torch.Tensor | None, np.ndarray]:
        self._refuse_cancelled()
        # threads=0: the caller does the work
        return self._decoded() if self._future is None else self._future.result()

    def drop(self) -> None:
        self._dropped = True
        if self._future is not None:
            self._future.cancel()

    def failed(self, errors: Mapping[int, DataError]) -> None:
        if not self._failed:
            self._decoder.failures = 0
        elif not errors:
            self._decoder.failed("what stands on stderr; its extra [nvjpeg] has its JPEG decoder")

    def _decoded(self) -> tuple[torch.Tensor | None, np.ndarray]:
        """As ``wait``."""
        decoder, batch, given = self._decoder, self.batch, self.given
        none = None, np.empty(0, np.int64)
        if self._dropped:
            return none
        files = [data for data in self._data if data is not None]
        self._data = []
        streams, found = decoder.codec.headers(files)
        good = as_promised(batch, given, found)
        if not len(good):
            return none

        def made(crops: list[torch.Tensor], which: np.ndarray) -> torch.Tensor:
            samples = given[good[which]]
            return windows(crops, batch.geometry, samples, decoder.filter, decoder.fill)

        images, decoded = decoder.codec.decode(
            [streams[i] for i in good.tolist()],
            batch.sizes[given[good]],
            batch.geometry.box[given[good]],
            made,
        )
        # Not given to it again: it says on stderr what it fails on.
        failed = np.setdiff1d(good, good[decoded])
        decoder.for_cpu[batch.records[given[failed]]] = True
        self._failed = not len(decoded)
        return images, good[decoded]
