"""nvImageCodec, NVIDIA's library of image decoders: JPEG files in, pixels of their boxes out.

Note [Memory and streams]
    The library makes the memory of an image as its stream's, and gives it back in that stream's
    order. Everything that reads it is put into the same stream. But a GPU's JPEG engine has been
    seen to write without regard to streams (torchcodec's pull request 1634), so no image is let go
    of before the work on it is done: ``Codec`` keeps those of one batch until the next is decoded,
    and their files too, which the library reads in place.

Note [The edge of a box]
    With nvJPEG before 13.2, and so with all of CUDA 12, colours at the edge of a box are made up
    without what lies beside it, and nvImageCodec refuses such boxes where it is not told otherwise.
    It is told, and given boxes with a margin, which is cut off again.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..._base.devices.cuda import on_stream
from ...errors import MissingDependencyError, UsageError, install

_MARGIN = 2
"""Pixels around a box; NVIDIA names one that may be wrong."""

# The process in which it runs: a fork has none of its threads.
_process: int | None = None
_of_the_parent: list[Any] = []


def absent() -> str | None:
    """Why nvImageCodec cannot be used here, or None."""
    try:
        importlib.import_module("nvidia.nvimgcodec")
    except ImportError as error:
        return f"nvidia-nvimgcodec is not installed ({error})"
    return None


def missing() -> MissingDependencyError:
    """The error for what cannot be done without it."""
    return MissingDependencyError(
        f"engine='nvimgcodec' needs nvImageCodec: {absent()}; {install('nvimgcodec')} (CUDA 12) or "
        f"{install('nvimgcodec-cuda13')}"
    )


def version() -> str:
    """Of the nvImageCodec that is installed."""
    return str(importlib.import_module("nvidia.nvimgcodec").__version__)


class Codec:
    """Decodes JPEG files. To be used by one thread at a time; made when it is first used.

    Args:
        stream: of the GPU to decode on; None: the CPU.
        threads: of the host, at least 1.
        hw_decoder_load: share of the images that the GPU's JPEG engine decodes, where it has one.
    """

    def __init__(
        self, stream: torch.cuda.Stream | None, threads: int, hw_decoder_load: float
    ) -> None:
        self._stream = stream
        # It takes one thread less than there are cores, and warns of more.
        self._threads = max(1, min(threads, (os.cpu_count() or 1) - 1))
        self._load = hw_decoder_load
        self._decoder: Any = None
        self._params: Any = None
        self._held: tuple[Any, Any] | None = None
        self._pid = os.getpid()

    # Bound here: where the interpreter ends, the module's names may be gone before this is called.
    def __del__(
        self, getpid: Callable[[], int] = os.getpid, kept: list[Any] = _of_the_parent
    ) -> None:
        if self._decoder is not None and getpid() != self._pid:
            kept.append((self._decoder, self._held))  # it would wait for its threads

    def headers(self, files: Sequence[np.ndarray]) -> tuple[list[Any], np.ndarray]:
        """Handles of ``files``, uint8 (nbytes,) each, and int64 (n, 3): height, width, channels.

        A file that is no image has None for a handle, and zeros.
        """
        library = self._library()
        streams, found = list[Any](), np.zeros((len(files), 3), np.int64)
        for i, file in enumerate(files):
            try:
                stream = library.CodeStream(file)
            except RuntimeError:  # whoever decodes it otherwise says what is wrong
                stream = None
            else:
                found[i] = stream.height, stream.width, stream.num_channels
            streams.append(stream)
        return streams, found

    def decode(
        self,
        streams: Sequence[Any],
        sizes: np.ndarray,
        boxes: np.ndarray,
        then: Callable[[list[torch.Tensor], np.ndarray], torch.Tensor],
    ) -> tuple[torch.Tensor | None, np.ndarray]:
        """Decode the boxes of images, and do something with those that can be decoded.

        Args:
            streams: handles of their files.
            sizes: width and height of each image, (n, 2).
            boxes: x, y, width and height in each, (n, 4).
            then: is given the pixels, uint8 (h, w, 3) each, and their places among ``streams``; its
                work belongs to the stream.

        Returns:
            What ``then`` gave, or None where there was nothing to give to it; and those places.
        """
        library = self._library()
        parts, cuts = [], []
        for stream, (w, h), (x, y, width, height) in zip(
            streams, sizes.tolist(), boxes.tolist(), strict=True
        ):
            left, top = max(0, x - _MARGIN), max(0, y - _MARGIN)
            right, bottom = min(w, x + width + _MARGIN), min(h, y + height + _MARGIN)
            if (right - left, bottom - top) != (w, h):
                region = library.Region(top, left, bottom, right)
                stream = stream.get_sub_code_stream(region=region)
            parts.append(stream)
            cuts.append((slice(y - top, y - top + height), slice(x - left, x - left + width)))

        if self._stream is None:
            images = self._decoder.decode(parts, params=self._params)
            return self._then(images, cuts, then, lambda image: torch.from_numpy(np.asarray(image)))
        with on_stream(self._stream):
            images = self._decoder.decode(
                parts, params=self._params, cuda_stream=self._stream.cuda_stream
            )
            device = self._stream.device
            made = self._then(
                images, cuts, then, lambda image: torch.as_tensor(image, device=device)
            )
            done: Any = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            done.record(self._stream)
        before, self._held = self._held, (done, (images, parts, streams))
        if before is not None:
            before[0].synchronize()
        return made

    def settle(self) -> None:
        """Let go of images, when the work on them is done."""
        held, self._held = self._held, None
        if held is not None:
            held[0].synchronize()

    @staticmethod
    def _then(
        images: Sequence[Any],
        cuts: Sequence[tuple[slice, slice]],
        then: Callable[[list[torch.Tensor], np.ndarray], torch.Tensor],
        as_tensor: Callable[[Any], torch.Tensor],
    ) -> tuple[torch.Tensor | None, np.ndarray]:
        good = np.array([i for i, image in enumerate(images) if image is not None], np.int64)
        if not len(good):
            return None, good
        return then([as_tensor(images[i])[cuts[i]] for i in good.tolist()], good), good

    def _library(self) -> Any:
        """The module; its decoder is there afterwards.

        Raises UsageError in a child of the process that uses it.
        """
        global _process
        if _process not in (None, os.getpid()):
            raise UsageError(
                "nvImageCodec does not survive a fork: this process is a child of one that has "
                "used it; start the child by 'spawn', or decode on the CPU there (engine='native')"
            )
        _process = os.getpid()
        library = importlib.import_module("nvidia.nvimgcodec")
        if self._decoder is None:
            kinds, backend = library.BackendKind, library.Backend
            # None of the CPU's beside the GPU's: what the GPU cannot decode is for our engines.
            backends = [
                backend(kinds.HW_GPU_ONLY, load_hint=self._load),
                backend(kinds.GPU_ONLY),
                backend(kinds.HYBRID_CPU_GPU),
            ]
            device = library.NVIMGCODEC_DEVICE_CPU_ONLY
            if self._stream is None:
                backends = [backend(kinds.CPU_ONLY)]
            else:
                device = self._stream.device.index
            try:
                self._decoder = library.Decoder(
                    device_id=device,
                    max_num_cpu_threads=self._threads,
                    backends=backends,
                    # as Pillow; see Note [The edge of a box]
                    options=":fancy_upsampling=1 :enable_roi_fancy_upsampling=1",
                )
            except RuntimeError as error:
                raise UsageError(
                    f"nvImageCodec {version()} makes no decoder of JPEG files here ({error}): see "
                    "what it says on stderr; a GPU needs its extra [nvjpeg] and a driver that is "
                    "new enough; or take decode_device='cpu'"
                ) from error
            # Pillow turns nothing by its EXIF either.
            self._params = library.DecodeParams(
                apply_exif_orientation=False, color_spec=library.ColorSpec.SRGB
            )
        return library
