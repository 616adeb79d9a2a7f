// The weights of one axis of a resize, and the cache that keeps them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "resample.h"

namespace fastload::resampling {

// Bytes on a 64-byte boundary. Grows, never shrinks by itself. Throws std::bad_alloc.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  ~AlignedBytes();
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;

  // Room for `count` items of T. The old content is lost where it grows; new memory is zeroed.
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

// The source positions of one axis: `size` of them, of which `lead` eighths of the first and `tail` eighths
// of the last one are left out.
struct Extent {
  int size = 0, lead = 0, tail = 0;
};

// For each output position: which source positions contribute, and with which weight.
struct Weights {
  Extent in;
  int out = 0;
  int taps = 0;         // the most source positions that one output position has
  AlignedBytes start;   // int32[out], first source position
  AlignedBytes count;   // int32[out], >= 1
  AlignedBytes values;  // int32[out][taps], 22-bit fixed point, zero behind `count`
  const int32_t* starts() const { return start.get<int32_t>(); }
  const int32_t* counts() const { return count.get<int32_t>(); }
  const int32_t* of(int position) const {
    return values.get<int32_t>() + static_cast<size_t>(position) * taps;
  }
  int end(int position) const { return starts()[position] + counts()[position]; }
};

// Weights of the vertical pass, by groups of `Kernels::rows` source rows that lie side by side in memory.
// Group g holds the rows g * rows .. g * rows + rows - 1 of the box.
struct VerticalTable {
  AlignedBytes first;   // int32[out], first group
  AlignedBytes groups;  // int32[out], how many
  AlignedBytes offset;  // int64[out], where this row's words begin
  AlignedBytes words;   // int32[], Kernels::words for each group
  int most_groups = 0;

  int first_of(int position) const { return first.get<int32_t>()[position]; }
  int groups_of(int position) const { return groups.get<int32_t>()[position]; }
  int last_of(int position) const { return first_of(position) + groups_of(position) - 1; }
  const int32_t* words_of(int position) const {
    return words.get<int32_t>() + offset.get<int64_t>()[position];
  }
};

// Weights of the horizontal pass, in the order in which the kernel reads them (each kernel its own).
struct HorizontalTable {
  AlignedBytes start;  // int32[out + padding], first source pixel
  AlignedBytes words;
  int groups = 0;  // groups of taps per output pixel
  int layout = 0;  // the kernel's own choice
  int64_t stride = 0;
};

// One resize of one axis. The tables are made when first asked for.
struct Axis {
  Weights weights;
  std::unique_ptr<VerticalTable> vertical;
  std::unique_ptr<HorizontalTable> horizontal;
  uint64_t last_used = 0;

  size_t nbytes() const;
};

// Pillow's weights for resizing `in` to `out` positions (precompute_coeffs and normalize_coeffs_8bpc in
// Resample.c; ImagingScaleAffine in Geometry.c for kNearest). Throws std::bad_alloc.
void compute_weights(const Extent& in, int out, Filter filter, Weights* weights);

struct Kernels;  // resample_kernels.h

// Groups the weights of an axis for the kernels' vertical pass. Throws std::bad_alloc.
void make_vertical(const Weights& weights, const Kernels& kernels, VerticalTable* table);

// Axes by (in, out, filter). Not thread-safe: each thread has its own.
class AxisCache {
 public:
  // The axis, new or known. Stays valid until the next trim() or clear(). Throws std::bad_alloc.
  Axis* get(const Extent& in, int out, Filter filter);

  // Drops the least recently used axes while more than kLimit bytes are held.
  void trim();
  void clear();
  // The weights of an axis of this cache, computed anew where a table was made of them before.
  const Weights& weights(Axis* axis, Filter filter);
  // Gives an axis of this cache its tables. Its weights go, but for where they begin and end.
  void add(Axis* axis, std::unique_ptr<HorizontalTable> table);
  void add(Axis* axis, std::unique_ptr<VerticalTable> table);

  // 500 photos of about 470 x 400 pixels need some 300 widths and heights at 6 to 12 KB each; every
  // thread keeps its own, and with twice as much was 1 % faster at best.
  static constexpr size_t kLimit = size_t{5} << 20;

 private:
  std::unordered_map<uint64_t, std::unique_ptr<Axis>> axes_;
  size_t nbytes_ = 0;
  uint64_t clock_ = 0;
};

}  // namespace fastload::resampling
