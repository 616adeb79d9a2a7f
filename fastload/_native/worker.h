// What a thread keeps from sample to sample, and one record decoded with it.
#pragma once

#include <cstdint>
#include <vector>

#include "files.h"
#include "image.h"
#include "jpeg.h"
#include "kind.h"
#include "recipe.h"
#include "resample.h"
#include "status.h"

namespace fastload {

struct Worker {
  Scratch scratch;
  RowBuffer rows;
  Resampler resampler;
  JpegDecoder jpeg;
  Kitchen kitchen;
  std::vector<uint8_t> made;    // a record in the form that a cache keeps
  std::vector<uint8_t> region;  // pixels that several views are made of, RGB
};

// Made by the first sample of a thread, freed with the thread. Throws std::bad_alloc.
Worker& worker();

Status decode_span(const Span& span, Kind kind, const Placement& placement, Worker* worker);

}  // namespace fastload
