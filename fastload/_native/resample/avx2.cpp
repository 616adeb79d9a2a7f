// The passes in AVX2.
//
// Note [Halves]
// vpmaddwd multiplies pairs of signed 16-bit numbers and adds the two products to an int32. A weight of 22
// bits is split into w = high * 2^11 + low with low in 0 .. 2047; both fit 16 bits. The two halves are summed
// separately; at the end, the high sum is shifted left by 11 and added to the low sum. Modulo 2^32 that is
// Pillow's sum.
#include "resample/kernels.h"

#include "base/x86.h"

#ifdef FASTLOAD_X86

#include <algorithm>
#include <cstring>

namespace fastload::resampling {

namespace {

constexpr int kRows = 2;       // source rows in a group, and taps in a group
constexpr int kLaneBytes = 4;  // two uint16
constexpr int kLowBits = 11;

uint32_t pair(int32_t first, int32_t second) {
  return (static_cast<uint32_t>(first) & 0xffff) | static_cast<uint32_t>(second) << 16;
}

void encode(const int32_t* weights, int32_t* words) {
  constexpr int32_t kLow = (1 << kLowBits) - 1;
  words[0] = static_cast<int32_t>(pair(weights[0] >> kLowBits, weights[1] >> kLowBits));
  words[1] = static_cast<int32_t>(pair(weights[0] & kLow, weights[1] & kLow));
}

// Words: [column][group of taps][half]. Starts in bytes. After the starts: each column's own number of
// groups, because reading many more would read past the row.
void make_horizontal(const Weights& weights, HorizontalTable* table) {
  const int out = weights.out;
  table->groups = (weights.taps + kRows - 1) / kRows;
  table->stride = out;
  int32_t* start = table->start.room_for<int32_t>(2 * static_cast<size_t>(out));
  for (int x = 0; x < out; ++x) start[x] = 3 * weights.starts()[x];
  for (int x = 0; x < out; ++x) start[out + x] = (weights.counts()[x] + kRows - 1) / kRows;
  int32_t* words = table->words.room_for<int32_t>(static_cast<size_t>(out) * table->groups * 2);
  for (int x = 0; x < out; ++x) {
    for (int g = 0; g < table->groups; ++g, words += 2) {
      int32_t taps[kRows] = {0, 0};
      std::copy_n(weights.of(x) + g * kRows, std::min(kRows, weights.taps - g * kRows), taps);
      encode(taps, words);
    }
  }
}

struct Sums {
  __m256i high, low;
};

FASTLOAD_AVX2 void accumulate(Sums* sums, __m256i pairs, __m256i high, __m256i low) {
  sums->high = _mm256_add_epi32(sums->high, _mm256_madd_epi16(pairs, high));
  sums->low = _mm256_add_epi32(sums->low, _mm256_madd_epi16(pairs, low));
}

// Converts sums to levels, not clipped: packing with saturation clips as Pillow does (a sum is within -512 ..
// 511 levels).
FASTLOAD_AVX2 __m256i levels_of(const Sums& sums) {
  return _mm256_srai_epi32(_mm256_add_epi32(_mm256_slli_epi32(sums.high, kLowBits), sums.low), 22);
}

FASTLOAD_AVX2 Sums no_sums() {
  return {_mm256_setzero_si256(), _mm256_set1_epi32(1 << 21)};
}

FASTLOAD_AVX2 __m256i both_lanes(__m128i value) {
  return _mm256_broadcastsi128_si256(value);
}

// One column of kPairs times two rows, row 0 in the lower 128-bit lane: levels of red, green, blue, and an
// unused one.
template <int kGroups, int kPairs>
FASTLOAD_AVX2 void column(const uint8_t* const* rows, ptrdiff_t at, const int32_t* words, int groups,
                          __m256i* levels) {
  // Taps 0 and 1, then 2 and 3, of each channel, widened to 16 bits.
  const __m256i first_taps =
      both_lanes(_mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
  const __m256i next_taps =
      both_lanes(_mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
  const int n = kGroups > 0 ? kGroups : groups;
  Sums sums[kPairs];
  for (int p = 0; p < kPairs; ++p) sums[p] = no_sums();
  for (int g = 0; g < n; g += 2, at += 12, words += 4) {
    __m256i pixels[kPairs];
    for (int p = 0; p < kPairs; ++p) {
      const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[2 * p] + at));
      const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[2 * p + 1] + at));
      pixels[p] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    }
    __m256i high = _mm256_set1_epi32(words[0]), low = _mm256_set1_epi32(words[1]);
    for (int p = 0; p < kPairs; ++p)
      accumulate(&sums[p], _mm256_shuffle_epi8(pixels[p], first_taps), high, low);
    if (g + 1 >= n) break;
    high = _mm256_set1_epi32(words[2]), low = _mm256_set1_epi32(words[3]);
    for (int p = 0; p < kPairs; ++p)
      accumulate(&sums[p], _mm256_shuffle_epi8(pixels[p], next_taps), high, low);
  }
  for (int p = 0; p < kPairs; ++p) levels[p] = levels_of(sums[p]);
}

// Four columns of two rows, to lanes of a group (kToGroup) or rows of levels, of which the first `n` exist.
template <bool kToGroup>
FASTLOAD_AVX2 void store_columns(const __m256i* levels, uint8_t* const* lanes, uint8_t* const* planes, int x,
                                 int n) {
  const __m256i by_channel = both_lanes(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m256i packed = _mm256_packus_epi16(_mm256_packus_epi32(levels[0], levels[1]),
                                             _mm256_packus_epi32(levels[2], levels[3]));
  const __m256i channels = _mm256_shuffle_epi8(packed, by_channel);  // per row: 4 red, 4 green, 4 blue
  if (kToGroup) {
    const __m128i row0 = _mm256_castsi256_si128(channels), row1 = _mm256_extracti128_si256(channels, 1);
    const __m256i red_green = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(row0, row1));
    const __m128i blue = _mm_cvtepu8_epi16(_mm_unpackhi_epi8(row0, row1));
    const ptrdiff_t to = static_cast<ptrdiff_t>(x) * kLaneBytes;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes[0] + to), _mm256_castsi256_si128(red_green));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes[1] + to), _mm256_extracti128_si256(red_green, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes[2] + to), blue);
  } else {
    alignas(32) uint8_t bytes[32];
    _mm256_store_si256(reinterpret_cast<__m256i*>(bytes), channels);
    for (int i = 0; i < 6; ++i) std::memcpy(planes[i] + x, bytes + 16 * (i / 3) + 4 * (i % 3), n);
  }
}

// kToGroup: two rows to a group, each of kPairs times; else two rows to levels.
template <int kGroups, bool kToGroup, int kPairs>
FASTLOAD_AVX2_CALL void columns(const HorizontalTable& table, const RowPart& part, const uint8_t* const* rows,
                                uint8_t* const* to_groups, int plane, uint8_t* const* planes) {
  const int32_t* start = table.start.get<int32_t>() + part.x;
  const int32_t* groups = start + table.stride;
  const ptrdiff_t words_per_column = static_cast<ptrdiff_t>(kGroups > 0 ? kGroups : table.groups) * 2;
  const int32_t* words = table.words.get<int32_t>() + part.x * words_per_column;
  const ptrdiff_t before = static_cast<ptrdiff_t>(part.source_x) * 3;
  const uint8_t* from[kRows * kPairs];
  for (int k = 0; k < kRows * kPairs; ++k) from[k] = rows[k] - before;
  uint8_t* lanes[kPairs][3];
  for (int p = 0; kToGroup && p < kPairs; ++p) {
    for (int c = 0; c < 3; ++c) lanes[p][c] = to_groups[p] + static_cast<ptrdiff_t>(plane) * c * kLaneBytes;
  }
  __m256i levels[4][kPairs];
  const auto store = [&](int x, int n) FASTLOAD_AVX2_CALL {
    for (int p = 0; p < kPairs; ++p) {
      const __m256i four[4] = {levels[0][p], levels[1][p], levels[2][p], levels[3][p]};
      store_columns<kToGroup>(four, lanes[p], planes, x, n);
    }
  };
  int x = 0;
  for (const int count = part.count; x + 4 <= count; x += 4) {
    for (int i = 0; i < 4; ++i, words += words_per_column) {
      column<kGroups, kPairs>(from, start[x + i], words, kGroups > 0 ? 0 : groups[x + i], levels[i]);
    }
    store(x, 4);
  }
  if (x == part.count) return;
  for (int i = 0; i < 4; ++i) {  // columns after the last may read past the row
    const int at = std::min(x + i, part.count - 1);
    column<kGroups, kPairs>(from, start[at], words + (at - x) * words_per_column, groups[at], levels[i]);
  }
  store(x, part.count - x);
}

template <bool kToGroup, int kPairs>
void horizontal(const HorizontalTable& table, const RowPart& part, const uint8_t* const* rows,
                uint8_t* const* groups, int plane, uint8_t* const* planes) {
  switch (table.groups) {
    case 1:
      return columns<1, kToGroup, kPairs>(table, part, rows, groups, plane, planes);
    case 2:
      return columns<2, kToGroup, kPairs>(table, part, rows, groups, plane, planes);
    case 3:
      return columns<3, kToGroup, kPairs>(table, part, rows, groups, plane, planes);
    default:
      return columns<0, kToGroup, kPairs>(table, part, rows, groups, plane, planes);
  }
}

void horizontal_to_group(const HorizontalTable& table, const RowPart& part, const uint8_t* const* rows,
                         uint8_t* group, int plane) {
  horizontal<true, 1>(table, part, rows, &group, plane, nullptr);
}

void horizontal_to_two(const HorizontalTable& table, const RowPart& part, const uint8_t* const* rows,
                       uint8_t* const* groups, int plane) {
  horizontal<true, 2>(table, part, rows, groups, plane, nullptr);
}

void horizontal_to_planes(const HorizontalTable& table, const RowPart& part, const uint8_t* const* rows,
                          uint8_t* const* planes) {
  horizontal<false, 1>(table, part, rows, nullptr, 0, planes);
}

FASTLOAD_AVX2_CALL void interleave(const uint8_t* const* rows, int count, uint8_t* group) {
  for (int x = 0; x < count; x += 16) {
    const __m128i row0 = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[0] + x));
    const __m128i row1 = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[1] + x));
    __m256i* to = reinterpret_cast<__m256i*>(group + static_cast<ptrdiff_t>(x) * kLaneBytes);
    _mm256_storeu_si256(to, _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(row0, row1)));
    _mm256_storeu_si256(to + 1, _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(row0, row1)));
  }
}

// 8 lanes at `offset` bytes into each group. kGroups == 0: any number of groups.
template <int kGroups>
FASTLOAD_AVX2 __m256i weighted(const uint8_t* const* groups, int count, ptrdiff_t offset,
                               const __m256i (*weight)[2], const int32_t* words) {
  Sums sums = no_sums();
  for (int g = 0; g < (kGroups > 0 ? kGroups : count); ++g) {
    const __m256i lanes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(groups[g] + offset));
    if (kGroups > 0) {
      accumulate(&sums, lanes, weight[g][0], weight[g][1]);
    } else {
      accumulate(&sums, lanes, _mm256_set1_epi32(words[2 * g]), _mm256_set1_epi32(words[2 * g + 1]));
    }
  }
  return levels_of(sums);
}

template <int kGroups>
FASTLOAD_AVX2_CALL void vertical_of(const uint8_t* const* groups, int count, const int32_t* words, int lanes,
                                    uint8_t* levels) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packing works within 128-bit lanes
  __m256i weight[kGroups > 0 ? kGroups : 1][2];
  for (int g = 0; g < kGroups; ++g) {
    for (int half = 0; half < 2; ++half) weight[g][half] = _mm256_set1_epi32(words[2 * g + half]);
  }
  for (int x = 0; x < lanes; x += 32) {
    __m256i part[4];
    for (int i = 0; i < 4; ++i) {
      part[i] =
          weighted<kGroups>(groups, count, static_cast<ptrdiff_t>(x + 8 * i) * kLaneBytes, weight, words);
    }
    const __m256i packed =
        _mm256_packus_epi16(_mm256_packus_epi32(part[0], part[1]), _mm256_packus_epi32(part[2], part[3]));
    const __m256i result = _mm256_permutevar8x32_epi32(packed, order);
    if (x + 32 <= lanes) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(levels + x), result);
    } else {
      alignas(32) uint8_t bytes[32];
      _mm256_store_si256(reinterpret_cast<__m256i*>(bytes), result);
      std::memcpy(levels + x, bytes, lanes - x);
    }
  }
}

void vertical(const uint8_t* const* groups, int count, const int32_t* words, int lanes, uint8_t* levels) {
  switch (count) {
    case 1:
      return vertical_of<1>(groups, count, words, lanes, levels);
    case 2:
      return vertical_of<2>(groups, count, words, lanes, levels);
    case 3:
      return vertical_of<3>(groups, count, words, lanes, levels);
    default:
      return vertical_of<0>(groups, count, words, lanes, levels);
  }
}

}  // namespace

const Kernels kAvx2Kernels = {kRows,
                              kLaneBytes,
                              2,
                              encode,
                              make_horizontal,
                              horizontal_to_group,
                              horizontal_to_planes,
                              interleave,
                              vertical,
                              avx2_deinterleave,
                              avx2_store_for,
                              horizontal_to_two};

}  // namespace fastload::resampling

#endif  // FASTLOAD_X86
