// What each thread reuses from sample to sample, and the choice of a decoder for one record.
#pragma once

#include <cstdint>
#include <vector>

#include "base/kind.h"
#include "base/status.h"
#include "image/placement.h"
#include "io/files.h"
#include "jpeg/jpeg.h"
#include "pixels/sample_params.h"
#include "png/png.h"
#include "resample/resample.h"
#include "webp/webp.h"

namespace fastload {

struct ThreadState {
  Scratch scratch;
  RowBuffer rows;
  Resampler resampler;
  JpegDecoder jpeg;
  PngDecoder png;
  WebpDecoder webp;
  Workspace workspace;
  std::vector<uint8_t> record;  // the record that goes into a cache
  std::vector<uint8_t> region;  // RGB pixels that several views are made from
};

// The calling thread's state: created on first use, freed with the thread. Throws std::bad_alloc.
ThreadState& thread_state();

Status decode_span(const Span& span, Kind kind, const Placement& placement, ThreadState* state);

}  // namespace fastload
