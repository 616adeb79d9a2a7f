// What one instruction set has to offer to Resampler: a table of functions for the steps of a resize.
//
// Note [Lanes]
// The horizontal pass leaves its result so that the vertical pass needs no shuffle: `rows` source rows form
// a group, and a lane of a group holds the levels of those rows at one place (a column of one channel), side
// by side: 1 byte for the scalar kernels (a group is a row), 2 x uint16 for AVX2 (pmaddwd multiplies pairs),
// 4 x uint8 for AVX-512 (vpdpbusd multiplies fours). Channels are planes of lanes. A group's rows are aligned
// to the box: group g always holds rows g * rows and following, so that a table of vertical weights serves
// every window. Rows that are not there (before the first, behind the last needed one) hold anything: their
// weight is zero.
//
// Every function writes exactly the elements that it was asked for, and no byte behind them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "resample/axis.h"
#include "resample/resample.h"

namespace fastload::resampling {

// Kernels may read this far behind the last pixel of a row, and before and behind a plane of levels.
constexpr int kSlack = 64;

// The most rows that any kernels group.
constexpr int kMostRows = 4;

// The part of a row that a horizontal pass makes out of which part of the source.
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
  AlignedBytes tables;                   // the lut as the instruction set wants it
};

// Stores one row of the window. planes: three planes of `width` levels, unflipped. row: the element of
// column 0, channel 0.
using StoreRow = void (*)(const RowOutput& output, const uint8_t* const* planes, void* row);

struct Kernels {
  const char* name;
  int rows;        // source rows in a group
  int lane_bytes;  // bytes of one lane of a group
  int words;       // int32 words that hold the vertical weights of a group

  // `rows` weights of 22 bits to `words` words.
  void (*encode)(const int32_t* weights, int32_t* words);

  // Fills `table` for the horizontal passes below. Throws std::bad_alloc.
  void (*make_horizontal)(const Weights& weights, HorizontalTable* table);

  // rows[0..rows-1] to a group of three planes, `plane` lanes apart. May write up to `plane` lanes each.
  void (*horizontal_to_group)(const HorizontalTable& table, const RowPart& part, const uint8_t* const* rows,
                              uint8_t* group, int plane);

  // rows[0..rows-1] to levels: planes[3 * k + c] is channel c of row k.
  void (*horizontal_to_planes)(const HorizontalTable& table, const RowPart& part, const uint8_t* const* rows,
                               uint8_t* const* planes);

  // rows[0..rows-1], `count` bytes each, to one plane of lanes; may write up to the next multiple of 64
  // lanes.
  void (*interleave)(const uint8_t* const* rows, int count, uint8_t* group);

  // Weighted sum of groups[0..count-1]: `lanes` levels.
  void (*vertical)(const uint8_t* const* groups, int count, const int32_t* words, int lanes, uint8_t* levels);

  // `count` RGB pixels to three planes of levels.
  void (*deinterleave)(const uint8_t* rgb, int count, uint8_t* const* planes);

  // Which function stores a row of `output`; fills output->tables. Throws std::bad_alloc.
  StoreRow (*store_for)(RowOutput* output);
};

// What images begun from now on use. The first call reads FASTLOAD_SIMD.
const Kernels& kernels_in_use();

extern const Kernels kScalarKernels;

// The scalar way to store a row: any dtype, any stride.
StoreRow scalar_store_for(RowOutput* output);

#if defined(__x86_64__) && defined(__GNUC__)
#define FASTLOAD_X86 1
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

}  // namespace fastload::resampling
