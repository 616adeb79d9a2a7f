// The inverse DCT with AVX-512 VBMI and VNNI, four blocks at a time.
//
// Note [Pairs]
// vpdpwssd adds the products of neighbouring words, so inputs that the algorithm multiplies together share a
// 32-bit lane: inputs 0 and 4, 2 and 6, 7 and 1, 3 and 5 (the last two in this order, so that one addition of
// words gives both sums of the odd half). A lane is a column in the first pass and a row in the second.
// Columns are in the order 0 4 2 6 7 1 3 5, so that packing the first pass's results to words makes the pairs
// of the second.
#include "jpeg/idct.h"

#include "base/x86.h"

#ifdef FASTLOAD_X86

#include "jpeg/idct_constants.h"

namespace fastload {
namespace {

using idct::Pair;

constexpr int kColumns[8] = {0, 4, 2, 6, 7, 1, 3, 5};

struct Tables {
  // Which words of a block's rows form its pairs 0 4 and 2 6, and its pairs 7 1 and 3 5.
  alignas(64) uint16_t even[32];
  alignas(64) uint16_t odd[32];
};

constexpr Tables make_tables() {
  constexpr int kRows[4][2] = {{0, 4}, {2, 6}, {7, 1}, {3, 5}};
  Tables tables{};
  for (int i = 0; i < 16; i++)
    for (int k = 0; k < 2; k++) {
      tables.even[2 * i + k] = static_cast<uint16_t>(8 * kRows[i / 8][k] + kColumns[i % 8]);
      tables.odd[2 * i + k] = static_cast<uint16_t>(8 * kRows[2 + i / 8][k] + kColumns[i % 8]);
    }
  return tables;
}

constexpr Tables kTables = make_tables();

// The two factors of a pair, in every lane.
struct Factors {
  __m512i even0, even1, even2, even3, minus_even2, minus_even3;
  __m512i odd_sum3, odd_sum4, odd0, odd1, odd2, odd3;
};

// The compiler must not know the values: it would compute them again for each block, with instructions that
// compete with the others.
FASTLOAD_AVX512 __m512i factors_of(Pair pair) {
  const uint32_t words = static_cast<uint32_t>(pair.second) << 16 | (pair.first & 0xffff);
  __m512i lanes = _mm512_set1_epi32(static_cast<int>(words));
  asm("" : "+v"(lanes));
  return lanes;
}

FASTLOAD_AVX512 Factors make_factors() {
  constexpr int kOne = 1 << idct::kConstBits;
  return {factors_of({kOne, 0}),
          factors_of({0, kOne}),
          factors_of(idct::kEven2),
          factors_of(idct::kEven3),
          factors_of({-idct::kEven2.first, -idct::kEven2.second}),
          factors_of({-idct::kEven3.first, -idct::kEven3.second}),
          factors_of(idct::kOddSum3),
          factors_of(idct::kOddSum4),
          factors_of(idct::kOdd0),
          factors_of(idct::kOdd1),
          factors_of(idct::kOdd2),
          factors_of(idct::kOdd3)};
}

// Inputs by pairs: 0 and 4, 2 and 6, 7 and 1, 3 and 5. `out`: the eight outputs in 32 bits, shifted.
template <int kShift>
FASTLOAD_AVX512 void transform(const Factors& by, const __m512i* in, __m512i* out) {
  const __m512i half = _mm512_set1_epi32(1 << (kShift - 1));
  const __m512i swapped = _mm512_rol_epi32(in[0], 16);
  const __m512i sums = _mm512_mask_sub_epi16(_mm512_add_epi16(in[0], swapped), 0xaaaaaaaau, swapped, in[0]);
  const __m512i even0 = _mm512_dpwssd_epi32(half, sums, by.even0),
                even1 = _mm512_dpwssd_epi32(half, sums, by.even1);
  const __m512i even[4] = {
      _mm512_dpwssd_epi32(even0, in[1], by.even3), _mm512_dpwssd_epi32(even1, in[1], by.even2),
      _mm512_dpwssd_epi32(even1, in[1], by.minus_even2), _mm512_dpwssd_epi32(even0, in[1], by.minus_even3)};

  const __m512i odd_sums = _mm512_add_epi16(in[2], in[3]);
  const __m512i sum3 = _mm512_madd_epi16(odd_sums, by.odd_sum3),
                sum4 = _mm512_madd_epi16(odd_sums, by.odd_sum4);
  const __m512i odd[4] = {
      _mm512_dpwssd_epi32(sum4, in[2], by.odd3), _mm512_dpwssd_epi32(sum3, in[3], by.odd2),
      _mm512_dpwssd_epi32(sum4, in[3], by.odd1), _mm512_dpwssd_epi32(sum3, in[2], by.odd0)};
  for (int k = 0; k < 4; k++) {
    out[k] = _mm512_srai_epi32(_mm512_add_epi32(even[k], odd[k]), kShift);
    out[7 - k] = _mm512_srai_epi32(_mm512_sub_epi32(even[k], odd[k]), kShift);
  }
}

template <int kLanes>
FASTLOAD_AVX512 __m512i choose_lanes(__m512i a, __m512i b) {
  return _mm512_shuffle_i64x2(a, b, kLanes);
}

template <int kPlaces>
FASTLOAD_AVX512 __m512i choose(__m512i a, __m512i b) {
  return _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), kPlaces));
}

// Transforms four blocks (6.5 ns each on a Zen 5; 8.5 with two), in two groups so that the processor finds
// independent work: one of the first and third block, one of the second and fourth. rows[k]: 32 samples of
// row k, then 32 of row k + 4. False: values are too large for it.
FASTLOAD_AVX512 bool four_blocks(const Factors& by, const int16_t* const* blocks, const __m512i* quant,
                                 __m512i* rows) {
  const __m512i even_words = _mm512_load_si512(kTables.even), odd_words = _mm512_load_si512(kTables.odd);
  __m512i pairs[2][4];
  for (int g = 0; g < 2; g++) {
    __m512i even[2], odd[2];
    for (int k = 0; k < 2; k++) {
      const int16_t* const block = blocks[2 * k + g];
      const __m512i top = _mm512_mullo_epi16(_mm512_load_si512(block), quant[0]);
      const __m512i bottom = _mm512_mullo_epi16(_mm512_load_si512(block + 32), quant[1]);
      even[k] = _mm512_permutex2var_epi16(top, even_words, bottom);
      odd[k] = _mm512_permutex2var_epi16(top, odd_words, bottom);
    }
    pairs[g][0] = choose_lanes<0x44>(even[0], even[1]);
    pairs[g][1] = choose_lanes<0xee>(even[0], even[1]);
    pairs[g][2] = choose_lanes<0x44>(odd[0], odd[1]);
    pairs[g][3] = choose_lanes<0xee>(odd[0], odd[1]);
  }
  // Below 2^13, libjpeg's shortcut for a block with zeros in rows 1 to 7 gives the same result as this.
  const __m512i limit = _mm512_set1_epi32(1 << 13);
  const __m512i above =
      _mm512_or_si512(_mm512_add_epi16(pairs[0][0], limit), _mm512_add_epi16(pairs[1][0], limit));
  if (_mm512_test_epi32_mask(above, _mm512_set1_epi32(0xc000))) return false;

  __m512i out[8], words[2][4];
  for (int g = 0; g < 2; g++) {
    transform<idct::kShift1>(by, pairs[g], out);
    for (int k = 0; k < 4; k++) words[g][k] = _mm512_packs_epi32(out[2 * k], out[2 * k + 1]);
  }
  for (int g = 0; g < 2; g++) {
    // 128-bit lanes: pairs 0 4 and 7 1 of one block, then of the other; then pairs 2 6 and 3 5.
    const __m512i upper04 = choose<0x88>(words[g][0], words[g][1]),
                  lower04 = choose<0x88>(words[g][2], words[g][3]);
    const __m512i upper26 = choose<0xdd>(words[g][0], words[g][1]),
                  lower26 = choose<0xdd>(words[g][2], words[g][3]);
    pairs[g][0] = choose_lanes<0x88>(upper04, lower04);
    pairs[g][1] = choose_lanes<0x88>(upper26, lower26);
    pairs[g][2] = choose_lanes<0xdd>(upper04, lower04);
    pairs[g][3] = choose_lanes<0xdd>(upper26, lower26);
  }
  for (int g = 0; g < 2; g++) {
    // 128-bit lanes: rows 0 to 3 of one block, then of the other; then rows 4 to 7.
    transform<idct::kShift2>(by, pairs[g], out);
    for (int k = 0; k < 4; k++) words[g][k] = _mm512_packs_epi32(out[2 * k], out[2 * k + 1]);
  }
  const __m512i transpose =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m512i middle = _mm512_set1_epi8(static_cast<char>(0x80));
  __m512i upper[2], lower[2];
  for (int g = 0; g < 2; g++) {
    const __m512i left = _mm512_shuffle_epi8(_mm512_packs_epi16(words[g][0], words[g][1]), transpose);
    const __m512i right = _mm512_shuffle_epi8(_mm512_packs_epi16(words[g][2], words[g][3]), transpose);
    upper[g] = _mm512_xor_si512(_mm512_unpacklo_epi32(left, right), middle);
    lower[g] = _mm512_xor_si512(_mm512_unpackhi_epi32(left, right), middle);
  }
  rows[0] = _mm512_unpacklo_epi64(upper[0], upper[1]);
  rows[1] = _mm512_unpackhi_epi64(upper[0], upper[1]);
  rows[2] = _mm512_unpacklo_epi64(lower[0], lower[1]);
  rows[3] = _mm512_unpackhi_epi64(lower[0], lower[1]);
  return true;
}

FASTLOAD_AVX512_CALL void inverse_row(const int16_t* blocks, int count, const uint16_t* quant,
                                      uint8_t* samples, ptrdiff_t stride) {
  const Factors by = make_factors();
  const __m512i factors[2] = {_mm512_load_si512(quant), _mm512_load_si512(quant + 32)};
  for (int left = count; left > 0; left -= 4, blocks += 256, samples += 32) {
    const int last = left < 4 ? left - 1 : 3;  // the last block stands for those that do not exist
    const int16_t* const four[4] = {blocks, blocks + 64 * (last < 1 ? last : 1),
                                    blocks + 64 * (last < 2 ? last : 2), blocks + 64 * last};
    __m512i rows[4];
    if (!four_blocks(by, four, factors, rows)) {
      inverse_dct_scalar()(blocks, last + 1, quant, samples, stride);
      continue;
    }
    const __mmask32 wanted = static_cast<__mmask32>(~uint64_t{0} >> (64 - 8 * (last + 1)));
    for (int y = 0; y < 4; y++) {
      uint8_t* const line = samples + y * stride;
      const __m256i first = _mm512_castsi512_si256(rows[y]), second = _mm512_extracti64x4_epi64(rows[y], 1);
      if (left >= 4) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(line), first);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(line + 4 * stride), second);
      } else {
        _mm256_mask_storeu_epi8(line, wanted, first);
        _mm256_mask_storeu_epi8(line + 4 * stride, wanted, second);
      }
    }
  }
}

}  // namespace

InverseDct inverse_dct_avx512() {
  return inverse_row;
}

}  // namespace fastload

#endif  // FASTLOAD_X86
