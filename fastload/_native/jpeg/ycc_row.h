// Upsampling and colour conversion of a row of pixels, written once for all instruction sets that have
// vectors.
//
// The file of a set defines these in an unnamed namespace of fastload, and then includes this:
//
//   FASTLOAD_SET, FASTLOAD_SET_CALL  what a function begins with that is inlined, and one that is called
//   Words                            the compiler's vector of int16_t
//   words_of(bytes)                  the next bytes as Words
//   columns_of(bytes)                twice as many as Columns
//   left_of(before, here)            the words of `here`, moved up by one: the last of `before` comes first
//   right_of(here, behind)           moved down by one: the first of `behind` comes last
//   scaled(words, factor)            words * factor / 2^15, rounded
//   green_of(cb, cr)                 (-11277 * cb - 23401 * cr) / 2^15, rounded
//   store(even, odd, left, rgb)      columns 0 2 4 ... and 1 3 5 ... of three channels, clipped, as
//                                    pixels; at least `left` bytes
//   gray_row(luma, width, rgb)       as YccToRgb, with kGray
#pragma once

#include "jpeg/ycc.h"

namespace fastload {
namespace {

constexpr int kWords = sizeof(Words) / sizeof(int16_t);

// Chroma minus 128, 2 * kWords pixels at a time.
template <Sampling kSampling>
class Chroma {
 public:
  FASTLOAD_SET Chroma(const uint8_t* near, const uint8_t* far, bool far_below) : near_(near), far_(far) {
    if constexpr (kSampling == Sampling::k1x2) bias_ = far_below ? 2 - 512 : 1 - 512;
    if constexpr (kHalved) {
      before_ = sums(near - kWords, far - kWords);
      here_ = sums(near, far);
    }
  }

  FASTLOAD_SET Columns next() {
    if constexpr (kHalved) {
      near_ += kWords, far_ += kWords;
      const Words behind = sums(near_, far_);
      const Words left = left_of(before_, here_), right = right_of(here_, behind);
      constexpr bool kOneRow = kSampling == Sampling::k2x1;
      constexpr int16_t kEven = kOneRow ? 1 : 0, kOdd = kOneRow ? 2 : -1;
      constexpr int kBits = kOneRow ? 2 : 4;
      const Words even = 3 * here_ + left + kEven, odd = 3 * here_ + right + kOdd;
      before_ = here_;
      here_ = behind;
      return {even >> kBits, odd >> kBits};
    } else {
      const Columns near = columns_of(near_);
      near_ += 2 * kWords;
      if constexpr (kSampling == Sampling::k1x2) {
        const Columns far = columns_of(far_);
        far_ += 2 * kWords;
        return {between(near.even, far.even), between(near.odd, far.odd)};
      }
      return {near.even - 128, near.odd - 128};
    }
  }

 private:
  static constexpr bool kHalved = kSampling == Sampling::k2x1 || kSampling == Sampling::k2x2;

  // Weighted sums over the two rows, minus 128 for each weight; neighbours in a row are weighted from these.
  // For 2x2, four times the constant includes the 8 that rounds an even column.
  FASTLOAD_SET static Words sums(const uint8_t* near, [[maybe_unused]] const uint8_t* far) {
    if constexpr (kSampling == Sampling::k2x1) return words_of(near) - 128;
    constexpr int16_t kBias = 2 - 512;
    return 3 * words_of(near) + words_of(far) + kBias;
  }

  FASTLOAD_SET Words between(Words near, Words far) const { return (3 * near + far + bias_) >> 2; }

  const uint8_t* near_;
  const uint8_t* far_;
  int16_t bias_ = 0;
  Words before_, here_;
};

// Red, green and blue, not clipped. The rounded products of twice the chroma with 15-bit factors equal those
// of jpeg/ycc_scalar.cpp with 16-bit factors for all 256 values; green's factors there are even.
FASTLOAD_SET void convert(Words luma, Words cb, Words cr, Words* rgb) {
  rgb[0] = scaled(2 * cr, 22971) + luma;
  rgb[1] = green_of(cb, cr) + luma;
  rgb[2] = scaled(2 * cb, 29033) + luma;
}

template <Sampling kSampling>
FASTLOAD_SET void convert_row(const YccRow& row, int x0, int width, uint8_t* rgb) {
  constexpr bool kHalved = kSampling == Sampling::k2x1 || kSampling == Sampling::k2x2;
  constexpr bool kTwoRows = kSampling == Sampling::k1x2 || kSampling == Sampling::k2x2;
  const int at = kHalved ? x0 >> 1 : x0;
  Chroma<kSampling> blue(row.near[0] + at, (kTwoRows ? row.far : row.near)[0] + at, row.far_below);
  Chroma<kSampling> red(row.near[1] + at, (kTwoRows ? row.far : row.near)[1] + at, row.far_below);
  const uint8_t* luma = row.luma + x0;
  for (int left = 3 * width; left > 0; left -= 6 * kWords, luma += 2 * kWords, rgb += 6 * kWords) {
    const Columns y = columns_of(luma), cb = blue.next(), cr = red.next();
    Words even[3], odd[3];
    convert(y.even, cb.even, cr.even, even);
    convert(y.odd, cb.odd, cr.odd, odd);
    store(even, odd, left, rgb);
  }
}

FASTLOAD_SET_CALL void to_rgb(Sampling sampling, const YccRow& row, int x0, int width, uint8_t* rgb) {
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
}  // namespace fastload

#undef FASTLOAD_SET
#undef FASTLOAD_SET_CALL
