// Upsampling and colour conversion with AVX-512 VBMI and VNNI, 64 pixels at a time.
//
// Even and odd columns are kept apart, 32 words each: upsampling produces chroma that way, and masking or
// shifting 64 bytes of luma does too. Packing leaves the bytes out of order; they are sorted when they become
// RGB.
#include "jpeg/ycc.h"

#include "base/x86.h"

#ifdef FASTLOAD_X86

namespace fastload {
namespace {

#define FASTLOAD_SET FASTLOAD_AVX512
#define FASTLOAD_SET_CALL FASTLOAD_AVX512_CALL

struct Tables {
  // For each of 3 x 64 bytes of RGB: its position in red or (plus 64) green, and its position in blue.
  alignas(64) uint8_t red_green[3][64];
  alignas(64) uint8_t blue[3][64];
  alignas(64) uint8_t gray[3][64];
  uint64_t is_blue[3];
  // Select from two vectors: shifted by one word to the left, and to the right.
  alignas(64) uint16_t before[32];
  alignas(64) uint16_t behind[32];
};

constexpr Tables make_tables() {
  Tables tables{};
  for (int i = 0; i < 192; i++) {
    const int pixel = i / 3, channel = i % 3;
    // Packing leaves 8 even, then 8 odd pixels in every 16 bytes.
    const int place = pixel / 16 * 16 + pixel % 2 * 8 + pixel % 16 / 2;
    tables.red_green[i / 64][i % 64] = static_cast<uint8_t>(place + (channel == 1 ? 64 : 0));
    tables.blue[i / 64][i % 64] = static_cast<uint8_t>(place);
    tables.gray[i / 64][i % 64] = static_cast<uint8_t>(pixel);
    if (channel == 2) tables.is_blue[i / 64] |= uint64_t{1} << i % 64;
  }
  for (int i = 0; i < 32; i++) {
    tables.before[i] = static_cast<uint16_t>(31 + i);
    tables.behind[i] = static_cast<uint16_t>(1 + i);
  }
  return tables;
}

constexpr Tables kTables = make_tables();

using Words = int16_t __attribute__((vector_size(64)));

struct Columns {
  Words even, odd;
};

FASTLOAD_AVX512 Words words_of(const uint8_t* bytes) {
  return Words(_mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes))));
}

FASTLOAD_AVX512 Columns columns_of(const uint8_t* bytes) {
  const __m512i both = _mm512_loadu_si512(bytes);
  return {Words(both) & 0xff, Words(_mm512_srli_epi16(both, 8))};
}

FASTLOAD_AVX512 Words left_of(Words before, Words here) {
  return Words(_mm512_permutex2var_epi16(__m512i(before), _mm512_load_si512(kTables.before), __m512i(here)));
}

FASTLOAD_AVX512 Words right_of(Words here, Words behind) {
  return Words(_mm512_permutex2var_epi16(__m512i(here), _mm512_load_si512(kTables.behind), __m512i(behind)));
}

FASTLOAD_AVX512 Words scaled(Words words, int16_t factor) {
  return Words(_mm512_mulhrs_epi16(__m512i(words), _mm512_set1_epi16(factor)));
}

FASTLOAD_AVX512 __m512i green_of(__m512i pairs) {
  constexpr uint32_t kFactors = static_cast<uint32_t>(-23401) << 16 | (-11277 & 0xffff);
  const __m512i factors = _mm512_set1_epi32(static_cast<int>(kFactors));
  return _mm512_srai_epi32(_mm512_dpwssd_epi32(_mm512_set1_epi32(1 << 14), pairs, factors), 15);
}

FASTLOAD_AVX512 Words green_of(Words cb, Words cr) {
  return Words(_mm512_packs_epi32(green_of(_mm512_unpacklo_epi16(__m512i(cb), __m512i(cr))),
                                  green_of(_mm512_unpackhi_epi16(__m512i(cb), __m512i(cr)))));
}

FASTLOAD_AVX512 void store(const Words* even, const Words* odd, int left, uint8_t* rgb) {
  __m512i packed[3];
  for (int c = 0; c < 3; c++) packed[c] = _mm512_packus_epi16(__m512i(even[c]), __m512i(odd[c]));
  for (int k = 0; k < 3 && 64 * k < left; k++) {
    const __m512i red_green =
        _mm512_permutex2var_epi8(packed[0], _mm512_load_si512(kTables.red_green[k]), packed[1]);
    _mm512_storeu_si512(rgb + 64 * k,
                        _mm512_mask_permutexvar_epi8(red_green, kTables.is_blue[k],
                                                     _mm512_load_si512(kTables.blue[k]), packed[2]));
  }
}

FASTLOAD_AVX512 void gray_row(const uint8_t* luma, int width, uint8_t* rgb) {
  for (int left = 3 * width; left > 0; left -= 192, luma += 64, rgb += 192)
    for (int k = 0; k < 3 && 64 * k < left; k++)
      _mm512_storeu_si512(rgb + 64 * k, _mm512_permutexvar_epi8(_mm512_load_si512(kTables.gray[k]),
                                                                _mm512_loadu_si512(luma)));
}

}  // namespace
}  // namespace fastload

#include "jpeg/ycc_row.h"

namespace fastload {

YccToRgb ycc_to_rgb_avx512() {
  return to_rgb;
}

}  // namespace fastload

#endif  // FASTLOAD_X86
