// The passes in NEON. A lane of a group is one byte, as for the scalar kernels; a sum of products fits the 32
// bits that the multiply-add has, so weights stay whole.
#include "resample/kernels.h"

#ifdef FASTLOAD_ARM

#include <arm_neon.h>

#include <algorithm>
#include <cstring>

namespace fastload::resampling {

namespace {

constexpr int kTaps = 4;  // in a group

void encode(const int32_t* weights, int32_t* words) {
  words[0] = weights[0];
}

// Words: [column][groups of four taps]. Starts in bytes. After the starts: each column's own number of
// groups, because reading many more would read past the row.
void make_horizontal(const Weights& weights, HorizontalTable* table) {
  const int out = weights.out;
  table->groups = (weights.taps + kTaps - 1) / kTaps;
  table->stride = out;
  int32_t* start = table->start.room_for<int32_t>(2 * static_cast<size_t>(out));
  const int padded = table->groups * kTaps;
  int32_t* words = table->words.room_for<int32_t>(static_cast<size_t>(out) * static_cast<size_t>(padded));
  for (int x = 0; x < out; ++x, words += padded) {
    start[x] = 3 * weights.starts()[x];
    start[out + x] = (weights.counts()[x] + kTaps - 1) / kTaps;
    std::copy_n(weights.of(x), weights.taps, words);
    std::fill(words + weights.taps, words + padded, 0);
  }
}

// A sum to a level without its last shift; shifting right by 6 more, with saturation, clips as Pillow does.
inline int16x8_t narrowed(int32x4_t low, int32x4_t high) {
  return vshrn_high_n_s32(vshrn_n_s32(low, 16), high, 16);
}

// One column of a row: red, green, blue and an unused one.
template <int kGroups>
inline int32x4_t column(const uint8_t* pixels, const int32_t* words, int groups, const uint8x16_t* tap) {
  int32x4_t sum = vdupq_n_s32(1 << 21);
  const int n = kGroups > 0 ? kGroups : groups;
  for (int g = 0; g < n; ++g, pixels += 3 * kTaps, words += kTaps) {
    const uint8x16_t bytes = vld1q_u8(pixels);
    const int32x4_t weights = vld1q_s32(words);
    const auto taken = [bytes, tap](int i) { return vreinterpretq_s32_u8(vqtbl1q_u8(bytes, tap[i])); };
    sum = vmlaq_laneq_s32(sum, taken(0), weights, 0);
    sum = vmlaq_laneq_s32(sum, taken(1), weights, 1);
    sum = vmlaq_laneq_s32(sum, taken(2), weights, 2);
    sum = vmlaq_laneq_s32(sum, taken(3), weights, 3);
  }
  return sum;
}

template <int kGroups>
void columns(const HorizontalTable& table, const RowPart& part, const uint8_t* row, uint8_t* const* planes) {
  static constexpr uint8_t kSpread[16] = {0, 255, 255, 255, 1,   255, 255, 255,
                                          2, 255, 255, 255, 255, 255, 255, 255};
  static constexpr uint8_t kByChannel[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  uint8x16_t tap[kTaps];
  // Index 255, outside the table, gives zero.
  for (int i = 0; i < kTaps; ++i) {
    const uint8x16_t spread = vld1q_u8(kSpread);
    tap[i] = vorrq_u8(vaddq_u8(spread, vdupq_n_u8(static_cast<uint8_t>(3 * i))),
                      vceqq_u8(spread, vdupq_n_u8(255)));
  }
  const uint8x16_t by_channel = vld1q_u8(kByChannel);
  const int32_t* start = table.start.get<int32_t>() + part.x;
  const int32_t* groups = start + table.stride;
  const ptrdiff_t words_per_column = static_cast<ptrdiff_t>(kGroups > 0 ? kGroups : table.groups) * kTaps;
  const int32_t* words = table.words.get<int32_t>() + part.x * words_per_column;
  row -= static_cast<ptrdiff_t>(part.source_x) * 3;
  uint8_t *red = planes[0], *green = planes[1], *blue = planes[2];
  for (int x = 0; x < part.count; x += 4) {
    int32x4_t sums[4];
    for (int i = 0; i < 4; ++i) {
      const int at = x + 4 <= part.count ? x + i : std::min(x + i, part.count - 1);
      sums[i] = column<kGroups>(row + start[at], words + at * words_per_column, groups[at], tap);
    }
    const uint8x16_t levels = vcombine_u8(vqshrun_n_s16(narrowed(sums[0], sums[1]), 6),
                                          vqshrun_n_s16(narrowed(sums[2], sums[3]), 6));
    const uint32x4_t channels = vreinterpretq_u32_u8(vqtbl1q_u8(levels, by_channel));
    if (x + 4 <= part.count) {
      vst1q_lane_u32(reinterpret_cast<uint32_t*>(red + x), channels, 0);
      vst1q_lane_u32(reinterpret_cast<uint32_t*>(green + x), channels, 1);
      vst1q_lane_u32(reinterpret_cast<uint32_t*>(blue + x), channels, 2);
    } else {
      uint32_t four[4];
      vst1q_u32(four, channels);
      for (int c = 0; c < 3; ++c) std::memcpy(planes[c] + x, four + c, static_cast<size_t>(part.count - x));
    }
  }
}

void horizontal_to_planes(const HorizontalTable& table, const RowPart& part, const uint8_t* const* rows,
                          uint8_t* const* planes) {
  // As many groups as the widest column would read past the row, except where that is one.
  if (table.groups == 1) return columns<1>(table, part, rows[0], planes);
  columns<0>(table, part, rows[0], planes);
}

void horizontal_to_group(const HorizontalTable& table, const RowPart& part, const uint8_t* const* rows,
                         uint8_t* group, int plane) {
  uint8_t* const planes[3] = {group, group + plane, group + 2 * static_cast<ptrdiff_t>(plane)};
  horizontal_to_planes(table, part, rows, planes);
}

void interleave(const uint8_t* const* rows, int count, uint8_t* group) {
  std::memcpy(group, rows[0], static_cast<size_t>(count));
}

// 16 levels at `x` of each group. kGroups == 0: any number of groups.
template <int kGroups>
inline uint8x16_t weighted(const uint8_t* const* groups, int count, int x, const int32_t* words) {
  int32x4_t sums[4];
  for (int32x4_t& sum : sums) sum = vdupq_n_s32(1 << 21);
  for (int g = 0; g < (kGroups > 0 ? kGroups : count); ++g) {
    const uint8x16_t bytes = vld1q_u8(groups[g] + x);
    const int16x8_t low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes)));
    const int16x8_t high = vreinterpretq_s16_u16(vmovl_high_u8(bytes));
    const int32_t weight = words[g];
    sums[0] = vmlaq_n_s32(sums[0], vmovl_s16(vget_low_s16(low)), weight);
    sums[1] = vmlaq_n_s32(sums[1], vmovl_high_s16(low), weight);
    sums[2] = vmlaq_n_s32(sums[2], vmovl_s16(vget_low_s16(high)), weight);
    sums[3] = vmlaq_n_s32(sums[3], vmovl_high_s16(high), weight);
  }
  return vcombine_u8(vqshrun_n_s16(narrowed(sums[0], sums[1]), 6),
                     vqshrun_n_s16(narrowed(sums[2], sums[3]), 6));
}

template <int kGroups>
void vertical_of(const uint8_t* const* groups, int count, const int32_t* words, int lanes, uint8_t* levels) {
  int x = 0;
  for (; x + 16 <= lanes; x += 16) vst1q_u8(levels + x, weighted<kGroups>(groups, count, x, words));
  if (x == lanes) return;
  uint8_t last[16];
  vst1q_u8(last, weighted<kGroups>(groups, count, x, words));
  std::memcpy(levels + x, last, static_cast<size_t>(lanes - x));
}

void vertical(const uint8_t* const* groups, int count, const int32_t* words, int lanes, uint8_t* levels) {
  switch (count) {
    case 2:
      return vertical_of<2>(groups, count, words, lanes, levels);
    case 3:
      return vertical_of<3>(groups, count, words, lanes, levels);
    case 4:
      return vertical_of<4>(groups, count, words, lanes, levels);
    default:
      return vertical_of<0>(groups, count, words, lanes, levels);
  }
}

void deinterleave(const uint8_t* rgb, int count, uint8_t* const* planes) {
  int x = 0;
  for (; x + 16 <= count; x += 16, rgb += 48) {
    const uint8x16x3_t pixels = vld3q_u8(rgb);
    for (int c = 0; c < 3; ++c) vst1q_u8(planes[c] + x, pixels.val[c]);
  }
  for (; x < count; ++x, rgb += 3) {
    for (int c = 0; c < 3; ++c) planes[c][x] = rgb[c];
  }
}

}  // namespace

const Kernels kNeonKernels = {1,
                              1,
                              1,
                              encode,
                              make_horizontal,
                              horizontal_to_group,
                              horizontal_to_planes,
                              interleave,
                              vertical,
                              deinterleave,
                              neon_store_for};

}  // namespace fastload::resampling

#endif  // FASTLOAD_ARM
