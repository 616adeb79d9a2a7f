// Which passes a resize needs, in which order, and for which rows and columns.
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
  bool vertical_first = false;                // the vertical pass comes before the horizontal one and storing
  PixelRange columns, rows;                   // the part of the resized image that the window shows
};

// False if a size is below 1 or above kMaxSide.
bool make_plan(const Resize& resize, ResizePlan* plan);

}  // namespace fastload::resampling
