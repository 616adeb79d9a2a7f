// What a thread keeps from sample to sample, and one record decoded with it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/kind.h"
#include "base/status.h"
#include "batch/image.h"
#include "io/files.h"
#include "jpeg/jpeg.h"
#include "pixels/sample_params.h"
#include "resample/resample.h"

namespace fastload {

struct ThreadState {
  Scratch scratch;
  RowBuffer rows;
  Resampler resampler;
  JpegDecoder jpeg;
  Workspace kitchen;
  std::vector<uint8_t> made;    // a record in the form that a cache keeps
  std::vector<uint8_t> region;  // pixels that several views are made of, RGB
};

// Made by the first sample of a thread, freed with the thread. Throws std::bad_alloc.
ThreadState& worker();

Status decode_span(const Span& span, Kind kind, const Placement& placement, ThreadState* worker);

}  // namespace fastload
