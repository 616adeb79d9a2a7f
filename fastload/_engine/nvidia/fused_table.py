"""The table of the device stage as one kernel: reads each uint8 level once, writes each value once.

The indexed form (``device_stage.py``) also writes an int32 index of every level and reads it again.
Here the value goes straight to its place in the wanted layout. Only bits are moved, in an integer
type as wide as the value, so the result is the indexed form's bit for bit.

Triton comes with torch's CUDA builds. It needs a C compiler the first time it runs on a machine.
"""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 1024  # values per program: 2.3 TB/s on an H100

_MOST_IMAGES = 65_535  # CUDA's limit for a grid's second dimension
_MOST_VALUES = (1 << 31) - _BLOCK  # of an image: positions in it are int32

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    levels,
    table,
    values,
    image_stride,
    channel_stride,
    pixel_stride,
    pixels,
    CHANNELS: tl.constexpr,
    NHWC: tl.constexpr,
    SAME: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (b, i) makes values b * BLOCK and on of image i, in the order of their memory."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    image = tl.program_id(1).to(tl.int64)
    inside = at < CHANNELS * pixels
    if NHWC:
        channel, pixel = at % CHANNELS, at // CHANNELS
    else:
        channel, pixel = at // pixels, at % pixels
    if SAME:
        source = at
    else:
        source = channel * channel_stride + pixel * pixel_stride
    level = tl.load(levels + image * image_stride + source, mask=inside, other=0)
    value = tl.load(table + channel * 256 + level.to(tl.int32), mask=inside)
    tl.store(values + image * CHANNELS * pixels + at, value, mask=inside)


def look_up(levels: torch.Tensor, table: torch.Tensor, *, nhwc: bool) -> torch.Tensor | None:
    """``table[256 * channel + level]`` for every level; None if the kernel is not made for them.

    The work goes into the current stream. ``levels`` are uint8 (n, channels, h, w), contiguous
    or channels_last; ``table`` is (256 * channels,) or more, in the dtype of the result, on the
    same device. The result is dense, (n, channels, h, w), with ``nhwc`` in channels_last order.
    """
    n, channels, height, width = levels.shape
    pixels = height * width
    _, channel_stride, row_stride, pixel_stride = levels.stride()
    # The pixels of a channel must lie at one distance from each other.
    even = height == 1 or row_stride == width * pixel_stride
    if not even or n > _MOST_IMAGES or channels * pixels > _MOST_VALUES:
        return None
    order = torch.channels_last if nhwc else torch.contiguous_format
    values = torch.empty(levels.shape, dtype=table.dtype, device=levels.device, memory_format=order)
    if not values.numel():
        return values
    bits = _BITS[table.element_size()]
    same = levels.stride() == values.stride()
    _kernel[(triton.cdiv(channels * pixels, _BLOCK), n)](
        levels,
        table.view(bits),
        values.view(bits),
        levels.stride(0),
        channel_stride,
        pixel_stride,
        pixels,
        CHANNELS=channels,
        NHWC=nhwc,
        SAME=same,
        BLOCK=_BLOCK,
        enable_fp_fusion=False,  # said, because Triton 3.9 warns where it is not
    )
    return values
