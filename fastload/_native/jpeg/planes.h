// Converts coefficients to the rows that the resampler asks for, without libjpeg.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "image/placement.h"
#include "jpeg/coefficients.h"
#include "jpeg/frame_header.h"
#include "jpeg/idct.h"
#include "jpeg/ycc.h"
#include "resample/axis.h"
#include "resample/resample.h"

namespace fastload {

// One thread's state.
//
// Note [Planes]
// Rows of MCUs are decoded one after another, a few MCUs at a time. Their coefficients go into blocks that
// stay in the L1 cache, and through the inverse DCT into planes of samples. These hold one row of MCUs and
// the last row of samples above it, which upsampling needs. From the planes, rows of pixels are made, few
// enough at a time to stay in the cache until the resampler has taken them. Columns and rows outside the
// crop, and more than kMargin away from it, are neither transformed nor converted.
class PlaneDecoder {
 public:
  // For an image that begin_placement() accepted and of which something is needed. kCorrupt: the source is
  // damaged; kIo: memory ran out. Does not throw.
  Status decode(const FrameHeader& frame, CoefficientSource* source, const Placement& placement,
                RowBuffer* rows, Resampler* resampler);

  // Whether this processor has instructions with which it is faster than libjpeg.
  static bool available();

  // Whether it is available and gives the same pixels as libjpeg for small images, tested once. Always false
  // if FASTLOAD_NO_DCT_HOOK is set in the environment.
  static bool usable();

  // MCUs within this many pixels of a crop are read too: more than upsampling needs.
  static constexpr int kMargin = 3;

 private:
  struct Image;

  // MCUs that are decoded and transformed together. 4 or 16 were not faster, and two rows of MCUs at once
  // were 4 % slower, because the samples leave the L1 cache.
  static constexpr int kRun = 8;
  // All zero between two calls.
  alignas(64) int16_t blocks_[kRun * BlockRun::kMostBlocks * 64] = {};
  resampling::AlignedBytes samples_;
};

}  // namespace fastload
