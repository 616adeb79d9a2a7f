// Upsampling and colour conversion with AVX2, 32 pixels at a time, in the same steps as jpeg/ycc_avx512.cpp.
#include "jpeg/ycc.h"

#include "base/x86.h"

#ifdef FASTLOAD_X86

namespace fastload {
namespace {

// 16 words each: columns 0, 2, 4 ... and 1, 3, 5 ...
struct Columns {
  __m256i even, odd;
};

FASTLOAD_AVX2 __m256i load(const void* bytes) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(bytes));
}

FASTLOAD_AVX2 __m256i words_of(const uint8_t* bytes) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
}

FASTLOAD_AVX2 Columns columns_of(__m256i bytes) {
  return {_mm256_and_si256(bytes, _mm256_set1_epi16(0xff)), _mm256_srli_epi16(bytes, 8)};
}

// Chroma minus 128, 32 pixels at a time.
template <Sampling kSampling>
class Chroma {
 public:
  FASTLOAD_AVX2 Chroma(const uint8_t* near, const uint8_t* far, bool far_below) : near_(near), far_(far) {
    if constexpr (kSampling == Sampling::k1x2) bias_ = _mm256_set1_epi16(far_below ? 2 - 512 : 1 - 512);
    if constexpr (kHalved) {
      before_ = sums(near - 16, far - 16);
      here_ = sums(near, far);
    }
  }

  FASTLOAD_AVX2 Columns next() {
    if constexpr (kHalved) {
      near_ += 16, far_ += 16;
      const __m256i behind = sums(near_, far_);
      const __m256i left = _mm256_alignr_epi8(here_, _mm256_permute2x128_si256(before_, here_, 0x21), 14);
      const __m256i right = _mm256_alignr_epi8(_mm256_permute2x128_si256(here_, behind, 0x21), here_, 2);
      const __m256i most = _mm256_mullo_epi16(here_, _mm256_set1_epi16(3));
      before_ = here_;
      here_ = behind;
      constexpr int kEven = kSampling == Sampling::k2x1 ? 1 : 0, kOdd = kSampling == Sampling::k2x1 ? 2 : -1;
      constexpr int kBits = kSampling == Sampling::k2x1 ? 2 : 4;
      return {
          _mm256_srai_epi16(_mm256_add_epi16(_mm256_add_epi16(most, left), _mm256_set1_epi16(kEven)), kBits),
          _mm256_srai_epi16(_mm256_add_epi16(_mm256_add_epi16(most, right), _mm256_set1_epi16(kOdd)), kBits)};
    } else {
      const Columns near = columns_of(load(near_));
      near_ += 32;
      if constexpr (kSampling == Sampling::k1x2) {
        const Columns far = columns_of(load(far_));
        far_ += 32;
        return {between(near.even, far.even), between(near.odd, far.odd)};
      }
      const __m256i middle = _mm256_set1_epi16(128);
      return {_mm256_sub_epi16(near.even, middle), _mm256_sub_epi16(near.odd, middle)};
    }
  }

 private:
  static constexpr bool kHalved = kSampling == Sampling::k2x1 || kSampling == Sampling::k2x2;

  // Weighted sums over the two rows, minus 128 for each weight; neighbours in a row are weighted from these.
  // For 2x2, four times the constant includes the 8 that rounds an even column.
  FASTLOAD_AVX2 __m256i sums(const uint8_t* near, [[maybe_unused]] const uint8_t* far) const {
    if constexpr (kSampling == Sampling::k2x1) {
      return _mm256_sub_epi16(words_of(near), _mm256_set1_epi16(128));
    }
    const __m256i more = _mm256_mullo_epi16(words_of(near), _mm256_set1_epi16(3));
    return _mm256_add_epi16(_mm256_add_epi16(more, words_of(far)), _mm256_set1_epi16(2 - 512));
  }

  FASTLOAD_AVX2 __m256i between(__m256i near, __m256i far) const {
    const __m256i most = _mm256_mullo_epi16(near, _mm256_set1_epi16(3));
    return _mm256_srai_epi16(_mm256_add_epi16(_mm256_add_epi16(most, far), bias_), 2);
  }

  const uint8_t* near_;
  const uint8_t* far_;
  __m256i before_, here_, bias_;
};

FASTLOAD_AVX2 __m256i green_of(__m256i pairs) {
  constexpr uint32_t kFactors = static_cast<uint32_t>(-23401) << 16 | (-11277 & 0xffff);
  const __m256i products = _mm256_madd_epi16(pairs, _mm256_set1_epi32(static_cast<int>(kFactors)));
  return _mm256_srai_epi32(_mm256_add_epi32(products, _mm256_set1_epi32(1 << 14)), 15);
}

// Red, green and blue of 16 pixels, not clipped; see convert in jpeg/ycc_avx512.cpp.
FASTLOAD_AVX2 void convert(__m256i luma, __m256i cb, __m256i cr, __m256i* rgb) {
  rgb[0] = _mm256_mulhrs_epi16(_mm256_add_epi16(cr, cr), _mm256_set1_epi16(22971));
  rgb[1] =
      _mm256_packs_epi32(green_of(_mm256_unpacklo_epi16(cb, cr)), green_of(_mm256_unpackhi_epi16(cb, cr)));
  rgb[2] = _mm256_mulhrs_epi16(_mm256_add_epi16(cb, cb), _mm256_set1_epi16(29033));
  for (int c = 0; c < 3; c++) rgb[c] = _mm256_add_epi16(rgb[c], luma);
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

FASTLOAD_AVX2 void store(const __m256i* packed, int left, uint8_t* rgb) {
  __m256i channels[3], every[3], parts[3];
  for (int c = 0; c < 3; c++) {
    channels[c] = _mm256_shuffle_epi8(packed[c], load_both_lanes(kTables.shuffle[c]));
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

template <Sampling kSampling>
FASTLOAD_AVX2 void convert_row(const YccRow& row, int x0, int width, uint8_t* rgb) {
  constexpr bool kHalved = kSampling == Sampling::k2x1 || kSampling == Sampling::k2x2;
  constexpr bool kTwoRows = kSampling == Sampling::k1x2 || kSampling == Sampling::k2x2;
  const int at = kHalved ? x0 >> 1 : x0;
  Chroma<kSampling> blue(row.near[0] + at, (kTwoRows ? row.far : row.near)[0] + at, row.far_below);
  Chroma<kSampling> red(row.near[1] + at, (kTwoRows ? row.far : row.near)[1] + at, row.far_below);
  const uint8_t* luma = row.luma + x0;
  for (int left = 3 * width; left > 0; left -= 96, luma += 32, rgb += 96) {
    const Columns y = columns_of(load(luma)), cb = blue.next(), cr = red.next();
    __m256i even[3], odd[3], packed[3];
    convert(y.even, cb.even, cr.even, even);
    convert(y.odd, cb.odd, cr.odd, odd);
    for (int c = 0; c < 3; c++) packed[c] = _mm256_packus_epi16(even[c], odd[c]);
    store(packed, left, rgb);
  }
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

FASTLOAD_AVX2_CALL void to_rgb(Sampling sampling, const YccRow& row, int x0, int width, uint8_t* rgb) {
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

YccToRgb ycc_to_rgb_avx2() {
  return to_rgb;
}

}  // namespace fastload

#endif  // FASTLOAD_X86
