// Upsampling and colour conversion with AVX2, 32 pixels at a time.
#include "jpeg/ycc.h"

#include "base/x86.h"

#ifdef FASTLOAD_X86

namespace fastload {
namespace {

#define FASTLOAD_SET FASTLOAD_AVX2
#define FASTLOAD_SET_CALL FASTLOAD_AVX2_CALL

using Words = int16_t __attribute__((vector_size(32)));

struct Columns {
  Words even, odd;
};

FASTLOAD_AVX2 Words words_of(const uint8_t* bytes) {
  return Words(_mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes))));
}

FASTLOAD_AVX2 Columns columns_of(const uint8_t* bytes) {
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
  return {Words(both) & 0xff, Words(_mm256_srli_epi16(both, 8))};
}

FASTLOAD_AVX2 Words left_of(Words before, Words here) {
  return Words(
      _mm256_alignr_epi8(__m256i(here), _mm256_permute2x128_si256(__m256i(before), __m256i(here), 0x21), 14));
}

FASTLOAD_AVX2 Words right_of(Words here, Words behind) {
  return Words(
      _mm256_alignr_epi8(_mm256_permute2x128_si256(__m256i(here), __m256i(behind), 0x21), __m256i(here), 2));
}

FASTLOAD_AVX2 Words scaled(Words words, int16_t factor) {
  return Words(_mm256_mulhrs_epi16(__m256i(words), _mm256_set1_epi16(factor)));
}

FASTLOAD_AVX2 __m256i green_of(__m256i pairs) {
  constexpr uint32_t kFactors = static_cast<uint32_t>(-23401) << 16 | (-11277 & 0xffff);
  const __m256i products = _mm256_madd_epi16(pairs, _mm256_set1_epi32(static_cast<int>(kFactors)));
  return _mm256_srai_epi32(_mm256_add_epi32(products, _mm256_set1_epi32(1 << 14)), 15);
}

FASTLOAD_AVX2 Words green_of(Words cb, Words cr) {
  return Words(_mm256_packs_epi32(green_of(_mm256_unpacklo_epi16(__m256i(cb), __m256i(cr))),
                                  green_of(_mm256_unpackhi_epi16(__m256i(cb), __m256i(cr)))));
}

// Note [Threes]
// In 48 bytes of RGB, byte 16 * part + place belongs to channel (part + place) % 3: at each place, the three
// parts hold the three channels. So each channel is shuffled once, to its places in all parts, and each part
// is a blend of the three.
struct Tables {
  alignas(16) uint8_t shuffle[3][16];  // by channel: which byte of 8 even and 8 odd pixels
  alignas(16) uint8_t every[3][16];    // masks of places 0 3 6 ..., 1 4 7 ..., 2 5 8 ...
  alignas(16) uint8_t gray[3][16];     // by part: which pixel
};

constexpr Tables make_tables() {
  Tables tables{};
  for (int i = 0; i < 48; i++) {
    const int pixel = i / 3;
    tables.shuffle[i % 3][i % 16] = static_cast<uint8_t>(pixel % 2 * 8 + pixel / 2);
    tables.gray[i / 16][i % 16] = static_cast<uint8_t>(pixel);
  }
  for (int place = 0; place < 16; place++) tables.every[place % 3][place] = 0xff;
  return tables;
}

constexpr Tables kTables = make_tables();

FASTLOAD_AVX2 __m256i load_both_lanes(const uint8_t* table) {
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table)));
}

FASTLOAD_AVX2 void store(const Words* even, const Words* odd, int left, uint8_t* rgb) {
  __m256i channels[3], every[3], parts[3];
  for (int c = 0; c < 3; c++) {
    channels[c] = _mm256_shuffle_epi8(_mm256_packus_epi16(__m256i(even[c]), __m256i(odd[c])),
                                      load_both_lanes(kTables.shuffle[c]));
    every[c] = load_both_lanes(kTables.every[c]);
  }
  for (int part = 0; part < 3; part++)
    parts[part] = _mm256_blendv_epi8(_mm256_blendv_epi8(channels[0], channels[1], every[(4 - part) % 3]),
                                     channels[2], every[(5 - part) % 3]);
  const __m256i whole[3] = {_mm256_permute2x128_si256(parts[0], parts[1], 0x20),
                            _mm256_permute2x128_si256(parts[2], parts[0], 0x30),
                            _mm256_permute2x128_si256(parts[1], parts[2], 0x31)};
  for (int k = 0; k < 3 && 32 * k < left; k++)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(rgb + 32 * k), whole[k]);
}

FASTLOAD_AVX2 void gray_row(const uint8_t* luma, int width, uint8_t* rgb) {
  for (int left = 3 * width; left > 0; left -= 48, luma += 16, rgb += 48) {
    const __m128i pixels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(luma));
    for (int k = 0; k < 3 && 16 * k < left; k++)
      _mm_storeu_si128(
          reinterpret_cast<__m128i*>(rgb + 16 * k),
          _mm_shuffle_epi8(pixels, _mm_load_si128(reinterpret_cast<const __m128i*>(kTables.gray[k]))));
  }
}

}  // namespace
}  // namespace fastload

#include "jpeg/ycc_row.h"

namespace fastload {

YccToRgb ycc_to_rgb_avx2() {
  return to_rgb;
}

}  // namespace fastload

#endif  // FASTLOAD_X86
