// Filling a cache: a sample that is decoded anyway leaves its record behind in an arena, in a form that is
// read or decoded faster the next time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/kind.h"
#include "base/status.h"
#include "batch/image.h"
#include "io/arena.h"
#include "io/files.h"
#include "resample/resample.h"

namespace fastload {

struct ThreadState;

enum class Form : uint8_t {
  kBytes = 0,   // the record as it is
  kDct = 1,     // JPEG files as DCT records, everything else as it is
  kPixels = 2,  // uint8 HWC, after the part of the geometry that never changes
};

struct CacheFillSample {
  int64_t record;
  bool wanted;
  bool large;  // a side above kMaxSide: left to Pillow
  // kPixels: what is cut out of the source and resized, and the window of that which is kept.
  int32_t source_w, source_h;
  int32_t box_x, box_y, box_w, box_h;
  int32_t resized_w, resized_h;
  int32_t window_x, window_y, w, h;
};

// Which samples of a batch are kept, and how.
struct CacheFill {
  std::shared_ptr<Arena> arena;
  Form form;
  Filter filter;
  PassOrder order;
  uint8_t fill[3];
  std::vector<CacheFillSample> samples;
};

// Where a record comes from.
struct Origin {
  const Files& files;
  int64_t file, offset, nbytes;
  bool whole() const { return !files.cut_short(file, offset, nbytes); }
};

// Decodes a sample as decode_span() does, with the same outcome, and keeps its record if that went well and
// its file still had all of it when it was copied.
// With kPixels the placement is that of the pixels that are kept, not of the source. Throws std::bad_alloc.
Status decode_and_keep(const CacheFill& keep, size_t item, const Origin& origin, const Span& span, Kind kind,
                       const Placement& placement, ThreadState* worker);

}  // namespace fastload
