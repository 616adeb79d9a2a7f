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

// 32 words each: columns 0, 2, 4 ... and 1, 3, 5 ...
struct Columns {
  __m512i even, odd;
};

FASTLOAD_AVX512 __m512i words_of(const uint8_t* bytes) {
  return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes)));
}

FASTLOAD_AVX512 Columns columns_of(__m512i bytes) {
  return {_mm512_and_si512(bytes, _mm512_set1_epi16(0xff)), _mm512_srli_epi16(bytes, 8)};
}

// Chroma minus 128, 64 pixels at a time.
template <Sampling kSampling>
class Chroma {
 public:
  FASTLOAD_AVX512 Chroma(const uint8_t* near, const uint8_t* far, bool far_below) : near_(near), far_(far) {
    if constexpr (kSampling == Sampling::k1x2) bias_ = _mm512_set1_epi16(far_below ? 2 - 512 : 1 - 512);
    if constexpr (kHalved) {
      before_ = sums(near - 32, far - 32);
      here_ = sums(near, far);
    }
  }

  FASTLOAD_AVX512 Columns next() {
    if constexpr (kHalved) {
      near_ += 32, far_ += 32;
      const __m512i behind = sums(near_, far_);
      const __m512i left = _mm512_permutex2var_epi16(before_, _mm512_load_si512(kTables.before), here_);
      const __m512i right = _mm512_permutex2var_epi16(here_, _mm512_load_si512(kTables.behind), behind);
      const __m512i most = _mm512_mullo_epi16(here_, _mm512_set1_epi16(3));
      before_ = here_;
      here_ = behind;
      constexpr int kEven = kSampling == Sampling::k2x1 ? 1 : 0, kOdd = kSampling == Sampling::k2x1 ? 2 : -1;
      constexpr int kBits = kSampling == Sampling::k2x1 ? 2 : 4;
      return {
          _mm512_srai_epi16(_mm512_add_epi16(_mm512_add_epi16(most, left), _mm512_set1_epi16(kEven)), kBits),
          _mm512_srai_epi16(_mm512_add_epi16(_mm512_add_epi16(most, right), _mm512_set1_epi16(kOdd)), kBits)};
    } else {
      const Columns near = columns_of(_mm512_loadu_si512(near_));
      near_ += 64;
      if constexpr (kSampling == Sampling::k1x2) {
        const Columns far = columns_of(_mm512_loadu_si512(far_));
        far_ += 64;
        return {between(near.even, far.even), between(near.odd, far.odd)};
      }
      const __m512i middle = _mm512_set1_epi16(128);
      return {_mm512_sub_epi16(near.even, middle), _mm512_sub_epi16(near.odd, middle)};
    }
  }

 private:
  static constexpr bool kHalved = kSampling == Sampling::k2x1 || kSampling == Sampling::k2x2;

  // Weighted sums over the two rows, minus 128 for each weight; neighbours in a row are weighted from these.
  // For 2x2, four times the constant includes the 8 that rounds an even column.
  FASTLOAD_AVX512 __m512i sums(const uint8_t* near, [[maybe_unused]] const uint8_t* far) const {
    if constexpr (kSampling == Sampling::k2x1) {
      return _mm512_sub_epi16(words_of(near), _mm512_set1_epi16(128));
    }
    const __m512i more = _mm512_mullo_epi16(words_of(near), _mm512_set1_epi16(3));
    return _mm512_add_epi16(_mm512_add_epi16(more, words_of(far)), _mm512_set1_epi16(2 - 512));
  }

  FASTLOAD_AVX512 __m512i between(__m512i near, __m512i far) const {
    const __m512i most = _mm512_mullo_epi16(near, _mm512_set1_epi16(3));
    return _mm512_srai_epi16(_mm512_add_epi16(_mm512_add_epi16(most, far), bias_), 2);
  }

  const uint8_t* near_;
  const uint8_t* far_;
  __m512i before_, here_, bias_;
};

FASTLOAD_AVX512 __m512i green_of(__m512i pairs) {
  constexpr uint32_t kFactors = static_cast<uint32_t>(-23401) << 16 | (-11277 & 0xffff);
  const __m512i factors = _mm512_set1_epi32(static_cast<int>(kFactors));
  return _mm512_srai_epi32(_mm512_dpwssd_epi32(_mm512_set1_epi32(1 << 14), pairs, factors), 15);
}

// Red, green and blue of 32 pixels, not clipped. The rounded products of twice the chroma with 15-bit factors
// equal those of jpeg/ycc_scalar.cpp with 16-bit factors for all 256 values; green's factors there are even.
FASTLOAD_AVX512 void convert(__m512i luma, __m512i cb, __m512i cr, __m512i* rgb) {
  rgb[0] = _mm512_mulhrs_epi16(_mm512_add_epi16(cr, cr), _mm512_set1_epi16(22971));
  rgb[1] =
      _mm512_packs_epi32(green_of(_mm512_unpacklo_epi16(cb, cr)), green_of(_mm512_unpackhi_epi16(cb, cr)));
  rgb[2] = _mm512_mulhrs_epi16(_mm512_add_epi16(cb, cb), _mm512_set1_epi16(29033));
  for (int c = 0; c < 3; c++) rgb[c] = _mm512_add_epi16(rgb[c], luma);
}

template <Sampling kSampling>
FASTLOAD_AVX512 void convert_row(const YccRow& row, int x0, int width, uint8_t* rgb) {
  constexpr bool kHalved = kSampling == Sampling::k2x1 || kSampling == Sampling::k2x2;
  constexpr bool kTwoRows = kSampling == Sampling::k1x2 || kSampling == Sampling::k2x2;
  const int at = kHalved ? x0 >> 1 : x0;
  Chroma<kSampling> blue(row.near[0] + at, (kTwoRows ? row.far : row.near)[0] + at, row.far_below);
  Chroma<kSampling> red(row.near[1] + at, (kTwoRows ? row.far : row.near)[1] + at, row.far_below);
  const uint8_t* luma = row.luma + x0;
  for (int left = 3 * width; left > 0; left -= 192, luma += 64, rgb += 192) {
    const Columns y = columns_of(_mm512_loadu_si512(luma)), cb = blue.next(), cr = red.next();
    __m512i even[3], odd[3], packed[3];
    convert(y.even, cb.even, cr.even, even);
    convert(y.odd, cb.odd, cr.odd, odd);
    for (int c = 0; c < 3; c++) packed[c] = _mm512_packus_epi16(even[c], odd[c]);
    for (int k = 0; k < 3 && 64 * k < left; k++) {
      const __m512i red_green =
          _mm512_permutex2var_epi8(packed[0], _mm512_load_si512(kTables.red_green[k]), packed[1]);
      _mm512_storeu_si512(rgb + 64 * k,
                          _mm512_mask_permutexvar_epi8(red_green, kTables.is_blue[k],
                                                       _mm512_load_si512(kTables.blue[k]), packed[2]));
    }
  }
}

FASTLOAD_AVX512 void gray_row(const uint8_t* luma, int width, uint8_t* rgb) {
  for (int left = 3 * width; left > 0; left -= 192, luma += 64, rgb += 192)
    for (int k = 0; k < 3 && 64 * k < left; k++)
      _mm512_storeu_si512(rgb + 64 * k, _mm512_permutexvar_epi8(_mm512_load_si512(kTables.gray[k]),
                                                                _mm512_loadu_si512(luma)));
}

FASTLOAD_AVX512_CALL void to_rgb(Sampling sampling, const YccRow& row, int x0, int width, uint8_t* rgb) {
  if ((sampling == Sampling::k2x1 || sampling == Sampling::k2x2) && x0 % 2 != 0 && width > 0) {
    ycc_to_rgb_scalar()(sampling, row, x0, 1, rgb);
    x0++, width--, rgb += 3;
  }
  switch (sampling) {
    case Sampling::kGray:
      return gray_row(row.luma + x0, width, rgb);
    case Sampling::k1x1:
      return convert_row<Sampling::k1x1>(row, x0, width, rgb);
    case Sampling::k2x1:
      return convert_row<Sampling::k2x1>(row, x0, width, rgb);
    case Sampling::k1x2:
      return convert_row<Sampling::k1x2>(row, x0, width, rgb);
    case Sampling::k2x2:
      return convert_row<Sampling::k2x2>(row, x0, width, rgb);
  }
}

}  // namespace

YccToRgb ycc_to_rgb_avx512() {
  return to_rgb;
}

}  // namespace fastload

#endif  // FASTLOAD_X86
