#include "image/placement.h"

#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace fastload {

int scale_of(const Placement& placement) {
  const Resize& r = placement.resize;
  if (!placement.scaled || r.filter == Filter::kNearest || r.filter > Filter::kLanczos) return 1;
  for (const int scale : {8, 4, 2}) {
    if (r.box_w >= 2 * scale * r.resized_w && r.box_h >= 2 * scale * r.resized_h) return scale;
  }
  return 1;
}

Placement scaled_down(const Placement& placement, int scale) {
  Placement scaled = placement;
  const int eighths = 8 / scale;  // eighths of a result pixel per pixel of the file
  const int right = placement.box_x + placement.resize.box_w,
            bottom = placement.box_y + placement.resize.box_h;
  Resize& r = scaled.resize;
  scaled.source_w = scaled.source_h = 0;
  scaled.box_x = placement.box_x / scale;
  scaled.box_y = placement.box_y / scale;
  r.box_w = (right + scale - 1) / scale - scaled.box_x;
  r.box_h = (bottom + scale - 1) / scale - scaled.box_y;
  r.lead_x = placement.box_x % scale * eighths;
  r.lead_y = placement.box_y % scale * eighths;
  r.tail_x = (scale - right % scale) % scale * eighths;
  r.tail_y = (scale - bottom % scale) % scale * eighths;
  return scaled;
}

bool fits(const Placement& placement, int width, int height) {
  if (placement.source_w != 0 && (placement.source_w != width || placement.source_h != height)) return false;
  return placement.box_x + placement.resize.box_w <= width &&
         placement.box_y + placement.resize.box_h <= height;
}

Status begin_placement(const Placement& placement, int width, int height, Resampler* resampler) {
  if (!fits(placement, width, height)) return Status::kSize;
  return resampler->begin(placement.resize, placement.target) ? Status::kOk : Status::kIo;
}

RowBuffer::~RowBuffer() {
  std::free(memory_);
}

bool RowBuffer::reserve(size_t nbytes) {
  stride_ = (nbytes + 64 + 31) / 32 * 32;
  const size_t wanted = stride_ * kRows + 64;
  // Shrinks after a very wide image, so that threads keep little memory.
  if (wanted > capacity_ || (capacity_ > (size_t{4} << 20) && wanted < capacity_ / 4)) {
    std::free(memory_);
    memory_ = static_cast<uint8_t*>(std::malloc(wanted));
    capacity_ = memory_ == nullptr ? 0 : wanted;
    if (memory_ == nullptr) return false;
    std::memset(memory_, 0, wanted);
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory_);
    base_ = memory_ + (32 - address % 32) % 32 + 16;
  }
  return true;
}

}  // namespace fastload
