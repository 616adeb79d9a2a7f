// From coefficients to the rows that the resampler asks for, without libjpeg.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "batch/image.h"
#include "jpeg/coefficients.h"
#include "jpeg/frame_header.h"
#include "jpeg/idct.h"
#include "jpeg/ycc.h"
#include "resample/axis.h"
#include "resample/resample.h"

namespace fastload {

// Per-thread state.
//
// Note [Planes]
// A row of MCUs after the other is decoded, a few MCUs at a time: their coefficients go into blocks that stay
// in the L1 cache, from there through the inverse DCT into planes of samples that hold one row of MCUs and
// the last row of samples above it, which upsampling looks at; out of these come rows of pixels, again few
// enough to stay in the cache until the resampler has taken them. Columns and rows that the crop does not
// need are neither transformed nor converted, but for kMargin.
class Planes {
 public:
  // Of an image that begin_placement() accepted, and of which something is needed. kCorrupt: the source is
  // damaged; kIo: no memory. Does not throw.
  Status decode(const FrameHeader& frame, CoefficientSource* source, const Placement& placement,
                RowBuffer* rows, Resampler* resampler);

  // Whether this processor has instructions for it that are faster than libjpeg.
  static bool available();

  // Whether it is available, and makes of small images what libjpeg makes of them (checked once). With
  // FASTLOAD_NO_DCT_HOOK in the environment it is not even tried.
  static bool usable();

  // Pixels to each side of a crop whose MCUs are read too: more than upsampling looks at.
  static constexpr int kMargin = 3;

 private:
  struct Kernels;
  struct Work;
  static const Kernels& kernels();

  // MCUs whose blocks are decoded and transformed at once. 4 and 16 were within 3 % or slower.
  static constexpr int kRun = 8;
  // Zeros between two calls.
  alignas(64) int16_t blocks_[kRun * BlockRun::kMostBlocks * 64] = {};
  resampling::AlignedBytes samples_;
};

}  // namespace fastload
