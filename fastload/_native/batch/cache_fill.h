// Cache fill: a sample that is decoded for a batch also leaves a record in an arena, in a form that is faster
// to read or decode next time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/kind.h"
#include "base/status.h"
#include "image/placement.h"
#include "io/arena.h"
#include "io/files.h"
#include "resample/resample.h"

namespace fastload {

struct ThreadState;

enum class CacheForm : uint8_t {
  kBytes = 0,   // the record's bytes
  kDct = 1,     // JPEG files as DCT records, other records as they are
  kPixels = 2,  // uint8 HWC, after the part of the geometry that does not change between epochs
};

struct CacheFillSample {
  int64_t record;
  bool wanted;
  bool large;  // a side exceeds kMaxSide: Pillow decodes this sample
  // kPixels: the box that is cut from the source, the size it is resized to, and the window that is cached.
  int32_t source_w, source_h;
  int32_t box_x, box_y, box_w, box_h;
  int32_t resized_w, resized_h;
  int32_t window_x, window_y, w, h;
};

// Which samples of a batch are cached, and in which form.
struct CacheFill {
  std::shared_ptr<Arena> arena;
  CacheForm form;
  Filter filter;
  PassOrder order;
  uint8_t fill[3];
  std::vector<CacheFillSample> samples;
};

// Which bytes a record was read from.
struct RecordOrigin {
  const Files& files;
  int64_t file, offset, nbytes;
  bool intact() const { return !files.truncated(file, offset, nbytes); }
};

// Decodes a sample like decode_span(), with the same result. Also caches its record, if decoding succeeded
// and the file still contained all of it when it was copied. With kPixels the placement refers to the cached
// pixels, not to the source. Throws std::bad_alloc.
Status decode_and_cache(const CacheFill& cache_fill, size_t item, const RecordOrigin& origin,
                        const Span& span, Kind kind, const Placement& placement, ThreadState* state);

}  // namespace fastload
