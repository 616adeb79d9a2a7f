// The weights of one axis of a resize, and each thread's cache of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "resample/resample.h"

namespace fastload::resampling {

// Bytes at a 64-byte boundary. Grows, and shrinks only by release(). Throws std::bad_alloc.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  ~AlignedBytes();
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;

  // Room for `count` items of T. If it grows, the old content is lost and the memory is zeroed.
  template <typename T>
  T* room_for(size_t count) {
    return static_cast<T*>(grow(count, sizeof(T)));
  }
  template <typename T>
  T* get() const {
    return static_cast<T*>(data_);
  }
  size_t size() const { return size_; }
  void release();

 private:
  void* grow(size_t count, size_t item);
  void* data_ = nullptr;
  size_t size_ = 0;
};

// The source positions of one axis: `size` of them, without `lead` eighths of the first and `tail` eighths of
// the last one.
struct Extent {
  int size = 0, lead = 0, tail = 0;
};

// For each output position: which source positions contribute, and their weights.
struct Weights {
  Extent in;
  int out = 0;
  int taps = 0;         // the most source positions of one output position
  AlignedBytes start;   // int32[out], first source position
  AlignedBytes count;   // int32[out], >= 1
  AlignedBytes values;  // int32[out][taps], 22-bit fixed point, zero after `count`
  const int32_t* starts() const { return start.get<int32_t>(); }
  const int32_t* counts() const { return count.get<int32_t>(); }
  const int32_t* of(int position) const {
    return values.get<int32_t>() + static_cast<size_t>(position) * taps;
  }
  int end(int position) const { return starts()[position] + counts()[position]; }
};

// Weights of the vertical pass, by groups of `Kernels::rows` adjacent source rows. Group g holds rows g *
// rows to g * rows + rows - 1 of the box.
struct VerticalTable {
  AlignedBytes first;   // uint16[out], first group
  AlignedBytes groups;  // uint16[out], number of groups
  AlignedBytes offset;  // uint32[out], index of this row's words
  AlignedBytes words;   // int32[], Kernels::words for each group
  int most_groups = 0;

  int first_of(int position) const { return first.get<uint16_t>()[position]; }
  int groups_of(int position) const { return groups.get<uint16_t>()[position]; }
  int last_of(int position) const { return first_of(position) + groups_of(position) - 1; }
  const int32_t* words_of(int position) const {
    return words.get<int32_t>() + offset.get<uint32_t>()[position];
  }
};

// Weights of the horizontal pass, in the order in which the kernel reads them (which differs between
// kernels).
struct HorizontalTable {
  AlignedBytes start;  // int32[out + padding], first source pixel
  AlignedBytes words;
  int groups = 0;  // groups of taps per output pixel
  int layout = 0;  // chosen by the kernel
  int64_t stride = 0;
};

enum class Pass { kHorizontal, kVertical };

struct Kernels;  // resample/kernels.h

// Identifies a table: which resize of one axis, for which pass and instruction set.
struct AxisKey {
  Extent in;  // sizes are at most kMaxSide
  int out;
  Filter filter;
  Pass pass;
  const Kernels* kernels;

  uint64_t packed() const {  // everything but the kernels
    static_assert(kMaxSide < 1 << 16, "16 bits for a size");
    return static_cast<uint64_t>(in.size) | static_cast<uint64_t>(out) << 16 |
           static_cast<uint64_t>(filter) << 32 | static_cast<uint64_t>(pass) << 40 |
           static_cast<uint64_t>(in.lead) << 48 | static_cast<uint64_t>(in.tail) << 56;
  }
};

inline bool operator==(const AxisKey& a, const AxisKey& b) {
  return a.packed() == b.packed() && a.kernels == b.kernels;
}

// The table of one resize of one axis. Immutable.
struct Axis {
  AlignedBytes begins, ends;  // uint16[out], the range of source positions that contribute
  HorizontalTable horizontal;
  VerticalTable vertical;

  int begin_of(int position) const { return begins.get<uint16_t>()[position]; }
  int end_of(int position) const { return ends.get<uint16_t>()[position]; }
  size_t nbytes() const;
};

// Throws std::bad_alloc.
std::unique_ptr<const Axis> make_axis(const AxisKey& key);

// Pillow's weights for resizing `in` to `out` positions (precompute_coeffs and normalize_coeffs_8bpc in
// Resample.c; ImagingScaleAffine in Geometry.c for kNearest). Throws std::bad_alloc.
void compute_weights(const Extent& in, int out, Filter filter, Weights* weights);

// Groups the weights of an axis for the kernels' vertical pass. Throws std::bad_alloc.
void make_vertical(const Weights& weights, const Kernels& kernels, VerticalTable* table);

// A thread's tables for resizes that its batch does not share (resample/shared_axes.h). Not thread-safe.
class AxisCache {
 public:
  // The table, cached or new. Valid until the next trim() or clear(). Throws std::bad_alloc.
  const Axis* get(const AxisKey& key);

  // Drops the least recently used axes while more than kLimit bytes are held.
  void trim();
  // Call before the instruction set changes.
  void clear();

  static constexpr size_t kLimit = size_t{4} << 20;

 private:
  struct Entry {
    std::unique_ptr<const Axis> axis;
    uint64_t last_used = 0;
  };
  std::unordered_map<uint64_t, Entry> entries_;
  size_t nbytes_ = 0;
  uint64_t clock_ = 0;
};

}  // namespace fastload::resampling
