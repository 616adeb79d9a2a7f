// The functions of one instruction set for the steps of a resize.
//
// Note [Lanes]
// The horizontal pass stores its result so that the vertical pass needs no shuffle: `rows` source rows form a
// group, and a lane of a group holds the levels of those rows at one position (a column of one channel), side
// by side: 1 byte for the scalar kernels (a group is one row), 2 x uint16 for AVX2 (pmaddwd multiplies
// pairs), 4 x uint8 for AVX-512 (vpdpbusd multiplies fours). Each channel is a plane of lanes. Groups are
// aligned to the box: group g always holds rows g * rows and following, so that one table of vertical weights
// serves every window. Rows that do not exist (before the first or after the last needed one) hold any
// values: their weight is zero.
//
// Every function writes exactly the elements that it was asked for, unless its comment says more.
//
// Note [Past the cache]
// A batch of large images exceeds the cache, so its rows are written with non-temporal stores: a normal store
// first reads the cache line and evicts data that decoding needs. DCT records, RandomResizedCrop(224),
// float32, batch of 64: 210 us of CPU per image instead of 243. Batches of small images stay in the cache for
// the consumer. A release does not order non-temporal stores, so BatchJob::make ends with a fence.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/simd.h"
#include "resample/axis.h"
#include "resample/resample.h"

namespace fastload::resampling {

// Kernels may read this many bytes after the last pixel of a row, and before and after a plane of levels.
constexpr int kSlack = 64;

// The most rows in a group of any kernels.
constexpr int kMostRows = 4;

// The part of a row that a horizontal pass produces, and the source that it reads.
struct RowPart {
  int x;             // first output column
  int count;         // columns
  int source_x;      // the source pixel that rows[k] points to
  int source_count;  // source pixels there
};

// Where and how finished rows of levels are stored.
struct RowOutput {
  Dtype dtype;
  const void* lut;  // Target::lut
  bool flip;
  int width;
  int64_t nbytes;                        // of the whole image
  int64_t pixel_stride, channel_stride;  // in elements
  AlignedBytes tables;                   // the lut in the layout of the instruction set

  // Whether the row of values at `row` is written with non-temporal stores; see Note [Past the cache]. 64
  // images of this size take 16 MB; a float32 image of 224 x 224 pixels has 602,112 bytes.
  bool is_past_cache(const void* row) const {
    constexpr int64_t kPastCache = 256 << 10;
    return nbytes >= kPastCache && reinterpret_cast<uintptr_t>(row) % 64 == 0;
  }
};

// Stores one row of the window. planes: three planes of `width` levels, not flipped. row: the element of
// column 0, channel 0.
using StoreRow = void (*)(const RowOutput& output, const uint8_t* const* planes, void* row);

struct Kernels {
  int rows;        // source rows in a group
  int lane_bytes;  // bytes of one lane of a group
  int words;       // int32 words that hold the vertical weights of a group

  // Encodes `rows` weights of 22 bits in `words` words.
  void (*encode)(const int32_t* weights, int32_t* words);

  // Fills `table` for the horizontal passes below. Throws std::bad_alloc.
  void (*make_horizontal)(const Weights& weights, HorizontalTable* table);

  // rows[0..rows-1] -> a group of three planes, `plane` lanes apart. May write up to `plane` lanes of each.
  void (*horizontal_to_group)(const HorizontalTable& table, const RowPart& part, const uint8_t* const* rows,
                              uint8_t* group, int plane);

  // rows[0..rows-1] -> levels: planes[3 * k + c] is channel c of row k.
  void (*horizontal_to_planes)(const HorizontalTable& table, const RowPart& part, const uint8_t* const* rows,
                               uint8_t* const* planes);

  // rows[0..rows-1], `count` bytes each -> one plane of lanes. May write up to
  // the next multiple of 64 lanes.
  void (*interleave)(const uint8_t* const* rows, int count, uint8_t* group);

  // Weighted sum of groups[0..count-1] -> `lanes` levels.
  void (*vertical)(const uint8_t* const* groups, int count, const int32_t* words, int lanes, uint8_t* levels);

  // `count` RGB pixels -> three planes of levels.
  void (*deinterleave)(const uint8_t* rgb, int count, uint8_t* const* planes);

  // The function that stores a row of `output`; fills output->tables. Throws
  // std::bad_alloc.
  StoreRow (*store_for)(RowOutput* output);

  // As horizontal_to_group, for 2 * rows rows and two groups, if that is faster than one after the other.
  void (*horizontal_to_two)(const HorizontalTable& table, const RowPart& part, const uint8_t* const* rows,
                            uint8_t* const* groups, int plane) = nullptr;
};

// The kernels for images begun from now on: those of simd_in_use().
const Kernels& kernels_in_use();

extern const Kernels kScalarKernels;

// The portable function that stores a row, for any dtype and stride.
StoreRow scalar_store_for(RowOutput* output);

extern const Kernels kAvx2Kernels;
void avx2_deinterleave(const uint8_t* rgb, int count, uint8_t* const* planes);
StoreRow avx2_store_for(RowOutput* output);

extern const Kernels kAvx512Kernels;
void avx512_deinterleave(const uint8_t* rgb, int count, uint8_t* const* planes);
StoreRow avx512_store_for(RowOutput* output);

extern const Kernels kNeonKernels;
StoreRow neon_store_for(RowOutput* output);

}  // namespace fastload::resampling
