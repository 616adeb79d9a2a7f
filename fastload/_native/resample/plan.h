// What a resize comes down to: which passes, in which order, for which rows and columns.
#pragma once

#include "resample/resample.h"

namespace fastload::resampling {

// Half-open.
struct PixelRange {
  int begin = 0, end = 0;
  int size() const { return end - begin; }
};

struct ResizePlan {
  bool horizontal = false, vertical = false;  // the passes that are needed
  bool vertical_before = false;               // the vertical pass comes before whatever else happens to a row
  PixelRange columns, rows;                   // of the resized image: what the window shows of it
};

// False where a size is below 1 or above kMaxSide.
bool make_plan(const Resize& resize, ResizePlan* plan);

}  // namespace fastload::resampling
