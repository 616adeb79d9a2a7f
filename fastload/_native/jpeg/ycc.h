// Rows of component samples into RGB: fancy upsampling and colour conversion at once, bit for bit as
// libjpeg-turbo's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// Sampling of luma over chroma, horizontally and vertically.
enum class Sampling : uint8_t { kGray, k1x1, k2x1, k1x2, k2x2 };

// What one row of pixels is made of: pointers to column 0 of each component. With k2x* a pixel of column x
// takes chroma of columns x / 2 - 1 to x / 2 + 1, all of which are there: the image's first and last
// chroma column are repeated once beyond its edge, which gives what libjpeg gives for the edge. At k*x2 `far`
// is the chroma row above or below; the image's first and last one are their own neighbours. Else `far` is
// not looked at; with kGray `near` is not either. 64 bytes before and behind what is needed may be read.
struct YccRow {
  const uint8_t* luma;
  const uint8_t* near[2];  // Cb, Cr
  const uint8_t* far[2];
  bool far_below;  // k1x2 rounds otherwise then
};

// Pixels of columns [x0, x0 + width) into `rgb`, 3 bytes each. Up to 64 bytes behind them may be written.
using YccToRgb = void (*)(Sampling sampling, const YccRow& row, int x0, int width, uint8_t* rgb);

YccToRgb ycc_to_rgb_scalar();
// nullptr where they were not compiled (another processor family).
YccToRgb ycc_to_rgb_avx2();
YccToRgb ycc_to_rgb_avx512();

}  // namespace fastload
