// Converts rows of component samples to RGB: fancy upsampling and colour conversion in one step, bit for bit
// as libjpeg-turbo does.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// Sampling of luma relative to chroma: horizontally x vertically.
enum class Sampling : uint8_t { kGray, k1x1, k2x1, k1x2, k2x2 };

// Samples for one row of pixels: pointers to column 0 of each component. With k2x*, a pixel in column x uses
// chroma columns x / 2 - 1 to x / 2 + 1, all of which must exist: the caller repeats the image's first and
// last chroma column once beyond its edge, which gives libjpeg's result for the edge. With k*x2, `far` is the
// chroma row above or below; the image's first and last row are their own neighbours. Otherwise `far` is not
// read; with kGray neither is `near`. Up to 64 bytes before and after the samples may be read.
struct YccRow {
  const uint8_t* luma;
  const uint8_t* near[2];  // Cb, Cr
  const uint8_t* far[2];
  bool far_below;  // k1x2 rounds differently then
};

// Converts columns [x0, x0 + width) to `rgb`, 3 bytes each. May write up to 64 bytes after them.
using YccToRgb = void (*)(Sampling sampling, const YccRow& row, int x0, int width, uint8_t* rgb);

// That of simd_in_use().
YccToRgb ycc_to_rgb();

YccToRgb ycc_to_rgb_scalar();
YccToRgb ycc_to_rgb_avx2();
YccToRgb ycc_to_rgb_avx512();
YccToRgb ycc_to_rgb_neon();

}  // namespace fastload
