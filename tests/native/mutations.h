// What the fuzzers share: a generator, damage to files, and random placements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "image/placement.h"

using Bytes = std::vector<uint8_t>;

inline std::mt19937_64 generator;

// 0 to limit - 1.
inline size_t below(size_t limit) {
  return limit == 0 ? 0 : generator() % limit;
}

inline int between(int low, int high) {
  return low + static_cast<int>(below(static_cast<size_t>(high - low + 1)));
}

// Damages bytes from `from` on in one of several ways. Headers are hit more often than their share of the
// bytes.
inline void damage(Bytes* bytes, size_t from, const Bytes& other) {
  if (bytes->size() <= from) return;
  const size_t room = bytes->size() - from;
  const size_t at = from + below(below(2) ? room : std::min<size_t>(room, 700));
  switch (below(8)) {
    case 0:
      (*bytes)[at] ^= static_cast<uint8_t>(1u << below(8));
      break;
    case 1:
      (*bytes)[at] = static_cast<uint8_t>(generator());
      break;
    case 2:
      (*bytes)[at] = below(2) ? 0xFF : 0;
      break;
    case 3:
      bytes->resize(at);
      break;
    case 4:
      bytes->insert(bytes->begin() + static_cast<ptrdiff_t>(at), 1 + below(9),
                    static_cast<uint8_t>(generator()));
      break;
    case 5:
      bytes->erase(
          bytes->begin() + static_cast<ptrdiff_t>(at),
          bytes->begin() + static_cast<ptrdiff_t>(at + below(std::min<size_t>(40, bytes->size() - at))));
      break;
    case 6:  // the end of another file
      bytes->resize(at);
      bytes->insert(bytes->end(), other.begin() + static_cast<ptrdiff_t>(below(other.size())), other.end());
      break;
    default:  // a copy of a piece at another place
      for (size_t i = 0, source = below(bytes->size());
           i < 64 && at + i < bytes->size() && source + i < bytes->size(); i++) {
        (*bytes)[at + i] = (*bytes)[source + i];
      }
  }
}

inline fastload::Placement random_placement(int width, int height, Bytes* out) {
  fastload::Placement placement{};
  placement.box_x = between(0, width - 1);
  placement.box_y = between(0, height - 1);
  fastload::Resize& resize = placement.resize;
  resize.box_w = between(1, width - placement.box_x);
  resize.box_h = between(1, height - placement.box_y);
  const bool same = below(2) == 0;
  resize.resized_w = same ? resize.box_w : between(1, 90);
  resize.resized_h = same ? resize.box_h : between(1, 90);
  resize.window_x = between(-20, 60);
  resize.window_y = between(-20, 60);
  resize.out_w = between(1, 80);
  resize.out_h = between(1, 80);
  resize.filter = static_cast<fastload::Filter>(below(6));
  resize.order = static_cast<fastload::PassOrder>(below(3));
  const int64_t w = resize.out_w, h = resize.out_h;
  *out = Bytes(static_cast<size_t>(3 * w * h));
  const bool last = below(2) == 0;
  placement.target.data = out->data();
  placement.target.dtype = fastload::Dtype::kUint8;
  placement.target.row_stride = last ? w * 3 : w;
  placement.target.pixel_stride = last ? 3 : 1;
  placement.target.channel_stride = last ? 1 : w * h;
  placement.target.flip = below(2) == 0;
  return placement;
}
