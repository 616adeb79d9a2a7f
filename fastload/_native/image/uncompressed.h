// Decoders of uncompressed pixels.
#pragma once

#include "base/status.h"
#include "image/placement.h"
#include "io/files.h"
#include "resample/resample.h"

namespace fastload {

// Decodes raw uint8 RGB pixels. Their size comes from the placement, their layout from the span.
Status decode_raw(const Span& span, const Placement& placement, RowBuffer* rows, Resampler* resampler);

// Feeds decoded pixels of 3 (RGB) or 4 (RGBA; alpha is dropped) bytes, after begin_placement. Only the rows
// and columns that the resampler needs are read; the placement's box refers to `pixels`. `end`: of readable
// memory.
Status feed_pixels(const uint8_t* pixels, ptrdiff_t stride, int bytes, const uint8_t* end,
                   const Placement& placement, RowBuffer* rows, Resampler* resampler);

// Decodes an uncompressed BMP with 24 or 32 bits per pixel; kUnsupported: any other kind.
Status decode_bmp(const Span& span, const Placement& placement, RowBuffer* rows, Resampler* resampler);

}  // namespace fastload
