// The passes in AVX-512 with VBMI and VNNI (Ice Lake, Zen 4 and later).
//
// Note [Digits]
// vpdpbusd multiplies 4 unsigned by 4 signed bytes and adds the products to an int32. A weight of 22 bits is
// split into three signed digits, w = a * 2^16 + b * 2^8 + c. The sum of the a products is shifted left by 8,
// the b products are added, the sum is shifted again, and the c products are added. Everything is modulo
// 2^32, as is Pillow's sum, so the result is the same bit for bit, also for negative weights. Half a level
// (2^21) enters as 32 in the first sum. Weights up to 1.99 fit; the largest, Lanczos at the edge of an image
// two pixels wide, is 1.29.
#include "resample/kernels.h"

#include "base/x86.h"

#ifdef FASTLOAD_X86

#include <algorithm>
#include <cstring>

namespace fastload::resampling {

namespace {

constexpr int kRows = 4;      // source rows in a group, and taps in a group
constexpr int kColumns = 16;  // int32 lanes of a register
constexpr int kChunkTaps = 16;

// How the horizontal pass processes columns.
enum Layout : int {
  kNarrow,  // 16 columns at a time, whose sources lie within 64 bytes: one permutation per 4 taps
  kWide,    // the same within 128 bytes
  kSingle,  // one column at a time, 16 taps of 3 channels at once: strong shrinking, long filters
};
constexpr int kMostGroups = 4;  // of taps in kNarrow and kWide; more would not fit into registers

int8_t lowest_digit(int32_t value) {
  return static_cast<int8_t>(static_cast<uint8_t>(value & 255));
}

void encode(const int32_t* weights, int32_t* words) {
  int8_t digits[3][kRows];
  for (int k = 0; k < kRows; ++k) {
    int32_t rest = weights[k];
    for (int d = 2; d >= 0; --d) {
      digits[d][k] = lowest_digit(rest);
      rest = (rest - digits[d][k]) / 256;
    }
  }
  std::memcpy(words, digits, sizeof(digits));
}

// Words: kNarrow and kWide [group][digit][column + padding]; kSingle [column][chunk][digit][4 groups]. After
// the starts: each column's own number of chunks, because reading more would read past the row.
void make_horizontal(const Weights& weights, HorizontalTable* table) {
  const int out = weights.out;
  const int32_t* from = weights.starts();
  int32_t* start = table->start.room_for<int32_t>(2 * out + kColumns);
  std::copy_n(from, out, start);
  std::fill_n(start + out, kColumns, from[out - 1]);
  for (int x = 0; x < out; ++x) {
    start[out + kColumns + x] = (weights.counts()[x] + kChunkTaps - 1) / kChunkTaps;
  }

  int reach = 0;  // bytes after the first source byte of 16 columns that their first 4 taps read
  for (int x = 0; x < out; ++x) reach = std::max(reach, (start[x + kColumns - 1] - start[x]) * 3 + 3 * kRows);
  const int groups = (weights.taps + kRows - 1) / kRows;
  const bool together = reach <= 128 && groups <= kMostGroups;
  table->layout = together ? (reach <= 64 ? kNarrow : kWide) : kSingle;
  table->groups = together ? groups : (groups + 3) / 4 * 4;
  table->stride = out + kColumns;

  const size_t columns = together ? out + kColumns : out;
  int32_t* words = table->words.room_for<int32_t>(columns * table->groups * 3);
  for (int x = 0; x < out; ++x) {
    for (int g = 0; g < groups; ++g) {
      int32_t taps[kRows] = {0, 0, 0, 0}, digits[3];
      std::copy_n(weights.of(x) + g * kRows, std::min(kRows, weights.taps - g * kRows), taps);
      encode(taps, digits);
      for (int d = 0; d < 3; ++d) {
        const size_t at = together ? (static_cast<size_t>(g) * 3 + d) * table->stride + x
                                   : static_cast<size_t>(x) * table->groups * 3 + g / 4 * 12 + d * 4 + g % 4;
        words[at] = digits[d];
      }
    }
  }
}

// Sums of four rows, lane by lane, to levels: in each 128-bit lane 4 levels of row 0, 4 of row 1, ... The two
// saturations are Pillow's clip: a sum is within -512 .. 511 levels.
FASTLOAD_AVX512 __m512i pack_rows(const __m512i* sums) {
  __m512i levels[kRows];
  for (int k = 0; k < kRows; ++k) levels[k] = _mm512_srai_epi32(sums[k], 22);
  return _mm512_packus_epi16(_mm512_packus_epi32(levels[0], levels[1]),
                             _mm512_packus_epi32(levels[2], levels[3]));
}

// Transposes the 4 x 4 bytes of each 128-bit lane: from rows side by side to lanes of a group.
FASTLOAD_AVX512 __m512i rows_to_lanes(__m512i packed) {
  const __m128i transpose = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_shuffle_epi8(packed, _mm512_broadcast_i32x4(transpose));
}

// Transposes the 4 x 4 dwords: dword k of 128-bit lane j becomes dword j of lane k.
FASTLOAD_AVX512 __m512i transpose_dwords(__m512i packed) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, packed);
}

FASTLOAD_AVX512 void store_group(__m512i packed, uint8_t* lanes) {
  _mm512_storeu_si512(lanes, rows_to_lanes(packed));
}

// Stores `n` columns of 4 rows.
FASTLOAD_AVX512 void store_rows(__m512i packed, int x, int n, int channel, uint8_t* const* planes) {
  const __m512i rows = transpose_dwords(packed);
  const __mmask16 mask = static_cast<__mmask16>(_bzhi_u32(0xffff, n));
  _mm_mask_storeu_epi8(planes[channel] + x, mask, _mm512_castsi512_si128(rows));
  _mm_mask_storeu_epi8(planes[3 + channel] + x, mask, _mm512_extracti32x4_epi32(rows, 1));
  _mm_mask_storeu_epi8(planes[6 + channel] + x, mask, _mm512_extracti32x4_epi32(rows, 2));
  _mm_mask_storeu_epi8(planes[9 + channel] + x, mask, _mm512_extracti32x4_epi32(rows, 3));
}

// 16 columns at a time. kToGroup: writes lanes of a group to `group`; otherwise rows of levels to `planes`.
template <int kGroups, bool kOneRegister, bool kToGroup>
FASTLOAD_AVX512_CALL void columns_together(const HorizontalTable& table, const RowPart& part,
                                           const uint8_t* const* rows, uint8_t* group, int plane,
                                           uint8_t* const* planes) {
  constexpr int kReach = kOneRegister ? 64 : 128;
  const int32_t* start = table.start.get<int32_t>() + part.x;
  const int32_t* words = table.words.get<int32_t>() + part.x;
  const ptrdiff_t last_load = static_cast<ptrdiff_t>(part.source_count) * 3 + kSlack - kReach;
  const __m512i first_byte =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
  const __m512i taps = _mm512_set1_epi32(0x09060300);
  const __m512i half = _mm512_set1_epi32(32), one = _mm512_set1_epi8(1);

  for (int x = 0; x < part.count; x += kColumns) {
    // Offsets of each lane's taps, in bytes from the first column's first tap.
    const __m512i distance = _mm512_sub_epi32(_mm512_loadu_si512(start + x), _mm512_set1_epi32(start[x]));
    const __m512i times3 = _mm512_add_epi32(distance, _mm512_add_epi32(distance, distance));
    const __m512i place = _mm512_add_epi8(_mm512_shuffle_epi8(times3, first_byte), taps);

    ptrdiff_t offset[kGroups];
    __m512i index[kGroups], weight[kGroups][3];
    for (int g = 0; g < kGroups; ++g) {
      const ptrdiff_t wanted = static_cast<ptrdiff_t>(start[x] - part.source_x) * 3 + 3 * kRows * g;
      offset[g] = std::min(wanted, last_load);  // never read past the slack
      index[g] = _mm512_add_epi8(place, _mm512_set1_epi8(static_cast<char>(wanted - offset[g])));
      for (int d = 0; d < 3; ++d) weight[g][d] = _mm512_loadu_si512(words + (g * 3 + d) * table.stride + x);
    }
    __m512i sums[3][kRows];
    for (int k = 0; k < kRows; ++k) {
      __m512i low[kGroups], high[kGroups], at[kGroups];
      for (int g = 0; g < kGroups; ++g) {
        low[g] = _mm512_loadu_si512(rows[k] + offset[g]);
        if (!kOneRegister) high[g] = _mm512_loadu_si512(rows[k] + offset[g] + 64);
        at[g] = index[g];
      }
      for (int channel = 0; channel < 3; ++channel) {
        __m512i sum = half;
        __m512i level[kGroups];
        for (int g = 0; g < kGroups; ++g) {
          level[g] = kOneRegister ? _mm512_permutexvar_epi8(at[g], low[g])
                                  : _mm512_permutex2var_epi8(low[g], at[g], high[g]);
          at[g] = _mm512_add_epi8(at[g], one);
          sum = _mm512_dpbusd_epi32(sum, level[g], weight[g][0]);
        }
        for (int d = 1; d < 3; ++d) {
          sum = _mm512_slli_epi32(sum, 8);
          for (int g = 0; g < kGroups; ++g) sum = _mm512_dpbusd_epi32(sum, level[g], weight[g][d]);
        }
        sums[channel][k] = sum;
      }
    }
    for (int channel = 0; channel < 3; ++channel) {
      const __m512i packed = pack_rows(sums[channel]);
      if (kToGroup) {
        store_group(packed, group + (static_cast<ptrdiff_t>(channel) * plane + x) * kRows);
      } else {
        store_rows(packed, x, std::min(kColumns, part.count - x), channel, planes);
      }
    }
  }
}

// One column: lane (channel, g) of the result is its sum over taps 4 g .. 4 g + 3 of every chunk of 16.
FASTLOAD_AVX512 __m512i column_sums(const uint8_t* pixel, const int32_t* words, int chunks) {
  alignas(64) static constexpr uint8_t kPlaces[64] = {
      0,  3,  6,  9,  12, 15, 18, 21, 24, 27, 30, 33, 36, 39, 42, 45, 1,  4,  7,  10, 13, 16,
      19, 22, 25, 28, 31, 34, 37, 40, 43, 46, 2,  5,  8,  11, 14, 17, 20, 23, 26, 29, 32, 35,
      38, 41, 44, 47, 0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0};
  const __m512i places = _mm512_load_si512(kPlaces);
  __m512i sums[3] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
  for (int i = 0; i < chunks; ++i, pixel += 3 * kChunkTaps, words += 12) {
    const __m512i levels = _mm512_permutexvar_epi8(places, _mm512_loadu_si512(pixel));
    for (int d = 0; d < 3; ++d) {
      const __m512i weight =
          _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words + 4 * d)));
      sums[d] = _mm512_dpbusd_epi32(sums[d], levels, weight);
    }
  }
  return _mm512_add_epi32(_mm512_add_epi32(_mm512_slli_epi32(sums[0], 16), _mm512_slli_epi32(sums[1], 8)),
                          sums[2]);
}

// One column at a time; four are stored together.
template <bool kToGroup>
FASTLOAD_AVX512_CALL void columns_singly(const HorizontalTable& table, const RowPart& part,
                                         const uint8_t* const* rows, uint8_t* group, int plane,
                                         uint8_t* const* planes) {
  const int32_t* start = table.start.get<int32_t>() + part.x;
  const int32_t* chunks = start + table.stride;
  const ptrdiff_t words_per_column = static_cast<ptrdiff_t>(table.groups) * 3;
  const int32_t* words = table.words.get<int32_t>() + part.x * words_per_column;
  const __m512i half = _mm512_set1_epi32(1 << 21);
  for (int x = 0; x < part.count; x += 4) {
    __m512i sums[kRows];
    for (int k = 0; k < kRows; ++k) {
      __m512i s[4];
      for (int i = 0; i < 4; ++i) {
        const int column = std::min(x + i, part.count - 1);  // columns after the last may read past the row
        s[i] = column_sums(rows[k] + static_cast<ptrdiff_t>(start[column] - part.source_x) * 3,
                           words + column * words_per_column, chunks[column]);
      }
      // Adds up the four lanes of a channel, for four columns at once.
      const __m512i s01 =
          _mm512_add_epi32(_mm512_unpacklo_epi32(s[0], s[1]), _mm512_unpackhi_epi32(s[0], s[1]));
      const __m512i s23 =
          _mm512_add_epi32(_mm512_unpacklo_epi32(s[2], s[3]), _mm512_unpackhi_epi32(s[2], s[3]));
      const __m512i total =
          _mm512_add_epi32(_mm512_unpacklo_epi64(s01, s23), _mm512_unpackhi_epi64(s01, s23));
      sums[k] = _mm512_add_epi32(total, half);
    }
    __m512i packed = pack_rows(sums);  // one 128-bit lane per channel
    if (kToGroup) packed = rows_to_lanes(packed);
    alignas(64) uint8_t bytes[64];
    _mm512_store_si512(bytes, packed);
    const int n = std::min(4, part.count - x);
    for (int channel = 0; channel < 3; ++channel) {
      if (kToGroup) {
        std::memcpy(group + (static_cast<ptrdiff_t>(channel) * plane + x) * kRows, bytes + 16 * channel, 16);
      } else {
        for (int k = 0; k < kRows; ++k)
          std::memcpy(planes[3 * k + channel] + x, bytes + 16 * channel + 4 * k, n);
      }
    }
  }
}

template <bool kOneRegister, bool kToGroup>
FASTLOAD_AVX512_CALL void dispatch_groups(const HorizontalTable& table, const RowPart& part,
                                          const uint8_t* const* rows, uint8_t* group, int plane,
                                          uint8_t* const* planes) {
  switch (table.groups) {
    case 1:
      return columns_together<1, kOneRegister, kToGroup>(table, part, rows, group, plane, planes);
    case 2:
      return columns_together<2, kOneRegister, kToGroup>(table, part, rows, group, plane, planes);
    case 3:
      return columns_together<3, kOneRegister, kToGroup>(table, part, rows, group, plane, planes);
    default:
      return columns_together<4, kOneRegister, kToGroup>(table, part, rows, group, plane, planes);
  }
}

template <bool kToGroup>
FASTLOAD_AVX512_CALL void horizontal(const HorizontalTable& table, const RowPart& part,
                                     const uint8_t* const* rows, uint8_t* group, int plane,
                                     uint8_t* const* planes) {
  if (table.layout == kSingle) {
    columns_singly<kToGroup>(table, part, rows, group, plane, planes);
  } else if (table.layout == kNarrow || part.source_count * 3 <= 64) {  // the whole row is within 64 bytes
    dispatch_groups<true, kToGroup>(table, part, rows, group, plane, planes);
  } else {
    dispatch_groups<false, kToGroup>(table, part, rows, group, plane, planes);
  }
}

void horizontal_to_group(const HorizontalTable& table, const RowPart& part, const uint8_t* const* rows,
                         uint8_t* group, int plane) {
  horizontal<true>(table, part, rows, group, plane, nullptr);
}

void horizontal_to_planes(const HorizontalTable& table, const RowPart& part, const uint8_t* const* rows,
                          uint8_t* const* planes) {
  horizontal<false>(table, part, rows, nullptr, 0, planes);
}

FASTLOAD_AVX512_CALL void interleave(const uint8_t* const* rows, int count, uint8_t* group) {
  alignas(64) static constexpr uint8_t kTranspose[64] = {
      0,  16, 32, 48, 1,  17, 33, 49, 2,  18, 34, 50, 3,  19, 35, 51, 4,  20, 36, 52, 5,  21,
      37, 53, 6,  22, 38, 54, 7,  23, 39, 55, 8,  24, 40, 56, 9,  25, 41, 57, 10, 26, 42, 58,
      11, 27, 43, 59, 12, 28, 44, 60, 13, 29, 45, 61, 14, 30, 46, 62, 15, 31, 47, 63};
  const __m512i transpose = _mm512_load_si512(kTranspose);
  for (int x = 0; x < count; x += 16) {
    __m128i part[kRows];
    for (int k = 0; k < kRows; ++k) part[k] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[k] + x));
    __m512i all = _mm512_castsi128_si512(part[0]);
    all = _mm512_inserti32x4(all, part[1], 1);
    all = _mm512_inserti32x4(all, part[2], 2);
    all = _mm512_inserti32x4(all, part[3], 3);
    _mm512_storeu_si512(group + static_cast<ptrdiff_t>(x) * kRows, _mm512_permutexvar_epi8(transpose, all));
  }
}

// 16 lanes at `offset` bytes into each group. kGroups == 0: any number of groups.
template <int kGroups>
FASTLOAD_AVX512 __m512i weighted(const uint8_t* const* groups, int count, ptrdiff_t offset,
                                 const __m512i (*weight)[3], const int32_t* words) {
  __m512i sum = _mm512_set1_epi32(32);
  if (kGroups > 0) {
    __m512i lanes[kGroups > 0 ? kGroups : 1];
    for (int g = 0; g < kGroups; ++g) lanes[g] = _mm512_loadu_si512(groups[g] + offset);
    for (int d = 0; d < 3; ++d) {
      if (d > 0) sum = _mm512_slli_epi32(sum, 8);
      for (int g = 0; g < kGroups; ++g) sum = _mm512_dpbusd_epi32(sum, lanes[g], weight[g][d]);
    }
    return sum;
  }
  __m512i middle = _mm512_setzero_si512(), low = middle;
  for (int g = 0; g < count; ++g, words += 3) {
    const __m512i lanes = _mm512_loadu_si512(groups[g] + offset);
    sum = _mm512_dpbusd_epi32(sum, lanes, _mm512_set1_epi32(words[0]));
    middle = _mm512_dpbusd_epi32(middle, lanes, _mm512_set1_epi32(words[1]));
    low = _mm512_dpbusd_epi32(low, lanes, _mm512_set1_epi32(words[2]));
  }
  return _mm512_add_epi32(_mm512_add_epi32(_mm512_slli_epi32(sum, 16), _mm512_slli_epi32(middle, 8)), low);
}

template <int kGroups>
FASTLOAD_AVX512_CALL void vertical_of(const uint8_t* const* groups, int count, const int32_t* words,
                                      int lanes, uint8_t* levels) {
  __m512i weight[kGroups > 0 ? kGroups : 1][3];
  for (int g = 0; g < kGroups; ++g) {
    for (int d = 0; d < 3; ++d) weight[g][d] = _mm512_set1_epi32(words[3 * g + d]);
  }
  int x = 0;
  for (; x + 64 <= lanes; x += 64) {
    __m512i sums[4];
    for (int i = 0; i < 4; ++i) {
      sums[i] = weighted<kGroups>(groups, count, static_cast<ptrdiff_t>(x + 16 * i) * kRows, weight, words);
    }
    _mm512_storeu_si512(levels + x, transpose_dwords(pack_rows(sums)));
  }
  for (; x < lanes; x += 16) {
    const __m512i sum = weighted<kGroups>(groups, count, static_cast<ptrdiff_t>(x) * kRows, weight, words);
    const __m512i level = _mm512_max_epi32(_mm512_srai_epi32(sum, 22), _mm512_setzero_si512());
    const __mmask16 mask = static_cast<__mmask16>(_bzhi_u32(0xffff, std::min(lanes - x, 16)));
    _mm_mask_storeu_epi8(levels + x, mask, _mm512_cvtusepi32_epi8(level));
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

const Kernels kAvx512Kernels = {kRows,
                                kRows,
                                3,
                                encode,
                                make_horizontal,
                                horizontal_to_group,
                                horizontal_to_planes,
                                interleave,
                                vertical,
                                avx512_deinterleave,
                                avx512_store_for};

}  // namespace fastload::resampling

#endif  // FASTLOAD_X86
