"""The device stage: the last steps of a transform, applied to a whole batch on its device.

The engine gives levels (uint8), a quarter of the bytes of float32 on their way to the device.
Table, cast, memory format and erased rectangles are applied there, in a few operations per batch.
The table is a lookup, not ``level * scale + offset``: a lookup is exact for every plan and every
dtype, so the result is the CPU's bit for bit, and with 768 values it costs no more than the memory
that it reads and writes. On a CUDA device with Triton it is one kernel (``nvidia/fused_table.py``),
on others an index of every level and a selection by it. Noise in rectangles comes from the same
counters as in the core, so it is the same too.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import numpy as np
import torch

from .._base.philox import MULTIPLIERS, ROUNDS, WEYL
from .._transforms.pixels.erasing import ErasedBoxes
from .._transforms.plan import Plan, as_torch

_LOW = 0xFFFFFFFF

_log = logging.getLogger("fastload")


LookUp = Callable[..., torch.Tensor | None]
"""``fused_table.look_up``."""


@functools.cache
def fused_look_up(device: torch.device) -> LookUp | None:
    """The table as one kernel; None if ``device`` is no CUDA device or Triton does not run there.

    Without Triton nothing is missing but speed. Where it is installed and fails, the log says why:
    it needs a C compiler, for example.
    """
    if device.type != "cuda":
        return None
    try:
        from .nvidia.fused_table import look_up

        tried = look_up(
            torch.zeros((1, 3, 1, 1), dtype=torch.uint8, device=device),
            torch.zeros(768, device=device),
            nhwc=True,
        )
    except ImportError:
        return None
    except torch.cuda.OutOfMemoryError:
        raise  # Triton may run another time
    except Exception as error:  # noqa: BLE001 - of a compiler, a driver, or Triton itself
        _without_triton(device, error)
        return None
    return None if tried is None else look_up


def _without_triton(device: torch.device, error: Exception) -> None:
    reason = " ".join(str(error).split())[:300]
    _log.warning("Triton does not run on %s, so torch looks values up: %s", device, reason)


class DeviceStage:
    """Turns levels into what the engines make with ``plan``.

    Example:
        >>> stage = DeviceStage(plan, torch.device("cuda"), torch.channels_last)
        >>> images = stage(levels, drawn)

    ``plan`` is that of the whole transform; the engine has applied ``plan.levels()``. The levels
    are on ``device``; ``memory_format`` is that of the result.
    """

    def __init__(
        self, plan: Plan, device: torch.device, memory_format: torch.memory_format
    ) -> None:
        self._nhwc = memory_format == torch.channels_last
        self._table: torch.Tensor | None = None
        self._look_up: LookUp | None = None
        if plan.lut is not None:
            self._table = as_torch(plan.lut, plan.dtype).reshape(-1).to(device)
            self._look_up = fused_look_up(device)
        offsets = 256 * torch.arange(plan.channels, dtype=torch.int32, device=device)
        self._offsets = offsets if self._nhwc else offsets.view(-1, 1, 1)
        self._fills = [as_torch(fill.values, plan.dtype).to(device) for fill in plan.erasing]

    @torch.no_grad()
    def __call__(
        self,
        levels: torch.Tensor,
        drawn: ErasedBoxes | None = None,
        columns: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The finished images, (n, channels, h, w) in the plan's dtype, on the levels' device.

        The work goes into the current stream; the host does not wait. ``levels``, uint8 of the
        same shape in any memory format, are written to where the plan's result is uint8 too.
        ``drawn`` are the rectangles of these images (``sample_params.rectangles``), and
        ``columns`` its ``columns()``, if these are on the device already.
        """
        images = self._values(levels)
        if drawn is not None and drawn.boxes.any():
            if columns is None:
                columns = drawn.columns().to(levels.device, non_blocking=True)
            for e, values in enumerate(self._fills):
                _erase(images, drawn.boxes[:, e], columns[e], values)
        return images

    def _values(self, levels: torch.Tensor) -> torch.Tensor:
        """The values of all levels, dense; the levels themselves if there is no table."""
        values = self._fused_values(levels)
        if values is not None:
            return values
        # Dimensions in the order of memory, so that everything below is dense.
        levels = levels.permute(0, 2, 3, 1) if self._nhwc else levels
        images = levels = levels.contiguous()
        if self._table is not None:
            index = levels + self._offsets
            images = self._table.index_select(0, index.view(-1)).view(levels.shape)
        return images.permute(0, 3, 1, 2) if self._nhwc else images

    def _fused_values(self, levels: torch.Tensor) -> torch.Tensor | None:
        """The values of all levels by the kernel; None if there is none for them.

        Triton compiles a kernel for each dtype and layout. So it may fail here although it ran
        once: where its cache folder can be read but not written to, for example.
        """
        if self._look_up is None or self._table is None:
            return None
        try:
            return self._look_up(levels, self._table, nhwc=self._nhwc)
        except torch.cuda.OutOfMemoryError:
            raise  # Triton may run another time
        except Exception as error:  # noqa: BLE001 - as in fused_look_up
            _without_triton(levels.device, error)
            self._look_up = None
            return None


def _erase(
    images: torch.Tensor, boxes: np.ndarray, columns: torch.Tensor, values: torch.Tensor
) -> None:
    """Erase one rectangle of each image, in place.

    ``images`` are dense, (n, channels, h, w). ``boxes``, int32 (n, 4), are on the host, because
    their areas decide the shapes of tensors; ``columns``, int64 (5, n), on the device: x, y, width,
    height, key. ``values`` are (3, 1), or (3, 65536) for noise.
    """
    channels = images.shape[1]
    area = channels * boxes[:, 2].astype(np.int64) * boxes[:, 3]
    total = int(area.sum())
    if not total:
        return
    x, y, w, h, key = columns
    areas = channels * w * h
    # For every value of every rectangle: its image, and its number in the rectangle, counted
    # channel by channel and row by row, as in the engines.
    image, i = _numbered(areas, total)
    plane = (w * h)[image]
    channel = torch.div(i, plane, rounding_mode="floor")
    within = i - channel * plane
    row = torch.div(within, w[image], rounding_mode="floor")
    column = within - row * w[image]
    stride = images.stride()
    indices = (
        image * stride[0]
        + channel * stride[1]
        + (y[image] + row) * stride[2]
        + (x[image] + column) * stride[3]
    )
    which = channel * values.shape[1]
    if values.shape[1] > 1:
        blocks = int((-(-area // 8)).sum())
        which = which + _noise(key, areas, blocks, image, i)
    flat = images.as_strided((images.numel(),), (1,))
    flat.index_put_((indices,), values.reshape(-1)[which])


def _numbered(counts: torch.Tensor, total: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For ``total`` items, ``counts[k]`` of them in image k: the image, and the number in it."""
    images = torch.arange(len(counts), device=counts.device)
    image = torch.repeat_interleave(images, counts, output_size=total)
    first = counts.cumsum(0) - counts
    return image, torch.arange(total, device=counts.device) - first[image]


def _noise(
    key: torch.Tensor, areas: torch.Tensor, blocks: int, image: torch.Tensor, i: torch.Tensor
) -> torch.Tensor:
    """16 random bits for value ``i`` of the rectangle of ``image``: those of its key.

    ``key`` and ``areas`` are (n,); all rectangles together have ``blocks`` blocks of eight values.
    """
    counts = torch.div(areas + 7, 8, rounding_mode="floor")
    owner, block = _numbered(counts, blocks)
    words = _philox(key[owner], block)
    halves = torch.stack([words & 0xFFFF, words >> 16], dim=2).view(-1)
    first = counts.cumsum(0) - counts
    return halves[8 * first[image] + i]


def _philox(key: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """The four words (m, 4) of ``philox.words`` for key, epoch 0, index ``block``, stream 0.

    In int64, whose products wrap: the low 64 bits are right whatever the sign.
    """
    low, high = key & _LOW, key >> 32 & _LOW
    even = [torch.zeros_like(block), torch.zeros_like(block)]
    odd = [block, torch.zeros_like(block)]
    for r in range(ROUNDS):
        product = [even[0] * MULTIPLIERS[0], even[1] * MULTIPLIERS[1]]
        even = [
            (product[1] >> 32 & _LOW) ^ odd[0] ^ (low + r * WEYL[0] & _LOW),
            (product[0] >> 32 & _LOW) ^ odd[1] ^ (high + r * WEYL[1] & _LOW),
        ]
        odd = [product[1] & _LOW, product[0] & _LOW]
    return torch.stack([even[0], odd[0], even[1], odd[1]], dim=1)
